"""The closed loop in simulated time: the real monitor, planner and scheduler answer a load that changes."""

from __future__ import annotations

import numpy as np
import pytest

from clarion.reproduce.workflow_experiments import (
    BURST,
    HIGH,
    LOW,
    MIN_COST,
    MIN_TIME,
    ONES,
    TARGET_S,
    UP_AND_DOWN,
    Load,
    Policy,
    Run,
    case_study,
    named,
    simulate_load,
)
from clarion.workflow.planner import predict

SEEDS = (1, 2, 3)


def _steered(policy: Policy, load: Load) -> list[Run]:
    return [simulate_load((policy, load, seed)) for seed in SEEDS]


@pytest.fixture(scope="module")
def bursts() -> list[Run]:
    return _steered(MIN_TIME, BURST)


@pytest.fixture(scope="module")
def ups_and_downs() -> list[Run]:
    return _steered(MIN_COST, UP_AND_DOWN)


def test_a_burst_is_answered_soon_by_consumers_that_keep_up(bursts: list[Run]) -> None:
    for run in bursts:
        changed_s = [at_s for at_s, _ in run.scaled[1:]]
        assert run.load.burst_s < changed_s[0] < run.load.burst_s + 300
        assert predict(case_study(HIGH), named(run.scaled[-1][1])).stable
        assert sum(run.scaled[-1][1]) <= 9


def test_a_burst_takes_few_changes(bursts: list[Run]) -> None:
    changes = [len(run.scaled) - 1 for run in bursts]
    assert max(changes) <= 4
    assert np.mean(changes) <= 3


def test_after_a_burst_jobs_take_as_long_as_before_and_few_took_longer(bursts: list[Run]) -> None:
    assert np.mean([run.afterwards for run in bursts]) <= 1.25
    assert max(run.affected for run in bursts) <= 0.15


def test_a_quiet_load_is_left_alone(bursts: list[Run], ups_and_downs: list[Run]) -> None:
    early = [at_s for run in (*bursts, *ups_and_downs) for at_s, _ in run.scaled[1:] if at_s < run.load.burst_s]
    assert len(early) <= len(SEEDS)  # half an hour each, at two jobs a minute that waver
    assert predict(case_study(LOW), named(ONES)).response_s <= TARGET_S


def test_what_a_response_does_not_need_any_more_is_taken_away(ups_and_downs: list[Run]) -> None:
    for run in ups_and_downs:
        most, last = sum(run.most), sum(run.scaled[-1][1])
        assert most >= 8
        assert last < most
        assert run.scaled[-1][0] > run.load.burst_s + run.load.steps[1][0]
        assert predict(case_study(LOW), named(run.scaled[-1][1])).response_s <= TARGET_S


def test_a_response_is_kept_to_on_average_without_nervous_changes(ups_and_downs: list[Run]) -> None:
    assert np.mean([run.response_s for run in ups_and_downs]) <= TARGET_S
    assert np.mean([len(run.scaled) - 1 for run in ups_and_downs]) <= 11  # five up and down are the least
