"""Requests under way: every one is answered once, whatever the connection does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clarion.model.errors import DiskFull, InvalidRequest, NoSubscriber, TakenOver
from clarion.session.exchange import IDS, Exchange, Reply, Seen, Send
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind, pack_frames, unpack_prefix


def ask(exchange: Exchange, got: list[Reply], now_s: float = 0.0, wait_s: float = 0.0) -> int:
    frames = exchange.send(Send(Kind.STATS, bodies.AskStats(), got, wait_s=wait_s), now_s=now_s)
    return unpack_prefix(bytes(frames[0]))[2]


def answer(exchange: Exchange, frames: Sequence[Buffer]) -> None:
    """Hand a reply to who asked: the tag is the list of what was got."""
    for got, found in exchange.receive(frames):
        got.append(found)


def reply(request_id: int, body: bodies.Body | None = None, kind: Kind = Kind.ACK) -> list[bytes]:
    return [bytes(frame) for frame in pack_frames(kind, request_id, body or bodies.Done(), [b"blob"])]


def ids(requests: list[list[bytes | bytearray | memoryview]]) -> list[int]:
    return [unpack_prefix(bytes(frames[0]))[2] for frames in requests]


def test_a_reply_goes_to_who_asked_with_what_came_behind_it() -> None:
    exchange, first, second = Exchange(), list[Reply](), list[Reply]()
    ask(exchange, first)
    answer(exchange, reply(ask(exchange, second)))
    assert first == []
    assert second[0].read(bodies.Done) == bodies.Done()
    assert list(second[0].blobs) == [b"blob"]
    assert len(exchange) == 1


def test_what_nobody_asked_or_was_answered_before_is_counted_and_dropped() -> None:
    exchange, got = Exchange(), list[Reply]()
    number = ask(exchange, got)
    for frames in (reply(number), reply(number), reply(99), [], [b"garbage"], [b"", b""]):
        answer(exchange, frames)
    assert (len(got), exchange.strays, len(exchange)) == (1, 5, 0)


def test_half_a_reply_leaves_the_request_to_be_sent_again() -> None:
    exchange, got = Exchange(), list[Reply]()
    number = ask(exchange, got)
    answer(exchange, reply(number)[:1])
    assert ids(exchange.everything(0.0)) == [number]
    answer(exchange, reply(number))
    assert len(got) == 1


def test_what_was_given_up_is_not_sent_again_nor_answered() -> None:
    exchange, got = Exchange(), list[Reply]()
    given_up = list[Reply]()
    frames = exchange.send(Send(Kind.STATS, bodies.AskStats(), given_up), now_s=0)
    kept = ask(exchange, got)
    exchange.give_up(given_up)
    assert ids(exchange.everything(0.0)) == [kept]
    answer(exchange, reply(unpack_prefix(bytes(frames[0]))[2]))
    assert not got
    assert not given_up


def test_a_new_connection_gets_everything_unanswered_in_order_and_unchanged() -> None:
    exchange, got = Exchange(), list[Reply]()
    frames = [exchange.send(Send(Kind.STATS, bodies.AskStats(), got), now_s=0) for _ in range(4)]
    answer(exchange, reply(2))
    assert exchange.everything(1.0) == [frames[0], frames[2], frames[3]]
    assert exchange.everything(2.0) == [frames[0], frames[2], frames[3]]
    assert exchange.resent == 6


def test_a_request_is_sent_again_when_its_answer_is_overdue_and_not_before() -> None:
    exchange, got = Exchange(resend_after_s=10), list[Reply]()
    early, late = ask(exchange, got, now_s=0), ask(exchange, got, now_s=0, wait_s=60)
    assert exchange.overdue(9.9) == []
    assert ids(exchange.overdue(20.0)) == [early]
    assert exchange.overdue(29.0) == [], "sent again at 20"
    assert ids(exchange.overdue(71.0)) == [early, late], "a long wait at the broker is not overdue"
    answer(exchange, reply(early))
    answer(exchange, reply(late))
    assert exchange.overdue(1000.0) == []


def test_a_new_connection_gives_every_request_its_full_time_again() -> None:
    exchange, got = Exchange(resend_after_s=10), list[Reply]()
    ask(exchange, got, now_s=0)
    exchange.everything(9.0)
    assert exchange.overdue(15.0) == []
    assert len(exchange.overdue(20.0)) == 1


def test_dropped_requests_are_never_answered() -> None:
    exchange, got = Exchange(), list[Reply]()
    number = ask(exchange, got)
    exchange.drop_all()
    answer(exchange, reply(number))
    assert (got, len(exchange), exchange.everything(0)) == ([], 0, [])


@pytest.mark.parametrize(
    ("kind", "code", "error"),
    [
        (Kind.REFUSED, Code.TAKEN_OVER, TakenOver),
        (Kind.REFUSED, Code.DISK_FULL, DiskFull),
        (Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER, NoSubscriber),
        (Kind.INVALID, Code.MALFORMED, InvalidRequest),
        (Kind.REFUSED, 999, InvalidRequest),
    ],
)
def test_a_refusal_is_raised_as_its_typed_error(kind: Kind, code: int, error: type[Exception]) -> None:
    refused = Reply(kind, reply(1, bodies.Refused(code, "because"))[1])
    refusal = refused.refusal()
    assert refusal is not None
    assert refusal.code == code
    with pytest.raises(error, match="because"):
        refused.read(bodies.Done)


def test_an_answer_that_cannot_be_read_is_a_typed_error() -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Reply(Kind.ACK, b"\xc1").read(bodies.Registered)


def test_a_reply_tells_how_often_its_request_was_sent() -> None:
    exchange, got = Exchange(resend_after_s=10.0), list[Reply]()
    once, again, late = (ask(exchange, got) for _ in range(3))
    answer(exchange, reply(once))
    exchange.everything(1.0)
    answer(exchange, reply(again))
    assert ids(exchange.overdue(12.0)) == [late]
    answer(exchange, reply(late))
    assert [answer.times_sent for answer in got] == [1, 2, 3]


def test_what_was_asked_without_a_connection_is_sent_first_by_the_next_one() -> None:
    exchange, got = Exchange(), list[Reply]()
    exchange.send(Send(Kind.STATS, bodies.AskStats(), got), now_s=0, sent=False)
    exchange.everything(1.0)
    answer(exchange, reply(1))
    assert got[0].times_sent == 1


@pytest.mark.parametrize("first_id", [0, 5 * IDS])
def test_ids_begin_again_after_the_last_and_leave_out_what_is_under_way(first_id: int) -> None:
    exchange, waits = Exchange(first_id=first_id), list[Reply]()
    assert [ask(exchange, waits), ask(exchange, waits)] == [first_id + 1, first_id + 2]
    exchange._last_id = first_id + IDS - 2
    assert [ask(exchange, waits), ask(exchange, waits)] == [first_id + IDS - 1, first_id + 3]
    answer(exchange, reply(first_id + 1))
    assert len(waits) == 1


def test_what_version_a_broker_speaks_is_not_known_before_each_connection_was_welcomed() -> None:
    exchange = Exchange(seen=Seen())
    for version in (3, 1):
        ((hello, *_),) = exchange.greeting(0.0)
        assert exchange.welcomed_as == 0
        welcome = bodies.Welcome(version, 1, bytes(16), 1, 1 << 20, 64, 1 << 20, b"start")
        exchange.receive(reply(unpack_prefix(bytes(hello))[2], welcome))
        assert exchange.welcomed_as == version
