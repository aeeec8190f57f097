"""`clarion demo`: what a newcomer sees first."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest
from tests.integration.shell import (
    one_line,
    run,
    running,
    stop,
)


def test_the_demo_survives_its_kill_and_says_so() -> None:
    done = run("demo", "--messages", "2000", "--subscribers", "2", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")
    assert told["ok"] is True
    assert told["kills"] == 1
    assert (told["sent"], told["acked"]) == (2000, 2000)
    assert told["received"] == {"subscriber-1": 2000, "subscriber-2": 2000}
    assert (told["lost"], told["repeated"], told["out_of_order"]) == (0, 0, 0)


def test_the_demo_keeps_its_data_where_asked(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = run("demo", "--messages", "100", "--publishers", "1", "--subscribers", "1", "--no-kill", "--keep", str(kept))
    assert done.returncode == 0
    assert b"Nothing lost, nothing repeated" in done.stdout
    assert (kept / "data" / "clarion.db").exists()
    again = run("demo", "--keep", str(kept))
    assert again.returncode == 1
    assert "not empty" in one_line(again)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_interrupted_leaves_nothing_running(tmp_path: Path, number: int, code: int) -> None:
    with running("demo", "--messages", "50000000", "--no-kill", TMPDIR=str(tmp_path)) as demo:
        assert demo.stderr is not None
        while b"go." not in (line := demo.stderr.readline()):
            assert line
        started = psutil.Process(demo.pid).children(recursive=True)
        assert len(started) == 6
        assert stop(demo, number)[0] == code
    assert not any(process.is_running() for process in started)
    assert list(tmp_path.iterdir()) == []
