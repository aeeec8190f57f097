"""`clarion simulate`: its options, its output, and what it says when something is wrong."""

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
from clarion.cli.model_commands import option_name
from clarion.publisher.tuner import trace_to_csv
from clarion.sim import Parameters

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
             "takes_all": ("--take-all", True), "polls_on_arrival": ("--poll-on-arrival", True)}  # fmt: skip
    arguments = [text for name, value in given.items() for text in (option_name(name), value)]
    used = _json(*arguments, *(flag for flag, _ in flags.values()))["parameters"]
    before = dataclasses.asdict(Parameters())
    assert {*given, *flags} == set(used) - {"load_per_s"}
    assert [name for name in before if name in used and used[name] == before[name]] == []
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


@pytest.mark.parametrize(
    "arrivals", [(), ("--load", "5"), ("--steps", "0-20:3,20-40:9"), ("--trace", "TRACE", "--trace-rate", "9")]
)
def test_the_parameters_that_are_printed_make_the_same_run_again(tmp_path: Path, arrivals: tuple[str, ...]) -> None:
    trace, file = tmp_path / "arrivals.csv", tmp_path / "again.toml"
    trace.write_text("time_s\n" + "\n".join(str(place) for place in range(300)) + "\n")
    first = _json(*(str(trace) if one == "TRACE" else one for one in arrivals), *_SHORT, "--profile", "store-light")
    lines = [f"{name} = {json.dumps(value)}" for name, value in first["parameters"].items() if value is not None]
    file.write_text("\n".join(lines))
    assert _json("--config", str(file)) == first


def test_where_nothing_arrives_there_is_no_response_time() -> None:
    arguments = ("--steps", "0-5:3", *_SHORT)  # all of it during the warm-up
    assert _json(*arguments)["response_ms"] == {"mean": None, "median": None, "p99": None}
    assert "response, mean" in _run(*arguments).output
    assert "0 ms" not in _run(*arguments).output.splitlines()[1]


def test_a_trace_of_the_tuner_can_be_drawn(tmp_path: Path) -> None:
    file, picture = tmp_path / "n.csv", tmp_path / "n.png"
    for publishers in ("1", "3"):
        _json(*_SHORT, "--publishers", publishers, "--trace-out", str(file))
        result = CliRunner().invoke(app, ["simulate", "plot-trace", str(file), "--out", str(picture), "--json"])
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert told["publishers"] == [str(number) for number in range(int(publishers))]
        assert told["polls"] == len(file.read_text().splitlines()) - 1
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


@pytest.mark.parametrize(
    ("text", "out", "told"),
    [
        (None, "n.png", "cannot be read"),
        ("time_s\n1\n", "n.png", "line 1: the columns of a tuner's trace are"),
        ("", "n.png", "line 1: the columns"),
        ("HEADER\n0,1,2,x\n", "n.png", "line 2: this is no sample of a tuner"),
        ("HEADER\n", "n.png", "has no samples"),
        ("HEADER\n0,1.5,1,0.1,0,0,-1,1,1\n", "n.gif", "is no picture"),
        ("HEADER\n0,1.5,1,0.1,0,0,-1,1,1\n", "nowhere/n.png", "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_told_in_one_line(tmp_path: Path, text: str | None, out: str, told: str) -> None:
    file = tmp_path / "n.csv"
    if text is not None:
        file.write_text(text.replace("HEADER", trace_to_csv({}).strip()))
    result = CliRunner().invoke(app, ["simulate", "plot-trace", str(file), "--out", str(tmp_path / out)])
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


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
        (("--publishers", "3", "--room", "2"), "does not give each of 3 publishers credit"),
        (("--trace-out", "/nowhere/n.csv", *_SHORT), "cannot be written"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(arguments: tuple[str, ...], told: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    as_json = _run(*arguments, "--json")
    assert told in json.loads(as_json.stderr)["error"]["message"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('profile = ["store-light"]', "a profile is one of"),
        ("trace = 5", "trace is the name of a file, not 5"),
        ('workers = "many"', "workers is a whole number"),
        ("profil = 5", "parameters that do not exist: profil"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_in_one_line(tmp_path: Path, line: str, told: str) -> None:
    file = tmp_path / "model.toml"
    file.write_text(line)
    result = _run("--config", str(file))
    assert result.exit_code == 1
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--load", "1e9"), "a run has at most 10,000,000 messages, not 3e+11"),
        (("--load", "1e308"), "a run has at most 10,000,000 messages"),
        (("--seconds", "1000000000"), "a run has at most 10,000,000 messages"),
        (("--steps", "0-100:1e9"), "a run has at most 10,000,000 messages, not 1e+11"),
        (("--load", "1e-9", "--publishers", "1000000000", "--no-gate"), "publishers are at most 10,000"),
        (("--rtt-cv", "1e-300"), "rtt_cv is 0, or from 0.001 to 1000, not 1e-300"),
        (("--rtt-cv", "1001"), "rtt_cv is 0, or from 0.001 to 1000"),
    ],
)
def test_a_run_that_no_machine_can_do_is_refused(arguments: tuple[str, ...], told: str) -> None:
    result = _run(*arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert told in result.stderr


_NUMBERS = [one.name for one in dataclasses.fields(Parameters) if "int" in str(one.type) or "float" in str(one.type)]


@pytest.mark.parametrize("name", _NUMBERS)
def test_no_number_for_a_parameter_is_a_traceback(name: str) -> None:
    for text in ("0", "-1", "1e9", "1000000000", "nan", "inf", "1e-300", "9" * 400):
        result = _run("--seconds", "2s", "--warm-up", "0s", option_name(name), text)
        assert result.exit_code in (0, 1, 2)
        assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("topics", ["0", "-3", "abc", "1.5", "nan", "inf", "1,,", "", "99999999"])
def test_a_wrong_number_of_topics_is_told(topics: str) -> None:
    result = _run("--topics", topics)
    assert result.exit_code == 1
    assert "whole numbers like" in result.output or "topics are 1 to" in result.output


@pytest.mark.parametrize("slow", ["5", "8-5", "nan-5", "5-inf", "-", "1.2.3-4"])
def test_a_wrong_slow_time_is_told(slow: str) -> None:
    result = _run("--topics", "10", "--slow", slow)
    assert result.exit_code == 1
    assert "like 5-8" in result.output or "ends after it begins" in result.output


def test_the_table_of_topics_fits_into_80_columns() -> None:
    result = _run("--topics", "1,2000", "--load", "500", "--seconds", "4s", "--slow", "1-2")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
