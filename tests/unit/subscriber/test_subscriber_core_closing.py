"""How a subscriber leaves, and what it tells of itself."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.reads import Reads

from clarion.model.errors import (
    LeaseLost,
    Unreachable,
)
from clarion.subscriber.subscriber_core import Close, Flush
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_closing_acks_what_was_handed_out_and_then_leaves() -> None:
    reads = Reads(shared=True)
    walk = reads.get(most=1)
    reads.attach()
    reads.one(Kind.TAKE).lend(0, 1, 2)
    walk.end()
    closing = reads.run(Close(True))
    ack = reads.one(Kind.ACK)
    assert ack.body.acked == ((0, 1),)
    ack.done()
    closing.go_on()
    detach = reads.one(Kind.DETACH)
    assert detach.body.untouched == ((1, 3),)
    detach.done()
    closing.end()


def test_closing_after_an_exception_acks_nothing_and_gives_back_what_was_handed_out_as_tried() -> None:
    reads = Reads(shared=True)
    reads.got(0, 1)
    closing = reads.run(Close(False))
    detach = reads.one(Kind.DETACH)
    assert detach.body.untouched == ()
    detach.done()
    closing.end()


def test_closing_without_a_broker_ends_in_time() -> None:
    reads = Reads(shared=True)
    reads.got(0, 1)
    closing = reads.run(Close(True))
    assert closing.until_s <= reads.now_s + 10.0
    reads.now_s += 10.0
    with pytest.raises(Unreachable):
        closing.end()


def test_leaving_takes_less_time_than_acking_may() -> None:
    reads = Reads(shared=True)
    reads.got(0, 1)
    closing = reads.run(Close(False))
    assert closing.until_s == reads.now_s + 2.0
    reads.now_s += 2.0
    closing.end()


def test_closing_tells_of_acks_that_came_too_late() -> None:
    reads = Reads(shared=True)
    reads.got(0, 1)
    closing = reads.run(Close(True))
    reads.one(Kind.ACK).refuse(Code.LEASE_LOST)
    with pytest.raises(LeaseLost, match="offsets 0 to 1 of news"):
        closing.end()


def test_nobody_leaves_a_subscription_of_ones_own() -> None:
    reads = Reads()
    reads.got(0, 1)
    reads.run(Close(False)).end()
    assert reads.asked == []


def test_flushing_waits_for_acks_and_for_what_was_given_back() -> None:
    reads = Reads(ack="explicit", shared=True)
    first, second = reads.got(0, 2)
    first.ack()
    second.nack()
    flushing = reads.run(Flush(None))
    reads.pick(Kind.ACK).done()
    assert not flushing.go_on()
    reads.pick(Kind.RETURN).done()
    flushing.end()


def test_the_clock_is_looked_at_for_those_who_need_it() -> None:
    reads = Reads(shared=True)
    reads.got(0, 1)
    assert reads.reader.on_time(reads.now_s) == pytest.approx(reads.now_s + 5.0)
    alone = Reads()
    alone.got(0, 1)
    assert alone.reader.on_time(alone.now_s) is None


def test_the_figures_tell_what_is_held() -> None:
    reads = Reads(shared=True)
    walk = reads.get(most=2)
    reads.attach()
    reads.one(Kind.TAKE).lend(0, 1, 2)
    walk.end()
    stats = reads.reader.stats()
    assert (stats["buffered"], stats["held"], stats["topics"]) == (1, 3, 1)
    assert stats["by_topic"]["news"] == {"buffered": 1, "token": 7, "shared": True, "held": 3, "taken": 3}
