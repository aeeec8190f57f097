"""Polling levels: the document's workload, small rings, and what cannot be planned."""

from __future__ import annotations

import numpy as np
import pytest

from clarion.feeds.honeycomb import (
    Channels,
    Cluster,
    Clusters,
    Scheme,
    choose_levels,
    clusters_of,
    decide_alone,
    describe,
    merge,
    wedge_sizes,
)
from clarion.model.errors import BadSettings, PermanentError
from clarion.sim.feeds_simulation import FeedsModel, make_workload

_INTERVAL_S = 1800.0


def _made(subscribers: list[float], size: list[float] | None = None, update_interval_s: float = 3600.0) -> Channels:
    sizes = np.array(size) if size is not None else np.ones(len(subscribers))
    return Channels(np.array(subscribers, float), sizes, np.full(len(subscribers), update_interval_s))


@pytest.fixture(scope="module")
def lecture() -> Channels:
    """100,000 channels of size 1 with 5,000,000 subscriptions by Zipf (0.5); of their update intervals
    10 % are up to an hour, 40 % up to 5 days and 50 % a week."""
    return make_workload(FeedsModel()).channels


def test_lite_finds_the_lectures_channels_at_the_load_of_their_subscribers(lecture: Channels) -> None:
    plan = choose_levels(lecture, 1024, 16, _INTERVAL_S, Scheme.LITE)
    assert plan.detection_s_by_subscription == pytest.approx(40.4, abs=1)
    assert plan.detection_s_by_channel == pytest.approx(63.3, abs=1)
    assert plan.polls == plan.bandwidth == pytest.approx(50.0, abs=0.01)
    assert plan.bandwidth <= plan.budget == pytest.approx(50.0)
    assert plan.gap_to_bound < 1e-4
    assert sum(plan.channels_by_level) == plan.watched == 100_000


def test_fast_reaches_its_target_at_little_more_load(lecture: Channels) -> None:
    plan = choose_levels(lecture, 1024, 16, _INTERVAL_S, Scheme.FAST, target_s=30)
    assert 29.9 < plan.detection_s_by_subscription <= 30
    assert plan.bandwidth == pytest.approx(55.3, abs=0.3)
    assert plan.gap_to_bound < 1e-4


def test_fair_schemes_are_slower_the_more_the_update_interval_counts(lecture: Channels) -> None:
    plans = {scheme: choose_levels(lecture, 1024, 16, _INTERVAL_S, scheme) for scheme in Scheme if scheme != "fast"}
    assert all(plan.gap_to_bound < 1e-4 and plan.bandwidth <= plan.budget for plan in plans.values())
    by_time = sorted(plans, key=lambda scheme: plans[scheme].detection_s_by_subscription)
    assert by_time == [Scheme.LITE, Scheme.FAIR_LOG, Scheme.FAIR_SQRT, Scheme.FAIR]


@pytest.mark.parametrize("scheme", Scheme)
def test_nodes_that_decide_alone_come_within_a_thousandth(lecture: Channels, scheme: Scheme) -> None:
    target_s = 30 if scheme is Scheme.FAST else None
    plan = choose_levels(lecture, 1024, 16, _INTERVAL_S, scheme, target_s)
    clusters = clusters_of(lecture, scheme)
    levels = decide_alone(lecture, clusters, 1024, 16, _INTERVAL_S, scheme, target_s)
    alone = describe(lecture, levels, wedge_sizes(1024, 16), _INTERVAL_S)
    assert len(clusters.clusters) < 1000
    assert alone.bandwidth == pytest.approx(plan.bandwidth, rel=1e-3)
    assert alone.detection_s_by_subscription == pytest.approx(plan.detection_s_by_subscription, rel=5e-3)


@pytest.mark.parametrize(
    ("nodes", "base", "sizes"),
    [(1, 16, [1]), (2, 16, [2, 1]), (16, 16, [16, 1]), (17, 16, [17, 17 / 16, 1]), (1024, 16, [1024, 64, 4, 1])],
)
def test_a_wedge_has_n_by_b_to_the_level_nodes_and_the_last_one_the_owner(
    nodes: int, base: int, sizes: list[float]
) -> None:
    assert wedge_sizes(nodes, base).tolist() == sizes


