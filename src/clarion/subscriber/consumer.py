"""One subscription's consumer: it attaches, fetches ahead, hands out, acks. Events and the time come in, and what it
wants sent goes to the core's instructions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from clarion.model.errors import ClarionError, LeaseLost, NotSubscribed, PermanentError, StoredDataCorrupt, TakenOver
from clarion.model.names import to_text
from clarion.model.ranges import merged
from clarion.session.exchange import Reply
from clarion.subscriber.core_state import CoreState
from clarion.subscriber.lent_messages import LentMessages
from clarion.subscriber.positions import Positions
from clarion.wire import bodies
from clarion.wire.batch import BadBatch
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Kind
from clarion.wire.messages import Message, MessageBatch, unreadable

if TYPE_CHECKING:
    from clarion.subscriber.pattern_reader import PatternReader

Range = tuple[int, int]
_ACK_RANGES_AT_ONCE = 10_000
_ACK_AGAIN_S = 1.0  # where others must ack first
_RANGES_TOLD = 10
_LOST = frozenset({Code.LEASE_LOST, Code.MOVED})
_AS_OF = frozenset({Code.STALE, Code.MOVED, Code.LEASE_LOST})  # to an attach: the subscription has changed meanwhile


class Inbox:
    """Messages of one topic in the order in which they are handed out, whole batches or one by one."""

    def __init__(self, fetch_bytes: int, numbers: Iterator[int]) -> None:
        self._numbers = numbers  # of fetches and marks, the same for all topics of a subscriber
        self.fetch_bytes = fetch_bytes  # that a fetch asks for, and that may lie here when the next one is made
        self.buffered = 0  # messages
        self.bytes = 0
        self.empty = 0  # the newest fetch that was answered with nothing
        self._parts: deque[MessageBatch] = deque()
        self._loose_part: MessageBatch | None = None  # being handed out one by one
        self._loose: list[Message] = []  # what is left of it, last first

    def ask(self) -> int:
        """Return the number of a new fetch."""
        return next(self._numbers)

    def nothing_came(self, number: int) -> None:
        """A fetch was answered with nothing."""
        self.empty = max(self.empty, number)

    def add(self, part: MessageBatch) -> None:
        """Take in what came."""
        self._parts.append(part)
        self.buffered += len(part)
        self.bytes += len(part.batch.raw)

    def next_message(self) -> Message | None:
        """Return one message; None when there is none."""
        if not self._loose:
            if not self._parts:
                return None
            part = self._parts[0]
            _open(part)
            self._parts.popleft()
            self._loose_part = part
            self._loose = part.messages()
            self._loose.reverse()
            self.bytes -= len(part.batch.raw)
        self.buffered -= 1
        return self._loose.pop()

    def _gather_loose(self) -> None:
        if self._loose:
            part = self._loose_part
            assert part is not None
            self._parts.appendleft(part.cut(part.stop - len(self._loose), part.stop))
            self.bytes += len(part.batch.raw)
            self._loose = []

    def take(self, most: int, *, opened: bool = False) -> list[MessageBatch]:
        """Return up to `most` messages, where wanted all from batches whose messages can be looked at."""
        self._gather_loose()
        taken: list[MessageBatch] = []
        while most > 0 and self._parts:
            if opened:
                try:
                    _open(self._parts[0])
                except StoredDataCorrupt:
                    if taken:
                        break
                    raise
            part = self._parts.popleft()
            if len(part) > most:
                self._parts.appendleft(part.cut(part.start + most, part.stop))
                part = part.cut(part.start, part.start + most)
            else:
                self.bytes -= len(part.batch.raw)
            most -= len(part)
            self.buffered -= len(part)
            taken.append(part)
        return taken

    def put_back(self, part: MessageBatch) -> None:
        """Take back what was not used after all; it comes out first again."""
        self._gather_loose()
        self._parts.appendleft(part)
        self.buffered += len(part)
        self.bytes += len(part.batch.raw)

    def drop_first(self) -> MessageBatch:
        """Take out the batch that is next."""
        return self.take(len(self._parts[0]))[0]

    def ranges(self) -> list[tuple[int, int]]:
        """Return the offsets of what lies here."""
        self._gather_loose()
        return [(part.offsets.start, part.offsets.stop) for part in self._parts]

    def clear(self) -> None:
        """Drop all of it."""
        self._parts.clear()
        self._loose = []
        self._loose_part = None
        self.buffered = self.bytes = 0


def _open(part: MessageBatch) -> None:
    try:
        part.batch.open()
    except BadBatch as error:
        raise unreadable(part, error) from error


class Lease:
    """One attach of one consumer, by which it holds messages. Once it has an `error`, nothing can be done with its
    messages any more."""

    __slots__ = ("consumer", "error", "token")

    def __init__(self, consumer: Consumer, token: int) -> None:
        self.consumer = consumer
        self.token = token
        self.error: ClarionError | None = None

    def check(self) -> None:
        """Raise where the messages were taken away."""
        if self.error is not None:
            raise self.error.again()


class Asked:
    """A request of an attached consumer; `about` is what it was asked for."""

    __slots__ = ("about", "again", "at_once", "body", "channel", "kind", "wait_s")

    def __init__(
        self,
        channel: ConsumerChannel,
        kind: Kind,
        body: bodies.Body,
        about: Any,
        wait_s: float,
        again: bool,
        at_once: bool,
    ) -> None:
        self.channel = channel
        self.kind = kind
        self.body = body
        self.about = about
        self.wait_s = wait_s
        self.again = again
        self.at_once = at_once


class ConsumerChannel:
    """The requests of one attached consumer: what is refused for now is asked again, and nothing is heard any more once
    the consumer is lost. While it is shown to the broker what is held, nothing else is asked, so that nothing is lent
    that was not shown."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._showing = False
        self._until_shown: list[Asked] = []
        self._later: list[tuple[float, Asked]] = []

    def ask(
        self,
        kind: Kind,
        body: bodies.Body,
        about: Any = None,
        wait_s: float = 0.0,
        *,
        again: bool = True,
        at_once: bool = False,
    ) -> None:
        """Ask; without `again` the consumer gets refusals that are worth asking again as well, with `at_once` it asks
        before everything else, and gets the demand to show what is held."""
        self._send(Asked(self, kind, body, about, wait_s, again, at_once))

    def _send(self, asked: Asked) -> None:
        if self._showing and not asked.at_once:
            self._until_shown.append(asked)
        elif self._consumer.wants(asked):
            consumer = self._consumer
            consumer.state.send(consumer, asked, asked.kind, asked.body, (), asked.wait_s)

    def is_answer(self, asked: Asked, reply: Reply, now_s: float) -> bool:
        """Tell whether a reply is for the consumer; otherwise the request is asked again, or everything is lost."""
        refusal = reply.refusal()
        if refusal is None:
            return True
        if refusal.code in _LOST:
            self._consumer.on_lost(refusal, now_s)
        elif refusal.code == Code.SHOW_HELD and not asked.at_once:
            self._until_shown.append(asked)
            self.show(refusal.expected, now_s)
        elif asked.again and refusal.code in RETRIED:
            self._later.append((now_s + (reply.again_after_s() or 0.0), asked))
        else:
            return True
        return False

    def show(self, start: int, now_s: float) -> None:
        """Have it shown what is held, to this start of the broker, unless that is under way."""
        if not self._showing:
            self._showing = True
            self._consumer.show_held(start, now_s)

    def puts_off(self, kind: Kind) -> bool:
        """Whether a request of a kind was refused for now, and is to be asked again."""
        return any(asked.kind == kind for asked in (*self._until_shown, *(asked for _, asked in self._later)))

    def shown(self) -> None:
        """The broker knows what is held: ask again what waited for that."""
        self._showing = False
        waiting, self._until_shown = self._until_shown, []
        for asked in waiting:
            self._send(asked)

    def on_time(self, now_s: float) -> float | None:
        """Ask again what was refused for a time that is over; return when to come back."""
        if not self._later:
            return None
        due = [asked for when_s, asked in self._later if when_s <= now_s]
        self._later = [(when_s, asked) for when_s, asked in self._later if when_s > now_s]
        for asked in due:
            self._send(asked)
        return min((when_s for when_s, _ in self._later), default=None)


