"""The verbs of a subscriber, step by step: what they ask, what they wait for, and how they end."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import SHARED, Reads, Timed, bring, packed, payloads_of
from xxhash import xxh3_64_intdigest

from clarion.model.errors import (
    InvalidRequest,
    LeaseLost,
    MessagesUnreadable,
    NotSubscribed,
    StoredDataCorrupt,
    TimedOut,
    Unreachable,
)
from clarion.model.options import SubscriptionOptions
from clarion.subscriber.subscriber_core import AskState, Close, Flush, Next, Subscribe, Unsubscribe
from clarion.subscriber.subscriber_transactions import State
from clarion.wire import bodies
from clarion.wire.batch import COMPRESSED, HEADER_BYTES, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

# Getting.


@pytest.mark.parametrize("shared", [False, True])
def test_a_get_acks_what_the_last_one_handed_out(shared: bool) -> None:
    reads = Reads(shared=shared)
    assert payloads_of(reads.got(0, 1)) == [b"0", b"1"]
    walk = reads.get()
    assert reads.pick(Kind.ACK).body.acked == ((0, 2),)
    reads.take_asked()[0].nothing()
    assert walk.end() == []
    reads.get()
    assert [asked.kind for asked in reads.asked if asked.kind == Kind.ACK] == []


def test_explicitly_nothing_is_acked_by_itself() -> None:
    reads = Reads(ack="explicit")
    reads.got(0, 1)
    reads.get()
    reads.one(Kind.GET)


def test_a_get_waits_as_long_as_it_was_told_and_asks_once_more_at_the_end() -> None:
    reads = Reads()
    walk = reads.get(wait_s=5.0)
    reads.attach()
    reads.one(Kind.GET).nothing()
    assert not walk.go_on(), "time is not up"
    again = reads.one(Kind.GET)
    reads.now_s += 5.0
    again.nothing()
    assert walk.end() == []


def test_a_broker_that_says_nothing_is_unreachable() -> None:
    reads = Reads()
    walk = reads.get(wait_s=5.0)
    reads.now_s += 15.1
    with pytest.raises(Unreachable):
        walk.end()


def test_no_messages_at_all_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Reads().get(0)


def test_a_lost_lease_is_told_by_the_next_get_and_then_it_goes_on() -> None:
    reads = Reads(shared=True)
    reads.got(0, 1, 2)
    walk = reads.get()
    reads.pick(Kind.ACK).refuse(Code.LEASE_LOST)
    with pytest.raises(LeaseLost, match="offsets 0 to 2 of news"):
        walk.end()
    reads.take_asked()
    walk = reads.get()
    reads.attach(token=8)
    reads.one(Kind.TAKE).lend(0, attempt=2)
    (part,) = walk.end()
    assert part.attempt == 2


# At most once.


@pytest.mark.parametrize("shared", [False, True])
def test_at_most_once_is_acked_before_it_is_handed_out(shared: bool) -> None:
    reads = Reads(at_most_once=True, shared=shared)
    walk = reads.get()
    reads.attach()
    bring(reads.take_asked()[0], 0, 1)
    assert not walk.go_on()
    ack = reads.one(Kind.ACK)
    assert ack.body.acked == ((0, 2),)
    ack.done()
    assert payloads_of(walk.end()) == [b"0", b"1"]


def test_at_most_once_what_could_not_be_acked_is_kept_for_the_next_call() -> None:
    reads = Reads(at_most_once=True)
    walk = reads.get()
    reads.attach()
    bring(reads.take_asked()[0], 0, 1)
    walk.go_on()
    ack = reads.one(Kind.ACK)
    reads.now_s += 10.0
    with pytest.raises(Unreachable):
        walk.end()
    walk = reads.get()
    ack.done()
    walk.go_on()
    reads.one(Kind.ACK).done()
    assert payloads_of(walk.end()) == [b"0", b"1"]


def test_at_most_once_what_was_lost_before_it_was_acked_is_not_handed_out() -> None:
    reads = Reads(at_most_once=True, shared=True)
    walk = reads.get(wait_s=5.0)
    reads.attach()
    bring(reads.take_asked()[0], 0)
    walk.go_on()
    reads.one(Kind.ACK).refuse(Code.LEASE_LOST)
    reads.take_asked()
    assert not walk.go_on(), "it goes on waiting"
    reads.attach(token=8)
    reads.one(Kind.TAKE).lend(1)
    walk.go_on()
    reads.one(Kind.ACK).done()
    assert payloads_of(walk.end()) == [b"1"]


def test_at_most_once_a_cancelled_get_loses_nothing() -> None:
    reads = Reads(at_most_once=True)
    walk = reads.get()
    reads.attach()
    bring(reads.take_asked()[0], 0)
    walk.go_on()
    walk.cancel()
    walk = reads.get()
    reads.one(Kind.ACK).done()
    reads.one(Kind.ACK).done()
    assert payloads_of(walk.end()) == [b"0"]


# Streams.


def test_a_stream_hands_out_what_is_there_without_waiting_and_acks_one_by_one() -> None:
    reads = Reads()
    assert reads.reader.next_now(b"news") is None
    walk = reads.run(Next(b"news", None, holder=reads))
    reads.attach()
    bring(reads.take_asked()[0], 0, 1)
    first = walk.end()
    assert first is not None
    assert first.offset == 0
    second = reads.reader.next_now(b"news")
    assert second is not None
    assert reads.one(Kind.ACK).body.acked == ((0, 1),)
    assert reads.reader.next_now(b"news") is None
    assert reads.asked == [], "the second ack waits for the first"


def test_a_stream_of_what_is_shared_begins_with_one() -> None:
    reads = Reads(shared=True)
    reads.run(Next(b"news", None, holder=reads))
    reads.attach()
    assert reads.one(Kind.TAKE).body.max_messages == 1


def test_a_stream_ends_when_nothing_came_for_so_long_and_otherwise_outlives_the_broker() -> None:
    reads = Reads()
    walk = reads.run(Next(b"news", 5.0, holder=reads))
    reads.attach()
    reads.now_s += 5.0
    reads.one(Kind.GET).nothing()
    assert walk.end() is None
    walk = reads.run(Next(b"news", None, holder=reads))
    for _ in range(3):
        reads.now_s += 41.0
        assert not walk.go_on()
    reads.one(Kind.GET).deliver(0, b"0")
    assert walk.end() is not None


# Messages that cannot be unpacked.


def unreadable(payload: bytes) -> bytes:
    """A batch whose checksum is right and whose columns cannot be decompressed."""
    raw = encode_batch([payload], broker=1, publisher=2, stamp=3, number=1)
    raw[5] |= COMPRESSED
    raw[60:64] = (len(raw) - HEADER_BYTES).to_bytes(4, "little")
    raw[8:16] = xxh3_64_intdigest(bytes(raw[16:]), seed=int.from_bytes(raw[:8], "little")).to_bytes(8, "little")
    return bytes(raw)


def test_what_cannot_be_unpacked_is_told_once_after_what_can_and_passed_over() -> None:
    reads = Reads()
    walk = reads.get(opened=True)
    reads.attach()
    delivery = bodies.Delivery(((0, 5), (1, 5), (2, 5)), 3)
    reads.one(Kind.GET).answer(Kind.MESSAGES, delivery, packed(b"0"), unreadable(b"1"), packed(b"2"))
    assert payloads_of(walk.end()) == [b"0"]
    with pytest.raises(MessagesUnreadable, match="offsets 1 to 1") as told:
        reads.get(opened=True)
    assert (told.value.start, told.value.stop, told.value.raw) == (1, 2, unreadable(b"1"))
    assert payloads_of(reads.get(opened=True).end()) == [b"2"]


def test_what_cannot_be_unpacked_is_handed_out_as_a_batch() -> None:
    reads = Reads()
    walk = reads.get()
    reads.attach()
    reads.one(Kind.GET).answer(Kind.MESSAGES, bodies.Delivery(((0, 5),), 1), unreadable(b"0"))
    (part,) = walk.end()
    assert list(part.offsets) == [0]


def test_what_is_shared_and_cannot_be_unpacked_is_given_back_with_the_reason() -> None:
    reads = Reads(shared=True)
    walk = reads.get(opened=True)
    reads.attach()
    lent = bodies.Lent(((0, 5), (1, 5)), ((0, 1, 1), (1, 2, 1)), 0)
    reads.one(Kind.TAKE).answer(Kind.MESSAGES, lent, unreadable(b"0"), packed(b"1"))
    with pytest.raises(StoredDataCorrupt):
        walk.end()
    returned = reads.one(Kind.RETURN).body
    assert (returned.returned, returned.counted) == (((0, 1, 1),), True)
    assert "cannot be unpacked" in returned.reason
    assert payloads_of(reads.get(opened=True).end()) == [b"1"]


# Subscriptions and states.


def test_subscribing_says_what_is_wanted_and_whether_it_was_new() -> None:
    reads = Reads()
    walk = reads.run(Subscribe("news", b"reader", 5, SHARED, 10.0))
    asked = reads.one(Kind.SUBSCRIBE)
    assert (asked.body.topic, asked.body.start, asked.body.at, asked.body.options) == (b"news", "offset", 5, SHARED)
    asked.answer(Kind.ACK, bodies.Subscribed(5, SHARED))
    assert walk.end() == (True, {}, (), {})
    walk = reads.run(Subscribe("news", b"reader", "new", SHARED, 10.0))
    reads.one(Kind.SUBSCRIBE).answer(Kind.ALREADY_SUBSCRIBED, bodies.Subscribed(5, SHARED))
    assert not walk.end()
    walk = reads.run(Subscribe("news", b"reader", "new", SubscriptionOptions(), 10.0))
    reads.one(Kind.SUBSCRIBE).answer(Kind.ALREADY_SUBSCRIBED, bodies.Subscribed(5, SHARED))
    with pytest.raises(InvalidRequest, match="already"):
        walk.end()


def test_a_busy_topic_is_asked_again_within_the_time_there_is() -> None:
    reads = Reads()
    walk = reads.run(Subscribe("news", b"reader", "new", SHARED, 10.0))
    reads.one(Kind.SUBSCRIBE).refuse(Code.BUSY, retry_after_s=0.5)
    assert not walk.go_on()
    reads.now_s += 0.5
    assert not walk.go_on()
    reads.one(Kind.SUBSCRIBE).answer(Kind.ACK, bodies.Subscribed(5, SHARED))
    assert walk.end()
    silent = reads.run(Subscribe("news", b"reader", "new", SHARED, 10.0))
    reads.now_s += 10.0
    with pytest.raises(TimedOut, match=r"did not answer a SUBSCRIBE .* whether it was done is not known.*clarion up"):
        silent.end()


def test_unsubscribing_ends_what_was_handed_out() -> None:
    reads = Reads(ack="explicit")
    (part,) = reads.got(0, 1)
    walk = reads.run(Unsubscribe("news", b"reader", 10.0))
    reads.one(Kind.UNSUBSCRIBE).done()
    assert walk.end() is True
    with pytest.raises(NotSubscribed):
        part.ack()
    walk = reads.run(Unsubscribe("news", b"reader", 10.0))
    reads.one(Kind.UNSUBSCRIBE).refuse(Code.NOT_SUBSCRIBED, kind=Kind.NOT_SUBSCRIBED)
    assert walk.end() is False


def test_a_state_is_its_value_and_version() -> None:
    reads = Reads()
    walk = reads.run(AskState("leader", 10.0))
    asked = reads.one(Kind.STATE)
    assert asked.body.name == b"leader"
    asked.answer(Kind.ACK, bodies.StateIs(b"me", 7))
    assert walk.end() == State(b"me", 7)


def test_a_broker_that_cannot_answer_a_greeting_is_greeted_again_after_the_time_it_asks_for() -> None:
    reads = Reads()
    reads.core.count.known = None
    reads.get()
    reads.one(Kind.HELLO).refuse(Code.BUSY, retry_after_s=0.5)
    assert reads.take_asked() == []
    greeting = Timed(reads, reads.core.state)
    assert greeting.on_time(reads.now_s) == reads.now_s + 0.5
    reads.now_s += 0.5
    assert greeting.on_time(reads.now_s) is None
    reads.one(Kind.HELLO).answer(Kind.ACK, bodies.Welcome(1, 1, b"", 1, 1, 1, 1, count=55))
    assert reads.one(Kind.ATTACH).body.as_of == 55


# How a subscriber leaves, and what it tells of itself.


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