def test_one_node_polls_everything_alone() -> None:
    plan = choose_levels(_made([3, 0, 1]), 1, 16, _INTERVAL_S)
    assert plan.levels.tolist() == [0, 0, 0]
    assert plan.pollers.tolist() == [1, 0, 1]
    assert plan.detection_s_by_subscription == 900


def test_one_channel_is_polled_by_all_where_its_subscribers_are_as_many() -> None:
    assert choose_levels(_made([16]), 16, 16, _INTERVAL_S).levels.tolist() == [0]
    assert choose_levels(_made([15]), 16, 16, _INTERVAL_S).levels.tolist() == [1]


def test_channels_without_subscribers_are_not_polled_and_do_not_count() -> None:
    plan = choose_levels(_made([0, 3, 0, 3], [9, 1, 9, 1]), 3, 16, _INTERVAL_S)
    assert plan.levels.tolist() == [1, 0, 1, 0]
    assert plan.pollers.tolist() == [0, 3, 0, 3]
    assert (plan.watched, plan.polls, plan.bandwidth, plan.budget) == (2, 3, 3, 3)
    assert plan.channels_by_level == (2, 0)


@pytest.mark.parametrize("channels", [_made([]), _made([0, 0])])
@pytest.mark.parametrize("scheme", Scheme)
def test_nothing_watched_is_planned_as_nothing(channels: Channels, scheme: Scheme) -> None:
    plan = choose_levels(channels, 16, 16, _INTERVAL_S, scheme, 900 if scheme is Scheme.FAST else None)
    assert plan.pollers.sum() == plan.polls == plan.bandwidth == plan.detection_s_by_subscription == 0
    assert plan.exact
    assert clusters_of(channels, scheme).clusters == ()


def test_subscribers_who_are_too_few_for_anything_more_leave_all_to_owners() -> None:
    plan = choose_levels(_made([1, 1, 1, 0.2]), 16, 16, _INTERVAL_S)
    assert plan.levels.tolist() == [1, 1, 1, 1]
    assert plan.bandwidth <= plan.budget


