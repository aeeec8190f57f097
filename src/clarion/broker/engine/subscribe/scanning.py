"""Going through all topics that a pattern may match, a few at a time, so that nobody waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from clarion.broker.engine.state import Now
from clarion.model.names import ONE, REST, SEPARATOR, matches
from clarion.store.port import Store, TopicSummary

_TOPICS_AT_ONCE = 200


class Scan(NamedTuple):
    """A way through the stored topics that match: each is visited, then the end is told.

    A visit says whether to go on.
    """

    pattern: bytes
    prefix: bytes
    visit: Callable[[TopicSummary, Now], bool]
    finish: Callable[[Now], None]


class Scanning:
    """Does scans in turn: one page of the store for each call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scans: deque[tuple[Scan, bytes]] = deque()  # with the last name looked at

    def start(
        self,
        pattern: bytes,
        visit: Callable[[TopicSummary, Now], bool],
        finish: Callable[[Now], None],
        now: Now,
    ) -> None:
        """Begin, and go as far as one page; where there is no more, that is all."""
        prefix = _literal_prefix(pattern)
        self._step(Scan(pattern, prefix, visit, finish), _just_before(prefix), now)

    def tick(self, now: Now) -> None:
        """Go on with the scan that waited longest."""
        if self._scans:
            self._step(*self._scans.popleft(), now)

    def has_more(self) -> bool:
        """Tell whether `tick` has something to do."""
        return bool(self._scans)

    def forget_all(self) -> None:
        """Stop all scans where they are."""
        self._scans.clear()

    def _step(self, scan: Scan, after: bytes, now: Now) -> None:
        page = self._store.topics(after, _TOPICS_AT_ONCE)
        for summary in page:
            name = summary.topic.name
            if matches(scan.pattern, name) and not scan.visit(summary, now):
                return
        last = page[-1].topic.name if page else b""
        if len(page) < _TOPICS_AT_ONCE or (last > scan.prefix and not last.startswith(scan.prefix)):
            scan.finish(now)
        else:
            self._scans.append((scan, last))


def _literal_prefix(pattern: bytes) -> bytes:
    """Give what every name begins with that a pattern matches."""
    parts = pattern.split(SEPARATOR)
    literal = next(place for place, part in enumerate(parts) if part in (ONE, REST))
    # `a/#` matches `a`, too, so the last separator is not sure to be there.
    return SEPARATOR.join(parts[:literal])


def _just_before(prefix: bytes) -> bytes:
    """Give a name that sorts before all that begin with the prefix, and as near to them as is easy."""
    return prefix[:-1] + bytes([prefix[-1] - 1]) if prefix and prefix[-1] else b""
