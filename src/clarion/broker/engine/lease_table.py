"""Which messages of a shared subscription are leased to whom, which wait to be leased, and which came back.

Offsets only, no message: whoever leases reads them. What is acked is durable, and so are the attempts of what came
back, who is attached, and what is leased to each. After a restart the consumers tell what of that they hold; what was
leased to one that does not come counts as an attempt that failed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from clarion.broker.engine.answers import Waiting
from clarion.broker.engine.clock import Now
from clarion.model.options import SubscriptionOptions
from clarion.model.ranges import AckedRanges, Span, Spans, merged
from clarion.store.port import ReturnedRow

_ROUNDED_S = 1e-6  # that a moment may be off by reckoning with it
_FEW = 64  # ranges that are quicker looked up one by one than with all that is held
_CAREFUL_ATTEMPTS = 2  # before the last: from then on a message is leased alone, so that it harms no others

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes, int]]).decode
_decode_lent = msgspec.msgpack.Decoder(list[tuple[int, list[int]]]).decode


@dataclass(slots=True, eq=False)
class Consumer:
    """One of those who share a subscription."""

    token: int
    nonce: bytes
    max_unacked: int
    deadline_s: float
    held: Spans = field(default_factory=Spans)  # with the attempt each is leased for
    last_take: int = 0
    last_release: int = 0  # the number of what it gave back last without a count
    last_lease: list[tuple[int, int]] = field(default_factory=list)


class LeaseTable:
    """The leases of one shared subscription."""

    def __init__(self, acked: AckedRanges, options: SubscriptionOptions, token: int = 0) -> None:
        self.acked = acked
        self.options = options
        self.left_token = token  # the highest of those who were attached and are no more
        self.consumers: dict[int, Consumer] = {}
        self.awaited: dict[int, tuple[bytes, int]] = {}  # attached before a restart, not heard of since
        self._lent_before: dict[int, list[int]] = {}  # to those, as steps: see `_steps`
        self._holds = False  # the backlog is kept for those
        self.hold_until_s: float | None = None  # and no longer than this
        self.waiting: dict[int, Waiting] = {}  # by token, the longest waiting first
        self.ready = Spans()  # to be leased, with the attempts made so far
        self.coming = Spans()  # given back, and leased again once that is on disk
        self.returned: dict[int, ReturnedRow] = {}
        self._due_s: dict[int, float] = {}  # when each of those may come again, on the clock that never jumps
        self._later: list[tuple[float, int]] = []  # the same, the next first, of those that are nowhere else
        self._in_later: set[int] = set()
        self.keys = KeyOrder() if options.order == "key" else None
        self._seen_end = 0  # all below is acked, ready, leased, blocked by its key, or comes later
        self._suspect_below = 0  # before a restart something below may have been leased to a consumer that is gone
        self._begun = False
        self.timer_s: float | None = None  # when somebody looks here next

    # Beginning.

    def await_consumers(self, packed: bytes, leased: bytes) -> None:
        """Take who was attached before a restart, and what was leased to each."""
        if packed:
            self.awaited = {token: (nonce, max_unacked) for token, nonce, max_unacked in _decode(packed) if nonce}
            self.left_token = max((token for token, nonce, _ in _decode(packed) if not nonce), default=0)
        if leased:
            self._lent_before = dict(_decode_lent(leased))

    def pack_consumers(self) -> bytes:
        """Return who is attached, for the store."""
        attached = [(each.token, each.nonce, each.max_unacked) for each in self.consumers.values()]
        attached += [(token, *rest) for token, rest in self.awaited.items()]
        return _encode([*attached, (self.left_token, b"", 0)])

    def pack_lent(self) -> bytes:
        """Return what is leased to each consumer, for the store."""
        leased = [(each.token, _steps(each.held)) for each in self.consumers.values() if each.held.total]
        leased += self._lent_before.items()
        return _encode(leased) if leased else b""

    def load_returned(self, row: ReturnedRow) -> None:
        """Take a message that had come back before a restart."""
        if row.offset not in self.acked:
            self.returned[row.offset] = row

    def in_use(self) -> bool:
        """Return whether somebody is attached, or something must be remembered here."""
        return bool(self.consumers or self.waiting or (self.awaited and self._begun))

    def begin(self, end: int, now: Now, least_hold_s: float) -> bool:
        """Look at the backlog up to `end`, for the first time; return whether it was that."""
        if self._begun:
            return False
        self._begun = True
        self._due_s = {row.offset: _due_s(row, now) for row in self.returned.values()}
        self._seen_end = end
        if self.awaited:
            self._holds = True
            self.hold_until_s = now.monotonic_s + max(self.options.lease_s, least_hold_s)
        else:
            self.open_backlog()
        return True

    def open_backlog(self) -> None:
        """Have everything leased that is not acked, held or put off."""
        self._holds = False
        free = self._taken()
        free.add_all([span[:2] for span in self.ready])
        for row in self.returned.values():
            if row.offset not in free:
                self._wait_for(row)
        free.add_all(merged((offset, offset + 1) for offset in self.returned))
        self.ready.add_all([(start, stop, 0) for start, stop in free.unacked(0, self._seen_end)])

    def give_up_awaited(self) -> tuple[list[int], list[Span]]:
        """Stop waiting for those who did not come back; return their tokens, and what was leased to them and is neither
        done nor anybody else's. The backlog is the caller's to open."""
        gone, taken = list(self.awaited), self._taken()
        if gone:
            self._suspect_below = self._seen_end
        leased = [span for token in gone for span in _ranges(self._lent_before.get(token, ()))]
        lost = merged(span for start, stop in leased for span in taken.unacked(start, min(stop, self._seen_end)))
        self.left_token = max(self.left_token, *gone, 0)
        self.awaited.clear()
        self._lent_before.clear()
        self.hold_until_s = None
        return gone, [lease for span in lost for lease in self._with_attempts(*span)]

    def see(self, end: int, now_s: float) -> None:
        """Take in what the topic has grown by, and what may come again by now."""
        if end > self._seen_end and not (self.keys is not None and self._holds):
            self.ready.add_all([(start, stop, 0) for start, stop in self.acked.unacked(self._seen_end, end)])
            self._seen_end = end
        due: list[Span] = []
        while self._later and self._later[0][0] <= now_s + _ROUNDED_S:
            _, offset = heapq.heappop(self._later)
            row = self.returned.get(offset)
            self._in_later.discard(offset)
            if row is not None and not self.ready.within(offset, offset + 1):
                due.append((offset, offset + 1, row.attempts))
        self.ready.add_all(due)

    # Consumers.

    def attach(self, token: int, nonce: bytes, max_unacked: int, now_s: float) -> Consumer:
        """Let a consumer in."""
        consumer = Consumer(token, nonce, max_unacked, now_s + self.options.lease_s)
        self.consumers[token] = consumer
        return consumer

    def token_of(self, nonce: bytes) -> int | None:
        """Return the token that was given for this nonce, if it is still good."""
        for consumer in self.consumers.values():
            if consumer.nonce == nonce:
                return consumer.token
        return next((token for token, (known, _) in self.awaited.items() if known == nonce), None)

    def show(self, token: int, now_s: float) -> Consumer:
        """A consumer from before the restart is there; what it holds is for `adopt`."""
        nonce, max_unacked = self.awaited.pop(token)
        self._lent_before.pop(token, None)  # what it does not show never came to it, or came back untried
        return self.attach(token, nonce, max_unacked, now_s)

    def adopt(self, consumer: Consumer, held: Iterable[Span], end: int) -> list[Span]:
        """Lend again what a consumer held before the restart, as far as nobody else has it, and it had not come back
        from this attempt already; return the leases made."""
        made: list[Span] = []
        taken = self._taken()
        for start, stop, attempt in held:
            for low, high in taken.unacked(start, min(stop, end, self._seen_end)):
                for free in self._not_returned(low, high, attempt):
                    made += self._with_attempts(*free)
                    taken.add(*free)
        made.sort()
        self.grant(consumer, made)
        return made

    def _taken(self) -> AckedRanges:
        """Return what is acked, held by somebody, or just being given back."""
        held = [span for consumer in self.consumers.values() for span in consumer.held]
        return self._done_or([*held, *self.coming])

    def _not_returned(self, start: int, stop: int, attempt: int) -> list[tuple[int, int]]:
        """Return what of a range did not come back yet from an attempt (0: which is not known)."""
        came_back = self._came_back(start, stop) if attempt else []
        done = [(offset, offset + 1) for offset in came_back if self.returned[offset].attempts >= attempt]
        return AckedRanges(start, merged(done)).unacked(start, stop) if done else [(start, stop)]

    def _with_attempts(self, start: int, stop: int) -> list[Span]:
        """Return a range in pieces, each with the number of the attempt that it is leased for.

        Nothing is leased again before it is on disk that it came back, so the attempts known here are all there were.
        """
        found: list[Span] = []
        for offset in sorted(self._came_back(start, stop)):
            found += [(start, offset, 1), (offset, offset + 1, self.returned[offset].attempts + 1)]
            start = offset + 1
        return [span for span in (*found, (start, stop, 1)) if span[0] < span[1]]

    def lost(self, consumer: Consumer, held: Iterable[Span], gone_below: int) -> list[tuple[int, int]]:
        """Return what of this is neither held by the consumer, nor acked, gone, or come back from that attempt."""
        has = self._held_or_done(consumer, gone_below)
        return [
            span
            for start, stop, attempt in held
            for low, high in has.unacked(start, stop)
            for span in self._not_returned(low, high, attempt)
        ]

    def _held_or_done(self, consumer: Consumer, gone_below: int) -> AckedRanges:
        """Return what is acked, gone, or this consumer's."""
        return self._done_or(consumer.held, gone_below)

    def _done_or(self, spans: Iterable[Span], gone_below: int = 0) -> AckedRanges:
        found = AckedRanges(max(self.acked.cursor, gone_below))
        found.add_all(merged([*self.acked, *(span[:2] for span in spans)]))
        return found

    def drop(self, token: int) -> Consumer | None:
        """Let a consumer go; what it held is the caller's to give back."""
        self.waiting.pop(token, None)
        self.awaited.pop(token, None)
        self._lent_before.pop(token, None)
        self.left_token = max(self.left_token, token)
        return self.consumers.pop(token, None)

    # LeaseTable.

    def share_of(self, consumer: Consumer, wanted: int) -> int:
        """Return how many messages may be leased to a consumer now: within its bound, and leaving the others theirs."""
        risky = self.returned or self.options.max_attempts == 1
        if risky and any(self.is_careful(attempt) for _, _, attempt in consumer.held):
            return 0
        fair = -(-self.ready.total // max(1, len(self.consumers)))
        return max(0, min(wanted, consumer.max_unacked - consumer.held.total, fair))

    def is_careful(self, attempt: int) -> bool:
        """Return whether a message is leased alone for this attempt: it may be the one that ends its consumers."""
        most = self.options.max_attempts
        if not most:
            return False
        return most == 1 or attempt >= max(2, most - _CAREFUL_ATTEMPTS + 1)

    def is_suspect(self, spans: list[Span]) -> bool:
        """Return whether something of these leases may have ended its consumers: it came back, or one that may
        have been leased it never came back."""
        return any(start < self._suspect_below or attempt > 1 for start, _, attempt in spans)

    def tried(self) -> int:
        """Count what came back, and what may."""
        return len(self.returned) + sum(consumer.held.total for consumer in self.consumers.values())

    def candidates(self, *, fresh: bool, only_gaps: bool) -> Iterator[Span]:
        """Return what could be leased, lowest first, with the attempt that it would be for; without `fresh` ones
        only what was leased before, with `only_gaps` only what lies between messages that are acked."""
        end = self.acked.last() if only_gaps else None
        for start, stop, attempts in self.ready:
            if end is not None and start >= end:
                break
            if fresh or attempts:
                yield start, stop if end is None else min(stop, end), attempts + 1

    def grant(self, consumer: Consumer, spans: list[Span]) -> None:
        """Lease spans, sorted and disjoint, of what is ready, to a consumer."""
        self.ready.take_all([span[:2] for span in spans])
        consumer.held.add_all(spans)

    def claim_keys(self, keys: KeyOrder, claimed: Mapping[bytes, int], blocked: Sequence[tuple[int, bytes]]) -> None:
        """Give keys to the messages that are leased; others, sorted, wait for theirs."""
        for key, offset in claimed.items():
            keys.claim(offset, key)
        for offset, key in blocked:
            keys.claim(offset, key)
            self.ready.take(offset, offset + 1)

    def not_held(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]], gone_below: int
    ) -> tuple[int, int] | None:
        """Return the first of some ranges of which something is neither this consumer's, nor acked, nor gone."""
        if len(ranges) < _FEW:
            return next((span for span in ranges if not self._has_all(consumer, *span, gone_below)), None)
        has = self._held_or_done(consumer, gone_below)
        return next((span for span in ranges if has.unacked(*span)), None)

    def _has_all(self, consumer: Consumer, start: int, stop: int, gone_below: int) -> bool:
        return all(consumer.held.covers(max(low, gone_below), high) for low, high in self.acked.unacked(start, stop))

    def ack(
        self, ranges: Sequence[tuple[int, int]], holder: Consumer | None = None, gone_below: int = 0
    ) -> tuple[bool, list[int]]:
        """Take ranges, sorted and disjoint, as done, held by one consumer or, as far as they are gone, by whomever;
        return whether that was news, and the offsets that had come back before."""
        done = self._came_back_in(ranges)
        for offset in done:
            del self.returned[offset]
            self._due_s.pop(offset, None)
        anybodys = ranges
        if holder is not None:
            holder.held.take_all(ranges)
            anybodys = [(start, min(stop, gone_below)) for start, stop in ranges if start < gone_below]
        for consumer in self.consumers.values() if anybodys else ():
            consumer.held.take_all(anybodys)
        self.ready.take_all(ranges)
        self.coming.take_all(ranges)
        return self.acked.add_all(ranges), done

    def free_keys(self, start: int, stop: int) -> None:
        """Have the next messages leased whose keys were those of messages that are done, durably."""
        if self.keys is not None:
            for offset in self.keys.done(start, stop, self.acked):
                row = self.returned.get(offset)
                if row is not None:
                    self._wait_for(row)
                elif not self.ready.within(offset, offset + 1):
                    self.ready.add(offset, offset + 1, 0)

    def _came_back(self, start: int, stop: int) -> list[int]:
        if len(self.returned) <= stop - start:
            return [offset for offset in self.returned if start <= offset < stop]
        return [offset for offset in range(start, stop) if offset in self.returned]

    def _came_back_in(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        if len(ranges) == 1 or sum(stop - start for start, stop in ranges) < len(self.returned):
            return [offset for start, stop in ranges for offset in self._came_back(start, stop)]
        starts = [start for start, _ in ranges]
        places = ((offset, bisect_right(starts, offset) - 1) for offset in self.returned)
        return [offset for offset, place in places if place >= 0 and offset < ranges[place][1]]

    # Coming back.

    def give_back(self, consumer: Consumer, ranges: Iterable[tuple[int, int, int | None]]) -> list[Span]:
        """Take ranges from a consumer, where each is leased for that attempt (None: any); return what they were."""
        wanted = [
            (low, high)
            for start, stop, attempt in ranges
            for low, high, lent_for in consumer.held.within(start, stop)
            if attempt is None or attempt == lent_for
        ]
        return consumer.held.take_all(merged(wanted))

    def put_back(self, rows: Sequence[ReturnedRow], now: Now) -> None:
        """Have messages come again as their next attempt, once that is on disk and their time has come."""
        self.returned |= {row.offset: row for row in rows}
        self._due_s |= {row.offset: _due_s(row, now) for row in rows}
        self.coming.add_all([(row.offset, row.offset + 1, 0) for row in rows])

    def come_again(self, rows: Sequence[ReturnedRow]) -> None:
        """That messages come again is on disk."""
        self.coming.take_all(merged((row.offset, row.offset + 1) for row in rows))
        for row in rows:
            if self.returned.get(row.offset) is row:
                self._wait_for(row)

    def _wait_for(self, row: ReturnedRow) -> None:
        """Have a message that is nowhere else leased again when its time has come."""
        if row.offset not in self._in_later:
            self._in_later.add(row.offset)
            heapq.heappush(self._later, (self._due_s[row.offset], row.offset))

    def release(self, spans: Sequence[Span]) -> None:
        """Have messages, sorted and disjoint, leased again as if they had not been leased."""
        self.coming.take_all([(start, stop) for start, stop, _ in spans])
        self.ready.add_all(
            [
                (low, high, attempt - 1)
                for start, stop, attempt in spans
                for low, high in self.acked.unacked(start, stop)
            ]
        )

    def next_due_s(self) -> float | None:
        """Return when the next message that was put off may come again."""
        while self._later and self._later[0][1] not in self.returned:
            self._in_later.discard(heapq.heappop(self._later)[1])
        return self._later[0][0] if self._later else None


def _due_s(row: ReturnedRow, now: Now) -> float:
    return now.monotonic_s + max(0, row.not_before_us - now.unix_us) / 1e6


def _steps(spans: Spans) -> list[int]:
    """Return ranges as numbers that are mostly small: how far on each begins, and how long it is."""
    steps: list[int] = []
    end = 0
    for start, stop, _ in spans:
        if steps and start == end:  # of another attempt, which the store knows by what came back
            steps[-1] += stop - start
        else:
            steps += (start - end, stop - start)
        end = stop
    return steps


def _ranges(steps: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return the ranges that `_steps` was told."""
    end = 0
    for gap, length in zip(steps[::2], steps[1::2], strict=True):
        start, end = end + gap, end + gap + length
        yield start, end


LOOK_AHEAD = 10_000  # messages that may wait for their keys before nothing more is looked at


class KeyOrder:
    """Who has each key, and who waits for it, in order."""

    def __init__(self) -> None:
        self._owner: dict[bytes, int] = {}  # the message of a key that may be leased, or is
        self._key: dict[int, bytes] = {}  # of each owner
        self._blocked: dict[bytes, deque[int]] = {}
        self._waiting: set[int] = set()

    def claim(self, offset: int, key: bytes | None) -> bool:
        """Return whether a message may be leased; if not, it waits for its key."""
        if key is None:
            return True
        owner = self._owner.setdefault(key, offset)
        if owner == offset:
            self._key[offset] = key
            return True
        if offset not in self._waiting:
            self._waiting.add(offset)
            self._blocked.setdefault(key, deque()).append(offset)
        return False

    def is_free(self, offset: int, key: bytes | None) -> bool:
        """Return whether a message need not wait for its key."""
        return key is None or self._owner.get(key, offset) == offset

    def is_full(self, more: int) -> bool:
        """Return whether as many wait as may, with some more."""
        return len(self._waiting) + more >= LOOK_AHEAD

    def done(self, start: int, stop: int, acked: AckedRanges) -> list[int]:
        """Free the keys of messages that are done; return those that are next."""
        if len(self._key) <= stop - start:
            finished = [offset for offset in self._key if start <= offset < stop]
        else:
            finished = [offset for offset in range(start, stop) if offset in self._key]
        return [following for offset in finished if (following := self._pass_on(offset, acked)) is not None]

    def _pass_on(self, offset: int, acked: AckedRanges) -> int | None:
        key = self._key.pop(offset)
        del self._owner[key]
        waiting = self._blocked.get(key)
        while waiting:
            following = waiting.popleft()
            self._waiting.discard(following)
            if following not in acked:
                self._owner[key], self._key[following] = following, key
                return following
        self._blocked.pop(key, None)
        return None