@pytest.mark.parametrize("count", [10, 10_000])
def test_channels_that_are_all_alike_share_the_budget_to_the_last_one(count: int) -> None:
    plan = choose_levels(_made([8] * count), 16, 16, _INTERVAL_S)
    lifted = int((8 * count - count) / 15)
    assert plan.channels_by_level == (lifted, count - lifted)
    assert plan.levels.tolist() == [0] * lifted + [1] * (count - lifted) or count == 10
    own = _made([8] * (count // 10))
    told = [clusters_of(own)] * 10
    levels = [
        decide_alone(own, merge(told), 16, 16, _INTERVAL_S, before=merge([Clusters(Scheme.LITE), *told[:node]]))
        for node in range(10)
    ]
    assert np.count_nonzero(np.concatenate(levels) == 0) == lifted
    rounded_down = 10 * np.count_nonzero(decide_alone(own, merge(told), 16, 16, _INTERVAL_S) == 0)
    assert lifted - 10 < rounded_down <= lifted


def test_a_handful_is_solved_exactly_where_one_step_after_the_other_is_far_off() -> None:
    plan = choose_levels(_made([10, 19], [1, 2]), 20, 32, _INTERVAL_S)
    assert plan.levels.tolist() == [1, 0]  # the first is worth more for its size, but leaves no room for the second
    assert plan.exact


def test_a_channel_that_never_changes_is_left_to_its_owner_by_fair_schemes() -> None:
    channels = Channels(np.array([50.0, 50.0]), np.ones(2), np.array([np.inf, 600.0]))
    for scheme in (Scheme.FAIR, Scheme.FAIR_SQRT, Scheme.FAIR_LOG):
        assert choose_levels(channels, 16, 16, _INTERVAL_S, scheme).levels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("subscribers", "size", "update_s", "scheme", "target_s", "said"),
    [
        (-1, 1, 60, "lite", None, "subscribers of channel 2 is -1, and should be 0 or more"),
        (np.nan, 1, 60, "lite", None, "subscribers of channel 2"),
        (np.inf, 1, 60, "lite", None, "subscribers of channel 2"),
        (1, 0, 60, "lite", None, "size of channel 2 is 0, and should be more than 0"),
        (1, np.nan, 60, "lite", None, "size of channel 2"),
        (1, 1, 0, "fair", None, "update_interval_s of channel 2 is 0, and should be more than 0"),
        (1, 1, np.nan, "fair-sqrt", None, "update_interval_s of channel 2"),
        (1, 1, 1, "fair-log", None, "should be for fair-log more than 1"),
        (1, 1, 60, "fast", None, "fast needs a target"),
        (1, 1, 60, "fast", 0, "fast needs a target"),
        (1, 1, 60, "fast", 50, "found after 56.25 s where all 16 nodes poll everything"),
        (1, 1, 60, "lite", 30, "a target is for fast"),
    ],
)
def test_what_cannot_be_planned_is_told(
    subscribers: float, size: float, update_s: float, scheme: str, target_s: float | None, said: str
) -> None:
    channels = Channels(np.array([1, subscribers]), np.array([1, size]), np.array([60, update_s]))
    with pytest.raises(BadSettings, match=said):
        choose_levels(channels, 16, 16, _INTERVAL_S, Scheme(scheme), target_s)


@pytest.mark.parametrize(("nodes", "base", "interval_s"), [(0, 16, 1.0), (4, 1, 1.0), (4, 16, 0.0), (4, 16, np.inf)])
def test_a_ring_or_an_interval_that_is_none_is_refused(nodes: int, base: int, interval_s: float) -> None:
    with pytest.raises(BadSettings):
        choose_levels(_made([1]), nodes, base, interval_s)


def test_fast_with_all_the_time_in_the_world_leaves_all_to_owners_and_with_none_to_all() -> None:
    channels = _made([5, 1, 30])
    assert choose_levels(channels, 16, 16, _INTERVAL_S, Scheme.FAST, 900).levels.tolist() == [1, 1, 1]
    assert choose_levels(channels, 16, 16, _INTERVAL_S, Scheme.FAST, 56.25).levels.tolist() == [0, 0, 0]


def test_clusters_add_up_the_same_in_any_order() -> None:
    dice = np.random.default_rng(3)
    parts = [clusters_of(_made(dice.integers(0, 50, 30).tolist(), dice.lognormal(9, 2, 30).tolist())) for _ in range(8)]
    assert merge(parts) == merge(parts[::-1])
    assert sum(one.channels for one in merge(parts).clusters) == sum(
        one.channels for part in parts for one in part.clusters
    )


def test_clusters_of_different_schemes_do_not_go_together() -> None:
    lite, fair = clusters_of(_made([1])), clusters_of(_made([1]), Scheme.FAIR)
    with pytest.raises(BadSettings, match="clusters of one scheme"):
        merge([lite, fair])
    with pytest.raises(BadSettings, match="do not follow from clusters of fair"):
        decide_alone(_made([1]), fair, 16, 16, _INTERVAL_S)


def test_a_channel_that_nobody_was_told_of_yet_is_treated_as_those_next_to_it() -> None:
    told = clusters_of(_made([1, 20]))
    assert decide_alone(_made([0, 0.5, 19, 1000]), told, 16, 16, _INTERVAL_S).tolist() == [1, 1, 1, 0]
    assert decide_alone(_made([5]), Clusters(Scheme.LITE), 16, 16, _INTERVAL_S).tolist() == [1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b'{"scheme":"other"}',
        b'{"scheme":"lite","clusters":[[0,1,1,1,-1]]}',
        b'{"scheme":"lite","clusters":[[0,1,1,1,1],[0,1,1,1,1]]}',
        b'{"scheme":"lite","clusters":[[99999,1,1,1,1]]}',
    ],
)
def test_what_is_no_clusters_is_refused(data: bytes) -> None:
    with pytest.raises(PermanentError, match="trade-off clusters"):
        Clusters.decode(data)


def test_clusters_travel_as_they_are() -> None:
    clusters = Clusters(Scheme.FAIR, 12.5, (Cluster(-7, 3, 5.0, 0.001, 1e9), Cluster(4, 1, 0.1, 0.3, 2.0)))
    assert Clusters.decode(clusters.encode()) == clusters
