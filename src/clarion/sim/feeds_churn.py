"""Nodes that fail and join while channels are polled: how long a channel goes without a poll.

Nodes beat, and the view of the ring follows from the beats by the code of the real system: a node that fails is taken
out some beats later, and until then nobody does its polls. All nodes see the same ring, so on each change all are at
their new ranks' phases at once, on a grid of time that never moves.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heapreplace
from typing import Any, NamedTuple

import numpy as np

from clarion.feeds.honeycomb import LevelPlan
from clarion.feeds.poll_schedule import poll_phase_s
from clarion.feeds.ring_view import MISSED_BEATS, Beat, RingView
from clarion.model.errors import BadSettings
from clarion.overlay import Ring
from clarion.sim.feeds_simulation import (
    Counts,
    Detection,
    FeedsModel,
    Places,
    Pollers,
    Series,
    Workload,
    detection,
    node_names,
)

BEAT_S = 10.0
LEAST_BEAT_S, MOST_CHURN = 0.5, 10.0
_LOOKS_A_BEAT = 2  # how often nodes look at who is silent
_BEFORE_S = 1e6  # the broker's time at the beginning of a run
_OVER = (1.0, 1.5, 2.0)  # intervals


@dataclass(frozen=True, slots=True)
class ChurnOutcome:
    """What nodes that come and go do to the polls of channels."""

    polls: float  # a channel and poll interval
    missed: float  # of the polls that the views asked for, the share that nobody made: their nodes had failed
    longest_gap_s: float  # between two polls of a channel
    longest_gap_intervals: float
    channels_by_gap: dict[str, int]  # whose longest gap is over so many intervals
    detection_s: Detection  # of changes at any moment of the run
    gaps_s: Series  # the longest of each channel


@dataclass(frozen=True, slots=True)
class Churned:
    """A run in which nodes fail and join. Where an owner is taken out, the poll that it missed while it was silent is
    made by nobody (`grid_alone`), or at once by the new owner (`making_up`)."""

    churn_per_hour: float
    hours: float
    beat_s: float
    failed: int
    joined: int
    views: int  # of the ring, one after the other
    grid_alone: ChurnOutcome
    making_up: ChurnOutcome

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        told = asdict(self)
        for one in (told["grid_alone"], told["making_up"]):
            del one["gaps_s"]
        return told


class View(NamedTuple):
    """What the nodes take for the ring between two moments."""

    ring: Ring
    from_s: float
    until_s: float


class Lives:
    """When nodes join and when they fail: both happen at random moments, equally often."""

    def __init__(self, model: FeedsModel, churn_per_hour: float, seconds: float) -> None:
        rng = np.random.default_rng([model.seed, 4])
        self.joins_s = dict.fromkeys(node_names(model), -math.inf)
        self.fails_s = dict.fromkeys(self.joins_s, math.inf)
        self.failed = self.joined = 0
        alive = list(self.joins_s)
        changes = rng.poisson(2 * churn_per_hour * model.nodes * seconds / 3600)
        for at_s in np.sort(rng.random(changes) * seconds).tolist():
            if rng.random() < 0.5 and len(alive) > 1:
                self.fails_s[alive.pop(int(rng.integers(len(alive))))] = at_s
                self.failed += 1
            else:
                self.joined += 1
                new = f"{model.seed}-more-{self.joined}"
                self.joins_s[new], self.fails_s[new] = at_s, math.inf
                alive.append(new)


def views_of(lives: Lives, base: int, seconds: float, beat_s: float, seed: int) -> Iterator[View]:
    """Return the views of the ring that follow from the nodes' beats, one after the other, until the end of a run."""
    rng = np.random.default_rng([seed, 5])
    view = RingView()
    due = []
    for name, joins_s in lives.joins_s.items():
        beat = Beat(node=name, incarnation="", number=0, beat_s=beat_s, base=base, poll_interval_s=0.0, scheme="")
        due.append((joins_s if joins_s >= 0 else (rng.random() - MISSED_BEATS - 1) * beat_s, name, beat))
    heapify(due)
    ring, from_s = Ring((), base), 0.0
    beaten: set[str] = set()
    silent: deque[float] = deque()  # since when those are that failed and are not taken out yet
    for now_s in np.arange(0.0, seconds, beat_s / _LOOKS_A_BEAT).tolist():
        known = len(beaten)
        while due[0][0] <= now_s:
            at_s, name, beat = due[0]
            if at_s < lives.fails_s[name]:
                beaten.add(name)
                view.on_message(beat, round((at_s + _BEFORE_S) * 1e6))
                heapreplace(due, (at_s + beat_s, name, beat))
            else:
                heappop(due)
                silent.append(at_s - beat_s)
        if len(beaten) == known and not (silent and now_s - silent[0] > MISSED_BEATS * beat_s):
            continue  # nobody is new, and nobody silent for long enough
        view.take_out()
        while silent and now_s - silent[0] > (MISSED_BEATS + 1) * beat_s:
            silent.popleft()
        if view.nodes.keys() != set(ring.names):
            if now_s:
                yield View(ring, from_s, now_s)
            ring, from_s = view.ring(base), now_s
    yield View(ring, from_s, seconds)


