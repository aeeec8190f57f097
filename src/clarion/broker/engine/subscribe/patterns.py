"""Subscriptions to patterns: durable, made on every topic that matches, present and future."""

from __future__ import annotations

from clarion.broker.engine.state import Group, Now, State
from clarion.broker.engine.subscribe.matching import Matching
from clarion.broker.engine.subscribe.scanning import Scanning
from clarion.broker.engine.subscribe.subscribing import BUSY_RETRY_S, Subscribing
from clarion.broker.engine.topics import Topic, Waiter
from clarion.model.names import is_good_pattern, matches, to_text
from clarion.model.options import SubscriptionOptions, pack_options, unpack_options
from clarion.store.port import PatternRow, TopicSummary
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_Key = tuple[bytes, bytes]  # pattern and subscriber
_STARTS = ("new", "earliest", "time")


class Patterns:
    """Keeps patterns, and subscribes whom they belong to.

    What goes through many topics is done in several groups. The pattern itself is written, or removed, with the last
    of them: where that is not reached, who asked was not answered, asks again, and it goes on from there.
    """

    def __init__(self, state: State, subscribing: Subscribing) -> None:
        self._state = state
        self._subscribing = subscribing
        self._scanning = Scanning(state.store)
        self.matching = Matching(state, self._scanning)
        self._coming: dict[_Key, tuple[SubscriptionOptions, list[Waiter]]] = {}
        self._going: dict[_Key, list[Waiter]] = {}
        self._made: dict[_Key, list[bytes]] = {}  # topics subscribed to for those that come
        state.on_new_topic = self.welcome
        state.is_awaited = self.awaits
        subscribing.patterns = self
        self._load()

    def _load(self) -> None:
        rows = self._state.store.patterns()
        self._patterns: dict[_Key, SubscriptionOptions] = {
            (row.pattern, row.name): unpack_options(row.options) for row in rows
        }
        self._numbers: dict[_Key, int] = {(row.pattern, row.name): row.number for row in rows}

    def failed(self, code: Code, text: str) -> None:
        """Nothing that was under way was kept: tell those who wait for it to try again, and read what is there."""
        under_way = [waiters for _, waiters in self._coming.values()] + list(self._going.values())
        for waiter in (waiter for waiters in under_way for waiter in waiters):
            self._state.refuse(waiter, Kind.REFUSED, code, text, retry_after_s=BUSY_RETRY_S)
        self._coming.clear()
        self._going.clear()
        self._made.clear()
        self._scanning.forget_all()
        self._load()
        self.matching.forget_all()

    def committed(self, group: Group, now: Now) -> None:
        """The group is on disk: tell who waits for it which topics came and went."""
        self.matching.committed(group, now)

    def tick(self, now: Now) -> None:
        """Go on with what was begun, and answer who waited long enough."""
        self._scanning.tick(now)
        self.matching.expire(now)

    def next_deadline_s(self) -> float | None:
        """Give when `tick` has something to do."""
        return 0.0 if self._scanning.has_more() else self.matching.next_deadline_s()

    def welcome(self, topic: Topic, now: Now) -> None:
        """Subscribe to a new topic, in the group that makes it, whom its name concerns."""
        wanted = [*self._patterns.items(), *((key, options) for key, (options, _) in self._coming.items())]
        for key, options in wanted:
            pattern, name = key
            if key not in self._going and matches(pattern, topic.name) and name not in topic.subscriptions:
                self._subscribing.add(topic, name, 0, options, now)

    def awaits(self, name: bytes) -> bool:
        """Tell whether a pattern would subscribe to a new topic of this name."""
        keys = [*self._patterns, *self._coming]
        return any(key not in self._going and matches(key[0], name) for key in keys)

    # Requests.

    def subscribe(self, waiter: Waiter, body: bodies.Subscribe, now: Now) -> None:
        """Subscribe to all topics that match, and to those that will."""
        state, key = self._state, (body.topic, body.name)
        if not is_good_pattern(body.topic) or body.start not in _STARTS:
            text = f"in a pattern # stands last, and it is read from {', '.join(_STARTS)}; not {to_text(body.topic)}"
            state.refuse(waiter, Kind.INVALID, Code.MALFORMED, f"{text} from {body.start!r}")
        elif key in self._going:
            text = f"the subscription to {to_text(body.topic)} is just being ended; try again"
            state.refuse(waiter, Kind.REFUSED, Code.BUSY, text, retry_after_s=BUSY_RETRY_S)
        elif key in self._patterns:
            subscribed = bodies.Subscribed(0, self._patterns[key], state.count)
            state.say_when_durable(waiter, Kind.ALREADY_SUBSCRIBED, subscribed)
        elif key in self._coming:
            self._coming[key][1].append(waiter)
        elif len(self._patterns) + len(self._coming) >= state.limits.max_patterns:
            text = f"this broker has {state.limits.max_patterns} subscriptions to patterns, as many as it may"
            state.refuse(waiter, Kind.REFUSED, Code.LIMIT, f"{text} (max_patterns)")
        else:
            self._begin(waiter, body, now)

    def _begin(self, waiter: Waiter, body: bodies.Subscribe, now: Now) -> None:
        key = (body.topic, body.name)
        self._coming[key] = (body.options, [waiter])

        def visit(summary: TopicSummary, now: Now) -> bool:
            return self._subscribe_to(summary.topic.name, body, now)

        new = [row.name for group in self._state.groups() if group for row in group.changes.topics.values()]
        for name in new:  # those that the store does not know yet
            if matches(body.topic, name) and not self._subscribe_to(name, body, now):
                return
        self._scanning.start(body.topic, visit, lambda _: self._finish(key), now)

    def _subscribe_to(self, name: bytes, body: bodies.Subscribe, now: Now) -> bool:
        """Make the subscription to one topic that matches; False when that cannot be, and the pattern is given up."""
        state = self._state
        topic = state.find_topic(name, now.monotonic_s)
        if topic is None or topic.deleted or body.name in topic.subscriptions:
            return True
        refusal = self._subscribing.lacks_room(topic)
        if refusal is not None:
            self._give_up((body.topic, body.name), *refusal, now)
            return False
        cursor = self._subscribing.start_of(self._coming[body.topic, body.name][1][0], topic, body.start, body.at)
        assert cursor is not None
        self._subscribing.add(topic, body.name, cursor, body.options, now)
        self._made.setdefault((body.topic, body.name), []).append(name)
        return True

    def _give_up(self, key: _Key, code: Code, text: str, now: Now) -> None:
        """Refuse a pattern, and end the subscriptions that were made for it so far."""
        for waiter in self._coming.pop(key)[1]:
            self._state.refuse(waiter, Kind.REFUSED, code, text)
        for name in self._made.pop(key, ()):
            self._end_at(name, key[1], now)

    def _finish(self, key: _Key) -> None:
        state = self._state
        self._made.pop(key, None)
        options, waiters = self._coming.pop(key)
        self._patterns[key] = options
        number = self._numbers[key] = state.draw()
        state.open.changes.patterns[key] = PatternRow(*key, pack_options(options), number)
        state.open.changes.gone_patterns.discard(key)
        state.counters["patterns_subscribed"] += 1
        for waiter in waiters:
            state.say_when_durable(waiter, Kind.ACK, bodies.Subscribed(0, options, state.count))

    def unsubscribe(self, waiter: Waiter, body: bodies.Unsubscribe, now: Now) -> None:
        """End the subscriptions to all topics that match; those stay that another pattern of the same name wants."""
        state, key = self._state, (body.topic, body.name)
        if key in self._coming:
            text = f"the subscription to {to_text(body.topic)} is just being made; try again"
            state.refuse(waiter, Kind.REFUSED, Code.BUSY, text, retry_after_s=BUSY_RETRY_S)
        elif key not in self._patterns:
            self._refuse_none(waiter, key)
        elif body.as_of and self._numbers[key] > body.as_of:
            state.refuse_stale(waiter, f"{to_text(body.name)} subscribed to the pattern {to_text(body.topic)} anew")
        elif key in self._going:
            self._going[key].append(waiter)
        else:
            self._going[key] = [waiter]

            def visit(summary: TopicSummary, now: Now) -> bool:
                self._end_at(summary.topic.name, body.name, now)
                return True

            new = [row.name for group in state.groups() if group for row in group.changes.topics.values()]
            for name in new:
                if matches(body.topic, name):
                    self._end_at(name, body.name, now)
            self._scanning.start(body.topic, visit, lambda _: self._end(key), now)

    def _end_at(self, name: bytes, subscriber: bytes, now: Now) -> None:
        topic = self._state.find_topic(name, now.monotonic_s)
        subscription = topic.subscriptions.get(subscriber) if topic else None
        staying = [key for key in (*self._patterns, *self._coming) if key not in self._going]
        wanted = any(each == subscriber and matches(pattern, name) for pattern, each in staying)
        if topic and subscription and not wanted:
            self._subscribing.end(topic, subscription, "the subscription to the pattern was ended")

    def _end(self, key: _Key) -> None:
        state = self._state
        del self._patterns[key], self._numbers[key]
        state.open.changes.patterns.pop(key, None)
        state.open.changes.gone_patterns.add(key)
        self.matching.end(*key)
        for waiter in self._going.pop(key):
            state.say_when_durable(waiter, Kind.ACK, bodies.Done())

    def matches(self, waiter: Waiter, body: bodies.Matches, now: Now) -> None:
        """Tell which topics a pattern subscribes to, or wait for news of them."""
        key = (body.pattern, body.name)
        if key in self._patterns:
            self.matching.ask(waiter, body, now)
        else:
            self._refuse_none(waiter, key)

    def _refuse_none(self, waiter: Waiter, key: _Key) -> None:
        text = f"{to_text(key[1])} does not subscribe to the pattern {to_text(key[0])}"
        self._state.refuse(waiter, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
