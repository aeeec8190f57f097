"""Odd moments and odd clients: two things at once, requests that come again late, numbers out of all proportion."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import FIRST_TOPIC, Asker, body_of, code_of
from tests.unit.broker.lease_askers import JOBS, NAME, SharedAsker, lent_by

from clarion.wire import batch as batches
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"


def go_on(asker: Asker) -> None:
    """Let what takes several groups come to its end."""
    for _ in range(20):
        asker.tick(0.01)
        asker.settle()


def with_topics(count: int) -> Asker:
    asker = Asker()
    for number in range(count):
        asker.ask(Kind.CONFIGURE, bodies.Configure(b"a/%04d" % number))
    return asker


def subscriptions(asker: Asker) -> int:
    return sum(len(found.subscriptions) for found in asker.store.topics(b"", 1000))


def test_a_purge_that_makes_room_serves_who_waits() -> None:
    asker = SharedAsker()
    token = asker.join(max_unacked=2)
    asker.put_jobs(*[b"x"] * 4)
    asker.borrow(token)
    key = asker.send_take(token, wait_ms=30_000)
    asker.ask(Kind.PURGE, bodies.Purge(JOBS, 2))
    asker.tick(0.1)
    assert [offset for offset, _, _ in lent_by(asker.replies[key])] == [2, 3]


def test_consumers_that_never_come_back_do_not_keep_a_topic_in_memory() -> None:
    asker = SharedAsker(max_topics_in_memory=0, topic_unload_interval_s=1.0)
    asker.join()
    asker.put_jobs(b"x")
    asker.crash()
    asker.put_jobs(b"y")
    for _ in range(5):
        asker.tick(2)
        asker.settle()
    assert JOBS not in asker.state.topics


def test_a_broker_that_stood_still_waits_as_long_as_ever_for_who_held_messages() -> None:
    asker = SharedAsker({"lease_s": 5.0})
    token = asker.join()
    asker.put_jobs(b"x")
    asker.borrow(token)
    asker.crash()
    other = asker.join(b"consumer 2")
    asker.now_s += 20
    asker.engine.stalled(20.0)
    asker.tick()
    asker.settle()
    assert asker.borrow(other) == []
    assert body_of(asker.renew(token, (0, 1)), bodies.Renewed).lost == ()


def test_a_seek_that_comes_again_after_a_restart_does_not_move_again() -> None:
    asker = Asker()
    publisher = asker.register()
    asker.subscribe(NEWS)
    asker.put_many(NEWS, publisher, 1, b"a", b"b", b"c")
    seek = bodies.Seek(NEWS, b"reader", "earliest", 0, b"seek nonce")
    asker.ask(Kind.SEEK, seek)
    asker.ack(NEWS, asker.attach(NEWS, nonce=b"another nonce").token, (0, 2))
    asker.crash()
    asker.ask(Kind.SEEK, seek)
    assert asker.attach(NEWS, nonce=b"another nonce").cursor == 2
    assert asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", "new", 0, bytes(65))).kind == Kind.INVALID


def test_a_transaction_is_answered_though_its_publisher_left() -> None:
    asker = Asker()
    publisher = asker.register()
    key = asker.send(Kind.TRANSACT, bodies.Transact(publisher, 1, (), (), ((b"s", b"v", None),)), b"")
    asker.send(Kind.FORGET, bodies.Forget(publisher))
    asker.settle()
    assert body_of(asker.replies[key], bodies.Transacted).code == 0


def test_a_transaction_beyond_a_limit_uses_its_number_up() -> None:
    asker = Asker(max_topics=1, default_retention="keep")
    publisher = asker.register()
    asker.subscribe(NEWS)
    packed = asker.batch(publisher, 1, b"x")
    body = bodies.Transact(publisher, 1, (), ((b"new", len(packed), 0, b""),), ())
    assert code_of(asker.ask(Kind.TRANSACT, body, packed)) == (Kind.REFUSED, Code.LIMIT)
    assert asker.ask(Kind.TRANSACT, bodies.Transact(publisher, 2, (), (), ()), b"").kind == Kind.ACK


@pytest.mark.parametrize(("retention", "code"), [("until-read", Code.NO_SUBSCRIBER), ("keep", Code.TOO_LARGE)])
def test_a_refused_transaction_leaves_no_topic_behind(retention: str, code: Code) -> None:
    asker = Asker(default_retention=retention, max_batch_bytes=200)
    publisher = asker.register()
    asker.subscribe(NEWS)
    small, large = asker.batch(publisher, 1, b"x"), asker.batch(publisher, 2, bytes(200))
    puts = ((b"one", len(small), 0, b""), (b"other", len(large), 0, b""))
    body = bodies.Transact(publisher, 1, (), puts, ())
    assert code_of(asker.ask(Kind.TRANSACT, body, small + large)) == (Kind.REFUSED, code)
    assert [row.name for row, _ in asker.store.topics(b"", 10)] == [NEWS]


@pytest.mark.parametrize("publisher", [0, -1, 1 << 63, (1 << 64) - 1])
def test_a_publisher_that_cannot_be_is_not_known(publisher: int) -> None:
    asked = Asker().ask(Kind.TRANSACT, bodies.Transact(publisher, 1, (), (), ()), b"")
    assert code_of(asked) == (Kind.REFUSED, Code.PUBLISHER_EXPIRED)


def test_what_expired_between_messages_does_not_keep_them_from_being_acked() -> None:
    asker = Asker(max_acked_ranges=3)
    publisher = asker.register()
    asker.subscribe(NEWS)
    token = asker.attach(NEWS).token
    for number in range(1, 17):
        asker.ask(Kind.PUT, bodies.Put(NEWS, 10 if number % 2 == 0 else 0), asker.batch(publisher, number, b"x"))
    asker.now_s += 1
    assert len(body_of(asker.get(NEWS, token), bodies.Delivery).skip) == 8
    assert asker.ack(NEWS, token, (0, 1)).body == bodies.Done()


def test_a_get_where_all_is_acked_or_gone_moves_on() -> None:
    asker = Asker()
    publisher = asker.register()
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, "keep", {"at_bound": "trim"}))
    asker.subscribe(NEWS)
    token = asker.attach(NEWS).token
    asker.put_many(NEWS, publisher, 1, *[b"x"] * 10)
    asker.ack(NEWS, token, (6, 10))
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, "", {"max_age_s": 1.0}))
    for _ in range(2):
        asker.tick(5)
        asker.settle()
    assert asker.get(NEWS, token, 6).body == bodies.Delivery((), 10, ((6, 10),))


def test_an_ack_of_a_gap_beside_what_is_acked_is_written() -> None:
    asker = SharedAsker()
    asker.ask(Kind.CONFIGURE, bodies.Configure(JOBS, "keep", {"at_bound": "trim"}))
    for _ in range(4):
        asker.put_jobs(b"x")
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert [offset for offset, _, _ in asker.borrow(one, 1)] == [0]
    assert [offset for offset, _, _ in asker.borrow(two, 2)] == [1, 2]
    asker.done(two, (2, 3))
    asker.release(two, (1, 2, 1))
    asker.ask(Kind.CONFIGURE, bodies.Configure(JOBS, "", {"max_age_s": 1.0}))
    for _ in range(2):
        asker.tick(3)
        asker.settle()
    refused = body_of(asker.take(two), bodies.Refused)
    assert (refused.code, refused.gone) == (Code.GONE, (1, 4))
    asker.done(two, (1, 4))
    row = next(row for row in asker.store.subscriptions(FIRST_TOPIC) if row.name == NAME)
    assert (row.cursor, row.acked) == (0, (1).to_bytes(8, "little") + (4).to_bytes(8, "little"))


def test_a_start_that_is_none_makes_no_topic() -> None:
    asker = Asker()
    assert asker.subscribe(NEWS, start="bogus").kind == Kind.INVALID
    assert asker.store.topic(NEWS) is None


def test_two_patterns_that_go_at_once_leave_nothing() -> None:
    asker = with_topics(450)
    for pattern in (b"a/*", b"a/#"):
        asker.send(Kind.SUBSCRIBE, bodies.Subscribe(pattern, b"r"))
        go_on(asker)
    assert subscriptions(asker) == 450
    for pattern in (b"a/*", b"a/#"):
        asker.send(Kind.UNSUBSCRIBE, bodies.Unsubscribe(pattern, b"r"))
    go_on(asker)
    assert (subscriptions(asker), asker.store.patterns()) == (0, [])


def test_a_pattern_that_comes_while_another_goes_has_all_its_topics() -> None:
    asker = with_topics(450)
    asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"a/*", b"r"))
    go_on(asker)
    asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"a/#", b"r"))
    asker.send(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"a/*", b"r"))
    go_on(asker)
    assert subscriptions(asker) == 450
    assert [row.pattern for row in asker.store.patterns()] == [b"a/#"]


def test_a_pattern_that_is_refused_leaves_nothing() -> None:
    asker = with_topics(300)
    asker.ask(Kind.CONFIGURE, bodies.Configure(b"a/0299", "", {"max_subscriptions": 1}))
    asker.subscribe(b"a/0299", b"other")
    key = asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"a/*", b"r"))
    go_on(asker)
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.LIMIT)
    assert subscriptions(asker) == 1


def test_one_who_asks_twice_which_topics_match_hears_twice() -> None:
    asker = with_topics(450)
    asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"a/*", b"r"))
    go_on(asker)
    keys = [asker.send(Kind.MATCHES, bodies.Matches(b"a/*", b"r", 0, 1000)) for _ in range(2)]
    go_on(asker)
    assert all(key in asker.replies for key in keys)


def test_a_message_whose_headers_cannot_be_read_is_buried_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = SharedAsker({"max_attempts": 1})
    token = asker.join()
    with monkeypatch.context() as patched:
        patched.setattr(batches, "encode_headers", lambda _headers: b"\xc1junk")
        packed = batches.encode_batch(
            [b"x"], headers=[{"a": b"b"}], broker=1, publisher=asker.publisher, stamp=1, number=1
        )
    asker.put(JOBS, bytes(packed))
    asker.borrow(token)
    asker.nack(token, (0, 1, 1))
    assert asker.state.counters["messages_buried"] == 1


def test_a_batch_that_cannot_be_opened_does_not_stop_the_keys_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = SharedAsker({"order": "key"})
    token = asker.join()
    with monkeypatch.context() as patched:
        patched.setattr(batches, "compress", lambda _plain: b"garbage!")
        packed = batches.encode_batch(
            [b"x" * 200], keys=[b"k"], broker=1, publisher=asker.publisher, stamp=1, number=1, compressed=True
        )
    asker.put(JOBS, bytes(packed))
    asker.numbers += 1
    asker.put_jobs(b"good", keys=(b"z",))
    assert body_of(asker.take(token), bodies.Lent).lent == ((0, 2, 1),)


def test_a_request_names_so_many_ranges_and_no_more() -> None:
    asker = SharedAsker()
    token = asker.join()
    many = tuple((number, number + 1, 1) for number in range(65_537))
    pairs = tuple(span[:2] for span in many)
    for kind, body in (
        (Kind.RENEW, bodies.Renew(JOBS, NAME, token, many)),
        (Kind.RETURN, bodies.Return(JOBS, NAME, token, many, True)),
        (Kind.DETACH, bodies.Detach(JOBS, NAME, token, pairs)),
        (Kind.DEAD, bodies.Dead(JOBS, "drop", pairs)),
    ):
        assert asker.ask(kind, body).kind == Kind.INVALID
