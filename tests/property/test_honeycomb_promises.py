"""Polling levels against brute force, against the Lagrangian bound, and of nodes that decide alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.feeds.honeycomb import (
    Channels,
    Clusters,
    LevelPlan,
    Scheme,
    choose_levels,
    clusters_of,
    decide_alone,
    describe,
    merge,
    wedge_sizes,
)

_INTERVAL_S = 1800.0
_SLACK = 1 + 1e-9
_NODES = st.sampled_from([(1, 16), (2, 16), (3, 2), (16, 16), (17, 16), (64, 4), (100, 16)])
_SCHEMES = st.sampled_from(Scheme)


@st.composite
def _channels(draw: st.DrawFn, most: int) -> Channels:
    """A few channels, some of them alike, some without subscribers."""
    count = draw(st.integers(1, most))
    some = st.lists(st.sampled_from([0, 1, 1, 2, 5, 40, 300]), min_size=count, max_size=count)
    sizes = st.lists(st.sampled_from([1.0, 1.0, 3.0, 10.0, 0.1, 7.77]), min_size=count, max_size=count)
    updates = st.lists(st.sampled_from([60.0, 3600.0, 86400.0, np.inf]), min_size=count, max_size=count)
    return Channels(np.array(draw(some), float), np.array(draw(sizes)), np.array(draw(updates)))


def _large(seed: int, count: int) -> Channels:
    dice = np.random.default_rng(seed)
    subscribers = np.ceil(dice.pareto(1.2, count) * 5)
    return Channels(subscribers, dice.lognormal(9, 1, count), 10 ** dice.uniform(2, 6, count))


def _target(scheme: Scheme, nodes: int, times: float = 3.0) -> float | None:
    return times * _INTERVAL_S / 2 / nodes if scheme is Scheme.FAST else None


def _sums(
    channels: Channels, pollers: npt.NDArray[np.float64], scheme: Scheme
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The document's f and g of each channel for so many pollers, with the document's weights."""
    q, s, u = channels
    weight = {
        Scheme.FAIR: _INTERVAL_S / u,
        Scheme.FAIR_SQRT: np.sqrt(_INTERVAL_S / u),
        Scheme.FAIR_LOG: np.log(_INTERVAL_S) / np.log(u),
    }.get(scheme, np.ones_like(q))
    if scheme is Scheme.FAST:
        return s * pollers, q / pollers
    return q * weight / pollers, s * pollers


def _budget(channels: Channels, scheme: Scheme, target_s: float | None) -> float:
    q, s, _ = channels
    return float(q.sum()) * (target_s or 0) / (_INTERVAL_S / 2) if scheme is Scheme.FAST else float(q @ s)


def _watched(channels: Channels) -> Channels:
    return Channels(*(column[channels.subscribers > 0] for column in channels))


def _kept_its_budget(plan: LevelPlan, scheme: Scheme, target_s: float | None) -> bool:
    if scheme is Scheme.FAST:
        return plan.detection_s_by_subscription <= (target_s or 0) * _SLACK
    return plan.bandwidth <= plan.budget * _SLACK


@settings(max_examples=150, deadline=None)
@given(_channels(5), _NODES, _SCHEMES)
def test_a_few_channels_get_the_levels_that_brute_force_finds(
    channels: Channels, ring: tuple[int, int], scheme: Scheme
) -> None:
    target_s, sizes = _target(scheme, ring[0]), wedge_sizes(*ring)
    plan = choose_levels(channels, *ring, _INTERVAL_S, scheme, target_s)
    some, levels = _watched(channels), plan.levels[channels.subscribers > 0]
    assert plan.exact
    assert _kept_its_budget(plan, scheme, target_s)
    best = np.inf
    for chosen in product(sizes, repeat=len(levels)):
        f, g = _sums(some, np.array(chosen), scheme)
        if g.sum() <= _budget(channels, scheme, target_s) * _SLACK:
            best = min(best, float(f.sum()))
    f, _ = _sums(some, sizes[levels], scheme)
    assert f.sum() == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(4001, 6000), _SCHEMES, st.sampled_from([(16, 16), (1024, 16), (300, 2)]))
