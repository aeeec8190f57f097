"""Messages that are lent: several consumers share a subscription, and each message is lent to one of them.

Takes are numbered, and one is under way at a time. A number is used until it has brought messages: so whatever the
broker lent for it, even to a copy of the request that came late, comes with the next answer. What is held is told only
when the broker asks for it (SHOW_HELD): said at any other time, it could come late, to a broker that began anew, and
lack what was lent since. So the heartbeat is an ack of nothing.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from clarion.model.errors import ClarionError, LeaseLost, StoredDataCorrupt
from clarion.model.names import to_text
from clarion.model.ranges import Span, Spans
from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

if TYPE_CHECKING:
    from clarion.subscriber.consumer import Attachment

GOAL_S = 1.0  # of work that is borrowed at a time
SOON_S = 0.25  # of work that is left when more is borrowed ahead
_UNTOUCHED_S = 1.0  # for which borrowed messages may lie here before others get their chance
_BEATS_IN_FLIGHT = 3


class Pace:
    """How fast the application works messages off, as far as its calls tell; so how far ahead it borrows: as much as it
    works off within a second, found out by doubling."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._size = 1
        self._may_grow = False  # once something was worked off
        self._each_s: float | None = None  # that a message takes, the last ones counting most
        self._out = 0  # messages that the application works on
        self._out_since_s = 0.0

    def hand_out(self, messages: int, now_s: float) -> None:
        """The application goes away with messages."""
        self._out += messages
        self._out_since_s = now_s

    def come_back(self, now_s: float) -> None:
        """The application asks for more: what it had is worked off."""
        if self._out:
            each_s = (now_s - self._out_since_s) / self._out
            self._each_s = each_s if self._each_s is None else (self._each_s + each_s) / 2
            self._out = 0
            self._may_grow = True

    def next_size(self) -> int:
        """Return how many messages to borrow now, where the application does not say it."""
        if self._each_s is not None:
            fits = self._most if self._each_s * self._most <= GOAL_S else int(GOAL_S / self._each_s)
            self._size = max(1, min(2 * self._size if self._may_grow else self._size, fits))
            self._may_grow = False
        return self._size

    def is_needed_soon(self, buffered: int, wanted: int) -> bool:
        """Tell whether the application, which asks for `wanted` at a time, will have worked off what is buffered before
        more could be there."""
        if self._each_s is None or self._each_s * wanted > GOAL_S:
            return False
        return self._each_s * buffered <= SOON_S

    def slow_down(self) -> None:
        """What was borrowed ahead was not wanted in time: begin with one again."""
        self._size = 1
        self._each_s = None


class Returned(NamedTuple):
    """What was given back."""

    spans: list[Span]
    tried: bool  # whether it was worked on
    nacked: bool = False  # whether the application gave it back, and counts on that


