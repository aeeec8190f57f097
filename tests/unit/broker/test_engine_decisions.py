"""Each request that changes something is decided once, and is for what there was as of the count that it names."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import Asker, body_of, code_of

from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"
PATTERN = b"news/*"


def count_of(asker: Asker) -> int:
    """Return the count that the broker tells."""
    return body_of(asker.ask(Kind.HELLO, bodies.Hello(1, 1, "test")), bodies.Welcome).count


def max_bytes_of(asker: Asker) -> int:
    values = body_of(asker.ask(Kind.DESCRIBE, bodies.Describe(NEWS)), bodies.Description).values
    return int(values["settings"]["max_bytes"])


def test_the_first_request_to_a_new_store_is_decided_once_too() -> None:
    asker = Asker()
    first = bodies.Configure(NEWS, "keep", {"max_bytes": 1}, b"first nonce", count_of(asker))
    asker.ask(Kind.CONFIGURE, first)
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, "", {"max_bytes": 2}, b"second nonce", count_of(asker)))
    asker.crash()
    assert asker.ask(Kind.CONFIGURE, first).kind == Kind.ACK
    assert max_bytes_of(asker) == 2


@pytest.mark.parametrize(
    ("kind", "late"),
    [
        (Kind.CONFIGURE, lambda as_of: bodies.Configure(NEWS, "", {"max_bytes": 1}, b"late nonce", as_of)),
        (Kind.PURGE, lambda as_of: bodies.Purge(NEWS, nonce=b"late nonce", as_of=as_of)),
        (Kind.DELETE, lambda as_of: bodies.Delete(NEWS, nonce=b"late nonce", as_of=as_of)),
        (Kind.UNSUBSCRIBE, lambda as_of: bodies.Unsubscribe(NEWS, b"reader", b"late nonce", as_of)),
        (Kind.SEEK, lambda as_of: bodies.Seek(NEWS, b"reader", "new", 0, b"late nonce", as_of)),
    ],
)
def test_what_was_asked_for_before_a_topic_was_made_anew_is_not_done_to_it(kind: Kind, late: object) -> None:
    asker = Asker()
    publisher = asker.register()
    asker.subscribe(NEWS)
    body = late(count_of(asker))  # type: ignore[operator]
    asker.ask(Kind.DELETE, bodies.Delete(NEWS))
    asker.subscribe(NEWS)
    asker.put_many(NEWS, publisher, 1, b"unread")
    before = asker.store.topics(b"", 10)
    refused = asker.ask(kind, body)
    assert code_of(refused) == (Kind.REFUSED, Code.STALE)
    assert body_of(refused, bodies.Refused).expected == count_of(asker)
    assert asker.store.topics(b"", 10) == before


def test_an_unsubscribe_that_comes_late_does_not_end_a_pattern_that_was_subscribed_to_anew() -> None:
    asker = Asker()
    asker.subscribe(PATTERN)
    late = bodies.Unsubscribe(PATTERN, b"reader", b"late nonce", count_of(asker))
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(PATTERN, b"reader"))
    asker.subscribe(PATTERN)
    asker.crash()
    assert code_of(asker.ask(Kind.UNSUBSCRIBE, late)) == (Kind.REFUSED, Code.STALE)
    again = bodies.Unsubscribe(PATTERN, b"reader", b"other nonce", count_of(asker))
    assert asker.ask(Kind.UNSUBSCRIBE, again).kind == Kind.ACK


def test_dead_letters_of_a_topic_made_since_are_not_dropped_by_what_comes_late() -> None:
    asker = Asker()
    late = bodies.Dead(NEWS, "drop", (), b"late nonce", count_of(asker))
    publisher = asker.register()
    asker.subscribe(b"$dead/" + NEWS, b"$dead")
    asker.put_many(b"$dead/" + NEWS, publisher, 1, b"dead")
    assert code_of(asker.ask(Kind.DEAD, late)) == (Kind.REFUSED, Code.STALE)
    done = asker.ask(Kind.DEAD, bodies.Dead(NEWS, "drop", (), b"other nonce", count_of(asker)))
    assert body_of(done, bodies.DeadDone).done == 1


@pytest.mark.parametrize("crashes", [False, True])
def test_a_request_is_stale_from_the_first_answer_on_that_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    monkeypatch.setattr("clarion.store.memory.DECISIONS_KEPT", 2)
    asker = Asker()
    asker.subscribe(b"news")
    asked = []
    for place in range(3):  # each draws one count, for its answer alone
        asked.append(bodies.Unsubscribe(b"nothing", b"nobody", b"nonce %d " % place, asker.state.count))
        assert code_of(asker.ask(Kind.UNSUBSCRIBE, asked[-1]))[1] == Code.NOT_SUBSCRIBED
    if crashes:
        asker.crash()
    assert code_of(asker.ask(Kind.UNSUBSCRIBE, asked[0])) == (Kind.REFUSED, Code.STALE)
    assert [asker.ask(Kind.UNSUBSCRIBE, body).kind for body in asked[1:]] == 2 * [Kind.NOT_SUBSCRIBED]
    fresh = bodies.Unsubscribe(b"nothing", b"nobody", b"a fresh one", asked[1].as_of)
    assert code_of(asker.ask(Kind.UNSUBSCRIBE, fresh))[1] == Code.NOT_SUBSCRIBED
