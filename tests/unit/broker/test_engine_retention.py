"""How long messages, subscriptions and topics stay."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.asker import Asker, body_of, code_of, payloads_of

from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"
PACKED_BYTES = 64 + 8 + 104  # header, offsets, payload of 100 bytes


def made(retention: str, *readers: bytes, limits: dict[str, Any] | None = None, **changes: Any) -> Asker:
    """Return a topic with these settings and readers."""
    asker = Asker(**(limits or {}))
    asker.register()
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, retention, changes))
    for reader in readers:
        asker.subscribe(NEWS, reader)
    return asker


def put(asker: Asker, number: int) -> int:
    return asker.put(NEWS, asker.batch(1, number, b"%d" % number + bytes(99))).kind


def run(asker: Asker, seconds: float) -> None:
    """Let time pass, in steps no longer than the broker's own."""
    until_s = asker.now_s + seconds
    while asker.now_s < until_s:
        asker.tick(min(0.5, until_s - asker.now_s))
        asker.settle()


def numbers(asker: Asker) -> list[int]:
    """Return which puts are still stored."""
    row = asker.store.topic(NEWS)
    assert row is not None
    batches = asker.store.batches(row.number, 0, 1000, 1 << 30)
    return [1 + batch.first_offset for batch in batches]


def ack(asker: Asker, name: bytes, stop: int) -> None:
    asker.ack(NEWS, asker.attach(NEWS, name).token, (0, stop), name=name)


def test_messages_older_than_the_topic_keeps_them_go() -> None:
    asker = made("keep", max_age_s=100.0)
    put(asker, 1)
    run(asker, 60)
    put(asker, 2)
    run(asker, 30)
    assert numbers(asker) == [1, 2]
    run(asker, 20)
    assert numbers(asker) == [2]
    run(asker, 60)
    assert numbers(asker) == []
    assert put(asker, 3) == Kind.ACK
    assert numbers(asker) == [3], "offsets go on"


def test_age_overtakes_no_live_cursor_unless_the_topic_trims() -> None:
    for at_bound, kept in (("refuse", [2, 3]), ("trim", [])):
        asker = made("keep", b"reader", max_age_s=10.0, at_bound=at_bound)
        for number in (1, 2, 3):
            put(asker, number)
        ack(asker, b"reader", 1)
        run(asker, 30)
        assert numbers(asker) == kept


def test_what_is_beyond_the_size_of_a_topic_that_keeps_goes_and_nobody_is_refused() -> None:
    asker = made("keep", max_bytes=3 * PACKED_BYTES)
    for number in range(1, 11):
        assert put(asker, number) == Kind.ACK
    run(asker, 2)
    assert numbers(asker) == [8, 9, 10]


def test_a_topic_that_keeps_refuses_only_what_its_slowest_reader_has_not_read() -> None:
    asker = made("keep", b"slow", b"fast", max_bytes=3 * PACKED_BYTES)
    for number in (1, 2, 3):
        assert put(asker, number) == Kind.ACK
    ack(asker, b"fast", 3)
    refused = asker.put(NEWS, asker.batch(1, 4, bytes(100)))
    assert code_of(refused) == (Kind.REFUSED, Code.TOPIC_FULL)
    ack(asker, b"slow", 2)
    assert put(asker, 4) == Kind.ACK, "what everybody has read makes room at once"
    assert put(asker, 5) == Kind.ACK
    assert code_of(asker.put(NEWS, asker.batch(1, 6, bytes(100)))) == (Kind.REFUSED, Code.TOPIC_FULL)
    run(asker, 2)
    assert numbers(asker) == [3, 4, 5]


@pytest.mark.parametrize("retention", ["keep", "until-read"])
def test_what_is_taken_and_not_on_disk_yet_counts_against_the_bound(retention: str) -> None:
    asker = made(retention, b"reader", max_bytes=3 * PACKED_BYTES)
    put(asker, 1)
    ack(asker, b"reader", 1)  # it has read all there is
    run(asker, 5)
    keys = [asker.send_put(NEWS, asker.batch(1, number, bytes(100))) for number in range(2, 9)]
    asker.settle()
    kinds = [asker.replies[key].kind for key in keys]
    assert kinds == [Kind.ACK] * 3 + [Kind.REFUSED] * 4
    ack(asker, b"reader", 4)
    run(asker, 5)
    assert put(asker, 5) == Kind.ACK


def test_what_nobody_reads_is_taken_beyond_the_bound_and_goes_later() -> None:
    asker = made("keep", max_bytes=3 * PACKED_BYTES)
    keys = [asker.send_put(NEWS, asker.batch(1, number, bytes(100))) for number in range(1, 9)]
    asker.settle()
    assert {asker.replies[key].kind for key in keys} == {Kind.ACK}
    run(asker, 5)
    assert numbers(asker) == [6, 7, 8]


def test_a_seek_back_counts_as_unread_again() -> None:
    asker = made("keep", b"reader", max_bytes=3 * PACKED_BYTES)
    for number in range(1, 6):
        put(asker, number)
        ack(asker, b"reader", number)
    assert put(asker, 6) == Kind.ACK
    asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", "earliest"))
    assert code_of(asker.put(NEWS, asker.batch(1, 7, bytes(100)))) == (Kind.REFUSED, Code.TOPIC_FULL)


