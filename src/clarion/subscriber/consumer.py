"""One subscription's consumer: it attaches, fetches ahead, hands out, acks. Events and the time come in, and what it
wants sent goes to the core's instructions."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from clarion.model.errors import (
    ClarionError,
    LeaseLost,
    MessagesGone,
    NotSubscribed,
    PermanentError,
    StoredDataCorrupt,
    TakenOver,
)
from clarion.model.names import to_text
from clarion.model.ranges import AckedRanges, merged
from clarion.session.exchange import Reply
from clarion.subscriber.acks import Acks, Range, without
from clarion.subscriber.core_state import CoreState
from clarion.subscriber.inbox import Inbox
from clarion.subscriber.lent_messages import LentMessages
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Kind
from clarion.wire.messages import Message, MessageBatch

if TYPE_CHECKING:
    from clarion.subscriber.pattern_reader import PatternReader

_ACK_RANGES_AT_ONCE = 10_000
_ACK_AGAIN_S = 1.0  # where others must ack first
_RANGES_TOLD = 10
_MANY = 65_536
_ASKED_AGAIN = frozenset({Code.CORRUPT, Code.LIMIT})  # the next call asks again, and perhaps with more luck
_AS_OF = frozenset({Code.STALE, Code.MOVED, Code.LEASE_LOST})  # to an attach: the subscription has changed meanwhile


class Asked(NamedTuple):
    """A request of an attached consumer; `about` is what it was asked for."""

    attachment: Attachment
    kind: Kind
    body: bodies.Body
    about: Any
    wait_s: float
    again: bool
    at_once: bool


class Attachment:
    """One attach of one consumer, by which it asks for messages and holds them. Once it has an `error`, nothing can be
    done with its messages any more, and nothing is heard.

    What is refused for now is asked again. While it is shown to the broker what is held, nothing else is asked, so that
    nothing is lent that was not shown.
    """

    __slots__ = ("_later", "_showing", "_until_shown", "consumer", "error", "leaves", "left", "token", "who")

    def __init__(self, consumer: Consumer, token: int) -> None:
        self.consumer = consumer
        self.token = token
        self.who = consumer.topic, consumer.name, token  # as the consumer's requests say it
        self.error: ClarionError | None = None
        self.leaves = self.left = False  # whether the broker is told that it is given up, and knows
        self._showing = False
        self._until_shown: list[Asked] = []
        self._later: list[tuple[float, Asked]] = []

    def check(self) -> None:
        """Raise where the messages were taken away."""
        if self.error is not None:
            raise self.error.again()

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
        """Send a request, unless it is a return that is settled otherwise."""
        consumer = self.consumer
        if self._showing and not asked.at_once:
            self._until_shown.append(asked)
        elif asked.kind != Kind.RETURN or (consumer.lent is not None and asked.about in consumer.lent.returning):
            consumer.state.send(consumer, asked, asked.kind, asked.body, (), asked.wait_s)

    def is_answer(self, asked: Asked, reply: Reply, now_s: float) -> bool:
        """Tell whether a reply is for the consumer; otherwise the request is asked again, or everything is lost."""
        refusal = reply.refusal()
        if refusal is None:
            return True
        if refusal.code == Code.MOVED:
            self.consumer.end(LeaseLost(refusal.text))
        elif refusal.code == Code.LEASE_LOST:
            self.consumer.lose(refusal.text)
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
        if self._showing:
            return
        self._showing = True
        if self.consumer.lent is not None:
            self.consumer.lent.show(start, now_s)
        else:
            text = "the broker asks what is held of a subscription that is not shared"
            self.consumer.fail(PermanentError(text))

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


class Positions:
    """Gets what lies at and after a position: one consumer has a subscription to itself, and knows where it is. So the
    broker keeps no state for it, and a repeated get does no harm."""

    full = False

    def __init__(self, attachment: Attachment, attached: bodies.Attached) -> None:
        self._consumer = attachment.consumer
        self._attachment = attachment
        self._skip = AckedRanges(attached.cursor, attached.acked)  # not for this consumer
        self._position = attached.cursor
        self._end = 0
        self._waits: dict[int, float] = {}  # gets under way, with how long each waits at the broker

    @property
    def under_way(self) -> bool:
        """Whether a get is."""
        return bool(self._waits)

    @property
    def asked_at_once(self) -> bool:
        """Whether one is that does not wait."""
        return 0.0 in self._waits.values()

    def want(self, wait_s: float, messages: int, now_s: float) -> None:
        """See to it that a get is under way that waits no longer than `wait_s`."""
        if self._waits and (wait_s > 0 or 0.0 in self._waits.values()):
            return
        consumer = self._consumer
        number = next(consumer.state.numbers)
        self._waits[number] = wait_s
        most = max(messages, _MANY) if consumer.settings.prefetch or not messages else messages
        acked = consumer.acks.carry(number, now_s) if consumer.state.may_carry_acks else {}
        wait_ms = ceil(wait_s * 1000)
        said = tuple(acked.get(self._attachment, ()))
        body = bodies.Get(*self._attachment.who, self._position, most, consumer.fetch_bytes, wait_ms, said)
        self._attachment.ask(Kind.GET, body, number, wait_s)

    def on_answer(self, number: int) -> None:
        """A get is not under way any more."""
        del self._waits[number]

    def on_nothing(self, end: int) -> None:
        """There is nothing more up to the topic's end."""
        self._end = end

    def take_in(self, reply: Reply, now_s: float) -> bool:
        """Buffer what came, but for what is not for this consumer; tell whether what the get said to be acked is
        durable."""
        delivery = reply.read(bodies.Delivery)
        self._end = max(self._end, delivery.end)
        for start, stop in delivery.skip:
            self._skip.add(start, stop)
        for (first_offset, committed_at_us), blob in zip(delivery.batches, reply.blobs, strict=True):
            missed = self._skip.next_unacked(self._position)
            if first_offset > missed:  # what follows is asked for again, once this was told
                self.pass_over(missed, first_offset, f"offsets {missed} to {first_offset - 1} are gone", now_s)
                return delivery.acked
            try:
                batch = Batch.parse(blob)
            except BadBatch as error:
                raise StoredDataCorrupt(f"a batch at offset {first_offset} came damaged: {error}") from error
            batch_stop = first_offset + batch.count
            for start, stop in self._skip.unacked(max(self._position, first_offset), batch_stop):
                self._consumer.buffer(batch, first_offset, committed_at_us, start, stop)
            self._position = max(self._position, batch_stop)
        self._position = self._skip.next_unacked(self._position)
        self._skip.add(0, self._position)
        return delivery.acked

    def pass_over(self, start: int, stop: int, text: str, now_s: float) -> None:
        """Tell of messages that are gone, take them as done, and go on after them."""
        if stop > self._position:
            self._consumer.tell_gone(self._attachment, start, stop, text, now_s)
            self._position = stop
            self._skip.add(0, stop)

    def came_back(self, now_s: float) -> None:
        """The application asks for more; its pace does not matter where nobody waits for what is buffered."""

    def handed_out(self, messages: int, now_s: float) -> None:
        """Ask for more where it is known that there is more, so that it comes while this is worked on."""
        consumer = self._consumer
        if consumer.settings.prefetch and self._position < self._end and consumer.inbox.bytes < consumer.fetch_bytes:
            self.want(0.0, 1, now_s)

    def take_ack(self, start: int, stop: int) -> None:
        """Ack a range, whichever it is."""
        self._consumer.acks.note(self._attachment, start, stop)

    def on_time(self, now_s: float) -> float | None:
        """There is nothing to be done by the clock."""
        return None


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
        self.inbox = Inbox()
        self.fetch_bytes = state.settings.fetch_bytes  # that a fetch asks for, and that may lie here when it does
        self.empty = 0  # the newest fetch that was answered with nothing
        self.error: ClarionError | None = None
        self.notice: ClarionError | None = None
        self.of_pattern = False  # whether it goes when its subscription does
        self.watchers: dict[PatternReader, None] = {}  # who follow more topics than this one, and want to hear of news
        self._nonce: bytes | None = None  # while attaching
        self._put_off: tuple[float, bodies.Attach] | None = None  # refused for now: when it is asked again, and what
        self._attach_sent_twice = False
        self.last_word: ClarionError | None = None  # of a broker that refuses it for now
        self._wanted = (0.0, 0)  # to be fetched once attached
        self.attachment: Attachment | None = None
        self._fetch: Positions | LentMessages | None = None
        self.acks: Acks[Attachment] = Acks(_ACK_RANGES_AT_ONCE)
        self._handed: list[Range] = []  # handed out, to be acked by the next call

    @property
    def lent(self) -> LentMessages | None:
        """What is lent to it, where it is attached to a shared subscription."""
        return self._fetch if isinstance(self._fetch, LentMessages) else None

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
        self._nonce = next(self.state.requests.nonces)
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
        body = bodies.Attach(self.topic, self.name, self._nonce, self.settings.max_unacked, as_of)
        self.state.send(self, body, Kind.ATTACH, body)

    def on_reply(self, about: Any, reply: Reply, now_s: float) -> None:
        """Take in what the broker answered."""
        if isinstance(about, bodies.Attach):
            self._on_attached(about, reply, now_s)
        elif about.attachment.error is not None:
            return
        elif about.attachment.is_answer(about, reply, now_s):
            if about.kind in (Kind.GET, Kind.TAKE):
                self._on_fetched(about.about, reply, now_s)
            elif about.kind == Kind.ACK and about.body.acked:
                self._on_acked(reply, now_s)
            elif about.kind == Kind.DETACH:
                about.attachment.left = True
            elif self.lent is not None:
                self.lent.on_reply(about.kind, about.about, reply, now_s)
        elif about.kind == Kind.GET:  # it is asked again, nobody knows how often
            self.acks.on_carried(about.about, now_s, is_durable=False, is_refused=True)

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
        self.attachment = attachment = Attachment(self, attached.token)
        self._fetch = (
            LentMessages(attachment, attached, now_s) if attached.options.shared else Positions(attachment, attached)
        )
        self._fetch.want(*self._wanted, now_s)
        self.tell_news()

    def tell_news(self) -> None:
        """Tell those who follow more topics than this one that something may have changed."""
        for watcher in list(self.watchers):
            watcher.on_news(self)

    # What comes.

    def _on_fetched(self, number: int, reply: Reply, now_s: float) -> None:
        fetch = self._fetch
        assert fetch is not None
        fetch.on_answer(number)
        refusal = reply.refusal()
        acks, are_durable = self.acks, False
        try:
            if refusal is not None and refusal.code == Code.GONE and refusal.gone is not None:
                fetch.pass_over(*refusal.gone, refusal.text, now_s)
            elif reply.kind == Kind.MESSAGES:
                are_durable = fetch.take_in(reply, now_s)
            else:
                nothing = reply.read(bodies.NoMessages)
                are_durable = nothing.acked
                fetch.on_nothing(nothing.end)
                self.nothing_came(number)
        except ClarionError as error:
            if isinstance(error, StoredDataCorrupt) or (refusal is not None and refusal.code in _ASKED_AGAIN):
                self.notice = error
            else:
                self.fail(error)
        acks.on_carried(number, now_s, is_durable=are_durable, is_refused=refusal is not None)
        self.tell_news()

    def nothing_came(self, number: int) -> None:
        """A fetch was answered with nothing."""
        self.empty = max(self.empty, number)

    def buffer(
        self, batch: Batch, first_offset: int, committed_at_us: int, start: int, stop: int, attempt: int = 1
    ) -> None:
        """Have messages at offsets [start, stop) of a batch handed out."""
        part = MessageBatch(
            self.topic, batch, first_offset, committed_at_us,
            start - first_offset, stop - first_offset, self.attachment, attempt,
        )  # fmt: skip
        self.inbox.add((part,))

    def tell_gone(self, attachment: Attachment, start: int, stop: int, text: str, now_s: float) -> None:
        """Tell the next call, which then goes on, of messages that are gone, and take them as done."""
        error = MessagesGone(f"{to_text(self.topic)}: {text}; the next call goes on after them")
        error.topic, error.start, error.stop = self.topic, start, stop
        self.notice = error
        self.acks.note(attachment, start, stop)
        self.send_acks(now_s)

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

    def fail(self, error: ClarionError) -> None:
        """What is fetched and handed out is nobody's any more."""
        self.error = error
        self.end(error)

    def lose(self, text: str) -> None:
        """What was lent is others' now: forget it, and tell where an ack or nack was promised, or an ack may be."""
        self._settle()
        nacked = [] if self.lent is None else self.lent.nacked()
        lost = [] if self.settings.at_most_once else merged([*self._handed, *self.acks.ranges(), *nacked])
        if self.attachment is not None:  # in case the broker still counts anything as held by this one
            self.state.send(None, None, Kind.DETACH, self._detach(self.attachment))
        if lost:
            self.error = LeaseLost(f"{_told(lost)} of {to_text(self.topic)} will go, or went, to others: {text}")
        self.end(LeaseLost(text))

    def end(self, error: ClarionError) -> None:
        """Let go of everything; whoever still has messages of it gets the error."""
        if self.attachment is not None:
            self.attachment.error = error
        self.attachment = self._fetch = self._nonce = self._put_off = self.last_word = None
        self.inbox, self.acks, self._handed = Inbox(), Acks(_ACK_RANGES_AT_ONCE), []
        self.notice = None
        self.tell_news()

    def hand_over(self, error: ClarionError) -> None:
        """Leave the topic to a session, which begins next. What was handed out by a call before is acked by this one;
        what is neither acked nor handed out comes again."""
        done = merged([*self._handed, *self.acks.ranges()])
        if done and self.attachment is not None:
            self.state.send(None, None, Kind.ACK, bodies.Ack(*self.attachment.who, tuple(done)))
        self.end(error)

    def on_lost_store(self, error: ClarionError) -> None:
        """Nothing that is known of the subscription holds any more: attach anew, and begin where its cursor is."""
        attached = self.attachment is not None or self._nonce is not None
        self.end(error)
        if attached and not self.of_pattern:
            self.error = error

    def _detach(self, attachment: Attachment) -> bodies.Detach:
        return bodies.Detach(*attachment.who, tuple(merged(self.inbox.ranges())))

    def leave(self, *, at_once: bool = False) -> bool:
        """Leave a shared subscription, once nothing is being lent to it any more or `at_once`, giving back what was not
        handed out as if it had never been lent; tell whether the broker knows."""
        attachment = self.attachment
        if attachment is None or self.lent is None:
            return True
        self.lent.take_no_more()
        if not attachment.leaves and (at_once or not self.under_way):
            attachment.leaves = True
            attachment.ask(Kind.DETACH, self._detach(attachment))
        return attachment.left

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
        return self.empty > mark or (self._fetch is not None and self._fetch.full)

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
        if self.lent is not None:
            self.lent.give_back(start, stop, 0.0, reason)
        elif self._fetch is not None:
            self._fetch.take_ack(start, stop)
            self.send_acks(now_s)

    def hand_out(self, attachment: Attachment, start: int, stop: int) -> None:
        """Have a range acked by the next call."""
        self._handed.append((start, stop))

    def put_back(self, part: MessageBatch) -> None:
        """Take back what was not used after all."""
        if part.attachment is self.attachment:
            self._handed = without(self._handed, part.offsets.start, part.offsets.stop)
            part.holder = part.keeper = None  # what is not handed out does not hold the client
            self.inbox.put_back(part)
            self.tell_news()

    # Acking.

    def ack_handed(self, now_s: float, *, gets_next: bool = False) -> None:
        """Ack what was handed out before; where the caller `gets_next`, its get says so."""
        fetch = self._fetch
        if self._handed and fetch is not None:
            handed, self._handed = self._handed, []
            for start, stop in handed:
                fetch.take_ack(start, stop)
            is_got = gets_next and not self.inbox.buffered and self.error is None and self.notice is None
            if not is_got or self.lent is not None or fetch.under_way or not self.state.may_carry_acks:
                self.send_acks(now_s)

    def ack(self, attachment: Attachment, start: int, stop: int, now_s: float) -> None:
        """Ack a range."""
        attachment.check()
        assert self._fetch is not None
        self._fetch.take_ack(start, stop)
        self.send_acks(now_s)

    def nack(self, attachment: Attachment, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give a range back."""
        attachment.check()
        if self.lent is None:
            raise PermanentError(
                f"{to_text(self.name)} on {to_text(self.topic)} is not shared: its messages belong to this consumer"
                " alone and cannot be given back; leave them unacked, and they come again when it attaches anew"
            )
        self._handed = without(self._handed, start, stop)
        self.lent.give_back(start, stop, delay_s, reason, nacked=True)

    def _settle(self) -> None:
        if self.lent is not None:
            self.lent.settle_acks()

    def hurry_acks(self, now_s: float) -> None:
        """Somebody waits for every ack to be durable."""
        self.acks.take_back()
        self.send_acks(now_s)

    def acks_done(self) -> bool:
        """Whether everything acked or given back is durable."""
        return self.acks.done() and (self.lent is None or not self.lent.returning)

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
            self.state.send(self, body, Kind.ATTACH, body)
        if self._fetch is None or self.attachment is None:
            return None if self._put_off is None else self._put_off[0]
        self._settle()
        lie_until_s = self.acks.lie_until_s
        acks_s = self.send_acks(now_s) if now_s >= lie_until_s else lie_until_s
        wanted = [self.attachment.on_time(now_s), acks_s, self._fetch.on_time(now_s)]
        return min((moment_s for moment_s in wanted if moment_s is not None), default=None)

    def send_acks(self, now_s: float) -> float | None:
        """Send the acks that may be sent; return when to come back for others."""
        for attachment, acked in self.acks.take_next(now_s).items():
            attachment.ask(Kind.ACK, bodies.Ack(*attachment.who, tuple(acked)), again=False)
        return self.acks.again_at_s

    def _on_acked(self, reply: Reply, now_s: float) -> None:
        refusal = reply.refusal()
        again_s = reply.again_after_s()
        if refusal is None:
            self.acks.answered()
            self._settle()
            self.send_acks(now_s)
        elif again_s is not None:
            self.acks.send_again(now_s + again_s)
        elif refusal.code == Code.LIMIT and self.lent is not None:
            self.acks.send_again(now_s + _ACK_AGAIN_S)  # an older message, which another consumer has, holds it up
        else:
            self.fail(reply.error() or ClarionError(refusal.text))
        self.tell_news()

    # Transactions.

    def lend_to_transaction(self, attachment: Attachment, start: int, stop: int) -> None:
        """Have a transaction decide about a range; no later call acks it by itself."""
        attachment.check()
        if self.settings.at_most_once:
            text = f"offset {start} of {to_text(self.topic)} was acked before it was handed out (at-most-once)"
            raise PermanentError(f"{text}: a transaction cannot ack it again, and need not")
        if self.lent is not None:
            self.lent.lend_to_transaction(start, stop)
        self._handed = without(self._handed, start, stop)

    def stats(self) -> dict[str, Any]:
        """Return what can be seen of the consumer."""
        lent = self.lent
        return {
            "buffered": self.inbox.buffered,
            "token": None if self.attachment is None else self.attachment.token,
            "shared": lent is not None,
            "held": 0 if lent is None else lent.held,
            "taken": 0 if lent is None else lent.taken,
        }


def _told(ranges: list[Range]) -> str:
    texts = [str(start) if stop == start + 1 else f"{start} to {stop - 1}" for start, stop in ranges[:_RANGES_TOLD]]
    more = len(ranges) - len(texts)
    return f"offsets {', '.join(texts)}" + (f" and {more} more ranges" if more else "")
