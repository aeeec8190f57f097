"""Subscriptions to patterns: on every topic that matches, present and future, and who asks is told which."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.asker import PEER, Asker, body_of, code_of, payloads_of

from clarion.broker.engine import Reply
from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

ALERTS = b"alerts/*"
FIRE, FLOOD, OTHER = b"alerts/fire", b"alerts/flood", b"other"


@pytest.fixture
def asker() -> Asker:
    asker = Asker()
    asker.register()
    return asker


def subscribe(asker: Asker, pattern: bytes = ALERTS, start: str = "new", **options: Any) -> Reply:
    body = bodies.Subscribe(pattern, b"reader", start, 0, SubscriptionOptions(**options))
    return asker.ask(Kind.SUBSCRIBE, body)


def unsubscribe(asker: Asker, pattern: bytes = ALERTS) -> Reply:
    return asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(pattern, b"reader"))


def keep(asker: Asker, *topics: bytes) -> None:
    for topic in topics:
        asker.ask(Kind.CONFIGURE, bodies.Configure(topic, "keep"))


def read(asker: Asker, topic: bytes) -> list[bytes] | None:
    """Return what the subscription has to read; None when there is none."""
    attached = asker.ask(Kind.ATTACH, bodies.Attach(topic, b"reader", b"consumer nonce"))
    if attached.kind == Kind.NOT_SUBSCRIBED:
        return None
    reply = asker.get(topic, body_of(attached, bodies.Attached).token)
    return payloads_of(reply) if reply.kind == Kind.MESSAGES else []


def matched(asker: Asker, version: int = 0, pattern: bytes = ALERTS) -> bodies.Matched:
    return body_of(asker.ask(Kind.MATCHES, bodies.Matches(pattern, b"reader", version)), bodies.Matched)


def wait(asker: Asker, version: int, peer: bytes = PEER) -> tuple[bytes, int]:
    return asker.send(Kind.MATCHES, bodies.Matches(ALERTS, b"reader", version, 10_000), peer=peer)


def run(asker: Asker) -> None:
    """Let everything that was begun come to its end."""
    while asker.engine.next_deadline_s() <= asker.now_s:
        asker.tick()
        asker.settle()


def test_a_pattern_subscribes_to_present_topics_from_its_start_and_to_no_others(asker: Asker) -> None:
    keep(asker, FIRE, FLOOD, OTHER)
    for topic in (FIRE, FLOOD, OTHER):
        asker.put_many(topic, 1, 1, b"old")
    asker.subscribe(FIRE, b"reader", "earliest")
    assert body_of(subscribe(asker), bodies.Subscribed).cursor == 0
    assert (read(asker, FIRE), read(asker, FLOOD), read(asker, OTHER)) == ([b"old"], [], None)
    assert body_of(subscribe(asker, b"#", "earliest"), bodies.Subscribed)
    assert (read(asker, FLOOD), read(asker, OTHER)) == ([], [b"old"]), "who subscribes already stays where it is"


def test_a_new_topic_is_subscribed_to_in_the_commit_that_makes_it(asker: Asker) -> None:
    subscribe(asker, lease_s=7.0, shared=True)
    key = asker.send_put(FIRE, asker.batch(1, 1, b"first"))
    group = asker.take_group()
    assert [name for _, name in group.changes.subscriptions] == [b"reader"]
    asker.commit(group)
    assert asker.replies[key].kind == Kind.ACK, "with the pattern it has a subscriber"
    attached = asker.attach(FIRE)
    assert (attached.cursor, attached.options) == (0, SubscriptionOptions(shared=True, lease_s=7.0))
    assert code_of(asker.put(OTHER, asker.batch(1, 1, b"x"))) == (Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER)


def test_a_pattern_survives_a_crash(asker: Asker) -> None:
    subscribe(asker)
    asker.crash()
    assert subscribe(asker).kind == Kind.ALREADY_SUBSCRIBED
    asker.put_many(FIRE, 1, 1, b"first")
    assert read(asker, FIRE) == [b"first"]


def test_a_topic_that_is_not_on_disk_yet_is_present(asker: Asker) -> None:
    asker.send(Kind.CONFIGURE, bodies.Configure(FIRE, "keep"))
    group = asker.take_group()
    asker.send(Kind.CONFIGURE, bodies.Configure(FLOOD, "keep"))
    asker.send(Kind.SUBSCRIBE, bodies.Subscribe(ALERTS, b"reader"))
    asker.commit(group)
    asker.settle()
    assert (read(asker, FIRE), read(asker, FLOOD)) == ([], [])


def test_topics_of_our_own_are_not_matched_by_chance(asker: Asker) -> None:
    keep(asker, b"$dead/news", b"news")
    subscribe(asker, b"#")
    assert (read(asker, b"news"), read(asker, b"$dead/news")) == ([], None)


@pytest.mark.parametrize(
    ("pattern", "start"), [(b"a/#/b", "new"), (b"#/a", "new"), (ALERTS, "offset"), (ALERTS, "soon")]
)
def test_a_pattern_that_cannot_be_is_invalid(asker: Asker, pattern: bytes, start: str) -> None:
    assert code_of(subscribe(asker, pattern, start)) == (Kind.INVALID, Code.MALFORMED)


def test_patterns_are_bounded() -> None:
    asker = Asker(max_patterns=1)
    subscribe(asker)
    assert code_of(subscribe(asker, b"other/*")) == (Kind.REFUSED, Code.LIMIT)


def test_a_topic_with_as_many_subscriptions_as_it_may_have_is_told(asker: Asker) -> None:
    asker.ask(Kind.CONFIGURE, bodies.Configure(FIRE, "", {"max_subscriptions": 1}))
    asker.subscribe(FIRE, b"somebody")
    refused = subscribe(asker)
    assert code_of(refused) == (Kind.REFUSED, Code.LIMIT)
    assert "alerts/fire" in body_of(refused, bodies.Refused).text
    assert asker.store.patterns() == []


def test_ending_a_pattern_ends_its_subscriptions_and_makes_no_more(asker: Asker) -> None:
    keep(asker, FIRE)
    subscribe(asker)
    keep(asker, FLOOD)
    asker.subscribe(OTHER)
    assert unsubscribe(asker).body == bodies.Done()
    assert (read(asker, FIRE), read(asker, FLOOD), read(asker, OTHER)) == (None, None, [])
    asker.crash()
    assert asker.store.patterns() == []
    assert code_of(asker.put(b"alerts/new", asker.batch(1, 1, b"x")))[0] == Kind.NO_SUBSCRIBER
    assert code_of(unsubscribe(asker)) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)


def test_ending_a_pattern_leaves_what_another_of_the_same_name_wants(asker: Asker) -> None:
    keep(asker, FIRE, b"alerts/fire/big")
    subscribe(asker, b"alerts/#")
    subscribe(asker, b"*/fire")
    unsubscribe(asker, b"alerts/#")
    assert (read(asker, FIRE), read(asker, b"alerts/fire/big")) == ([], None)


def test_a_pattern_over_many_topics_is_done_in_several_steps_and_nothing_is_left_out(asker: Asker) -> None:
    names = [b"many/%04d" % place for place in range(700)]
    keep(asker, *names, b"manx", b"mant/1")
    key = asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"many/*", b"reader"))
    asker.settle()
    assert key not in asker.replies
    again = asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"many/*", b"reader"))
    early = asker.send(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"many/*", b"reader"))
    assert code_of(asker.replies[early]) == (Kind.REFUSED, Code.BUSY)
    asker.put_many(b"many/000", 1, 1, b"made meanwhile, behind")
    run(asker)
    assert asker.replies[key].kind == asker.replies[again].kind == Kind.ACK
    assert read(asker, b"many/000") == [b"made meanwhile, behind"]
    assert len(matched_when_known(asker, b"many/*").topics) == 701
    key = asker.send(Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"many/*", b"reader"))
    late = asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"many/*", b"reader"))
    assert code_of(asker.replies[late]) == (Kind.REFUSED, Code.BUSY)
    run(asker)
    assert asker.replies[key].body == bodies.Done()
    assert not any(summary.subscriptions for summary in asker.store.topics(b"", 1000))


def matched_when_known(asker: Asker, pattern: bytes) -> bodies.Matched:
    key = asker.send(Kind.MATCHES, bodies.Matches(pattern, b"reader", 0, 1000))
    run(asker)
    return body_of(asker.replies[key], bodies.Matched)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("ending", [False, True])
def test_a_crash_in_the_middle_of_many_topics_is_made_up_for_by_asking_again(steps: int, ending: bool) -> None:
    asker = Asker()
    asker.register()
    names = [b"many/%04d" % place for place in range(500)]
    keep(asker, *names)
    kind, body = Kind.SUBSCRIBE, bodies.Subscribe(b"many/*", b"reader")
    if ending:
        asker.send(kind, body)
        run(asker)
        kind, body = Kind.UNSUBSCRIBE, bodies.Unsubscribe(b"many/*", b"reader")  # type: ignore[assignment]
    asker.send(kind, body)
    for _ in range(steps):
        asker.settle()
        asker.tick()
    asker.take_group()
    asker.crash()
    key = asker.send(kind, body)
    run(asker)
    assert asker.replies[key].kind == Kind.ACK
    counts = {len(summary.subscriptions) for summary in asker.store.topics(b"", 1000)}
    assert counts == {0 if ending else 1}
    assert len(asker.store.patterns()) == (0 if ending else 1)


@pytest.mark.parametrize("as_of", [0, 1])
def test_a_failed_commit_in_the_middle_of_many_topics_is_told_and_nothing_is_half_known(as_of: int) -> None:
    asker = Asker()
    asker.register()
    keep(asker, *(b"many/%04d" % place for place in range(500)))
    body = bodies.Subscribe(b"many/*", b"reader", nonce=b"the nonce" if as_of else b"", as_of=as_of)
    key = asker.send(Kind.SUBSCRIBE, body)
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.DISK_FULL)
    asker.tick(2)
    asker.settle()
    assert asker.store.patterns() == []
    assert code_of(asker.put(b"many/new", asker.batch(1, 1, b"x")))[0] == Kind.NO_SUBSCRIBER


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_when_a_topic_is_made_leaves_it_with_its_subscription_or_not_at_all(committed: bool) -> None:
    asker = Asker()
    asker.register()
    subscribe(asker)
    packed = asker.batch(1, 1, b"first")
    asker.send_put(FIRE, packed)
    group = asker.take_group()
    if committed:
        asker.store.commit(group.changes)
    asker.crash()
    assert asker.put(FIRE, packed).kind == Kind.ACK
    assert read(asker, FIRE) == [b"first"]


# Asking which topics there are.


def test_who_asks_is_told_the_topics_at_once_and_then_when_they_change(asker: Asker) -> None:
    keep(asker, FIRE, OTHER)
    subscribe(asker)
    first = matched(asker)
    assert first.topics == (FIRE,)
    assert matched(asker, first.version) == first, "without a wait"
    key = wait(asker, first.version)
    keep(asker, b"elsewhere")
    assert key not in asker.replies
    asker.send_put(FLOOD, asker.batch(1, 1, b"x"))
    assert key not in asker.replies, "not before the commit"
    asker.settle()
    second = body_of(asker.replies[key], bodies.Matched)
    assert second.topics == (FIRE, FLOOD)
    assert second.version != first.version
    key = wait(asker, second.version)
    asker.ask(Kind.DELETE, bodies.Delete(FIRE))
    assert body_of(asker.replies[key], bodies.Matched).topics == (FLOOD,)


def test_a_version_that_is_not_known_is_answered_at_once(asker: Asker) -> None:
    subscribe(asker)
    version = matched(asker).version
    for other in (0, version - 1, version + 1, 1 << 60):
        assert wait(asker, other) in asker.replies


def test_a_version_means_the_same_topics_in_every_life_of_the_broker(asker: Asker) -> None:
    subscribe(asker)
    asker.ask(Kind.CONFIGURE, bodies.Configure(FIRE, "keep"))
    version = matched(asker).version
    asker.crash()
    asker.now_s -= 3600
    key = wait(asker, version)
    assert key not in asker.replies
    asker.ask(Kind.CONFIGURE, bodies.Configure(FLOOD, "keep"))
    assert body_of(asker.replies[key], bodies.Matched).version != version
    asker.crash()
    asker.ask(Kind.DELETE, bodies.Delete(FLOOD))
    asker.ask(Kind.CONFIGURE, bodies.Configure(FLOOD, "keep"))
    other = matched(asker)
    assert other.topics == (FIRE, FLOOD)
    assert other.version not in (version, body_of(asker.replies[key], bodies.Matched).version), "it is another topic"


def test_a_wait_for_news_ends(asker: Asker) -> None:
    subscribe(asker)
    known = matched(asker)
    key = wait(asker, known.version)
    asker.tick(9)
    assert key not in asker.replies
    assert asker.engine.next_deadline_s() <= asker.now_s + 2
    asker.tick(2)
    assert asker.replies[key].body == known


def test_a_consumer_waits_once(asker: Asker) -> None:
    subscribe(asker)
    version = matched(asker).version
    first, other, second = wait(asker, version), wait(asker, version, b"another"), wait(asker, version)
    assert first in asker.replies
    assert not {other, second} & asker.replies.keys()
    keep(asker, FIRE)
    assert {other, second} <= asker.replies.keys()


def test_waits_are_bounded() -> None:
    asker = Asker(max_waiting_gets=1)
    subscribe(asker)
    version = matched(asker).version
    wait(asker, version)
    assert code_of(asker.replies[wait(asker, version, b"another")]) == (Kind.REFUSED, Code.LIMIT)


def test_a_subscription_that_is_ended_or_made_by_hand_is_news(asker: Asker) -> None:
    keep(asker, FIRE)
    subscribe(asker)
    version = matched(asker).version
    key = wait(asker, version)
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(FIRE, b"reader"))
    gone = body_of(asker.replies[key], bodies.Matched)
    assert gone.topics == ()
    key = wait(asker, gone.version)
    asker.subscribe(FIRE)
    assert body_of(asker.replies[key], bodies.Matched).topics == (FIRE,)


def test_who_waits_for_a_pattern_that_ends_is_told(asker: Asker) -> None:
    subscribe(asker)
    key = wait(asker, matched(asker).version)
    unsubscribe(asker)
    assert code_of(asker.replies[key]) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
    refused = asker.ask(Kind.MATCHES, bodies.Matches(ALERTS, b"reader"))
    assert code_of(refused) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)


def test_a_failed_commit_is_no_news_to_keep(asker: Asker) -> None:
    keep(asker, FIRE)
    subscribe(asker)
    known = matched(asker)
    key = wait(asker, known.version)
    asker.send_put(FLOOD, asker.batch(1, 1, b"x"))
    asker.fail(asker.take_group())
    assert body_of(asker.replies[key], bodies.Matched).topics == (FIRE,)
    assert matched(asker).topics == (FIRE,)
