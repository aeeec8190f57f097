"""A grid of simulations on real Spark: the same numbers as here."""

from __future__ import annotations

from pyspark.sql import SparkSession

from clarion.pipeline.jobs.sweep import Grid, cells_of, sweep, to_row
from clarion.sim import simulate


def test_runs_on_executors_give_the_same_numbers_as_here(spark: SparkSession) -> None:
    grid = Grid(
        loads_per_s=(5.0, 30.0), batch_sizes=(1, 8), seeds=(3, 4), policies=("fixed", "eager"),
        profiles=("store-light",), values={"seconds": 15.0, "warm_up_s": 2.0, "workers": 4},
    )  # fmt: skip
    found = [row.asDict() for row in sweep(spark, grid, tasks=4).collect()]
    wanted = [to_row(cell, simulate(cell.parameters, seed=seed)) for cell in cells_of(grid) for seed in grid.seeds]
    assert found == wanted
    assert len({row["response_mean_ms"] for row in found}) > 8
    assert {row["profile"] for row in found} == {"store-light"}


def test_a_run_in_which_no_message_counts_has_no_response_time(spark: SparkSession) -> None:
    (row,) = sweep(spark, Grid(values={"steps": "0-1:5", "seconds": 30.0})).collect()
    assert row["offered"] > 0
    assert (row["response_mean_ms"], row["response_p99_ms"], row["load_per_s"], row["profile"]) == (None,) * 4
