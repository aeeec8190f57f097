"""Reading what a pattern matches: every topic in its turn, new ones too, within one buffer's bounds."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import payloads_of
from tests.unit.subscriber.watching import PATTERN, Watch

from clarion.model.errors import LeaseLost, MessagesGone, NotSubscribed
from clarion.subscriber.subscriber_core import Flush, Get, Unsubscribe
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_all_topics_that_match_are_read_and_messages_know_theirs() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b")
    for topic, asked in watch.fetches().items():
        asked.deliver(0, topic)
    assert [(part.topic, part.payloads()) for part in walk.end()] == [
        (b"alerts/a", [b"alerts/a"]),
        (b"alerts/b", [b"alerts/b"]),
    ]


def test_what_was_handed_out_is_acked_on_its_own_topic() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b")
    fetches = watch.fetches()
    fetches[b"alerts/a"].deliver(0, b"a0")
    fetches[b"alerts/b"].deliver(0, b"b0", b"b1")
    walk.end()
    watch.get()
    acks = {asked.body.topic: asked.body.acked for asked in watch.asked if asked.kind == Kind.ACK}
    assert acks == {b"alerts/a": ((0, 1),), b"alerts/b": ((0, 2),)}


def test_every_topic_has_its_turn() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b", b"alerts/c", most=4)
    fetches = watch.fetches()
    fetches[b"alerts/a"].deliver(0, *(b"a%d" % place for place in range(9)))
    fetches[b"alerts/c"].deliver(0, b"c0")
    assert payloads_of(walk.end()) == [b"a0", b"a1", b"c0", b"a2"]
    fetches[b"alerts/b"].deliver(0, b"b0", b"b1")
    found = [watch.reader.next_now(PATTERN) for _ in range(5)]
    assert [message and message.payload for message in found] == [b"a3", b"b0", b"a4", b"b1", b"a5"]


def test_nothing_came_only_when_no_topic_had_anything() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b")
    first, second = watch.fetches().values()
    first.nothing()
    assert not walk.go_on()
    second.nothing()
    assert walk.end() == []


def test_a_pattern_without_topics_is_empty() -> None:
    watch = Watch()
    walk = watch.get()
    assert not walk.go_on(), "it is not known yet"
    watch.match()
    assert walk.end() == []


def test_a_topic_that_comes_later_joins_by_itself() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", wait_s=60.0)
    watch.fetches()
    walk.go_on()
    news = watch.pick(Kind.MATCHES)
    assert (news.body.version, news.body.wait_ms > 0) == (1, True)
    news.answer(Kind.ACK, bodies.Matched(2, (b"alerts/a", b"alerts/new")))
    walk.go_on()
    watch.attach_all()
    assert list(watch.tokens) == [b"alerts/a", b"alerts/new"]
    watch.fetches()[b"alerts/new"].deliver(0, b"hello")
    assert payloads_of(walk.end()) == [b"hello"]


def test_a_topic_that_goes_is_left_in_silence() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b")
    fetches = watch.fetches()
    fetches[b"alerts/a"].refuse(Code.NOT_SUBSCRIBED, kind=Kind.NOT_SUBSCRIBED)
    fetches[b"alerts/b"].nothing()
    assert walk.end() == []
    walk = watch.get()
    assert list(watch.fetches()) == [b"alerts/b"]
    watch.run(Flush(None)).end()


def test_a_pattern_that_nobody_subscribed_to_is_told() -> None:
    watch = Watch()
    walk = watch.get()
    watch.one(Kind.MATCHES).refuse(Code.NOT_SUBSCRIBED, kind=Kind.NOT_SUBSCRIBED)
    with pytest.raises(NotSubscribed):
        walk.end()


def test_a_busy_broker_is_asked_again_which_topics_there_are() -> None:
    watch = Watch()
    walk = watch.get()
    watch.one(Kind.MATCHES).refuse(Code.BUSY, retry_after_s=0.2)
    assert not walk.go_on()
    assert watch.asked == []
    pattern = watch.core.source(PATTERN)
    assert pattern.on_time(watch.now_s) == watch.now_s + 0.2
    watch.now_s += 0.2
    pattern.on_time(watch.now_s)
    assert not walk.go_on()
    watch.match()
    assert walk.end() == []


def test_errors_of_one_topic_are_told_and_the_others_go_on() -> None:
    watch = Watch(shared=True)
    walk = watch.begin(b"alerts/a", b"alerts/b")
    fetches = watch.fetches()
    fetches[b"alerts/a"].lend(0)
    walk.end()
    walk = watch.get()
    watch.pick(Kind.ACK).refuse(Code.LEASE_LOST)
    with pytest.raises(LeaseLost, match="offsets 0 of alerts/a"):
        walk.end()
    fetches[b"alerts/b"].refuse(Code.GONE, gone=(0, 5))
    with pytest.raises(MessagesGone) as told:
        watch.get()
    assert (told.value.topic, told.value.start, told.value.stop) == (b"alerts/b", 0, 5)
    walk = watch.get()
    watch.attach_all()
    watch.fetches()[b"alerts/b"].lend(7)
    assert payloads_of(walk.end()) == [b"7"]


def test_many_topics_share_what_may_be_buffered() -> None:
    watch = Watch(fetch_bytes=100_000)
    watch.begin(b"alerts/a", b"alerts/b")
    assert {asked.body.max_bytes for asked in watch.fetches().values()} == {50_000}
    crowd = Watch(fetch_bytes=100_000)
    crowd.begin(*(b"alerts/%d" % number for number in range(200)))
    assert {asked.body.max_bytes for asked in crowd.fetches().values()} == {16 * 1024}


def test_a_topic_is_attached_once_whether_read_alone_or_by_patterns() -> None:
    watch = Watch()
    watch.begin(b"alerts/a")
    watch.take_asked()
    watch.run(Get(b"alerts/a", 1, 0.0, holder=watch))
    watch.run(Get(b"alerts/#", 1, 0.0, holder=watch))
    watch.pick(Kind.MATCHES).answer(Kind.ACK, bodies.Matched(1, (b"alerts/a",)))
    assert [asked for asked in watch.asked if asked.kind == Kind.ATTACH] == []


def test_unsubscribing_a_pattern_ends_its_topics() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a")
    watch.fetches()[b"alerts/a"].deliver(0, b"x")
    (part,) = walk.end()
    walk_away = watch.run(Unsubscribe(PATTERN, b"reader", 10.0))
    asked = watch.pick(Kind.UNSUBSCRIBE)
    assert asked.body.topic == PATTERN
    asked.done()
    assert walk_away.end()
    with pytest.raises(NotSubscribed):
        part.ack()
    assert watch.reader.stats()["topics"] == 0
