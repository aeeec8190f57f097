"""Histories as Parquet, for audits in bulk: a file for each broker, a row for each segment.

A file appears whole or not at all. Its metadata say what the histories are of; who audits needs nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from clarion.model.errors import InvalidRequest, PermanentError
from clarion.model.ids import STAMP_LIMIT
from clarion.model.names import from_text, to_text

VERSION = 1
PUBLISHER, ROUTING, SUBSCRIBER, SKIPPED = KINDS = ("publisher", "routing", "subscriber", "skipped")
KEY_BYTES, PART_BYTES = 16, 24  # who, stamp; and of a part: who, stamp, first, stop
_ABOUT = b"clarion.histories"
_GROUP_BYTES = 8 * 2**20  # of rows that are written together: what an export has in memory
_GROUP_ROWS = 4096
_TEXTS = ["broker", "broker_name", "kind", "origin", "via", "subscriber"]
_NUMBERS = ["first", "last", "count", "bits", "hashes"]
_PACKED = ["salt", "filter", "exact"]


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What an export is of."""

    broker: int
    name: str
    strategy: str
    efpp: float
    begins: int  # a stamp: of this or later ones, all that went by before `ends` is here
    ends: int = STAMP_LIMIT  # what has a later stamp may have come after the export
    gaps: tuple[tuple[int, int], ...] = ()  # stamps of times in which the broker did not track
    version: int = VERSION


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A filter of a history with the range of its stamps, or keys that are kept exactly, or both."""

    first: int  # stamps of the keys in the filter; beyond `last` where there are none
    last: int
    count: int
    bits: int
    hashes: int
    filter: bytes
    exact: bytes = b""  # keys, 16 bytes each
    salt: int = 0  # of the filter: exclusive or with `who`


class HistoryPart(NamedTuple):
    """A segment, and the history it is of."""

    kind: str  # publisher: put here; routing: came here; subscriber: received by one of this broker's
    origin: int  # the broker in the ids of its messages
    via: int  # the neighbour that they came from; 0 for none
    subscriber: bytes  # b"" for none
    segment: Segment
    parts: bytes = b""  # of batches, exactly: who and stamp (u64), the first counter and where it stops (u32)


class Export(NamedTuple):
    """An export in memory."""

    about: About
    parts: list[HistoryPart]


class Written(NamedTuple):
    """What was written."""

    path: Path
    about: About
    histories: int
    segments: int
    keys: int  # in filters
    exact_keys: int  # beside them
    size_bytes: int
    in_place: bool  # of an export of the same broker that was there before


def write_export(folder: str | Path, about: About, parts: Iterable[HistoryPart]) -> Written:
    """Write a broker's histories into a folder, which is made, in place of what it exported there before.

    Parts are taken as they come, and no more than a few megabytes of them are in memory. What was there stays where
    this fails.
    """
    pa, parquet = _arrow("exporting histories")
    folder = Path(folder)
    path = folder / f"{about.broker:08x}.parquet"
    draft = folder / f".{path.name}.{os.getpid()}"  # readers pass over names that begin with a dot
    schema = _schema(pa).with_metadata({_ABOUT: msgspec.json.encode(about)})
    segments = keys = exact_keys = 0
    histories: set[tuple[object, ...]] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("wb") as file:
                with parquet.ParquetWriter(
                    file, schema, compression="zstd", use_dictionary=_TEXTS, write_statistics=_NUMBERS
                ) as writer:  # fmt: skip
                    for group in _groups(parts):
                        writer.write_batch(_to_rows(pa, schema, about, group))
                        segments += len(group)
                        keys += sum(part.segment.count for part in group)
                        exact_keys += sum(len(part.segment.exact) // KEY_BYTES for part in group)
                        histories.update(part[:4] for part in group)
                file.flush()
                os.fsync(file.fileno())
            in_place, size_bytes = path.exists(), draft.stat().st_size
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise PermanentError(
            f"{path} cannot be written: {error.strerror or error}; what was there stays. Choose another folder"
        ) from error
    return Written(path, about, len(histories), segments, keys, exact_keys, size_bytes, in_place)


def read_exports(places: Iterable[str | Path]) -> list[Export]:
    """Return the exports in files, and in the folders that are named; InvalidRequest where there are none, or two of
    one broker: what both have would count twice. A file that is named twice is read once."""
    paths = {path.resolve(): path for place in places for path in export_files(place)}
    found = {path: read_export(path) for path in paths.values()}
    if not found:
        raise InvalidRequest("there are no histories: name a folder that they were exported to")
    read: dict[int, Path] = {}
    for path, export in found.items():
        about = export.about
        if (other := read.setdefault(about.broker, path)) != path:
            later = path if about.ends >= found[other].about.ends else other
            raise InvalidRequest(
                f"{other} and {path} are both of the broker {about.name} ({_hex(about.broker)}): an audit takes one"
                f" export of each. {later} is the later one; take the other out, or name the files one by one"
            )
    return list(found.values())


def export_files(place: str | Path) -> list[Path]:
    """Return the files of exports in a folder and those below it, or the one that is named."""
    place = Path(place)
    if place.is_file():
        return [place]
    inside = place.rglob("*.parquet")
    found = sorted(path for path in inside if not path.relative_to(place).as_posix().startswith((".", "_")))
    if not found:
        why = "has no Parquet files" if place.is_dir() else "is not there"
        raise InvalidRequest(f"{place} {why}: name a folder that histories were exported to")
    return found


def read_export(path: str | Path) -> Export:
    """Return one broker's export; InvalidRequest where the file is none, or of a version that is not known."""
    pa, parquet = _arrow("reading exported histories")
    try:
        with parquet.ParquetFile(path) as file:
            about = _read_about(path, file.schema_arrow.metadata)
            return Export(about, [part for batch in file.iter_batches(_GROUP_ROWS) for part in _from_rows(batch)])
    except pa.ArrowInvalid as error:
        raise InvalidRequest(f"{path} is no Parquet file: {error}") from error
    except OSError as error:
        raise PermanentError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_about(path: str | Path, metadata: dict[bytes, bytes] | None) -> About:
    packed = (metadata or {}).get(_ABOUT)
    if packed is None:
        raise InvalidRequest(f"{path} has no histories: it was not written by an export of them")
    try:
        about = msgspec.json.decode(packed, type=About)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"{path} says of itself what cannot be read ({error}); export the histories again"
        ) from error
    if about.version != VERSION:
        raise InvalidRequest(
            f"{path} has histories of version {about.version}, and version {VERSION} is read here:"
            " export them again, or use a Clarion of the version that wrote them"
        )
    return about


