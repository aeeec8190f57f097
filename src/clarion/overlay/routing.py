"""Routing as Pastry has it: the rows of a node's table, the way to an id's owner, the tree by which a wedge is told.

Row r of a node's table names, for each digit, a node that has the first r digits in common with it and that digit next;
leaves are the nodes around it on the circle. A message gains a digit at each hop, so that it is there after about
log_b N. Who tells a wedge gives each node of its rows a part of the wedge to tell, and nobody is told twice.
"""

from __future__ import annotations

from typing import NamedTuple

from clarion.overlay.ring import CIRCLE, ID_BITS, Ring, ring_id, shared_digits

LEAVES = 16  # half of them on either side


def _distance(one: int, other: int) -> int:
    ahead = (one - other) % CIRCLE
    return min(ahead, CIRCLE - ahead)


def _digit(place: int, row: int, bits: int) -> int:
    return place >> (ID_BITS - bits * (row + 1)) & ((1 << bits) - 1)


class RoutingTable:
    """What one node knows of a ring: its rows and its leaves."""

    def __init__(self, ring: Ring, name: str) -> None:
        if name not in ring:
            raise ValueError(f"{name!r} is not on this ring")
        self.name = name
        self.id = ring_id(name)
        self._ring = ring
        self._bits = ring.digit_bits
        around = ring.names
        at, half = around.index(name), min(LEAVES // 2, len(around) // 2)
        beside = (around[(at + step) % len(around)] for step in range(-half, half + 1))
        self.leaves = tuple(dict.fromkeys(one for one in beside if one != name))

    def entry(self, row: int, digit: int) -> str | None:
        """Return who is named in a row for a digit: of the nodes that could be, the one whose id is most like this
        node's; None where no node has that digit, or this node does."""
        own = _digit(self.id, row, self._bits)
        like = self.id ^ (
            (digit ^ own) << (ID_BITS - self._bits * (row + 1))
        )  # with that digit in the place of its own
        there = () if digit == own else self._ring.wedge(like, row + 1)
        return min(there, key=lambda name: ring_id(name) ^ like, default=None)

    def row(self, number: int) -> dict[int, str]:
        """Return a row: who is named for each digit, but for digits that no node has."""
        named = ((digit, self.entry(number, digit)) for digit in range(self._ring.base))
        return {digit: name for digit, name in named if name is not None}

    @property
    def rows(self) -> list[dict[int, str]]:
        """All rows, from none to the most digits that another node has in common with this one."""
        found: list[dict[int, str]] = []
        while len(self._ring.wedge(self.id, len(found))) > 1:
            found.append(self.row(len(found)))
        return found

    def next_hop(self, place: int) -> str:
        """Return who is next on the way to the owner of an id: this node where it is the owner."""
        known = (self.name, *self.leaves)
        if (owner := self._ring.owner(place)) in known:
            return owner
        row = shared_digits(self.id, place, self._ring.base)
        there = self.entry(row, _digit(place, row, self._bits))
        return there or min(
            known, key=lambda name: _distance(ring_id(name), place)
        )  # no node has that digit: go around


def route(ring: Ring, start: str, place: int) -> list[str]:
    """Return the nodes by which a message comes from one node to the owner of an id, both of them included."""
    path = [start]
    while (there := RoutingTable(ring, path[-1]).next_hop(place)) != path[-1]:
        path.append(there)
    return path


class WedgeTree(NamedTuple):
    """Who tells whom, from the owner on. Each edge is a message."""

    root: str
    edges: tuple[tuple[str, str], ...]
    depth: int  # hops until the last one is told

    @property
    def told(self) -> tuple[str, ...]:
        """Who has it in the end, the owner first."""
        return (self.root, *(to for _, to in self.edges))


def wedge_tree(ring: Ring, place: int, level: int) -> WedgeTree:
    """Return how an update that the owner has reaches all who poll a channel at this level, each once.

    A node that is told of everybody with some digits in common tells, row by row, one node for each other next digit,
    which then does the same for those who have that digit, too. An owner outside of the wedge tells one node in it.
    """
    owner = ring.owner(place)
    wedge = ring.wedge(place, level) if level < ring.levels else ()
    if not wedge:
        return WedgeTree(owner, (), 0)
    first = owner if owner in wedge else min(wedge, key=lambda name: _distance(ring_id(name), place))
    edges = [] if first == owner else [(owner, first)]
    waiting = [(first, level, len(edges))]
    deepest = 0
    for name, row, depth in waiting:  # grows while it is gone through: by depth
        deepest = max(deepest, depth)
        table = RoutingTable(ring, name)
        while len(ring.wedge(table.id, row)) > 1:
            for there in table.row(row).values():
                edges.append((name, there))
                waiting.append((there, row + 1, depth + 1))
            row += 1
    return WedgeTree(owner, tuple(edges), deepest)
