"""Requests that change something: asked as of a count, made anew where they were surely not done, else in doubt."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.session.answering import WELCOME

from clarion.model.errors import Busy, InDoubt, TimedOut, VersionMismatch
from clarion.session.calls import Change
from clarion.session.exchange import Count, Reply
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import _BODIES, DECIDED_KINDS, Kind

DELETE = bodies.Delete(b"topic", 3)


def reply(body: bodies.Body, times_sent: int = 1, kind: Kind = Kind.ACK) -> Reply:
    return Reply(kind, msgspec.msgpack.encode(body), (), times_sent)


def refused(code: Code, times_sent: int = 1, expected: int = 0) -> Reply:
    return reply(bodies.Refused(code, "because", 0.0, expected), times_sent, Kind.REFUSED)


class Nonces:
    """Gives nonces that tell their place."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Nonces:
        return self

    def __next__(self) -> bytes:
        self.given += 1
        return b"nonce %d" % self.given


def change(known: int | None = 7) -> tuple[Change, Count]:
    count = Count()
    count.known = known
    return Change(Kind.DELETE, DELETE, count, Nonces()), count


def test_what_is_decided_once_says_as_of_what() -> None:
    for kind in DECIDED_KINDS:
        fields = _BODIES[kind].__struct_fields__
        assert {"nonce", "as_of"} <= set(fields), f"a {Kind(kind).name} is decided once, and does not say as of what"
    asked, _ = change()
    assert asked.request() == (Kind.DELETE, bodies.Delete(b"topic", 3, b"nonce 1", 7))
    assert asked.take(reply(bodies.Done())) is None


def test_the_count_is_asked_for_where_it_is_not_known() -> None:
    asked, count = change(None)
    assert asked.request()[0] == Kind.HELLO
    assert asked.take(reply(msgspec.structs.replace(WELCOME, count=9))) == 0
    assert asked.request() == (Kind.DELETE, bodies.Delete(b"topic", 3, b"nonce 1", 9))
    assert count.known == 9


def test_a_broker_that_does_not_count_is_asked_as_before() -> None:
    asked, count = change(None)
    asked.request()
    asked.take(reply(WELCOME))
    assert (asked.request(), count.known) == ((Kind.DELETE, bodies.Delete(b"topic", 3, b"nonce 1", 0)), 0)


def test_who_subscribed_is_told_the_count_and_goes_by_it() -> None:
    count = Count()
    count.known = 7
    asked = Change(Kind.SUBSCRIBE, bodies.Subscribe(b"topic", b"reader"), count, Nonces())
    asked.request()
    assert asked.take(reply(bodies.Subscribed(0, count=9))) is None
    ended = Change(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"topic", b"reader"), count, Nonces())
    assert ended.request()[1] == bodies.Unsubscribe(b"topic", b"reader", b"nonce 1", 9)


def test_a_broker_that_refuses_to_greet_is_the_answer() -> None:
    asked, _ = change(None)
    asked.request()
    no = refused(Code.VERSION)
    assert asked.take(no) is None
    with pytest.raises(VersionMismatch):
        asked.last(no).read(bodies.Done)


def test_what_was_sent_once_and_is_stale_is_made_anew_as_of_now() -> None:
    asked, count = change()
    asked.request()
    assert asked.take(refused(Code.STALE, expected=5)) == 0
    assert count.known == 5, "this may be another store"
    assert asked.request() == (Kind.DELETE, bodies.Delete(b"topic", 3, b"nonce 2", 5))


@pytest.mark.parametrize("before", [(), (Code.BUSY,)], ids=["at once", "after a refusal for now"])
def test_what_was_sent_more_than_once_and_is_stale_is_in_doubt(before: tuple[Code, ...]) -> None:
    asked, _ = change()
    _, body = asked.request()
    for code in before:  # this answers one of two copies
        assert asked.take(refused(code, times_sent=2)) is not None
        assert asked.request()[1] == body, "what may be done is asked again as it was"
    stale = refused(Code.STALE, times_sent=1 if before else 2)
    assert asked.take(stale) is None
    with pytest.raises(InDoubt):
        asked.last(stale).read(bodies.Done)


def test_when_time_is_over_a_refusal_for_now_is_the_answer_only_where_it_is_of_the_only_copy() -> None:
    for times_sent, error in ((1, Busy), (2, TimedOut)):
        asked, _ = change()
        asked.request()
        busy = refused(Code.BUSY, times_sent)
        asked.take(busy)
        with pytest.raises(error):
            asked.last(busy).read(bodies.Done)


def test_without_time_for_the_request_itself_nothing_was_done() -> None:
    for known, answer in ((None, reply(WELCOME)), (7, refused(Code.STALE, expected=8))):
        asked, _ = change(known)
        asked.request()
        assert asked.take(answer) == 0
        with pytest.raises(TimedOut, match="nothing was done"):
            asked.last(answer)
