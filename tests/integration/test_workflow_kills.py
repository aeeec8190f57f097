"""Every job is done, and everything of it happens once, however often workers, control planes and broker are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tests.integration.torture_oracle import describe
from tests.integration.workflow_torture import FLOW, Campaign, Found, Plan, judge

from clarion.model.task_events import JobArrived, JobEnded, TaskDone
from clarion.workflow.job_messages import join_name, record_name


def test_a_thousand_jobs_fork_and_join_under_kills(tmp_path: Path) -> None:
    campaign = Campaign(Plan(jobs=1000, kills=25, seed=14, longest_pause_s=0.4), tmp_path, lambda _: None)
    verdict = campaign.run()
    report = describe(verdict, [f"{dict(campaign.kills)}"])
    assert not verdict.violations, report
    kinds = ("worker", "broker", "hang", "control", "crash point", "stop")
    assert all(campaign.kills[kind] >= 3 for kind in kinds), report
    assert verdict.counts["jobs"] == 1000, report
    assert verdict.counts["tasks_done"] == 4000, report


# The judge itself.


def _right() -> Found:
    """Return what is there of two jobs when all went well."""
    found = Found(["x", "y"])
    for number, job_id in enumerate(found.job_ids):
        found.results[job_id] = [number + 1, 2 * number]
        found.lines.append(job_id)
        found.states.add(record_name(job_id))
        found.events.append(JobArrived(job="diamond", job_id=job_id, at_us=1))
        found.events += [_done(job_id, task) for task in FLOW.tasks]
        found.events.append(_ended(job_id))
    return found


def _done(job_id: str, task: str, outcome: Literal["done", "failed"] = "done") -> TaskDone:
    return TaskDone(
        task=FLOW.topic_of(task), job="diamond", job_id=job_id, message="0" * 32, attempt=1, consumer="c",
        arrived_at_us=1, started_at_us=2, finished_at_us=3, outcome=outcome,
    )  # fmt: skip


def _ended(job_id: str, outcome: Literal["done", "failed"] = "done") -> JobEnded:
    return JobEnded(job="diamond", job_id=job_id, submitted_at_us=1, at_us=4, outcome=outcome)


def _accused(found: Found) -> list[str]:
    return judge(found, FLOW.tasks).violations


def test_the_judge_is_content_with_what_is_right() -> None:
    found = _right()
    found.events.append(_done("x", "A", "failed"))
    assert _accused(found) == []


def test_the_judge_sees_results_that_are_missing_or_wrong() -> None:
    found = _right()
    found.results = {"x": [1, 1]}
    assert _accused(found) == ["job 0 (x) has the result [1, 1]", "job 1 (y) has the result None"]


def test_the_judge_sees_what_happened_twice_or_not_at_all() -> None:
    found = _right()
    found.lines = ["x", "x"]
    assert _accused(found) == ["line of x: 1 too many", "line of y: 1 missing"]
    found = _right()
    found.events += [_done("x", "B"), _ended("y"), JobArrived(job="diamond", job_id="y", at_us=1)]
    assert _accused(found) == [
        "task done of ('x', 'torture/B'): 1 too many",
        "job arrived of y: 1 too many",
        "job ended of y: 1 too many",
    ]
    found = _right()
    found.events = found.events[:-1]
    assert _accused(found) == ["job ended of y: 1 missing"]


def test_the_judge_sees_jobs_that_failed_and_what_is_left_behind() -> None:
    found = _right()
    found.events[-1] = _ended("y", "failed")
    assert _accused(found) == ["job y is told to have failed"]
    found = _right()
    found.states.add(join_name("x", "D"))
    assert _accused(found) == ["state of clarion/join/x/D: 1 too many"]
    found = _right()
    found.dead = 1
    assert _accused(found) == ["there are 1 dead letters"]
