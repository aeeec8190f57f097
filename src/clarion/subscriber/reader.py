"""Everything a subscriber does, in steps: whoever runs them, on a thread or an event loop, only waits in between."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from clarion.model.errors import ClarionError, NotSubscribed, Unreachable
from clarion.model.names import is_pattern, matches, to_bytes, to_text
from clarion.model.options import SubscriptionOptions
from clarion.subscriber.choices import Start, check_same_use, start_fields
from clarion.subscriber.claim import Steps
from clarion.subscriber.drafts import State
from clarion.subscriber.fetching import FetchSettings, no_longer_reads
from clarion.subscriber.matching import Matching
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reading import Reading
from clarion.subscriber.steps import Ports
from clarion.subscriber.transacting import Transacting
from clarion.wire import bodies
from clarion.wire.frames import Kind

log = logging.getLogger("clarion.subscriber")
MANY = 65_536
_AS_MANY_AS_SUITS = 0
_LONG_WAIT_S = 30.0
_GRACE_S = 0.05  # for the broker to answer a get whose wait is over
_SETTLED_AT_ONCE = 1000  # topics that are acked together when closing: all of 100,000 would wait for each other
_LEAVE_S = 2.0  # how long a close waits to tell the broker that this one leaves, at most

Source = Reading | Matching


class Reader:
    """The readings and transactions of one subscriber. Whoever calls it holds the client's lock."""

    def __init__(self, name: bytes, ports: Ports, settings: FetchSettings, *, auto_ack: bool) -> None:
        self.name = name
        self.transacting = Transacting(ports)
        self._ports = ports
        self._settings = settings
        self._auto_ack = auto_ack
        self._readings: dict[bytes, Reading] = {}
        self._matchings: dict[bytes, Matching] = {}
        self._timed: dict[Reading, None] = {}  # those that may have something to do by the clock

    def _source(self, topic: bytes) -> Source:
        known = self._readings.get(topic)
        if known is not None:
            return known
        if not is_pattern(topic):
            return self._reading(topic)
        matching = self._matchings.get(topic)
        if matching is None:
            matching = Matching(topic, self.name, self._ports, self._reading, self._on_left, self._settings)
            self._matchings[topic] = matching
        return matching

    def _reading(self, topic: bytes) -> Reading:
        reading = self._readings.get(topic)
        if reading is None:
            reading = Reading(topic, self.name, self._ports, self._settings, on_answer=self._on_answer)
            self._readings[topic] = reading
        return reading

    def _on_left(self, reading: Reading) -> None:
        """A pattern no longer reads a topic; once no other does, either, nothing is kept of it."""
        topic = reading.topic
        if self._readings.get(topic) is reading and not any(topic in each.members for each in self._matchings.values()):
            del self._readings[topic]
            self._timed.pop(reading, None)
            reading.end(no_longer_reads(self.name, topic))

    def _on_answer(self, reading: Reading) -> None:
        self._timed[reading] = None

    # Subscriptions and states.

    def subscribing(self, topic: bytes | str, start: Start, options: SubscriptionOptions) -> Steps[bool]:
        """Make a subscription; False where there was one already."""
        topic = to_bytes(topic, "topic")
        kind, at = start_fields(start)
        body = bodies.Subscribe(topic, self.name, kind, at, options)
        reply = yield from self._ports.change(Kind.SUBSCRIBE, body)
        found = reply.read(bodies.Subscribed)
        if reply.kind == Kind.ALREADY_SUBSCRIBED:
            check_same_use(topic, self.name, options, found.options)
            return False
        return True

    def unsubscribing(self, topic: bytes | str) -> Steps[bool]:
        """End a subscription; False where there was none."""
        topic = to_bytes(topic, "topic")
        matching = self._matchings.pop(topic, None)
        for name in [name for name in self._readings if name == topic or (is_pattern(topic) and matches(topic, name))]:
            reading = self._readings[name]
            reading.end(no_longer_reads(self.name, name))
            self._on_left(reading)
        if matching is not None:
            matching.end()
        reply = yield from self._ports.change(Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, self.name))
        try:
            reply.read(bodies.Done)
        except NotSubscribed:
            return False
        return True

    def asking_state(self, name: bytes | str) -> Steps[State]:
        """Ask for a named state."""
        reply = yield from self._ports.call(Kind.STATE, bodies.AskState(to_bytes(name, "name")))
        found = reply.read(bodies.StateIs)
        return State(found.value, found.version)

    # Getting.

    def getting(self, topic: bytes, most: int, wait_s: float, *, opened: bool = False) -> Steps[list[MessageBatch]]:
        """Give up to `most` messages, waiting up to `wait_s` for the first."""
        if most < 1:
            raise ValueError(f"max_messages is at least 1, not {most}")
        deadline_s = self._ports.clock_s() + wait_s
        source = self._source(topic)
        if self._auto_ack:
            source.ack_handed()
        while (yield from self._coming(source, most, deadline_s)):
            parts = yield from self._handing_out(source.take(most, opened=opened))
            if parts:
                return parts
        return []

    def next_now(self, topic: bytes) -> Message | None:
        """Give the next message, if that takes no waiting."""
        if self._settings.at_most_once:
            return None
        source = self._source(topic)
        if self._auto_ack:
            source.ack_handed()
        if source.troubled:
            return None
        message = source.next_message()
        if message is not None and self._auto_ack:
            claim, offset = message.claim, message.offset
            assert claim is not None
            claim.reading.hand_out(offset, offset + 1)
        return message

    def streaming(self, topic: bytes, wait_s: float | None) -> Steps[Message | None]:
        """Give the next message; None where none came for `wait_s`."""
        while True:
            source = self._source(topic)
            if self._auto_ack:
                source.ack_handed()
            deadline_s = self._ports.clock_s() + (_LONG_WAIT_S if wait_s is None else wait_s)
            try:
                came = yield from self._coming(source, _AS_MANY_AS_SUITS, deadline_s)
            except Unreachable:
                if wait_s is not None:
                    raise
                log.warning("no broker answers at %s; the stream goes on when one does", self._ports.url)
                continue
            message = source.next_message() if came else None
            if message is not None and (yield from self._handing_out([message.alone()])):
                return message
            if wait_s is not None and not came:
                return None

    def _coming(self, source: Source, most: int, deadline_s: float) -> Steps[bool]:
        """Wait for messages; False where there were none until the deadline."""
        ports = self._ports
        mark = source.mark()
        give_up_s = deadline_s + ports.timeout_s
        ask_again_s = deadline_s + _GRACE_S
        waits = ports.clock_s() < deadline_s
        while True:
            ports.check_usable()
            source.raise_error()
            if source.buffered:
                return True
            now_s = ports.clock_s()
            if now_s >= deadline_s and source.empty_since(mark):
                return False
            if now_s >= give_up_s:
                raise source.last_word or ports.no_answer()
            # What is under way may be another caller's that waits longer: then an own one asks when time is up, but not
            # before what waited no longer than this had the time to come.
            if not (waits and deadline_s <= now_s < ask_again_s):
                source.want(max(0.0, deadline_s - now_s), most)
            yield ask_again_s if now_s < ask_again_s else give_up_s

    def _handing_out(self, parts: list[MessageBatch]) -> Steps[list[MessageBatch]]:
        """Note what is handed out or, at most once, ack it first: then only what could be acked is handed out."""
        if not self._settings.at_most_once:
            for part in parts if self._auto_ack else ():
                assert part.claim is not None
                part.claim.reading.hand_out(part.offsets.start, part.offsets.stop)
            return parts
        readings = {part.claim.reading for part in parts if part.claim is not None}
        try:
            for part in parts:
                if part.claim is not None:
                    part.claim.reading.ack(part.claim, part.offsets.start, part.offsets.stop)
            deadline_s = self._ports.clock_s() + self._ports.timeout_s
            for reading in readings:
                yield from self._settling(reading, deadline_s)
        except BaseException:
            for part in reversed(parts):
                if part.claim is not None:
                    part.claim.reading.put_back(part)
            raise
        return [part for part in parts if part.claim is not None and part.claim.error is None]

    # Ending.

    def _settling(self, reading: Reading, deadline_s: float) -> Steps[None]:
        """Wait until everything acked or given back is durable."""
        if not (yield from self._ports.until(partial(_is_settled, reading), deadline_s)):
            raise self._ports.no_answer()
        if reading.of_pattern and isinstance(reading.error, NotSubscribed):
            reading.error = None
        reading.raise_ack_error()

    def flushing(self, patience_s: float | None) -> Steps[None]:
        """Wait until every ack made so far is durable."""
        deadline_s = self._ports.clock_s() + (self._ports.timeout_s if patience_s is None else patience_s)
        for reading in list(self._readings.values()):
            yield from self._settling(reading, deadline_s)

    def closing(self, ack: bool, timeout_s: float | None = None) -> Steps[None]:
        """Ack what was handed out, if that is wanted, and leave; within the time that any call has, or another."""
        deadline_s = self._ports.clock_s() + (self._ports.timeout_s if timeout_s is None else timeout_s)
        failure: ClarionError | None = None
        readings = list(self._readings.values())
        in_time = True
        for first in range(0, len(readings), _SETTLED_AT_ONCE):
            some = readings[first : first + _SETTLED_AT_ONCE]
            for reading in some if ack and self._auto_ack else ():
                reading.ack_handed()
            patience_s = min(deadline_s, self._ports.clock_s() + _LEAVE_S)
            for reading in some if len(readings) > len(some) else ():
                in_time = in_time and (yield from self._ports.until(partial(_is_settled, reading), patience_s))
        for reading in readings:
            try:
                yield from self._settling(reading, deadline_s)
            except ClarionError as error:
                failure = failure or error
        yield from self.transacting.finishing(deadline_s)
        leave_s = min(deadline_s, self._ports.clock_s() + _LEAVE_S)
        yield from self.transacting.forgetting(leave_s)
        for reading in list(self._readings.values()):
            yield from reading.detaching(leave_s)
        if failure is not None:
            raise failure

    def went_back(self, error: ClarionError) -> None:
        """The store is not the one that was spoken with: whoever reads is told once, and goes on from its cursor."""
        log.error("%s", error)
        self.transacting.went_back()
        for matching in self._matchings.values():
            matching.went_back(error)
        for reading in self._readings.values():
            reading.went_back(error)
        self._ports.on_change()

    def drop_all(self, error: ClarionError) -> None:
        """Let go of everything, the connection being gone."""
        for reading in self._readings.values():
            reading.end(error)

    # By the clock.

    def pump(self, now_s: float) -> float | None:
        """Do what is due; give when to come back."""
        wanted = [self._ports.pump(now_s), self.transacting.pump(now_s)]
        wanted += [matching.pump(now_s) for matching in self._matchings.values()]
        for reading in list(self._timed):
            moment_s = reading.pump(now_s)
            if moment_s is None:
                del self._timed[reading]  # an answer brings it back
            wanted.append(moment_s)
        return min((moment_s for moment_s in wanted if moment_s is not None), default=None)

    def stats(self) -> dict[str, Any]:
        """Give what is buffered and held, in all and by topic."""
        by_topic = {topic: reading.stats() for topic, reading in self._readings.items()}
        return {
            "buffered": sum(each["buffered"] for each in by_topic.values()),
            "held": sum(each["held"] for each in by_topic.values()),
            "topics": len(by_topic),
            "transactions": self.transacting.committed,
            "by_topic": {to_text(topic): each for topic, each in by_topic.items()},
        }


def _is_settled(reading: Reading) -> bool:
    return reading.acks_done() or reading.error is not None
