"""Arrivals: their rate, their steps, their trace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from clarion.sim import TABLE_II, Poisson, Step, Stepped, Traced


def test_random_arrivals_have_the_load_and_its_scatter() -> None:
    times_s = Poisson(20.0).times_s(np.random.default_rng(1), 2000.0)
    assert len(times_s) == pytest.approx(40_000, rel=0.02)
    assert np.all(np.diff(times_s) >= 0)
    gaps_s = np.diff(times_s)
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.03)  # exponential
    assert times_s[-1] < 2000.0


def test_steps_have_each_its_load() -> None:
    arrivals = Stepped(TABLE_II)
    times_s = arrivals.times_s(np.random.default_rng(1), arrivals.duration_s)
    assert arrivals.duration_s == 1000
    for step in TABLE_II:
        count = np.count_nonzero((times_s >= step.start_s) & (times_s < step.end_s))
        assert count == pytest.approx(step.load_per_s * (step.end_s - step.start_s), rel=0.25)
    assert np.all(np.diff(times_s) >= 0)


def test_steps_are_cut_where_the_run_ends() -> None:
    times_s = Stepped(TABLE_II).times_s(np.random.default_rng(1), 150.0)
    assert 140 < times_s[-1] < 150


def test_a_trace_is_played_as_it_is_or_faster() -> None:
    trace_s = np.array([0.0, 1.0, 3.0, 7.0])
    dice = np.random.default_rng(1)
    assert Traced(trace_s).times_s(dice, 100.0).tolist() == [0.0, 1.0, 3.0, 7.0]
    assert Traced(trace_s, 2.0).times_s(dice, 3.0).tolist() == [0.0, 0.5, 1.5]


def test_a_trace_scaled_to_a_rate_has_it() -> None:
    arrivals = Traced.at_rate(np.array([0.0, 1.0, 3.0, 6.0]), 2.0)
    times_s = arrivals.times_s(np.random.default_rng(1), 100.0)
    assert (len(times_s) - 1) / (times_s[-1] - times_s[0]) == pytest.approx(2.0)


def test_a_trace_is_dealt_to_several_publishers_in_turn() -> None:
    arrivals = Traced(np.array([0.0, 1.0, 3.0, 7.0, 8.0]))
    dice = np.random.default_rng(1)
    assert [arrivals.share(number, 2).times_s(dice, 10.0).tolist() for number in (0, 1)] == [
        [0.0, 3.0, 8.0],
        [1.0, 7.0],
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Poisson(0.0),
        lambda: Poisson(float("nan")),
        lambda: Stepped(()),
        lambda: Stepped((Step(0, 10, 1.0), Step(5, 20, 1.0))),
        lambda: Stepped((Step(10, 10, 1.0),)),
        lambda: Traced(np.array([])),
        lambda: Traced(np.array([3.0, 1.0])),
        lambda: Traced(np.array([-1.0, 1.0])),
        lambda: Traced(np.array([0.0, 1.0]), 0.0),
        lambda: Traced.at_rate(np.array([1.0]), 2.0),
    ],
)
def test_arrivals_that_cannot_be_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"load|step|trace"):
        make()
