"""Reading what a pattern matches: every topic in its turn, new ones too, within one buffer's bounds."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import Asked, Walk, World, payloads_of

from clarion.model.errors import LeaseLost, MessagesGone, NotSubscribed
from clarion.model.options import SubscriptionOptions
from clarion.subscriber.fetching import FetchSettings
from clarion.subscriber.messages import MessageBatch
from clarion.subscriber.reader import Reader
from clarion.subscriber.reading import Reading
from clarion.wire import bodies
from clarion.wire.frames import Kind
from clarion.wire.refusals import Code

PATTERN = b"alerts/*"


class Watch(World):
    """A subscriber to a pattern."""

    def __init__(self, *, shared: bool = False, fetch_bytes: int = 100_000) -> None:
        super().__init__()
        self.reader = Reader(b"reader", self.ports, FetchSettings(fetch_bytes), auto_ack=True)
        self.options = SubscriptionOptions(shared=shared)
        self.tokens: dict[bytes, int] = {}

    def get(self, most: int = 10, wait_s: float = 0.0) -> Walk[list[MessageBatch]]:
        return self.run(self.reader.getting(PATTERN, most, wait_s))

    def match(self, *topics: bytes, version: int = 1) -> None:
        self.pick(Kind.MATCHES).answer(Kind.ACK, bodies.Matched(version, topics))

    def attach_all(self) -> None:
        attaching = [asked for asked in self.asked if asked.kind == Kind.ATTACH]
        for asked in attaching:
            self.asked.remove(asked)
            self.tokens[asked.body.topic] = len(self.tokens) + 1
            asked.answer(Kind.ACK, bodies.Attached(len(self.tokens), 0, (), self.options))

    def fetches(self) -> dict[bytes, Asked]:
        """Take the gets and takes that are under way, by topic."""
        found = {asked.body.topic: asked for asked in self.asked if asked.kind in (Kind.GET, Kind.TAKE)}
        self.asked = [asked for asked in self.asked if asked.kind not in (Kind.GET, Kind.TAKE)]
        return found

    def begin(self, *topics: bytes, most: int = 10, wait_s: float = 0.0) -> Walk[list[MessageBatch]]:
        """Begin to get, up to the point where every topic was asked."""
        walk = self.get(most, wait_s)
        self.match(*topics)
        walk.go_on()
        self.attach_all()
        return walk


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
    watch.run(watch.reader.flushing(None)).end()


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
    assert watch.reader.pump(watch.now_s) == watch.now_s + 0.2
    watch.now_s += 0.2
    watch.reader.pump(watch.now_s)
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
    watch.run(watch.reader.getting(b"alerts/a", 1, 0.0))
    watch.run(watch.reader.getting(b"alerts/#", 1, 0.0))
    watch.pick(Kind.MATCHES).answer(Kind.ACK, bodies.Matched(1, (b"alerts/a",)))
    assert [asked for asked in watch.asked if asked.kind == Kind.ATTACH] == []


def test_unsubscribing_a_pattern_ends_its_topics() -> None:
    watch = Watch()
    walk = watch.begin(b"alerts/a")
    watch.fetches()[b"alerts/a"].deliver(0, b"x")
    (part,) = walk.end()
    walk_away = watch.run(watch.reader.unsubscribing(PATTERN))
    asked = watch.pick(Kind.UNSUBSCRIBE)
    assert asked.body.topic == PATTERN
    asked.done()
    assert walk_away.end()
    with pytest.raises(NotSubscribed):
        part.ack()
    assert watch.reader.stats()["topics"] == 0


def test_topics_that_wait_for_messages_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    walk = watch.begin(*(b"alerts/%d" % number for number in range(50)), wait_s=60.0)
    walk.go_on()
    fetches = watch.fetches()
    fetches[b"alerts/7"].deliver(0, b"x")
    walk.end()
    looked_at: list[bytes] = []
    want = Reading.want

    def watched(reading: Reading, wait_s: float, messages: int) -> None:
        looked_at.append(reading.topic)
        want(reading, wait_s, messages)

    monkeypatch.setattr(Reading, "want", watched)
    walk = watch.get(wait_s=60.0)
    assert (looked_at, list(watch.fetches())) == ([b"alerts/7"], [b"alerts/7"])
    fetches[b"alerts/8"].deliver(0, b"y")
    assert payloads_of(walk.end()) == [b"y"]


def test_who_cannot_wait_asks_those_again_that_wait_for_messages() -> None:
    watch = Watch()
    waiting = watch.begin(b"alerts/a", b"alerts/b", wait_s=60.0)
    long = watch.fetches()
    walk = watch.get()
    short = watch.fetches()
    assert list(short) == [b"alerts/a", b"alerts/b"]
    for asked in short.values():
        asked.nothing()
    assert walk.end() == []
    long[b"alerts/b"].deliver(0, b"x")
    assert payloads_of(waiting.end()) == [b"x"]


def test_a_topic_that_had_no_room_for_more_is_asked_again_once_something_is_acked() -> None:
    watch = Watch(shared=True)
    settings = FetchSettings(100_000, max_unacked=1)
    watch.reader = Reader(b"reader", watch.ports, settings, auto_ack=False)
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
        watch.run(watch.reader.streaming(PATTERN, 0.0))
    assert payloads_of(watch.get(1).end()) == [b"a1"]


def test_a_topic_of_two_patterns_is_attached_anew_for_the_one_that_is_left() -> None:
    watch = Watch()
    other = watch.begin(b"alerts/a", wait_s=60.0)
    watch.pick(Kind.MATCHES)
    wide = watch.run(watch.reader.getting(b"alerts/#", 1, 60.0))
    watch.match(b"alerts/a")
    wide.go_on()
    watch.fetches()
    watch.run(watch.reader.unsubscribing(b"alerts/#"))
    other.go_on()
    watch.attach_all()
    watch.fetches()[b"alerts/a"].deliver(0, b"x")
    assert payloads_of(other.end()) == [b"x"]
