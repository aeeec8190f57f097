"""`clarion workflow` and `clarion jobs` as a newcomer meets them: a handler that fails, names left out, wrong files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.shell import Shell, one_line, read_line, run, running, stop

from clarion import Admin, Publisher
from clarion.workflow import Jobs

FLOW = """
from clarion.workflow import Workflow

flow = Workflow("slides")


@flow.task(max_attempts=1)
def look(payload):
    if payload == "broken":
        raise ValueError("no such slide")
    return payload


flow.job("glance", [look])
"""


@pytest.fixture
def slides(tmp_path: Path) -> Iterator[Shell]:
    """Commands against a workflow that runs, on a broker that it started itself."""
    file = tmp_path / "slides.py"
    file.write_text(FLOW)
    data = tmp_path / "data"
    with running("workflow", "run", str(file), "--data", str(data), "--json", CLARION_URL=free_url()) as flow:
        yield Shell(flow, json.loads(read_line(flow))["url"], data)
        stop(flow)  # and with it the broker; of a parent that was killed, that learns a while later


def test_a_failed_job_says_where_to_look_and_its_trace_begins_at_the_handler(slides: Shell) -> None:
    refused = slides.run("jobs", "submit", "glance", "broken", "--workflow", "slides", "--id", "b", "--wait", "60s")
    assert refused.returncode == 1
    assert "`clarion dead list slides/look`" in one_line(refused)
    told = slides.ok("jobs", "status", "b").decode()
    assert "clarion dead replay slides/look" in told
    trace = told[told.index("Traceback") :].splitlines()
    assert trace[1].strip().startswith("File ")
    assert "slides.py" in trace[1]
    assert b"ValueError: no such slide" in slides.ok("dead", "list", "slides/look")


def test_a_name_left_out_is_found_or_told(slides: Shell) -> None:
    assert slides.ok("jobs", "submit", "glance", "7", "--workflow", "slides", "--wait", "60s") == b"7\n"
    assert "There is one of workflow slides" in one_line(slides.run("jobs", "submit", "glance", "7"))
    assert slides.json("workflow", "status")["workflow"] == "slides"
    assert "there are slides" in one_line(slides.run("workflow", "status", "others"))


def test_one_where_several_are_wanted_is_refused_and_said(slides: Shell) -> None:
    with Jobs(slides.url, "slides") as jobs:
        for wrong in ("abc", b"abc", {"a": 1}):
            with pytest.raises(TypeError, match="submit takes one"):
                jobs.submit_many("glance", wrong)
        (one,) = jobs.submit_many("glance", (number for number in [7]))
        with pytest.raises(TypeError, match="result takes one"):
            jobs.results(one)
        assert jobs.results((each for each in [one]), wait_s=60) == [7]
        with pytest.raises(ValueError, match="a status is waiting"):
            jobs.list(status="bogus")
        assert jobs.load(jobs.store("text")) == b"text"
        with pytest.raises(TypeError, match="bytes or str"):
            jobs.store(None)  # type: ignore[arg-type]


def test_the_log_says_which_job_failed_and_what_comes_next(tmp_path: Path) -> None:
    file, data, more = tmp_path / "slides.py", tmp_path / "data", {"CLARION_URL": free_url()}
    file.write_text(FLOW)
    with running("workflow", "run", str(file), "--data", str(data), "--json", **more) as flow:
        shell = Shell(flow, json.loads(read_line(flow))["url"], data)
        shell.run("jobs", "submit", "glance", "broken", "--workflow", "slides", "--id", "b 7", "--wait", "60s")
        log = stop(flow)[2].decode()
    assert "[look of b 7, attempt 1 of 1] ValueError: no such slide; it becomes a dead letter" in log
    assert "`clarion jobs status 'b 7'`" in log
    assert "`clarion dead replay slides/look`" in log
    assert "ends: 0 tasks done, 1 failed" in log


def test_tasks_that_the_file_no_longer_has_are_told(tmp_path: Path, broker: BrokerProcess) -> None:
    file = tmp_path / "slides.py"
    file.write_text(FLOW)
    with Admin(broker.url) as admin, Publisher(broker.url) as publisher:
        admin.subscribe("slides/gone", "workers", shared=True)
        publisher.put_many("slides/gone", [b"1", b"2"]).result(timeout_s=60)
        with running("workflow", "run", str(file), "--json", CLARION_URL=broker.url) as flow:
            read_line(flow)
            assert flow.stderr is not None
            assert b"2 wait for task gone" in flow.stderr.readline()


def test_nothing_is_started_for_what_is_wrong(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("x = 1\ny = x.missing\n")
    right = tmp_path / "right.py"
    right.write_text(FLOW)
    data = tmp_path / "data"
    more = {"CLARION_URL": free_url()}
    assert "fails at line 2" in one_line(run("workflow", "run", str(wrong), "--data", str(data), **more))
    for options in (
        ["--allocator", "nobody"],
        ["--consumers", "look=0"],
        ["--consumers", "other=2"],
        ["--consumers", "look=65"],
    ):
        assert run("workflow", "run", str(right), "--data", str(data), *options, **more).returncode in (1, 2)
    assert not data.exists()
