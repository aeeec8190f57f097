"""A fetch session: what a consumer that fetches from many topics together was sent, and where there is more for it."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from clarion.model.names import is_pattern, matches

_MAX_SERIAL = 1 << 62
ENDED = -1  # as a place's `left_token`: the subscription was ended, as the consumer was told


class Place:
    """Where a session is on one topic."""

    __slots__ = ("is_attaching", "left_token", "number", "position", "token")

    def __init__(self, number: int) -> None:
        self.number = number  # of the topic
        self.position = 0  # all below was sent, or is done
        self.token = 0  # of the subscription, as the consumer was told; 0: it was not
        self.is_attaching = False  # until it is on disk that the subscription is this consumer's, another's, or ended
        self.left_token = 0  # of a subscription that is another consumer's, or shared, as the consumer was told

    def now(self) -> Before:
        """Return where it is, to go back there if what is sent next does not arrive."""
        return self, self.position, self.token, self.left_token


Before = tuple[Place, int, int, int]  # position, token and left_token


class FetchSession:
    """What the broker remembers of one consumer between its fetches. It is not stored: a consumer that finds it gone
    begins it again, at the cursors, and itself leaves out what it has already."""

    def __init__(self, topics: tuple[bytes, ...], name: bytes, token: int, nonce: bytes) -> None:
        self.topics = topics
        self.patterns = tuple(topic for topic in topics if is_pattern(topic))
        self.plain = frozenset(topics) - frozenset(self.patterns)
        self.name = name
        self.token = token
        self.nonce = nonce
        self.places: dict[int, Place] = {}  # by the topic's number
        self.ready: OrderedDict[int, None] = OrderedDict()  # numbers of topics to look at, the next one first
        self.scanned: int | None = 0 if self.patterns else None  # up to which topic of the store; None: all
        self.number = 0  # of the last fetch
        self.serial = 0  # of the last answer
        self.attaching = 0  # answers that wait for it to be on disk that topics are this consumer's
        self._sent: deque[tuple[int, list[Before]]] = deque()  # answers that perhaps did not arrive
        self.waiting: Any = None  # the fetch that waits for messages
        self.fetched_s = 0.0  # when it was last asked for something

    def covers(self, topic: bytes) -> bool:
        """Return whether a topic of this name is one of its own."""
        return topic in self.plain or any(matches(pattern, topic) for pattern in self.patterns)

    def note_sent(self, befores: list[Before]) -> None:
        """Note an answer with the next serial, and where it found each of its topics."""
        self.serial += 1
        self._sent.append((self.serial, befores))

    def go_on_after(self, got: int) -> None:
        """Be where the last answer left it that arrived: what was sent later did not."""
        if got > self.serial:  # of the session that this one follows: nothing of this one arrived
            got, self.serial = 0, min(got, _MAX_SERIAL)
        while self._sent and self._sent[0][0] <= got:
            for place, *_ in self._sent.popleft()[1]:
                if place.left_token == ENDED and not place.is_attaching:
                    self.places.pop(place.number, None)
        while self._sent:
            for place, position, token, left_token in reversed(self._sent.pop()[1]):
                place.position, place.token, place.left_token = position, token, left_token
                self.ready[place.number] = None
