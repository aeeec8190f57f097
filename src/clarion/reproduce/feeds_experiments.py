"""Corona's evaluation, run again: five schemes on one ring, their first hours, spacing, deciding alone, and churn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clarion.feeds.honeycomb import (
    Channels,
    Clusters,
    LevelPlan,
    Scheme,
    clusters_of,
    decide_alone,
    describe,
    merge,
    wedge_sizes,
)
from clarion.overlay import Ring
from clarion.sim.feeds_churn import Churned, simulate_churn
from clarion.sim.feeds_simulation import (
    HOUR_S,
    Detection,
    FeedsModel,
    FeedsOutcome,
    Places,
    Series,
    Workload,
    detection,
    make_workload,
    measure,
    node_names,
    plan_levels,
    simulate_feeds,
)

MAINTENANCE_S = HOUR_S
STEP_S = 300.0  # between two points of the first hours
LECTURE = {  # detection time in seconds, and load
    "legacy": (900.0, 50.00),
    Scheme.LITE: (53.0, 48.97),
    Scheme.FAIR: (142.0, 50.14),
    Scheme.FAIR_SQRT: (55.0, 49.46),
    Scheme.FAIR_LOG: (53.0, 49.43),
    Scheme.FAST: (32.0, 58.75),
}


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a reproduction is."""

    name: str
    model: FeedsModel
    seeds: int  # rings and update intervals that each scheme is run with
    updates: int
    told: int  # changes whose way to a wedge is counted
    first_hours: float
    churn_hours: float
    churn_channels: int
    decided_alone: tuple[Scheme, ...] = tuple(Scheme)  # which takes 1024 decisions each


FULL = Extent(
    "full", FeedsModel(), seeds=5, updates=20, told=1000, first_hours=6.0, churn_hours=6.0, churn_channels=100_000
)
QUICK = Extent(
    "quick", FeedsModel(channels=20_000, subscriptions=1_000_000),
    seeds=2, updates=10, told=100, first_hours=6.0, churn_hours=2.0, churn_channels=2000, decided_alone=(Scheme.LITE,),
)  # fmt: skip
CHURN_PER_HOUR = 0.1


class Hours(NamedTuple):
    """How a scheme's detection and load come to what is planned, from owners that poll alone."""

    at_s: Series
    detection_s: Series  # a subscription
    polls: Series  # a channel and poll interval


class Alone(NamedTuple):
    """What comes of nodes that decide alone, each knowing the clusters of all."""

    plan: LevelPlan
    clusters: int  # of all nodes together
    bytes_a_node: float  # that a node tells


@dataclass(frozen=True)
class Results:
    """Everything that was run."""

    extent: Extent
    work: Workload
    outcomes: dict[Scheme, FeedsOutcome]
    seeds: dict[Scheme, list[FeedsOutcome]]  # other rings; nothing is measured
    at_lecture_load: dict[Scheme, FeedsOutcome]  # with as much load as the lecture's table has
    hours: dict[Scheme, Hours]
    alone: dict[Scheme, Alone]
    varied: FeedsOutcome  # Lite with channels of different sizes
    churns: dict[str, Churned]  # by which levels


def run_experiments(extent: Extent, *, on_done: Callable[[int, int], None] | None = None) -> Results:
    """Run everything, one after the other."""
    model, schemes = extent.model, list(Scheme)
    total, done = len(schemes) * (2 + extent.seeds) + 3, 0

    def tick() -> None:
        nonlocal done
        done += 1
        if on_done is not None:
            on_done(done, total)

    work = make_workload(model)
    results = Results(extent, work, {}, {}, {}, {}, {}, _outcome(replace(model, varied_sizes=True)), {})
    tick()
    for scheme in schemes:
        one = replace(model, scheme=scheme)
        plan = plan_levels(one, work)
        told = extent.told if scheme is Scheme.LITE else 0
        results.outcomes[scheme] = measure(one, work, plan, updates=extent.updates, told=told)
        results.hours[scheme] = first_hours(one, work, plan, extent.first_hours)
        tick()
        if scheme in extent.decided_alone:
            results.alone[scheme] = decided_alone(one, work)
        tick()
        results.seeds[scheme] = []
        for seed in range(1, extent.seeds + 1):
            results.seeds[scheme].append(_outcome(replace(one, seed=seed)))
            tick()
        load = LECTURE[scheme][1]
        like = replace(one, scheme=Scheme.LITE if scheme is Scheme.FAST else scheme)  # Fast is Lite with another budget
        results.at_lecture_load[scheme] = _outcome(replace(like, subscriptions=round(load * one.channels)))
    for name, subscriptions in (("levels by Lite", 50), ("owners alone", 1)):
        churned = replace(model, channels=extent.churn_channels, subscriptions=subscriptions * extent.churn_channels)
        some = make_workload(churned)
        plan = plan_levels(churned, some)
        results.churns[name] = simulate_churn(churned, some, plan, CHURN_PER_HOUR, extent.churn_hours)
        tick()
    return results