class Acks:
    """Offsets that are done and not known to be durable: one request at a time; what is acked meanwhile goes with the
    next one."""

    def __init__(self) -> None:
        self._noted: list[Range] = []
        self._sent: tuple[Range, ...] = ()
        self.again_at_s: float | None = None  # before which none is sent
        self.total = 0  # messages, as long as none is noted twice

    def note(self, start: int, stop: int) -> None:
        """Have a range acked with the next request."""
        self.total += stop - start
        if self._noted and self._noted[-1][1] == start:
            self._noted[-1] = (self._noted[-1][0], stop)
        else:
            self._noted.append((start, stop))

    @property
    def under_way(self) -> bool:
        """Whether a request is not answered yet."""
        return bool(self._sent)

    def done(self) -> bool:
        """Whether every ack is durable."""
        return not self._noted and not self._sent

    def ranges(self) -> list[Range]:
        """Return what is not known to be durable."""
        return merged([*self._sent, *self._noted])

    def take_next(self, now_s: float) -> tuple[Range, ...]:
        """Return what is to be sent now; nothing while a request is under way, or where it is too early."""
        if self.again_at_s is not None and now_s < self.again_at_s:
            return ()
        self.again_at_s = None
        if self._sent or not self._noted:
            return ()
        if len(self._noted) > 1:
            self._noted = merged(self._noted)
        self._sent = tuple(self._noted[:_ACK_RANGES_AT_ONCE])
        del self._noted[:_ACK_RANGES_AT_ONCE]
        return self._sent

    def confirm(self) -> None:
        """What was sent is durable."""
        self.total -= sum(stop - start for start, stop in self._sent)
        self._sent = ()

    def send_again(self, at_s: float) -> None:
        """What was sent was not taken for now."""
        self._noted[:0] = self._sent
        self._sent = ()
        self.again_at_s = at_s

    def clear(self) -> None:
        """Forget them all."""
        self._noted.clear()
        self._sent = ()
        self.again_at_s = None
        self.total = 0


