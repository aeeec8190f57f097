"""Reading many topics in one go: a fetch session brings messages of all of them in one reply, keeps them in the order
in which they came, and acks them in one request.

The broker remembers how far it has sent each topic, and with every fetch hears which answer was the last that came.
What is sent again, since a reply was lost or the broker began anew, the session knows and drops. The name is Kafka's
(KIP-227).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import TYPE_CHECKING, Any

from clarion.model.errors import (
    ClarionError,
    LeaseLost,
    MessagesGone,
    PermanentError,
    StoredDataCorrupt,
    TakenOver,
)
from clarion.model.names import to_text
from clarion.model.ranges import AckedRanges, merged
from clarion.session.exchange import AGAIN_S, Reply
from clarion.subscriber.acks import Acks, Range, Ranges, add_range, without
from clarion.subscriber.core_state import CoreState, no_longer_reads
from clarion.subscriber.inbox import Inbox
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import RETRIED, Code, error_of
from clarion.wire.frames import Buffer, Kind
from clarion.wire.messages import Message, MessageBatch

if TYPE_CHECKING:
    from clarion.subscriber.pattern_reader import PatternReader

_ACKS_AT_ONCE = 20_000
_MANY = 65_536
_COPIED_BELOW_BYTES = 8192  # a batch that is smaller does not keep the whole reply in memory
_AS_OF = frozenset({Code.STALE, Code.MOVED, Code.LEASE_LOST})  # to a begin: something has changed meanwhile


class FetchedTopic:
    """One topic of a session, for as long as it is read with one token. Messages have it as their `attachment`: once it
    has an `error`, nothing can be done with them any more."""

    __slots__ = ("consumer", "error", "name", "number", "position", "skip", "token")

    def __init__(self, session: FetchSession, number: int, name: bytes, token: int, position: int) -> None:
        self.consumer = session
        self.number = number
        self.name = name
        self.token = token
        self.position = position  # of the next message to come
        self.skip: AckedRanges | None = None  # what lies above that and is not for this reader
        self.error: ClarionError | None = None

    @property
    def who(self) -> tuple[bytes, bytes, int]:
        """Whose messages they are, as requests say it."""
        return self.name, self.consumer.name, self.token

    def check(self) -> None:
        """Raise where the messages were taken away."""
        if self.error is not None:
            raise self.error.again()

    def show(self, start: int, now_s: float) -> None:
        """Nothing of it is held for a time: there is nothing to show."""

    def pass_over(self, start: int, stop: int) -> None:
        """Leave out what is not for this reader."""
        if self.skip is None:
            self.skip = AckedRanges(self.position)
        self.skip.add(start, stop)
        self._go_on(self.position)

    def take_in(self, first: int, stop: int) -> list[Range] | None:
        """Return what of a batch's offsets is new, and go on after them; None where something before them is missing.
        What follows `position` without a gap needs none of this."""
        skip = self.skip or AckedRanges(self.position)
        if first > skip.next_unacked(self.position):
            return None
        new = skip.unacked(max(self.position, first), stop)
        self._go_on(max(self.position, stop))
        return new

    def _go_on(self, position: int) -> None:
        if self.skip is not None:
            position = self.skip.next_unacked(position)
            self.skip.add(0, position)
            if not len(self.skip):
                self.skip = None
        self.position = position


class _Begun:
    """One session as the broker knows it: how it was begun, what it has to show, and what is under way."""

    __slots__ = ("again_at_s", "body", "got", "is_told", "number", "put_off_s", "sent_twice", "token", "waits")

    def __init__(self, body: bodies.BeginFetch | None = None) -> None:
        self.body = body  # None until the broker has said what it counts
        self.token: int | None = None  # None as long as it is not begun, or has to be begun again
        self.sent_twice = False  # the begin, so that one that is refused may have been taken before
        self.put_off_s: float | None = None  # when it is begun again
        self.number = 0  # of the last fetch
        self.got = 0  # the serial of the last answer that was taken in
        self.waits: dict[int, float] = {}  # fetches under way, as the core numbers them, with how long each waits
        self.again_at_s = 0.0  # before which none is sent
        self.is_told = False  # since the last fetch, that another consumer took something over


class _OutOfStep(Exception):
    """What came does not follow what was there: the session has to begin anew."""


class FetchSession:
    """The session of one reader of patterns and topics. Whoever calls it holds the client's lock.

    It begins when something is wanted, and again after it was taken away. `error` is for the next call, whatever that
    does; `notices` are for those that find nothing else.
    """

    lent = None  # nothing here is lent for a time

    def __init__(self, reader: PatternReader, topics: tuple[bytes, ...], state: CoreState) -> None:
        self.name = state.name
        self._reader = reader
        self._topics_read = topics
        self._state = state
        self._settings = state.settings
        self._topics: dict[int, FetchedTopic] = {}  # by number
        self._dropped: set[int] = set()  # topics that are read otherwise, or not at all: what still comes is not wanted
        self._inbox = Inbox()
        self._begun: _Begun | None = None
        self._wanted = (0.0, 0)  # to be fetched once begun
        self._empty = 0  # the newest fetch that was answered with nothing
        self._more = False  # whether the last reply was full, so that there is more
        self.error: ClarionError | None = None
        self.notices: list[ClarionError] = []
        self.last_word: ClarionError | None = None  # of a broker that refuses it for now
        self._handed: Ranges[FetchedTopic] = {}  # handed out, to be acked by the next call
        self._acks: Acks[FetchedTopic] = Acks(_ACKS_AT_ONCE)
        self._hurries = False  # somebody waits for the acks

    # Beginning.

    def want(self, wait_s: float, messages: int, now_s: float) -> None:
        """See to it that a fetch is under way that waits no longer than `wait_s`; 0 messages: as many as suits."""
        if self.error is not None or self.notices:
            return
        begun = self._begun
        if begun is None:
            self._begun = _Begun()
            self._wanted = (wait_s, messages)
            self._state.greet(self, now_s)
        elif begun.token is None:
            self._wanted = (wait_s, messages)
        elif now_s >= begun.again_at_s and not (begun.waits and (wait_s > 0 or 0.0 in begun.waits.values())):
            self._fetch(begun, begun.token, wait_s, messages, now_s)

    def on_greeted(self, error: ClarionError | None, now_s: float) -> None:
        """Begin, as of what the broker counts."""
        begun = self._begun
        if begun is None or begun.body is not None:
            return
        if error is not None:
            self.fail(error)
            return
        self._reader.on_session_begins()
        requests = self._state.requests
        begun.body = bodies.BeginFetch(self._topics_read, self.name, next(requests.nonces), requests.count.known or 0)
        self._send_begin(begun)

    def _send_begin(self, begun: _Begun) -> None:
        assert begun.body is not None
        begun.put_off_s = None
        self._state.send(self, begun.body, Kind.BEGIN_FETCH, begun.body)

    def _on_begun(self, begun: _Begun, reply: Reply, now_s: float) -> None:
        is_again = begun.number > 0
        begun.sent_twice = begun.sent_twice or reply.times_sent > 1
        again_s = reply.again_after_s()
        if again_s is not None:
            begun.put_off_s, self.last_word = now_s + again_s, reply.error()
            return
        self.last_word = None
        count, refusal = self._state.requests.count, reply.refusal()
        if refusal is not None and refusal.code == Code.VERSION:
            self._give_way()
            return
        if refusal is not None and refusal.code in _AS_OF:
            count.start_over(refusal)
            if begun.is_told:
                self.end(TakenOver(refusal.text))  # by what became of the acks
            elif refusal.code == Code.STALE and (begun.sent_twice or is_again):
                self.fail(TakenOver(refusal.text))  # before another took it, or after: who can tell
            else:
                self._begin_anew(LeaseLost(refusal.text), now_s)
            return
        try:
            answer = reply.read(bodies.FetchBegun)
        except ClarionError as error:
            self.fail(error)
            return
        if answer.shared:
            self._give_way()
            return
        count.note(max(answer.token, answer.count))
        begun.token, begun.got = answer.token, 0
        if not is_again:
            self._reader.on_session_begun()
        self.want(*self._wanted, now_s)

    def _give_way(self) -> None:
        """Have the topics read one by one: they are shared, or the broker is of an older version, now or again."""
        self.end(LeaseLost("this is read topic by topic from now on; what was not acked comes again"))
        self._reader.read_each_topic()

    def _begin_anew(self, error: ClarionError, now_s: float) -> None:
        """Forget all that is held, and go on from the cursors."""
        self.end(error)
        self.want(*self._wanted, now_s)

    # Fetching.

    def _fetch(self, begun: _Begun, token: int, wait_s: float, messages: int, now_s: float) -> None:
        number = next(self._state.numbers)
        begun.waits[number] = wait_s
        begun.number += 1
        self._wanted = (wait_s, messages)
        most = max(messages, _MANY) if self._settings.prefetch or not messages else messages
        most_bytes, wait_ms = self._settings.fetch_bytes, ceil(wait_s * 1000)
        acks = _packed(self._acks.carry(number, now_s))
        body = bodies.Fetch(self.name, token, begun.number, most, most_bytes, wait_ms, begun.got, acks)
        self._state.send(self, (begun, number), Kind.FETCH, body, (), wait_s)

    def on_reply(self, about: Any, reply: Reply, now_s: float) -> None:
        """Take in what the broker answered."""
        if isinstance(about, Acks):
            if about is self._acks:
                self._on_acked(reply, now_s)
        elif isinstance(about, bodies.BeginFetch):
            if self._begun is not None and self._begun.body is about:
                self._on_begun(self._begun, reply, now_s)
        else:
            begun, number = about
            if self._begun is not None and self._begun is begun:
                self._on_fetched(self._begun, number, reply, now_s)
        self._reader.on_news(self)

    def _on_fetched(self, begun: _Begun, number: int, reply: Reply, now_s: float) -> None:
        wait_s = begun.waits.pop(number)
        begun.is_told = begun.is_told and reply.refusal() is not None
        if reply.kind == Kind.MESSAGES:
            try:
                fetched = reply.read(bodies.Fetched)
                self._on_carried(number, fetched.acked, fetched.refused, now_s)
                self._take_in(fetched, reply.blobs, now_s)
                begun.got = max(begun.got, fetched.serial)
            except StoredDataCorrupt as error:
                self.notices.append(error)  # and as it did not get it, it is sent it again
            except _OutOfStep:
                self._wanted = (wait_s, self._wanted[1])
                self._begin_anew(LeaseLost("messages were lost on the way, and come again"), now_s)
            except ClarionError as error:
                self.fail(error)
            return
        refusal = reply.refusal()
        is_acked = refusal is None and reply.read(bodies.NoMessages).acked
        self._on_carried(number, is_acked, (), now_s)
        if refusal is None:
            self._empty = max(self._empty, number)
            self._more = False
        elif refusal.code == Code.NO_SESSION:
            if begun.token is not None:  # of several that were under way, the first
                begun.token = None
                self._send_begin(begun)
        elif refusal.code == Code.VERSION:
            self._give_way()
        elif refusal.code in RETRIED:
            begun.again_at_s = now_s + (reply.again_after_s() or AGAIN_S)
        else:
            self.fail(error_of(refusal.code, refusal.text))

    def _take_in(self, fetched: bodies.Fetched, blobs: Any, now_s: float) -> None:
        """Buffer what came, but for what is here already or not for this reader."""
        if fetched.topics or fetched.left or fetched.gone or fetched.skip or fetched.trouble or fetched.shared:
            self._hear(fetched, now_s)
        parts: list[MessageBatch] = []
        try:
            came = self._unpack(fetched.batches, blobs, parts)
        finally:  # also what came before something damaged: its topics have gone on
            self._inbox.add(parts)
        self._more = came >= self._settings.fetch_bytes // 2

    def _unpack(self, batches: Iterable[tuple[int, int, int, int]], blobs: Any, parts: list[MessageBatch]) -> int:
        """Add the parts that are new, and have their topics go on; return how many bytes came."""
        frames = iter(blobs)
        frame: Buffer = b""
        at = end = came = 0
        topics = self._topics
        for number, first, committed_at_us, size in batches:
            if at >= end:
                frame = next(frames, b"")
                at, end = 0, len(frame)
            raw = frame[at : at + size]
            at += size
            came += size
            topic = topics.get(number)
            if topic is None:
                if number in self._dropped:
                    continue
                raise _OutOfStep
            try:
                batch = Batch.parse(bytes(raw) if size < _COPIED_BELOW_BYTES else raw)
            except BadBatch as error:
                text = f"a batch at offset {first} of {to_text(topic.name)} came damaged: {error}"
                raise StoredDataCorrupt(text) from error
            if first == topic.position and topic.skip is None:
                topic.position = first + batch.count
                parts.append(MessageBatch(topic.name, batch, first, committed_at_us, 0, batch.count, topic))
                continue
            new = topic.take_in(first, first + batch.count)
            if new is None:
                raise _OutOfStep
            parts += [
                MessageBatch(topic.name, batch, first, committed_at_us, start - first, stop - first, topic)
                for start, stop in new
            ]
        return came

    def _hear(self, fetched: bodies.Fetched, now_s: float) -> None:
        """Take in what is told of topics, which holds before the batches that come with it."""
        for number, name, token, cursor in fetched.topics:
            self._follow(number, name, token, cursor)
        for number, code, text in fetched.left:
            self._leave(number, code, text)
        if fetched.topics or fetched.left:
            self._inbox.drop_void()
        for number, start, stop in fetched.gone:
            topic = self._topics.get(number)
            if topic is not None and stop > topic.position:
                self._tell_gone(topic, start, stop)
                topic.pass_over(0, stop)
        for number, start, stop in fetched.skip:
            topic = self._topics.get(number)
            if topic is not None:
                topic.pass_over(start, stop)
        self.notices += [error_of(code, text) for number, code, text in fetched.trouble if number in self._topics]
        if fetched.shared:
            self._reader.read_alone(fetched.shared)
        if fetched.gone:
            self.send_acks(now_s)

    def _follow(self, number: int, name: bytes, token: int, cursor: int) -> None:
        known = self._topics.get(number)
        if known is not None and known.token == token and known.name == name:
            if cursor > known.position:
                known.pass_over(0, cursor)
            return
        if known is not None:
            self._void(known, LeaseLost(f"{to_text(name)} was sought elsewhere, or made again"))
        if name in self._reader.members:
            self._dropped.add(number)
        else:
            self._dropped.discard(number)
            self._topics[number] = FetchedTopic(self, number, name, token, cursor)

    def _leave(self, number: int, code: int, text: str) -> None:
        """A topic is no longer of this session; whoever has messages of it hears why when it acks them."""
        topic = self._topics.get(number)
        if topic is None:
            return
        self._dropped.add(number)
        if code == Code.NOT_SUBSCRIBED:
            self._void(topic, no_longer_reads(self.name, topic.name))
            return
        error = error_of(code, text)
        self._void(topic, error)
        if code != Code.MOVED:
            self.error = error

    def drop(self, topic: FetchedTopic, error: ClarionError) -> list[Range]:
        """Read a topic no longer, as this client has decided; return what of it was handed out or acked, as far as that
        is not known to be durable."""
        self._dropped.add(topic.number)
        done = self._void(topic, error)
        self._inbox.drop_void()
        return done

    def hand_over(self, name: bytes) -> None:
        """Leave a topic to a consumer of its own, which attaches next. What was handed out by a call before is acked by
        this one; what is neither acked nor handed out comes again."""
        for topic in [topic for topic in self._topics.values() if topic.name == name]:
            error = LeaseLost(f"{to_text(name)} is read alone from now on: what was not acked comes again")
            acks = _packed({topic: merged(self.drop(topic, error))})
            if acks:
                self._state.send(None, None, Kind.ACK_MANY, bodies.AckMany(self.name, acks, True))

    def _void(self, topic: FetchedTopic, error: ClarionError) -> list[Range]:
        topic.error = error
        del self._topics[topic.number]
        return self._handed.pop(topic, []) + self._acks.drop(topic)

    def topics(self) -> list[FetchedTopic]:
        """Return those that something came of."""
        return list(self._topics.values())

    def _tell_gone(self, topic: FetchedTopic, start: int, stop: int) -> None:
        """Tell the next call, which then goes on, of messages that are gone, and take them as done."""
        name = to_text(topic.name)
        error = MessagesGone(f"{name}: offsets {start} to {stop - 1} are gone; the next call goes on after them")
        error.topic, error.start, error.stop = topic.name, start, stop
        self.notices.append(error)
        self._acks.note(topic, start, stop)

    # Ends and errors.

    @property
    def notice(self) -> ClarionError | None:
        """What a call that finds nothing else has to hear of."""
        return self.notices[0] if self.notices else None

    @property
    def troubled(self) -> bool:
        """Whether the next call has something to hear of, even with messages left."""
        return self.error is not None

    def raise_error(self) -> None:
        """Raise what this call has to hear of; the next one goes on."""
        self._raise_ack_error()
        if self.notices and not self._inbox.buffered:
            raise self.notices.pop(0)

    def _raise_ack_error(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def fail(self, error: ClarionError) -> None:
        """What is fetched and handed out is nobody's any more."""
        self.error = error
        self.end(error)

    def end(self, error: ClarionError) -> None:
        """Let go of everything; whoever still has messages of it gets the error."""
        for topic in self._topics.values():
            topic.error = error
        self._topics, self._dropped, self._inbox = {}, set(), Inbox()
        self._handed, self._acks = {}, Acks(_ACKS_AT_ONCE)
        self._begun = self.last_word = None
        self._more = self._hurries = False
        self.notices = []

    def leave(self, *, at_once: bool = False) -> bool:
        """There is nothing that others wait for: tell that the broker knows."""
        return True

    # Handing out.

    @property
    def buffered(self) -> int:
        """How many messages lie here."""
        return self._inbox.buffered

    @property
    def under_way(self) -> bool:
        """Whether an answer will come that brings messages, or says that there are none."""
        return self._begun is not None and (self._begun.token is None or bool(self._begun.waits))

    @property
    def asked_at_once(self) -> bool:
        """Whether it will be known soon if there is anything."""
        return self._begun is not None and (self._begun.token is None or 0.0 in self._begun.waits.values())

    def came_back(self, now_s: float) -> None:
        """The application asks for more; its pace does not matter where nobody waits for what is buffered."""

    def empty_since(self, mark: object) -> bool:
        """Whether nothing was there when it was asked for after the mark."""
        assert isinstance(mark, int)
        return self._empty > mark

    def next_message(self, now_s: float) -> Message | None:
        """Return one message; None when there is none."""
        try:
            message = self._inbox.next_message()
        except StoredDataCorrupt:
            self._pass_over_unreadable(now_s)
            raise
        if self._more:
            self._fetch_ahead(now_s)
        return message

    def take(self, most: int, now_s: float, *, opened: bool = False) -> list[MessageBatch]:
        """Return up to `most` messages; with `opened` only such that can be looked at."""
        try:
            parts = self._inbox.take(most, opened=opened)
        except StoredDataCorrupt:
            self._pass_over_unreadable(now_s)
            raise
        if self._more:
            self._fetch_ahead(now_s)
        return parts

    def _fetch_ahead(self, now_s: float) -> None:
        """Ask for more where there is more, so that it comes while this is worked on. Otherwise it is asked for when
        the application comes back: the more it takes until then, the more comes at once."""
        if self._settings.prefetch and self._inbox.bytes < self._settings.fetch_bytes and not self.under_way:
            self.want(0.0, 0, now_s)

    def _pass_over_unreadable(self, now_s: float) -> None:
        """Have what cannot be unpacked hold nobody up: it is told now, and counts as read, as what is gone does."""
        part = self._inbox.drop_first()
        self._acks.note(part.attachment, part.offsets.start, part.offsets.stop)
        self.send_acks(now_s)

    def hand_out(self, topic: FetchedTopic, start: int, stop: int) -> None:
        """Have a range acked by the next call."""
        add_range(self._handed, topic, start, stop)

    def put_back(self, part: MessageBatch) -> None:
        """Take back what was not used after all."""
        if part.attachment.error is None:
            self._keep_from_ack(part.attachment, part.offsets.start, part.offsets.stop)
            part.holder = part.keeper = None  # what is not handed out does not hold the client
            self._inbox.put_back(part)
            self._reader.on_news(self)

    def _keep_from_ack(self, topic: FetchedTopic, start: int, stop: int) -> None:
        left = without(self._handed.pop(topic, []), start, stop)
        if left:
            self._handed[topic] = left

    # Acking.

    def ack_handed(self, now_s: float, *, gets_next: bool = False) -> None:
        """Ack what was handed out before; where the caller `gets_next`, the fetch for that says so."""
        if self._handed:
            handed, self._handed = self._handed, {}
            self._acks.note_all(handed)
            is_got = gets_next and not self._inbox.buffered and self.error is None and not self.notices
            if not is_got or self.under_way:
                self.send_acks(now_s)

    def ack(self, topic: FetchedTopic, start: int, stop: int, now_s: float) -> None:
        """Ack a range."""
        topic.check()
        self._acks.note(topic, start, stop)
        self.send_acks(now_s)

    def nack(self, topic: FetchedTopic, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Messages that no other consumer could take cannot be given back."""
        topic.check()
        raise PermanentError(
            f"{to_text(self.name)} on {to_text(topic.name)} is not shared: its messages belong to this consumer"
            " alone and cannot be given back; leave them unacked, and they come again when it attaches anew"
        )

    def hurry_acks(self, now_s: float) -> None:
        """Somebody waits for every ack to be durable, also of what is acked right after this."""
        self._acks.take_back()
        self._hurries = bool(self._handed) or not self.acks_done()
        self.send_acks(now_s)

    def send_acks(self, now_s: float) -> float | None:
        """Send the acks that may be sent; return when to come back for others."""
        acks = self._acks.take_next(now_s)
        if acks:
            self._state.send(self, self._acks, Kind.ACK_MANY, bodies.AckMany(self.name, _packed(acks), self._hurries))
        return self._acks.again_at_s

    def _on_carried(self, number: int, is_durable: bool, refused: bodies.Refusals, now_s: float) -> None:
        said = self._acks.on_carried(number, now_s, is_durable=is_durable)
        self._on_refused_acks(said, refused, now_s, is_durable=is_durable)

    def _on_acked(self, reply: Reply, now_s: float) -> None:
        again_s = reply.again_after_s()
        try:
            if again_s is None:
                refused = reply.read(bodies.AcksDone).refused
                self._on_refused_acks(self._acks.answered(), refused, now_s, is_durable=True)
            else:
                self._acks.send_again(now_s + again_s)
        except ClarionError as error:
            self.fail(error)
        self._hurries = self._hurries and not self.acks_done()
        self.send_acks(now_s)

    def _on_refused_acks(
        self, said: Ranges[FetchedTopic], refused: bodies.Refusals, now_s: float, *, is_durable: bool
    ) -> None:
        """Take in why acks of some topics were not taken; what is not durable is said again anyway."""
        if not refused:
            return
        topics = {topic.number: topic for topic in said}
        for number, code, text in refused:
            topic = topics.get(number)
            if topic is None or topic.error is not None:
                continue
            if code in RETRIED:
                if is_durable:
                    self._acks.note_all({topic: said[topic]})
                self._acks.again_at_s = now_s + AGAIN_S
            elif code in (Code.TAKEN_OVER, Code.NOT_SUBSCRIBED, Code.MOVED):
                self._leave(number, code, text)
                if self._begun is not None and code == Code.TAKEN_OVER:
                    self._begun.is_told = True
            else:
                raise error_of(code, text)
        self._inbox.drop_void()

    def acks_done(self) -> bool:
        """Whether everything acked is durable."""
        return self._acks.done()

    def is_settled(self) -> bool:
        """Whether everything acked is durable, or will not be."""
        return self.acks_done() or self.error is not None

    def raise_unless_settled(self) -> None:
        """Raise what became of acks."""
        if not self.is_settled():
            raise self._state.no_answer()
        self._raise_ack_error()

    def on_time(self, now_s: float) -> float | None:
        """Do what is due by the clock; return when to come back."""
        lie_until_s = self._acks.lie_until_s
        wanted = [self.send_acks(now_s) if now_s >= lie_until_s else lie_until_s]
        begun = self._begun
        if begun is not None and begun.put_off_s is not None:
            if now_s >= begun.put_off_s:
                self._send_begin(begun)
            wanted.append(begun.put_off_s)
        if begun is not None and begun.again_at_s > now_s:
            wanted.append(begun.again_at_s)  # whoever waits wants it then
        return min((moment_s for moment_s in wanted if moment_s is not None), default=None)

    def lend_to_transaction(self, topic: FetchedTopic, start: int, stop: int) -> None:
        """Have a transaction decide about a range; no later call acks it by itself."""
        topic.check()
        if self._settings.at_most_once:
            text = f"offset {start} of {to_text(topic.name)} was acked before it was handed out (at-most-once)"
            raise PermanentError(f"{text}: a transaction cannot ack it again, and need not")
        self._keep_from_ack(topic, start, stop)

    def stats(self) -> dict[str, Any]:
        """Return what can be seen of the session."""
        token = None if self._begun is None else self._begun.token
        return {"buffered": self._inbox.buffered, "token": token, "shared": False, "held": 0, "taken": 0}

    def stats_by_topic(self) -> dict[bytes, dict[str, Any]]:
        """Return the same of each topic."""
        buffered: dict[bytes, int] = {}
        for part in self._inbox.parts():
            buffered[part.topic] = buffered.get(part.topic, 0) + len(part)
        return {
            topic.name: {**self.stats(), "buffered": buffered.get(topic.name, 0), "token": topic.token}
            for topic in self._topics.values()
        }


def _packed(ranges: Ranges[FetchedTopic]) -> bodies.Acks:
    """Return acks as requests say them, those of a topic next to each other."""
    return tuple([(topic.number, topic.token, start, stop) for topic, some in ranges.items() for start, stop in some])
