"""The ring of 160-bit ids: owner, prefix levels, wedges and successors, as Pastry and Corona have them.

A name's id is its SHA-1. In base b an id is a row of digits, highest first. A node is in the wedge of an id at level l
where the first l digits of both are the same: at level 0 everybody is, and at level K = ceil(log_b N), the highest,
the owner alone counts. The owner of an id is the node whose id is nearest on the circle.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable

from clarion.model.errors import BadSettings

ID_BITS = 160
BASES = (2, 4, 16, 32, 256)  # whose digits fill an id
CIRCLE = 1 << ID_BITS


def ring_id(name: bytes | str) -> int:
    """Return the id of a name: the SHA-1 of its bytes."""
    data = name.encode() if isinstance(name, str) else name
    return int.from_bytes(hashlib.sha1(data, usedforsecurity=False).digest(), "big")


def shared_digits(one: int, other: int, base: int) -> int:
    """Return how many digits two ids have in common from the highest on."""
    bits = _digit_bits(base)
    differing = (one ^ other).bit_length()
    return (ID_BITS - differing) // bits


def _digit_bits(base: int) -> int:
    if base not in BASES:
        raise BadSettings(f"the base of a ring is one of {', '.join(map(str, BASES))}, not {base}")
    return base.bit_length() - 1


class Ring:
    """Nodes on the circle. A value: `with_node` and `without_node` return another ring."""

    def __init__(self, names: Iterable[str] = (), base: int = 16) -> None:
        self.base = base
        self.digit_bits = _digit_bits(base)
        places = sorted((ring_id(name), name) for name in set(names))
        self._ids = [place for place, _ in places]
        self._names = [name for _, name in places]
        self._positions = {name: position for position, name in enumerate(self._names)}

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ring) and (self.base, self._names) == (other.base, other._names)

    def __hash__(self) -> int:
        return hash((self.base, tuple(self._names)))

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes, by their place on the circle."""
        return tuple(self._names)

    @property
    def levels(self) -> int:
        """The highest level, K: the owner alone. The least K with b^K >= N."""
        level, nodes = 0, 1
        while nodes < len(self._names):
            level, nodes = level + 1, nodes * self.base
        return level

    def with_node(self, name: str) -> Ring:
        """Return the ring with a node more."""
        return Ring((*self._names, name), self.base)

    def without_node(self, name: str) -> Ring:
        """Return the ring with a node less."""
        return Ring((one for one in self._names if one != name), self.base)

    def owner(self, place: int) -> str:
        """Return the node nearest to an id, the next one on where two are equally near."""
        return self.successors(place, 1)[0]

    def successors(self, place: int, count: int) -> list[str]:
        """Return up to `count` nodes, the nearest to an id first: the owner, and who takes over when it fails."""
        if not self._names:
            raise ValueError("a ring without nodes has no owner")
        total = len(self._names)
        after, before = bisect_left(self._ids, place) % total, (bisect_left(self._ids, place) - 1) % total
        found: list[str] = []
        for _ in range(min(count, total)):
            ahead, behind = (self._ids[after] - place) % CIRCLE, (place - self._ids[before]) % CIRCLE
            if ahead <= behind:
                found.append(self._names[after])
                after = (after + 1) % total
            else:
                found.append(self._names[before])
                before = (before - 1) % total
        return found

    def wedge(self, place: int, level: int) -> tuple[str, ...]:
        """Return the nodes that share `level` digits with an id, by their place on the circle. It can be empty."""
        start, stop = self._wedge(place, level)
        return tuple(self._names[start:stop])

    def _wedge(self, place: int, level: int) -> tuple[int, int]:
        """Return the positions on the circle between which a wedge lies."""
        width = max(0, ID_BITS - self.digit_bits * level)
        low = place >> width << width
        return bisect_left(self._ids, low), bisect_left(self._ids, low + (1 << width))

    def pollers(self, place: int, level: int) -> tuple[str, ...]:
        """Return who polls a channel: its wedge, and always its owner; the owner alone at the highest level."""
        owner = self.owner(place)
        if level >= self.levels:
            return (owner,)
        found = self.wedge(place, level)
        return found if owner in found else (*found, owner)

    def rank(self, place: int, level: int, name: str) -> tuple[int | None, int]:
        """Return which of the pollers of a channel a node is, or None where it is none of them, and how many there
        are; the same as looking into `pollers`, without making it."""
        owner = self.owner(place)
        if level >= self.levels:
            return (0 if name == owner else None), 1
        start, stop = self._wedge(place, level)
        within, position = start <= self._positions[owner] < stop, self._positions.get(name, -1)
        count = stop - start + (not within)
        if start <= position < stop:
            return position - start, count
        return (count - 1 if name == owner else None), count
