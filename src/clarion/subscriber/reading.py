"""Reading one topic: attach, fetch ahead, hand out, ack. No socket, thread or clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clarion.model.errors import ClarionError, LeaseLost, PermanentError, StoredDataCorrupt, TakenOver
from clarion.model.names import to_text
from clarion.model.ranges import merged
from clarion.session.exchange import OnReply, Reply
from clarion.subscriber.acking import Acks, Range, without
from clarion.subscriber.choices import start_fields
from clarion.subscriber.claim import Claim, Steps
from clarion.subscriber.fetching import FetchSettings, Station
from clarion.subscriber.inbox import Inbox
from clarion.subscriber.line import Line
from clarion.subscriber.loans import Loans
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.positions import Positions
from clarion.subscriber.steps import Ports
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_ACK_AGAIN_S = 1.0  # where others must ack first
_RANGES_TOLD = 10
_AS_OF = frozenset({Code.STALE, Code.MOVED, Code.LEASE_LOST})  # to an attach: the subscription has changed meanwhile

__all__ = ["Reading", "start_fields"]


class Reading:
    """One subscription's consumer. Whoever calls it holds the client's lock.

    It attaches when something is wanted, and again after it was taken away; what is shared is borrowed, what is not is
    got by position. `error` is for the next call, whatever that does; a `notice` for the next that finds nothing else.
    """

    def __init__(
        self,
        topic: bytes,
        name: bytes,
        ports: Ports,
        settings: FetchSettings,
        *,
        on_answer: Callable[[Reading], None] = lambda _reading: None,
    ) -> None:
        self.topic = topic
        self.inbox = Inbox(settings.fetch_bytes, ports.numbers)
        self.error: ClarionError | None = None
        self.notice: ClarionError | None = None
        self.of_pattern = False  # whether it goes when its subscription does
        self.name = name
        self._ports = ports
        self._settings = settings
        self._on_answer = on_answer  # told so that it pumps, and for as long as that gives a moment to come back
        self._nonce: bytes | None = None  # while attaching
        self._put_off: tuple[float, bodies.Attach] | None = None  # refused for now: when it is asked again, and what
        self._attach_sent_twice = False
        self.last_word: ClarionError | None = None  # of a broker that refuses it for now
        self._wanted = (0.0, 0)  # to be fetched once attached
        self._claim: Claim | None = None
        self._line: Line | None = None
        self._fetch: Positions | Loans | None = None
        self._acks = Acks(self._send_acks)
        self._handed: list[Range] = []  # handed out, to be acked by the next call

    # Attaching.

    def want(self, wait_s: float, messages: int) -> None:
        """See to it that something is fetched, waiting no longer than `wait_s`; 0 messages: as many as suits."""
        if self.error is not None or self.notice is not None:
            return
        if self._fetch is not None:
            self._fetch.want(wait_s, messages)
            return
        self._wanted = (wait_s, messages)
        if self._nonce is None:
            self._attach()

    def _attach(self) -> None:
        nonce = self._nonce = self._ports.nonce()
        self._attach_sent_twice = False
        if self._ports.count.known is None:
            self._ports.greet(lambda error: self._on_greeted(nonce, error))
        else:
            self._on_greeted(nonce, None)

    def _on_greeted(self, nonce: bytes, error: ClarionError | None) -> None:
        if nonce != self._nonce:
            return
        if error is not None:
            self._fail(error)
            return
        as_of = self._ports.count.known or 0
        self._ask_attach(bodies.Attach(self.topic, self.name, nonce, self._settings.max_unacked, as_of))

    def _ask_attach(self, body: bodies.Attach) -> None:
        self._ask(Kind.ATTACH, body, lambda reply: self._on_attached(body, reply))

    def _ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None:
        def answered(reply: Reply) -> None:
            on_reply(reply)
            self._on_answer(self)

        self._ports.ask(kind, body, answered, blobs, wait_s)

    def _on_attached(self, body: bodies.Attach, reply: Reply) -> None:
        if body.nonce != self._nonce:
            return
        self._attach_sent_twice = self._attach_sent_twice or reply.times_sent > 1
        again_s = reply.again_after_s()
        if again_s is not None:  # what others asked meanwhile had no room, say; on a full disk readers make some
            self._put_off, self.last_word = (self._ports.clock_s() + again_s, body), reply.error()
            return
        self._nonce = self.last_word = None
        refusal = reply.refusal()
        if refusal is not None and refusal.code in _AS_OF:
            self._ports.count.start_over(refusal)
            if refusal.code == Code.STALE and self._attach_sent_twice:
                self._fail(TakenOver(refusal.text))  # before another took it, or after: who can tell
            else:
                self._attach()
            return
        try:
            attached = reply.read(bodies.Attached)
            self._ports.count.note(attached.token)
        except ClarionError as error:
            self._fail(error)
            self._changed()
            return
        claim = self._claim = Claim(self._ports.owner, self, attached.token)
        line = self._line = Line(self._ask, self._ports.clock_s, self._on_lost, self._show)
        station = Station(
            self.topic, self.name, self._settings, self._ports.clock_s, line, self.inbox, self._acks,
            self._tell_once, self._fail, self._lose, self._changed,
        )  # fmt: skip
        self._fetch = (Loans if attached.options.shared else Positions)(station, claim, attached)
        self._fetch.want(*self._wanted)
        self._changed()

    def _changed(self) -> None:
        self.inbox.tell_news()
        self._ports.on_change()

    def _show(self, start: int) -> None:
        if isinstance(self._fetch, Loans):
            self._fetch.show(start)
        else:
            self._fail(PermanentError("the broker asks what is held of a subscription that is not shared"))

    def show(self, start: int) -> None:
        """Say what is held, which a broker that began anew asked for."""
        if self._line is not None:
            self._line.show(start)

    def lose(self, claim: Claim, text: str) -> None:
        """The broker said, to a transaction, that something of it is lost: begin anew, so that nothing is in doubt."""
        if claim is self._claim and isinstance(self._fetch, Loans):
            self._lose(text)

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

    def _tell_once(self, error: ClarionError) -> None:
        self.notice = error

    def _fail(self, error: ClarionError) -> None:
        self.end(error)
        self.error = error
        self._changed()

    def _on_lost(self, refusal: bodies.Refused) -> None:
        if refusal.code == Code.MOVED:
            self.end(LeaseLost(refusal.text))
            self._changed()
        else:
            self._lose(refusal.text)

    def _lose(self, text: str) -> None:
        """What was lent is others' now: forget it, and tell where an ack or nack was promised, or an ack may be."""
        self._settle()
        nacked = self._fetch.nacked() if isinstance(self._fetch, Loans) else []
        lost = [] if self._settings.at_most_once else merged([*self._handed, *self._acks.ranges(), *nacked])
        if self._claim is not None:  # in case the broker still counts anything as held by this one
            self._ports.ask(Kind.DETACH, self._detach(self._claim), lambda _reply: None)
        self.end(LeaseLost(text))
        if lost:
            self.error = LeaseLost(f"{_told(lost)} of {to_text(self.topic)} will go, or went, to others: {text}")
        self._changed()

    def end(self, error: ClarionError) -> None:
        """Let go of everything; whoever still has messages of it gets the error."""
        if self._claim is not None and self._line is not None:
            self._claim.error = error
            self._line.close()
        self._claim = self._line = self._fetch = self._nonce = self._put_off = self.last_word = None
        self.inbox.clear()
        self._handed = []
        self._acks.clear()
        self.notice = None
        self.inbox.tell_news()

    def went_back(self, error: ClarionError) -> None:
        """Nothing that is known of the subscription holds any more: attach anew, and begin where its cursor is."""
        attached = self._claim is not None or self._nonce is not None
        self.end(error)
        if attached and not self.of_pattern:
            self.error = error

    def _detach(self, claim: Claim) -> bodies.Detach:
        return bodies.Detach(self.topic, self.name, claim.token, tuple(merged(self.inbox.ranges())))

    def detaching(self, deadline_s: float) -> Steps[None]:
        """Leave a shared subscription, giving back what was not handed out as if it had never been lent."""
        fetch, claim, line = self._fetch, self._claim, self._line
        if not isinstance(fetch, Loans) or claim is None or line is None:
            return
        fetch.take_no_more()
        yield from self._ports.until(lambda: claim.error is not None or not fetch.under_way, deadline_s)
        if claim.error is not None:
            return
        left: list[Reply] = []

        def on_reply(reply: Reply) -> None:
            left.append(reply)
            self._ports.on_change()

        line.ask(Kind.DETACH, self._detach(claim), on_reply)
        yield from self._ports.until(lambda: bool(left) or claim.error is not None, deadline_s)

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

    def mark(self) -> int:
        """The application asks for more: give what `empty_since` takes."""
        self.came_back()
        return next(self._ports.numbers)

    def came_back(self) -> None:
        """The application asks for more."""
        if self._fetch is not None:
            self._fetch.came_back()

    def empty_since(self, mark: object) -> bool:
        """Whether nothing was there when it was asked for after the mark, or nothing more can be had."""
        assert isinstance(mark, int)
        return self.inbox.empty > mark or (self._fetch is not None and self._fetch.full)

    def next_message(self) -> Message | None:
        """Give one message; None when there is none."""
        fetch = self._fetch
        self.came_back()
        try:
            message = self.inbox.next_message()
        except StoredDataCorrupt as error:
            self._pass_over_unreadable(str(error))
            raise
        if message is not None and fetch is not None:
            fetch.handed_out(1)
        return message

    def take(self, most: int, *, opened: bool = False) -> list[MessageBatch]:
        """Give up to `most` messages; with `opened` only such that can be looked at."""
        try:
            parts = self.inbox.take(most, opened=opened)
        except StoredDataCorrupt as error:
            self._pass_over_unreadable(str(error))
            raise
        if parts and self._fetch is not None:
            self._fetch.handed_out(sum(map(len, parts)))
        return parts

    def _pass_over_unreadable(self, reason: str) -> None:
        """Have what cannot be unpacked hold nobody up. It is told now; where others share the subscription they, and
        then the dead letters, take it, and otherwise it counts as read, as messages do that are gone."""
        part = self.inbox.drop_first()
        start, stop = part.offsets.start, part.offsets.stop
        if isinstance(self._fetch, Loans):
            self._fetch.give_back(start, stop, 0.0, reason)
        elif self._fetch is not None:
            self._fetch.take_ack(start, stop)
            self._acks.pump(self._ports.clock_s())

    def hand_out(self, start: int, stop: int) -> None:
        """Have a range acked by the next call."""
        self._handed.append((start, stop))

    def put_back(self, part: MessageBatch) -> None:
        """Take back what was not used after all."""
        if part.claim is self._claim:
            self.inbox.put_back(part)
            self._changed()

    # Acking.

    def ack_handed(self) -> None:
        """Ack what was handed out before."""
        if self._handed and self._fetch is not None:
            handed, self._handed = self._handed, []
            for start, stop in handed:
                self._fetch.take_ack(start, stop)
            self._acks.pump(self._ports.clock_s())

    def ack(self, claim: Claim, start: int, stop: int) -> None:
        """Ack a range."""
        claim.check()
        assert self._fetch is not None
        self._fetch.take_ack(start, stop)
        self._acks.pump(self._ports.clock_s())

    def nack(self, claim: Claim, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give a range back."""
        claim.check()
        if not isinstance(self._fetch, Loans):
            raise PermanentError(
                f"{to_text(self.name)} on {to_text(self.topic)} is not shared: its messages belong to this consumer"
                " alone and cannot be given back; leave them unacked, and they come again when it attaches anew"
            )
        self._handed = without(self._handed, start, stop)
        self._fetch.nack(start, stop, delay_s, reason)

    def extending(self, claim: Claim, start: int, stop: int) -> Steps[None]:
        """Renew the lease, and wait until the broker says that it did."""
        claim.check()
        fetch = self._fetch
        if not isinstance(fetch, Loans):
            return
        told: list[bool] = []

        def answered() -> None:
            told.append(True)
            self._ports.on_change()

        fetch.beat(answered)
        deadline_s = self._ports.clock_s() + self._ports.timeout_s
        if not (yield from self._ports.until(lambda: bool(told) or claim.error is not None, deadline_s)):
            raise self._ports.no_answer()
        claim.check()
        fetch.check_held(start, stop)

    def _settle(self) -> None:
        if isinstance(self._fetch, Loans):
            self._fetch.settle_acks()

    def acks_done(self) -> bool:
        """Whether everything acked or given back is durable."""
        return self._acks.done() and (not isinstance(self._fetch, Loans) or self._fetch.returns_done())

    def pump(self, now_s: float) -> float | None:
        """Do what is due by the clock; give when to come back."""
        if self._put_off is not None and now_s >= self._put_off[0]:
            body, self._put_off = self._put_off[1], None
            self._ask_attach(body)
        if self._fetch is None or self._line is None:
            return None if self._put_off is None else self._put_off[0]
        self._settle()
        wanted = [self._line.pump(now_s), self._acks.pump(now_s), self._fetch.pump(now_s)]
        return min((moment_s for moment_s in wanted if moment_s is not None), default=None)

    def _send_acks(self, acked: tuple[Range, ...]) -> None:
        assert self._claim is not None
        assert self._line is not None
        body = bodies.Ack(self.topic, self.name, self._claim.token, acked)
        self._line.ask(Kind.ACK, body, self._on_acked, again=False)

    def _on_acked(self, reply: Reply) -> None:
        now_s = self._ports.clock_s()
        refusal = reply.refusal()
        again_s = reply.again_after_s()
        if refusal is None:
            self._acks.confirm()
            self._settle()
            self._acks.pump(now_s)
        elif again_s is not None:
            self._acks.send_again(now_s + again_s)
        elif refusal.code == Code.LIMIT and isinstance(self._fetch, Loans):
            self._acks.send_again(now_s + _ACK_AGAIN_S)  # an older message, which another consumer has, holds it up
        else:
            self._fail(reply.error() or ClarionError(refusal.text))
        self._changed()

    # Transactions.

    def lend_to_transaction(self, claim: Claim, start: int, stop: int) -> None:
        """Have a transaction decide about a range; no later call acks it by itself."""
        claim.check()
        if self._settings.at_most_once:
            text = f"offset {start} of {to_text(self.topic)} was acked before it was handed out (at-most-once)"
            raise PermanentError(f"{text}: a transaction cannot ack it again, and need not")
        if isinstance(self._fetch, Loans):
            self._fetch.lend_to_transaction(start, stop)
        self._handed = without(self._handed, start, stop)

    def end_transaction(self, claim: Claim, start: int, stop: int, done: bool) -> None:
        """The transaction is over, and has acked the range or not."""
        if claim is self._claim and isinstance(self._fetch, Loans):
            self._fetch.end_transaction(start, stop, done)

    def stats(self) -> dict[str, Any]:
        """Give what can be seen of the reading."""
        loans = self._fetch if isinstance(self._fetch, Loans) else None
        return {
            "buffered": self.inbox.buffered,
            "token": None if self._claim is None else self._claim.token,
            "shared": loans is not None,
            "held": 0 if loans is None else loans.held,
            "taken": 0 if loans is None else loans.taken,
        }


def _told(ranges: list[Range]) -> str:
    texts = [str(start) if stop == start + 1 else f"{start} to {stop - 1}" for start, stop in ranges[:_RANGES_TOLD]]
    more = len(ranges) - len(texts)
    return f"offsets {', '.join(texts)}" + (f" and {more} more ranges" if more else "")
