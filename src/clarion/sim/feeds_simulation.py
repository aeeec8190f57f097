"""Feeds in simulated time: how soon a ring of nodes sees what changes, and what that costs the servers it polls.

Levels are chosen by the code of the real system, polls are at its phases, and wedges are those of nodes with random
ids. Detection is told thrice: by formula (a wedge has N/b^l nodes), by the wedges that are really there, and as it is
measured when channels change at random moments. Everything is arrays: there is no object for a poll.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clarion.feeds.honeycomb import Channels, LevelPlan, Scheme, choose_levels
from clarion.feeds.poll_schedule import poll_phase_s
from clarion.model.errors import BadSettings
from clarion.overlay import BASES, ID_BITS, Ring, ring_id, route, wedge_tree

Series: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[np.uint64]  # the highest 64 bits of ids on the ring
TARGET_S = 30.0  # of Corona-Fast in the lecture
MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
MOST_NODES, MOST_CHANNELS = 100_000, 100_000_000
_ID_BITS = 64
_POLLS_AT_ONCE = 4_000_000  # bounds the memory of a run, however many channels it has
_LOW_BITS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class FeedsModel:
    """What is simulated: the lecture's system unless told otherwise."""

    scheme: Scheme = Scheme.LITE
    nodes: int = 1024
    channels: int = 100_000
    subscriptions: int = 5_000_000
    base: int = 16
    poll_interval_s: float = 1800.0
    target_s: float = TARGET_S  # of Corona-Fast only
    zipf: float = 0.5
    varied_sizes: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        if self.base not in BASES:
            raise BadSettings(f"the base of a ring is one of {BASES}, not {self.base}")
        if self.nodes > MOST_NODES or self.channels > MOST_CHANNELS:
            raise BadSettings(f"at most {MOST_NODES:,} nodes and {MOST_CHANNELS:,} channels can be simulated")


class Workload(NamedTuple):
    """Channels with their places on the ring, the most popular first."""

    channels: Channels
    places: Ids


def make_workload(model: FeedsModel) -> Workload:
    """Return channels of Zipf's popularity, of which 10 % change every 10 min to 1 h, 40 % every 1 h to 5 d (both
    log-uniform) and 50 % every 7 d. Sizes are 1, or of a log-normal distribution with the mean 1."""
    rng, count = np.random.default_rng([model.seed, 1]), model.channels
    popularity = np.arange(1, count + 1, dtype=np.float64) ** -model.zipf
    kind = rng.random(count)
    span = rng.random(count)
    frequent = 10 * MINUTE_S * 6.0**span
    seldom = HOUR_S * 120.0**span
    interval_s = np.where(kind < 0.1, frequent, np.where(kind < 0.5, seldom, 7 * DAY_S))
    size = rng.lognormal(-0.5, 1.0, count) if model.varied_sizes else np.ones(count)
    places = rng.integers(0, 1 << _ID_BITS, count, dtype=np.uint64)
    return Workload(Channels(popularity * (model.subscriptions / popularity.sum()), size, interval_s), places)


def node_names(model: FeedsModel) -> list[str]:
    """Return the names of a run's nodes: with another seed they have other places on the ring."""
    return [f"{model.seed}-{number}" for number in range(model.nodes)]


class Pollers(NamedTuple):
    """Who polls some channels, as places of nodes on the circle: a wedge without gaps, and its owner."""

    first: Counts  # of the wedge
    wedge: Counts  # how many are in it; it can be empty
    owner: Counts
    total: Counts  # how many poll: the owner does, whether it is in the wedge or not

    def node(self, channel: Counts, rank: Counts) -> Counts:
        """Return which node has a rank among the pollers of a channel."""
        return np.where(rank < self.wedge[channel], self.first[channel] + rank, self.owner[channel])


class Places:
    """Nodes on the ring as arrays: what `Ring.pollers` says of one channel is said of many at once."""

    def __init__(self, ring: Ring) -> None:
        ids = [ring_id(name) >> (ID_BITS - _ID_BITS) for name in ring.names]
        self.ids = np.array(ids, dtype=np.uint64)  # sorted, as the ring has them
        self.levels = ring.levels
        self._bits = ring.digit_bits

    def owners(self, places: Ids) -> Counts:
        """Return who owns channels: the node nearest on the circle, the next one on where two are equally near."""
        after = np.searchsorted(self.ids, places) % self.ids.size
        before = (after - 1) % self.ids.size
        ahead, behind = self.ids[after] - places, places - self.ids[before]  # modulo the circle, as integers of 64 bits
        return np.where(ahead <= behind, after, before)

    def pollers(self, places: Ids, levels: NDArray[np.int8]) -> Pollers:
        """Return who polls channels at these levels."""
        owner = self.owners(places)
        shift = np.clip(_ID_BITS - self._bits * levels.astype(np.int64), 0, _ID_BITS - 1).astype(np.uint64)
        low = places >> shift << shift
        first = np.searchsorted(self.ids, low)
        end = np.searchsorted(self.ids, low | ((np.uint64(1) << shift) - np.uint64(1)), side="right")
        everybody, alone = levels == 0, levels >= self.levels
        first = np.where(everybody, 0, np.where(alone, owner, first))
        end = np.where(everybody, self.ids.size, np.where(alone, owner + 1, end))
        outside = (owner < first) | (owner >= end)
        return Pollers(first, end - first, owner, end - first + outside)


