"""`clarion simulate publisher`: its options, its output, and what it says when something is wrong."""

from __future__ import annotations

import csv
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.cli.simulate_options import option_name
from clarion.sim.publisher import Parameters

_SHORT = ("--seconds", "40", "--warm-up", "10s")


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["simulate", "publisher", *arguments])


def _json(*arguments: str) -> dict[str, Any]:
    result = _run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_has_the_numbers_that_programs_ask_for() -> None:
    arguments = ("--profile", "store-light", "--load", "35", "--tuning", "fixed", "--batch-size", "10", "--seed", "1")
    found = _json(*arguments, *_SHORT)
    assert set(found["response_ms"]) == {"mean", "median", "p99"}
    assert found["batch_size_mean"] == 10
    assert found["offered"] == found["delivered"] + found["dropped"] + found["unfinished"]
    assert found["parameters"]["read_fixed_s"] == 0.04
    assert found == _json(*arguments, *_SHORT)


def test_every_parameter_has_an_option_that_sets_it() -> None:
    given = {
        "tuning": "literal", "batch_size": "3", "batch_size_min": "2", "batch_size_max": "9", "poll_min_s": "10ms",
        "poll_max_s": "20ms", "wait_s": "30ms", "poll_factor": "1.5", "load_gain": "0.25", "capacity_gain": "0.5",
        "publishes_in_transfer": "4", "workers": "7", "buffer": "8", "receive_s": "1ms", "publish_s": "3ms",
        "write_s": "2ms", "read_fixed_s": "5ms", "read_each_s": "1ms", "rtt_s": "50ms", "rtt_cv": "0.2", "room": "60",
        "subscriber_per_s": "500", "vacation_s": "20ms", "seconds": "40", "warm_up_s": "10s", "publishers": "2",
    }  # fmt: skip
    flags = {"gated": ("--no-gate", False), "receiving_first": ("--first-come", False),
             "polls_on_arrival": ("--poll-on-arrival", True)}  # fmt: skip
    arguments = [text for name, value in given.items() for text in (option_name(name), value)]
    used = _json(*arguments, *(flag for flag, _ in flags.values()))["parameters"]
    before = dataclasses.asdict(Parameters())
    assert {*given, *flags} == set(used)
    assert [name for name in used if used[name] == before[name]] == []
    assert (used["poll_min_s"], used["wait_s"], used["gated"]) == (0.01, 0.03, False)


def test_people_get_a_table() -> None:
    result = _run(*_SHORT, "--publishers", "2", "--load", "5")
    assert result.exit_code == 0
    assert "response, mean" in result.output
    assert "Jain's index" in result.output


def test_a_file_is_heeded_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text('load_per_s = 5.0\nseconds = 40\nwarm_up_s = 10\ntuning = "recheck"\n')
    found = _json("--config", str(file), "--tuning", "literal")
    assert found["parameters"]["tuning"] == "literal"
    assert found["offered"] < 300


def test_the_tuners_trace_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    _json(*_SHORT, "--trace-out", str(file))
    with file.open() as rows:
        found = list(csv.DictReader(rows))
    assert len(found) > 50
    assert {"publisher", "at_s", "batch_size", "poll_interval_s", "load_per_s", "pending"} <= set(found[0])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--tuning", "magic"), "tuning is auto or one of"),
        (("--seconds", "5"), "warm_up_s"),
        (("--steps", "soon"), "steps are table-ii"),
        (("--config", "/nowhere/at.toml"), "cannot read"),
        (("--trace-out", "/nowhere/n.csv", *_SHORT), "cannot be written"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arguments: tuple[str, ...], told: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    as_json = _run(*arguments, "--json")
    assert told in json.loads(as_json.stderr)["message"]


_WITHOUT_SIMPY = """
import sys
sys.modules["simpy"] = None
from clarion.cli.main import main
main()
"""


def test_without_simpy_the_extra_is_named() -> None:
    command = [sys.executable, "-c", _WITHOUT_SIMPY, "simulate", "publisher"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert 'pip install "clarion[sim]"' in result.stderr


def test_the_command_line_starts_without_the_simulator() -> None:
    """Its options are made of the model's parameters at every start: that must stay cheap."""
    script = "import sys, clarion.cli.main; print(*({'numpy', 'simpy', 'zmq', 'clarion.publisher'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == ""
