"""Exports of histories: what was written is read, whole or not at all, and nothing else is taken for one."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.unit.tracking.segments import segment_of

from clarion.model.errors import InvalidRequest, PermanentError
from clarion.tracking import exported
from clarion.tracking.exported import (
    About,
    HistoryPart,
    Segment,
    export_files,
    read_export,
    read_exports,
    write_export,
)

ABOUT = About(broker=0xA1, name="north", strategy="bloom", efpp=1e-5, begins=5, ends=900)


def _segment(first: int, count: int = 20) -> Segment:
    keys = [(0xA1 << 32 | 7, stamp) for stamp in range(first, first + count)]
    return segment_of(keys, exact=[(0xA1 << 32 | 8, first)])


def _parts() -> Iterator[HistoryPart]:
    yield HistoryPart("publisher", 0xA1, 0, b"", _segment(10))
    yield HistoryPart("routing", 0xB2, 0xC3, b"", _segment(50))
    part = struct.pack(">QQII", 0xB2 << 32 | 1, 77, 3, 9)
    yield HistoryPart("subscriber", 0xB2, 0, b"\xff\x00", _segment(90), part)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written = write_export(tmp_path, ABOUT, _parts())
    assert (written.segments, written.keys) == (3, 60)
    (export,) = read_exports([tmp_path])
    assert export.about == ABOUT
    assert export.parts == list(_parts())


def test_the_columns_are_those_that_others_read(tmp_path: Path) -> None:
    table = parquet.read_table(write_export(tmp_path, ABOUT, _parts()).path)
    row = table.to_pylist()[2]
    assert [row[name] for name in ("broker", "broker_name", "kind", "origin", "via", "subscriber")] == [
        "000000a1", "north", "subscriber", "000000b2", "", "b64:_wA=",
    ]  # fmt: skip
    assert (row["first"], row["last"], row["count"]) == (90, 109, 20)
    assert struct.unpack(">QQ", row["exact"]) == (0xA1 << 32 | 8, 90)
    assert struct.unpack(">QQII", row["parts"]) == (0xB2 << 32 | 1, 77, 3, 9)


def test_no_histories_are_an_export_too(tmp_path: Path) -> None:
    written = write_export(tmp_path, ABOUT, [])
    assert (written.segments, written.keys) == (0, 0)
    assert read_export(written.path) == (ABOUT, [])


def test_many_parts_are_written_in_groups_and_taken_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exported, "_GROUP_ROWS", 2)
    path = write_export(tmp_path, ABOUT, _parts()).path
    assert parquet.read_metadata(path).num_row_groups == 2
    assert read_export(path).parts == list(_parts())


def test_an_export_that_fails_leaves_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    path = write_export(tmp_path, ABOUT, _parts()).path

    def failing() -> Iterator[HistoryPart]:
        yield next(_parts())
        raise RuntimeError("the broker went away")

    with pytest.raises(RuntimeError, match="went away"):
        write_export(tmp_path, ABOUT, failing())
    assert list(tmp_path.iterdir()) == [path]
    assert len(read_export(path).parts) == 3


def test_another_export_of_a_broker_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    write_export(tmp_path, ABOUT, _parts())
    write_export(tmp_path, ABOUT, [next(_parts())])
    write_export(tmp_path, msgspec.structs.replace(ABOUT, broker=0xB2), [])
    assert [path.name for path in export_files(tmp_path)] == ["000000a1.parquet", "000000b2.parquet"]
    assert [len(export.parts) for export in read_exports([tmp_path])] == [1, 0]


def test_drafts_of_exports_that_were_cut_short_are_passed_over(tmp_path: Path) -> None:
    path = write_export(tmp_path, ABOUT, []).path
    (tmp_path / ".000000b2.parquet.99").write_bytes(b"half")
    assert export_files(tmp_path) == [path]


def test_a_version_that_is_not_known_is_refused(tmp_path: Path) -> None:
    path = write_export(tmp_path, msgspec.structs.replace(ABOUT, version=2), []).path
    with pytest.raises(InvalidRequest, match="of version 2, and version 1 is read here: export them again"):
        read_export(path)


def test_files_that_are_no_exports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no Parquet files"):
        read_exports([tmp_path])
    with pytest.raises(InvalidRequest, match="is not there"):
        read_exports([tmp_path / "nowhere"])
    with pytest.raises(InvalidRequest, match="there are no histories"):
        read_exports([])
    other = tmp_path / "other.parquet"
    parquet.write_table(pa.table({"id": [1]}), other)
    with pytest.raises(InvalidRequest, match="was not written by an export"):
        read_export(other)
    other.write_bytes(b"no Parquet at all")
    with pytest.raises(InvalidRequest, match="is no Parquet file"):
        read_export(other)


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PermanentError, match=r"cannot be written: .* Choose another folder"):
        write_export(tmp_path / "file", ABOUT, [])


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PermanentError, match=r'needs pyarrow: pip install "clarion\[arrow\]"'):
        write_export(tmp_path, ABOUT, [])