def full_place(place: int) -> int:
    """Return an id of all its bits: the highest that the simulator counts with, and the lowest that decide phases."""
    return place << (ID_BITS - _ID_BITS) | (place & _LOW_BITS)


@dataclass(frozen=True, slots=True)
class Detection:
    """Mean times from a change to the poll that sees it: of a subscription, of a channel, and of a change delivered."""

    by_subscription: float
    by_channel: float
    by_delivery: float  # each subscriber of a channel is told each of its changes


@dataclass(frozen=True, slots=True)
class Costs:
    """What servers bear on average, a channel and poll interval."""

    polls: float
    bandwidth: float  # polls by size, whose mean is 1


@dataclass(frozen=True, slots=True)
class Dissemination:
    """What it takes to tell a wedge of a change over Pastry's routing rows, on average over the changes."""

    messages: float  # over the tree, one to a node and no more
    hops_to_owner: float  # from the node that saw it
    depth: float  # hops from the owner to the last of the wedge
    wedge: float  # nodes that are told


class EachChannel(NamedTuple):
    """What was measured, channel by channel."""

    pollers: Counts
    even_s: Series
    random_s: Series


@dataclass(frozen=True, slots=True)
class FeedsOutcome:
    """What a simulation found; `plan` has what the optimiser promised."""

    model: FeedsModel
    plan: LevelPlan
    legacy: tuple[Detection, Costs]  # every subscriber polls for itself
    formula: tuple[Detection, Costs]
    real_wedges: tuple[Detection, Costs]  # tau / (2 max(1, wedge)), as the lecture has it
    pollers: tuple[Detection, Costs]  # tau / (2 pollers), where the owner polls outside of its wedge, too
    measured: Detection  # with polls evenly spaced
    measured_random: Detection  # with each poller at a random phase
    updates: int  # changes that were measured
    empty_wedges: int
    dissemination: Dissemination | None
    each: EachChannel

    @property
    def disagreement(self) -> float:
        """How far what is measured is from the formula of the same pollers."""
        return abs(self.measured.by_subscription / self.pollers[0].by_subscription - 1)

    @property
    def worth_of_spacing(self) -> float:
        """How many times as long detection takes where polls are at random phases."""
        return self.measured_random.by_subscription / self.measured.by_subscription

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        both = {name: getattr(self, name) for name in ("legacy", "formula", "real_wedges", "pollers")}
        return {
            **asdict(self.model),
            "channels_by_level": [int(count) for count in self.plan.channels_by_level],
            "budget": self.plan.budget,
            "gap_to_bound": self.plan.gap_to_bound,
            **{name: {"detection_s": asdict(times), **asdict(costs)} for name, (times, costs) in both.items()},
            "measured": {"detection_s": asdict(self.measured), "updates": self.updates},
            "measured_random_phases": {"detection_s": asdict(self.measured_random)},
            "disagreement": self.disagreement,
            "worth_of_spacing": self.worth_of_spacing,
            "empty_wedges": self.empty_wedges,
            "dissemination": None if self.dissemination is None else asdict(self.dissemination),
        }


def simulate_feeds(model: FeedsModel, *, updates: int = 10, told: int = 300) -> FeedsOutcome:
    """Return what becomes of a model: each channel is watched until it has changed so many times, and the tree by which
    a wedge is told is counted for so many channels. With 0 of them nothing is measured or counted."""
    work = make_workload(model)
    plan = plan_levels(model, work)
    return measure(model, work, plan, updates=updates, told=told)


def plan_levels(model: FeedsModel, work: Workload) -> LevelPlan:
    """Return the levels that the real system's optimiser chooses for a workload."""
    target_s = model.target_s if model.scheme is Scheme.FAST else None
    return choose_levels(work.channels, model.nodes, model.base, model.poll_interval_s, model.scheme, target_s)


