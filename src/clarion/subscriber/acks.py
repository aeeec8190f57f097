"""Acks on their way to be durable: of one topic's consumer, or of all topics of a fetch session."""

from __future__ import annotations

from typing import Generic, TypeVar

from clarion.model.ranges import merged

_SAID_AGAIN_S = 0.1  # within which acks that were not durable when a get was answered go with another, if there is one

Range = tuple[int, int]
Of = TypeVar("Of")  # what messages were got with: an attachment, or a topic of a fetch session
Ranges = dict[Of, list[Range]]


class Acks(Generic[Of]):
    """Offsets that are done and not known to be durable: one request of their own at a time; what is acked meanwhile
    goes with the next one.

    A get or fetch may say them instead. Where they are not durable when it is answered, the next one says them again,
    or soon a request of their own; so does one that is sent for others while a get that said them waits, since that
    may be long.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once  # ranges that one request says, at most
        self._noted: Ranges[Of] = {}
        self._sent: Ranges[Of] | None = None  # by the request under way; None: there is none
        self._carrier = 0  # the get or fetch that said what was sent; 0: a request of its own
        self._own_at_s: float | None = None  # when what those said goes in a request of its own, if anything is noted
        self.again_at_s: float | None = None  # before which none is sent

    def note(self, of: Of, start: int, stop: int) -> None:
        """Have a range acked with the next request."""
        add_range(self._noted, of, start, stop)

    def note_all(self, ranges: Ranges[Of]) -> None:
        """Have many ranges acked with the next request; they are not the caller's any more."""
        if not self._noted:
            self._noted = ranges
            return
        for of, some in ranges.items():
            self._noted.setdefault(of, []).extend(some)

    @property
    def under_way(self) -> bool:
        """Whether a request is not answered yet."""
        return self._sent is not None

    def done(self) -> bool:
        """Whether every ack is durable."""
        return not self._noted and not self._sent

    def ranges(self) -> list[Range]:
        """Return what is not known to be durable."""
        return merged(each for some in (self._noted, self._sent or {}) for ranges in some.values() for each in ranges)

    @property
    def total(self) -> int:
        """How many messages are not known to be durable."""
        return sum(stop - start for start, stop in self.ranges())

    def drop(self, of: Of) -> list[Range]:
        """Say nothing of one any more; return what of it is not known to be durable."""
        return [*self._noted.pop(of, ()), *(self._sent or {}).pop(of, ())]

    def take_next(self, now_s: float) -> Ranges[Of]:
        """Return what is to be sent now; nothing while a request is under way, or where it is too early."""
        if self._noted:
            self.take_back()
        acked = self._take(now_s)
        if acked:
            self._own_at_s = None
        return acked

    def _take(self, now_s: float) -> Ranges[Of]:
        if self.again_at_s is not None and now_s < self.again_at_s:
            return {}
        self.again_at_s = None
        if self._sent is not None or not self._noted:
            return {}
        if len(self._noted) <= self._at_once and max(map(len, self._noted.values())) == 1:
            self._sent, self._noted = self._noted, {}
            return self._sent
        self._sent = {}
        left = self._at_once
        while self._noted and left > 0:
            of, ranges = self._noted.popitem()
            if len(ranges) > 1:
                ranges = merged(ranges)
                if len(ranges) > left:
                    self._noted[of] = ranges[left:]
                    del ranges[left:]
            self._sent[of] = ranges
            left -= len(ranges)
        return self._sent

    def carry(self, number: int, now_s: float) -> Ranges[Of]:
        """Return what a get or fetch says to be acked."""
        acked = self._take(now_s)
        if acked:
            self._carrier = number
        return acked

    def on_carried(self, number: int, now_s: float, *, is_durable: bool, is_refused: bool = False) -> Ranges[Of]:
        """A get or fetch is answered. Return what it said to be acked, if anything: it is durable, or said again; by
        itself, where that may be why the get was refused, or nobody knows when there will be another."""
        if self._carrier != number:
            return {}
        said = self._sent or {}
        if is_durable:
            self.answered()
            self._own_at_s = None
        else:
            self._own_at_s = now_s if is_refused else self._own_at_s or now_s + _SAID_AGAIN_S
            self.take_back()
        return said

    @property
    def lie_until_s(self) -> float:
        """Until when what is noted may wait for a get or fetch; 0: it is not to."""
        return self._own_at_s or 0.0 if self._noted and self._sent is None else 0.0

    def take_back(self) -> None:
        """Have what a get or fetch said to be acked be said again."""
        if self._carrier:
            self.note_all(self.answered())

    def answered(self) -> Ranges[Of]:
        """No request is under way any more; return what it said."""
        sent, self._sent, self._carrier = self._sent or {}, None, 0
        return sent

    def send_again(self, at_s: float) -> None:
        """What was sent was not taken for now."""
        self.note_all(self.answered())
        self.again_at_s = at_s


def add_range(ranges: Ranges[Of], of: Of, start: int, stop: int) -> None:
    """Add a range, which mostly follows the last one."""
    some = ranges.get(of)
    if some is None:
        ranges[of] = [(start, stop)]
    elif some[-1][1] == start:
        some[-1] = (some[-1][0], stop)
    else:
        some.append((start, stop))


def without(ranges: list[Range], start: int, stop: int) -> list[Range]:
    """Return what of the ranges lies outside [start, stop)."""
    if not any(low < stop and start < high for low, high in ranges):
        return ranges
    left = [piece for low, high in ranges for piece in ((low, min(high, start)), (max(low, stop), high))]
    return [(low, high) for low, high in left if low < high]