def test_many_channels_are_near_a_bound_that_is_found_in_another_way(
    seed: int, count: int, scheme: Scheme, ring: tuple[int, int]
) -> None:
    channels, target_s, sizes = _large(seed, count), _target(scheme, ring[0]), wedge_sizes(*ring)
    plan = choose_levels(channels, *ring, _INTERVAL_S, scheme, target_s)
    assert _kept_its_budget(plan, scheme, target_s)
    some = _watched(channels)
    f, g = (
        np.array(each) for each in zip(*(_sums(some, np.full(plan.watched, n), scheme) for n in sizes), strict=True)
    )
    budget = _budget(channels, scheme, target_s)

    def lagrangian(exponent: float) -> float:
        return float((f + 10**exponent * g).min(axis=0).sum() - 10**exponent * budget)

    low, high = -40.0, 40.0
    for _ in range(120):  # the dual is concave: a search in three parts finds its top
        third = (high - low) / 3
        low, high = (low + third, high) if lagrangian(low + third) < lagrangian(high - third) else (low, high - third)
    reached = float(_sums(some, sizes[plan.levels[channels.subscribers > 0]], scheme)[0].sum())
    assert reached >= lagrangian(low) * (1 - 1e-9)
    assert plan.gap_to_bound < 1e-2
    assert reached <= max(lagrangian(low), float(f.min(axis=0).sum())) * (1 + plan.gap_to_bound) * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), _SCHEMES)
def test_levels_are_thresholds_on_subscribers_by_size_but_for_the_remainder(seed: int, scheme: Scheme) -> None:
    channels = _large(seed, 5000)
    plan = choose_levels(channels, 1024, 16, _INTERVAL_S, scheme, _target(scheme, 1024))
    some, levels = _watched(channels), plan.levels[channels.subscribers > 0]
    f, g = _sums(some, np.ones(plan.watched), scheme)
    by_ratio = levels[np.argsort(g / f if scheme is not Scheme.FAST else f / g, kind="stable")]
    assert np.count_nonzero(by_ratio != np.sort(levels)) <= 60


@settings(max_examples=60, deadline=None)
@given(_channels(40), _NODES, _SCHEMES, st.integers(1, 7), st.booleans())
def test_nodes_that_decide_alone_keep_the_budget_together(
    channels: Channels, ring: tuple[int, int], scheme: Scheme, owners: int, in_line: bool
) -> None:
    target_s = _target(scheme, ring[0])
    parts = [Channels(*(column[owner::owners] for column in channels)) for owner in range(owners)]
    told = [Clusters.decode(clusters_of(part, scheme).encode()) for part in parts]
    of_all = merge(told[::-1])
    levels = np.empty(len(channels.subscribers), np.int8)
    for owner, part in enumerate(parts):
        before = merge([Clusters(scheme), *told[:owner]]) if in_line else None
        levels[owner::owners] = decide_alone(part, of_all, *ring, _INTERVAL_S, scheme, target_s, before)
    plan = describe(channels, levels, wedge_sizes(*ring), _INTERVAL_S)
    assert _kept_its_budget(plan, scheme, target_s)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), _SCHEMES, st.integers(2, 9))
def test_nodes_in_line_decide_as_one_node_that_owns_all(seed: int, scheme: Scheme, owners: int) -> None:
    channels, target_s = _large(seed, 800), _target(scheme, 64)
    cuts = np.sort(np.random.default_rng(seed).integers(0, 800, owners - 1))
    parts = [Channels(*columns) for columns in zip(*(np.split(column, cuts) for column in channels), strict=True)]
    told = [clusters_of(part, scheme) for part in parts]
    of_all = merge(told)
    apart = [
        decide_alone(part, of_all, 64, 4, _INTERVAL_S, scheme, target_s, merge([Clusters(scheme), *told[:owner]]))
        for owner, part in enumerate(parts)
    ]
    together = decide_alone(channels, of_all, 64, 4, _INTERVAL_S, scheme, target_s, Clusters(scheme))
    assert np.concatenate(apart).tolist() == together.tolist()
