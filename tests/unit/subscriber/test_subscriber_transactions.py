"""Transactions: packed once, numbered, one at a time, and never given up once they are sent."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.unit.subscriber.business import BROKER, PUBLISHER, Business, answer, batches_of, fail_in

from clarion.model.errors import (
    PermanentError,
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
