"""Acks on their way: one request at a time; what is acked meanwhile goes with the next one."""

from __future__ import annotations

from collections.abc import Callable

from clarion.model.ranges import merged

Range = tuple[int, int]
_ACK_RANGES_AT_ONCE = 10_000


class Acks:
    """Offsets that are done and not known to be durable. `send` asks the broker to take some."""

    def __init__(self, send: Callable[[tuple[Range, ...]], None]) -> None:
        self._send = send
        self._noted: list[Range] = []
        self._sent: tuple[Range, ...] = ()
        self._again_at_s: float | None = None
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
        """Give what is not known to be durable."""
        return merged([*self._sent, *self._noted])

    def pump(self, now_s: float) -> float | None:
        """Send what may be sent; give when to come back."""
        if self._again_at_s is not None:
            if now_s < self._again_at_s:
                return self._again_at_s
            self._again_at_s = None
        if not self._sent and self._noted:
            if len(self._noted) > 1:
                self._noted = merged(self._noted)
            self._sent = tuple(self._noted[:_ACK_RANGES_AT_ONCE])
            del self._noted[:_ACK_RANGES_AT_ONCE]
            self._send(self._sent)
        return None

    def confirm(self) -> None:
        """What was sent is durable."""
        self.total -= sum(stop - start for start, stop in self._sent)
        self._sent = ()

    def send_again(self, at_s: float) -> None:
        """What was sent was not taken for now."""
        self._noted[:0] = self._sent
        self._sent = ()
        self._again_at_s = at_s

    def clear(self) -> None:
        """Forget them all."""
        self._noted.clear()
        self._sent = ()
        self._again_at_s = None
        self.total = 0


def without(ranges: list[Range], start: int, stop: int) -> list[Range]:
    """Give what of the ranges lies outside [start, stop)."""
    if not any(low < stop and start < high for low, high in ranges):
        return ranges
    left = [piece for low, high in ranges for piece in ((low, min(high, start)), (max(low, stop), high))]
    return [(low, high) for low, high in left if low < high]
