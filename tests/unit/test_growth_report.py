"""What the growth bench says of a curve follows from its points. All figures here are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.growth_report import AUTO, keeps_up, line_through, medians_of, points_of, stays, verdicts_of, write_report


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ([100, 120, 90], "flat, within a factor of 1.33"),
        ([100, 400, 500], "does not fall: at 100 it is 5 times that at 1"),
        ([100, 400, 100], "not flat: at 100 the rate is 0.25 of that at 10"),
        ([100, 60, 100], "not flat: at 10 the rate is 0.6 of that at 1"),
        ([100], "one point alone says nothing"),
    ],
)
def test_a_rate_keeps_up_or_not(rates: list[float], verdict: str) -> None:
    assert keeps_up([(float(10**place), rate) for place, rate in enumerate(rates)]) == verdict


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        ([50, 51, 52], "flat"),
        ([1, 3, 1], "does not grow"),
        ([1, 10, 100], "grows 100 times while what is counted grows 100 times: linear"),
        ([1, 2, 4], "slower than linear"),
    ],
)
def test_a_cost_stays_or_grows(costs: list[float], verdict: str) -> None:
    assert verdict in stays([(float(10**place), cost) for place, cost in enumerate(costs)])


def test_a_line_is_found_over_decades_and_a_point_off_it_is_named() -> None:
    points = [(float(x), 2e-7 + 1e-9 * x) for x in (10, 100, 1000, 10_000, 100_000)]
    line = line_through(points)
    assert line.fits
    assert line.fixed == pytest.approx(2e-7)
    assert line.slope == pytest.approx(1e-9)
    bent = line_through([*points, (1e6, 10 * 1e-3)])
    assert not bent.fits
    assert bent.verdict("this").startswith("not linear: this takes ")


def test_neither_part_of_a_line_is_below_nothing() -> None:
    assert line_through([(1.0, 1.0), (2.0, 4.0), (3.0, 9.0)]).fixed == 0
    assert line_through([(1.0, 9.0), (2.0, 4.0), (3.0, 1.0)]).slope == 0


def make_points(*figures: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"x": x, "round": 0, "figures": {"put_per_s": rate}} for x, rate in figures]


def test_the_tuner_is_compared_with_the_best_fixed_size_and_is_no_point_of_the_curve() -> None:
    found = medians_of(make_points((AUTO, 90), (1, 10), (1, 20), (1, 60), (10, 100)))
    assert list(found) == [1, 10, AUTO]
    assert points_of(found, "put_per_s") == [(1.0, 20), (10.0, 100)]
    assert verdicts_of("batch", found) == ["auto reaches 0.90 of the best fixed size (10)."]


def test_the_report_says_what_was_not_measured(tmp_path: Path) -> None:
    results = {
        "machine": {"cores": 2}, "quick": True, "rounds": 1, "notes": ["100 do not fit"],
        "points": {"batch": make_points((1, 10), (10, 100), (AUTO, 90))},
    }  # fmt: skip
    write_report(results, tmp_path)
    text = (tmp_path / "growth.md").read_text()
    assert "**Not measured**: 100 do not fit." in text
    assert "A quick run" in text
    assert "| auto | 90.0 |" in text
    assert (tmp_path / "growth.png").stat().st_size > 5000
