"""Feeds in simulated time: the figures of the lecture's system, and that arrays say what the ring and schedule say."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.feeds.honeycomb import Scheme
from clarion.feeds.poll_schedule import Slot, next_poll_s, poll_phase_s
from clarion.model.errors import BadSettings
from clarion.overlay import Ring
from clarion.sim.feeds_churn import polls_between, simulate_churn
from clarion.sim.feeds_simulation import (
    FeedsModel,
    FeedsOutcome,
    Places,
    full_place,
    make_workload,
    plan_levels,
    simulate_feeds,
)

MEASURED = (Scheme.LITE, Scheme.FAIR)
SMALL = FeedsModel(nodes=200, channels=3000, subscriptions=90_000)


@pytest.fixture(scope="module")
def outcomes() -> dict[Scheme, FeedsOutcome]:
    """The lecture's system under every scheme, at its full size."""
    return {
        scheme: simulate_feeds(FeedsModel(scheme=scheme), updates=2 if scheme in MEASURED else 0, told=0)
        for scheme in Scheme
    }


def test_by_formula_lite_and_fast_are_where_they_should_be(outcomes: dict[Scheme, FeedsOutcome]) -> None:
    times, costs = outcomes[Scheme.LITE].formula
    assert times.by_subscription == pytest.approx(40.4, abs=1)
    assert times.by_channel == pytest.approx(63.3, abs=1)
    assert costs.polls == pytest.approx(50.0, abs=0.05)
    times, costs = outcomes[Scheme.FAST].formula
    assert times.by_subscription == pytest.approx(30.0, abs=0.1)
    assert costs.polls == pytest.approx(55.3, abs=0.3)


@pytest.mark.parametrize(
    ("scheme", "low_s", "high_s"),
    [
        (Scheme.LITE, 48, 54),
        (Scheme.FAST, 34, 38),
        (Scheme.FAIR, 130, 155),
        (Scheme.FAIR_SQRT, 51, 59),
        (Scheme.FAIR_LOG, 49, 56),
    ],
)
def test_with_real_wedges_detection_is_as_in_the_lecture(
    outcomes: dict[Scheme, FeedsOutcome], scheme: Scheme, low_s: float, high_s: float
) -> None:
    assert low_s <= outcomes[scheme].real_wedges[0].by_subscription <= high_s


def test_the_order_of_the_schemes_is_the_lecture_s(outcomes: dict[Scheme, FeedsOutcome]) -> None:
    for means in (
        {scheme: one.real_wedges[0].by_subscription for scheme, one in outcomes.items()},
        {scheme: one.pollers[0].by_subscription for scheme, one in outcomes.items()},
    ):
        assert means[Scheme.FAST] < means[Scheme.LITE] <= means[Scheme.FAIR_LOG]
        assert means[Scheme.FAIR_LOG] <= means[Scheme.FAIR_SQRT] < means[Scheme.FAIR]


def test_the_budget_is_kept_and_little_could_be_better(outcomes: dict[Scheme, FeedsOutcome]) -> None:
    for scheme, one in outcomes.items():
        assert one.plan.gap_to_bound < 1e-4
        if scheme is not Scheme.FAST:
            assert one.plan.bandwidth <= one.plan.budget * (1 + 1e-9)
            assert one.pollers[1].bandwidth < 1.01 * one.plan.budget  # wedges are not all as large as on average


def test_what_is_measured_agrees_with_the_formula(outcomes: dict[Scheme, FeedsOutcome]) -> None:
    for one in (outcomes[scheme] for scheme in MEASURED):
        assert one.disagreement < 0.02
        assert one.measured.by_channel == pytest.approx(one.pollers[0].by_channel, rel=0.02)


def test_random_phases_take_nearly_twice_as_long(outcomes: dict[Scheme, FeedsOutcome]) -> None:
    one = outcomes[Scheme.LITE]
    wide = one.each.pollers > 40
    assert one.each.random_s[wide].mean() / one.each.even_s[wide].mean() == pytest.approx(1.97, abs=0.03)
    assert 1.4 < one.worth_of_spacing < 1.7  # small wedges gain less


def test_who_is_told_of_a_change_waits_least_with_fair(outcomes: dict[Scheme, FeedsOutcome]) -> None:
    times = {scheme: one.pollers[0].by_delivery for scheme, one in outcomes.items()}
    assert min(times, key=lambda scheme: times[scheme]) is Scheme.FAIR


def test_where_sizes_differ_polls_and_bandwidth_are_told_apart() -> None:
    one = simulate_feeds(replace(SMALL, varied_sizes=True), told=0)
    assert one.plan.bandwidth <= one.plan.budget * (1 + 1e-9)
    assert one.formula[1].bandwidth == pytest.approx(one.plan.bandwidth)
    assert one.formula[1].polls > 1.05 * one.formula[1].bandwidth


