"""The worked example runs as its README says: a real workflow, real tiles, and counts that are true."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.broker_process import ROOT, free_url
from tests.integration.shell import DEADLINE_S, environment, read_line, run, running, stop

TILES = ROOT / "examples" / "tiles"


def test_cells_on_tiles_are_counted_as_they_are(tmp_path: Path) -> None:
    """Every report has the true count and the true drift, and the run ends with all of its processes."""
    url = free_url()
    command = ["workflow", "run", str(TILES / "tiles.py"), "--data", str(tmp_path / "data"), "--json"]
    with running(*command, "--response", "1s", "--budget", "3", CLARION_URL=url, TILES_DEVICE_S="0.01") as flow:
        assert json.loads(read_line(flow))["jobs"] == ["tile"]
        submitted = subprocess.run(
            [sys.executable, str(TILES / "submit_tiles.py"), "--quick"],
            env=environment(CLARION_URL=url), capture_output=True, timeout=DEADLINE_S, text=True, check=False,
        )  # fmt: skip
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        assert submitted.stdout.splitlines()[-1].endswith(", 0 reports wrong")
        told = json.loads(run("workflow", "status", "tiles", "--json", CLARION_URL=url).stdout)
        assert set(told["requested"]) == {"align", "segment", "focus", "count", "report"}
        code, _, _ = stop(flow, signal.SIGINT)
    assert code == 0


def test_the_example_is_a_workflow_without_faults() -> None:
    done = run("workflow", "check", str(TILES / "tiles.py"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines()[-1].endswith("is fine")