def _outcome(model: FeedsModel) -> FeedsOutcome:
    return simulate_feeds(model, updates=0, told=0)


def first_hours(model: FeedsModel, work: Workload, plan: LevelPlan, hours: float) -> Hours:
    """Return how a plan is reached: owners begin alone, and each hour, at a moment of its own, each lets its channels
    have one level less or more until they are where they should be."""
    places = Places(Ring(node_names(model), model.base))
    owners = places.owners(work.places)
    moments_s = np.random.default_rng([model.seed, 6]).random(model.nodes)[owners] * MAINTENANCE_S
    at_s = np.arange(0.0, hours * HOUR_S + 1, STEP_S)
    alone = np.full(model.channels, places.levels, np.int8)
    by_level = [
        places.pollers(work.places, np.maximum(plan.levels, level).astype(np.int8)).total
        for level in range(places.levels + 1)
    ]
    found, polls = [], []
    for now_s in at_s.tolist():
        steps = np.maximum(0, np.floor((now_s - moments_s) / MAINTENANCE_S) + 1).astype(np.int64)
        level = np.maximum(alone - steps, 0)
        count = np.choose(level, by_level)
        found.append(detection(work.channels, model.poll_interval_s / (2 * count)).by_subscription)
        polls.append(float(count.mean()))
    return Hours(at_s, np.array(found), np.array(polls))


def decided_alone(model: FeedsModel, work: Workload) -> Alone:
    """Return what comes of owners that decide the levels of their channels alone, from the clusters of all nodes."""
    owners = Places(Ring(node_names(model), model.base)).owners(work.places)
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(model.nodes + 1))
    mine: list[NDArray[np.intp]] = [order[start:stop] for start, stop in pairwise(ends)]
    owned = [Channels(*(column[some] for column in work.channels)) for some in mine]
    told = [clusters_of(one, model.scheme) for one in owned]
    of_all = merge(told)
    target_s = model.target_s if model.scheme is Scheme.FAST else None
    levels = np.zeros(model.channels, np.int8)
    before = Clusters(model.scheme)
    for some, one, clusters in zip(mine, owned, told, strict=True):
        levels[some] = decide_alone(
            one, of_all, model.nodes, model.base, model.poll_interval_s, model.scheme, target_s, before
        )
        before = merge([before, clusters])
    sizes = wedge_sizes(model.nodes, model.base)
    size = float(np.mean([len(clusters.encode()) for clusters in told]))
    return Alone(
        describe(work.channels, levels, sizes, model.poll_interval_s, model.scheme), len(of_all.clusters), size
    )


def ranked(results: Results, scheme: Scheme, bins: int = 40) -> tuple[Series, Series]:
    """Return ranks of popularity in even steps of their logarithm, and the mean detection time of those up to each."""
    edges = np.unique(np.geomspace(1, results.extent.model.channels, bins + 1).round().astype(np.int64))
    times_s = results.extent.model.poll_interval_s / (2 * results.outcomes[scheme].each.pollers)
    sums = np.concatenate([[0.0], np.cumsum(times_s)])
    starts = np.concatenate([[0], edges[:-1]])
    return edges.astype(np.float64), (sums[edges] - sums[starts]) / (edges - starts)


def by_update_interval(results: Results, scheme: Scheme, bins: int = 14) -> tuple[Series, Series]:
    """Return update intervals, and the mean detection time of the channels that change about so often."""
    interval_s = results.work.channels.update_interval_s
    times_s = results.extent.model.poll_interval_s / (2 * results.outcomes[scheme].each.pollers)
    edges = np.geomspace(600, 5 * 86_400, bins + 1)
    place = np.clip(np.searchsorted(edges, interval_s, side="right") - 1, 0, bins)  # once a week: the last
    count = np.bincount(place, minlength=bins + 1)
    middles = np.concatenate([np.sqrt(edges[:-1] * edges[1:]), [7 * 86_400.0]])
    means = np.bincount(place, times_s, bins + 1) / np.maximum(count, 1)
    return middles[count > 0], means[count > 0]


def by_pollers(outcome: FeedsOutcome) -> dict[int, tuple[float, float]]:
    """Return for each number of pollers that many channels have the measured times: evenly spaced, and at random."""
    each = outcome.each
    count = np.bincount(each.pollers)
    shown = np.flatnonzero(count >= max(20, each.pollers.size // 2000))
    even, random = (np.bincount(each.pollers, times_s) for times_s in (each.even_s, each.random_s))
    return {int(n): (float(even[n] / count[n]), float(random[n] / count[n])) for n in shown}


def spread(outcomes: list[FeedsOutcome], of: Callable[[FeedsOutcome], Detection]) -> tuple[float, float]:
    """Return the least and the most of detection times by subscription over some runs."""
    times_s = [of(one).by_subscription for one in outcomes]
    return min(times_s), max(times_s)