class LentMessages:
    """Borrows messages, keeps them while this consumer lives, and gives back what it does not use."""

    def __init__(self, attachment: Attachment, attached: bodies.Attached, now_s: float) -> None:
        self._consumer = consumer = attachment.consumer
        self._attachment = attachment
        self._lease_s = attached.options.lease_s
        self._beat_at_s = now_s + self._lease_s / 3
        self._beats = 0  # in flight
        self._undecided = Spans()  # lent, neither acked nor given back, with the attempt of each
        self._to_ack: list[tuple[int, int]] = []  # of it, acked since the last ack was sent
        self.returning: dict[int, Returned] = {}  # not yet confirmed, by number
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
        self._pace = Pace(consumer.settings.max_unacked // 2)
        self._touched_s = now_s
        self._finding_out = False
        self._leaving = False
        self.taken = 0  # messages

    # Taking.

    @property
    def held(self) -> int:
        """How many messages are lent and not known to be done."""
        returning = sum(stop - start for given in self.returning.values() for start, stop, _ in given.spans)
        return self._undecided.total + self._consumer.acks.total + returning + self._committing.total

    @property
    def full(self) -> bool:
        """Whether nothing more can be borrowed before the application acks something."""
        return self._undecided.total >= self._consumer.settings.max_unacked

    @property
    def asked_at_once(self) -> bool:
        """Whether it will be known soon if nothing can be had."""
        return self._finding_out or (self.under_way and self._take_waits_s <= 0)

    def take_no_more(self) -> None:
        """Begin to leave."""
        self._leaving = True
        if self.under_way and self._take_waits_s > 0:
            self.under_way = False  # nothing was there; what it still brings is given back as tried

    def want(self, wait_s: float, messages: int, now_s: float) -> None:
        """See to it that a take is under way, and that it is known soon if nothing can be had and `wait_s` is 0."""
        if self.under_way:
            if wait_s <= 0 < self._take_waits_s and not self._finding_out:
                self._find_out_if_empty(now_s)
            return
        self._wanted = messages
        self._take(wait_s, messages or self._pace.next_size())

    def _take(self, wait_s: float, messages: int) -> None:
        consumer = self._consumer
        room = consumer.settings.max_unacked - self.held
        if room <= 0 or self._releasing or self._leaving:
            return
        self.under_way = True
        self._take_waits_s = wait_s
        number = self._take_number = next(consumer.state.numbers)
        most, most_bytes = min(room, messages), consumer.fetch_bytes
        body = bodies.Take(*self._attachment.who, self._number, most, most_bytes, ceil(wait_s * 1000))
        self._attachment.ask(Kind.TAKE, body, number, wait_s)

    def _find_out_if_empty(self, now_s: float) -> None:
        """Ask something behind the take that waits: what could be lent to it would come before the answer to this."""
        self._finding_out = True
        self.beat(now_s, (next(self._consumer.state.numbers), self._take_number))

    def _on_found_out(self, number: int, behind: int) -> None:
        self._finding_out = False
        if self.under_way and self._take_number == behind and not self._attachment.puts_off(Kind.TAKE):
            self._consumer.nothing_came(number)
        self._consumer.tell_news()

    def on_reply(self, kind: Kind, about: Any, reply: Reply, now_s: float) -> None:
        """A request of this consumer was answered."""
        if kind == Kind.RETURN:
            self._on_returned(about, reply)
        elif kind == Kind.RENEW:
            self._on_shown(reply, now_s)
        else:
            self._on_beaten(about, reply)

    def on_answer(self, number: int) -> None:
        """A take is not under way any more."""
        self.under_way = False

    def on_nothing(self, end: int) -> None:
        """There is nothing more to be lent."""
        self._more = False

    def pass_over(self, start: int, stop: int, text: str, now_s: float) -> None:
        """Tell of messages that are gone, and take them as done."""
        self._consumer.tell_gone(self._attachment, start, stop, text, now_s)

    def take_in(self, reply: Reply, now_s: float) -> bool:
        """Buffer what was lent, but for what is here already; a take says nothing of acks."""
        lent_now = reply.read(bodies.Lent)
        self._number += 1
        self._more = lent_now.waiting > 0
        self._touched_s = now_s
        lent = Spans()
        for start, stop, attempt in lent_now.lent:
            lent.take(start, stop)
            lent.add(start, stop, attempt)
        self._leave_out_known(lent)
        for span in lent:
            self._undecided.add(*span)
        self.taken += lent.total
        for (first_offset, committed_at_us), blob in zip(lent_now.batches, reply.blobs, strict=True):
            try:
                batch = Batch.parse(blob)
            except BadBatch:
                continue  # what it should hold is left over
            for start, stop, attempt in lent.take(first_offset, first_offset + batch.count):
                self._consumer.buffer(batch, first_offset, committed_at_us, start, stop, attempt)
        if lent.total:
            start, stop, _ = lent[0]
            for low, high, _ in lent:
                self.give_back(low, high, self._lease_s, "it came damaged")
            text = f"offset {start} of {to_text(self._consumer.topic)} came damaged, and was given back"
            self._consumer.notice = StoredDataCorrupt(text)
        return False

    def _leave_out_known(self, lent: Spans) -> None:
        """Take out what is here already: whatever the broker thinks it does, an attempt is handed out once."""
        ours = [span[:2] for span in (*self._undecided, *self._committing)]
        for start, stop in (*ours, *self._consumer.acks.ranges()):
            lent.take(start, stop)

    # Handing out.

    def came_back(self, now_s: float) -> None:
        """The application asks for more."""
        self._pace.come_back(now_s)

    def handed_out(self, messages: int, now_s: float) -> None:
        """Note that the application works on messages, and borrow ahead where it will soon want more."""
        self._touched_s = now_s
        self._pace.hand_out(messages, now_s)
        inbox = self._consumer.inbox
        if (
            self._consumer.settings.prefetch
            and self._more
            and not self.under_way
            and inbox.bytes < self._consumer.fetch_bytes
            and self._pace.is_needed_soon(inbox.buffered, self._wanted or 1)
        ):
            self._take(0.0, self._wanted or self._pace.next_size())

    # Done, or given back.

    def take_ack(self, start: int, stop: int) -> None:
        """Ack what of a range is undecided; the rest is decided already."""
        if self._to_ack and self._to_ack[-1][1] == start:
            self._to_ack[-1] = (self._to_ack[-1][0], stop)
        else:
            self._to_ack.append((start, stop))
        if not self._consumer.acks.under_way:  # otherwise many are looked at together, when that is answered
            self.settle_acks()

    def settle_acks(self) -> None:
        """Decide about all that was acked."""
        if self._to_ack:
            to_ack, self._to_ack = self._to_ack, []
            for start, stop in to_ack:
                for low, high, _ in self._undecided.take(start, stop):
                    self._consumer.acks.note(self._attachment, low, high)

    def nacked(self) -> list[tuple[int, int]]:
        """Return what the application gave back and is not known to be durable."""
        return [span[:2] for given in self.returning.values() if given.nacked for span in given.spans]

    def give_back(self, start: int, stop: int, delay_s: float, reason: str, *, nacked: bool = False) -> None:
        """Give back, as tried, what of a range is undecided."""
        self.settle_acks()
        given = Returned(self._undecided.take(start, stop), tried=True, nacked=nacked)
        self._give_back(given, max(0, int(delay_s * 1000)), reason)

    def _give_back(self, given: Returned, delay_ms: int = 0, reason: str = "") -> None:
        if not given.spans:
            return
        self._returns += 1
        self.returning[self._returns] = given
        self._releases += not given.tried
        number = 0 if given.tried else self._releases
        body = bodies.Return(*self._attachment.who, tuple(given.spans), given.tried, delay_ms, reason, number)
        self._attachment.ask(Kind.RETURN, body, self._returns)

    def _on_returned(self, number: int, reply: Reply) -> None:
        given = self.returning.pop(number, None)
        if given is not None and not given.tried:
            self._releasing = False
        error = reply.error()
        if error is not None:
            self._consumer.fail(error)
        self._consumer.tell_news()

    def check_held(self, start: int, stop: int) -> None:
        """Raise where a range, or some of it, is decided already."""
        self.settle_acks()
        if not self._undecided.covers(start, stop):
            text = f"offsets {start} to {stop - 1} of {to_text(self._consumer.topic)} are acked or given back already"
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

    def beat(self, now_s: float, about: Any = None) -> None:
        """Tell the broker that this consumer lives, and hear of it when it is too late for that; `about` is who wants
        to know that it was told, or what it finds out."""
        self._beats += 1
        self._beat_at_s = now_s + self._lease_s / 3
        self._attachment.ask(Kind.ACK, bodies.Ack(*self._attachment.who, ()), about)

    def _on_beaten(self, about: Any, reply: Reply) -> None:
        self._beats -= 1
        error = reply.error()
        if error is not None:
            self._consumer.fail(error)
        elif isinstance(about, tuple):
            self._on_found_out(*about)
        elif about is not None:
            about.answered = True

    def show(self, start: int, now_s: float) -> None:
        """Say what is held, which a broker that began anew cannot know; `start` tells it from later starts.

        What was given back untried is not: nothing of that was stored, and it may be lent to another already. What was
        tried is: the broker knows by the attempt whether it came back before, and the request is repeated.
        """
        self.settle_acks()
        self.returning = {number: given for number, given in self.returning.items() if given.tried}
        self._releasing = False
        returning = [span for given in self.returning.values() for span in given.spans]
        acking = [(start, stop, 0) for start, stop in self._consumer.acks.ranges()]
        held = (*self._undecided, *self._committing, *returning, *acking)
        body = bodies.Renew(*self._attachment.who, held, start, self._number - 1, self._releases)
        self._attachment.ask(Kind.RENEW, body, at_once=True)

    def _on_shown(self, reply: Reply, now_s: float) -> None:
        refusal = reply.refusal()
        if refusal is not None and refusal.code == Code.SHOW_HELD:  # it began anew once more
            self.show(refusal.expected, now_s)
            return
        try:
            renewed = reply.read(bodies.Renewed)
        except ClarionError as error:
            self._consumer.fail(error)
            return
        self._lease_s = renewed.lease_s
        if any(self._counts_on(*lost) for lost in renewed.lost):
            self._consumer.lose("the broker began anew and lent to others what this consumer held")
            return
        self._attachment.shown()
        self._consumer.tell_news()

    def _counts_on(self, start: int, stop: int) -> bool:
        """Whether the application believes to have something of a range, or to have given it back."""
        nacked = any(low < stop and start < high for low, high in self.nacked())
        return nacked or bool(self._undecided.within(start, stop) or self._committing.within(start, stop))

    def on_time(self, now_s: float) -> float | None:
        """Do what is due by the clock; return when to come back."""
        wanted_s: list[float] = []
        if self._consumer.settings.heartbeats:
            if now_s >= self._beat_at_s:
                self._beat_at_s = now_s + self._lease_s / 3
                if self._beats < _BEATS_IN_FLIGHT:
                    self.beat(now_s)
            wanted_s.append(self._beat_at_s)
        if self._consumer.inbox.buffered and not self.under_way and not self._releasing:
            if now_s >= self._touched_s + _UNTOUCHED_S:
                self._release(now_s)
            else:
                wanted_s.append(self._touched_s + _UNTOUCHED_S)
        return min(wanted_s, default=None)

    def _release(self, now_s: float) -> None:
        """Give back what was borrowed ahead and lies untouched: others can work on it meanwhile."""
        inbox = self._consumer.inbox
        self.settle_acks()
        spans: list[Span] = []
        for part in reversed(inbox.take(inbox.buffered)):
            taken = self._undecided.take(part.offsets.start, part.offsets.stop)
            if taken:
                spans += taken
            else:  # it is being acked before it is handed out
                inbox.put_back(part)
        self._pace.slow_down()
        self._touched_s = now_s
        self._releasing = bool(spans)
        self._more = True
        self._give_back(Returned(spans, tried=False))
