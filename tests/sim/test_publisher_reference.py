"""The model meets an independent reference model's numbers: response within 10 %, mean N within 15 %."""

from __future__ import annotations

import numpy as np
import pytest

from clarion.sim import PROFILES, Outcome, Parameters, Poisson, simulate

# By profile and load: ms of fixed N (None: unstable), ms and mean N of literal, ms of recheck.
_REFERENCE: dict[tuple[str, float], tuple[dict[int, int | None], int, float, int]] = {
    ("store-heavy", 1.75): ({1: 278, 10: 350, 50: 350}, 368, 1.3, 315),
    ("store-heavy", 17.5): ({1: None, 10: 401, 50: 403}, 491, 4.3, 403),
    ("store-heavy", 35.0): ({1: None, 10: 392, 50: 429}, 528, 7.7, 448),
    ("store-heavy", 55.0): ({1: None, 10: 489, 50: 595}, 581, 12.0, 489),
    ("store-light", 1.75): ({1: 155, 3: 235, 50: 236}, 161, 1.1, 155),
    ("store-light", 17.5): ({1: 313, 3: 210, 50: 264}, 205, 2.0, 170),
    ("store-light", 35.0): ({1: None, 3: 198, 50: 278}, 221, 3.2, 184),
    ("store-light", 55.0): ({1: None, 3: 278, 50: 331}, 234, 4.6, 196),
}
_CELLS = [pytest.param(*cell, id=f"{cell[0]}-{cell[1]:g}") for cell in _REFERENCE]


def _runs(profile: str, load_per_s: float, tuning: str, batch_size: int = 1) -> list[Outcome]:
    near_capacity = (profile, load_per_s, tuning, batch_size) == ("store-light", 55.0, "fixed", 3)  # short runs scatter
    seconds = 400.0 if load_per_s < 10 else 300.0 if near_capacity else 120.0
    parameters = Parameters(
        arrivals=Poisson(load_per_s), seconds=seconds, tuning=tuning, batch_size=batch_size, **PROFILES[profile]
    )
    return [simulate(parameters, seed=seed) for seed in range(1, 6 if near_capacity else 3)]


def _mean_ms(runs: list[Outcome]) -> float:
    return float(np.mean([run.response_ms["mean"] for run in runs]))


@pytest.mark.parametrize(("profile", "load_per_s"), _CELLS)
def test_a_fixed_batch_size_answers_as_in_the_reference(profile: str, load_per_s: float) -> None:
    for batch_size, expected_ms in _REFERENCE[profile, load_per_s][0].items():
        if expected_ms is not None:
            assert _mean_ms(_runs(profile, load_per_s, "fixed", batch_size)) == pytest.approx(expected_ms, rel=0.1)


@pytest.mark.parametrize(
    ("profile", "load_per_s"),
    [cell for cell, expected in _REFERENCE.items() if expected[0][1] is None],
)
def test_an_overloaded_batch_size_answers_ever_later(profile: str, load_per_s: float) -> None:
    def mean_ms(seconds: float) -> float:
        parameters = Parameters(
            arrivals=Poisson(load_per_s), seconds=seconds, tuning="fixed", batch_size=1, **PROFILES[profile]
        )
        return simulate(parameters, seed=1).response_ms["mean"]

    short_ms, long_ms = mean_ms(60.0), mean_ms(120.0)
    assert short_ms > 5000
    assert long_ms > 1.5 * short_ms


@pytest.mark.parametrize(("profile", "load_per_s"), _CELLS)
def test_the_literal_algorithm_answers_as_in_the_reference(profile: str, load_per_s: float) -> None:
    _, expected_ms, expected_size, _ = _REFERENCE[profile, load_per_s]
    runs = _runs(profile, load_per_s, "literal")
    assert _mean_ms(runs) == pytest.approx(expected_ms, rel=0.1)
    assert np.mean([run.batch_size_mean for run in runs]) == pytest.approx(expected_size, rel=0.15)


@pytest.mark.parametrize(("profile", "load_per_s"), _CELLS)
def test_recheck_answers_as_in_the_reference(profile: str, load_per_s: float) -> None:
    assert _mean_ms(_runs(profile, load_per_s, "recheck")) == pytest.approx(_REFERENCE[profile, load_per_s][3], rel=0.1)
