"""Which brokers are linked, and the routes that follow: the same at every broker that heard the same.

Each broker announces whom it is linked with, under a number that grows; the newest announcement of each is what counts,
and a link is there where both ends announce it. What a broker sends travels along the tree of shortest paths from it,
in which a broker's parent is, of those that are one step nearer, the one with the smallest id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class Announcement(NamedTuple):
    """What a broker tells of itself."""

    broker: int  # its id
    name: str
    store: bytes  # the UUID of its store: an id belongs to one
    number: int  # a later announcement has a larger one
    linked: tuple[int, ...]  # the brokers it hears, by id
    start: bytes = b""  # random, of its last start


class LinkGraph:
    """The newest announcements, and the trees that follow from them."""

    def __init__(self) -> None:
        self._announced: dict[int, Announcement] = {}
        self._clear()

    def _clear(self) -> None:
        self._links: dict[int, list[int]] | None = None  # of each broker
        self._trees: dict[int, dict[int, int]] = {}  # by origin: the parent of each broker that it reaches
        self._distances: dict[int, dict[int, int]] = {}  # by broker: of each other

    @property
    def announced(self) -> Mapping[int, Announcement]:
        """The newest of each broker, by its id."""
        return self._announced

    def hear(self, told: Announcement) -> bool:
        """Take in an announcement; return whether it is news, to be passed on."""
        known = self._announced.get(told.broker)
        if known is not None and known.number >= told.number:
            return False
        self._announced[told.broker] = told
        if known is None or known.linked != told.linked:
            self._clear()
        return True

    def forget(self, broker: int) -> None:
        """Take in that a broker is not there any more."""
        if self._announced.pop(broker, None) is not None:
            self._clear()

    def linked_with(self, broker: int) -> list[int]:
        """Return those that a broker has a link with, by id, as both ends tell."""
        if self._links is None:
            heard = {told.broker: set(told.linked) for told in self._announced.values()}
            self._links = {
                one: sorted(other for other in others if other != one and one in heard.get(other, ()))
                for one, others in heard.items()
            }
        return self._links.get(broker, [])

    def reached_from(self, origin: int) -> Collection[int]:
        """Return all brokers that something sent by this one can reach, but itself."""
        return self._tree(origin).keys()

    def parent(self, origin: int, broker: int) -> int | None:
        """Return from whom a broker has what `origin` sends; None where it cannot have it."""
        distance = self._distances_from(broker).get(origin, 0)
        if not distance:
            return None
        near = (other for other in self.linked_with(broker) if self._distances_from(other).get(origin) == distance - 1)
        return next(near)

    def _distances_from(self, broker: int) -> dict[int, int]:
        """Return how many links away each broker is; of a broker and its neighbours that tells its parent in the trees
        of all others, of which there may be very many."""
        found = self._distances.get(broker)
        if found is None:
            found = self._distances[broker] = {broker: 0}
            level = [broker]
            while level:
                distance = found[level[0]] + 1
                following = {other for one in level for other in self.linked_with(one) if other not in found}
                found |= dict.fromkeys(following, distance)
                level = list(following)
        return found

    def split(self, origin: int, here: int, to: Iterable[int]) -> dict[int, list[int]]:
        """Return to which neighbours something that `origin` sent goes from here, and for whom there; who cannot be
        reached by this way is left out."""
        tree = self._tree(origin)
        found: dict[int, list[int]] = {}
        for broker in sorted(set(to)):
            step = broker
            while (parent := tree.get(step)) is not None and parent != here:
                step = parent
            if parent == here:
                found.setdefault(step, []).append(broker)
        return found

    def _tree(self, origin: int) -> dict[int, int]:
        """Return the parent of each broker that `origin` reaches."""
        parents = self._trees.get(origin)
        if parents is None:
            parents = self._trees[origin] = {}
            level = [origin]
            while level:
                following: dict[int, int] = {}
                for broker in sorted(level):
                    for other in self.linked_with(broker):
                        if other != origin and other not in parents:
                            following.setdefault(other, broker)
                parents |= following
                level = list(following)
        return parents
