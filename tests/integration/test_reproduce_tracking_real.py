"""`clarion reproduce tracking` with a real broker and real clients, and tiny numbers."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.reproduce.judged_claims import REPORT

TINY = [
    "--seconds",
    "1",
    "--rate",
    "50",
    "--publishers",
    "4",
    "--subscribers",
    "6",
    "--topics",
    "12",
    "--persist",
    "0.5",
]


def test_a_tiny_experiment_is_really_run_and_told(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["reproduce", "tracking", "--json", "--out", str(tmp_path), *TINY])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    runs = {run["tracking"]: run for run in printed["runs"]}
    assert set(runs) == {"none", "log", "bloom"}
    for run in runs.values():
        assert run["put"] == 50
        assert run["delivered"] == run["expected"] > 0
        assert run["round_trips_s"]
        assert run["lost"] == 0
    assert runs["none"]["room"] is None
    for tracking in ("log", "bloom"):
        run, room = runs[tracking], runs[tracking]["room"]
        # Each message is a batch here: one note where it was put, and one for each who got it; and latency messages.
        assert room["notes"] >= run["put_in_all"] + run["delivered"] + 2 * len(run["round_trips_s"])
        assert room["saves"] >= 2
        assert room["file_bytes"] > 0
    verdicts = {claim["name"]: claim["verdict"] for claim in printed["claims"]}
    assert "ours-forces" in verdicts
    assert "This is not the document's load" in (tmp_path / REPORT).read_text()
