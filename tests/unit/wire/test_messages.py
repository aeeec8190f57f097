"""What a subscriber is handed looks into the batch it came in."""

from __future__ import annotations

import pickle
from copy import deepcopy
from datetime import UTC, datetime

import pytest

from clarion.model import MessageId
from clarion.model.errors import PermanentError
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.messages import MessageBatch


class Acking:
    """A client that notes what it is told."""

    def __init__(self, acked: list[tuple[int, int]]) -> None:
        self._acked = acked

    def ack_offsets(self, attachment: object, start: int, stop: int) -> None:
        assert attachment == "attachment"
        self._acked.append((start, stop))

    def nack_offsets(self, attachment: object, start: int, stop: int, delay_s: float, reason: str) -> None:
        raise AssertionError

    def extend_offsets(self, attachment: object, start: int, stop: int) -> None:
        raise AssertionError


@pytest.fixture
def acked() -> list[tuple[int, int]]:
    return []


@pytest.fixture
def part(acked: list[tuple[int, int]]) -> MessageBatch:
    """Messages 1 to 3 of four, in a batch that begins at offset 10."""
    packed = encode_batch(
        [b"0", b"1", b"2", b"3"],
        keys=[b"k0", None, b"k2", None],
        headers=[None, {"a": b"b"}, None, None],
        broker=1,
        publisher=2,
        stamp=3,
        number=4,
    )

    holder = Acking(acked)
    return MessageBatch(
        b"news", Batch.parse(bytes(packed)), 10, 1_600_000_000_000_000, 1, 4, "attachment", holder=holder
    )


def test_a_part_of_a_batch_knows_its_offsets_and_columns(part: MessageBatch) -> None:
    assert (len(part), part.offsets) == (3, range(11, 14))
    assert (part.payloads(), part.keys()) == ([b"1", b"2", b"3"], [None, b"k2", None])
    assert part.committed_at == datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)
    assert repr(part) == "MessageBatch(news, offsets 11 to 13)"


def test_a_message_knows_what_it_is(part: MessageBatch) -> None:
    first, second, _ = part
    assert (first.payload, first.key, first.headers, first.offset) == (b"1", None, {"a": b"b"}, 11)
    assert (second.payload, second.key, second.headers, second.offset) == (b"2", b"k2", {}, 12)
    assert second.id == MessageId(1, 2, 3, 2)
    assert (second.topic, second.committed_at) == (b"news", part.committed_at)
    assert repr(second) == "Message(news offset 12, 1 bytes)"


def test_cutting_counts_in_the_whole_batch_and_keeps_offsets(part: MessageBatch) -> None:
    cut = part.cut(2, 3)
    assert (cut.payloads(), cut.offsets, [message.id.counter for message in cut]) == ([b"2"], range(12, 13), [2])


def test_what_nobody_was_lent_cannot_be_given_back_or_kept(part: MessageBatch) -> None:
    part.holder = None
    assert (part.attempt, part.messages()[0].attempt) == (1, 1)
    for refused in (part.nack, part.messages()[0].nack, part.extend, part.messages()[0].extend):
        with pytest.raises(PermanentError, match="not handed out by a subscriber"):
            refused()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_pickled_message_carries_its_data_and_says_that_it_cannot_be_acked(compressed: bool) -> None:
    payloads, keys, headers = [b"0", b"1" * 500, b"2", b"3"], [b"k", None, b"k2", None], [None, {"a": b"b"}, None, None]
    packed = encode_batch(
        payloads, keys=keys, headers=headers, broker=1, publisher=2, stamp=3, number=4, compressed=compressed
    )
    part = MessageBatch(b"news", Batch.parse(packed), 10, 1_600_000_000_000_000, 1, 4, "attachment", attempt=3)
    for original in part:
        for copy in (pickle.loads(pickle.dumps(original)), deepcopy(original)):
            for name in ("topic", "payload", "key", "headers", "id", "offset", "committed_at", "attempt"):
                assert getattr(copy, name) == getattr(original, name)
            for refused in (copy.ack, copy.nack, copy.extend):
                with pytest.raises(PermanentError, match="or is a copy"):
                    refused()
    assert len(pickle.dumps(part.messages()[2])) < 400, "it carries no other messages"
    whole = part.cut(0, 4)
    for copied, was in ((pickle.loads(pickle.dumps(part)), part), (pickle.loads(pickle.dumps(whole)), whole)):
        assert (copied.offsets, copied.payloads(), copied.keys()) == (was.offsets, was.payloads(), was.keys())
        assert (copied.attempt, copied.committed_at) == (3, was.committed_at)
        with pytest.raises(PermanentError, match="or is a copy"):
            copied.ack()


def test_acking_says_exactly_which_offsets(part: MessageBatch, acked: list[tuple[int, int]]) -> None:
    part.messages()[1].ack()
    part.ack()
    assert acked == [(12, 13), (11, 14)]
