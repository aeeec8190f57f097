"""`clarion trace`, `clarion tracking export` and what an audit says to people: exit codes, files, and words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.unit.tracking.broker_line import LOST, READ, line, message
from typer.testing import CliRunner, Result

from clarion.admin.admin import Trace
from clarion.broker.history_writer import FILE
from clarion.cli.broker_clients import BrokerCall
from clarion.cli.main import app
from clarion.model.ids import MessageId, stamp_from_unix_s
from clarion.tracking.exported import write_export
from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.tracker import HistoryName, Tracker, Unsaved

_NOW_US = 1_790_000_000_000_000
_STAMP = stamp_from_unix_s(_NOW_US / 1e6)
_ID = "a04eb7ad000000010ca3dfdc68500000"


def _run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a broker answers when it is asked for a path."""
    values: dict[str, Any] = {"message": _ID}

    class Asked:
        def trace(self, _: MessageId) -> Trace:
            return Trace(values, "the path")

    @contextmanager
    def admin(_: BrokerCall) -> Iterator[Asked]:
        yield Asked()

    monkeypatch.setattr(BrokerCall, "admin", admin)
    return values


@pytest.mark.parametrize(
    ("state", "code"), [("delivered", 0), ("on its way", 0), ("not delivered", 0), ("never seen", 3), ("unknown", 3)]
)
def test_a_path_that_is_not_known_ends_with_3(answer: dict[str, Any], state: str, code: int) -> None:
    answer["state"] = state
    said = _run("trace", _ID)
    assert (said.exit_code, said.stdout) == (code, "the path\n")
    told = _run("trace", _ID, "--json")
    assert (told.exit_code, json.loads(told.stdout)) == (code, answer)


def test_a_path_without_a_state_is_one(answer: dict[str, Any]) -> None:
    assert _run("trace", _ID).exit_code == 0


@pytest.mark.parametrize("text", ["nonsense", "", "zz", _ID + "00"])
def test_what_is_no_id_is_a_mistake_in_the_command_line(answer: dict[str, Any], text: str) -> None:
    done = _run("trace", text)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "32 hexadecimal digits, not" in " ".join(done.stderr.replace("│", " ").split())


