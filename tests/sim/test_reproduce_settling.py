"""N over time is read off a trace as the polls left it, and settling is measured from the step on."""

from __future__ import annotations

import numpy as np
import pytest

from clarion.publisher.tuner import Sample
from clarion.sim.reproduce.settling import follows_load, mean_on_grid, on_grid, settled_after_s, trailing_mean


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
