"""What an audit reads and tells: message ids in files, a row for each with what became of it, and the sums of these.

It needs pyarrow and NumPy, and no Spark: `audit_here` runs all of it in this process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, dataset, parquet

from clarion.model.errors import InvalidRequest, PermanentError
from clarion.tracking.verdicts import STATES, HistoryIndex, Lists, read_ids
from clarion.workflow.workload import written_whole

_LINES_BYTES = 2**20  # of standard input at once
NO_ID = "no message id"  # what a row says of something that is none
ALL_STATES = (*STATES, NO_ID)
IDS_AT_ONCE = 500_000  # that are looked for together: more of them share keys, and take memory
SCHEMA = pa.schema([
    ("id", pa.string()),
    ("origin", pa.string()),
    ("origin_name", pa.string()),
    ("state", pa.string()),
    ("carried_by", pa.list_(pa.string())),
    ("received_by", pa.list_(pa.string())),
    ("last_seen", pa.list_(pa.string())),
    ("error", pa.float64()),
    ("doubt", pa.float64()),
])  # fmt: skip
SUMS = pa.schema([
    ("of", pa.string()),
    ("name", pa.string()),
    ("state", pa.string()),
    ("ids", pa.int64()),
    ("doubt", pa.float64()),
    ("error_max", pa.float64()),
])  # fmt: skip
SUMMED = ["origin_name", "state", "received_by", "last_seen", "error", "doubt"]  # columns that sums are made of
_ADDED = ("error", "doubt")
ORIGIN, RECEIVER, LAST_SEEN = "origin", "receiver", "last seen"
_HEX_ID = "^[0-9a-fA-F]{32}$"
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".txt": "text", ".ids": "text"}
_PACKED = {".gz", ".bz2", ".zst"}
_LAKE = Path("_clarion", "lake.json")
STDIN = "-"  # the place that is standard input


class IdFiles(NamedTuple):
    """Where ids are: `paths` of one kind; a lake, a Parquet or CSV file with a column of them, or a text with lines.
    Files with nothing in them are not among the paths."""

    kind: str
    paths: list[str]


def find_ids(place: str) -> IdFiles:
    """Return the files with ids at a place, which is a file, a folder of files of one kind, a lake, or `-` for lines
    on standard input."""
    if place == STDIN:
        return IdFiles("text", [place])
    if "://" in place:  # a folder far away is one of Parquet
        return IdFiles(_kind_of(Path(place)) or "parquet", [place])
    path = Path(place)
    if (path / _LAKE).is_file():
        return IdFiles("lake", [place])
    if path.is_file():
        return IdFiles(kind := _kind_of(path) or "text", _not_empty(kind, [place]))
    inside = (one for one in path.rglob("*") if one.is_file())
    files = sorted(one for one in inside if not any(name[0] in "._" for name in one.relative_to(path).parts))
    kinds = {_kind_of(one) or "text" for one in files}
    if len(kinds) == 1:
        return IdFiles(kind := kinds.pop(), _not_empty(kind, map(str, files)))
    if not path.exists():
        raise InvalidRequest(f"{place} is not there: name a file or folder with message ids")
    what = "no files" if not kinds else f"files of several kinds ({', '.join(sorted(kinds))})"
    raise InvalidRequest(f"{place} has {what}: name Parquet, CSV or text files with message ids, or a lake")


def _not_empty(kind: str, paths: Iterable[str]) -> list[str]:
    """Return the files that have something in them: an empty list of ids is one, but an empty Parquet file is none."""
    return [path for path in paths if kind == "parquet" or Path(path).stat().st_size]


def _kind_of(path: Path) -> str | None:
    if path.suffix in _PACKED:
        path = path.with_suffix("")
    return _SUFFIXES.get(path.suffix.lower())


def to_rows(index: HistoryIndex, ids: Any) -> Any:
    """Return what became of messages, whose ids are 16 bytes or 32 hexadecimal digits each, as a record batch."""
    texts, good, raw = _parsed(ids)
    found = index.judge(read_ids(raw))
    # One row more, without anything, for all that are no ids.
    states = np.concatenate([found.states, np.array([ALL_STATES.index(NO_ID)], dtype=np.int8)])
    rows = np.full(len(good), len(found.states))
    rows[good] = found.rows
    names = dict(zip(index.broker_ids, index.brokers, strict=True))
    origins, origin_of = np.unique(found.origins, return_inverse=True)
    hexadecimal = [f"{origin:08x}" for origin in origins.tolist()]
    named = [names.get(origin, text) for origin, text in zip(origins.tolist(), hexadecimal, strict=True)]
    place = pa.array(np.append(origin_of, len(origins))[rows])
    return pa.record_batch(
        [
            texts,
            pa.array([*hexadecimal, ""]).take(place),
            pa.array([*named, ""]).take(place),
            pa.array(ALL_STATES).take(pa.array(states[rows])),
            _lists(found.carried, index.brokers, rows),
            _lists(found.received, index.receivers, rows),
            _lists(found.last_seen, index.brokers, rows),
            pa.array(np.append(found.errors, 0.0)[rows]),
            pa.array(np.append(found.doubts, 0.0)[rows]),
        ],
        schema=SCHEMA,
    )  # fmt: skip


def _parsed(ids: Any) -> tuple[Any, Any, bytes]:
    """Return ids as they are told, which of them are ids, and the bytes of these."""
    if pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type):
        texts = pc.utf8_lower(pc.utf8_trim_whitespace(ids)).cast(pa.string())
        good = pc.fill_null(pc.match_substring_regex(texts, _HEX_ID), False)
        return texts, np.asarray(good), bytes.fromhex(_joined(texts.filter(good)).decode())
    if not (
        pa.types.is_binary(ids.type) or pa.types.is_large_binary(ids.type) or pa.types.is_fixed_size_binary(ids.type)
    ):
        raise InvalidRequest(f"message ids are binary or text, not {ids.type}: name another column")
    packed = ids.cast(pa.binary())
    good = np.asarray(pc.fill_null(pc.equal(pc.binary_length(packed), 16), False))
    raw = _joined(packed.filter(pa.array(good)))
    if good.all():
        offsets = np.arange(0, 32 * len(good) + 1, 32, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(raw.hex().encode())]
        return pa.Array.from_buffers(pa.string(), len(good), buffers), good, raw
    return pa.array([None if one is None else one.hex() for one in packed.to_pylist()], pa.string()), good, raw


def _joined(values: Any) -> bytes:
    """Return texts or bytes, of which none is null, one after the other."""
    _, offsets, data = values.buffers()
    if not len(values):
        return b""
    ends = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    return bytes(data[int(ends[0]) : int(ends[-1])])


def _lists(lists: Lists, names: list[str], rows: Any) -> Any:
    offsets = np.append(lists.offsets, lists.offsets[-1]).astype(np.int32)
    values = pa.array(names, pa.string()).take(pa.array(lists.values))
    return pa.ListArray.from_arrays(pa.array(offsets), values).take(pa.array(rows))


def gathered(batches: Iterable[Any]) -> Iterator[Any]:
    """Return the first column of record batches, as many of them together as are looked for at once."""
    some: list[Any] = []
    for batch in batches:
        if batch.num_rows:
            some.append(batch.column(0))
        if sum(map(len, some)) >= IDS_AT_ONCE:
            yield pa.concat_arrays(some)
            some = []
    if some:
        yield pa.concat_arrays(some)


def sums_of(batches: Iterable[Any]) -> Any:
    """Return the sums of rows as a table: by origin and state, by receiver, and by where messages were last seen."""
    found = []
    for batch in batches:
        rows = pa.table({name: batch.column(name) for name in SUMMED})
        by_state = rows.select(["origin_name", "state", *_ADDED]).rename_columns(["name", "state", *_ADDED])
        found.append(_summed(ORIGIN, by_state))
        for of, column in ((RECEIVER, "received_by"), (LAST_SEEN, "last_seen")):
            lists = rows.column(column).combine_chunks()
            if isinstance(lists, pa.ChunkedArray):
                lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], pa.list_(pa.string()))
            parents = pc.list_parent_indices(lists)
            each = {
                "name": pc.list_flatten(lists),
                **{name: rows.column(name).take(parents) for name in ("state", *_ADDED)},
            }
            found.append(_summed(of, pa.table(each)))
    return add_sums(pa.concat_tables([SUMS.empty_table(), *found]))


def _summed(of: str, rows: Any) -> Any:
    told = rows.group_by(["name", "state"]).aggregate([("error", "count"), ("doubt", "sum"), ("error", "max")])
    table = told.append_column("of", pa.array([of] * len(told), pa.string()))
    return (
        table.select(["of", "name", "state", "error_count", "doubt_sum", "error_max"])
        .rename_columns(SUMS.names)
        .cast(SUMS)
    )


def add_sums(sums: Any) -> Any:
    """Return one row for each name and state."""
    told = sums.group_by(["of", "name", "state"]).aggregate([("ids", "sum"), ("doubt", "sum"), ("error_max", "max")])
    return (
        told.select(["of", "name", "state", "ids_sum", "doubt_sum", "error_max_max"])
        .rename_columns(SUMS.names)
        .cast(SUMS)
    )


class Audited(NamedTuple):
    """What an audit found, in sums."""

    ids: int
    states: dict[str, int]
    wrong_expected: float  # brokers and receivers that are named of a message that they never had, in all
    error_max: float  # of one id
    origins: list[dict[str, Any]]
    receivers: dict[str, int]
    stopped_at: dict[str, int]


def audited(sums: Any) -> Audited:
    """Return the sums in order: what is most frequent comes first."""
    rows = sums.to_pylist()
    states = dict.fromkeys(ALL_STATES, 0)
    origins: dict[str, dict[str, int]] = {}
    named: dict[str, dict[str, int]] = {RECEIVER: {}, LAST_SEEN: {}}
    for row in rows:
        if row["of"] != ORIGIN:
            named[row["of"]][row["name"]] = named[row["of"]].get(row["name"], 0) + row["ids"]
            continue
        states[row["state"]] += row["ids"]
        if row["state"] != NO_ID:
            told = origins.setdefault(row["name"], dict.fromkeys(STATES, 0))
            told[row["state"]] += row["ids"]
    by_origin = [row for row in rows if row["of"] == ORIGIN]
    listed = [{"origin": name, "ids": sum(told.values()), **told} for name, told in origins.items()]
    return Audited(
        sum(states.values()),
        states,
        sum((row["doubt"] for row in by_origin), 0.0),
        max((row["error_max"] for row in by_origin), default=0.0),
        sorted(listed, key=lambda row: (-row["ids"], row["origin"])),
        *(dict(sorted(named[of].items(), key=lambda one: (-one[1], one[0]))) for of in (RECEIVER, LAST_SEEN)),
    )


def audit_here(
    files: IdFiles,
    index: HistoryIndex,
    out: str | Path | None = None,
    *,
    column: str = "id",
    on_progress: Callable[[int], None] = lambda _: None,
) -> Audited:
    """Return what became of messages, without Spark; with `out`, a row for each goes to a Parquet file in a new folder,
    which is written whole or not at all."""
    if out is None:
        return _audit_to(lambda _: None, files, index, column, on_progress)
    check_out(out)
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PermanentError(f"{folder} cannot be made: {error.strerror or error}; choose another") from error
    with (
        written_whole(folder / "audit.parquet") as draft,
        parquet.ParquetWriter(draft, SCHEMA, compression="zstd") as writer,
    ):
        return _audit_to(writer.write_batch, files, index, column, on_progress)


def check_out(out: str | Path) -> None:
    """Refuse a folder that has something in it: what is there would not be of this audit."""
    folder = Path(out)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise PermanentError(f"{folder} is there already, and stays as it is; choose a new folder for the audit")


def _audit_to(
    write: Callable[[Any], None], files: IdFiles, index: HistoryIndex, column: str, on_progress: Callable[[int], None]
) -> Audited:
    sums, done = SUMS.empty_table(), 0
    for ids in gathered(_id_batches(files, column)):
        rows = to_rows(index, ids)
        write(rows)
        sums = add_sums(pa.concat_tables([sums, sums_of([rows])]))
        done += len(rows)
        on_progress(done)
    return audited(sums)


def _id_batches(files: IdFiles, column: str) -> Iterator[Any]:
    """Return record batches of one column."""
    if not files.paths:
        return
    if files.kind == "text" and len(files.paths) > 1:  # of which each may have no lines
        for path in files.paths:
            yield from _id_batches(IdFiles("text", [path]), column)
        return
    if files.paths == [STDIN]:
        yield from _standard_input(column)
        return
    read, lines = csv.ReadOptions(column_names=[column]), csv.ParseOptions(delimiter="\x01", quote_char=False)
    try:
        if files.kind == "text":
            kind: Any = dataset.CsvFileFormat(lines, read_options=read)
        else:
            kind = dataset.CsvFileFormat() if files.kind == "csv" else dataset.ParquetFileFormat()
        found = dataset.dataset(files.paths, format=kind, partitioning=None)
        if column not in found.schema.names:
            raise no_column(column, found.schema.names, files.paths[0])
        if files.kind != "parquet":  # thirty-two digits may look like a number
            found = found.replace_schema(pa.schema([(column, pa.string())]))
        yield from found.to_batches(columns=[column])
    except (pa.ArrowInvalid, OSError) as error:
        if files.kind == "text" and "Empty CSV file" in str(error):  # lines, and nothing in them
            return
        raise InvalidRequest(f"{files.paths[0]} cannot be read as {files.kind}: {error}") from error


def _standard_input(column: str) -> Iterator[Any]:
    """Return its lines. Arrow's reader leaves a thread behind where there is nothing to read, and at the end of the
    process that may abort it."""
    if sys.stdin is None:
        raise InvalidRequest("standard input is closed: there is nothing to read message ids from")
    while lines := sys.stdin.buffer.readlines(_LINES_BYTES):
        ids = [text for line in lines if (text := line.rstrip(b"\r\n").decode(errors="replace"))]
        yield pa.record_batch([pa.array(ids, pa.string())], [column])


def no_column(column: str, names: list[str], place: str) -> InvalidRequest:
    """Return the error where ids are not in the column that was named."""
    return InvalidRequest(f"{place} has no column {column}; it has {', '.join(names)}. Name the one with the ids")
