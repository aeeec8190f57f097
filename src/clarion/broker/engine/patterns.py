"""Subscriptions to patterns: durable, made on every topic that matches, present and future."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from clarion.broker.engine.answers import Refused, ReplyTo, Waiting
from clarion.broker.engine.clock import Now
from clarion.broker.engine.fetches import Fetches
from clarion.broker.engine.state import PatternKey, PatternTable, State, SubscriptionChanged
from clarion.broker.engine.subscriptions import BUSY_RETRY_S, Subscriptions
from clarion.broker.engine.topics import Topic
from clarion.model.names import ONE, REST, SEPARATOR, is_good_pattern, is_pattern, matches, to_text
from clarion.model.options import pack_options
from clarion.store.port import PatternRow, Store, TopicSummary
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_TOPICS_AT_ONCE = 200


class Scan(NamedTuple):
    """A way through the stored topics that match: each is visited, then the end is told.

    A visit says whether to go on.
    """

    pattern: bytes
    visit: Callable[[TopicSummary, Now], bool]
    finish: Callable[[], None]
    after: bytes | None = None  # the last name looked at


class Scans:
    """Does scans in turn: one page of the store at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.unfinished: deque[Scan] = deque()

    def go_on(self, scan: Scan, now: Now) -> None:
        """Go as far as one page; where there is no more, that is all."""
        prefix = _literal_prefix(scan.pattern)
        page = self._store.topics(_just_before(prefix) if scan.after is None else scan.after, _TOPICS_AT_ONCE)
        for summary in page:
            if matches(scan.pattern, summary.topic.name) and not scan.visit(summary, now):
                return
        last = page[-1].topic.name if page else b""
        if len(page) < _TOPICS_AT_ONCE or (last > prefix and not last.startswith(prefix)):
            scan.finish()
        else:
            self.unfinished.append(scan._replace(after=last))


def _literal_prefix(pattern: bytes) -> bytes:
    """Return what every name begins with that a pattern matches."""
    parts = pattern.split(SEPARATOR)
    literal = next(place for place, part in enumerate(parts) if part in (ONE, REST))
    # `a/#` matches `a`, too, so the last separator is not sure to be there.
    return SEPARATOR.join(parts[:literal])


def _just_before(prefix: bytes) -> bytes:
    """Return a name that sorts before all that begin with the prefix, and as near to them as is easy."""
    return prefix[:-1] + bytes([prefix[-1] - 1]) if prefix and prefix[-1] else b""


_IDLE_S = 300.0  # after which what nobody asks for is forgotten
_BUSY_RETRY_S = 0.2
_ANSWERED_KEPT = 1024  # deadlines of questions already answered that may linger


class _Matched:
    """The topics of one pattern, as far as they are on disk."""

    def __init__(self, pattern: bytes, name: bytes) -> None:
        self.pattern = pattern
        self.name = name
        self._hash = 0
        self.topics: dict[int, bytes] = {}
        self.is_known = False  # once all topics were looked at
        self.waiting: dict[object, Waiting] = {}  # by peer
        self.asked_s = 0.0

    def add(self, number: int, topic: bytes) -> None:
        """Take in a topic."""
        if number not in self.topics:
            self._hash ^= _hash(number)
        self.topics[number] = topic

    def discard(self, number: int) -> bool:
        """Leave a topic out; return whether it was there."""
        if self.topics.pop(number, None) is None:
            return False
        self._hash ^= _hash(number)
        return True

    def answers(self, body: bodies.Matches) -> bool:
        """Return whether a question need not wait."""
        return self.is_known and (body.version != self.version or body.wait_ms <= 0)

    @property
    def version(self) -> int:
        """What tells these topics from others. It follows from their numbers alone, so it is the same after a restart;
        it is never 0."""
        return self._hash | 1


def _hash(number: int) -> int:
    return xxh3_64_intdigest(number.to_bytes(8, "little")) >> 1


