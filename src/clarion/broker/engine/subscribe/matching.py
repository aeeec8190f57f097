"""Which topics each pattern subscribes to, kept up to date for those who ask, who may wait for news."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from clarion.broker.engine.state import Group, Now, State
from clarion.broker.engine.subscribe.scanning import Scanning
from clarion.broker.engine.topics import Waiter
from clarion.model.names import matches, to_text
from clarion.store.port import TopicSummary
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_IDLE_S = 300.0  # after which what nobody asks for is forgotten
_BUSY_RETRY_S = 0.2
_ANSWERED_KEPT = 1024  # deadlines of questions already answered that may linger

_Key = tuple[bytes, bytes]  # pattern and subscriber


class _Waiting(NamedTuple):
    waiter: Waiter
    version: int
    deadline_s: float


class _Matched:
    """The topics of one pattern, as far as they are on disk."""

    def __init__(self, pattern: bytes, name: bytes) -> None:
        self.pattern = pattern
        self.name = name
        self._hash = 0
        self.topics: dict[int, bytes] = {}
        self.is_known = False  # once all topics were looked at
        self.waiting: dict[object, _Waiting] = {}  # by peer
        self.asked_s = 0.0

    def add(self, number: int, topic: bytes) -> None:
        """Take in a topic."""
        if number not in self.topics:
            self._hash ^= _hash(number)
        self.topics[number] = topic

    def discard(self, number: int) -> bool:
        """Leave a topic out; says whether it was there."""
        if self.topics.pop(number, None) is None:
            return False
        self._hash ^= _hash(number)
        return True

    @property
    def version(self) -> int:
        """What tells these topics from others. It follows from their numbers alone, so it is the same after a restart;
        it is never 0."""
        return self._hash | 1


def _hash(number: int) -> int:
    return xxh3_64_intdigest(number.to_bytes(8, "little")) >> 1


class Matching:
    """Answers who asks for the topics of a pattern, at once or when they change."""

    def __init__(self, state: State, scanning: Scanning) -> None:
        self._state = state
        self._scanning = scanning
        self._matched: dict[_Key, _Matched] = {}
        self._by_name: dict[bytes, list[_Matched]] = {}
        self._deadlines: list[tuple[float, int, _Matched, _Waiting]] = []
        self._parked = self._waiting = 0
        self._idle_at_s = 0.0

    def forget_all(self) -> None:
        """Answer who waits with what is known, and look again when somebody asks."""
        for matched in self._matched.values():
            for waiting in list(matched.waiting.values()):
                if matched.is_known:
                    self._answer(matched, waiting)
                else:
                    self._refuse_busy(waiting.waiter)
        self._waiting = 0
        self._matched.clear()
        self._by_name.clear()
        self._deadlines.clear()

    def ask(self, waiter: Waiter, body: bodies.Matches, now: Now) -> None:
        """Answer at once who knows another version, and others when there is one, or their wait is over."""
        key = (body.pattern, body.name)
        matched = self._matched.get(key)
        if matched is None:
            matched = self._begin(key, now)
        matched.asked_s = now.monotonic_s
        older = matched.waiting.get(waiter.peer)
        if older is not None:  # one consumer waits once: its older question is answered now
            if matched.is_known:
                self._answer(matched, older)
            else:
                self._refuse_busy(older.waiter)
                del matched.waiting[waiter.peer]
                self._waiting -= 1
        wait_s = min(max(0, body.wait_ms) / 1000, self._state.limits.max_get_wait_s)
        waiting = _Waiting(waiter, body.version, now.monotonic_s + wait_s)
        if matched.is_known and (body.version != matched.version or wait_s <= 0):
            self._say(matched, waiter)
        elif self._waiting >= self._state.limits.max_waiting_gets:
            text = "too many questions wait at this broker (max_waiting_gets)"
            self._state.refuse(waiter, Kind.REFUSED, Code.LIMIT, text)
        else:
            self._park(matched, waiting)

    def _refuse_busy(self, waiter: Waiter) -> None:
        text = "the topics are just being looked through; try again"
        self._state.refuse(waiter, Kind.REFUSED, Code.BUSY, text, retry_after_s=_BUSY_RETRY_S)

    def end(self, pattern: bytes, name: bytes) -> None:
        """Tell who waits that there is no such subscription any more."""
        matched = self._matched.get((pattern, name))
        if matched is None:
            return
        self._forget(matched)
        text = f"the subscription to the pattern {to_text(pattern)} was ended"
        for waiting in matched.waiting.values():
            self._state.refuse(waiting.waiter, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED, text)
        self._waiting -= len(matched.waiting)
        matched.waiting.clear()

    def committed(self, group: Group, now: Now) -> None:
        """Take in which subscriptions came and went with a group that is on disk now."""
        if not self._by_name:
            return
        changes = group.changes
        names = {topic.number: topic.name for topic in group.topics if topic.number not in changes.gone_topics}
        grown: set[_Matched] = set()
        for number, name in changes.subscriptions.keys() - changes.gone_subscriptions:
            for matched in self._by_name.get(name, ()):
                if number not in matched.topics and matches(matched.pattern, names.get(number, b"")):
                    matched.add(number, names[number])
                    grown.add(matched)
        gone = {(number, name) for number, name in changes.gone_subscriptions if name in self._by_name}
        gone |= {(number, name) for number in changes.gone_topics for name in self._by_name}
        for number, name in gone:
            for matched in self._by_name[name]:
                if matched.discard(number):
                    grown.add(matched)
        for matched in grown:
            if matched.is_known:
                self._tell(matched)

    def expire(self, now: Now) -> None:
        """Answer those whose wait is over, and forget what nobody asks for any more."""
        while self._deadlines and self._deadlines[0][0] <= now.monotonic_s:
            _, _, matched, waiting = heapq.heappop(self._deadlines)
            if matched.waiting.get(waiting.waiter.peer) is waiting and matched.is_known:
                self._answer(matched, waiting)
        if now.monotonic_s >= self._idle_at_s:
            self._idle_at_s = now.monotonic_s + _IDLE_S
            for matched in list(self._matched.values()):
                if matched.is_known and not matched.waiting and now.monotonic_s - matched.asked_s > _IDLE_S:
                    self._forget(matched)

    def next_deadline_s(self) -> float | None:
        """Give when `expire` has something to do."""
        return self._deadlines[0][0] if self._deadlines else None

    def _begin(self, key: _Key, now: Now) -> _Matched:
        matched = self._matched[key] = _Matched(*key)
        self._by_name.setdefault(key[1], []).append(matched)

        def visit(summary: TopicSummary, _: Now) -> bool:
            if any(row.name == matched.name for row in summary.subscriptions):
                matched.add(summary.topic.number, summary.topic.name)
            return self._matched.get(key) is matched

        def finish(_: Now) -> None:
            matched.is_known = True
            self._tell(matched)

        self._scanning.start(key[0], visit, finish, now)
        return matched

    def _forget(self, matched: _Matched) -> None:
        del self._matched[matched.pattern, matched.name]
        self._by_name[matched.name].remove(matched)
        if not self._by_name[matched.name]:
            del self._by_name[matched.name]

    def _park(self, matched: _Matched, waiting: _Waiting) -> None:
        self._waiting += waiting.waiter.peer not in matched.waiting
        matched.waiting[waiting.waiter.peer] = waiting
        self._parked += 1
        heapq.heappush(self._deadlines, (waiting.deadline_s, self._parked, matched, waiting))
        if len(self._deadlines) > 2 * self._waiting + _ANSWERED_KEPT:
            self._deadlines = [entry for entry in self._deadlines if entry[3] in entry[2].waiting.values()]
            heapq.heapify(self._deadlines)

    def _tell(self, matched: _Matched) -> None:
        """Answer everybody who waits: the topics are others now."""
        for waiting in list(matched.waiting.values()):
            self._answer(matched, waiting)

    def _answer(self, matched: _Matched, waiting: _Waiting) -> None:
        del matched.waiting[waiting.waiter.peer]
        self._waiting -= 1
        self._say(matched, waiting.waiter)

    def _say(self, matched: _Matched, waiter: Waiter) -> None:
        topics = tuple(sorted(matched.topics.values()))
        self._state.say(waiter, Kind.ACK, bodies.Matched(matched.version, topics, self._state.durable_count))
