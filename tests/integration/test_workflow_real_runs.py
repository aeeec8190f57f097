"""The case study with real processes whose handlers sleep: every job ends, and what it slept is told."""

from __future__ import annotations

import numpy as np

from clarion.model.task_events import JobEnded, TaskDone
from clarion.reproduce.workflow_experiments import LOW, NOBODY, ONES, case_study, named
from clarion.reproduce.workflow_real_runs import run_really


def test_jobs_run_through_real_workers_for_as_long_as_their_handlers_sleep() -> None:
    workflow = case_study(LOW)
    arrivals = {name: np.array([0.0, 30.0, 60.0]) for name in workflow.jobs}
    found = run_really(workflow, arrivals, named(ONES), policy=NOBODY, seconds_per_minute=0.2, seed=1)
    assert sum(isinstance(event, JobEnded) and event.outcome == "done" for event in found.events) == 9
    done = [event for event in found.events if isinstance(event, TaskDone)]
    assert len(done) == 3 * sum(len(job.dag) for job in workflow.jobs.values())
    for event in done:
        asked_s = found.asked_s[event.job_id][event.task]
        assert (event.finished_at_us - event.started_at_us) / 1e6 >= 0.99 * asked_s
    assert [consumers for _, consumers in found.scaled] == [named(ONES)]
