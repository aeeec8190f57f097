"""Key order: of messages with one key, only the first that is not done may be lent."""

from __future__ import annotations

from collections import deque

from clarion.model.ranges import AckedRanges

LOOK_AHEAD = 10_000  # messages that may wait for their keys before nothing more is looked at


class Keys:
    """Who has each key, and who waits for it, in order."""

    def __init__(self) -> None:
        self._owner: dict[bytes, int] = {}  # the message of a key that may be lent, or is
        self._key: dict[int, bytes] = {}  # of each owner
        self._blocked: dict[bytes, deque[int]] = {}
        self._waiting: set[int] = set()

    def claim(self, offset: int, key: bytes | None) -> bool:
        """Tell whether a message may be lent; if not, it waits for its key."""
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
        """Tell whether a message need not wait for its key."""
        return key is None or self._owner.get(key, offset) == offset

    def is_full(self) -> bool:
        """Tell whether as many wait as may."""
        return len(self._waiting) >= LOOK_AHEAD

    def done(self, start: int, stop: int, acked: AckedRanges) -> list[int]:
        """Free the keys of messages that are done; gives those that are next."""
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