class Matching:
    """Answers who asks for the topics of a pattern, at once or when they change."""

    def __init__(self, state: State, scans: Scans) -> None:
        self._state = state
        self._scans = scans
        self._matched: dict[PatternKey, _Matched] = {}
        self._by_name: dict[bytes, list[_Matched]] = {}
        self._deadlines: list[tuple[float, int, _Matched, Waiting]] = []
        self._changed: set[_Matched] = set()
        self._parked = self._waiting = 0
        self._idle_at_s = 0.0

    def forget_all(self) -> None:
        """Answer who waits with what is known, and look again when somebody asks."""
        for matched in self._matched.values():
            self._tell(matched)
        self._matched.clear()
        self._by_name.clear()
        self._deadlines.clear()
        self._changed.clear()

    def check(self, body: bodies.Matches, now: Now) -> tuple[bodies.Matches, _Matched]:
        """Return what is known of a pattern, which is looked for in the store where it is not; refuse who would have to
        wait where as many wait as may."""
        key = (body.pattern, body.name)
        matched = self._matched.get(key) or self._begin(key, now)
        if not matched.answers(body) and self._waiting >= self._state.limits.max_waiting_gets:
            raise Refused(Code.LIMIT, "too many questions wait at this broker (max_waiting_gets)")
        return body, matched

    def ask(self, reply_to: ReplyTo, plan: tuple[bodies.Matches, _Matched], now: Now) -> None:
        """Answer at once who knows another version, and others when there is one, or their wait is over."""
        body, matched = plan
        matched.asked_s = now.monotonic_s
        older = matched.waiting.get(reply_to.peer)
        if older is not None:  # one consumer waits once: its older question is answered now
            self._answer(matched, older)
        if matched.answers(body):
            self._reply(matched, reply_to)
        else:
            wait_s = min(max(0, body.wait_ms) / 1000, self._state.limits.max_get_wait_s)
            self._park(matched, Waiting(reply_to, body, now.monotonic_s + wait_s))

    def end(self, pattern: bytes, name: bytes) -> None:
        """Tell who waits that there is no such subscription any more."""
        matched = self._matched.get((pattern, name))
        if matched is None:
            return
        self._forget(matched)
        text = f"the subscription to the pattern {to_text(pattern)} was ended"
        for waiting in matched.waiting.values():
            self._state.refuse(waiting.reply_to, Refused(Code.NOT_SUBSCRIBED, text))
        self._waiting -= len(matched.waiting)
        matched.waiting.clear()

    def on_subscription_changed(self, effect: SubscriptionChanged, now: Now) -> None:
        """Take in a topic that a subscription by pattern may be on, or leave it out."""
        number, topic = effect.topic.number, effect.topic.name
        for matched in self._by_name.get(effect.name, ()):
            if not effect.is_there:
                changed = matched.discard(number)
            elif changed := number not in matched.topics and matches(matched.pattern, topic):
                matched.add(number, topic)
            if changed:
                self._changed.add(matched)

    def tell_changed(self) -> None:
        """Tell those who wait which topics came and went with a commit."""
        if self._changed:
            changed, self._changed = self._changed, set()
            for matched in changed:
                if matched.is_known:
                    self._tell(matched)

    def expire(self, now: Now) -> None:
        """Answer those whose wait is over, and forget what nobody asks for any more."""
        while self._deadlines and self._deadlines[0][0] <= now.monotonic_s:
            _, _, matched, waiting = heapq.heappop(self._deadlines)
            if matched.waiting.get(waiting.reply_to.peer) is waiting and matched.is_known:
                self._answer(matched, waiting)
        if now.monotonic_s >= self._idle_at_s:
            self._idle_at_s = now.monotonic_s + _IDLE_S
            for matched in list(self._matched.values()):
                if matched.is_known and not matched.waiting and now.monotonic_s - matched.asked_s > _IDLE_S:
                    self._forget(matched)

    def next_deadline_s(self) -> float | None:
        """Return when `expire` has something to do."""
        return self._deadlines[0][0] if self._deadlines else None

    def _begin(self, key: PatternKey, now: Now) -> _Matched:
        matched = self._matched[key] = _Matched(*key)
        self._by_name.setdefault(key[1], []).append(matched)

        def visit(summary: TopicSummary, _: Now) -> bool:
            if any(row.name == matched.name for row in summary.subscriptions):
                matched.add(summary.topic.number, summary.topic.name)
            return self._matched.get(key) is matched

        def finish() -> None:
            matched.is_known = True
            self._tell(matched)

        self._scans.go_on(Scan(key[0], visit, finish), now)
        return matched

    def _forget(self, matched: _Matched) -> None:
        del self._matched[matched.pattern, matched.name]
        self._by_name[matched.name].remove(matched)
        if not self._by_name[matched.name]:
            del self._by_name[matched.name]

    def _park(self, matched: _Matched, waiting: Waiting) -> None:
        self._waiting += waiting.reply_to.peer not in matched.waiting
        matched.waiting[waiting.reply_to.peer] = waiting
        self._parked += 1
        heapq.heappush(self._deadlines, (waiting.deadline_s, self._parked, matched, waiting))
        if len(self._deadlines) > 2 * self._waiting + _ANSWERED_KEPT:
            self._deadlines = [entry for entry in self._deadlines if entry[3] in entry[2].waiting.values()]
            heapq.heapify(self._deadlines)

    def _tell(self, matched: _Matched) -> None:
        """Answer everybody who waits."""
        for waiting in list(matched.waiting.values()):
            self._answer(matched, waiting)

    def _answer(self, matched: _Matched, waiting: Waiting) -> None:
        del matched.waiting[waiting.reply_to.peer]
        self._waiting -= 1
        if matched.is_known:
            self._reply(matched, waiting.reply_to)
        else:
            text = "the topics are just being looked through; try again"
            self._state.refuse(waiting.reply_to, Refused(Code.BUSY, text, retry_after_s=_BUSY_RETRY_S))

    def _reply(self, matched: _Matched, reply_to: ReplyTo) -> None:
        topics = tuple(sorted(matched.topics.values()))
        self._state.reply(reply_to, Kind.ACK, bodies.Matched(matched.version, topics, self._state.durable_count))


