"""Results: over seeds, where the best fixed N is one that carries the load, and over time, as polls left N."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from clarion.publisher.tuner import Sample
from clarion.reproduce.publisher_experiments import (
    FIXED,
    HEAVY,
    LITERAL,
    LOAD,
    LOADS_PER_S,
    PROFILES,
    QUICK,
    SLOW,
    TUNED,
    Cell,
    Results,
    follows_load,
    load_cell,
    mean_on_grid,
    on_grid,
    settled_after_s,
    trailing_mean,
)
from clarion.reproduce.publisher_report import LOAD_RULES, SLOW_RULES, Claim
from clarion.sim import Outcome


def _outcome(mean_ms: float = 100.0, *, dropped: int = 0, unfinished: int = 5, size: float = 1.0) -> Outcome:
    """An outcome of 1000 messages in 100 s."""
    told = SimpleNamespace(
        response_ms={"mean": mean_ms}, offered=1000, dropped=dropped, unfinished=unfinished, seconds=100.0,
        batch_size_mean=size,
    )  # fmt: skip
    return cast(Outcome, told)


class _Same(dict[Cell, list[Outcome]]):
    """Gives every cell that is not there the same outcome."""

    def __missing__(self, cell: Cell) -> list[Outcome]:
        return [_outcome()]


def _judge(rules: Any, name: str, outcomes: dict[Cell, list[Outcome]]) -> Claim:
    rule = next(rule for rule in rules if rule.claim.name == name)
    judged: Claim = rule.judge(Results(QUICK, [], outcomes), PROFILES)
    return judged


def test_means_are_over_seeds() -> None:
    cell = load_cell(HEAVY, 35.0, LITERAL)
    results = Results(QUICK, [], {cell: [_outcome(100.0, size=4.0), _outcome(300.0, dropped=20, size=8.0)]})
    assert results.mean_ms(cell) == 200
    assert results.batch_size_mean(cell) == 6
    assert (results.dropped(cell), results.dropped_share(cell)) == (20, 0.01)


@pytest.mark.parametrize("trouble", [{"dropped": 300}, {"unfinished": 400}])
def test_a_fixed_n_that_does_not_carry_the_load_is_not_the_best(trouble: dict[str, int]) -> None:
    quick, carrying = (load_cell(HEAVY, 35.0, FIXED, size) for size in (1, 10))
    results = Results(QUICK, [], {quick: [_outcome(50.0, **trouble)], carrying: [_outcome(90.0)]})
    assert results.is_unstable(quick)
    assert results.best_fixed(LOAD, HEAVY, "35", (1, 10)) == (10, 90.0)


@pytest.mark.parametrize(("dropped", "holds"), [(0, True), (1, False)])
def test_a_single_lost_message_breaks_the_promise_of_no_losses(dropped: int, holds: bool) -> None:
    outcomes = _Same({Cell(SLOW, HEAVY, "", LITERAL, gated=True): [_outcome(), _outcome(dropped=dropped)]})
    verdict = _judge(SLOW_RULES, "no-loss-gated", outcomes).of(HEAVY, LITERAL)
    assert verdict is not None
    assert verdict.holds == holds


@pytest.mark.parametrize(("last_ms", "holds"), [(104.0, True), (106.0, False)])
def test_five_percent_between_initial_sizes_is_the_bound(last_ms: float, holds: bool) -> None:
    outcomes = _Same({load_cell(HEAVY, LOADS_PER_S[2], LITERAL, 50): [_outcome(last_ms)]})
    claim = _judge(LOAD_RULES, "same-for-any-start", outcomes)
    assert [one.holds for one in claim.verdicts if one.profile == HEAVY] == [holds, *[True] * (len(TUNED) - 1)]


def _trace(*points: tuple[float, int]) -> list[Sample]:
    return [Sample(at_s, size, 0.05, 0.0, 0.0, -1, 0, 0) for at_s, size in points]


def test_n_keeps_its_value_until_the_next_poll() -> None:
    grid_s, sizes = on_grid(_trace((0.0, 1), (0.25, 4), (0.4, 2)), until_s=0.6)
    assert grid_s == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert sizes.tolist() == [1, 1, 1, 4, 2, 2]


def test_several_runs_are_averaged_moment_by_moment() -> None:
    _, sizes = mean_on_grid([_trace((0.0, 2)), _trace((0.0, 4), (0.15, 8))], until_s=0.3)
    assert sizes.tolist() == [3, 3, 5]


def test_a_trailing_mean_looks_back_only() -> None:
    assert trailing_mean(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist() == [1, 2, 4, 6]


@pytest.mark.parametrize("rise_s", [0.0, 2.0, 8.0])
def test_settling_takes_as_long_as_n_does_to_come_near_its_level(rise_s: float) -> None:
    grid_s = np.arange(0.0, 200.0, 0.1)
    sizes = np.where(grid_s < 100.0 + rise_s, 1.0, 12.0)
    took_s, level = settled_after_s(grid_s, sizes, 100.0, 200.0)
    assert level == pytest.approx(12.0)
    assert rise_s < took_s < rise_s + 1.0  # the last second is averaged


def test_what_never_comes_near_its_level_has_not_settled() -> None:
    grid_s = np.arange(0.0, 100.0, 0.1)
    sizes = np.where((grid_s // 10) % 2 == 0, 0.0, 100.0)
    sizes[grid_s < 20] = 0.0
    far = np.where(sizes > 50, 100.0, 0.0)
    took_s, _ = settled_after_s(grid_s, far, 0.0, 100.0)
    assert took_s > 20


def test_n_that_goes_with_the_load_correlates_and_constant_n_does_not() -> None:
    dice = np.random.default_rng(1)
    rates = np.repeat([5, 50, 20, 80, 10], 20)
    times_s = np.sort(np.concatenate([second + dice.random(rate) for second, rate in enumerate(rates)]))
    following = _trace(*((float(second), int(rate)) for second, rate in enumerate(rates)))
    against = _trace(*((float(second), int(100 - rate)) for second, rate in enumerate(rates)))
    assert follows_load(following, times_s, 100.0, 5.0) > 0.95
    assert follows_load(against, times_s, 100.0, 5.0) < -0.95
    assert follows_load(_trace((0.0, 3)), times_s, 100.0, 5.0) == 0
