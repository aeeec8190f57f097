"""Reading all topics that a pattern matches: one consumer a topic, each in its turn; new topics join by themselves."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from clarion.model.errors import ClarionError, NotSubscribed, StoredDataCorrupt
from clarion.session.exchange import Reply
from clarion.subscriber.consumer import Consumer
from clarion.subscriber.core_state import CoreState, no_longer_reads
from clarion.wire import bodies
from clarion.wire.frames import Kind
from clarion.wire.messages import Message, MessageBatch

if TYPE_CHECKING:
    from clarion.subscriber.subscriber_core import SubscriberCore

_NEWS_WAIT_S = 30.0
_LEAST_FETCH_BYTES = 16 * 1024


class _Mark:
    """When the application asked, and which topics have not said since that they are empty."""

    __slots__ = ("joins", "number", "open")

    def __init__(self, number: int) -> None:
        self.number = number
        self.joins = -1  # how many topics had joined when it was looked which there are
        self.open: list[Consumer] = []


class PatternReader:
    """The consumers of one pattern's topics.

    Those with something to look at say so; the others are left alone, so that a call costs what it hands out and not
    what the pattern matches. Only one that may not wait has to ask them all.
    """

    def __init__(self, pattern: bytes, state: CoreState, core: SubscriberCore) -> None:
        self.pattern = pattern
        self._state = state
        self._core = core
        self._version = 0
        self._ended = False
        self._known = False  # whether the broker has said which topics match
        self._asking: dict[int, float] = {}  # which there are: questions under way, with how long each waits
        self._heard = 0  # the newest of them that was answered
        self._joins = 0
        self._ask_at_s = 0.0  # at the earliest
        self.members: dict[bytes, Consumer] = {}
        self._ready: dict[Consumer, None] = {}  # with messages, the next one first
        self._troubled: dict[Consumer, None] = {}  # with something to tell
        self._to_ask: dict[Consumer, None] = {}  # perhaps with nothing under way
        self._empty: dict[Consumer, None] = {}  # likewise, but known to be empty since the last mark
        self._marked = 0
        self._all_to_ask = False  # by the next who cannot wait
        self._worked_on: dict[Consumer, None] = {}  # that handed something out since the application asked last
        self._used: dict[Consumer, None] = {}  # that handed something out, to be acked
        self.error: ClarionError | None = None

    # Which topics.

    def _ask_matches(self, wait_s: float, now_s: float) -> None:
        """See to it that a question is under way that waits no longer than `wait_s` for other topics than those known,
        or, where nobody waits, that one was answered since the last mark."""
        wait_s = min(wait_s, _NEWS_WAIT_S) if self._known else 0.0
        if wait_s <= 0 and self._heard > self._marked:
            return
        if self._asking and (wait_s > 0 or 0.0 in self._asking.values()):
            return
        if now_s < self._ask_at_s:
            return
        number = next(self._state.numbers)
        self._asking[number] = wait_s
        body = bodies.Matches(self.pattern, self._state.name, self._version, ceil(wait_s * 1000))
        self._state.send(self, number, Kind.MATCHES, body, (), wait_s)

    def on_reply(self, about: Any, reply: Reply, now_s: float) -> None:
        """Take in which topics match."""
        number: int = about
        del self._asking[number]
        if self._ended:
            return
        try:
            matched = reply.read(bodies.Matched)
        except ClarionError as error:
            again_s = reply.again_after_s()
            if again_s is None:
                self.error = error
            else:
                self._ask_at_s = now_s + again_s
        else:
            self._known = True
            self._heard = max(self._heard, number)
            self._version = matched.version
            self._state.requests.count.note(matched.count)
            self._follow(matched.topics)

    def on_time(self, now_s: float) -> float | None:
        """Have it asked again where the broker was busy, by whoever waits; return when to come back."""
        if not self._ask_at_s:
            return None
        if now_s < self._ask_at_s:
            return self._ask_at_s
        self._ask_at_s = 0.0
        return None

    def _follow(self, topics: tuple[bytes, ...]) -> None:
        for topic in self.members.keys() - set(topics):
            self.leave(self.members[topic])
        for topic in topics:
            if topic not in self.members:
                self._join(topic)
        most = self._state.settings.fetch_bytes
        share = max(_LEAST_FETCH_BYTES, most // max(1, len(self.members)))
        for consumer in self.members.values():
            consumer.fetch_bytes = min(most, share)

    def _join(self, topic: bytes) -> None:
        consumer = self.members[topic] = self._core.of(topic)
        consumer.of_pattern = True
        self._joins += 1
        if isinstance(consumer.error, NotSubscribed):
            consumer.error = None  # that was before it came again
        consumer.watchers[self] = None
        self.on_news(consumer)

    def on_lost(self, error: ClarionError) -> None:
        """The topics are those of another store from now on."""
        self._version, self._known, self.error = 0, False, error

    def leave(self, consumer: Consumer) -> None:
        """A topic is no longer read."""
        if self.members.pop(consumer.topic, None) is not None:
            consumer.watchers.pop(self, None)
            for group in (self._ready, self._troubled, self._to_ask, self._empty, self._used, self._worked_on):
                group.pop(consumer, None)
            self._core.on_left(consumer)

    def end(self) -> None:
        """Nothing is read by this pattern any more."""
        self._ended = True
        for consumer in list(self.members.values()):
            self.leave(consumer)

    def on_news(self, consumer: Consumer) -> None:
        """Look at a topic that may have something."""
        if self.members.get(consumer.topic) is not consumer:
            return
        if isinstance(consumer.error, NotSubscribed):
            self.leave(consumer)  # it was just ended, as the next answer will tell
            return
        (self._ready if consumer.buffered else self._to_ask)[consumer] = None
        if consumer.error is not None or consumer.notice is not None:
            self._troubled[consumer] = None

    # Fetching.

    def want(self, wait_s: float, messages: int, now_s: float) -> None:
        """See to it that something is fetched for every topic that may have something."""
        self._ask_matches(wait_s, now_s)
        if wait_s > 0:
            self._to_ask.update(self._empty)
            self._empty = {}
        elif self._all_to_ask:  # what is under way may wait longer
            self._all_to_ask = False
            self._to_ask.update(dict.fromkeys(self.members.values()))
        self._ask_topics(wait_s, messages, now_s)

    def _look_around(self, messages: int, now_s: float) -> None:
        """Have others asked while messages are handed out: a topic that never runs dry must not keep them from it."""
        if not self._state.settings.prefetch or (self._asking and not self._to_ask):
            return
        worked_on = [consumer for consumer in self._worked_on if consumer in self._to_ask]
        for consumer in worked_on:  # the application asks for more of these when it is done
            del self._to_ask[consumer]
        self._ask_matches(_NEWS_WAIT_S, now_s)
        self._ask_topics(_NEWS_WAIT_S, messages, now_s)
        self._to_ask.update(dict.fromkeys(worked_on))

    def _ask_topics(self, wait_s: float, messages: int, now_s: float) -> None:
        asked, self._to_ask = self._to_ask, {}
        for consumer in asked:
            if wait_s <= 0 and consumer.empty_since(self._marked):
                self._empty[consumer] = None
                continue
            consumer.want(wait_s, messages, now_s)
            if not consumer.under_way:  # not now: it has something to tell first, or the application something to ack
                self._to_ask[consumer] = None

    def mark(self, now_s: float) -> _Mark:
        """The application asks for more."""
        self._all_to_ask = True
        self._came_back(now_s)
        self._to_ask.update(self._empty)
        self._empty = {}
        self._marked = next(self._state.numbers)
        return _Mark(self._marked)

    def _came_back(self, now_s: float) -> None:
        worked_on, self._worked_on = self._worked_on, {}
        for consumer in worked_on:
            consumer.came_back(now_s)

    def empty_since(self, mark: object) -> bool:
        """Whether no topic had anything when it was asked after the mark, nor was there any other."""
        assert isinstance(mark, _Mark)
        if self._heard < mark.number:
            return False
        if mark.joins != self._joins:
            mark.joins, mark.open = self._joins, list(self.members.values())
            self._all_to_ask = True
        while mark.open:
            consumer = mark.open[-1]
            if self.members.get(consumer.topic) is consumer and not consumer.empty_since(mark.number):
                if not consumer.asked_at_once:  # a caller who can wait was first, and asked it to wait longer than this
                    self._all_to_ask = True
                return False
            mark.open.pop()
        return True

    # Handing out.

    @property
    def buffered(self) -> int:
        """Whether anything can be handed out: how many messages of the next topic."""
        while self._ready:
            consumer = next(iter(self._ready))
            if consumer.buffered:
                return consumer.buffered
            del self._ready[consumer]
            self._to_ask[consumer] = None
        return 0

    @property
    def troubled(self) -> bool:
        """Whether the next call may have something to hear of."""
        return self._ended or self.error is not None or bool(self._troubled)

    @property
    def last_word(self) -> ClarionError | None:
        """What a broker said that refuses something for now."""
        return next((consumer.last_word for consumer in self.members.values() if consumer.last_word is not None), None)

    def raise_error(self) -> None:
        """Raise what this call has to hear of; the next one goes on."""
        if self._ended:
            raise no_longer_reads(self._state.name, self.pattern)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        for consumer in list(self._troubled):
            consumer.raise_error()
            if consumer.error is None and consumer.notice is None:
                del self._troubled[consumer]

    def next_message(self, now_s: float) -> Message | None:
        """Return one message, and the next time one of the next topic."""
        self._came_back(now_s)
        while self.buffered:
            consumer = next(iter(self._ready))
            self._move_to_end(consumer)
            message = consumer.next_message(now_s)
            if message is not None:
                self._look_around(0, now_s)
                return message
        return None

    def take(self, most: int, now_s: float, *, opened: bool = False) -> list[MessageBatch]:
        """Return up to `most` messages, of every topic that has some an equal share if possible."""
        taken: list[MessageBatch] = []
        asked = most
        while most > 0 and self.buffered:
            share = max(1, most // len(self._ready))
            consumer = next(iter(self._ready))
            self._move_to_end(consumer)
            try:
                parts = consumer.take(min(share, most), now_s, opened=opened)
            except StoredDataCorrupt as error:
                if not taken:
                    raise
                self.error = error  # the next call hears of it
                break
            taken += parts
            most -= sum(map(len, parts))
        self._look_around(asked, now_s)
        return taken

    def _move_to_end(self, consumer: Consumer) -> None:
        del self._ready[consumer]
        self._ready[consumer] = None
        self._used[consumer] = self._worked_on[consumer] = None

    def ack_handed(self, now_s: float) -> None:
        """Ack what was handed out before."""
        used, self._used = self._used, {}
        for consumer in used:
            consumer.ack_handed(now_s)
