"""A small reproduction of Corona's evaluation, end to end: what is written, and what its verdicts rest on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.feeds.honeycomb import Scheme
from clarion.reproduce import feeds_experiments
from clarion.reproduce.feeds_figures import FIGURES
from clarion.reproduce.judged_claims import NUMBERS, REPORT
from clarion.sim.feeds_simulation import FeedsModel

SMALL = replace(
    feeds_experiments.QUICK, model=FeedsModel(nodes=60, channels=2000, subscriptions=40_000), churn_channels=500,
    seeds=1, updates=5, told=20, first_hours=4.0, decided_alone=(Scheme.LITE,),
)  # fmt: skip


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A small reproduction by the command itself: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("feeds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeds_experiments, "QUICK", SMALL)
        done = CliRunner().invoke(app, ["reproduce", "feeds", "--quick", "--json", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder, json.loads(done.stdout)


def test_every_figure_and_the_report_are_written(reproduced: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = reproduced
    report = (folder / REPORT).read_text()
    for figure in FIGURES:
        written = (folder / figure.file).read_bytes()
        assert written.startswith(b"\x89PNG")
        assert len(written) > 10_000
        assert f"]({figure.file})" in report
    for claim in printed["claims"]:
        assert claim["claim"] in report
        assert claim["seen"] in report
    written_numbers = json.loads((folder / NUMBERS).read_text())
    assert {name: printed[name] for name in written_numbers} == written_numbers


def test_claims_that_do_not_rest_on_the_size_are_judged_as_they_are(reproduced: tuple[Path, dict[str, Any]]) -> None:
    verdicts = {claim["name"]: claim["verdict"] for claim in reproduced[1]["claims"]}
    for name in ("fastest", "lite-load", "popular-gain", "alone", "tree", "agrees", "spacing", "by-delivery", "churn"):
        assert verdicts[name] == "holds", name
    for name in ("random-polls", "load-2-l"):
        assert verdicts[name] == "does not hold", name
    assert reproduced[1]["ranges"] == []  # they are of the full size


def test_owners_begin_alone_and_come_to_the_plan(reproduced: tuple[Path, dict[str, Any]]) -> None:
    claim = next(one for one in reproduced[1]["claims"] if one["name"] == "first-hours")
    assert claim["verdict"] == "holds"
    assert "900 s at first" in claim["seen"]
