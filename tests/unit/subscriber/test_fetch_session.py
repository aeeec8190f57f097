"""Reading many topics in one go: one fetch under way, one inbox, one request for all acks; and what goes wrong."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.unit.subscriber.talking import (
    BROKER,
    COUNT,
    NAMES,
    PATTERN,
    PUBLISHER,
    SHARED,
    TOKEN,
    A,
    B,
    Together,
    packed,
    payloads_of,
    topics,
    welcome,
)
from xxhash import xxh3_64_intdigest

from clarion.model.errors import (
    Busy,
    LeaseLost,
    LimitReached,
    MessagesGone,
    NotSubscribed,
    PermanentError,
    StoredDataCorrupt,
    StoreWentBack,
    TakenOver,
)
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.fetch_session import FetchSession
from clarion.subscriber.subscriber_core import Close, Extend, Flush, Next, Unsubscribe
from clarion.subscriber.subscriber_transactions import Transaction
from clarion.wire import bodies
from clarion.wire.batch import COMPRESSED, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_one_fetch_brings_messages_of_many_topics_and_the_next_acks_them() -> None:
    reader = Together()
    parts = reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0", b"b1")), (A, 1, packed(b"a1")))
    assert payloads_of(parts) == [b"a0", b"b0", b"b1", b"a1"]
    assert [(part.topic, part.offsets.start) for part in parts] == [(NAMES[A], 0), (NAMES[B], 0), (NAMES[A], 1)]
    assert reader.asked == [], "nothing more is known to be there"
    walk = reader.get(wait_s=5.0)
    asked = reader.one(Kind.FETCH)
    fetch = asked.body
    assert (fetch.token, fetch.number, fetch.got, fetch.wait_ms) == (TOKEN, 2, 1, 5000)
    assert sorted(fetch.acks) == [(A, 7, 0, 2), (B, 7, 0, 2)]
    assert not walk.go_on()
    asked.answer(Kind.NO_MESSAGES, bodies.NoMessages(0, True))
    assert reader.flush_acks() == (), "they are durable"


def test_batches_come_in_as_many_frames_as_suits() -> None:
    reader = Together()
    walk = reader.get()
    reader.begin()
    small, large = packed(b"a0"), packed(b"x" * 100_000)
    rows = ((A, 0, 5, len(small)), (A, 1, 5, len(small)), (B, 0, 5, len(large)), (A, 2, 5, len(small)))
    body = bodies.Fetched(1, rows, topics(A, B))
    reader.pick(Kind.FETCH).answer(Kind.MESSAGES, body, small + small, large, small)
    assert payloads_of(walk.end()) == [b"a0", b"a0", b"x" * 100_000, b"a0"]


def test_it_begins_as_of_what_the_broker_counts_and_anew_where_that_is_stale() -> None:
    reader = Together()
    walk = reader.get()
    asked = reader.pick(Kind.BEGIN_FETCH)
    assert (asked.body.topics, asked.body.name, asked.body.as_of) == ((PATTERN,), b"reader", COUNT)
    asked.refuse(Code.STALE, expected=COUNT + 5)
    again = reader.begin(COUNT + 6)
    assert again.as_of == COUNT + 5
    assert again.nonce != asked.body.nonce
    reader.pick(Kind.FETCH).nothing()
    assert walk.end() == []


def test_a_begin_that_was_sent_twice_and_is_stale_may_have_been_taken_over() -> None:
    reader = Together()
    walk = reader.get()
    reader.pick(Kind.BEGIN_FETCH).refuse(Code.STALE, expected=COUNT + 5, times_sent=2)
    with pytest.raises(TakenOver):
        walk.end()
    reader.get()
    assert reader.begin().as_of == COUNT + 5


def test_a_busy_broker_is_asked_again() -> None:
    reader = Together()
    walk = reader.get(wait_s=60.0)
    reader.pick(Kind.BEGIN_FETCH).refuse(Code.BUSY, retry_after_s=0.2)
    assert reader.core.on_time(reader.now_s, 0.0) == reader.now_s + 0.2
    reader.now_s += 0.2
    reader.core.on_time(reader.now_s, 0.0)
    reader.collect()
    reader.begin()
    reader.pick(Kind.FETCH).refuse(Code.BUSY, retry_after_s=0.3)
    assert not walk.go_on()
    assert reader.asked == []
    reader.now_s += 0.3
    assert not walk.go_on()
    reader.bring((A, 0, packed(b"a0")), topics=topics(A))
    assert payloads_of(walk.end()) == [b"a0"]


def test_who_waits_for_a_broker_that_stays_busy_hears_its_last_word() -> None:
    reader = Together()
    walk = reader.get()
    reader.pick(Kind.BEGIN_FETCH).refuse(Code.BUSY, retry_after_s=0.2)
    reader.now_s += 100.0
    with pytest.raises(Busy):
        walk.end()


def test_who_cannot_wait_asks_beside_a_fetch_that_waits() -> None:
    reader = Together()
    patient = reader.get(wait_s=60.0)
    reader.begin()
    waiting = reader.pick(Kind.FETCH)
    hurried = reader.get()
    at_once = reader.pick(Kind.FETCH)
    assert (waiting.body.wait_ms > 0, at_once.body.wait_ms, at_once.body.number) == (True, 0, 2)
    waiting.nothing()
    assert not patient.go_on()
    at_once.nothing()
    assert hurried.end() == []
    assert not patient.go_on()
    reader.bring((A, 0, packed(b"a0")), topics=topics(A))
    assert payloads_of(patient.end()) == [b"a0"]


def test_what_is_sent_again_is_dropped() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0", b"a1")))
    parts = reader.fetched((A, 0, packed(b"a0", b"a1")), (A, 1, packed(b"a1", b"a2")), (B, 0, packed(b"b0")))
    assert payloads_of(parts) == [b"a2", b"b0"]


def test_what_is_not_for_this_reader_is_left_out() -> None:
    reader = Together()
    five = packed(b"0", b"1", b"2", b"3", b"4")
    parts = reader.first((A, 0, five), skip=((A, 1, 3), (A, 5, 7)))
    assert payloads_of(parts) == [b"0", b"3", b"4"]
    assert payloads_of(reader.fetched((A, 7, packed(b"7")), acked=True)) == [b"7"]
    reader.get()
    assert sorted(reader.carried()) == [(A, 7, 7, 8)]
    assert reader.flush_acks() == ()


def test_a_session_that_the_broker_forgot_is_begun_again_and_goes_on() -> None:
    reader = Together()
    walk = reader.get()
    begun = reader.begin()
    reader.bring((A, 0, packed(b"a0", b"a1")), topics=topics(A))
    (part,) = walk.end()
    walk = reader.get(wait_s=1.0)
    reader.pick(Kind.FETCH).refuse(Code.NO_SESSION)
    assert reader.begin() == begun, "the same nonce, as of the same count"
    fetch = reader.one(Kind.FETCH)
    assert (fetch.body.number, fetch.body.got) == (3, 0)
    assert fetch.body.acks == ((A, 7, 0, 2),), "said again, as nobody took them"
    reader.serial = 0
    again = ((A, 0, packed(b"a0", b"a1")), (A, 2, packed(b"a2")))
    reader.bring(*again, topics=topics(A), asked=fetch, acked=True)
    assert payloads_of(walk.end()) == [b"a2"]
    assert part.attachment.error is None
    assert reader.flush_acks() == ()


def test_a_session_that_is_begun_again_goes_on_where_the_cursor_is_by_then() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")))
    walk = reader.get(wait_s=1.0)
    reader.pick(Kind.FETCH).refuse(Code.NO_SESSION)
    reader.begin()
    fetch = reader.one(Kind.FETCH)
    reader.serial = 0
    (number, name, token, _), *_ = topics(A)
    reader.bring((A, 5, packed(b"a5")), topics=((number, name, token, 5),), asked=fetch, acked=True)
    assert payloads_of(walk.end()) == [b"a5"], "what lies between expired, and is no hole"


def test_a_session_that_cannot_be_begun_again_was_taken_over() -> None:
    reader = Together()
    (part,) = reader.first((A, 0, packed(b"a0")))
    walk = reader.get()
    reader.pick(Kind.FETCH).refuse(Code.NO_SESSION)
    reader.pick(Kind.BEGIN_FETCH).refuse(Code.STALE, expected=COUNT + 9)
    with pytest.raises(TakenOver):
        walk.end()
    with pytest.raises(TakenOver):
        part.ack()
    reader.take_asked()
    reader.get()
    assert reader.begin().as_of == COUNT + 9


def test_a_session_that_is_taken_over_says_so_once_and_begins_anew() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")))
    walk = reader.get()
    reader.pick(Kind.FETCH).refuse(Code.TAKEN_OVER)
    with pytest.raises(TakenOver):
        walk.end()
    reader.take_asked()
    assert payloads_of(reader.first((A, 0, packed(b"a0")))) == [b"a0"], "nothing of before counts"


def test_one_topic_that_is_taken_over_is_told_and_the_others_go_on() -> None:
    reader = Together()
    part, other = reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    walk = reader.get()
    reader.bring((B, 1, packed(b"b1")), left=((A, Code.TAKEN_OVER, "another came"),))
    with pytest.raises(TakenOver, match="another came"):
        walk.end()
    with pytest.raises(TakenOver):
        part.ack()
    assert payloads_of(reader.get().end()) == [b"b1"]
    assert other.attachment.error is None


def test_a_topic_that_is_deleted_is_left_in_silence_and_may_come_again() -> None:
    reader = Together()
    walk = reader.get(1)
    reader.begin()
    reader.bring((A, 0, packed(b"a0")), (A, 1, packed(b"a1")), (B, 0, packed(b"b0")), topics=topics(A, B))
    (part,) = walk.end()
    hurried = reader.get()
    assert payloads_of(hurried.end()) == [b"a1", b"b0"]
    parts = reader.fetched((B, 1, packed(b"b1")), left=((A, Code.NOT_SUBSCRIBED, "gone"),))
    assert payloads_of(parts) == [b"b1"]
    with pytest.raises(NotSubscribed):
        part.ack()
    reader.run(Flush(None))
    assert payloads_of(reader.fetched((3, 0, packed(b"new")), topics=((3, NAMES[A], 9, 0),))) == [b"new"]


def test_what_lies_here_of_a_topic_that_was_sought_is_nobodys() -> None:
    reader = Together()
    walk = reader.get(1)
    reader.begin()
    reader.bring((A, 0, packed(b"a0", b"a1")), (B, 0, packed(b"b0")), topics=topics(A, B))
    (part,) = walk.end()
    impatient = reader.run(Next(b"alerts/other", None, holder=reader))  # has nothing to do with it
    assert not impatient.go_on()
    session = reader.core.source(PATTERN)
    session.want(1.0, 0, reader.now_s)
    reader.collect()
    reader.bring((A, 50, packed(b"a50")), topics=topics(A, token=8, cursor=50))
    with pytest.raises(LeaseLost, match="sought"):
        part.ack()
    assert payloads_of(reader.get().end()) == [b"b0", b"a50"]
    reader.get()
    assert sorted(reader.carried()) == [(A, 8, 50, 51), (B, 7, 0, 1)], "and the ack of before is not sent"


def test_messages_that_are_gone_are_told_once_and_acked() -> None:
    reader = Together()
    walk = reader.get()
    reader.begin()
    reader.bring((A, 5, packed(b"a5")), topics=topics(A, B), gone=((A, 0, 5), (B, 0, 2)))
    assert payloads_of(walk.end()) == [b"a5"]
    assert sorted(reader.acks()) == [(A, 7, 0, 5), (B, 7, 0, 2)]
    told = []
    for _ in range(2):
        with pytest.raises(MessagesGone) as error:
            reader.get().end()
        told.append((error.value.topic, error.value.start, error.value.stop))
    assert told == [(NAMES[A], 0, 5), (NAMES[B], 0, 2)]
    reader.acks()
    assert payloads_of(reader.fetched((B, 2, packed(b"b2")), gone=((B, 0, 2),))) == [b"b2"], "it was told before"


def test_a_topic_that_cannot_be_read_is_told_and_the_others_go_on() -> None:
    reader = Together()
    parts = reader.first((B, 0, packed(b"b0")), trouble=((A, Code.CORRUPT, "damaged"),))
    assert payloads_of(parts) == [b"b0"]
    with pytest.raises(StoredDataCorrupt, match="damaged"):
        reader.get().end()
    assert payloads_of(reader.fetched((A, 0, packed(b"a0")))) == [b"a0"]


def test_a_batch_that_came_damaged_is_told_and_sent_again() -> None:
    reader = Together()
    good, bad = packed(b"a1"), bytearray(packed(b"a2"))
    bad[-1] ^= 1
    reader.first((A, 0, packed(b"a0")))
    walk = reader.get()
    reader.bring((A, 1, good), (A, 2, bytes(bad)))
    assert payloads_of(walk.end()) == [b"a1"]
    with pytest.raises(StoredDataCorrupt, match="offset 2 of alerts/a came damaged"):
        reader.get().end()
    walk = reader.get()
    fetch = reader.pick(Kind.FETCH)
    assert fetch.body.got == 1
    reader.bring((A, 1, good), (A, 2, packed(b"a2")), asked=fetch)
    assert payloads_of(walk.end()) == [b"a2"]


def test_messages_that_cannot_be_unpacked_are_told_and_passed_over() -> None:
    reader = Together()
    text = encode_batch([b"x" * 1000], compressed=True, broker=1, publisher=2, stamp=3, number=1)
    assert text[5] & COMPRESSED
    text[64] ^= 0xFF  # where the compressed frame begins
    broken = _sealed(text)
    walk = reader.get()
    reader.begin()
    reader.bring((A, 0, broken), (B, 0, packed(b"b0")), topics=topics(A, B))
    with pytest.raises(StoredDataCorrupt):
        walk.end()
    assert reader.acks() == ((A, 7, 0, 1),)
    assert payloads_of(reader.get().end()) == [b"b0"]


def _sealed(data: bytearray) -> bytes:
    checksum = xxh3_64_intdigest(bytes(data[16:]), seed=int.from_bytes(data[:8], "little"))
    data[8:16] = checksum.to_bytes(8, "little")
    return bytes(data)


def test_what_does_not_follow_is_not_handed_out_but_fetched_anew() -> None:
    reader = Together()
    (part,) = reader.first((A, 0, packed(b"a0")))
    walk = reader.get(wait_s=1.0)
    reader.bring((A, 5, packed(b"a5")))
    assert not walk.go_on()
    with pytest.raises(LeaseLost):
        part.ack()
    assert reader.begin(TOKEN + 1).nonce
    reader.bring((A, 1, packed(b"a1")), topics=topics(A, token=9, cursor=1))
    assert payloads_of(walk.end()) == [b"a1"]


# Acks.


def test_acks_that_are_refused_for_now_go_with_the_next() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    reader.get()
    fetch = reader.one(Kind.FETCH)
    assert sorted(fetch.body.acks) == [(A, 7, 0, 1), (B, 7, 0, 1)]
    reader.bring(asked=fetch, acked=True, refused=((A, Code.BUSY, "later"),))
    assert reader.asked == []
    flush = reader.run(Flush(None))
    assert not flush.go_on()
    reader.now_s += 1.0
    reader.core.on_time(reader.now_s, 0.0)
    reader.collect()
    asked = reader.pick(Kind.ACK_MANY)
    assert (asked.body.acks, asked.body.soon) == (((A, 7, 0, 1),), True)
    asked.refuse(Code.DISK_FULL, retry_after_s=1.0)
    reader.now_s += 1.0
    reader.core.on_time(reader.now_s, 0.0)
    reader.collect()
    assert reader.acks() == ((A, 7, 0, 1),)
    flush.end()


def test_an_ack_of_a_topic_that_another_took_over_is_told() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    reader.get()
    reader.bring(refused=((A, Code.TAKEN_OVER, "another came"),))
    with pytest.raises(TakenOver, match="another came"):
        reader.run(Flush(None))
    assert reader.flush_acks() == ((B, 7, 0, 1),), "which is said again, as it was not durable yet"


def test_an_ack_that_is_refused_for_good_is_told_and_all_comes_again() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")))
    walk = reader.get()
    reader.bring(refused=((A, Code.LIMIT, "too many"),))
    with pytest.raises(LimitReached, match="too many"):
        walk.end()
    reader.take_asked()
    assert payloads_of(reader.first((A, 0, packed(b"a0")))) == [b"a0"]


def test_one_request_for_acks_is_under_way_at_a_time() -> None:
    reader = Together(auto_ack=False)
    (part,) = reader.first((A, 0, packed(b"a0", b"a1", b"a2")))
    first, second, third = part.messages()
    first.ack()
    third.ack()
    second.ack()
    assert reader.acks() == ((A, 7, 0, 1),)
    assert reader.acks() == ((A, 7, 1, 3),)
    flush = reader.run(Flush(None))
    flush.end()


def test_nothing_can_be_given_back_and_nothing_is_to_be_extended() -> None:
    reader = Together(auto_ack=False)
    (part,) = reader.first((A, 0, packed(b"a0")))
    with pytest.raises(PermanentError, match="not shared"):
        part.nack()
    reader.run(Extend(part.attachment, 0, 1)).end()


def test_at_most_once_all_is_acked_in_one_request_before_it_is_handed_out() -> None:
    reader = Together(FetchSettings(at_most_once=True))
    walk = reader.get()
    reader.begin()
    reader.bring((A, 0, packed(b"a0")), (B, 0, packed(b"b0")), topics=topics(A, B))
    assert not walk.go_on()
    asked = reader.pick(Kind.ACK_MANY)
    assert (sorted(asked.body.acks), asked.body.soon) == ([(A, 7, 0, 1), (B, 7, 0, 1)], True)
    asked.answer(Kind.ACK, bodies.AcksDone(((A, Code.NOT_SUBSCRIBED, "deleted"),)))
    assert payloads_of(walk.end()) == [b"b0"], "what could not be acked is not handed out"


def test_what_a_cancelled_call_took_comes_out_first_again() -> None:
    reader = Together()
    walk = reader.get(2)
    reader.begin()
    reader.bring((A, 0, packed(b"a0", b"a1", b"a2")), (B, 0, packed(b"b0")), topics=topics(A, B))
    walk.go_on()
    walk.cancel()
    assert payloads_of(reader.get().end()) == [b"a0", b"a1", b"a2", b"b0"]
    assert reader.asked == [], "nothing was acked"


def test_closing_acks_what_was_handed_out() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    walk = reader.run(Close(True))
    asked = reader.pick(Kind.ACK_MANY)
    assert (sorted(asked.body.acks), asked.body.soon) == ([(A, 7, 0, 1), (B, 7, 0, 1)], True)
    asked.answer(Kind.ACK, bodies.AcksDone())
    assert walk.end() is None


def test_a_stream_hands_out_one_by_one_and_acks_what_was_before() -> None:
    reader = Together()
    walk = reader.run(Next(PATTERN, 1.0, holder=reader))
    reader.begin()
    reader.bring((A, 0, packed(b"a0", b"a1")), (B, 0, packed(b"b0")), topics=topics(A, B))
    assert walk.end().payload == b"a0"
    assert reader.reader.next_now(PATTERN).payload == b"a1"
    assert reader.acks() == ((A, 7, 0, 1),)
    assert reader.reader.next_now(PATTERN).payload == b"b0"
    assert reader.acks() == ((A, 7, 1, 2),)
    assert reader.reader.next_now(PATTERN) is None


def test_more_is_fetched_ahead_only_where_there_is_more() -> None:
    reader = Together(FetchSettings(fetch_bytes=1000))
    walk = reader.get(1)
    reader.begin()
    reader.bring((A, 0, packed(b"x" * 600)), topics=topics(A))
    walk.go_on()
    ahead = reader.pick(Kind.FETCH)
    assert (ahead.body.wait_ms, ahead.body.got) == (0, 1)
    ahead.nothing()
    reader.get(wait_s=1.0)
    assert reader.pick(Kind.FETCH).body.wait_ms == 1000


# Transactions.


def test_a_transaction_acks_messages_of_a_session_and_no_call_does() -> None:
    reader = Together()
    part, other = reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    transaction = Transaction(reader)
    transaction.ack(part)
    call = transaction._commit()
    walk = reader.run(call)
    reader.pick(Kind.REGISTER).answer(Kind.ACK, bodies.Registered(BROKER, PUBLISHER))
    walk.go_on()
    asked = reader.pick(Kind.TRANSACT)
    assert asked.body.acks == ((NAMES[A], b"reader", 7, ((0, 1),)),)
    asked.answer(Kind.ACK, bodies.Transacted(0, "", (), (), 5))
    walk.end()
    reader.get()
    assert reader.carried() == ((B, 7, 0, 1),)
    assert other.attachment.error is None


def test_a_transaction_cannot_ack_what_was_taken_away() -> None:
    reader = Together()
    (part,) = reader.first((A, 0, packed(b"a0")))
    reader.fetched((B, 0, packed(b"b0")), left=((A, Code.NOT_SUBSCRIBED, "deleted"),))
    with pytest.raises(NotSubscribed):
        Transaction(reader).ack(part)


# Beside a session.


def test_a_broker_that_knows_no_sessions_is_asked_topic_by_topic() -> None:
    reader = Together()
    reader.core.state.welcome = None
    reader.get()
    reader.one(Kind.HELLO).answer(Kind.ACK, welcome(1))
    reader.core.on_time(reader.now_s, 0.0)
    reader.collect()
    assert reader.one(Kind.MATCHES).body.pattern == PATTERN


def test_a_pattern_that_is_shared_is_read_topic_by_topic() -> None:
    reader = Together()
    walk = reader.get()
    reader.pick(Kind.BEGIN_FETCH).answer(Kind.ACK, bodies.FetchBegun(0, shared=True))
    assert not walk.go_on()
    reader.one(Kind.MATCHES).answer(Kind.ACK, bodies.Matched(1, (NAMES[A],)))
    walk.go_on()
    reader.one(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(7, 0, (), SHARED))
    reader.one(Kind.TAKE).lend(0)
    assert payloads_of(walk.end()) == [b"0"]


def test_a_topic_of_the_pattern_that_is_shared_is_read_by_itself() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")), shared=(b"alerts/work",))
    walk = reader.get()
    reader.pick(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(8, 0, (), SHARED))
    reader.pick(Kind.TAKE).lend(3)
    assert payloads_of(walk.end()) == [b"3"]
    fetch = reader.pick(Kind.FETCH)
    walk = reader.get()
    reader.bring((A, 1, packed(b"a1")), asked=fetch)
    assert payloads_of(walk.end()) == [b"a1"]


def test_a_topic_that_is_also_read_alone_leaves_the_session_and_is_not_taken_over() -> None:
    reader = Together()
    first, _ = reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    alone = reader.get(topics=NAMES[A])
    asked = reader.take_asked()
    assert [each.kind for each in asked] == [Kind.ACK_MANY, Kind.ATTACH], "what was handed out is acked before"
    assert asked[0].body.acks == ((A, 7, 0, 1),)
    with pytest.raises(LeaseLost, match="read alone"):
        first.ack()
    asked[1].answer(Kind.ACK, bodies.Attached(9, 1, ()))
    reader.one(Kind.GET).deliver(1, b"a1")
    assert payloads_of(alone.end()) == [b"a1"]
    walk = reader.get()
    told = ((A, Code.TAKEN_OVER, "another came"),)
    reader.bring((A, 1, packed(b"a1")), (B, 1, packed(b"b1")), left=told)
    assert payloads_of(walk.end()) == [b"b1"]
    walk = reader.get(wait_s=5.0)
    reader.pick(Kind.GET).deliver(2, b"a2")
    assert payloads_of(walk.end()) == [b"a2"], "the pattern has it, too"


def test_what_a_topic_that_was_read_alone_handed_out_is_acked_before_the_session_begins() -> None:
    reader = Together()
    alone = reader.get(topics=NAMES[A])
    reader.one(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(9, 0, ()))
    reader.one(Kind.GET).deliver(0, b"a0")
    (message,) = alone.end()
    walk = reader.get()
    asked = reader.take_asked()
    assert [each.kind for each in asked] == [Kind.ACK, Kind.BEGIN_FETCH]
    assert (asked[0].body.token, asked[0].body.acked) == (9, ((0, 1),))
    asked[1].answer(Kind.ACK, bodies.FetchBegun(TOKEN))
    assert not walk.go_on()
    with pytest.raises(LeaseLost, match="read together"):
        message.ack()


def test_a_get_that_waits_on_a_topic_alone_is_not_taken_over_by_the_session_of_its_own_client() -> None:
    reader = Together()
    alone = reader.get(topics=NAMES[A], wait_s=5.0)
    reader.one(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(9, 0, ()))
    get = reader.one(Kind.GET)
    walk = reader.get()
    begin = reader.pick(Kind.BEGIN_FETCH)
    get.refuse(Code.TAKEN_OVER)  # as soon as the broker has the other
    begin.answer(Kind.ACK, bodies.FetchBegun(TOKEN))
    assert not walk.go_on()
    reader.pick(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(TOKEN + 1, 0, ()))
    reader.pick(Kind.GET).deliver(0, b"a0")
    assert payloads_of(alone.end()) == [b"a0"]


def test_what_lies_here_of_a_topic_read_alone_is_not_handed_out_as_the_session_begins_anew() -> None:
    reader = Together()
    reader.first((B, 0, packed(b"b0")))
    alone = reader.get(1, topics=NAMES[A])
    reader.pick(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(9, 0, ()))
    reader.pick(Kind.GET).deliver(0, b"a0", b"a1")
    assert payloads_of(alone.end()) == [b"a0"]
    session: Any = reader.core.source(PATTERN)
    session.session.end(LeaseLost("over"))
    reader.take_asked()
    walk = reader.get()
    assert not walk.go_on(), "a1 comes again, when it is attached to later"
    assert [each.body.acked for each in reader.asked if each.kind == Kind.ACK] == [((0, 1),)]
    reader.pick(Kind.BEGIN_FETCH)


def test_a_topic_that_was_read_alone_attaches_anew_after_the_session_began() -> None:
    reader = Together()
    alone = reader.get(topics=NAMES[A])
    reader.one(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(9, 0, ()))
    reader.one(Kind.GET).nothing()
    assert alone.end() == []
    walk = reader.get()
    reader.begin()
    walk.go_on()
    attach = reader.pick(Kind.ATTACH)
    assert (attach.body.topic, attach.body.as_of) == (NAMES[A], TOKEN)
    reader.bring((A, 0, packed(b"a0")), (B, 0, packed(b"b0")), topics=topics(A, B))
    assert payloads_of(walk.end()) == [b"b0"]
    attach.answer(Kind.ACK, bodies.Attached(TOKEN + 1, 0, ()))
    reader.pick(Kind.GET).deliver(0, b"a0")
    assert payloads_of(reader.get().end()) == [b"a0"]


def test_a_second_pattern_over_the_same_topics_has_no_session_of_its_own() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")))
    reader.get(topics=b"alerts/#")
    assert reader.one(Kind.MATCHES).body.pattern == b"alerts/#"
    reader.get(topics=b"news/#")
    assert reader.one(Kind.BEGIN_FETCH).body.topics == (b"news/#",)


def test_a_list_of_topics_and_patterns_has_one_session() -> None:
    reader = Together()
    names = (b"alerts/#", b"news")
    walk = reader.get(topics=names)
    assert reader.begin().topics == names
    reader.bring((5, 0, packed(b"n0")), topics=((5, b"news", 7, 0),))
    assert payloads_of(walk.end()) == [b"n0"]


def test_a_list_is_read_topic_by_topic_where_the_broker_knows_no_sessions() -> None:
    reader = Together()
    reader.core.state.welcome = welcome(1)
    walk = reader.get(topics=(b"alerts/*", b"news"))
    asked = reader.take_asked()
    assert sorted(each.kind for each in asked) == [Kind.ATTACH, Kind.MATCHES]
    for each in asked:
        if each.kind == Kind.MATCHES:
            each.answer(Kind.ACK, bodies.Matched(1, ()))
        else:
            assert each.body.topic == b"news"
            each.answer(Kind.ACK, bodies.Attached(7, 0, ()))
    reader.one(Kind.GET).deliver(0, b"n0")
    assert payloads_of(walk.end()) == [b"n0"]


def test_unsubscribing_one_topic_or_the_pattern_ends_what_was_handed_out() -> None:
    reader = Together()
    one, other = reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    reader.run(Unsubscribe(NAMES[A], b"reader", 10.0))
    with pytest.raises(NotSubscribed):
        one.ack()
    assert payloads_of(reader.fetched((A, 1, packed(b"a1")), (B, 1, packed(b"b1")))) == [b"b1"]
    reader.run(Unsubscribe(PATTERN, b"reader", 10.0))
    with pytest.raises(NotSubscribed):
        other.ack()
    assert reader.core.stats()["topics"] == 0


def test_a_store_that_is_another_is_told_once_and_read_from_its_cursors() -> None:
    reader = Together()
    (part,) = reader.first((A, 0, packed(b"a0")))
    reader.core.on_lost(StoreWentBack("another store answers"), reader.now_s)
    with pytest.raises(StoreWentBack):
        reader.get().end()
    with pytest.raises(StoreWentBack):
        part.ack()
    assert payloads_of(reader.first((A, 0, packed(b"other")))) == [b"other"]


def test_statistics_name_the_topics() -> None:
    reader = Together()
    walk = reader.get(1)
    reader.begin()
    reader.bring((A, 0, packed(b"a0", b"a1")), (B, 0, packed(b"b0")), topics=topics(A, B))
    walk.go_on()
    stats = reader.core.stats()
    assert (stats["buffered"], stats["topics"], stats["held"]) == (2, 2, 0)
    assert {topic: each["buffered"] for topic, each in stats["by_topic"].items()} == {"alerts/a": 1, "alerts/b": 1}


def test_ten_thousand_topics_cost_little_each() -> None:
    reader = Together()
    many = range(1, 10_001)
    walk = reader.get(100_000)
    reader.begin()
    reader.bring(*((number, 0, packed(b"%d" % number)) for number in many), topics=topics(*many))
    assert payloads_of(walk.end()) == [b"%d" % number for number in many]
    reader.get()
    assert len(reader.acks()) == 10_000
    (session,) = reader.core.consumers()
    assert isinstance(session, FetchSession)
    topic = session.topics()[0]
    assert not hasattr(topic, "__dict__")
    assert sys.getsizeof(topic) < 200


def test_a_reply_that_is_cut_short_is_told_and_sent_again() -> None:
    reader = Together()
    walk = reader.get()
    reader.begin()
    one = packed(b"a0")
    body = bodies.Fetched(1, ((A, 0, 5, len(one)), (A, 1, 5, len(one))), topics(A))
    reader.pick(Kind.FETCH).answer(Kind.MESSAGES, body, one)
    assert payloads_of(walk.end()) == [b"a0"]
    with pytest.raises(StoredDataCorrupt, match="offset 1 of alerts/a came damaged"):
        reader.get().end()


def test_an_ack_that_a_fetch_said_and_that_is_refused_is_told() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    walk = reader.get()
    reader.bring((B, 1, packed(b"b1")), acked=True, refused=((A, Code.TAKEN_OVER, "another came"),))
    with pytest.raises(TakenOver, match="another came"):
        walk.end()
    assert payloads_of(reader.get().end()) == [b"b1"]


def test_acks_that_a_waiting_fetch_said_are_not_forgotten_when_another_is_sent() -> None:
    reader = Together()
    reader.first((A, 0, packed(b"a0")))
    patient = reader.get(wait_s=60.0)
    waiting = reader.one(Kind.FETCH)
    assert waiting.body.acks == ((A, 7, 0, 1),)
    hurried = reader.get()
    at_once = reader.one(Kind.FETCH)
    assert at_once.body.acks == ()
    waiting.answer(Kind.NO_MESSAGES, bodies.NoMessages(0, acked=True))
    at_once.nothing()
    assert hurried.end() == []
    assert not patient.go_on()
    reader.run(Flush(None)).end()


@pytest.mark.parametrize("kind", [Kind.BEGIN_FETCH, Kind.FETCH])
def test_a_broker_that_was_replaced_by_an_older_one_is_asked_topic_by_topic(kind: Kind) -> None:
    reader = Together()
    walk = reader.get()
    if kind == Kind.FETCH:
        reader.begin()
    reader.one(kind).refuse(Code.VERSION, kind=Kind.INVALID)
    assert not walk.go_on()
    assert reader.one(Kind.MATCHES).body.pattern == PATTERN