def test_credit_of_a_topic_that_keeps_follows_its_slowest_reader() -> None:
    asker = made("keep", b"reader", max_bytes=10 * PACKED_BYTES, limits={"credit_max_messages": 1000})

    def granted(number: int) -> int:
        done = body_of(asker.put(NEWS, asker.batch(1, number, bytes(100))), bodies.PutDone)
        return done.credit - number

    assert [granted(number) for number in range(1, 10)] == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    ack(asker, b"reader", 9)
    assert granted(10) > 5
    free = made("keep", max_bytes=2 * PACKED_BYTES, limits={"credit_max_messages": 1000})
    for number in range(1, 6):
        done = body_of(free.put(NEWS, free.batch(1, number, bytes(100))), bodies.PutDone)
    assert done.credit == 1005, "with nobody behind there is no reason to slow anybody"


@pytest.mark.parametrize("retention", ["until-read", "keep"])
def test_a_topic_that_trims_never_refuses_and_tells_its_reader_what_is_gone(retention: str) -> None:
    asker = made(retention, b"reader", max_bytes=3 * PACKED_BYTES, at_bound="trim")
    token = asker.attach(NEWS).token
    for number in range(1, 11):
        assert put(asker, number) == Kind.ACK
    assert numbers(asker) == [8, 9, 10]
    refused = asker.get(NEWS, token)
    assert code_of(refused) == (Kind.REFUSED, Code.GONE)
    assert body_of(refused, bodies.Refused).gone == (0, 7)
    asker.ack(NEWS, token, (0, 7))
    assert [int(payload.rstrip(b"\0")) for payload in payloads_of(asker.get(NEWS, token, 7))] == [8, 9, 10]


def test_expired_messages_after_a_gap_do_not_hide_it() -> None:
    asker = made("keep", b"reader", max_bytes=3 * PACKED_BYTES, at_bound="trim", ttl_s=5.0)
    token = asker.attach(NEWS).token
    for number in range(1, 11):
        put(asker, number)
    run(asker, 20)
    assert numbers(asker) == [], "what was left has expired"
    gone = body_of(asker.get(NEWS, token), bodies.Refused).gone
    assert gone is not None, "the gap before it is still told"
    assert (gone[0], gone[1] >= 7) == (0, True)


def test_a_crash_between_putting_and_trimming_leaves_the_trim_to_be_done() -> None:
    asker = made("keep", max_bytes=2 * PACKED_BYTES)
    for number in range(1, 4):
        put(asker, number)
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, changes={"max_bytes": PACKED_BYTES}))
    asker.tick(2)
    asker.take_group()
    asker.crash()
    run(asker, 3)
    assert numbers(asker) == [3]


def test_topics_that_nobody_touches_are_looked_after_in_a_slow_round() -> None:
    asker = Asker(max_topics_in_memory=1)
    asker.register()
    for place in range(300):
        name = b"topic %03d" % place
        asker.ask(Kind.CONFIGURE, bodies.Configure(name, "keep", {"max_age_s": 50.0}))
        asker.put(name, asker.batch(1, 1, b"x"))
    run(asker, 30)
    assert len(asker.state.topics) < 10
    assert asker.store.used_bytes() > 0
    run(asker, 60)
    assert asker.store.used_bytes() == 0


def test_what_a_crash_kept_from_being_trimmed_goes_though_nobody_comes_for_it() -> None:
    asker = made("until-read", b"reader")
    put(asker, 1)
    ack(asker, b"reader", 1)
    asker.crash()
    run(asker, 3)
    assert asker.store.used_bytes() == 0


def test_a_half_read_batch_is_not_trimmed_over_and_over() -> None:
    asker = made("keep", b"reader", max_age_s=1.0)
    asker.put(NEWS, asker.batch(1, 1, b"a", b"b"))
    ack(asker, b"reader", 1)
    run(asker, 10)
    commits = asker.engine.stats()["commits"]
    run(asker, 10)
    assert asker.engine.stats()["commits"] == commits
    assert numbers(asker) == [1]


# Messages that expire.


def test_expired_messages_at_the_beginning_of_a_topic_go_though_nobody_reads() -> None:
    asker = made("until-read", b"reader", b"other")
    asker.ask(Kind.PUT, bodies.Put(NEWS, 5000), asker.batch(1, 1, b"short"))
    asker.ask(Kind.PUT, bodies.Put(NEWS, 5000), asker.batch(1, 2, b"short, too"))
    put(asker, 3)
    asker.ask(Kind.PUT, bodies.Put(NEWS, 5000), asker.batch(1, 4, b"behind"))
    run(asker, 20)
    assert numbers(asker) == [3, 4]
    assert asker.attach(NEWS, b"other").cursor == 2


