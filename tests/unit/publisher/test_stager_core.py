"""Batches of a staged part: places without gaps, a window of them, tried again or given up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.publisher.talking import Asked
from tests.unit.session.answering import WELCOME

from clarion.model.errors import InvalidRequest, LimitReached, TooLarge
from clarion.publisher.stager_core import StagerCore
from clarion.session.exchange import Send
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


class Talk:
    """The broker's end of the conversation."""

    def __init__(self, *, in_flight: int = 2, batch_bytes: int = 1000, compressed: bool = False) -> None:
        self.now_s = 100.0
        self.part = StagerCore(
            "tcp://broker",
            b"seed",
            writer=b"writer",
            epoch=3,
            part=b"attempt",
            in_flight=in_flight,
            batch_bytes=batch_bytes,
            compressed=compressed,
        )
        self.part.open(bodies.Registered(1, 7), msgspec.structs.replace(WELCOME, max_batch_bytes=2000))

    def _asked(self, send: Send) -> Asked:
        blobs = tuple(bytes(blob) for blob in send.blobs)
        return Asked(send.kind, send.body, lambda reply: self.part.on_reply(send.tag, reply, self.now_s), blobs)

    def add(self, *payloads: bytes, topic: bytes = b"topic") -> None:
        for payload in payloads:
            self.part.add(topic, payload, None, None)

    def pump(self) -> list[Asked]:
        self.part.on_time(self.now_s, 1_700_000_000.0)
        return [self._asked(each) for each in self.part.take_instructions() if isinstance(each, Send)]


def store(asked: Asked, *, already: bool = False) -> None:
    asked.answer(Kind.ACK, bodies.Staged(already))


def places(asked: list[Asked]) -> list[int]:
    return [item.body.place for item in asked]


def test_nothing_leaves_before_a_batch_is_full_or_all_is_wanted() -> None:
    talk = Talk()
    talk.add(b"a", b"b")
    assert talk.pump() == []
    talk.part.place_all()
    (asked,) = talk.pump()
    assert asked.kind == Kind.STAGE
    assert asked.body == bodies.Stage(b"topic", b"writer", 3, b"attempt", 0)
    assert (asked.batch.payloads(), asked.batch.publisher, asked.batch.number) == ([b"a", b"b"], 7, 1)
    talk.add(bytes(600), bytes(600))
    assert [item.batch.count for item in talk.pump()] == [1]


def test_places_and_stamps_rise_over_all_topics_within_the_window() -> None:
    talk = Talk(in_flight=2)
    for topic in (b"one", b"two", b"three", b"one"):
        talk.add(bytes(600), topic=topic)
    talk.part.place_all()
    asked = talk.pump()
    assert places(asked) == [0, 1]
    store(asked[1])
    asked += talk.pump()
    store(asked[0])
    asked += talk.pump()
    assert places(asked) == [0, 1, 2, 3]
    stamps = [item.batch.stamp for item in asked]
    assert stamps == sorted(set(stamps))


def test_what_came_before_is_stored_when_every_lower_place_is() -> None:
    talk = Talk()
    assert talk.part.stored_below(0)
    for _ in range(2):
        talk.add(b"x")
        talk.part.place_all()
    asked = talk.pump()
    assert [talk.part.stored_below(place) for place in (0, 1, 2)] == [True, False, False]
    store(asked[1])
    assert not talk.part.stored_below(1)
    store(asked[0])
    assert talk.part.stored_below(2)
    assert (talk.part.messages, talk.part.batches, talk.part.buffered_bytes, talk.part.under_way) == (2, 2, 0, 0)


def test_a_refusal_for_now_is_sent_again_unchanged() -> None:
    talk = Talk()
    talk.add(b"x")
    talk.part.place_all()
    (asked,) = talk.pump()
    asked.refuse(Code.DISK_FULL, retry_after_s=0.5)
    assert talk.pump() == []
    assert talk.part.on_time(talk.now_s, 1_700_000_000.0) == pytest.approx(talk.now_s + 0.5)
    talk.now_s += 0.5
    (again,) = talk.pump()
    assert (again.body, again.blobs) == (asked.body, asked.blobs)
    store(again)
    assert talk.part.stored_below(1)


def test_what_was_committed_before_is_counted_and_goes_on() -> None:
    talk = Talk()
    talk.add(b"x")
    talk.part.place_all()
    store(talk.pump()[0], already=True)
    assert (talk.part.already, talk.part.messages, talk.part.error) == (1, 0, None)
    assert talk.part.buffered_bytes == 0


def test_a_topic_that_is_not_there_is_made_and_the_batch_staged_again() -> None:
    talk = Talk()
    talk.add(b"x")
    talk.part.place_all()
    (asked,) = talk.pump()
    asked.refuse(Code.NO_TOPIC)
    (made,) = talk.pump()
    assert (made.kind, made.body.topic) == (Kind.CONFIGURE, b"topic")
    made.refuse(Code.STALE, expected=8)
    (made,) = talk.pump()
    assert made.body.as_of == 8
    made.answer(Kind.ACK, bodies.Done())
    (again,) = talk.pump()
    assert (again.kind, again.body.place, again.body.as_of, again.blobs) == (Kind.STAGE, 0, 8, asked.blobs)


def test_any_other_refusal_ends_the_part() -> None:
    talk = Talk(in_flight=1)
    talk.add(bytes(600), bytes(600))
    talk.part.place_all()
    talk.pump()[0].refuse(Code.LIMIT)
    assert isinstance(talk.part.error, LimitReached)
    assert talk.pump() == []


def test_what_cannot_be_packed_ends_the_part() -> None:
    talk = Talk()
    wrong: Any = ["text"]
    talk.part.add_many(b"topic", wrong, None, None)
    talk.part.place_all()
    assert talk.pump() == []
    assert isinstance(talk.part.error, InvalidRequest)


def test_a_message_no_batch_can_hold_is_too_large_and_not_queued() -> None:
    talk = Talk()
    with pytest.raises(TooLarge):
        talk.add(bytes(2000))
    assert (talk.part.buffered_bytes, talk.part.gathered_bytes) == (0, 0)


def test_keys_headers_and_compression_go_into_the_batch() -> None:
    talk = Talk(compressed=True)
    talk.part.add_many(b"topic", [b"same" * 50, b"same" * 50], [b"k", None], [None, {"h": b"v"}])
    talk.part.add(b"topic", b"p", b"key", {"g": b"w"})
    talk.part.place_all()
    batch = talk.pump()[0].batch
    assert batch.is_compressed
    assert [batch.key(place) for place in range(3)] == [b"k", None, b"key"]
    assert [batch.headers(place) for place in range(3)] == [None, {"h": b"v"}, {"g": b"w"}]
