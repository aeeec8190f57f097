"""Who polls which channel, and when: evenly spaced within a wedge, and within what a host is asked to bear.

The moments at which a node polls a channel are a grid in the broker's time: one poll an interval, at a phase that the
channel's id and the node's rank among its pollers decide. So no message is needed to agree, and when the wedge changes
everybody is at its new phase at once. An owner that is new to a channel polls at the next moment of its grid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import floor
from typing import NamedTuple

from clarion.overlay import Ring


class Watched(NamedTuple):
    """A channel as the schedule needs it."""

    place: int  # on the ring
    host: str
    subscribers: int


class Slot(NamedTuple):
    """When a node polls a channel: each `interval_s`, `phase_s` after the interval's beginning."""

    interval_s: float
    phase_s: float
    pollers: int  # that share the channel, this one included
    is_owner: bool
    level: int = 0


def level_of(name: str, levels: Mapping[str, int], ring: Ring) -> int:
    """Return the level of a channel: as its owner told; the highest where nobody did, or the ring has shrunk."""
    return min(levels.get(name, ring.levels), ring.levels)


def poll_phase_s(rank: int, pollers: int, interval_s: float, place: int = 0) -> float:
    """Return when in an interval the poller of this rank polls: the ranks are evenly spaced, channels are not alike."""
    share = rank / pollers + (place & (2**32 - 1)) / 2**32
    return share % 1.0 * interval_s


def next_poll_s(slot: Slot, after_s: float) -> float:
    """Return the first moment of a slot later than `after_s`."""
    turns = floor((after_s - slot.phase_s) / slot.interval_s) + 1
    found = turns * slot.interval_s + slot.phase_s
    return found if found > after_s else found + slot.interval_s


def host_stretches(
    ring: Ring, channels: Mapping[str, Watched], levels: Mapping[str, int], poll_interval_s: float, limit_per_s: float
) -> dict[str, float]:
    """Return by how much the intervals of each host are stretched, for all nodes together to poll it no more often than
    `limit_per_s`: every node computes the same from the same ring. Hosts that need no stretching are left out."""
    pollers: dict[str, int] = defaultdict(int)
    for name, channel in channels.items():
        level = level_of(name, levels, ring)
        pollers[channel.host] += 1 if level >= ring.levels else ring.rank(channel.place, level, "")[1]
    allowed = limit_per_s * poll_interval_s
    return {host: count / allowed for host, count in pollers.items() if count > allowed}


def slots_of(
    node: str,
    ring: Ring,
    channels: Mapping[str, Watched],
    levels: Mapping[str, int],
    poll_interval_s: float,
    limit_per_s: float,
) -> dict[str, Slot]:
    """Return the slots of the channels that a node polls; a channel that has no level is polled by its owner alone."""
    if node not in ring:
        return {}
    stretches = host_stretches(ring, channels, levels, poll_interval_s, limit_per_s)
    found: dict[str, Slot] = {}
    for name, channel in channels.items():
        level = level_of(name, levels, ring)
        rank, pollers = ring.rank(channel.place, level, node)
        if rank is not None:
            interval_s = poll_interval_s * stretches.get(channel.host, 1.0)
            phase_s = poll_phase_s(rank, pollers, interval_s, channel.place)
            found[name] = Slot(interval_s, phase_s, pollers, ring.owner(channel.place) == node, level)
    return found
