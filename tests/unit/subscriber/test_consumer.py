"""One topic's consumer: what is fetched when, handed out in order, skipped, and acked."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.unit.subscriber.talking import COUNT, Ranges, Reads, Talk, packed, payloads_of

from clarion.model.errors import (
    DiskFull,
    InvalidRequest,
    LeaseLost,
    LimitReached,
    MessagesGone,
    NotSubscribed,
    PermanentError,
    StoredDataCorrupt,
    TakenOver,
)
from clarion.subscriber import consumer as consumer_module
from clarion.subscriber.subscriber_core import Extend, check_same_use, options_of, start_fields
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_it_attaches_once_and_then_gets_what_was_wanted() -> None:
    talk = Talk(attached=False)
    talk.reading.want(1.5, 5)
    talk.reading.want(2.5, 5)
    talk.attach()
    body = talk.one(Kind.GET).body
    assert (body.token, body.position, body.wait_ms) == (7, 0, 2500)


def test_what_comes_is_handed_out_in_order_and_once() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, b"0", b"1", b"2")
    assert talk.reading.buffered == 3
    assert payloads_of(talk.reading.take(2)) == [b"0", b"1"]
    assert payloads_of(talk.reading.take(2)) == [b"2"]
    assert talk.reading.take(2) == []
    assert talk.reading.buffered == 0


def test_the_same_messages_twice_are_taken_once() -> None:
    talk = Talk(attached=False)
    talk.reading.want(5.0, 5)
    talk.attach()
    first = talk.one(Kind.GET)
    talk.reading.want(0.0, 5)
    second = talk.one(Kind.GET)
    first.deliver(0, b"0", b"1")
    second.deliver(0, b"0", b"1", b"2")
    assert payloads_of(talk.reading.take(9)) == [b"0", b"1", b"2"]


def test_a_batch_that_begins_before_the_position_is_cut() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, b"0")
    talk.reading.want(0.0, 5)
    talk.one(Kind.GET).deliver(0, b"0", b"1", b"2")
    parts = talk.reading.take(9)
    assert payloads_of(parts) == [b"0", b"1", b"2"]
    assert [list(part.offsets) for part in parts] == [[0], [1, 2]]


# What is not for this reader.


def test_what_was_acked_before_it_came_is_left_out() -> None:
    talk = Talk(acked=((1, 2), (3, 5), (6, 8)))
    talk.one(Kind.GET).deliver(0, *(b"%d" % place for place in range(7)), end=9)
    talk.reading.want(0.0, 5)
    talk.one(Kind.GET).deliver(7, b"7", b"8")
    assert payloads_of(talk.reading.take(99)) == [b"0", b"2", b"5", b"8"]


def test_what_the_broker_skips_is_neither_handed_out_nor_missed() -> None:
    talk = Talk()
    delivery = bodies.Delivery(((0, 5), (5, 5)), 9, ((1, 2), (3, 5), (7, 9)))
    talk.one(Kind.GET).answer(Kind.MESSAGES, delivery, packed(b"0", b"1", b"2"), packed(b"5", b"6"))
    assert payloads_of(talk.reading.take(99)) == [b"0", b"2", b"5", b"6"]
    talk.reading.raise_error()
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.GET).body.position == 9


def test_a_delivery_of_nothing_but_what_is_skipped_moves_on_and_is_no_empty_answer() -> None:
    talk = Talk()
    mark = talk.reading.mark()
    talk.one(Kind.GET).answer(Kind.MESSAGES, bodies.Delivery((), 7, ((0, 7),)))
    assert not talk.reading.empty_since(mark)
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.GET).body.position == 7


def test_a_gap_that_was_acked_before_is_none() -> None:
    talk = Talk(acked=((1, 3),))
    blobs = (packed(b"0"), packed(b"3"))
    talk.one(Kind.GET).answer(Kind.MESSAGES, bodies.Delivery(((0, 5), (3, 5)), 4), *blobs)
    talk.reading.raise_error()
    assert payloads_of(talk.reading.take(9)) == [b"0", b"3"]


# What is gone.


def test_messages_that_are_gone_are_told_once_acked_and_passed_over() -> None:
    talk = Talk()
    talk.one(Kind.GET).refuse(Code.GONE, gone=(0, 40))
    ack = talk.one(Kind.ACK)
    assert ack.body.acked == ((0, 40),)
    with pytest.raises(MessagesGone, match="because") as told:
        talk.reading.raise_error()
    assert (told.value.topic, told.value.start, told.value.stop) == (b"news", 0, 40)
    talk.reading.raise_error()
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.GET).body.position == 40


def test_what_came_before_a_gap_is_handed_out_before_the_gap_is_told() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, b"0", b"1", end=9)
    assert talk.hand_out(1)[0].payload == b"0"
    talk.one(Kind.GET).refuse(Code.GONE, gone=(2, 5))
    talk.reading.raise_error()
    assert talk.hand_out(1)[0].payload == b"1"
    with pytest.raises(MessagesGone):
        talk.reading.raise_error()


def test_a_gap_in_what_comes_is_told_and_what_follows_asked_for_again() -> None:
    talk = Talk()
    blobs = (packed(b"0"), packed(b"3"))
    talk.one(Kind.GET).answer(Kind.MESSAGES, bodies.Delivery(((0, 5), (3, 5)), 4), *blobs)
    assert payloads_of(talk.reading.take(9)) == [b"0"]
    with pytest.raises(MessagesGone, match="offsets 1 to 2") as told:
        talk.reading.raise_error()
    assert (told.value.start, told.value.stop) == (1, 3)
    assert talk.pick(Kind.ACK).body.acked == ((1, 3),)
    talk.reading.want(0.0, 5)
    talk.one(Kind.GET).deliver(3, b"3")
    assert payloads_of(talk.reading.take(9)) == [b"3"]


def test_while_a_gap_is_not_told_nothing_more_is_fetched() -> None:
    talk = Talk()
    talk.one(Kind.GET).refuse(Code.GONE, gone=(0, 40))
    talk.take_asked()
    talk.reading.want(0.0, 5)
    assert talk.asked == []


# Fetching ahead.


def test_more_is_fetched_ahead_only_where_more_is_known_to_be() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, b"0", b"1", end=2)
    talk.reading.take(1)
    talk.reading.take(1)
    assert talk.asked == []
    talk.reading.want(0.0, 5)
    talk.one(Kind.GET).deliver(2, b"2", b"3", end=9)
    talk.reading.take(1)
    assert talk.one(Kind.GET).body.position == 4
    talk.reading.take(1)
    assert talk.asked == [], "one is under way"


def test_nothing_is_fetched_ahead_while_enough_is_buffered() -> None:
    talk = Talk()
    batches = bodies.Delivery(((0, 5), (1, 5), (2, 5)), 9)
    talk.one(Kind.GET).answer(Kind.MESSAGES, batches, packed(bytes(900)), packed(bytes(900)), packed(b"2"))
    talk.reading.take(1)
    assert talk.asked == []
    talk.reading.take(1)
    assert talk.one(Kind.GET).body.position == 3


def test_without_prefetch_only_what_is_wanted_is_asked_for() -> None:
    talk = Talk(prefetch=False)
    get = talk.one(Kind.GET)
    assert get.body.max_messages == 5
    get.deliver(0, b"0", end=9)
    talk.reading.take(1)
    assert talk.asked == []


def test_who_does_not_want_to_wait_is_not_kept_waiting_by_one_who_does() -> None:
    talk = Talk()
    talk.one(Kind.GET).nothing()
    talk.reading.want(5.0, 5)
    assert talk.one(Kind.GET).body.wait_ms == 5000
    talk.reading.want(5.0, 5)
    assert talk.asked == []
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.GET).body.wait_ms == 0
    talk.reading.want(0.0, 5)
    assert talk.asked == []


def test_an_empty_answer_counts_for_those_who_asked_before_it_was_asked_for() -> None:
    talk = Talk(attached=False)
    early = talk.reading.mark()
    talk.reading.want(0.0, 5)
    talk.attach()
    late = talk.reading.mark()
    talk.one(Kind.GET).nothing()
    assert talk.reading.empty_since(early)
    assert not talk.reading.empty_since(late)


def test_what_is_put_back_comes_out_first_again() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, *(b"%d" % place for place in range(6)))
    talk.reading.take(1)
    for part in talk.reading.take(3):
        talk.reading.put_back(part.cut(part.start + 1, part.stop))
    assert talk.reading.buffered == 4
    assert payloads_of(talk.reading.take(99)) == [b"2", b"3", b"4", b"5"]
    assert talk.reading.inbox.bytes == 0


def test_single_messages_and_batches_come_from_the_same_buffer() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, *(b"%d" % place for place in range(6)))
    message = talk.reading.next_message()
    assert message is not None
    assert message.payload == b"0"
    assert payloads_of(talk.reading.take(2)) == [b"1", b"2"]
    rest = [message.payload for message in iter(talk.reading.next_message, None)]
    assert rest == [b"3", b"4", b"5"]
    assert (talk.reading.buffered, talk.reading.inbox.bytes) == (0, 0)


# Ends and errors.


def test_a_damaged_batch_is_never_handed_out_and_asked_for_again() -> None:
    talk = Talk()
    damaged = packed(b"0")[:-1] + b"?"
    talk.one(Kind.GET).answer(Kind.MESSAGES, bodies.Delivery(((0, 5),), 1), damaged)
    with pytest.raises(StoredDataCorrupt):
        talk.reading.raise_error()
    assert talk.reading.take(9) == []
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.GET).body.position == 0


@pytest.mark.parametrize(
    ("code", "kind", "error"),
    [
        (Code.TAKEN_OVER, Kind.REFUSED, TakenOver),
        (Code.NOT_SUBSCRIBED, Kind.NOT_SUBSCRIBED, NotSubscribed),
        (Code.MALFORMED, Kind.INVALID, InvalidRequest),
    ],
)
def test_a_refused_get_or_attach_ends_the_reading_and_the_next_call_attaches_anew(
    code: Code, kind: Kind, error: type[Exception]
) -> None:
    got = Talk()
    got.one(Kind.GET).refuse(code, kind=kind)
    attaching = Talk(attached=False)
    attaching.reading.want(0.0, 5)
    attaching.one(Kind.ATTACH).refuse(code, kind=kind)
    for talk in (got, attaching):
        talk.reading.want(0.0, 5)
        assert talk.asked == [], "until somebody was told"
        with pytest.raises(error):
            talk.reading.raise_error()
        talk.reading.want(0.0, 5)
        assert talk.one(Kind.ATTACH).body.nonce == b"nonce 2"


def test_who_was_taken_over_can_no_longer_ack() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, b"0", b"1", end=9)
    (message, _) = talk.hand_out()
    talk.one(Kind.GET).refuse(Code.TAKEN_OVER)
    with pytest.raises(TakenOver):
        message.ack()
    assert talk.asked == []


def test_a_subscription_that_was_moved_is_followed_in_silence() -> None:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, b"0", b"1", b"2", end=9)
    (message,) = talk.hand_out(1)
    talk.mark_handed(message.alone())
    talk.one(Kind.GET).refuse(Code.MOVED)
    talk.reading.raise_error()
    assert talk.reading.buffered == 0
    with pytest.raises(LeaseLost):
        message.ack()
    talk.reading.ack_handed()
    talk.reading.want(0.0, 5)
    talk.attach(token=8)
    assert talk.one(Kind.GET).body.token == 8


def test_answers_to_a_consumer_that_is_no_more_are_nobodys() -> None:
    talk = Talk(attached=False)
    talk.reading.want(5.0, 5)
    talk.attach()
    late = talk.one(Kind.GET)
    talk.reading.want(0.0, 5)
    talk.one(Kind.GET).refuse(Code.MOVED)
    late.deliver(0, b"0")
    assert talk.reading.buffered == 0


@pytest.mark.parametrize("code", [Code.DISK_FULL, Code.BUSY])
def test_an_attach_refused_for_now_is_asked_again_in_a_while(code: Code) -> None:
    talk = Talk(attached=False)
    talk.reading.want(0.0, 5)
    refused = talk.one(Kind.ATTACH)
    refused.refuse(code, retry_after_s=0.5)
    talk.reading.raise_error()
    talk.reading.want(0.0, 5)
    assert talk.reading.on_time(talk.now_s) == talk.now_s + 0.5
    assert talk.asked == []
    talk.now_s += 0.5
    assert talk.reading.on_time(talk.now_s) is None
    assert talk.asked[0].body == refused.body
    talk.attach()
    talk.one(Kind.GET).deliver(0, b"0")
    assert payloads_of(talk.reading.take(9)) == [b"0"]


def test_of_an_attach_that_was_sent_again_before_it_was_refused_for_now_nobody_can_tell() -> None:
    talk = Talk(attached=False)
    talk.reading.want(0.0, 5)
    talk.one(Kind.ATTACH).refuse(Code.BUSY, retry_after_s=0.5, times_sent=2)
    talk.now_s += 0.5
    talk.reading.on_time(talk.now_s)
    talk.one(Kind.ATTACH).refuse(Code.STALE, expected=COUNT + 2)
    with pytest.raises(TakenOver):
        talk.reading.raise_error()


def test_who_is_refused_for_now_for_as_long_as_it_waits_hears_why() -> None:
    reads = Reads()
    walk = reads.get()
    reads.one(Kind.ATTACH).refuse(Code.DISK_FULL, retry_after_s=60.0)
    reads.now_s = walk.until_s
    assert not walk.go_on()
    reads.now_s = walk.until_s
    with pytest.raises(DiskFull):
        walk.go_on()


def test_a_topic_that_is_busy_is_asked_again_in_a_while() -> None:
    talk = Talk()
    talk.one(Kind.GET).refuse(Code.BUSY, retry_after_s=0.5)
    assert talk.reading.on_time(talk.now_s) == talk.now_s + 0.5
    assert talk.asked == []
    talk.now_s += 0.5
    talk.reading.on_time(talk.now_s)
    talk.one(Kind.GET).deliver(0, b"0")
    assert payloads_of(talk.reading.take(9)) == [b"0"]


def test_the_broker_is_asked_for_its_count_before_the_first_attach() -> None:
    talk = Talk(attached=False)
    talk.core.count.known = None
    talk.reading.want(0.0, 5)
    talk.one(Kind.HELLO).answer(Kind.ACK, bodies.Welcome(1, 1, b"", 1, 1, 1, 1, count=55))
    assert talk.one(Kind.ATTACH).body.as_of == 55


@pytest.mark.parametrize("code", [Code.STALE, Code.MOVED, Code.LEASE_LOST])
def test_an_attach_that_was_sent_once_and_came_too_late_is_made_anew(code: Code) -> None:
    talk = Talk(attached=False)
    talk.reading.want(0.0, 5)
    first = talk.one(Kind.ATTACH)
    assert first.body.as_of == COUNT
    first.refuse(code, expected=123)
    (second,) = talk.asked
    assert (second.body.as_of, second.body.nonce != first.body.nonce) == (123, True)
    talk.attach()
    talk.one(Kind.GET)


@pytest.mark.parametrize("code", [Code.STALE, Code.MOVED, Code.LEASE_LOST])
def test_an_older_consumer_takes_nothing_back_with_an_attach_that_was_sent_again(code: Code) -> None:
    """Where nobody else has the subscription, or others share it, there is nothing to take."""
    talk = Talk(attached=False)
    talk.reading.want(0.0, 5)
    talk.one(Kind.ATTACH).refuse(code, expected=123, times_sent=2)
    if code == Code.STALE:
        with pytest.raises(TakenOver):
            talk.reading.raise_error()
        assert talk.asked == []
    else:
        assert talk.one(Kind.ATTACH).body.as_of == 123


# Acks: one request under way, the others join it; and what a caller may choose.


def acking(talk: Talk) -> Ranges:
    acked: Ranges = talk.pick(Kind.ACK).body.acked
    return acked


def ten_messages() -> Talk:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, *(b"%d" % place for place in range(10)))
    return talk


def test_one_ack_is_under_way_and_the_others_join_meanwhile() -> None:
    talk = ten_messages()
    messages = talk.hand_out()
    messages[0].ack()
    first = talk.one(Kind.ACK)
    assert first.body.acked == ((0, 1),)
    for place in (2, 1, 9, 3, 5, 4):
        messages[place].ack()
    assert not talk.reading.acks_done()
    first.done()
    second = talk.one(Kind.ACK)
    assert second.body.acked == ((1, 6), (9, 10)), "in as few ranges as they need, oldest first"
    second.done()
    assert talk.reading.acks_done()


def test_what_was_handed_out_is_acked_when_told_to() -> None:
    talk = ten_messages()
    talk.reading.ack_handed()
    assert talk.asked == []
    for part in (talk.reading.take(2)[0], talk.reading.take(1)[0]):
        talk.mark_handed(part)
    talk.reading.ack_handed()
    assert acking(talk) == ((0, 3),)
    talk.reading.ack_handed()
    assert talk.asked == []


def test_acks_refused_by_a_full_disk_are_sent_again_with_those_made_since() -> None:
    talk = ten_messages()
    messages = talk.hand_out()
    messages[0].ack()
    talk.one(Kind.ACK).refuse(Code.DISK_FULL, retry_after_s=0.2)
    messages[1].ack()
    assert talk.asked == []
    assert talk.reading.on_time(talk.now_s) == talk.now_s + 0.2
    assert not talk.reading.acks_done()
    talk.now_s += 0.2
    assert talk.reading.on_time(talk.now_s) is None
    assert acking(talk) == ((0, 2),)
    talk.reading.raise_error()


def test_acks_refused_for_good_fail_the_reading() -> None:
    talk = ten_messages()
    talk.hand_out()[1].ack()
    talk.one(Kind.ACK).refuse(Code.LIMIT)
    with pytest.raises(LimitReached):
        talk.reading.raise_ack_error()


def test_a_request_carries_a_bounded_number_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_ACK_RANGES_AT_ONCE", 2)
    talk = ten_messages()
    messages = talk.hand_out()
    messages[9].ack()
    for place in (6, 4, 2, 0):
        messages[place].ack()
    talk.one(Kind.ACK).done()
    (first,) = talk.asked
    assert acking(talk) == ((0, 1), (2, 3))
    first.done()
    assert acking(talk) == ((4, 5), (6, 7))


def test_nothing_can_be_given_back_to_a_subscription_of_ones_own() -> None:
    talk = ten_messages()
    message = talk.hand_out()[0]
    with pytest.raises(PermanentError, match="not shared"):
        message.nack()
    assert talk.asked == []
    talk.run(Extend(message.part.attachment, 0, 1)).end()
    assert talk.asked == [], "there is no lease"


# Choices.


def test_a_start_is_new_earliest_an_offset_or_a_time() -> None:
    assert start_fields("new") == ("new", 0)
    assert start_fields("earliest") == ("earliest", 0)
    assert start_fields(5) == ("offset", 5)
    assert start_fields(datetime(2020, 1, 1, tzinfo=UTC)) == ("time", 1_577_836_800_000_000)
    for wrong in ("latest", None, 1.5):
        with pytest.raises(ValueError, match="start is"):
            start_fields(wrong)


def test_a_subscription_that_is_there_must_be_used_as_it_is() -> None:
    alone, shared = options_of(False, None, 15.0, 5, None), options_of(True, None, 15.0, 5, None)
    by_key, other_lease = options_of(True, "key", 15.0, 5, None), options_of(True, None, 60.0, 0, 86_400)
    check_same_use(b"news", b"reader", shared, other_lease)
    for asked, found in ((alone, shared), (shared, alone), (shared, by_key), (by_key, shared)):
        with pytest.raises(InvalidRequest, match="reader subscribes to news already"):
            check_same_use(b"news", b"reader", asked, found)
    with pytest.raises(InvalidRequest, match="order"):
        options_of(False, "key", 15.0, 5, None)
