"""What goes to one other broker: its subscriptions here, and what was sent to it and not confirmed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from clarion.broker.engine import Engine, Now, Reply
from clarion.broker.engine.link_reads import LinkBatch, LinkReader
from clarion.broker.links.meter import Meter
from clarion.broker.links.policy import is_among
from clarion.model.names import LINK, RESERVED, is_pattern
from clarion.wire import bodies
from clarion.wire.codes import RETRIED
from clarion.wire.frames import Kind, Request
from clarion.wire.link_bodies import Interest, InterestDone, LinkConfirm

WINDOW_BYTES = 4 * 2**20  # sent and not confirmed: at most, …
_FIRST_WINDOW_BYTES = 2**18  # … before anything is confirmed, …
_LEAST_WINDOW_BYTES = 2**16  # … and over the slowest way; one batch is always sent
_QUEUED_S = 1.0  # for which what is sent may be on its way, beyond the time that the way takes anyway
_LONGEST_WAY_S = 2.0  # that a way may take anyway
READ_BYTES = 2**20
_COUNTER = 8  # bytes at the end of an epoch that grow
_READ_AGAIN_S = 1.0
_RESERVED = "names that begin with $ are a broker's own, and do not cross links"
_LATEST_MS = 60_000
_LEAST_WAIT_S = 2.0  # for a confirmation, before all that is not confirmed is sent again
_LONGEST_WAIT_S = 30.0
_SLOWEST_BYTES_PER_S = 50_000.0  # of a way of which nothing is known, …
_SLOWER = 4.0  # … and how much slower a way may become without that anything is sent again
_SOON_S = 0.5
_USUAL_BYTES_PER_S = 1e6  # of a way that has changed, and of which nothing is known


class _Sent(NamedTuple):
    """A batch that is not confirmed."""

    end: int
    size: int
    sent_s: float
    under_way: int  # bytes then, up to its end


class LinkPeer(NamedTuple):
    """Another broker, as one who asks this one."""

    broker: int


def subscriber_name(broker: int) -> bytes:
    """Return the name by which another broker subscribes."""
    return LINK + f"{broker:08x}".encode()


class Outbound:
    """One broker that is sent what it subscribes to."""

    def __init__(self, engine: Engine, broker: int, session: int) -> None:
        self._engine = engine
        self.broker = broker
        self.name = subscriber_name(broker)
        self._peer = LinkPeer(broker)
        # Interest.
        self._epoch = b""
        self._number = 0  # of the last part that is done
        self._done = InterestDone(b"", 0)  # and what it was answered
        self._named: set[bytes] = set()  # in this epoch
        self._asked: dict[int, bytes] = {}  # requests to the engine that are not answered, and what for
        self._part: Interest | None = None  # the part that is being done
        self._to_end: list[bytes] = []  # of it, once all that is new is subscribed to
        self._offsets: list[tuple[bytes, int]] = []
        self._refused: list[tuple[bytes, str]] = []
        self._request = 0
        self._lost: dict[bytes, float] = {}  # topics that were deleted, and are to be subscribed to again, and when
        self._asked_again: dict[int, bytes] = {}
        # What was sent.
        self.session = session
        self.reader: LinkReader | None = None
        self._unconfirmed: dict[int, deque[_Sent]] = {}  # by topic
        self.unconfirmed_bytes = 0
        self.window_bytes = _FIRST_WINDOW_BYTES
        self._rate_per_s = 0.0  # bytes that are confirmed in a second while there are enough; 0: not known
        self._quickest_s = _LONGEST_WAY_S  # from sending to a confirmation
        self._sent_s = -inf  # when something was sent last
        self._progress_s = 0.0
        self._wait_s = _LEAST_WAIT_S
        self._later: dict[int, float] = {}  # topics to send again, and when
        self.messages = 0
        self.meter = Meter()

    # Interest.

    def take_interest(self, part: Interest, now: Now) -> InterestDone | None:
        """Take in a part of what the broker wants; return the answer, None where it comes later."""
        if part.epoch != self._epoch:
            if part.epoch[:-_COUNTER] == self._epoch[:-_COUNTER] and part.epoch < self._epoch:
                return None  # it was long on its way, and the broker has begun anew since
            if part.number != 1:
                return InterestDone(part.epoch, 0)
            self._epoch, self._number, self._part = part.epoch, 0, None
            self._named.clear()
            self._asked.clear()
        if part.number == self._number:
            return self._done
        if part.number < self._number:
            return None
        if part.number != self._number + 1:
            return InterestDone(part.epoch, 0)
        if self._part is None:
            self._part, self._offsets, self._refused = part, [], []
            self._begin_part(part, now)
        return self._go_on(now)

    def _begin_part(self, part: Interest, now: Now) -> None:
        self._named.update(name for name, _ in part.add)
        self._named.difference_update(part.remove)
        self._engine.link_reads.keep(self.name, self._named)
        self._to_end = list(part.remove)
        if part.complete:
            known = self._engine.link_reads.subscribed(self.name)
            self._to_end += [name for name in known if name not in self._named]
        self._refused += [(name, _RESERVED) for name, _ in part.add if name.startswith(RESERVED)]
        subscribes = [
            bodies.Subscribe(name, self.name, start) for name, start in part.add if not name.startswith(RESERVED)
        ]
        self._ask(Kind.SUBSCRIBE, subscribes, now)

    def _ask(self, kind: int, some: Sequence[bodies.Subscribe | bodies.Unsubscribe], now: Now) -> None:
        first = self._request + 1
        self._request += len(some)
        self._asked |= {first + place: body.topic for place, body in enumerate(some)}
        for place, body in enumerate(some):
            self._engine.handle(self._peer, Request(kind, first + place, body, None), now)

    def _go_on(self, now: Now) -> InterestDone | None:
        """End what is no longer wanted, once what is new is there: a topic may be wanted by another name, without a
        moment in between when it is not."""
        if self._asked or self._part is None:
            return None
        to_end, self._to_end = self._to_end, []
        patterns = [name for name in self._named if is_pattern(name)]
        ended = [name for name in to_end if is_pattern(name) or not is_among(name, patterns)]
        self._ask(Kind.UNSUBSCRIBE, [bodies.Unsubscribe(name, self.name) for name in ended], now)
        return None if self._asked else self._end_part(self._part)

    def subscribe_again(self, lost: list[bytes], now: Now) -> None:
        """Subscribe again to topics that were deleted: they are wanted all the same, from their new beginning on."""
        self._lost |= dict.fromkeys(lost, now.monotonic_s)
        due = [name for name, due_s in self._lost.items() if due_s <= now.monotonic_s]
        for name in due:
            del self._lost[name]
            if name in self._named:
                self._request += 1
                self._asked_again[self._request] = name
                body = bodies.Subscribe(name, self.name, "earliest")
                self._engine.handle(self._peer, Request(Kind.SUBSCRIBE, self._request, body, None), now)

    def on_reply(self, reply: Reply, now: Now) -> InterestDone | None:
        """Take in what the engine answered; return what the broker is told, once all is answered."""
        lost = self._asked_again.pop(reply.request_id, None)
        if lost is not None and isinstance(reply.body, bodies.Refused):
            self._lost[lost] = now.monotonic_s + _READ_AGAIN_S
        name = self._asked.pop(reply.request_id, None)
        if name is None or self._part is None:
            return None
        if isinstance(reply.body, bodies.Subscribed):
            self._offsets.append((name, reply.body.cursor))
        elif isinstance(reply.body, bodies.Refused) and reply.kind != Kind.NOT_SUBSCRIBED:
            if reply.body.code in RETRIED:  # nothing is known of the others either: the part comes again
                self._part = None
                self._asked.clear()
                return None
            self._refused.append((name, reply.body.text))
        return self._go_on(now)

    def _end_part(self, part: Interest) -> InterestDone:
        self._number, self._part = part.number, None
        self._done = InterestDone(self._epoch, self._number, tuple(self._offsets), tuple(self._refused))
        return self._done

    # What is sent.

    def read(self, session: int, now: Now) -> list[LinkBatch]:
        """Return what is to be sent now; `session` is the number of the next one, if it is to be begun."""
        if not self._number:
            return []  # it is not known yet what the broker wants
        reads = self._engine.link_reads
        if self._is_overdue(now):
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
            self._rate_per_s /= _SLOWER
            self.window_bytes = _LEAST_WINDOW_BYTES
            self._begin(session, now)
        elif self.reader is None or not reads.is_known(self.reader):
            self._begin(session, now)
        assert self.reader is not None
        if self._later:
            for topic in [each for each, due_s in self._later.items() if due_s <= now.monotonic_s]:
                del self._later[topic]
                reads.again(self.reader, topic)
        room = min(READ_BYTES, self.window_bytes - self.unconfirmed_bytes)
        if room <= 0 or (not self.reader.ready and self.reader.scanned is None):
            return []
        found = reads.read(self.reader, room, now)
        for topic in self.reader.take_unread():
            self._later.setdefault(topic, now.monotonic_s + _READ_AGAIN_S)
        if found and not self.unconfirmed_bytes:
            self._progress_s = now.monotonic_s
        for each in found:
            batch = each.batch
            size = len(batch.data)
            self.unconfirmed_bytes += size
            sent = _Sent(batch.first_offset + batch.count, size, now.monotonic_s, self.unconfirmed_bytes)
            self._unconfirmed.setdefault(each.topic, deque()).append(sent)
            self.messages += batch.count
            self._sent_s = now.monotonic_s
        return found

    def has_more(self) -> bool:
        """Return whether there is something to send, and room for it."""
        reader = self.reader
        if not self._number or reader is None:
            return bool(self._number)
        return self.unconfirmed_bytes < self.window_bytes and (bool(reader.ready) or reader.scanned is not None)

    def _begin(self, session: int, now: Now) -> None:
        self.session = session
        self.reader = self._engine.link_reads.begin(self.name)
        self._unconfirmed.clear()
        self.unconfirmed_bytes = 0
        self._later.clear()
        self._progress_s = now.monotonic_s
        self._quickest_s = _LONGEST_WAY_S

    def _is_overdue(self, now: Now) -> bool:
        return bool(self.unconfirmed_bytes) and now.monotonic_s >= self._progress_s + self._patience_s()

    def _patience_s(self) -> float:
        """Return how long nothing may be confirmed: as long as all that is under way takes by a way that has become
        much slower, and some time more."""
        return self._wait_s + self.unconfirmed_bytes / max(self._rate_per_s / _SLOWER, _SLOWEST_BYTES_PER_S)

    def has_left(self, left_s: float, now: Now) -> None:
        """Take in that all that was sent before `left_s` has left this broker: what is still here is not overdue."""
        if self.unconfirmed_bytes and self._sent_s >= left_s:
            self._progress_s = now.monotonic_s

    def _learn(self, done: list[_Sent], now: Now) -> None:
        """Take in how long what is confirmed was on its way, and have as much on it as it takes in about a second: more
        would only have all that comes later wait, hellos too."""
        sent = max(done, key=lambda each: each.under_way)  # those before it may have waited for it, in one packet
        took_s = max(now.monotonic_s - sent.sent_s, 0.001)
        rate_per_s = sent.under_way / took_s
        self._quickest_s = min(self._quickest_s, took_s)
        most_s = self._quickest_s + _QUEUED_S
        if took_s > most_s:
            self._rate_per_s = rate_per_s
            fitting = int(rate_per_s * most_s)
            self.window_bytes = max(_LEAST_WINDOW_BYTES, min(self.window_bytes, fitting))
        else:  # with little under way, the time that the way takes anyway has it look slower than it is
            self._rate_per_s = max(self._rate_per_s, rate_per_s)
            if 2 * sent.under_way >= self.window_bytes:
                self.window_bytes = min(WINDOW_BYTES, self.window_bytes + sum(each.size for each in done))

    def take_confirm(self, said: LinkConfirm, now: Now) -> None:
        """Take in what the broker has, and what it wants again."""
        if self.reader is None:
            return
        reads = self._engine.link_reads
        done: list[_Sent] = []
        for number, position in said.confirmed:
            reads.confirm(self.reader, number, position, now)
            sent = self._unconfirmed.get(number)
            while sent and sent[0].end <= position:
                done.append(sent.popleft())
                self.unconfirmed_bytes -= done[-1].size
            if sent is not None and not sent:
                del self._unconfirmed[number]
        if done:
            self._progress_s, self._wait_s = now.monotonic_s, _LEAST_WAIT_S
        if done and said.session == self.session:  # else it is what was sent earlier that is confirmed
            self._learn(done, now)
        if said.session == self.session:
            for number, after_ms in said.again:
                self.unconfirmed_bytes -= sum(each.size for each in self._unconfirmed.pop(number, ()))
                due_s = now.monotonic_s + min(max(0, after_ms), _LATEST_MS) / 1000
                self._later[number] = min(due_s, self._later.get(number, due_s))

    def route_changed(self, now: Now) -> None:
        """What is under way may be lost: if it is not confirmed soon, send it again."""
        self._wait_s, self._quickest_s = _LEAST_WAIT_S, _LONGEST_WAY_S
        soon_s = _SOON_S + self.unconfirmed_bytes / (self._rate_per_s / _SLOWER or _USUAL_BYTES_PER_S)
        self._progress_s = min(self._progress_s, now.monotonic_s - self._patience_s() + soon_s)

    def next_deadline_s(self) -> float | None:
        """Return when there is something to do again."""
        times = list(self._lost.values())
        if not self._number:  # nothing is sent before it is known what the broker wants
            return min(times, default=None)
        times += self._later.values()
        if self.unconfirmed_bytes:
            times.append(self._progress_s + self._patience_s())
        return min(times, default=None)

    def stop(self) -> None:
        """The broker cannot be reached, as far as is known here; it may know better, so what it wants stays."""
        if self.reader is not None:
            self._engine.link_reads.end(self.name)
            self.reader = None
        self._unconfirmed.clear()
        self.unconfirmed_bytes = 0