def test_a_change_reaches_each_node_of_a_wedge_by_one_message() -> None:
    found = simulate_feeds(SMALL, told=50).dissemination
    assert found is not None
    assert found.messages == pytest.approx(found.wedge - 1)
    assert 0 < found.depth < 5


@pytest.mark.parametrize(("nodes", "base"), [(1, 16), (7, 4), (60, 16), (300, 4)])
def test_arrays_have_the_pollers_of_the_ring(nodes: int, base: int) -> None:
    rng = np.random.default_rng(nodes)
    ring = Ring((f"n{number}" for number in range(nodes)), base)
    places = rng.integers(0, 1 << 64, 200, dtype=np.uint64)
    levels = rng.integers(0, ring.levels + 1, places.size).astype(np.int8)
    array = Places(ring)
    assert array.levels == ring.levels
    found = array.pollers(places, levels)
    for channel, place in enumerate(places.tolist()):
        expected = ring.pollers(full_place(place), int(levels[channel]))
        ranks = np.arange(found.total[channel])
        nodes_found = found.node(np.full(ranks.size, channel), ranks)
        assert tuple(ring.names[node] for node in nodes_found.tolist()) == expected
        assert ring.names[int(found.owner[channel])] == ring.owner(full_place(place))


def test_polls_are_at_the_moments_of_the_schedule() -> None:
    ring = Ring((f"n{number}" for number in range(30)), 4)
    places = np.random.default_rng(1).integers(0, 1 << 64, 20, dtype=np.uint64)
    levels = (np.arange(20) % (ring.levels + 1)).astype(np.int8)
    pollers = Places(ring).pollers(places, levels)
    offsets_s = np.array([poll_phase_s(0, 1, 60.0, full_place(place)) for place in places.tolist()])
    of, at_s, rank = polls_between(pollers, offsets_s, 60.0, np.full(20, 100.0), 200.0)
    found: dict[tuple[int, int], list[float]] = {}
    for channel, moment_s, number in zip(of.tolist(), at_s.tolist(), rank.tolist(), strict=True):
        found.setdefault((channel, number), []).append(moment_s)
    for channel, place in enumerate(places.tolist()):
        count = int(pollers.total[channel])
        for number in range(count):
            slot = Slot(60.0, poll_phase_s(number, count, 60.0, full_place(place)), count, False)
            expected = [next_poll_s(slot, 100.0)]
            while (later_s := next_poll_s(slot, expected[-1])) <= 200.0:
                expected.append(later_s)
            assert found[channel, number] == pytest.approx(expected)


def test_no_channel_is_unpolled_for_two_intervals_while_nodes_fail_and_join() -> None:
    model = FeedsModel(nodes=100, channels=2000, subscriptions=2000)
    work = make_workload(model)
    alone = plan_levels(model, work)
    assert alone.channels_by_level[-1] == model.channels
    found = simulate_churn(model, work, alone, churn_per_hour=0.3, hours=3)
    assert found.failed > 50
    assert found.joined > 50
    assert found.making_up.longest_gap_intervals < 1.1
    assert found.grid_alone.longest_gap_intervals >= 2  # what making up for a missed poll is good for


def test_wedges_hardly_notice_nodes_that_fail_and_join() -> None:
    work = make_workload(SMALL)
    plan = plan_levels(SMALL, work)
    found = simulate_churn(SMALL, work, plan, churn_per_hour=0.1, hours=2)
    still = simulate_churn(SMALL, work, plan, churn_per_hour=0.0, hours=2)
    assert still.views == 1
    assert still.grid_alone.longest_gap_intervals <= 1 + 1e-9
    assert still.grid_alone.missed == 0
    assert found.making_up.longest_gap_intervals < 1.1
    assert found.making_up.detection_s.by_subscription == pytest.approx(
        still.making_up.detection_s.by_subscription, rel=0.2
    )


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    one, same, other = (simulate_feeds(replace(SMALL, seed=seed), told=20).to_dict() for seed in (1, 1, 2))
    assert one == same
    assert one["measured"] != other["measured"]


def test_a_base_that_no_ring_has_is_told() -> None:
    with pytest.raises(BadSettings, match="base"):
        FeedsModel(base=10)


def test_the_command_tells_what_it_found() -> None:
    words = "simulate feeds --nodes 64 --channels 500 --subscriptions 10000 --scheme fast --target-s 200 --json"
    done = CliRunner().invoke(app, [*words.split(), "--churn-per-hour", "0.2", "--hours", "2"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["scheme"] == "fast"
    assert told["formula"]["detection_s"]["by_subscription"] <= 200
    assert told["churn"]["making_up"]["longest_gap_intervals"] < 2
    people = CliRunner().invoke(app, [*words.split()[:-1], "--churn-per-hour", "0.2", "--hours", "2"])
    assert "even spacing is worth a factor" in people.stdout
    assert "nodes failed" in people.stdout