def test_an_id_may_have_dashes_as_a_uuid_has(answer: dict[str, Any]) -> None:
    assert _run("trace", str(UUID(_ID))).exit_code == 0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of a broker that tracked two batches."""
    folder = tmp_path / "data"
    folder.mkdir()
    file = HistoryFile(folder / FILE, HistorySettings(), now_us=_NOW_US, broker=0xA1)
    tracker = Tracker(file.names())
    for stamp in (_STAMP, _STAMP + 1):
        tracker.note(tracker.number_of(HistoryName("publisher", 0xA1)), 0xA1 << 32 | 7, stamp)
    unsaved = tracker.take()
    assert unsaved is not None
    file.save(unsaved, now_us=_NOW_US + 1_000_000)
    file.close()
    return folder


def _export(data: Path, out: Path, *more: str) -> Result:
    return _run("tracking", "export", "--data", str(data), "--out", str(out), *more)


def test_an_export_says_what_is_in_it_and_replaces_the_one_before(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "exports"
    first = _export(data, out, "--name", "rome")
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith(f"{out}/000000a1.parquet: 1 history of rome with 2 notes, ")
    assert "in place" not in first.stdout
    told = json.loads(_export(data, out, "--json").stdout)
    assert told["path"] == f"{out}/000000a1.parquet"
    assert (told["broker"], told["name"], told["in_place"]) == ("000000a1", "broker-000000a1", True)
    assert (told["histories"], told["keys"] + told["exact_keys"]) == (1, 2)
    assert told["begins"] == "2026-09-21T14:13:20.000Z"
    assert told["bytes"] == (out / "000000a1.parquet").stat().st_size
    assert [one.name for one in out.iterdir()] == ["000000a1.parquet"]
    assert "; in place of the export before" in _export(data, out).stdout


def test_an_export_names_the_times_in_which_the_broker_did_not_track(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "exports"
    assert "did not track" not in _export(data, out).stdout
    assert json.loads(_export(data, out, "--json").stdout)["gaps"] == []
    for hours in range(4):
        until_us = _NOW_US + (hours + 1) * 3_600_000_000
        file = HistoryFile(data / FILE, HistorySettings(), now_us=until_us, broker=0xA1)
        file.add_gap(until_us=until_us)
        saved = Unsaved(published_us=until_us)
        file.save(saved, now_us=until_us)
        file.close()
    gaps = json.loads(_export(data, out, "--json").stdout)["gaps"]
    assert len(gaps) == 4
    assert gaps[0][1] == "2026-09-21T15:13:20.000Z"
    said = _export(data, out).stdout
    assert f"; it did not track {gaps[0][0]} to {gaps[0][1]}, {gaps[1][0]} to {gaps[1][1]}, " in said
    assert " and 1 more; in place of" in said


def test_an_export_that_cannot_be_says_why_and_changes_nothing(data: Path, tmp_path: Path) -> None:
    out, file, empty = tmp_path / "exports", tmp_path / "notes", tmp_path / "empty"
    file.write_text("mine")
    empty.mkdir()
    for done, why in (
        (_export(tmp_path / "nowhere", out), "nowhere is not there: name the data folder of a broker with --data"),
        (_export(data / FILE, out), f"{FILE} is a file: name the data folder"),
        (_export(empty, out), f"empty has no histories ({FILE}): no broker tracked there"),
        (_export(data, file), "notes is a file, and stays as it is: --out names a folder"),
        (_export(data, tmp_path / "rome.parquet"), f"each broker has a file named by its id: --out {tmp_path}/rome"),
        (_export(data, data), "is the data folder of the broker: choose another"),
        (_export(data, out, "--name", "a/b"), "--name: a broker's name has printable characters"),
    ):
        assert (done.exit_code, done.stdout) == (1, "")
        assert why in " ".join(done.stderr.split())
    assert file.read_text() == "mine"
    assert {one.name for one in tmp_path.iterdir()} == {"data", "notes", "empty"}


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    """Exports of three brokers in a line."""
    for export in line():
        write_export(tmp_path / "histories", export.about, export.parts)
    return tmp_path / "histories"


def _audit(ids: Path | str, *histories: Path, more: tuple[str, ...] = (), stdin: str | None = None) -> Result:
    named = [word for one in histories for word in ("--histories", str(one))]
    return _run("pipeline", "audit", str(ids), *named, *more, stdin=stdin)


def test_ids_may_come_by_standard_input(histories: Path) -> None:
    ids = f"{message(READ)}\n\n{message(LOST)}\nnonsense\n"
    done = _audit("-", histories, more=("--json",), stdin=ids)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {state: count for state, count in told["states"].items() if count} == {
        "delivered": 1,
        "never seen": 1,
        "no message id": 1,
    }


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_list_of_ids_is_one(histories: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "ids.txt").write_text(text)
    for ids, name in (("-", "standard input"), (tmp_path / "ids.txt", "ids.txt")):
        said = _audit(ids, histories, more=("--without-spark",), stdin=text)
        assert (said.exit_code, said.stdout) == (0, "")
        assert f"{name} has no ids: there is nothing to tell" in said.stderr
        told = _audit(ids, histories, more=("--without-spark", "--json"), stdin=text)
        assert json.loads(told.stdout)["ids"] == 0


def test_no_number_is_less_than_nothing(histories: Path) -> None:
    for more in ((), ("--json",)):
        assert "-0" not in _audit("-", histories, more=more, stdin=f"{message(LOST)}\n").stdout


def test_a_broker_has_one_export_in_an_audit(histories: Path, tmp_path: Path) -> None:
    ids = f"{message(READ)}\n"
    once = _audit("-", histories, histories / "000000a1.parquet", more=("--json",), stdin=ids)
    assert json.loads(once.stdout)["states"]["delivered"] == 1, "a file that is named twice is read once"
    north = line()[0]
    write_export(tmp_path / "older", north.about, north.parts)
    twice = _audit("-", histories, tmp_path / "older", stdin=ids)
    assert (twice.exit_code, twice.stdout) == (1, "")
    assert "are both of the broker north (000000a1): an audit takes one export of each" in twice.stderr


@pytest.mark.parametrize("words", ["trace", "tracking export", "pipeline audit"])
def test_the_help_has_the_extras_that_are_needed_and_examples(words: str) -> None:
    said = _run(*words.split(), "--help").stdout
    assert "`tracking`" in said
    assert "Examples:" in said