class _Gaps:
    """How long channels go without a poll."""

    def __init__(self, channels: int) -> None:
        self.last_s = np.full(channels, math.nan)  # when each was polled
        self.longest_s = np.zeros(channels)
        self.squares = np.zeros(channels)  # of its gaps, summed
        self.sums_s = np.zeros(channels)
        self.polls = self.missed = 0

    def add(self, of: Counts, at_s: Series) -> None:
        """Take in polls: those of a channel come together and in order."""
        if not of.size:
            return
        other = of[1:] != of[:-1]
        begins, ends = np.concatenate([[True], other]), np.concatenate([other, [True]])
        before_s = np.where(begins, self.last_s[of], np.concatenate([[0.0], at_s[:-1]]))
        np.maximum.at(self.longest_s, of, at_s - np.nan_to_num(before_s))
        gaps_s = np.nan_to_num(at_s - before_s)
        np.add.at(self.squares, of, gaps_s**2)
        np.add.at(self.sums_s, of, gaps_s)
        self.last_s[of[ends]] = at_s[ends]
        self.polls += of.size

    def end(self, now_s: float) -> None:
        """Count what no poll has ended yet."""
        self.longest_s = np.maximum(self.longest_s, now_s - np.nan_to_num(self.last_s))


def polls_between(
    pollers: Pollers, offsets_s: Series, interval_s: float, from_s: Series, until_s: float
) -> tuple[Counts, Series, Counts]:
    """Return the polls after one moment and up to another: of which channel, when, and by the poller of which rank.
    They are those of `next_poll_s` for all ranks."""
    apart_s = interval_s / pollers.total
    first = np.floor((from_s - offsets_s) / apart_s).astype(np.int64) + 1
    count = np.floor((until_s - offsets_s) / apart_s).astype(np.int64) + 1 - first
    of = np.repeat(np.arange(count.size), count)
    turn = first[of] + np.arange(of.size) - np.repeat(np.cumsum(count) - count, count)
    return of, offsets_s[of] + turn * apart_s[of], turn % pollers.total[of]


def simulate_churn(
    model: FeedsModel, work: Workload, plan: LevelPlan, churn_per_hour: float, hours: float, beat_s: float = BEAT_S
) -> Churned:
    """Return what becomes of a plan's polls while such a share of the nodes fails each hour, and as many join."""
    if not 0 <= churn_per_hour <= MOST_CHURN or beat_s < LEAST_BEAT_S:
        raise BadSettings(
            f"a churn of up to {MOST_CHURN:g} an hour and beats of {LEAST_BEAT_S:g} s or more can be simulated"
        )
    seconds, interval_s = 3600 * hours, model.poll_interval_s
    order = np.argsort(work.places)  # looking for neighbours on the circle is faster so
    places, levels = work.places[order], plan.levels[order]
    offsets_s: Any = poll_phase_s(0, 1, interval_s, places)  # type: ignore[arg-type]
    lives, grid_alone, making_up, views = Lives(model, churn_per_hour, seconds), _Gaps(order.size), _Gaps(order.size), 0
    owners = np.zeros(0, np.uint64)
    for view in views_of(lives, model.base, seconds, beat_s, model.seed):
        nodes = Places(view.ring)
        pollers = nodes.pollers(places, levels)
        fails_s = np.array([lives.fails_s[name] for name in view.ring.names])
        before_s = np.full(order.size, view.from_s)
        if views:
            before_s[~np.isin(owners, nodes.ids)] -= (MISSED_BEATS + 1) * beat_s
        owners = nodes.ids[pollers.owner]
        of, at_s, rank = polls_between(pollers, offsets_s, interval_s, before_s, view.until_s)
        by = pollers.node(of, rank)
        usual, missed = at_s > view.from_s, by == pollers.owner[of]
        at_s = np.maximum(at_s, view.from_s)
        made = at_s < fails_s[by]
        for gaps, some in ((grid_alone, usual), (making_up, usual | missed)):
            gaps.add(of[some & made], at_s[some & made])
            gaps.missed += int(np.count_nonzero(some & ~made))
        views += 1

    def outcome(gaps: _Gaps) -> ChurnOutcome:
        gaps.end(seconds)
        times_s = np.empty(order.size)
        times_s[order] = np.divide(gaps.squares, 2 * gaps.sums_s, out=gaps.longest_s / 2, where=gaps.sums_s > 0)
        longest = float(gaps.longest_s.max()) / interval_s
        return ChurnOutcome(
            polls=gaps.polls * interval_s / seconds / order.size,
            missed=gaps.missed / (gaps.polls + gaps.missed),
            longest_gap_s=longest * interval_s,
            longest_gap_intervals=longest,
            channels_by_gap={f"{over:g}": int(np.count_nonzero(gaps.longest_s > over * interval_s)) for over in _OVER},
            detection_s=detection(work.channels, times_s),
            gaps_s=gaps.longest_s,
        )

    return Churned(
        churn_per_hour, hours, beat_s, lives.failed, lives.joined, views, outcome(grid_alone), outcome(making_up)
    )
