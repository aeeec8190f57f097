"""What an audit reads and tells, without Spark: ids of all kinds in, a row for each out, and sums that agree."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.unit.tracking.broker_line import HELD, LOST, READ, STUCK, line, message

from clarion.model.errors import InvalidRequest, PermanentError
from clarion.pipeline.jobs import audit_table
from clarion.pipeline.jobs.audit_table import audit_here, find_ids, to_rows
from clarion.tracking.verdicts import HistoryIndex

MESSAGES = [message(READ, 1), message(LOST), message(STUCK), message(READ, 2), message(HELD)]
BYTES = [one.to_bytes() for one in MESSAGES]
TEXTS = [str(one) for one in MESSAGES]
STATES = ["delivered", "never seen", "stopped", "delivered", "stopped"]


@pytest.fixture
def index() -> HistoryIndex:
    """The histories of three brokers in a line."""
    return HistoryIndex(line())


@pytest.mark.parametrize(
    "ids",
    [pa.array(BYTES), pa.array(BYTES, pa.binary(16)), pa.array(TEXTS), pa.array([text.upper() for text in TEXTS])],
    ids=["binary", "16 bytes", "text", "capitals"],
)
def test_every_id_has_its_row(index: HistoryIndex, ids: pa.Array) -> None:
    rows = to_rows(index, ids).to_pylist()
    assert [row["id"] for row in rows] == TEXTS
    assert [row["state"] for row in rows] == STATES
    assert rows[0]["carried_by"] == ["north", "south", "east"]
    assert rows[0]["received_by"] == ["east/anna", "east/bert"]
    assert rows[2]["last_seen"] == ["south"]
    assert {(row["origin"], row["origin_name"]) for row in rows} == {("000000a1", "north")}
    assert rows[1] == {
        "id": TEXTS[1], "origin": "000000a1", "origin_name": "north", "state": "never seen", "carried_by": [],
        "received_by": [], "last_seen": [], "error": 0.0, "doubt": 0.0,
    }  # fmt: skip


def test_what_is_no_id_is_told_and_does_no_harm(index: HistoryIndex) -> None:
    texts = to_rows(index, pa.array(["nonsense", TEXTS[0], None, TEXTS[2][:-1] + "g", ""])).to_pylist()
    none = "no message id"
    assert [row["state"] for row in texts] == [none, "delivered", none, none, none]
    assert texts[0]["id"] == "nonsense"
    assert (texts[0]["origin"], texts[0]["received_by"]) == ("", [])
    packed = to_rows(index, pa.array([b"short", BYTES[2], None])).to_pylist()
    assert [(row["id"], row["state"]) for row in packed] == [
        (b"short".hex(), none),
        (TEXTS[2], "stopped"),
        (None, none),
    ]
    assert [row["state"] for row in to_rows(index, pa.array(["", None])).to_pylist()] == [none, none]
    with pytest.raises(InvalidRequest, match="binary or text, not int64"):
        to_rows(index, pa.array([1]))


def test_a_slice_of_a_column_is_read_as_it_is(index: HistoryIndex) -> None:
    assert to_rows(index, pa.array(BYTES)[2:4]).column("id").to_pylist() == TEXTS[2:4]
    assert to_rows(index, pa.array(TEXTS)[2:4]).column("state").to_pylist() == STATES[2:4]


def _files(folder: Path) -> list[Path]:
    parquet.write_table(pa.table({"other": range(5), "id": pa.array(BYTES)}), folder / "ids.parquet")
    (folder / "ids.csv").write_text("time,id\n" + "".join(f"1,{text}\n" for text in TEXTS), encoding="utf-8")
    (folder / "ids.txt").write_text("\n".join(TEXTS[:2]) + "\n\n" + "\n".join(TEXTS[2:]), encoding="utf-8")
    (folder / "ids.csv.gz").write_bytes(gzip.compress((folder / "ids.csv").read_bytes()))
    (folder / "lines").write_text("\n".join(TEXTS), encoding="utf-8")
    return list(folder.iterdir())


def test_ids_are_read_from_all_kinds_of_files(index: HistoryIndex, tmp_path: Path) -> None:
    for file in _files(tmp_path):
        done = audit_here(find_ids(str(file)), index)
        assert (file.name, done.ids, done.states["delivered"]) == (file.name, 5, 2)


def test_a_folder_has_files_of_one_kind(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not there"):
        find_ids(str(tmp_path / "nowhere"))
    with pytest.raises(InvalidRequest, match="has no files"):
        find_ids(str(tmp_path))
    (tmp_path / "one").mkdir()
    for name in ("one/part.parquet", "_SUCCESS", ".part.crc"):
        (tmp_path / name).write_bytes(b"")
    assert find_ids(str(tmp_path)) == ("parquet", [str(tmp_path / "one" / "part.parquet")])
    (tmp_path / "other.csv").write_bytes(b"")
    with pytest.raises(InvalidRequest, match=r"several kinds \(csv, parquet\)"):
        find_ids(str(tmp_path))
    assert find_ids("s3://somewhere/ids") == ("parquet", ["s3://somewhere/ids"])


def test_sums_agree_with_the_rows_however_they_are_cut(
    index: HistoryIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_table, "IDS_AT_ONCE", 2)
    (tmp_path / "ids").mkdir()
    for number, text in enumerate([*TEXTS, "nonsense"]):
        (tmp_path / "ids" / f"{number}.txt").write_text(text, encoding="utf-8")
    progress: list[int] = []
    done = audit_here(find_ids(str(tmp_path / "ids")), index, tmp_path / "out", on_progress=progress.append)
    assert progress == [2, 4, 6]
    assert done.states == {"delivered": 2, "stopped": 2, "never seen": 1, "not covered": 0, "no message id": 1}
    assert done.ids == 6
    assert done.origins == [
        {"origin": "north", "ids": 5, "delivered": 2, "stopped": 2, "never seen": 1, "not covered": 0}
    ]
    assert done.receivers == {"east/anna": 2, "east/bert": 2}
    assert done.stopped_at == {"north": 1, "south": 1}
    rows = parquet.read_table(tmp_path / "out").to_pylist()
    assert [row["state"] for row in rows] == [*STATES, "no message id"]
    assert done.wrong_expected == pytest.approx(sum(row["doubt"] for row in rows))
    assert done.error_max == max(row["error"] for row in rows)


def test_a_folder_with_something_in_it_stays_as_it_is(index: HistoryIndex, tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text(TEXTS[0], encoding="utf-8")
    with pytest.raises(PermanentError, match="there already, and stays as it is"):
        audit_here(find_ids(str(tmp_path / "ids.txt")), index, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["ids.txt"]


def test_a_column_that_is_not_there_is_told_with_those_that_are(index: HistoryIndex, tmp_path: Path) -> None:
    _files(tmp_path)
    for name in ("ids.parquet", "ids.csv"):
        with pytest.raises(InvalidRequest, match=r"has no column message; it has .*id"):
            audit_here(find_ids(str(tmp_path / name)), index, column="message")
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(InvalidRequest, match="cannot be read as parquet"):
        audit_here(find_ids(str(tmp_path / "broken.parquet")), index)


def test_files_without_ids_hide_none_of_the_others(index: HistoryIndex, tmp_path: Path) -> None:
    for number, text in enumerate(["", TEXTS[0], "\n\n", "\n".join(TEXTS[1:])]):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    assert audit_here(find_ids(str(tmp_path)), index).ids == len(TEXTS)
