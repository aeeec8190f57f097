"""Transactions: packed once, numbered, one at a time, and never given up once they are sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.subscriber.talking import BROKER, PUBLISHER, Business, Walk, answer, batches_of, fail_in

from clarion.model.errors import (
    InvalidRequest,
    LeaseLost,
    PermanentError,
    PublisherExpired,
    TimedOut,
    TooLarge,
    TopicFull,
    VersionConflict,
)
from clarion.model.names import REPLY_TO, REQUEST
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_messages_of_one_topic_become_one_batch_with_id_number_and_rising_stamps() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", "1", key="k")
    tx.put("b", b"2", headers={"h": "v"})
    tx.put(b"a", b"3")
    tx.put("a", b"4", ttl_s=1.5)
    _, asked = talk.send(tx)
    assert [(topic, ttl_ms) for topic, _, ttl_ms, _ in asked.body.puts] == [(b"a", 0), (b"b", 0), (b"a", 1500)]
    first, second, third = batches_of(asked)
    assert (first.payloads(), first.key(0), first.key(1)) == ([b"1", b"3"], b"k", None)
    assert (second.payloads(), second.headers(0), third.payloads()) == ([b"2"], {"h": b"v"}, [b"4"])
    assert all((b.broker, b.publisher, b.number) == (BROKER, PUBLISHER, 1) for b in (first, second, third))
    assert first.stamp < second.stamp < third.stamp


def test_offsets_are_those_of_the_messages_in_the_order_they_were_put() -> None:
    talk = Business()
    tx = talk.begin()
    for topic in ("a", "b", "a", "b", "a"):
        tx.put(topic, b"x")
    tx.put("a", b"later", deliver_at=2e9)
    tx.set("state", b"v")
    walk, asked = talk.send(tx)
    answer(asked, 100, 50, -1, versions=(7,))
    walk.end()
    assert tx.offsets == (100, 50, 101, 51, 102, -1)
    assert tx.versions == (7,)


def test_delayed_messages_are_a_batch_of_their_own_sorted_by_when_they_are_due() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", b"second", deliver_at=datetime(2030, 1, 1, tzinfo=UTC))
    tx.put("a", b"now")
    tx.put("a", b"first", deliver_at=1.0)
    _, asked = talk.send(tx)
    delayed, now = batches_of(asked)
    assert (delayed.payloads(), now.payloads()) == ([b"first", b"second"], [b"now"])
    due = asked.body.puts[0][3]
    moments = [int.from_bytes(due[at : at + 8], "little") for at in range(0, len(due), 8)]
    assert moments == [1_000_000, int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1e6)]
    assert asked.body.puts[1][3] == b""


def test_acks_and_states_go_with_it() -> None:
    talk = Business()
    tx = talk.begin()
    for place in (0, 3, 1):
        tx.ack(talk.messages[place])
    tx.set("a", b"v", expect=0)
    tx.set("b", None, expect=5)
    with pytest.raises(ValueError, match="once"):
        tx.set("a", b"w")
    _, asked = talk.send(tx)
    assert asked.body.acks == ((b"news", b"reader", 7, ((0, 2), (3, 4))),)
    assert asked.body.sets == ((b"a", b"v", 0), (b"b", None, 5))
    assert (asked.body.publisher, asked.body.number) == (PUBLISHER, 1)


def test_a_reply_goes_where_the_request_says() -> None:
    talk = Business()
    headers = {REPLY_TO: b"$reply/7", REQUEST: b"sixteen bytes 16", "other": b"x"}
    raw = bytes(encode_batch([b"?"], headers=[headers], broker=1, publisher=2, stamp=3, number=1))
    talk.reading.want(0.0, 1)
    talk.one(Kind.TAKE).answer(Kind.MESSAGES, bodies.Lent(((9, 5),), ((9, 10, 1),), 0), raw)
    (request,) = talk.hand_out()
    tx = talk.begin()
    tx.reply(request, "!", headers={"mine": "m"})
    with pytest.raises(PermanentError, match="no request"):
        tx.reply(talk.messages[0], "!")
    _, asked = talk.send(tx)
    assert asked.body.puts[0][0] == b"$reply/7"
    assert batches_of(asked)[0].headers(0) == {REQUEST: b"sixteen bytes 16", "mine": b"m"}


def test_what_a_transaction_acked_is_acked_by_nothing_else() -> None:
    talk = Business()
    for message in talk.messages:
        talk.mark_handed(message.alone())
    tx = talk.begin()
    tx.ack(talk.messages[0])
    tx.ack(talk.messages[1])
    walk, asked = talk.send(tx)
    talk.messages[0].ack()
    talk.reading.ack_handed()
    assert talk.one(Kind.ACK).body.acked == ((2, 5),)
    assert talk.reading.stats()["held"] == 5, "until it is confirmed"
    answer(asked)
    walk.end()
    assert talk.reading.stats()["held"] == 3


@pytest.mark.parametrize("shared", [True, False])
def test_what_an_abandoned_transaction_was_given_is_not_acked_by_the_next_get(shared: bool) -> None:
    talk = Business(shared=shared)
    for message in talk.messages:
        talk.mark_handed(message.alone())
    tx = talk.begin()
    with pytest.raises(ZeroDivisionError):
        fail_in(tx, talk.messages[1])
    assert talk.asked == []
    talk.reading.ack_handed()
    assert talk.one(Kind.ACK).body.acked == ((0, 1), (2, 5))
    with pytest.raises(PermanentError, match="not sent"):
        tx.result().end()  # type: ignore[attr-defined]
    with pytest.raises(PermanentError, match="over"):
        tx.put("a", b"y")
    again = talk.begin()
    again.ack(talk.messages[1])


def test_a_refused_transaction_leaves_its_messages_to_be_decided() -> None:
    talk = Business()
    tx = talk.begin()
    tx.ack(talk.messages[1])
    tx.set("state", b"v", expect=3)
    walk, asked = talk.send(tx)
    asked.refuse(Code.CONFLICT)
    with pytest.raises(VersionConflict):
        walk.end()
    talk.messages[1].nack()
    assert talk.one(Kind.RETURN).body.returned == ((1, 2, 1),)


# Transactions on their way: numbered, one at a time, and never given up once they are sent.


def test_numbers_go_on_after_what_was_done_or_refused_for_good() -> None:
    talk = Business()
    for number, code in enumerate((None, Code.CONFLICT, Code.NO_SUBSCRIBER, Code.LEASE_LOST, Code.TOO_LARGE), 1):
        tx = talk.begin()
        tx.put("a", b"x")
        walk, asked = talk.send(tx)
        assert (asked.body.number, asked.body.publisher) == (number, PUBLISHER)
        if code is None:
            answer(asked, 0)
            walk.end()
        else:
            asked.refuse(code)
            with pytest.raises(PermanentError):
                walk.end()


def test_a_number_in_doubt_is_never_used_again() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", b"x")
    walk, asked = talk.send(tx)
    asked.refuse(Code.MALFORMED, kind=Kind.INVALID)
    with pytest.raises(InvalidRequest):
        walk.end()
    assert talk.one(Kind.FORGET).body.publisher == PUBLISHER
    tx = talk.begin()
    tx.put("a", b"y")
    walk = talk.commit(tx)
    talk.register(publisher=33)
    walk.go_on()
    body = talk.one(Kind.TRANSACT).body
    assert (body.publisher, body.number) == (33, 1)


def test_what_is_refused_for_now_is_sent_again_as_it_was() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", b"x")
    walk, asked = talk.send(tx)
    for code in (Code.TOPIC_FULL, Code.DISK_FULL, Code.BUSY):
        asked.refuse(code, retry_after_s=0.2)
        assert talk.transacting.on_time(talk.now_s) == talk.now_s + 0.2
        assert talk.asked == []
        talk.now_s += 0.2
        talk.transacting.on_time(talk.now_s)
        again = talk.one(Kind.TRANSACT)
        assert (again.body, again.blobs) == (asked.body, asked.blobs)
        asked = again
    answer(asked, 9)
    walk.end()
    assert tx.offsets == (9,)


def test_a_broker_that_began_anew_is_shown_what_is_held_and_asked_again() -> None:
    talk = Business()
    tx = talk.begin()
    tx.ack(talk.messages[0])
    walk, asked = talk.send(tx)
    asked.refuse(Code.SHOW_HELD)
    renew = talk.one(Kind.RENEW)
    assert sorted(renew.body.held) == [(0, 1, 1), (1, 5, 1)]
    wanted_s = talk.transacting.on_time(talk.now_s)
    assert wanted_s is not None
    talk.transacting.on_time(wanted_s)
    again = talk.one(Kind.TRANSACT)
    assert again.body == asked.body
    answer(again)
    walk.end()


def test_an_unanswered_transaction_stays_under_way_and_the_next_one_waits_for_it() -> None:
    talk = Business()
    first = talk.begin()
    first.ack(talk.messages[0])
    first.put("a", b"x")
    walk, asked = talk.send(first)
    talk.now_s += talk.core.state.timeout_s
    with pytest.raises(TimedOut, match="not known yet"):
        walk.end()
    second = talk.begin()
    with pytest.raises(LeaseLost, match="another transaction"):
        second.ack(talk.messages[0])
    second.put("a", b"y")
    waiting = talk.commit(second)
    assert talk.asked == [], "it does not overtake"
    result: Walk[Any] = talk.run(first._wait(None))
    answer(asked, 5)
    result.end()
    assert first.offsets == (5,)
    waiting.go_on()
    assert talk.one(Kind.TRANSACT).body.number == 2


def test_who_waits_too_long_for_an_earlier_one_has_done_nothing() -> None:
    talk = Business()
    first = talk.begin()
    first.put("a", b"x")
    talk.send(first)
    second = talk.begin()
    second.ack(talk.messages[2])
    second.put("a", b"y")
    waiting = talk.commit(second)
    talk.now_s += talk.core.state.timeout_s
    with pytest.raises(TimedOut, match="nothing of this one was done"):
        waiting.end()
    third = talk.begin()
    third.ack(talk.messages[2])


def test_what_is_refused_for_too_long_raises_the_last_word_and_is_still_tried() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", b"x")
    walk, asked = talk.send(tx)
    asked.refuse(Code.TOPIC_FULL, retry_after_s=0.5)
    talk.now_s += talk.core.state.timeout_s
    with pytest.raises(TopicFull, match="stays under way"):
        walk.end()
    talk.transacting.on_time(talk.now_s)
    answer(talk.one(Kind.TRANSACT), 1)
    talk.run(tx._wait(None)).end()
    assert tx.offsets == (1,)


def test_without_an_id_in_time_nothing_was_done() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", b"x")
    walk = talk.commit(tx)
    assert [asked.kind for asked in talk.asked] == [Kind.HELLO]
    talk.now_s += talk.core.state.timeout_s
    with pytest.raises(TimedOut, match="nothing of this transaction was done"):
        walk.end()
    tx = talk.begin()
    tx.put("a", b"x")
    walk = talk.commit(tx)
    assert len(talk.asked) == 1, "the same is still under way"
    talk.register()
    walk.go_on()
    talk.one(Kind.TRANSACT)


def test_a_forgotten_publisher_registers_anew_where_nothing_can_have_been_done() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", b"x")
    walk, asked = talk.send(tx)
    asked.refuse(Code.PUBLISHER_EXPIRED)
    talk.one(Kind.REGISTER).answer(Kind.ACK, bodies.Registered(BROKER, 44))
    again = talk.one(Kind.TRANSACT)
    assert (again.body.publisher, again.body.number) == (44, 1)
    assert batches_of(again)[0].publisher == 44
    answer(again, 0)
    walk.end()


@pytest.mark.parametrize("first", [None, Code.TOPIC_FULL], ids=["at once", "after a refusal for now"])
def test_a_publisher_that_may_have_been_forgotten_after_it_was_done_is_told(first: Code | None) -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", b"x")
    walk, asked = talk.send(tx)
    if first is not None:  # of the two copies sent, this answers one; the other may be done
        asked.refuse(first, times_sent=2)
        talk.now_s += 1
        talk.transacting.on_time(talk.now_s)
        asked = talk.one(Kind.TRANSACT)
    asked.refuse(Code.PUBLISHER_EXPIRED, times_sent=1 if first else 2)
    with pytest.raises(PublisherExpired, match="cannot be told"):
        walk.end()
    assert talk.asked == [], "it is not done again"


def test_a_lost_lease_is_known_before_anything_is_sent() -> None:
    talk = Business()
    tx = talk.begin()
    tx.ack(talk.messages[0])
    talk.messages[1].ack()
    talk.pick(Kind.ACK).refuse(Code.LEASE_LOST)
    talk.take_asked()
    walk = talk.commit(tx)
    talk.register()
    with pytest.raises(LeaseLost):
        walk.end()
    assert talk.asked == []
    with pytest.raises(LeaseLost):
        talk.begin().ack(talk.messages[2])


def test_a_transaction_refused_for_its_lease_leaves_nothing_in_doubt() -> None:
    talk = Business()
    talk.mark_handed(talk.messages[3].alone())
    tx = talk.begin()
    tx.ack(talk.messages[0])
    walk, asked = talk.send(tx)
    asked.refuse(Code.LEASE_LOST)
    with pytest.raises(LeaseLost):
        walk.end()
    assert talk.one(Kind.DETACH).body.token == 7
    with pytest.raises(LeaseLost, match="offsets 3 of news"):
        talk.reading.raise_error()
    with pytest.raises(LeaseLost):
        talk.messages[1].ack()


def test_more_than_the_broker_takes_is_not_sent() -> None:
    talk = Business()
    tx = talk.begin()
    tx.put("a", bytes(2000))
    walk = talk.commit(tx)
    talk.register(max_batch_bytes=1000)
    with pytest.raises(TooLarge):
        walk.end()
    assert talk.asked == []


def test_an_empty_transaction_asks_nothing() -> None:
    talk = Business()
    talk.commit(talk.begin()).end()
    assert talk.asked == []


def test_only_messages_that_were_handed_out_can_be_acked() -> None:
    talk = Business()
    part = talk.messages[0].alone()
    part.holder = None
    with pytest.raises(PermanentError, match="not handed out"):
        talk.begin().ack(part)
    with pytest.raises(TypeError):
        talk.begin().put("a", 5)  # type: ignore[arg-type]


def test_leaving_forgets_the_publisher_once_everything_is_answered() -> None:
    talk = Business()
    assert talk.transacting.forget() is None
    assert talk.asked == []
    tx = talk.begin()
    tx.put("a", b"x")
    walk, asked = talk.send(tx)
    assert talk.transacting.busy
    assert talk.transacting.forget() is None
    assert talk.asked == [], "it may still have something to answer"
    answer(asked, 0)
    walk.end()
    assert not talk.transacting.busy
    forgetting = talk.transacting.forget()
    talk.one(Kind.FORGET).done()
    assert forgetting.left
