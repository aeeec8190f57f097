"""Reading all topics that a pattern matches: one reading a topic, each in its turn; new topics join by themselves."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from clarion.model.errors import ClarionError, NotSubscribed, StoredDataCorrupt
from clarion.session.exchange import Reply
from clarion.subscriber.fetching import FetchSettings, no_longer_reads
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reading import Reading
from clarion.subscriber.steps import Ports
from clarion.wire import bodies
from clarion.wire.frames import Kind

_NEWS_WAIT_S = 30.0
_LEAST_FETCH_BYTES = 16 * 1024


class _Mark:
    """When the application asked, and which topics have not said since that they are empty."""

    __slots__ = ("joins", "number", "open")

    def __init__(self, number: int) -> None:
        self.number = number
        self.joins = -1  # how many topics had joined when it was looked which there are
        self.open: list[Reading] = []


class Matching:
    """The readings of one pattern's topics.

    Those with something to look at say so; the others are left alone, so that a call costs what it hands out and not
    what the pattern matches. Only one that may not wait has to ask them all.
    """

    def __init__(
        self,
        pattern: bytes,
        name: bytes,
        ports: Ports,
        reading_of: Callable[[bytes], Reading],
        on_left: Callable[[Reading], None],
        settings: FetchSettings,
    ) -> None:
        self.pattern = pattern
        self._name = name
        self._ports = ports
        self._reading_of = reading_of
        self._on_left = on_left
        self._settings = settings
        self._version = 0
        self._ended = False
        self._known = False  # whether the broker has said which topics match
        self._asking: dict[int, float] = {}  # which there are: questions under way, with how long each waits
        self._heard = 0  # the newest of them that was answered
        self._joins = 0
        self._ask_at_s = 0.0  # at the earliest
        self.members: dict[bytes, Reading] = {}
        self._ready: dict[Reading, None] = {}  # with messages, the next one first
        self._troubled: dict[Reading, None] = {}  # with something to tell
        self._to_ask: dict[Reading, None] = {}  # perhaps with nothing under way
        self._empty: dict[Reading, None] = {}  # likewise, but known to be empty since the last mark
        self._marked = 0
        self._all_to_ask = False  # by the next who cannot wait
        self._worked_on: dict[Reading, None] = {}  # that handed something out since the application asked last
        self._used: dict[Reading, None] = {}  # that handed something out, to be acked
        self.error: ClarionError | None = None

    # Which topics.

    def _ask_matches(self, wait_s: float) -> None:
        """See to it that a question is under way that waits no longer than `wait_s` for other topics than those known,
        or, where nobody waits, that one was answered since the last mark."""
        wait_s = min(wait_s, _NEWS_WAIT_S) if self._known else 0.0
        if wait_s <= 0 and self._heard > self._marked:
            return
        if self._asking and (wait_s > 0 or 0.0 in self._asking.values()):
            return
        if self._ports.clock_s() < self._ask_at_s:
            return
        number = next(self._ports.numbers)
        self._asking[number] = wait_s
        body = bodies.Matches(self.pattern, self._name, self._version, ceil(wait_s * 1000))
        self._ports.ask(Kind.MATCHES, body, lambda reply: self._on_matched(number, reply), (), wait_s)

    def _on_matched(self, number: int, reply: Reply) -> None:
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
                self._ask_at_s = self._ports.clock_s() + again_s
        else:
            self._known = True
            self._heard = max(self._heard, number)
            self._version = matched.version
            self._ports.count.note(matched.count)
            self._follow(matched.topics)
        self._ports.on_change()

    def pump(self, now_s: float) -> float | None:
        """Have it asked again where the broker was busy; give when to come back."""
        if not self._ask_at_s:
            return None
        if now_s < self._ask_at_s:
            return self._ask_at_s
        self._ask_at_s = 0.0
        self._ports.on_change()  # whoever waits asks, for as long as it waits
        return None

    def _follow(self, topics: tuple[bytes, ...]) -> None:
        for topic in self.members.keys() - set(topics):
            self.leave(self.members[topic])
        for topic in topics:
            if topic not in self.members:
                self._join(topic)
        most = self._settings.fetch_bytes
        share = max(_LEAST_FETCH_BYTES, most // max(1, len(self.members)))
        for reading in self.members.values():
            reading.inbox.fetch_bytes = min(most, share)

    def _join(self, topic: bytes) -> None:
        reading = self.members[topic] = self._reading_of(topic)
        reading.of_pattern = True
        self._joins += 1
        if isinstance(reading.error, NotSubscribed):
            reading.error = None  # that was before it came again
        reading.inbox.on_news[self] = lambda: self._on_news(reading)
        self._on_news(reading)

    def went_back(self, error: ClarionError) -> None:
        """The topics are those of another store from now on."""
        self._version, self._known, self.error = 0, False, error

    def leave(self, reading: Reading) -> None:
        """A topic is no longer read."""
        if self.members.pop(reading.topic, None) is not None:
            reading.inbox.on_news.pop(self, None)
            for group in (self._ready, self._troubled, self._to_ask, self._empty, self._used, self._worked_on):
                group.pop(reading, None)
            self._on_left(reading)

    def end(self) -> None:
        """Nothing is read by this pattern any more."""
        self._ended = True
        for reading in list(self.members.values()):
            self.leave(reading)
        self._ports.on_change()

    def _on_news(self, reading: Reading) -> None:
        if self.members.get(reading.topic) is not reading:
            return
        if isinstance(reading.error, NotSubscribed):
            self.leave(reading)  # it was just ended, as the next answer will tell
            return
        (self._ready if reading.buffered else self._to_ask)[reading] = None
        if reading.error is not None or reading.notice is not None:
            self._troubled[reading] = None

    # Fetching.

    def want(self, wait_s: float, messages: int) -> None:
        """See to it that something is fetched for every topic that may have something."""
        self._ask_matches(wait_s)
        if wait_s > 0:
            self._to_ask.update(self._empty)
            self._empty = {}
        elif self._all_to_ask:  # what is under way may wait longer
            self._all_to_ask = False
            self._to_ask.update(dict.fromkeys(self.members.values()))
        self._ask_topics(wait_s, messages)

    def _look_around(self, messages: int) -> None:
        """Have others asked while messages are handed out: a topic that never runs dry must not keep them from it."""
        if not self._settings.prefetch or (self._asking and not self._to_ask):
            return
        worked_on = [reading for reading in self._worked_on if reading in self._to_ask]
        for reading in worked_on:  # the application asks for more of these when it is done
            del self._to_ask[reading]
        self._ask_matches(_NEWS_WAIT_S)
        self._ask_topics(_NEWS_WAIT_S, messages)
        self._to_ask.update(dict.fromkeys(worked_on))

    def _ask_topics(self, wait_s: float, messages: int) -> None:
        asked, self._to_ask = self._to_ask, {}
        for reading in asked:
            if wait_s <= 0 and reading.empty_since(self._marked):
                self._empty[reading] = None
                continue
            reading.want(wait_s, messages)
            if not reading.under_way:  # not now: it has something to tell first, or the application something to ack
                self._to_ask[reading] = None

    def mark(self) -> _Mark:
        """The application asks for more."""
        self._all_to_ask = True
        self._came_back()
        self._to_ask.update(self._empty)
        self._empty = {}
        self._marked = next(self._ports.numbers)
        return _Mark(self._marked)

    def _came_back(self) -> None:
        worked_on, self._worked_on = self._worked_on, {}
        for reading in worked_on:
            reading.came_back()

    def empty_since(self, mark: object) -> bool:
        """Whether no topic had anything when it was asked after the mark, nor was there any other."""
        assert isinstance(mark, _Mark)
        if self._heard < mark.number:
            return False
        if mark.joins != self._joins:
            mark.joins, mark.open = self._joins, list(self.members.values())
            self._all_to_ask = True
        while mark.open:
            reading = mark.open[-1]
            if self.members.get(reading.topic) is reading and not reading.empty_since(mark.number):
                if not reading.asked_at_once:  # a caller who can wait was first, and asked it to wait longer than this
                    self._all_to_ask = True
                return False
            mark.open.pop()
        return True

    # Handing out.

    @property
    def buffered(self) -> int:
        """Whether anything can be handed out: how many messages of the next topic."""
        while self._ready:
            reading = next(iter(self._ready))
            if reading.buffered:
                return reading.buffered
            del self._ready[reading]
            self._to_ask[reading] = None
        return 0

    @property
    def troubled(self) -> bool:
        """Whether the next call may have something to hear of."""
        return self._ended or self.error is not None or bool(self._troubled)

    @property
    def last_word(self) -> ClarionError | None:
        """What a broker said that refuses something for now."""
        return next((reading.last_word for reading in self.members.values() if reading.last_word is not None), None)

    def raise_error(self) -> None:
        """Raise what this call has to hear of; the next one goes on."""
        if self._ended:
            raise no_longer_reads(self._name, self.pattern)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        for reading in list(self._troubled):
            reading.raise_error()
            if reading.error is None and reading.notice is None:
                del self._troubled[reading]

    def next_message(self) -> Message | None:
        """Give one message, and the next time one of the next topic."""
        self._came_back()
        while self.buffered:
            reading = next(iter(self._ready))
            self._move_to_end(reading)
            message = reading.next_message()
            if message is not None:
                self._look_around(0)
                return message
        return None

    def take(self, most: int, *, opened: bool = False) -> list[MessageBatch]:
        """Give up to `most` messages, of every topic that has some an equal share if possible."""
        taken: list[MessageBatch] = []
        asked = most
        while most > 0 and self.buffered:
            share = max(1, most // len(self._ready))
            reading = next(iter(self._ready))
            self._move_to_end(reading)
            try:
                parts = reading.take(min(share, most), opened=opened)
            except StoredDataCorrupt as error:
                if not taken:
                    raise
                self.error = error  # the next call hears of it
                break
            taken += parts
            most -= sum(map(len, parts))
        self._look_around(asked)
        return taken

    def _move_to_end(self, reading: Reading) -> None:
        del self._ready[reading]
        self._ready[reading] = None
        self._used[reading] = self._worked_on[reading] = None

    def ack_handed(self) -> None:
        """Ack what was handed out before."""
        used, self._used = self._used, {}
        for reading in used:
            reading.ack_handed()
