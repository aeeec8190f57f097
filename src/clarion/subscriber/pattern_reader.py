"""Reading all topics of patterns and lists, with one fetch session for them all; new topics join by themselves. What is
shared, or asked of a broker that knows no sessions, has a consumer a topic, each in its turn."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from clarion.model.errors import ClarionError, LeaseLost, NotSubscribed, StoredDataCorrupt
from clarion.model.names import is_pattern, matches, overlap, to_text
from clarion.session.exchange import Reply
from clarion.subscriber.consumer import Consumer
from clarion.subscriber.core_state import CoreState, no_longer_reads
from clarion.subscriber.fetch_session import FetchSession
from clarion.wire import bodies
from clarion.wire.frames import MANY_TOPICS_VERSION, Kind
from clarion.wire.messages import Message, MessageBatch

if TYPE_CHECKING:
    from clarion.subscriber.subscriber_core import SubscriberCore

_NEWS_WAIT_S = 30.0
_LEAST_FETCH_BYTES = 16 * 1024
Member = Consumer | FetchSession


class _Mark:
    """When the application asked, and which topics have not said since that they are empty."""

    __slots__ = ("joins", "number", "open")

    def __init__(self, number: int) -> None:
        self.number = number
        self.joins = -1  # how many topics had joined when it was looked which there are
        self.open: list[Member] = []


class _Matches:
    """Which topics a pattern stands for, as far as the broker has said."""

    __slots__ = ("asking", "heard", "known", "pattern", "topics", "version")

    def __init__(self, pattern: bytes) -> None:
        self.pattern = pattern
        self.topics: tuple[bytes, ...] = ()
        self.asking: dict[int, float] = {}  # questions under way, with how long each waits
        self.heard = 0  # the newest of them that was answered
        self.version, self.known = 0, False

    def start_over(self) -> None:
        """What was said does not hold any more."""
        self.version, self.known = 0, False


class PatternReader:
    """The reader of some patterns and topics: its session, and its consumers.

    Those with something to look at say so; the others are left alone, so that a call costs what it hands out and not
    what the patterns match. Only one that may not wait has to ask them all.

    A topic that this client also reads alone has a consumer, whether or not there is a session: it attaches later than
    the session began, and so is left alone by it.
    """

    def __init__(self, topics: tuple[bytes, ...], state: CoreState, core: SubscriberCore) -> None:
        self.topics = topics
        self.session: FetchSession | None = None
        self._patterns = [_Matches(topic) for topic in topics if is_pattern(topic)]
        self._plain = frozenset(topic for topic in topics if not is_pattern(topic))
        self._reads_each = False  # whether every topic has a consumer
        self._state = state
        self._core = core
        self._ended = False
        self._joins = 0
        self._ask_at_s = 0.0  # at the earliest
        self.members: dict[bytes, Consumer] = {}
        self._ready: dict[Member, None] = {}  # with messages, the next one first
        self._troubled: dict[Member, None] = {}  # with something to tell
        self._to_ask: dict[Member, None] = {}  # perhaps with nothing under way
        self._empty: dict[Member, None] = {}  # likewise, but known to be empty since the last mark
        self._marked = 0
        self._all_to_ask = False  # by the next who cannot wait
        self._worked_on: dict[Member, None] = {}  # that handed something out since the application asked last
        self._used: dict[Member, None] = {}  # that handed something out, to be acked
        self.error: ClarionError | None = None

    # With a session, or topic by topic.

    def on_greeted(self, error: ClarionError | None, now_s: float) -> None:
        """Choose, now that it is known what the broker can."""
        if error is not None:
            self.error = error
        elif not self._is_chosen():
            assert self._state.welcome is not None
            if self._state.welcome.version < MANY_TOPICS_VERSION or self._core.overlaps_session(self.topics):
                self.read_each_topic()
            else:
                self.session = FetchSession(self, self.topics, self._state)
                self._joins += 1
                self._to_ask[self.session] = None

    def _is_chosen(self) -> bool:
        return self.session is not None or self._reads_each or self._ended

    def read_each_topic(self) -> None:
        """Read with a consumer for each topic from now on."""
        if self.session is not None:
            self._forget(self.session)
            self.session = None
        self._reads_each = True
        self._follow()

    def on_session_begins(self) -> None:
        """Whatever this client reads alone is left to the session, while its acks are still taken."""
        for consumer in self._core.consumers_of(self.covers):
            if consumer.lent is None:
                text = "is read together with others from now on: what was not acked comes again"
                consumer.hand_over(LeaseLost(f"{to_text(consumer.topic)} {text}"))

    def on_session_begun(self) -> None:
        """Whatever this client reads alone attaches anew, later than the session began."""
        for consumer in self._core.consumers_of(self.covers):
            self._join(consumer.topic)
            if consumer.lent is None:
                consumer.end(LeaseLost(f"{to_text(consumer.topic)} was attached to before the session began"))

    def on_consumer(self, consumer: Consumer) -> None:
        """This client begins to read a topic alone: have the session leave it."""
        if self.session is not None and self.covers(consumer.topic):
            self.session.hand_over(consumer.topic)
            self._join(consumer.topic)

    def read_alone(self, topics: Iterable[bytes]) -> None:
        """Read topics with a consumer each, since they are shared."""
        for topic in topics:
            self._join(topic)
        self._share_bytes()

    def covers(self, topic: bytes) -> bool:
        """Return whether a topic is one of those read."""
        return topic in self._plain or any(matches(each.pattern, topic) for each in self._patterns)

    def overlaps(self, topics: tuple[bytes, ...]) -> bool:
        """Return whether a topic could be one of these, and of those read here with a session."""
        if self.session is None:
            return False
        patterns = [topic for topic in topics if is_pattern(topic)]
        return (
            not self._plain.isdisjoint(topics)
            or any(overlap(each.pattern, topic) for each in self._patterns for topic in topics)
            or any(overlap(pattern, topic) for pattern in patterns for topic in self._plain)
        )

    # Which topics.

    def _ask_matches(self, wait_s: float, now_s: float) -> None:
        """See to it that questions are under way that wait no longer than `wait_s` for other topics than those known,
        or, where nobody waits, that they were answered since the last mark."""
        if now_s < self._ask_at_s:
            return
        for each in self._patterns:
            each_s = min(wait_s, _NEWS_WAIT_S) if each.known else 0.0
            if each_s <= 0 and each.heard > self._marked:
                continue
            if each.asking and (each_s > 0 or 0.0 in each.asking.values()):
                continue
            number = next(self._state.numbers)
            each.asking[number] = each_s
            body = bodies.Matches(each.pattern, self._state.name, each.version, ceil(each_s * 1000))
            self._state.send(self, (each, number), Kind.MATCHES, body, (), each_s)

    def on_reply(self, about: Any, reply: Reply, now_s: float) -> None:
        """Take in which topics match."""
        each, number = about
        del each.asking[number]
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
            each.known = True
            each.heard = max(each.heard, number)
            each.version, each.topics = matched.version, matched.topics
            self._state.requests.count.note(matched.count)
            self._follow()

    def on_time(self, now_s: float) -> float | None:
        """Have it asked again where the broker was busy, by whoever waits; return when to come back."""
        if not self._ask_at_s:
            return None
        if now_s < self._ask_at_s:
            return self._ask_at_s
        self._ask_at_s = 0.0
        return None

    def _follow(self) -> None:
        topics = dict.fromkeys(self._plain) | dict.fromkeys(topic for each in self._patterns for topic in each.topics)
        for topic in self.members.keys() - topics.keys():
            self.leave(self.members[topic])
        for topic in topics:
            self._join(topic)
        self._share_bytes()

    def _share_bytes(self) -> None:
        most = self._state.settings.fetch_bytes
        share = max(_LEAST_FETCH_BYTES, most // max(1, len(self.members)))
        for consumer in self.members.values():
            consumer.fetch_bytes = min(most, share)

    def _join(self, topic: bytes) -> None:
        if topic in self.members:
            return
        consumer = self.members[topic] = self._core.of(topic, self)
        consumer.of_pattern = consumer.of_pattern or topic not in self._plain
        self._joins += 1
        if isinstance(consumer.error, NotSubscribed):
            consumer.error = None  # that was before it came again
        consumer.watchers[self] = None
        self.on_news(consumer)

    def on_lost(self, error: ClarionError) -> None:
        """The topics are those of another store from now on."""
        self.error = error
        for each in self._patterns:
            each.start_over()
        if self.session is not None:
            self.session.end(error)
            self._to_ask[self.session] = None

    def leave(self, consumer: Consumer) -> None:
        """A topic is no longer read."""
        if self.members.pop(consumer.topic, None) is not None:
            consumer.watchers.pop(self, None)
            self._forget(consumer)
            self._core.on_left(consumer)

    def _forget(self, member: Member) -> None:
        for group in (self._ready, self._troubled, self._to_ask, self._empty, self._used, self._worked_on):
            group.pop(member, None)

    def end(self) -> None:
        """Nothing is read by this reader any more."""
        self._ended = True
        if self.session is not None:
            self.session.end(no_longer_reads(self._state.name, self.topics[0]))
            self._forget(self.session)
        for consumer in list(self.members.values()):
            self.leave(consumer)

    def _reads(self, member: Member) -> bool:
        if isinstance(member, FetchSession):
            return member is self.session and not self._ended
        return self.members.get(member.topic) is member

    def _members(self) -> list[Member]:
        return [*self.members.values(), *([] if self.session is None else [self.session])]

    def on_news(self, member: Member) -> None:
        """Look at a topic, or the session, which may have something."""
        if not self._reads(member):
            return
        if isinstance(member.error, NotSubscribed) and isinstance(member, Consumer) and member.topic not in self._plain:
            self.leave(member)  # it was just ended, as the next answer will tell
            return
        (self._ready if member.buffered else self._to_ask)[member] = None
        if member.error is not None or member.notice is not None:
            self._troubled[member] = None

    # Fetching.

    def want(self, wait_s: float, messages: int, now_s: float) -> None:
        """See to it that something is fetched for every topic that may have something."""
        if not self._is_chosen():
            self._state.greet(self, now_s)
        if self._reads_each:
            self._ask_matches(wait_s, now_s)
        if wait_s > 0:
            self._to_ask.update(self._empty)
            self._empty = {}
        elif self._all_to_ask:  # what is under way may wait longer
            self._all_to_ask = False
            self._to_ask.update(dict.fromkeys(self._members()))
        self._ask_topics(wait_s, messages, now_s)

    def _look_around(self, messages: int, now_s: float) -> None:
        """Have others asked while messages are handed out: a topic that never runs dry must not keep them from it."""
        if not self._state.settings.prefetch or not (self._to_ask or self._is_curious()):
            return
        worked_on = [consumer for consumer in self._worked_on if consumer in self._to_ask]
        for consumer in worked_on:  # the application asks for more of these when it is done
            del self._to_ask[consumer]
        if self._reads_each:
            self._ask_matches(_NEWS_WAIT_S, now_s)
        self._ask_topics(_NEWS_WAIT_S, messages, now_s)
        self._to_ask.update(dict.fromkeys(worked_on))

    def _is_curious(self) -> bool:
        """Whether it is to be asked which topics there are."""
        return self._reads_each and not all(each.asking for each in self._patterns)

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
        if not self._is_chosen() or (self._reads_each and self._heard() < mark.number):
            return False
        if mark.joins != self._joins:
            mark.joins, mark.open = self._joins, self._members()
            self._all_to_ask = True
        while mark.open:
            member = mark.open[-1]
            if self._reads(member) and not member.empty_since(mark.number):
                if not member.asked_at_once:  # a caller who can wait was first, and asked it to wait longer than this
                    self._all_to_ask = True
                return False
            mark.open.pop()
        return True

    def _heard(self) -> float:
        return min((each.heard for each in self._patterns), default=inf)

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
        return next((member.last_word for member in self._members() if member.last_word is not None), None)

    def raise_error(self) -> None:
        """Raise what this call has to hear of; the next one goes on."""
        if self._ended:
            raise no_longer_reads(self._state.name, self.topics[0])
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
                if message.part.attachment.error is None:  # unless it is left to a session that just begins
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
        return [part for part in taken if part.attachment.error is None]  # the rest is left to a session

    def _move_to_end(self, consumer: Member) -> None:
        del self._ready[consumer]
        self._ready[consumer] = None
        self._used[consumer] = self._worked_on[consumer] = None

    def ack_handed(self, now_s: float, *, gets_next: bool = False) -> None:
        """Ack what was handed out before; where the caller `gets_next`, what is asked for that says so."""
        used, self._used = self._used, {}
        asks = gets_next and not self.buffered and not self.troubled
        for consumer in used:
            consumer.ack_handed(now_s, gets_next=asks and consumer in self._to_ask)
