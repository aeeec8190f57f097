"""Arrivals: their rate, steps and trace. Parameters: the paper's defaults, files by name, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clarion.model.errors import BadSettings
from clarion.publisher.tuner import PAPER
from clarion.sim import TABLE_II, Outcome, Parameters, Poisson, Step, Stepped, Traced, jain_index, simulate
from clarion.sim.parameters import build_parameters, read_config


def test_the_tuner_is_told_the_documents_values() -> None:
    assert Parameters().tuner_settings == replace(PAPER, workers=Parameters().workers)


def test_a_profile_sets_what_it_names_and_no_more() -> None:
    heavy, light = build_parameters({"profile": "store-heavy"}), build_parameters({"profile": "store-light"})
    assert (heavy.read_fixed_s, light.read_fixed_s) == (0.130, 0.040)
    assert heavy == Parameters()
    assert build_parameters({"profile": "store-light"}, {"read_fixed_s": 0.01}).read_fixed_s == 0.01


def test_a_file_sets_parameters_by_name_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text('profile = "store-light"\nsteps = [[0, 50, 2.0]]\ntuning = "literal"\nworkers = 5\nrtt_s = 0\n')
    values = read_config(file)
    made = build_parameters(values, {"workers": 7})
    assert (made.workers, made.tuning, made.rtt_s, made.duration_s) == (7, "literal", 0.0, 50.0)
    assert build_parameters(values, {"load_per_s": 3.0}).arrivals == Poisson(3.0)


def test_a_trace_is_read_and_scaled(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time_s\n0\n1\n3\n6\n")
    plain = build_parameters({"trace": str(file), "warm_up_s": 0.0})
    fast = build_parameters({"trace": str(file), "trace_speed": 2.0, "warm_up_s": 0.0})
    assert isinstance(plain.arrivals, Traced)
    assert isinstance(fast.arrivals, Traced)
    assert (plain.arrivals.speed, fast.arrivals.speed) == (1.0, 2.0)
    assert plain.duration_s > 6.0


@pytest.mark.parametrize("text", ["table-ii", "0-100:1.75,100-300:55,300-500:17.5,500-750:35,750-1000:17.5"])
def test_steps_can_be_written_out(text: str) -> None:
    assert build_parameters({"steps": text}).arrivals == Stepped(TABLE_II)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"profile": "store-huge"}, "profile"),
        ({"tuning": "magic"}, "tuning"),
        ({"workers": 0}, "workers"),
        ({"workers": 2.5}, "workers"),
        ({"rtt_s": "long"}, "rtt_s"),
        ({"rtt_s": -1.0}, "rtt_s"),
        ({"gated": 1}, "gated"),
        ({"poll_min_s": 0.5}, "poll_min_s"),
        ({"subscriber_per_s": 0.0}, "subscriber_per_s"),
        ({"seconds": 10.0}, "warm_up_s"),
        ({"load_per_s": 0.0}, "load"),
        ({"load_per_s": True}, "load_per_s"),
        ({"load_per_s": 1.0, "steps": "table-ii"}, "one of"),
        ({"trace_speed": 2.0}, "trace"),
        ({"steps": "0-100"}, "steps"),
        ({"colour": "red"}, "colour"),
        ({"room": 2, "publishers": 3, "gated": True}, "credit"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(BadSettings, match=told):
        build_parameters(values)


def test_unknown_names_in_a_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text("wokers = 5\n")
    with pytest.raises(BadSettings, match="wokers"):
        read_config(file)
    file.write_text("workers =")
    with pytest.raises(BadSettings, match="not valid TOML"):
        read_config(file)
    with pytest.raises(BadSettings, match="cannot read"):
        read_config(tmp_path / "missing.toml")


def test_jains_index_is_one_where_all_are_alike_and_least_where_one_has_all() -> None:
    assert jain_index([3.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert jain_index([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain_index([0.0, 0.0]) == 1.0


def _short(**changes: Any) -> Outcome:
    return simulate(Parameters(arrivals=Poisson(20.0), seconds=30.0, warm_up_s=5.0, **changes), seed=1)


def test_what_is_kept_is_there_and_what_is_not_is_not() -> None:
    plain, kept = _short(), _short(keep_responses=True, keep_trace=True)
    assert (plain.responses_ms, plain.trace) == (None, None)
    assert kept.responses_ms is not None
    assert kept.responses_ms.mean() == pytest.approx(kept.response_ms["mean"])
    assert kept.trace
    assert sum(sample.published for sample in kept.trace) >= kept.delivered
    assert plain.to_dict() == kept.to_dict()
    assert "trace" not in kept.to_dict()


def test_unfinished_messages_count_with_their_age() -> None:
    """Otherwise a publisher that never answers would have the best response."""
    outcome = _short(tuning="fixed", read_fixed_s=100.0, buffer=1000)
    assert (outcome.delivered, outcome.unfinished) == (0, outcome.offered)
    assert outcome.response_ms["mean"] > 10_000


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
