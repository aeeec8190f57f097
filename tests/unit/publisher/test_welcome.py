"""Before the broker has told its limits: nothing leaves, and batches stay small enough for any."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.publisher.talking import TOPIC, Talk

from clarion.model.errors import TooLarge, VersionMismatch
from clarion.publisher import Publisher
from clarion.wire import bodies
from clarion.wire.frames import Kind


def _greeting(max_batch_bytes: int) -> tuple[Talk, bodies.Welcome]:
    talk = Talk(registered=False)
    talk.greet()
    return talk, bodies.Welcome(1, 1, bytes(16), 1, max_batch_bytes, 64, 1 << 20)


def test_nothing_leaves_before_the_broker_has_told_its_limits() -> None:
    talk, welcome = _greeting(1 << 20)
    talk.put(TOPIC, b"x", None, None)
    talk.turn()
    assert [asked.kind for asked in talk.asked] == [Kind.HELLO]
    talk.asked[0].answer(Kind.ACK, welcome)
    talk.turn()
    assert [asked.kind for asked in talk.asked] == [Kind.HELLO, Kind.REGISTER]


def test_what_gathers_before_that_fits_a_broker_that_takes_little() -> None:
    talk, welcome = _greeting(10_000)
    batches = {
        id(outgoing): outgoing for outgoing, _, _ in (talk.put(TOPIC, b"x" * 100, None, None) for _ in range(500))
    }
    talk.asked[0].answer(Kind.ACK, welcome)
    assert len(batches) > 1
    assert all(not outgoing.done and outgoing.size < 10_000 for outgoing in batches.values())


def test_a_message_too_large_for_the_broker_fails_when_that_is_known() -> None:
    talk, welcome = _greeting(10_000)
    small, _, _ = talk.put(TOPIC, b"small", None, None)
    large, _, _ = talk.put(TOPIC, b"x" * 20_000, None, None)
    talk.asked[0].answer(Kind.ACK, welcome)
    assert not small.done
    with pytest.raises(TooLarge):
        large.raise_error()
    assert talk.core.buffered_bytes == small.memory_bytes


def test_afterwards_batches_are_as_large_as_usual_or_as_the_broker_takes() -> None:
    for takes, gathers in ((1 << 24, 1 << 20), (10_000, 10_000 - 128)):
        talk, welcome = _greeting(takes)
        talk.asked[0].answer(Kind.ACK, welcome)
        assert talk.core.batch_bytes == gathers


@pytest.mark.parametrize("outbox", [None, "outbox.db"])
def test_a_publisher_that_broke_takes_nothing_more_on_a_topic_that_it_knows(outbox: str | None, tmp_path: Path) -> None:
    publisher = Publisher("tcp://127.0.0.1:1", outbox=None if outbox is None else tmp_path / outbox)
    receipts = [publisher.put("news", b"a"), publisher.put("news", b"b")]
    with publisher._lock:
        publisher._core.on_broken(VersionMismatch("another version"), 0.0)
    for _ in range(2):
        with pytest.raises(VersionMismatch):
            publisher.put("news", b"c")
    for receipt in receipts:
        with pytest.raises(VersionMismatch):
            receipt.result()
    publisher.close()
