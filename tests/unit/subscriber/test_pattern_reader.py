"""Reading what a pattern matches: every topic in its turn, new ones too, within one buffer's bounds."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import PATTERN, Watch, payloads_of

from clarion.model.errors import LeaseLost, MessagesGone, NotSubscribed, Unreachable
from clarion.subscriber import subscriber_core as core_module
from clarion.subscriber.consumer import Consumer
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_core import Close, Flush, Get, Next, Unsubscribe
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


# Many topics of a pattern, most of them quiet: who is asked when, and that nothing is missed for it.


def test_topics_that_wait_for_messages_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    walk = watch.begin(*(b"alerts/%d" % number for number in range(50)), wait_s=60.0)
    walk.go_on()
    fetches = watch.fetches()
    fetches[b"alerts/7"].deliver(0, b"x")
    walk.end()
    looked_at: list[bytes] = []
    want = Consumer.want

    def watched(reading: Consumer, wait_s: float, messages: int, now_s: float) -> None:
        looked_at.append(reading.topic)
        want(reading, wait_s, messages, now_s)

    monkeypatch.setattr(Consumer, "want", watched)
    walk = watch.get(wait_s=60.0)
    assert (looked_at, list(watch.fetches())) == ([b"alerts/7"], [b"alerts/7"])
    fetches[b"alerts/8"].deliver(0, b"y")
    assert payloads_of(walk.end()) == [b"y"]


def test_who_cannot_wait_asks_those_again_that_wait_for_messages() -> None:
    watch = Watch()
    waiting = watch.begin(b"alerts/a", b"alerts/b", wait_s=60.0)
    long = watch.fetches()
    walk = watch.get()
    watch.match(b"alerts/a", b"alerts/b")
    short = watch.fetches()
    assert list(short) == [b"alerts/a", b"alerts/b"]
    for asked in short.values():
        asked.nothing()
    assert walk.end() == []
    long[b"alerts/b"].deliver(0, b"x")
    assert payloads_of(waiting.end()) == [b"x"]


def test_a_topic_that_said_it_is_empty_is_not_asked_again_while_others_are_waited_for() -> None:
    watch = Watch()
    walk = watch.begin(*(b"alerts/%d" % number for number in range(9)))
    for asked in watch.fetches().values():
        assert not walk.go_on()
        assert watch.fetches() == {}
        asked.nothing()
    assert walk.end() == []
    watch.get(wait_s=60.0)
    assert len(watch.fetches()) == 9, "the next call asks them all"


def test_a_topic_that_had_no_room_for_more_is_asked_again_once_something_is_acked() -> None:
    watch = Watch(shared=True)
    settings = FetchSettings(100_000, max_unacked=1)
    watch.make_core(settings, auto_ack=False)
    walk = watch.begin(b"alerts/a", wait_s=60.0)
    watch.fetches()[b"alerts/a"].lend(0)
    (part,) = walk.end()
    walk = watch.get(wait_s=60.0)
    assert watch.fetches() == {}, "it holds as much as it may"
    part.ack()
    watch.pick(Kind.ACK).done()
    walk.go_on()
    watch.fetches()[b"alerts/a"].lend(1)
    assert payloads_of(walk.end()) == [b"1"]


def test_who_takes_message_by_message_hears_of_a_topic_in_trouble_before_the_others_are_empty() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b", most=1)
    fetches = watch.fetches()
    fetches[b"alerts/a"].deliver(0, b"a0", b"a1", b"a2")
    walk.end()
    fetches[b"alerts/b"].refuse(Code.GONE, gone=(0, 5))
    assert watch.reader.next_now(PATTERN) is None
    with pytest.raises(MessagesGone):
        watch.run(Next(PATTERN, 0.0, holder=watch))
    assert payloads_of(watch.get(1).end()) == [b"a1"]


def test_a_topic_of_two_patterns_is_attached_anew_for_the_one_that_is_left() -> None:
    watch = Watch()
    other = watch.begin(b"alerts/a", wait_s=60.0)
    wide = watch.run(Get(b"alerts/#", 1, 60.0, holder=watch))
    watch.match(b"alerts/a", pattern=b"alerts/#")
    wide.go_on()
    other.go_on()
    watch.fetches()
    watch.run(Unsubscribe(b"alerts/#", b"reader", 10.0))
    other.go_on()
    watch.attach_all()
    watch.fetches()[b"alerts/a"].deliver(0, b"x")
    assert payloads_of(other.end()) == [b"x"]


def test_at_most_once_what_could_not_be_acked_is_kept_for_the_next_call() -> None:
    watch = Watch()
    watch.make_core(FetchSettings(100_000, at_most_once=True), auto_ack=True)
    walk = watch.begin(b"alerts/a")
    watch.fetches()[b"alerts/a"].deliver(0, b"x")
    walk.go_on()
    ack = watch.pick(Kind.ACK)
    watch.now_s += 10.0
    with pytest.raises(Unreachable):
        walk.end()
    walk = watch.get()
    assert watch.fetches() == {}, "it was not asked for again"
    ack.done()
    walk.go_on()
    watch.pick(Kind.ACK).done()
    assert payloads_of(walk.end()) == [b"x"]


def test_a_pattern_without_topics_finds_one_that_came_since_the_last_look() -> None:
    watch = Watch()
    walk = watch.get()
    watch.match()
    assert walk.end() == []
    walk = watch.get()
    assert not walk.go_on(), "what was known is not enough"
    watch.match(b"alerts/new")
    walk.go_on()
    watch.attach_all()
    watch.fetches()[b"alerts/new"].deliver(0, b"x")
    assert payloads_of(walk.end()) == [b"x"]


def test_a_topic_that_joins_during_a_look_is_looked_at_too() -> None:
    watch = Watch()
    watch.begin(b"alerts/a")
    watch.fetches()[b"alerts/a"].nothing()
    walk = watch.get()
    watch.fetches()[b"alerts/a"].nothing()
    watch.match(b"alerts/a", b"alerts/new")
    assert not walk.go_on()
    watch.attach_all()
    watch.fetches()[b"alerts/new"].deliver(0, b"x")
    assert payloads_of(walk.end()) == [b"x"]


def test_who_cannot_wait_is_not_held_up_by_who_asked_first_and_can() -> None:
    watch = Watch()
    patient = watch.get(wait_s=60.0)
    hasty = watch.get()
    watch.match(b"alerts/a")
    patient.go_on()
    hasty.go_on()
    watch.attach_all()
    patient.go_on()
    assert {asked.body.wait_ms > 0 for asked in watch.fetches().values()} == {True}
    hasty.go_on()
    watch.match(b"alerts/a")
    patient.go_on()
    hasty.go_on()
    asked = watch.fetches()[b"alerts/a"]
    assert asked.body.wait_ms == 0
    asked.nothing()
    assert hasty.end() == []
    assert not patient.go_on()


def test_who_waited_lets_what_waited_as_long_come_before_it_asks_again() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b", wait_s=1.0)
    walk.go_on()
    fetches = watch.fetches()
    watch.now_s += 1.0
    fetches[b"alerts/a"].nothing()
    assert not walk.go_on()
    assert watch.fetches() == {}
    fetches[b"alerts/b"].nothing()
    watch.match(b"alerts/a", b"alerts/b")
    assert walk.end() == []


def test_nothing_is_kept_of_topics_that_went() -> None:
    watch = Watch()
    watch.begin(b"alerts/a", b"alerts/b", wait_s=60.0).go_on()
    watch.match(b"alerts/b")
    assert list(watch.reader.stats()["by_topic"]) == ["alerts/b"]


def test_a_pattern_that_ended_is_not_told_of_topics_that_another_reads() -> None:
    watch = Watch()
    other = watch.begin(b"alerts/a", wait_s=60.0)
    for _ in range(3):
        wide = watch.run(Get(b"alerts/#", 1, 60.0, holder=watch))
        watch.match(b"alerts/a", pattern=b"alerts/#")
        wide.go_on()
        watch.run(Unsubscribe(b"alerts/#", b"reader", 10.0))
        other.go_on()
        watch.attach_all()
    assert len(watch.core.of(b"alerts/a").watchers) == 1


def test_a_topic_that_never_runs_dry_does_not_keep_others_from_being_asked() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b", most=1, wait_s=1.0)
    walk.go_on()
    fetches = watch.fetches()
    fetches[b"alerts/a"].deliver(0, *(b"a%d" % place for place in range(9)))
    walk.end()
    fetches[b"alerts/b"].nothing()
    assert payloads_of(watch.get(1).end()) == [b"a1"]
    watch.fetches()[b"alerts/b"].deliver(0, b"b0")
    assert watch.reader.next_now(PATTERN) is not None
    assert payloads_of(watch.get(1).end()) == [b"b0"]


def test_who_waits_for_a_pattern_that_is_ended_hears_of_it() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a", wait_s=60.0)
    watch.run(Unsubscribe(PATTERN, b"reader", 10.0))
    with pytest.raises(NotSubscribed, match="reader no longer reads alerts/"):
        walk.go_on()


def test_who_cannot_wait_asks_all_at_once_whoever_was_woken_first() -> None:
    watch = Watch()
    topics = [b"alerts/%d" % number for number in range(9)]
    patient = watch.begin(*topics, wait_s=60.0)
    patient.go_on()
    watch.fetches()
    first = watch.get()
    watch.match(*topics)
    first.go_on()
    older = watch.fetches()
    older.pop(b"alerts/0").deliver(0, b"x")
    first.end()
    second = watch.get()
    assert set(watch.fetches()) <= {b"alerts/0"}, "the others are asked already, but not since this call"
    for asked in older.values():
        asked.nothing()
    patient.go_on()
    watch.match(*topics)
    second.go_on()
    assert set(watch.fetches()) >= set(older)


def test_closing_acks_every_topic_though_one_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "_SETTLED_AT_ONCE", 1)
    watch = Watch()
    walk = watch.begin(b"alerts/a", b"alerts/b", b"alerts/c")
    for asked in watch.fetches().values():
        asked.deliver(0, b"x")
    walk.end()
    leaving = watch.run(Close(True))
    watch.fetches()
    assert [asked.body.topic for asked in watch.asked if asked.kind == Kind.ACK] == [b"alerts/a"]
    watch.now_s += 2.0
    leaving.go_on()
    acks = [asked for asked in watch.asked if asked.kind == Kind.ACK]
    assert [asked.body.topic for asked in acks] == [b"alerts/a", b"alerts/b", b"alerts/c"]
    for asked in acks:
        asked.done()
    leaving.end()


def test_a_take_that_the_broker_put_off_does_not_count_as_empty() -> None:
    watch = Watch(shared=True)
    patient = watch.begin(b"alerts/a", wait_s=60.0)
    take = watch.fetches()[b"alerts/a"]
    hasty = watch.get()
    watch.match(b"alerts/a")
    hasty.go_on()
    beat = watch.pick(Kind.ACK)
    take.refuse(Code.BUSY, retry_after_s=0.1)
    beat.done()
    assert not hasty.go_on()
    watch.now_s += 0.1
    watch.reader.on_time(watch.now_s)
    watch.fetches()[b"alerts/a"].lend(0)
    assert payloads_of(hasty.end()) == [b"0"]
    assert not patient.go_on()
