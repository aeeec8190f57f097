"""The cells of a grid of simulations: every combination, over the config's values, checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clarion.model.errors import BadSettings
from clarion.pipeline.jobs.sweep import Grid, cells_of
from clarion.sim import Poisson, Stepped, Traced


def test_every_combination_is_a_cell() -> None:
    grid = Grid(
        loads_per_s=(10.0, 20.0), batch_sizes=(1, 5, 9), policies=("fixed", "eager"), profiles=("store-light",),
        seeds=(1, 2), values={"seconds": 60.0},
    )  # fmt: skip
    cells = cells_of(grid)
    said = {(c.load_per_s, c.parameters.batch_size, c.parameters.tuning, c.profile) for c in cells}
    assert len(cells) == len(said) == 2 * 3 * 2
    assert all(c.parameters.arrivals == Poisson(c.load_per_s or 0) for c in cells)
    assert all((c.parameters.seconds, c.parameters.read_fixed_s) == (60.0, 0.040) for c in cells)


def test_what_a_grid_does_not_vary_is_the_models_or_the_configs() -> None:
    (plain,) = cells_of(Grid())
    assert (plain.load_per_s, plain.profile, plain.parameters.tuning) == (None, None, "auto")
    values = {"steps": "0-50:3", "tuning": "fixed", "batch_size": 7, "profile": "store-light", "room": 50}
    (configured,) = cells_of(Grid(values=values))
    assert isinstance(configured.parameters.arrivals, Stepped)
    assert (configured.parameters.batch_size, configured.parameters.room, configured.profile) == (7, 50, "store-light")


def test_a_config_s_value_wins_over_a_profile_and_the_grid_over_the_config() -> None:
    values = {"read_fixed_s": 0.077, "profile": "store-heavy", "steps": "0-50:3", "batch_size": 7}
    (cell,) = cells_of(Grid(profiles=("store-light",), loads_per_s=(5.0,), batch_sizes=(3,), values=values))
    assert cell.parameters.read_fixed_s == 0.077
    assert (cell.profile, cell.parameters.arrivals, cell.parameters.batch_size) == ("store-light", Poisson(5.0), 3)


def test_loads_scale_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s\n" + "\n".join(map(str, range(0, 1000, 10))))
    slow, fast = cells_of(Grid(loads_per_s=(0.5, 2.0), values={"trace": str(trace)}))
    assert isinstance(slow.parameters.arrivals, Traced)
    assert isinstance(fast.parameters.arrivals, Traced)
    assert (slow.parameters.arrivals.speed, fast.parameters.arrivals.speed) == (5.0, 20.0)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ({"policies": ("fixed", "best")}, "not 'best'"),
        ({"profiles": ("no-store",)}, "not 'no-store'"),
        ({"batch_sizes": (0,)}, "batch_size"),
        ({"loads_per_s": (0.0,)}, "a load is above 0"),
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (-1,)}, "from 0 on"),
        ({"values": {"colour": 1}}, "no parameter colour"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused_before_any_run(grid: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        cells_of(Grid(**grid))