class Consumer:
    """One subscription's consumer. Whoever calls it holds the client's lock.

    It attaches when something is wanted, and again after it was taken away; what is shared is borrowed, what is not is
    got by position. `error` is for the next call, whatever that does; a `notice` for the next that finds nothing else.
    """

    def __init__(self, topic: bytes, state: CoreState) -> None:
        self.topic = topic
        self.name = state.name
        self.state = state
        self.settings = state.settings
        self.inbox = Inbox(state.settings.fetch_bytes, state.numbers)
        self.error: ClarionError | None = None
        self.notice: ClarionError | None = None
        self.of_pattern = False  # whether it goes when its subscription does
        self.watchers: dict[PatternReader, None] = {}  # who follow more topics than this one, and want to hear of news
        self._nonce: bytes | None = None  # while attaching
        self._put_off: tuple[float, bodies.Attach] | None = None  # refused for now: when it is asked again, and what
        self._attach_sent_twice = False
        self.last_word: ClarionError | None = None  # of a broker that refuses it for now
        self._wanted = (0.0, 0)  # to be fetched once attached
        self.lease: Lease | None = None
        self.channel: ConsumerChannel | None = None
        self._fetch: Positions | LentMessages | None = None
        self.acks = Acks()
        self._handed: list[Range] = []  # handed out, to be acked by the next call

    # Attaching.

    def want(self, wait_s: float, messages: int, now_s: float) -> None:
        """See to it that something is fetched, waiting no longer than `wait_s`; 0 messages: as many as suits."""
        if self.error is not None or self.notice is not None:
            return
        if self._fetch is not None:
            self._fetch.want(wait_s, messages, now_s)
            return
        self._wanted = (wait_s, messages)
        if self._nonce is None:
            self._attach(now_s)

    def _attach(self, now_s: float) -> None:
        self._nonce = self.state.next_nonce()
        self._attach_sent_twice = False
        if self.state.requests.count.known is None:
            self.state.greet(self, now_s)
        else:
            self.on_greeted(None, now_s)

    def on_greeted(self, error: ClarionError | None, now_s: float) -> None:
        """Attach, as of what the broker counts."""
        if self._nonce is None:
            return
        if error is not None:
            self.fail(error)
            return
        as_of = self.state.requests.count.known or 0
        self._ask_attach(bodies.Attach(self.topic, self.name, self._nonce, self.settings.max_unacked, as_of))

    def _ask_attach(self, body: bodies.Attach) -> None:
        self.state.send(self, body, Kind.ATTACH, body)

    def on_reply(self, about: Any, reply: Reply, now_s: float) -> None:
        """Take in what the broker answered."""
        if isinstance(about, bodies.Attach):
            self._on_attached(about, reply, now_s)
        elif self.channel is None or self.channel is not about.channel:
            return  # it was asked by a lease that is lost
        elif self.channel.is_answer(about, reply, now_s):
            if about.kind == Kind.ACK and about.about is None:
                self._on_acked(reply, now_s)
            elif about.kind == Kind.DETACH:
                about.about.left = True
            elif self._fetch is not None:
                self._fetch.on_reply(about.kind, about.about, reply, now_s)

    def _on_attached(self, body: bodies.Attach, reply: Reply, now_s: float) -> None:
        if body.nonce != self._nonce:
            return
        self._attach_sent_twice = self._attach_sent_twice or reply.times_sent > 1
        again_s = reply.again_after_s()
        if again_s is not None:  # what others asked meanwhile had no room, say; on a full disk readers make some
            self._put_off, self.last_word = (now_s + again_s, body), reply.error()
            return
        self._nonce = self.last_word = None
        count = self.state.requests.count
        refusal = reply.refusal()
        if refusal is not None and refusal.code in _AS_OF:
            count.start_over(refusal)
            if refusal.code == Code.STALE and self._attach_sent_twice:
                self.fail(TakenOver(refusal.text))  # before another took it, or after: who can tell
            else:
                self._attach(now_s)
            return
        try:
            attached = reply.read(bodies.Attached)
            count.note(attached.token)
        except ClarionError as error:
            self.fail(error)
            return
        self.lease = Lease(self, attached.token)
        self.channel = ConsumerChannel(self)
        if attached.options.shared:
            self._fetch = LentMessages(self, self.channel, self.lease, attached, now_s)
        else:
            self._fetch = Positions(self, self.channel, self.lease, attached)
        self._fetch.want(*self._wanted, now_s)
        self.tell_news()

    def tell_news(self) -> None:
        """Tell those who follow more topics than this one that something may have changed."""
        for watcher in list(self.watchers):
            watcher.on_news(self)

    def wants(self, asked: Asked) -> bool:
        """Whether a request is still to be sent: not a return that is settled otherwise."""
        return asked.kind != Kind.RETURN or (
            isinstance(self._fetch, LentMessages) and self._fetch.is_returning(asked.about)
        )

    def show_held(self, start: int, now_s: float) -> None:
        """Say what is held, which a broker that began anew asked for."""
        if isinstance(self._fetch, LentMessages):
            self._fetch.show(start, now_s)
        else:
            self.fail(PermanentError("the broker asks what is held of a subscription that is not shared"))

    def show(self, start: int, now_s: float) -> None:
        """The broker asked a transaction for what is held."""
        if self.channel is not None:
            self.channel.show(start, now_s)

    def lose_lease(self, lease: Lease, text: str) -> None:
        """The broker said, to a transaction, that something of it is lost: begin anew, so that nothing is in doubt."""
        if lease is self.lease and isinstance(self._fetch, LentMessages):
            self.lose(text)

    # Ends and errors.

    @property
    def troubled(self) -> bool:
        """Whether the next call has something to hear of, even with messages left."""
        return self.error is not None

    def raise_error(self) -> None:
        """Raise what this call has to hear of; the next one goes on."""
        self.raise_ack_error()
        if self.notice is not None and not self.inbox.buffered:
            notice, self.notice = self.notice, None
            raise notice

    def raise_ack_error(self) -> None:
        """Raise what became of acks, handed out messages or the whole subscription."""
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def tell_once(self, error: ClarionError) -> None:
        """Tell the next call, which then goes on."""
        self.notice = error

    def fail(self, error: ClarionError) -> None:
        """What is fetched and handed out is nobody's any more."""
        self.end(error)
        self.error = error
        self.tell_news()

    def on_lost(self, refusal: bodies.Refused, now_s: float) -> None:
        """The broker says that the lease is good for nothing any more."""
        if refusal.code == Code.MOVED:
            self.end(LeaseLost(refusal.text))
        else:
            self.lose(refusal.text)

    def lose(self, text: str) -> None:
        """What was lent is others' now: forget it, and tell where an ack or nack was promised, or an ack may be."""
        self._settle()
        nacked = self._fetch.nacked() if isinstance(self._fetch, LentMessages) else []
        lost = [] if self.settings.at_most_once else merged([*self._handed, *self.acks.ranges(), *nacked])
        if self.lease is not None:  # in case the broker still counts anything as held by this one
            self.state.send(None, None, Kind.DETACH, self._detach(self.lease))
        self.end(LeaseLost(text))
        if lost:
            self.error = LeaseLost(f"{_told(lost)} of {to_text(self.topic)} will go, or went, to others: {text}")
        self.tell_news()

    def end(self, error: ClarionError) -> None:
        """Let go of everything; whoever still has messages of it gets the error."""
        if self.lease is not None:
            self.lease.error = error
        self.lease = self.channel = self._fetch = self._nonce = self._put_off = self.last_word = None
        self.inbox.clear()
        self._handed = []
        self.acks.clear()
        self.notice = None
        self.tell_news()

    def on_lost_store(self, error: ClarionError) -> None:
        """Nothing that is known of the subscription holds any more: attach anew, and begin where its cursor is."""
        attached = self.lease is not None or self._nonce is not None
        self.end(error)
        if attached and not self.of_pattern:
            self.error = error

    def _detach(self, lease: Lease) -> bodies.Detach:
        return bodies.Detach(self.topic, self.name, lease.token, tuple(merged(self.inbox.ranges())))

    def leave(self) -> Leaving | None:
        """Begin to leave a shared subscription, giving back what was not handed out as if it had never been lent."""
        if not isinstance(self._fetch, LentMessages) or self.lease is None:
            return None
        self._fetch.take_no_more()
        return Leaving(self, self.lease)

    def detach(self, leaving: Leaving) -> None:
        """Tell the broker that it leaves."""
        if self.channel is not None and self.lease is leaving.lease and not leaving.told:
            leaving.told = True
            self.channel.ask(Kind.DETACH, self._detach(leaving.lease), leaving)

    # Handing out.

    @property
    def buffered(self) -> int:
        """How many messages lie here."""
        return self.inbox.buffered

    @property
    def under_way(self) -> bool:
        """Whether an answer will come that brings messages, or says that there are none."""
        return self._nonce is not None if self._fetch is None else self._fetch.under_way

    @property
    def asked_at_once(self) -> bool:
        """Whether it will be known soon if there is anything."""
        return self._nonce is not None if self._fetch is None else self._fetch.asked_at_once

    def mark(self, now_s: float) -> int:
        """The application asks for more: return what `empty_since` takes."""
        self.came_back(now_s)
        return next(self.state.numbers)

    def came_back(self, now_s: float) -> None:
        """The application asks for more."""
        if self._fetch is not None:
            self._fetch.came_back(now_s)

    def empty_since(self, mark: object) -> bool:
        """Whether nothing was there when it was asked for after the mark, or nothing more can be had."""
        assert isinstance(mark, int)
        return self.inbox.empty > mark or (self._fetch is not None and self._fetch.full)

    def next_message(self, now_s: float) -> Message | None:
        """Return one message; None when there is none."""
        fetch = self._fetch
        self.came_back(now_s)
        try:
            message = self.inbox.next_message()
        except StoredDataCorrupt as error:
            self._pass_over_unreadable(str(error), now_s)
            raise
        if message is not None and fetch is not None:
            fetch.handed_out(1, now_s)
        return message

    def take(self, most: int, now_s: float, *, opened: bool = False) -> list[MessageBatch]:
        """Return up to `most` messages; with `opened` only such that can be looked at."""
        try:
            parts = self.inbox.take(most, opened=opened)
        except StoredDataCorrupt as error:
            self._pass_over_unreadable(str(error), now_s)
            raise
        if parts and self._fetch is not None:
            self._fetch.handed_out(sum(map(len, parts)), now_s)
        return parts

    def _pass_over_unreadable(self, reason: str, now_s: float) -> None:
        """Have what cannot be unpacked hold nobody up. It is told now; where others share the subscription they, and
        then the dead letters, take it, and otherwise it counts as read, as messages do that are gone."""
        part = self.inbox.drop_first()
        start, stop = part.offsets.start, part.offsets.stop
        if isinstance(self._fetch, LentMessages):
            self._fetch.give_back(start, stop, 0.0, reason)
        elif self._fetch is not None:
            self._fetch.take_ack(start, stop)
            self.send_acks(now_s)

    def hand_out(self, start: int, stop: int) -> None:
        """Have a range acked by the next call."""
        self._handed.append((start, stop))

    def put_back(self, part: MessageBatch) -> None:
        """Take back what was not used after all."""
        if part.lease is self.lease:
            self._handed = without(self._handed, part.offsets.start, part.offsets.stop)
            part.holder = part.keeper = None  # what is not handed out does not hold the client
            self.inbox.put_back(part)
            self.tell_news()

    # Acking.

    def ack_handed(self, now_s: float) -> None:
        """Ack what was handed out before."""
        if self._handed and self._fetch is not None:
            handed, self._handed = self._handed, []
            for start, stop in handed:
                self._fetch.take_ack(start, stop)
            self.send_acks(now_s)

    def ack(self, lease: Lease, start: int, stop: int, now_s: float) -> None:
        """Ack a range."""
        lease.check()
        assert self._fetch is not None
        self._fetch.take_ack(start, stop)
        self.send_acks(now_s)

    def nack(self, lease: Lease, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give a range back."""
        lease.check()
        if not isinstance(self._fetch, LentMessages):
            raise PermanentError(
                f"{to_text(self.name)} on {to_text(self.topic)} is not shared: its messages belong to this consumer"
                " alone and cannot be given back; leave them unacked, and they come again when it attaches anew"
            )
        self._handed = without(self._handed, start, stop)
        self._fetch.nack(start, stop, delay_s, reason)

    def renew(self, about: object, now_s: float) -> bool:
        """Renew the lease, and have `about` told; False where there is none to renew."""
        if not isinstance(self._fetch, LentMessages):
            return False
        self._fetch.beat(now_s, about)
        return True

    def check_held(self, start: int, stop: int) -> None:
        """Raise where a range of what is lent, or some of it, is decided already."""
        if isinstance(self._fetch, LentMessages):
            self._fetch.check_held(start, stop)

    def _settle(self) -> None:
        if isinstance(self._fetch, LentMessages):
            self._fetch.settle_acks()

    def acks_done(self) -> bool:
        """Whether everything acked or given back is durable."""
        return self.acks.done() and (not isinstance(self._fetch, LentMessages) or self._fetch.returns_done())

    def is_settled(self) -> bool:
        """Whether everything acked or given back is durable, or will not be."""
        return self.acks_done() or self.error is not None

    def raise_unless_settled(self) -> None:
        """Raise what became of acks; that a topic of a pattern went is no news."""
        if not self.is_settled():
            raise self.state.no_answer()
        if self.of_pattern and isinstance(self.error, NotSubscribed):
            self.error = None
        self.raise_ack_error()

    def on_time(self, now_s: float) -> float | None:
        """Do what is due by the clock; return when to come back."""
        if self._put_off is not None and now_s >= self._put_off[0]:
            body, self._put_off = self._put_off[1], None
            self._ask_attach(body)
        if self._fetch is None or self.channel is None:
            return None if self._put_off is None else self._put_off[0]
        self._settle()
        wanted = [self.channel.on_time(now_s), self.send_acks(now_s), self._fetch.on_time(now_s)]
        return min((moment_s for moment_s in wanted if moment_s is not None), default=None)

    def send_acks(self, now_s: float) -> float | None:
        """Send the acks that may be sent; return when to come back for others."""
        acked = self.acks.take_next(now_s)
        if acked:
            assert self.lease is not None
            assert self.channel is not None
            body = bodies.Ack(self.topic, self.name, self.lease.token, acked)
            self.channel.ask(Kind.ACK, body, again=False)
        return self.acks.again_at_s

    def _on_acked(self, reply: Reply, now_s: float) -> None:
        refusal = reply.refusal()
        again_s = reply.again_after_s()
        if refusal is None:
            self.acks.confirm()
            self._settle()
            self.send_acks(now_s)
        elif again_s is not None:
            self.acks.send_again(now_s + again_s)
        elif refusal.code == Code.LIMIT and isinstance(self._fetch, LentMessages):
            self.acks.send_again(now_s + _ACK_AGAIN_S)  # an older message, which another consumer has, holds it up
        else:
            self.fail(reply.error() or ClarionError(refusal.text))
        self.tell_news()

    # Transactions.

    def lend_to_transaction(self, lease: Lease, start: int, stop: int) -> None:
        """Have a transaction decide about a range; no later call acks it by itself."""
        lease.check()
        if self.settings.at_most_once:
            text = f"offset {start} of {to_text(self.topic)} was acked before it was handed out (at-most-once)"
            raise PermanentError(f"{text}: a transaction cannot ack it again, and need not")
        if isinstance(self._fetch, LentMessages):
            self._fetch.lend_to_transaction(start, stop)
        self._handed = without(self._handed, start, stop)

    def end_transaction(self, lease: Lease, start: int, stop: int, done: bool) -> None:
        """The transaction is over, and has acked the range or not."""
        if lease is self.lease and isinstance(self._fetch, LentMessages):
            self._fetch.end_transaction(start, stop, done)

    def stats(self) -> dict[str, Any]:
        """Return what can be seen of the consumer."""
        lent = self._fetch if isinstance(self._fetch, LentMessages) else None
        return {
            "buffered": self.inbox.buffered,
            "token": None if self.lease is None else self.lease.token,
            "shared": lent is not None,
            "held": 0 if lent is None else lent.held,
            "taken": 0 if lent is None else lent.taken,
        }


class Leaving:
    """A consumer that leaves, and whether the broker knows."""

    __slots__ = ("consumer", "lease", "left", "told")

    def __init__(self, consumer: Consumer, lease: Lease) -> None:
        self.consumer = consumer
        self.lease = lease
        self.told = self.left = False

    def is_over(self) -> bool:
        """Whether it has left; it does once nothing is being lent to it any more."""
        if not self.consumer.under_way:
            self.consumer.detach(self)
        return self.left or self.lease.error is not None


def without(ranges: list[Range], start: int, stop: int) -> list[Range]:
    """Return what of the ranges lies outside [start, stop)."""
    if not any(low < stop and start < high for low, high in ranges):
        return ranges
    left = [piece for low, high in ranges for piece in ((low, min(high, start)), (max(low, stop), high))]
    return [(low, high) for low, high in left if low < high]


def _told(ranges: list[Range]) -> str:
    texts = [str(start) if stop == start + 1 else f"{start} to {stop - 1}" for start, stop in ranges[:_RANGES_TOLD]]
    more = len(ranges) - len(texts)
    return f"offsets {', '.join(texts)}" + (f" and {more} more ranges" if more else "")
