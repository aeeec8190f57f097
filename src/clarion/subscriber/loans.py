"""Fetching by loan: several consumers share a subscription, and each message is lent to one of them.

Takes are numbered, and one is under way at a time. A number is used until it has brought messages: so whatever the
broker lent for it, even to a copy of the request that came late, comes with the next answer. What is held is told only
when the broker asks for it (SHOW_HELD): said at any other time, it could come late, to a broker that began anew, and
lack what was lent since. So the heartbeat is an ack of nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from clarion.model.errors import ClarionError, LeaseLost, StoredDataCorrupt
from clarion.model.names import to_text
from clarion.model.ranges import Span, Spans
from clarion.session.exchange import Reply
from clarion.subscriber.claim import Claim
from clarion.subscriber.fetching import Station, gone_error
from clarion.subscriber.messages import MessageBatch
from clarion.subscriber.pace import Pace
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

_UNTOUCHED_S = 1.0  # for which borrowed messages may lie here before others get their chance
_BEATS_IN_FLIGHT = 3
_ASKED_AGAIN = frozenset({Code.CORRUPT, Code.LIMIT})  # the next call asks again, and perhaps with more luck


class Loans:
    """Borrows messages, keeps them while this consumer lives, and gives back what it does not use."""

    shared = True

    def __init__(self, station: Station, claim: Claim, attached: bodies.Attached) -> None:
        self._station = station
        self._claim = claim
        self._lease_s = attached.options.lease_s
        self._beat_at_s = station.clock_s() + self._lease_s / 3
        self._beats = 0  # in flight
        self._undecided = Spans()  # lent, neither acked nor given back, with the attempt of each
        self._to_ack: list[tuple[int, int]] = []  # of it, acked since the last ack was sent
        self._returning: dict[int, list[Span]] = {}  # given back, not yet confirmed
        self._untried: set[int] = set()  # which of these were not worked on
        self._nacked: set[int] = set()  # which the application gave back, and counts on that
        self._returns = 0
        self._releases = 0  # returns of what was not worked on
        self._releasing = False  # what is given back now may be lent to us again for the same attempt
        self._committing = Spans()  # in a transaction that is under way
        self._number = 1  # of the take under way, or the next one
        self.under_way = False  # whether a take is
        self._take_waits_s = 0.0
        self._take_number = 0  # among all fetches
        self._wanted = 0  # messages at a time, by the application; 0: it takes them one by one
        self._more = False  # whether more is known to be there
        self._pace = Pace(station.settings.max_unacked // 2)
        self._touched_s = station.clock_s()
        self._finding_out = False
        self._leaving = False
        self.taken = 0  # messages

    # Taking.

    @property
    def held(self) -> int:
        """How many messages are lent and not known to be done."""
        returning = sum(stop - start for spans in self._returning.values() for start, stop, _ in spans)
        return self._undecided.total + self._station.acks.total + returning + self._committing.total

    @property
    def full(self) -> bool:
        """Whether nothing more can be borrowed before the application acks something."""
        return self._undecided.total >= self._station.settings.max_unacked

    @property
    def asked_at_once(self) -> bool:
        """Whether it will be known soon if nothing can be had."""
        return self._finding_out or (self.under_way and self._take_waits_s <= 0)

    def take_no_more(self) -> None:
        """Begin to leave."""
        self._leaving = True
        if self.under_way and self._take_waits_s > 0:
            self.under_way = False  # nothing was there; what it still brings is given back as tried

    def want(self, wait_s: float, messages: int) -> None:
        """See to it that a take is under way, and that it is known soon if nothing can be had and `wait_s` is 0."""
        if self.under_way:
            if wait_s <= 0 < self._take_waits_s and not self._finding_out:
                self._find_out_if_empty()
            return
        self._wanted = messages
        self._take(wait_s, messages or self._pace.next_loan())

    def _take(self, wait_s: float, messages: int) -> None:
        station = self._station
        room = station.settings.max_unacked - self.held
        if room <= 0 or self._releasing or self._leaving:
            return
        self.under_way = True
        self._take_waits_s = wait_s
        number = self._take_number = station.inbox.ask()
        body = bodies.Take(
            station.topic, station.name, self._claim.token, self._number,
            min(room, messages), station.inbox.fetch_bytes, ceil(wait_s * 1000),
        )  # fmt: skip
        station.line.ask(Kind.TAKE, body, lambda reply: self._on_taken(number, reply), wait_s)

    def _find_out_if_empty(self) -> None:
        """Ask something behind the take that waits: what could be lent to it would come before the answer to this."""
        number, behind = self._station.inbox.ask(), self._take_number

        def answered() -> None:
            self._finding_out = False
            if self.under_way and self._take_number == behind and not self._station.line.puts_off(Kind.TAKE):
                self._station.inbox.nothing_came(number)
            self._station.changed()

        self._finding_out = True
        self.beat(answered)

    def _on_taken(self, number: int, reply: Reply) -> None:
        self.under_way = False
        station = self._station
        refusal = reply.refusal()
        try:
            if refusal is not None and refusal.code == Code.GONE and refusal.gone is not None:
                start, stop = refusal.gone
                station.tell_once(gone_error(station.topic, start, stop, refusal.text))
                station.acks.note(start, stop)
                station.acks.pump(station.clock_s())
            elif reply.kind == Kind.MESSAGES:
                self._take_loan(reply.read(bodies.Lent), reply)
            else:
                reply.read(bodies.NoMessages)
                self._more = False
                station.inbox.nothing_came(number)
        except ClarionError as error:
            if refusal is not None and refusal.code in _ASKED_AGAIN:
                station.tell_once(error)
            else:
                station.fail(error)
        station.changed()

    def _take_loan(self, loan: bodies.Lent, reply: Reply) -> None:
        self._number += 1
        self._more = loan.waiting > 0
        self._touched_s = self._station.clock_s()
        lent = Spans()
        for start, stop, attempt in loan.lent:
            lent.take(start, stop)
            lent.add(start, stop, attempt)
        self._leave_out_known(lent)
        for span in lent:
            self._undecided.add(*span)
        self.taken += lent.total
        for (first_offset, committed_at_us), blob in zip(loan.batches, reply.blobs, strict=True):
            try:
                batch = Batch.parse(blob)
            except BadBatch:
                continue  # what it should hold is left over
            for start, stop, attempt in lent.take(first_offset, first_offset + batch.count):
                part = MessageBatch(
                    self._station.topic, batch, first_offset, committed_at_us,
                    start - first_offset, stop - first_offset, self._claim.ack, self._claim, attempt,
                )  # fmt: skip
                self._station.inbox.add(part)
        if lent.total:
            start, stop, _ = lent[0]
            for low, high, _ in lent:
                self.give_back(low, high, self._lease_s, "it came damaged")
            text = f"offset {start} of {to_text(self._station.topic)} came damaged, and was given back"
            self._station.tell_once(StoredDataCorrupt(text))

    def _leave_out_known(self, lent: Spans) -> None:
        """Take out what is here already: whatever the broker thinks it does, an attempt is handed out once."""
        ours = [span[:2] for span in (*self._undecided, *self._committing)]
        for start, stop in (*ours, *self._station.acks.ranges()):
            lent.take(start, stop)

    # Handing out.

    def came_back(self) -> None:
        """The application asks for more."""
        self._pace.come_back(self._station.clock_s())

    def handed_out(self, messages: int) -> None:
        """Note that the application works on messages, and borrow ahead where it will soon want more."""
        now_s = self._station.clock_s()
        self._touched_s = now_s
        self._pace.hand_out(messages, now_s)
        inbox = self._station.inbox
        if (
            self._station.settings.prefetch
            and self._more
            and not self.under_way
            and inbox.bytes < inbox.fetch_bytes
            and self._pace.is_needed_soon(inbox.buffered, self._wanted or 1)
        ):
            self._take(0.0, self._wanted or self._pace.next_loan())

    # Done, or given back.

    def take_ack(self, start: int, stop: int) -> None:
        """Ack what of a range is undecided; the rest is decided already."""
        if self._to_ack and self._to_ack[-1][1] == start:
            self._to_ack[-1] = (self._to_ack[-1][0], stop)
        else:
            self._to_ack.append((start, stop))
        if not self._station.acks.under_way:  # otherwise many are looked at together, when that is answered
            self.settle_acks()

    def settle_acks(self) -> None:
        """Decide about all that was acked."""
        if self._to_ack:
            to_ack, self._to_ack = self._to_ack, []
            for start, stop in to_ack:
                for low, high, _ in self._undecided.take(start, stop):
                    self._station.acks.note(low, high)

    def nack(self, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give back, for the application and as tried, what of a range is undecided."""
        number = self.give_back(start, stop, delay_s, reason)
        if number is not None:
            self._nacked.add(number)

    def nacked(self) -> list[tuple[int, int]]:
        """Give what the application gave back and is not known to be durable."""
        return [span[:2] for number in self._nacked for span in self._returning.get(number, ())]

    def give_back(self, start: int, stop: int, delay_s: float, reason: str) -> int | None:
        """Give back, as tried, what of a range is undecided; gives the number of that, if there is anything."""
        self.settle_acks()
        return self._give_back(self._undecided.take(start, stop), True, max(0, int(delay_s * 1000)), reason)

    def _give_back(self, spans: list[Span], counted: bool, delay_ms: int = 0, reason: str = "") -> int | None:
        if not spans:
            return None
        station = self._station
        self._returns += 1
        number = self._returns
        self._returning[number] = spans
        if not counted:
            self._untried.add(number)
        self._releases += not counted
        body = bodies.Return(
            station.topic, station.name, self._claim.token, tuple(spans), counted, delay_ms, reason,
            0 if counted else self._releases,
        )  # fmt: skip

        def answered(reply: Reply) -> None:
            self._returning.pop(number, None)
            self._untried.discard(number)
            self._nacked.discard(number)
            if not counted:
                self._releasing = False
            error = reply.error()
            if error is not None:
                station.fail(error)
            station.changed()

        station.line.ask(Kind.RETURN, body, answered, still=lambda: number in self._returning)
        return number

    def returns_done(self) -> bool:
        """Whether everything given back is durable."""
        return not self._returning

    def check_held(self, start: int, stop: int) -> None:
        """Raise where a range, or some of it, is decided already."""
        self.settle_acks()
        if not self._undecided.covers(start, stop):
            text = f"offsets {start} to {stop - 1} of {to_text(self._station.topic)} are acked or given back already"
            raise LeaseLost(text + ", or are in another transaction")

    def lend_to_transaction(self, start: int, stop: int) -> None:
        """Have a transaction decide about a range."""
        self.check_held(start, stop)
        for span in self._undecided.take(start, stop):
            self._committing.add(*span)

    def end_transaction(self, start: int, stop: int, done: bool) -> None:
        """The transaction is over."""
        for span in self._committing.take(start, stop):
            if not done:
                self._undecided.add(*span)

    # Staying alive.

    def beat(self, answered: Callable[[], None] | None = None) -> None:
        """Tell the broker that this consumer lives, and hear of it when it is too late for that."""
        station = self._station

        def on_reply(reply: Reply) -> None:
            self._beats -= 1
            error = reply.error()
            if error is not None:
                station.fail(error)
            elif answered is not None:
                answered()

        self._beats += 1
        self._beat_at_s = station.clock_s() + self._lease_s / 3
        body = bodies.Ack(station.topic, station.name, self._claim.token, ())
        station.line.ask(Kind.ACK, body, on_reply)

    def show(self, start: int) -> None:
        """Say what is held, which a broker that began anew cannot know; `start` tells it from later starts.

        What was given back untried is not: nothing of that was stored, and it may be lent to another already. What was
        tried is: the broker knows by the attempt whether it came back before, and the request is repeated.
        """
        station = self._station
        self.settle_acks()
        for number in self._untried:
            self._returning.pop(number, None)
        self._untried.clear()
        self._releasing = False
        returning = [span for spans in self._returning.values() for span in spans]
        acking = [(start, stop, 0) for start, stop in station.acks.ranges()]
        held = (*self._undecided, *self._committing, *returning, *acking)
        body = bodies.Renew(
            station.topic, station.name, self._claim.token, held, start, self._number - 1, self._releases
        )
        station.line.ask_at_once(Kind.RENEW, body, self._on_shown)

    def _on_shown(self, reply: Reply) -> None:
        refusal = reply.refusal()
        if refusal is not None and refusal.code == Code.SHOW_HELD:  # it began anew once more
            self.show(refusal.expected)
            return
        try:
            renewed = reply.read(bodies.Renewed)
        except ClarionError as error:
            self._station.fail(error)
            return
        self._lease_s = renewed.lease_s
        if any(self._counts_on(*lost) for lost in renewed.lost):
            self._station.lose("the broker began anew and lent to others what this consumer held")
            return
        self._station.line.shown()
        self._station.changed()

    def _counts_on(self, start: int, stop: int) -> bool:
        """Whether the application believes to have something of a range, or to have given it back."""
        nacked = any(low < stop and start < high for low, high in self.nacked())
        return nacked or bool(self._undecided.within(start, stop) or self._committing.within(start, stop))

    def pump(self, now_s: float) -> float | None:
        """Do what is due by the clock; give when to come back."""
        wanted_s: list[float] = []
        if self._station.settings.heartbeats:
            if now_s >= self._beat_at_s:
                self._beat_at_s = now_s + self._lease_s / 3
                if self._beats < _BEATS_IN_FLIGHT:
                    self.beat()
            wanted_s.append(self._beat_at_s)
        if self._station.inbox.buffered and not self.under_way and not self._releasing:
            if now_s >= self._touched_s + _UNTOUCHED_S:
                self._release()
            else:
                wanted_s.append(self._touched_s + _UNTOUCHED_S)
        return min(wanted_s, default=None)

    def _release(self) -> None:
        """Give back what was borrowed ahead and lies untouched: others can work on it meanwhile."""
        inbox = self._station.inbox
        self.settle_acks()
        spans: list[Span] = []
        for part in reversed(inbox.take(inbox.buffered)):
            taken = self._undecided.take(part.offsets.start, part.offsets.stop)
            if taken:
                spans += taken
            else:  # it is being acked before it is handed out
                inbox.put_back(part)
        self._pace.slow_down()
        self._touched_s = self._station.clock_s()
        self._releasing = bool(spans)
        self._more = True
        self._give_back(spans, False)