_STARTS = ("new", "earliest", "time")


class Patterns:
    """Keeps patterns, and subscribes whom they belong to.

    What goes through many topics is done in several groups. The pattern itself is written, or removed, with the last
    of them: where that is not reached, who asked was not answered, asks again, and it goes on from there. Whether all
    the topics have room is known only when they were gone through: then the answer is that it was given up.
    """

    def __init__(self, state: State, subscriptions: Subscriptions, fetches: Fetches) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._fetches = fetches
        self._scans = Scans(state.store)
        self.matching = Matching(state, self._scans)
        self._made: dict[PatternKey, list[bytes]] = {}  # topics subscribed to for those that come

    def failed(self, table: PatternTable, code: Code, text: str) -> None:
        """Nothing that was under way was kept: tell those who wait for it to try again."""
        under_way = [reply_tos for _, reply_tos in table.coming.values()] + list(table.going.values())
        for reply_to in (reply_to for reply_tos in under_way for reply_to in reply_tos):
            self._state.refuse(reply_to, Refused(code, text, retry_after_s=BUSY_RETRY_S))
        self._made.clear()
        self._scans.unfinished.clear()
        self.matching.forget_all()

    def tick(self, now: Now) -> None:
        """Go on with what was begun, and answer who waited long enough."""
        if self._scans.unfinished:
            self._scans.go_on(self._scans.unfinished.popleft(), now)
        self.matching.expire(now)

    def next_deadline_s(self) -> float | None:
        """Return when `tick` has something to do."""
        return 0.0 if self._scans.unfinished else self.matching.next_deadline_s()

    # SUBSCRIBE, to a pattern or to one topic.

    def check_subscribe(self, body: bodies.Subscribe, now: Now) -> Any:
        """Refuse a subscription that cannot be made, or not now."""
        self._subscriptions.check_names(body)
        if not is_pattern(body.topic):
            return self._subscriptions.check_subscribe(body, now)
        table, key = self._state.patterns, (body.topic, body.name)
        if not is_good_pattern(body.topic) or body.start not in _STARTS:
            text = f"in a pattern # stands last, and it is read from {', '.join(_STARTS)}; not {to_text(body.topic)}"
            raise Refused(Code.MALFORMED, f"{text} from {body.start!r}")
        if key in table.going:
            text = f"the subscription to {to_text(body.topic)} is just being ended; try again"
            raise Refused(Code.BUSY, text, retry_after_s=BUSY_RETRY_S)
        if key not in table.options and key not in table.coming:
            known = len(table.options) + len(table.coming)
            self._state.check_limit("max_patterns", known + 1, "subscriptions to patterns")
        return body

    def subscribe(self, reply_to: ReplyTo, plan: Any, now: Now) -> None:
        """Subscribe to one topic, or to all topics that match, and to those that will."""
        if not isinstance(plan, bodies.Subscribe):
            self._subscriptions.subscribe(reply_to, plan, now)
            return
        state, body = self._state, plan
        key = (body.topic, body.name)
        if key in state.patterns.options:
            subscribed = bodies.Subscribed(0, state.patterns.options[key], state.count)
            state.reply_when_durable(reply_to, Kind.ALREADY_SUBSCRIBED, subscribed)
        elif key in state.patterns.coming:
            state.patterns.coming[key][1].append(reply_to)
        else:
            state.patterns.coming[key] = (body.options, [reply_to])
            self._go_through(
                body.topic, lambda name, now: self._subscribe_to(name, body, now), lambda: self._finish(key), now
            )

    def _go_through(
        self, pattern: bytes, visit: Callable[[bytes, Now], bool], finish: Callable[[], None], now: Now
    ) -> None:
        """Visit all topics that match: those that the store does not know yet, then the others, and tell the end."""
        new = [row.name for group in self._state.groups() for row in group.changes.topics.values()]
        if all(visit(name, now) for name in new if matches(pattern, name)):
            self._scans.go_on(Scan(pattern, lambda summary, now: visit(summary.topic.name, now), finish), now)

    def _subscribe_to(self, name: bytes, body: bodies.Subscribe, now: Now) -> bool:
        """Make the subscription to one topic that matches; False when that cannot be, and the pattern is given up."""
        topic = self._state.find_topic(name, now.monotonic_s)
        if topic is None or topic.deleted or body.name in topic.subscriptions:
            return True
        try:
            self._subscriptions.check_room(topic)
        except Refused as refused:
            self._give_up((body.topic, body.name), refused, now)
            return False
        cursor = self._subscriptions.start_of(topic, body.start, body.at)
        self._subscriptions.add(topic, body.name, cursor, body.options, now)
        self._made.setdefault((body.topic, body.name), []).append(name)
        return True

    def _give_up(self, key: PatternKey, refused: Refused, now: Now) -> None:
        """Refuse a pattern, and end the subscriptions that were made for it so far."""
        for reply_to in self._state.patterns.coming.pop(key)[1]:
            self._state.refuse(reply_to, refused)
        for name in self._made.pop(key, ()):
            self._end_at(name, key[1], now)

    def _finish(self, key: PatternKey) -> None:
        state = self._state
        self._made.pop(key, None)
        options, reply_tos = state.patterns.coming.pop(key)
        state.patterns.options[key] = options
        state.patterns.changed += 1
        number = state.patterns.numbers[key] = state.draw()
        state.open.changes.patterns[key] = PatternRow(*key, pack_options(options), number)
        state.open.changes.gone_patterns.discard(key)
        state.counters["patterns_subscribed"] += 1
        for reply_to in reply_tos:
            state.reply_when_durable(reply_to, Kind.ACK, bodies.Subscribed(0, options, state.count))

    # UNSUBSCRIBE.

    def check_unsubscribe(self, body: bodies.Unsubscribe, now: Now) -> Any:
        """Refuse to end what is not there, not meant, or just being made."""
        if not is_pattern(body.topic):
            return self._subscriptions.check_unsubscribe(body, now)
        table, key = self._state.patterns, (body.topic, body.name)
        if key in table.coming:
            text = f"the subscription to {to_text(body.topic)} is just being made; try again"
            raise Refused(Code.BUSY, text, retry_after_s=BUSY_RETRY_S)
        self._check_there(key)
        if body.as_of and table.numbers[key] > body.as_of:
            raise self._state.stale(f"{to_text(body.name)} subscribed to the pattern {to_text(body.topic)} anew")
        return key

    def unsubscribe(self, reply_to: ReplyTo, plan: Any, now: Now) -> None:
        """End one subscription, or those to all topics that match; those stay that another pattern of the same name
        wants."""
        if isinstance(plan[0], Topic):
            self._subscriptions.unsubscribe(reply_to, plan, now)
            return
        key, going = plan, self._state.patterns.going
        pattern, subscriber = key
        if key in going:
            going[key].append(reply_to)
            return
        going[key] = [reply_to]
        self._go_through(pattern, lambda name, now: self._end_at(name, subscriber, now), lambda: self._end(key), now)

    def _end_at(self, name: bytes, subscriber: bytes, now: Now) -> bool:
        """End the subscription to one topic, unless another pattern wants it; return that there may be others."""
        topic = self._state.find_topic(name, now.monotonic_s)
        subscription = topic.subscriptions.get(subscriber) if topic else None
        wanted = any(each == subscriber for each, _ in self._state.patterns.wanting(name))
        wanted = wanted or name in self._state.link_topics.get(subscriber, ())
        if topic and subscription and not wanted:
            self._subscriptions.end(topic, subscription, "the subscription to the pattern was ended", now)
        return True

    def _end(self, key: PatternKey) -> None:
        state = self._state
        del state.patterns.options[key], state.patterns.numbers[key]
        state.patterns.changed += 1
        state.patterns.consumers.pop(key, None)
        state.open.changes.patterns.pop(key, None)
        state.open.changes.gone_patterns.add(key)
        self.matching.end(*key)
        self._fetches.end_pattern(key, f"the subscription to the pattern {to_text(key[0])} was ended")
        for reply_to in state.patterns.going.pop(key):
            state.reply_when_durable(reply_to, Kind.ACK, bodies.Done())

    # MATCHES.

    def check_matches(self, body: bodies.Matches, now: Now) -> tuple[bodies.Matches, _Matched]:
        """Refuse who does not subscribe to the pattern, or cannot wait for news of it."""
        self._check_there((body.pattern, body.name))
        return self.matching.check(body, now)

    def _check_there(self, key: PatternKey) -> None:
        if key not in self._state.patterns.options:
            text = f"{to_text(key[1])} does not subscribe to the pattern {to_text(key[0])}"
            raise Refused(Code.NOT_SUBSCRIBED, text)
