"""A lake's folder, on this machine's disk, HDFS or an object store: its files, and what it remembers of itself."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from pyarrow import fs, parquet

from clarion.model.errors import InvalidRequest, PermanentError, StoredDataCorrupt
from clarion.pipeline.lake.lake_layout import (
    INTENTS,
    NOTES,
    Intent,
    LakeFile,
    Move,
    Staged,
    escape,
    is_rows,
    place_of,
    read_path,
    topic_folder,
)

if TYPE_CHECKING:
    from pathlib import Path

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")
_GLOBS = re.compile(r"[*?\[\]{}]")
_FOOTERS_AT_ONCE = 8
_FORMAT = 1
_LAKE = f"{NOTES}/lake.json"
_TOPICS = f"{NOTES}/topics"
_CHECKPOINTS = f"{NOTES}/checkpoints"
Note = TypeVar("Note", bound=msgspec.Struct)


class LakeFolder:
    """The folder at `location`: a path on this machine, or a URL that both Spark and Arrow know (hdfs://, s3a://…).

    Paths are below the lake, as `layout` gives them. On a cluster, all executors must see the same folder.
    """

    def __init__(self, location: str | Path) -> None:
        text = os.fspath(location).rstrip("/") or "/"
        if _GLOBS.search(text):
            raise InvalidRequest(f"a lake cannot lie at {text}: Spark takes * ? [ ] {{ }} in a path for patterns")
        if text.startswith("file:"):
            text = "/" + text.removeprefix("file:").lstrip("/")
        if _SCHEME.match(text):
            self.location = re.sub(r"^s3://", "s3a://", text)  # Spark's name of it, and below Arrow's
            try:
                self._files, self._root = fs.FileSystem.from_uri(re.sub(r"^s3a://", "s3://", text))
            except (OSError, ValueError) as error:
                raise PermanentError(f"the lake at {text} cannot be opened: {error}") from error
        else:
            self._files, self._root = fs.LocalFileSystem(), os.path.abspath(text)
            self.location = f"file://{self._root}"

    def __str__(self) -> str:
        return self.location.removeprefix("file://")

    def spark_path(self, path: str) -> str:
        """Return a path as Spark takes it."""
        return f"{self.location}/{path}"

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder at the path."""
        return bool(self._files.get_file_info(self._at(path)).type != fs.FileType.NotFound)

    # Files of rows.

    def files(self, topics: Collection[str] | None = None) -> list[LakeFile]:
        """Return the files of rows of all topics, or of some."""
        if topics is None:
            folders = [path for path in self.names("") if path.startswith("topic=")]
        else:
            folders = [topic_folder(topic) for topic in topics]
        return [file for folder in folders for file in self.files_below(folder)]

    def files_below(self, folder: str) -> list[LakeFile]:
        """Return the files of rows in the folder of a topic, or of a day of it."""
        return [read_path(path, size) for path, size in self._rows_below(folder)]

    def staged(self, folder: str) -> list[Staged]:
        """Return what Spark wrote into a folder, with what the footers say; files without rows are left out."""
        found = [
            (path, size, place)
            for path, size in self._rows_below(folder)
            if (place := place_of(path.removeprefix(f"{folder}/"))) is not None
        ]
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            footers = pool.map(self.footer, [path for path, _, _ in found])
            return [
                Staged(path, LakeFile(*place, *offset_range(footer, path), size), footer.num_rows)
                for (path, size, place), footer in zip(found, footers, strict=True)
                if footer.num_rows
            ]

    def footer(self, path: str) -> Any:
        """Return the metadata of a Parquet file."""
        with self._files.open_input_file(self._at(path)) as file:
            return parquet.read_metadata(file)

    def open_rows(self, path: str) -> Any:
        """Open a file of rows, to be used with `with`."""
        return self._files.open_input_file(self._at(path))

    def create_rows(self, path: str) -> Any:
        """Make a file of rows, to be used with `with`."""
        self._files.create_dir(self._at(path.rpartition("/")[0]))
        return self._files.open_output_stream(self._at(path))

    # Changes.

    def move(self, moves: Iterable[Move]) -> Iterator[bool]:
        """Move files, one at each step, and tell whether it was there; one that is not may have been moved before."""
        folders = set()
        for move in moves:
            folder = move.target.rpartition("/")[0]
            if folder not in folders:
                self._files.create_dir(self._at(folder))
                folders.add(folder)
            try:
                self._files.move(self._at(move.source), self._at(move.target))
            except FileNotFoundError:
                if self.exists(move.source):
                    raise
                yield False
            else:
                yield True

    def delete(self, path: str) -> None:
        """Delete a file; one that is gone is fine."""
        with suppress(FileNotFoundError):
            self._files.delete_file(self._at(path))

    def delete_folder(self, path: str) -> None:
        """Delete a folder and all below it; one that is gone is fine."""
        if self.exists(path):
            self._files.delete_dir(self._at(path))

    def delete_old(self, folder: str, before_unix_s: float) -> None:
        """Delete what lies in a folder and was changed last before a time."""
        for info in self._list(folder, recursive=False):
            if info.mtime is not None and info.mtime.timestamp() < before_unix_s:
                delete = self._files.delete_dir if info.type == fs.FileType.Directory else self._files.delete_file
                delete(info.path)

    # Notes.

    def names(self, folder: str) -> list[str]:
        """Return the paths of what lies in a folder, in order."""
        return sorted(self._relative(info.path) for info in self._list(folder, recursive=False))

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a note; None where there is none."""
        try:
            with self._files.open_input_stream(self._at(path)) as file:
                return bytes(file.read())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a note that is not there yet: whole or not at all."""
        folder, _, name = path.rpartition("/")
        self._files.create_dir(self._at(folder))
        hidden = self._at(f"{folder}/.{name}.tmp")
        with self._files.open_output_stream(hidden) as file:
            file.write(data)
        self._files.move(hidden, self._at(path))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _list(self, folder: str, *, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(self._at(folder), allow_not_found=True, recursive=recursive)
        return list(self._files.get_file_info(selector))

    def _rows_below(self, folder: str) -> list[tuple[str, int]]:
        listed = [info for info in self._list(folder, recursive=True) if info.type == fs.FileType.File]
        return [(self._relative(info.path), info.size) for info in listed if is_rows(info.path)]

    def _relative(self, path: str) -> str:
        return str(path)[len(self._root) :].lstrip("/")


def offset_range(footer: Any, path: str) -> tuple[int, int]:
    """Return the first and the last offset that a Parquet file has, from its footer; (0, 0) where it has no rows."""
    found = offset_ranges(footer, path)
    return (min(first for first, _ in found), max(last for _, last in found)) if found else (0, 0)


def offset_ranges(footer: Any, path: str) -> list[tuple[int, int]]:
    """Return the first and the last offset of each row group."""
    place = next((at for at in range(footer.num_columns) if footer.schema.column(at).name == "offset"), None)
    found = []
    for group in range(footer.num_row_groups):
        statistics = None if place is None else footer.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            raise StoredDataCorrupt(f"{path} does not tell which offsets it has, and was left as it is")
        found.append((statistics.min, statistics.max))
    return found


class Origin(msgspec.Struct, frozen=True):
    """Which topic of which store the rows are of."""

    store: str  # its UUID, hexadecimal
    timeline: int
    number: int  # of the topic; no other ever has it


class _LakeNote(msgspec.Struct):
    format: int


def check_format(lake: LakeFolder, *, make: bool = False) -> None:
    """Check that there is a lake that we can read; with `make`, begin one where there is none."""
    told = read_note(lake, _LAKE, _LakeNote)
    if told is None and make:
        try:
            lake.write(_LAKE, msgspec.json.encode(_LakeNote(_FORMAT)))
        except OSError as error:
            raise PermanentError(f"no lake can be made at {lake}: {error}") from error
    elif told is None:
        raise InvalidRequest(f"there is no lake at {lake}; `archive` makes one")
    elif told.format != _FORMAT:
        raise InvalidRequest(
            f"the lake at {lake} has format {told.format}, and this version knows {_FORMAT}; upgrade it"
        )


def remember(lake: LakeFolder, topic: str, origin: Origin) -> None:
    """Note where a topic's rows come from, the first time; InvalidRequest where the lake has others of that name."""
    path = f"{_TOPICS}/{escape(topic)}.json"
    told = read_note(lake, path, Origin)
    if told is None:
        lake.write(path, msgspec.json.encode(origin))
        return
    problem = difference(topic, told, origin)
    if problem is not None:
        raise InvalidRequest(
            f"the lake at {lake} has rows of {topic} already, and {problem}. Nothing was added. Archive into another"
            f" lake, or move {topic_folder(topic)} and {path} out of this one, and begin with a new checkpoint"
        )


def remember_checkpoint(lake: LakeFolder, owner: str, place: str, *, begun: bool) -> None:
    """Note that a checkpoint elsewhere is this lake's; InvalidRequest where it was `begun` with another one, whose rows
    would be missing in this."""
    path = f"{_CHECKPOINTS}/{owner}.json"
    if lake.read(path) is not None:
        return
    if begun:
        raise InvalidRequest(
            f"the checkpoint at {place} is not of the lake at {lake}, which does not have all rows before it. Nothing"
            " was added. Leave the checkpoint out, and the archive goes on where the lake ends, or name a new one"
        )
    lake.write(path, b"{}")


def difference(topic: str, kept: Origin, found: Origin) -> str | None:
    """Say in words how two origins differ; None where they do not."""
    if kept.store != found.store:
        return f"they are of store {kept.store}, while the broker now has store {found.store}"
    if kept.timeline != found.timeline:
        return (
            f"they are of timeline {kept.timeline} of the store, while the broker is now on {found.timeline}: it was"
            " restored from a backup, and offsets may be of other messages since"
        )
    if kept.number != found.number:
        return f"{topic} was deleted and made anew at the broker since then"
    return None


def read_intents(lake: LakeFolder) -> dict[str, Intent]:
    """Return the micro-batches that are decided, and may not be in the lake wholly, by the path of their notes."""
    told = {path: read_note(lake, path, Intent) for path in lake.names(INTENTS) if path.endswith(".json")}
    return {path: intent for path, intent in told.items() if intent is not None}


def read_note(lake: LakeFolder, path: str, kind: type[Note]) -> Note | None:
    """Return what a note says; None where there is none."""
    told = lake.read(path)
    try:
        return None if told is None else msgspec.json.decode(told, type=kind)
    except msgspec.MsgspecError as error:
        raise StoredDataCorrupt(f"{lake}/{path} cannot be read: {error}; nothing was changed") from error
