"""The message-tracking document's configurations by the model, end to end: what is written, and what is judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
from clarion.reproduce import tracking_figures
from clarion.reproduce.figure_style import saved
from clarion.reproduce.judged_claims import NUMBERS, REPORT
from clarion.reproduce.tracking_experiments import DOCUMENT, Results
from clarion.reproduce.tracking_figures import FIGURES, draw_latency
from clarion.reproduce.tracking_model import TABLE_2, Load, model
from clarion.reproduce.tracking_report import is_saved_seldom
from clarion.reproduce.tracking_runs import TRACKINGS, Room, Run


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
        "bits", "accuracy", "async-forces", "bf-forces", "full-buffers", "async-compresses", "partly-full",
        "delayed", "each-subscriber", "overwritten", "ours-room",
    ):  # fmt: skip
        assert verdicts[name] == "holds", name
    for name in ("rate", "full-incompressible"):
        assert verdicts[name] == "differs", name
    for name in ("id-size", "slight-latency", "ours-forces"):
        assert verdicts[name] == "not shown", name


@pytest.mark.parametrize(
    ("saves", "over_s", "is_seldom"), [(1, 0.0, True), (13, 20.0, True), (14, 20.0, False), (40, 20.0, False)]
)
def test_a_file_is_saved_seldom_where_it_is_saved_about_once_in_t_p(saves: int, over_s: float, is_seldom: bool) -> None:
    assert is_saved_seldom(_room(saves, over_s), 2.0) is is_seldom


def test_a_figure_tells_what_is_measured_and_at_what_load_from_what_a_model_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []

    @contextmanager
    def kept(*args: Any, **more: Any) -> Iterator[tuple[Any, Any]]:
        with saved(*args, **more) as (figure, axes):
            yield figure, axes
            drawn.extend(axes.flat)

    monkeypatch.setattr(tracking_figures, "saved", kept)
    load = Load(publishers=4, subscribers=6, topics=12, per_s=300.0)
    runs = [
        Run(
            tracking=one, seconds=1.0, per_s=300.0, put=1, put_in_all=1, delivered=1, expected=1, batches=1, pace=1.0,
            round_trips_s=[0.001], lost=0, cpu=0.1, memory_bytes=1.0, written_per_s=1.0, room=_room(12, 20.0),
        )
        for one in TRACKINGS * 2
    ]  # fmt: skip
    modelled = model(DOCUMENT, 1.0, TABLE_2[:3])
    draw_latency(Results(load, 2.0, modelled, [], {"bloom": _room(12, 20.0)}, runs), tmp_path / "latency.png")
    times, forces = drawn
    for place in (times, forces):
        assert "measured at 300/s in 2 rounds" in place.get_title()
    assert all(bar.get_hatch() for bar in times.patches)
    assert [bool(bar.get_hatch()) for bar in forces.patches] == [False, False, True]


def _room(saves: int, over_s: float) -> Room:
    return Room(
        histories=700, notes=1000, saves=saves, saved_over_s=over_s, saved_bytes=0, packed_bytes=0, packed_gzip_bytes=0,
        file_bytes=0, filters=0, exact=0, packing_s=0.0,
    )  # fmt: skip


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