def measure(model: FeedsModel, work: Workload, plan: LevelPlan, *, updates: int = 10, told: int = 300) -> FeedsOutcome:
    """Return what a plan comes to on a ring of the model's nodes."""
    ring = Ring(node_names(model), model.base)
    pollers = Places(ring).pollers(work.places, plan.levels)
    wedge = np.maximum(1, pollers.wedge)
    channels, interval_s = work.channels, model.poll_interval_s
    each = measured_detections(model, work, pollers.total, updates)
    return FeedsOutcome(
        model=model,
        plan=plan,
        legacy=(Detection(*[interval_s / 2] * 3), _costs(channels, channels.subscribers)),
        formula=(detection(channels, interval_s / (2 * plan.pollers)), _costs(channels, plan.pollers)),
        real_wedges=(detection(channels, interval_s / (2 * wedge)), _costs(channels, wedge)),
        pollers=(detection(channels, interval_s / (2 * pollers.total)), _costs(channels, pollers.total)),
        measured=detection(channels, each.even_s),
        measured_random=detection(channels, each.random_s),
        updates=updates * model.channels,
        empty_wedges=int(np.count_nonzero(pollers.wedge == 0)),
        dissemination=_dissemination(model, work, plan, ring, told) if told else None,
        each=each,
    )


def detection(channels: Channels, times_s: Series) -> Detection:
    """Return means of the detection times of channels."""
    delivered = channels.subscribers / channels.update_interval_s
    return Detection(
        float(np.average(times_s, weights=channels.subscribers)),
        float(times_s.mean()),
        float(np.average(times_s, weights=delivered)),
    )


def _costs(channels: Channels, polls: Series | Counts) -> Costs:
    return Costs(float(polls.mean()), float(np.average(polls, weights=channels.size)))


def measured_detections(model: FeedsModel, work: Workload, pollers: Counts, updates: int) -> EachChannel:
    """Return the mean detection times of channels as they are measured: each channel changes so many times, at the
    moments of a Poisson process, and waits for the next poll; with evenly spaced polls, and with random ones."""
    rng = np.random.default_rng([model.seed, 2])
    even, random = np.full(pollers.size, np.nan), np.full(pollers.size, np.nan)
    for part in _parts(pollers) if updates else ():
        count, places = pollers[part], work.places[part]
        of = np.repeat(np.arange(count.size), count)
        rank = np.arange(of.size) - np.repeat(np.cumsum(count) - count, count)
        phases_s = poll_phase_s(rank, count[of], model.poll_interval_s, places[of])  # type: ignore[arg-type]
        gaps_s = rng.exponential(1.0, (count.size, updates)) * work.channels.update_interval_s[part, None]
        changed_s = np.cumsum(gaps_s, axis=1)
        even[part] = _waits_s(of, phases_s, changed_s, model.poll_interval_s)
        random[part] = _waits_s(of, rng.random(of.size) * model.poll_interval_s, changed_s, model.poll_interval_s)
    return EachChannel(pollers, even, random)


def _parts(pollers: Counts) -> Iterator[slice]:
    """Return slices of channels with a bounded number of polls each."""
    ends = np.cumsum(pollers)
    start = 0
    while start < pollers.size:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _POLLS_AT_ONCE, side="right")))
        yield slice(start, stop)
        start = stop


def _waits_s(of: Counts, phases_s: Any, changed_s: Series, interval_s: float) -> Series:
    """Return for each channel how long its changes wait on average for the next poll. `of` says whose poll each is."""
    moments = np.sort(of * interval_s + phases_s)  # the polls of one interval, those of a channel together
    count = np.bincount(of, minlength=changed_s.shape[0])
    end = np.cumsum(count)[:, None]
    begin_s = (np.arange(count.size) * interval_s)[:, None]
    asked_s = begin_s + changed_s % interval_s
    found = np.searchsorted(moments, asked_s)
    over = found >= end  # no poll is left in this interval: the first one of the next
    next_s = moments[np.where(over, end - count[:, None], found)] + over * interval_s
    waits: Series = (next_s - asked_s).mean(axis=1)
    return waits


def _dissemination(model: FeedsModel, work: Workload, plan: LevelPlan, ring: Ring, told: int) -> Dissemination:
    """Return what the trees cost of some channels, drawn by how often they change."""
    rng = np.random.default_rng([model.seed, 3])
    often = 1 / work.channels.update_interval_s
    drawn = rng.choice(model.channels, told, p=often / often.sum())
    found = []
    for channel in drawn:
        place, level = full_place(int(work.places[channel])), int(plan.levels[channel])
        pollers = ring.pollers(place, level)
        finder = pollers[int(rng.integers(len(pollers)))]
        tree = wedge_tree(ring, place, level)
        found.append((len(tree.edges), len(route(ring, finder, place)) - 1, tree.depth, len(pollers)))
    return Dissemination(*(float(mean) for mean in np.mean(found, axis=0)))
