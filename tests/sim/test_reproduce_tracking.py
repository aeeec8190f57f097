"""The message-tracking document's configurations by the model, end to end: what is written, and what is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.reproduce.judged_claims import NUMBERS, REPORT
from clarion.reproduce.tracking_figures import FIGURES


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The model alone, by the command itself: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("tracking")
    done = CliRunner().invoke(app, ["reproduce", "tracking", "--no-real", "--json", "--out", str(folder)])
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
    for row in printed["configurations"]:
        assert row["name"] in report
    written_numbers = json.loads((folder / NUMBERS).read_text())
    assert {name: printed[name] for name in written_numbers} == written_numbers


def test_claims_about_forces_and_room_are_judged_as_they_are(reproduced: tuple[Path, dict[str, Any]]) -> None:
    verdicts = {claim["name"]: claim["verdict"] for claim in reproduced[1]["claims"]}
    for name in (
        "bits", "accuracy", "async-forces", "bf-forces", "full-buffers", "id-size", "async-compresses", "partly-full",
        "delayed", "each-subscriber", "overwritten", "ours-room",
    ):  # fmt: skip
        assert verdicts[name] == "holds", name
    for name in ("rate", "full-incompressible"):
        assert verdicts[name] == "differs", name
    for name in ("slight-latency", "ours-forces"):
        assert verdicts[name] == "not shown", name


def test_every_row_of_table_2_has_its_figures(reproduced: tuple[Path, dict[str, Any]]) -> None:
    rows = reproduced[1]["configurations"]
    assert len(rows) == 21
    assert rows[0]["each"]["bytes_per_message"] == 0
    for row in rows[1:]:
        for layout in ("publisher", "together", "each"):
            assert row[layout]["bytes_per_message"] > 0, row["name"]
            assert row[layout]["gzip_per_message"] > 0, row["name"]
            assert row[layout]["forces_per_s"] > 0, row["name"]
            assert row[layout]["memory_bytes"] > 0, row["name"]