def _arrow(what: str) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PermanentError(f'{what} needs pyarrow: pip install "clarion[arrow]"') from None
    return pyarrow, parquet


def _schema(pa: Any) -> Any:
    texts = [(name, pa.string()) for name in _TEXTS]
    numbers = [(name, pa.int32() if name == "hashes" else pa.int64()) for name in _NUMBERS]
    salt = [("salt", pa.uint64())]
    packed = [(name, pa.binary()) for name in ("filter", "exact", "parts")]
    return pa.schema([pa.field(*each, nullable=False) for each in (*texts, *numbers, *salt, *packed)])


def _groups(parts: Iterable[HistoryPart]) -> Iterator[list[HistoryPart]]:
    group: list[HistoryPart] = []
    size_bytes = 0
    for part in parts:
        _check(part)
        group.append(part)
        size_bytes += len(part.segment.filter) + len(part.segment.exact) + len(part.parts)
        if size_bytes >= _GROUP_BYTES or len(group) >= _GROUP_ROWS:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _check(part: HistoryPart) -> None:
    assert part.kind in KINDS, part.kind
    assert len(part.segment.exact) % KEY_BYTES == 0
    assert len(part.parts) % PART_BYTES == 0


def _to_rows(pa: Any, schema: Any, about: About, group: Sequence[HistoryPart]) -> Any:
    segments = [part.segment for part in group]
    columns: dict[str, list[Any]] = {
        "broker": [_hex(about.broker)] * len(group),
        "broker_name": [about.name] * len(group),
        "kind": [part.kind for part in group],
        "origin": [_hex(part.origin) for part in group],
        "via": [_hex(part.via) if part.via else "" for part in group],
        "subscriber": [to_text(part.subscriber) if part.subscriber else "" for part in group],
        **{name: [getattr(segment, name) for segment in segments] for name in (*_NUMBERS, *_PACKED)},
        "parts": [part.parts for part in group],
    }
    return pa.record_batch([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _from_rows(batch: Any) -> Iterator[HistoryPart]:
    for row in batch.to_pylist():
        segment = Segment(**{name: row[name] for name in (*_NUMBERS, *_PACKED)})
        via = int(row["via"], 16) if row["via"] else 0
        subscriber = from_text(row["subscriber"]) if row["subscriber"] else b""
        yield HistoryPart(row["kind"], int(row["origin"], 16), via, subscriber, segment, row["parts"])


def _hex(broker: int) -> str:
    return f"{broker:08x}"
