"""A small reproduction, end to end: every file is written, and every verdict follows from its numbers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.reproduce import publisher_experiments
from clarion.reproduce.publisher_experiments import LOADS_PER_S, PROFILES, QUICK, TUNED
from clarion.reproduce.publisher_figures import FIGURES
from clarion.reproduce.publisher_report import CLAIMS, REPORT
from clarion.sim import TABLE_II, Step
from clarion.sim.traces import write_trace

SMALL = replace(
    QUICK, seeds=1, seconds=26.0, low_load_seconds=40.0, swept_sizes=(1, 3, 10, 50), steps_sizes=(10,), steps_seeds=1,
    slow_seconds=120.0, trace_seconds=60.0, lookup_hours=0.1, publishers=(2,), publishers_seconds=30.0,
    steps=tuple(Step(40.0 * place, 40.0 * place + 40.0, step.load_per_s) for place, step in enumerate(TABLE_II)),
)  # fmt: skip


@dataclass
class Reproduced:
    """What one small reproduction left behind."""

    folder: Path
    printed: dict[str, Any]
    claims: list[dict[str, Any]]

    def claim(self, name: str) -> dict[str, Any]:
        return next(claim for claim in self.claims if claim["name"] == name)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """A small reproduction by the command itself, with a trace file."""
    folder = tmp_path_factory.mktemp("reproduced")
    arrivals_s = np.cumsum(np.random.default_rng(1).exponential(0.2, 500))
    write_trace(folder / "requests.csv", {"time_s": arrivals_s})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publisher_experiments, "QUICK", SMALL)
        where = ["--out", str(folder / "out"), "--trace", str(folder / "requests.csv")]
        done = CliRunner().invoke(app, ["reproduce", "publisher", "--quick", "--json", "--processes", "1", *where])
    assert done.exit_code == 0, done.output
    written = json.loads((folder / "out" / CLAIMS).read_text())
    return Reproduced(folder / "out", json.loads(done.stdout), written["claims"])


def test_every_figure_and_the_report_are_written(reproduced: Reproduced) -> None:
    for figure in FIGURES:
        written = (reproduced.folder / figure.file).read_bytes()
        assert written.startswith(b"\x89PNG")
        assert len(written) > 10_000
        assert f"]({figure.file})" in (reproduced.folder / REPORT).read_text()


def test_what_is_printed_is_what_is_written(reproduced: Reproduced) -> None:
    written = json.loads((reproduced.folder / CLAIMS).read_text())
    assert {name: reproduced.printed[name] for name in written} == written
    assert written["extent"] == "quick"
    assert [trace["trace"] for trace in written["traces"]] == [
        "requests", "requests at 29/s", "requests at 55/s", "lookup service", "lookup service x 50",
    ]  # fmt: skip


def test_every_claim_has_a_verdict_with_numbers_for_each_profile(reproduced: Reproduced) -> None:
    report = (reproduced.folder / REPORT).read_text()
    for claim in reproduced.claims:
        policies = {verdict["policy"] for verdict in claim["verdicts"]}
        assert policies in ({"tuning off"}, set(TUNED))
        assert {verdict["profile"] for verdict in claim["verdicts"]} == set(PROFILES)
        assert claim["claim"] in report
        for verdict in claim["verdicts"]:
            assert verdict["seen"] in report
            assert _numbers(verdict["values"]), "a verdict without numbers was not computed"
            assert all(math.isfinite(number) for number in _numbers(verdict["values"]))


def test_verdicts_follow_from_their_numbers(reproduced: Reproduced) -> None:
    for verdict in reproduced.claim("best-at-low-load")["verdicts"]:
        assert verdict["holds"] == (verdict["values"]["best_batch_size"] == 1)
    for verdict in reproduced.claim("same-for-any-start")["verdicts"]:
        assert verdict["holds"] == (max(verdict["values"]["spread_by_load"]) <= 0.05)
    for verdict in reproduced.claim("optimal")["verdicts"]:
        near = max(verdict["values"]["ratio_to_best"]) <= 1.1
        assert verdict["holds"] == (near and verdict["values"]["load_is_carried"])
    for name in ("no-loss-as-written", "no-loss-gated"):
        for verdict in reproduced.claim(name)["verdicts"]:
            assert verdict["holds"] == (verdict["values"]["dropped"] == 0)


def test_the_counts_of_what_holds_are_those_of_the_verdicts(reproduced: Reproduced) -> None:
    verdicts = [verdict for claim in reproduced.claims for verdict in claim["verdicts"]]
    for policy, counts in reproduced.printed["holds"].items():
        of_policy = [verdict["holds"] for verdict in verdicts if verdict["policy"] == policy]
        assert counts == {"holds": sum(of_policy), "judged": len(of_policy)}


def test_the_gate_ends_the_losses_that_the_document_promises_away(reproduced: Reproduced) -> None:
    as_written = {(one["profile"], one["policy"]): one for one in reproduced.claim("no-loss-as-written")["verdicts"]}
    for verdict in reproduced.claim("no-loss-gated")["verdicts"]:
        assert verdict["values"]["dropped"] == 0
        assert as_written[verdict["profile"], verdict["policy"]]["values"]["share"] > 0.05


def test_the_table_beyond_the_document_has_every_load(reproduced: Reproduced) -> None:
    rows = reproduced.printed["beyond"]
    cases = [f"{load:g}" for load in LOADS_PER_S] + ["Table II"]
    assert [(row["profile"], row["case"]) for row in rows] == [
        (profile, case) for profile in PROFILES for case in cases
    ]
    assert all(set(row["tuned_ms"]) == set(TUNED) for row in rows)


def test_a_trace_that_cannot_be_used_is_refused_before_anything_runs(tmp_path: Path) -> None:
    moment = tmp_path / "moment.csv"
    moment.write_text("time\n5\n5\n")
    for trace, told in ((moment, "one moment"), (tmp_path / "nowhere.csv", "cannot be read")):
        arguments = ["reproduce", "publisher", "--quick", "--out", str(tmp_path / "out"), "--trace", str(trace)]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 1
        assert told in done.stderr


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for one in value.values() for number in _numbers(one)]
    if isinstance(value, list):
        return [number for one in value for number in _numbers(one)]
    return [value] if isinstance(value, int | float) else []
