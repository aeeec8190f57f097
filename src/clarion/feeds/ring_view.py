"""What nodes tell each other on the ring's topic, and the view of the ring that follows from it.

All nodes read one log, so all see the same ring: a node is on it while it beats, in the broker's commit times and in
the order of the log, and no clock of a node is asked. A node that cannot reach the broker keeps its last view.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, NamedTuple

import msgspec

from clarion.feeds.politeness import HostThrottle, Throttled
from clarion.model.errors import PermanentError
from clarion.overlay import ID_BITS, Ring

RING_TOPIC = "clarion/feeds/ring"
NOTICES_TOPIC = "clarion/feeds/notices"  # of new and ended subscriptions; they only hasten what is looked for anyway
NOTICES_KEPT_S = 86_400.0
MISSED_BEATS = 3  # after which a node is taken out
_CLOCKS_OFF_S = 10.0  # that is not taken for silence
_RETIRED_KEPT = 1000
_LOOKED_EACH_US = 500_000


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """A node lives; with what all nodes of a ring must agree on, and how it does."""

    node: str
    incarnation: str  # random, for each start of a node
    number: int
    beat_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)]  # between two
    base: int
    poll_interval_s: Annotated[float, msgspec.Meta(gt=0)]
    scheme: str
    target_s: float | None = None
    host_limit_per_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    leaving: bool = False
    channels: int = 0  # that it polls
    owned: int = 0
    polls: int = 0  # since its start
    changes: int = 0
    failures: int = 0

    @property
    def agreement(self) -> dict[str, object]:
        """What nodes of one ring have in common."""
        names = ("beat_s", "base", "poll_interval_s", "scheme", "target_s", "host_limit_per_s")
        return {name: getattr(self, name) for name in names}


class Aggregate(msgspec.Struct, frozen=True, kw_only=True, tag="aggregate"):
    """The trade-off clusters of the channels that a node owns."""

    node: str
    clusters: bytes


class Levels(msgspec.Struct, frozen=True, kw_only=True, tag="levels"):
    """What an owner decided: the levels of channels, by their hash."""

    node: str
    levels: dict[str, Annotated[int, msgspec.Meta(ge=0, le=ID_BITS)]]


RingMessage = Beat | Aggregate | Levels | Throttled
_messages = msgspec.json.Decoder(RingMessage)


def encode_ring_message(message: RingMessage) -> bytes:
    """Return a message as the payload that goes on the ring's topic: JSON."""
    return msgspec.json.encode(message)


def decode_ring_message(payload: bytes) -> RingMessage:
    """Return the message of a payload; PermanentError where it is none."""
    try:
        found: RingMessage = _messages.decode(payload)
        if isinstance(found, Beat):
            Ring((), found.base)  # whether there is such a ring
        return found
    except (msgspec.DecodeError, ValueError) as error:
        raise PermanentError(f"this is no message of a ring: {error}") from error


class _Seen:
    """A node as the log tells of it."""

    def __init__(self, beat: Beat) -> None:
        self.beat = beat
        self.places: deque[int] = deque(maxlen=MISSED_BEATS)  # of its last beats in the order of all of them
        self.last_us = 0


class NodeStatus(NamedTuple):
    """A node that is on the ring, as it told last."""

    beat: Beat
    at_us: int  # by the broker

    def is_silent(self, now_us: int) -> bool:
        """Tell whether it has missed its beats, though nobody else beats who would have it taken out. For people: the
        clock may be another machine's, and somewhat off."""
        return now_us - self.at_us > (MISSED_BEATS * self.beat.beat_s + _CLOCKS_OFF_S) * 1e6


class RingView:
    """The ring as far as its topic was read."""

    def __init__(self) -> None:
        self.aggregates: dict[str, bytes] = {}  # clusters by node
        self.levels: dict[str, int] = {}  # by hash of the channel, as their owners told last
        self.throttle = HostThrottle()  # in the broker's time
        self.newest_us = 0
        self._seen: dict[str, _Seen] = {}
        self._retired: dict[tuple[str, str], None] = {}
        self._beats = 0
        self._looked_us = 0

    def on_message(self, message: RingMessage, committed_at_us: int) -> None:
        """Take in the next message of the log."""
        self.newest_us = max(self.newest_us, committed_at_us)
        if isinstance(message, Beat):
            self._on_beat(message, committed_at_us)
            if self.newest_us - self._looked_us > _LOOKED_EACH_US:  # who reads it all at once sees what others saw
                self.take_out()
        elif isinstance(message, Aggregate):
            if message.node in self._seen:  # what anybody else tells would count for ever
                self.aggregates[message.node] = message.clusters
        elif isinstance(message, Levels):
            self.levels.update({name: max(0, level) for name, level in message.levels.items()})
        else:
            self.throttle.learn(message, committed_at_us / 1e6)

    def _on_beat(self, beat: Beat, committed_at_us: int) -> None:
        if (beat.node, beat.incarnation) in self._retired:
            return
        self._beats += 1
        seen = self._seen.get(beat.node)
        if seen is not None and seen.beat.incarnation != beat.incarnation:  # who starts later under a name has it
            self._retire(seen.beat)
            seen = None
        if beat.leaving:
            self._retire(beat)
            self._seen.pop(beat.node, None)
            self.aggregates.pop(beat.node, None)
            return
        if seen is None:
            seen = self._seen[beat.node] = _Seen(beat)
        seen.beat, seen.last_us = beat, committed_at_us
        seen.places.append(self._beats)

    def _retire(self, beat: Beat) -> None:
        self._retired[beat.node, beat.incarnation] = None
        while len(self._retired) > _RETIRED_KEPT:
            del self._retired[next(iter(self._retired))]

    def is_retired(self, node: str, incarnation: str) -> bool:
        """Tell whether somebody who started later has taken a node's name."""
        return (node, incarnation) in self._retired

    def take_out(self) -> None:
        """Take out who is silent: another has beaten so often since, and so much time has passed at the broker."""
        self._looked_us = self.newest_us
        regular = [seen.places[0] for seen in self._seen.values() if len(seen.places) == MISSED_BEATS]
        since = max(regular, default=0)
        for name, seen in list(self._seen.items()):
            silent_s = (self.newest_us - seen.last_us) / 1e6
            if seen.places[-1] < since and silent_s > MISSED_BEATS * seen.beat.beat_s:
                del self._seen[name]
                self.aggregates.pop(name, None)

    @property
    def nodes(self) -> dict[str, NodeStatus]:
        """Who is on the ring, by name."""
        return {name: NodeStatus(seen.beat, seen.last_us) for name, seen in sorted(self._seen.items())}

    def ring(self, base: int) -> Ring:
        """Return the ring of those who live."""
        return Ring(self._seen, base)

    def forget_levels(self, known: set[str]) -> None:
        """Keep the levels of channels that are known."""
        self.levels = {name: level for name, level in self.levels.items() if name in known}