def test_expired_messages_of_a_shared_subscription_go_too() -> None:
    asker = made("keep", ttl_s=5.0)
    asker.ask(Kind.SUBSCRIBE, bodies.Subscribe(NEWS, b"workers", options=SubscriptionOptions(shared=True)))
    for number in (1, 2):
        put(asker, number)
    token = asker.attach(NEWS, b"workers").token
    lent = asker.ask(Kind.TAKE, bodies.Take(NEWS, b"workers", token, 1, 1, 1000, 0))
    assert body_of(lent, bodies.Lent).lent == ((0, 1, 1),)
    for _ in range(4):
        run(asker, 3)
        asker.ask(Kind.RENEW, bodies.Renew(NEWS, b"workers", token, ((0, 1, 0),)))
    assert numbers(asker) == []
    assert asker.ack(NEWS, token, (0, 1), name=b"workers").kind == Kind.ACK, "who was at work is not told off"


def test_expired_messages_of_a_topic_that_is_not_in_memory_go_too() -> None:
    asker = made("until-read", b"reader")
    asker.ask(Kind.PUT, bodies.Put(NEWS, 5000), asker.batch(1, 1, b"short"))
    asker.crash()
    run(asker, 20)
    assert asker.store.used_bytes() == 0


# Subscriptions and topics that are for a time.


def expiring(asker: Asker, expires_s: float, name: bytes = b"reader", *, shared: bool = False) -> None:
    options = SubscriptionOptions(expires_s=expires_s, shared=shared)
    asker.ask(Kind.SUBSCRIBE, bodies.Subscribe(NEWS, name, options=options))


def test_a_subscription_that_is_not_used_ends_and_holds_nothing_back_any_more() -> None:
    asker = made("until-read", b"other")
    expiring(asker, 100)
    put(asker, 1)
    ack(asker, b"other", 1)
    run(asker, 90)
    assert numbers(asker) == [1]
    run(asker, 60)
    assert numbers(asker) == []
    refused = asker.ask(Kind.ATTACH, bodies.Attach(NEWS, b"reader", b"consumer nonce"))
    assert code_of(refused) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
    assert asker.attach(NEWS, b"other").cursor == 1


def test_a_subscription_in_use_does_not_end() -> None:
    asker = made("until-read")
    expiring(asker, 10)
    token = asker.attach(NEWS).token
    for _ in range(10):
        run(asker, 9)
        asker.get(NEWS, token)
    key = asker.send_wait(NEWS, token, wait_ms=60_000)
    run(asker, 50)
    assert key not in asker.replies
    assert asker.get(NEWS, token).kind == Kind.NO_MESSAGES


def test_a_consumer_that_shares_a_subscription_keeps_it_alive() -> None:
    asker = made("until-read")
    expiring(asker, 5, b"workers", shared=True)
    token = asker.attach(NEWS, b"workers").token
    for _ in range(5):
        run(asker, 14)
        assert asker.ask(Kind.RENEW, bodies.Renew(NEWS, b"workers", token, ())).kind == Kind.ACK
    run(asker, 40)
    gone = asker.ask(Kind.RENEW, bodies.Renew(NEWS, b"workers", token, ()))
    assert code_of(gone) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)


def test_time_in_which_the_broker_did_not_run_does_not_count_as_silence() -> None:
    asker = made("until-read")
    expiring(asker, 100)
    asker.now_s += 100_000
    asker.crash()
    run(asker, 90)
    assert asker.ask(Kind.ATTACH, bodies.Attach(NEWS, b"reader", b"consumer nonce")).kind == Kind.ACK


def test_a_topic_that_is_for_a_time_goes_with_its_last_subscription() -> None:
    asker = made("until-read", b"one", b"two", temporary=True)
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(NEWS, b"one"))
    assert asker.store.topic(NEWS) is not None
    asker.send(Kind.UNSUBSCRIBE, bodies.Unsubscribe(NEWS, b"two"))
    group = asker.take_group()
    assert group.changes.gone_topics, "in the same commit"
    asker.commit(group)
    assert asker.store.topic(NEWS) is None
    assert asker.engine.stats()["topics"] == 0


def test_a_topic_that_is_for_a_time_goes_with_a_subscription_that_expires() -> None:
    asker = made("until-read", temporary=True)
    expiring(asker, 10)
    put(asker, 1)
    run(asker, 30)
    assert asker.store.topic(NEWS) is None
    assert asker.store.used_bytes() == 0


@pytest.mark.parametrize("crash", [False, True])
def test_a_topic_that_is_for_a_time_waits_a_while_for_its_first_subscription(crash: bool) -> None:
    asker = made("until-read", temporary=True)
    if crash:
        asker.crash()
    run(asker, 30)
    assert asker.store.topic(NEWS) is not None
    run(asker, 60)
    assert asker.store.topic(NEWS) is None


def test_that_a_subscription_is_used_is_known_though_its_topic_left_memory() -> None:
    asker = Asker(max_topics_in_memory=1)
    expiring(asker, 100.0)
    token = asker.attach(NEWS).token
    run(asker, 90)
    asker.get(NEWS, token)
    run(asker, 11)
    asker.subscribe(b"other")
    run(asker, 60)
    assert NEWS not in asker.state.topics
    assert asker.get(NEWS, token).kind == Kind.NO_MESSAGES
