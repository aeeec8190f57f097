"""How fast a count grows, over the last seconds."""

from __future__ import annotations

from collections import deque

_LOOKS = 5


class Meter:
    """Looks at a count about once a second, and remembers the last few looks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_LOOKS)

    def look(self, count: int, now_s: float) -> None:
        """Remember what the count is now."""
        self._seen.append((now_s, count))

    def per_s(self, count: int, now_s: float) -> float:
        """Return by how much the count has grown, per second, since the oldest look that is remembered."""
        if not self._seen or now_s <= self._seen[0][0]:
            return 0.0
        since_s, before = self._seen[0]
        return round((count - before) / (now_s - since_s), 1)
