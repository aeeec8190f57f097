"""How a lake names its files, and which of them count. Pure: names in, names out.

    LAKE/topic=<name>/day=2026-11-16/<first offset>-<last offset>.parquet     rows, as Spark's partitionBy lays them
    LAKE/_clarion/…                                                           our own notes, which Spark does not see

A file's range of offsets may have gaps. Within a topic and day no two files' ranges overlap, but while small files are
being merged: then the larger one, which has all rows of those inside its range, is the one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from clarion.model.errors import InvalidRequest, StoredDataCorrupt

NOTES = "_clarion"
INTENTS = f"{NOTES}/intents"
STAGING = f"{NOTES}/staging"
SUFFIX = ".parquet"
_FOLDER_BYTES_MAX = 240  # nearly all file systems have 255 for a name, and some of ours end in more
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # the folder of rows that have none
_NAME = re.compile(r"topic=(?P<topic>[^/]+)/day=(?P<day>\d{4}-\d\d-\d\d)/(?P<first>\d{20})-(?P<last>\d{20})\.parquet")
_STAGED = re.compile(r"topic=(?P<topic>[^/]+)/day=(?P<day>\d{4}-\d\d-\d\d)/[^/]+")
_ESCAPED = re.compile(r"""[\x01-\x1f"#%'*/:=?\[\\\]^{\x7f]""")  # as Spark's ExternalCatalogUtils has it
_ESCAPE = re.compile(r"%([0-9a-fA-F]{2})")


class LakeFile(NamedTuple):
    """One file of rows; `first` and `last` are offsets that it has."""

    topic: str  # in the text form of names
    day: str  # of the commit times, in UTC
    first: int
    last: int
    size_bytes: int = 0

    @property
    def path(self) -> str:
        """Where it lies below the lake."""
        return f"{day_folder(self.topic, self.day)}/{self.first:020d}-{self.last:020d}{SUFFIX}"

    @property
    def place(self) -> tuple[str, str]:
        """The topic and the day."""
        return self.topic, self.day


def escape(text: str) -> str:
    """Return a partition's value as Spark writes it in a path."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def unescape(text: str) -> str:
    """Read a partition's value from a path."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def topic_folder(topic: str) -> str:
    """Return the folder of a topic; a name that no folder can have is an InvalidRequest."""
    folder = f"topic={escape(topic)}"
    if topic == _NO_VALUE:
        raise InvalidRequest(f"topic {topic} cannot be kept in a lake: everything that reads Parquet takes it for null")
    if len(folder.encode()) > _FOLDER_BYTES_MAX:
        raise InvalidRequest(
            f"topic {topic} cannot be kept in a lake: as the name of a folder it has {len(folder.encode())} bytes, and"
            f" {_FOLDER_BYTES_MAX} is the most; nothing of it was written"
        )
    return folder


def day_folder(topic: str, day: str) -> str:
    """Return the folder of a topic's day."""
    return f"{topic_folder(topic)}/day={day}"


def read_path(path: str, size_bytes: int = 0) -> LakeFile:
    """Read the path of a file below the lake; one that is named otherwise is an InvalidRequest."""
    match = _NAME.fullmatch(path)
    if match is None or int(match["first"]) > int(match["last"]):
        raise InvalidRequest(
            f"{path} is not named as the files of a lake are; move it elsewhere, it would be read twice or not at all"
        )
    return LakeFile(unescape(match["topic"]), match["day"], int(match["first"]), int(match["last"]), size_bytes)


def place_of(staged_path: str) -> tuple[str, str] | None:
    """Return topic and day of a file that Spark has just written; None for Spark's own notes."""
    match = _STAGED.fullmatch(staged_path)
    return None if match is None else (unescape(match["topic"]), match["day"])


def is_rows(path: str) -> bool:
    """Return whether a path is that of a file with rows; Spark hides names that begin with _ or a dot."""
    name = path.rpartition("/")[2]
    return name.endswith(SUFFIX) and not name.startswith(("_", "."))


class CurrentFiles(NamedTuple):
    """Files that hold the lake's rows, in order of topic, day and offset; and those merged into one of them."""

    files: list[LakeFile]
    superseded: list[LakeFile]


def current_files(files: Iterable[LakeFile]) -> CurrentFiles:
    """Return the files that count apart from those whose rows a larger one has, too.

    Two that overlap in any other way are no work of ours: StoredDataCorrupt, with their names.
    """
    counted: list[LakeFile] = []
    superseded: list[LakeFile] = []
    ordered = sorted(files, key=lambda one: (one.topic, one.day, one.first, -one.last))
    for _, group in groupby(ordered, key=lambda one: one.place):
        widest: LakeFile | None = None
        for file in group:
            if widest is None or file.first > widest.last:
                counted.append(file)
                widest = file
            elif file.last <= widest.last:
                superseded.append(file)
            else:
                raise StoredDataCorrupt(
                    f"{file.path} and {widest.path} have offsets in common, but neither has all of the other's;"
                    " nothing was changed. Look which one is right, and move the other away"
                )
    return CurrentFiles(counted, superseded)


def ends(files: Iterable[LakeFile]) -> dict[str, int]:
    """Return the last offset that the lake has of each topic: all that an archive saw up to it is there."""
    found: dict[str, int] = {}
    for file in files:
        found[file.topic] = max(found.get(file.topic, -1), file.last)
    return found


class Staged(NamedTuple):
    """A file that Spark has written beside the lake, and what its footer says."""

    path: str  # below the lake
    file: LakeFile  # what it will be
    rows: int


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A staged file and the path it is to have; both below the lake."""

    source: str
    target: str


class Intent(msgspec.Struct, frozen=True):
    """A micro-batch that is decided: once this is written, all of its files will be in the lake."""

    moves: tuple[Move, ...]


class StagedFiles(NamedTuple):
    """Staged files whose rows the lake does not have; and topics of which it has some of the rows staged."""

    fresh: list[Staged]
    mixed: set[str]  # topics of files that have rows of both kinds


def split_staged(staged: Iterable[Staged], lake_ends: Mapping[str, int]) -> StagedFiles:
    """Tell what is new from what the lake has already: rows up to a topic's end are there, since archives go in
    order of offsets and add a micro-batch whole or not at all."""
    found = StagedFiles([], set())
    for one in staged:
        end = lake_ends.get(one.file.topic, -1)
        if one.file.first > end:
            found.fresh.append(one)
        elif one.file.last > end:
            found.mixed.add(one.file.topic)
    return found


def plan_moves(staged: Iterable[Staged], present: Iterable[LakeFile]) -> Intent:
    """Return the moves that add staged files to the lake, in order of offsets.

    Where a file there, or another staged one, has offsets of the same range, it is an InvalidRequest that names it.
    """
    staged = sorted(staged, key=lambda one: one.file[:3])
    files = [one.file for one in staged]
    places = {file.place for file in files}
    around = sorted([file for file in present if file.place in places] + files, key=lambda one: one[:3])
    for before, after in pairwise(around):
        if before.place == after.place and after.first <= before.last:
            raise InvalidRequest(
                f"{before.path} and {after.path} have offsets in common; nothing was added. Is another archive"
                " of this topic running into the same lake? Only one may, at a time"
            )
    return Intent(tuple(Move(one.path, one.file.path) for one in staged))


def plan_merges(files: Iterable[LakeFile], *, target_bytes: int, thorough: bool) -> list[list[LakeFile]]:
    """Return the groups of files to merge, of at most `target_bytes` each: neighbours of one topic and day.

    Unless `thorough`, a topic's last day, which still grows, is merged as counters carry: a file waits until those
    after it are as large together, so that a row is rewritten a few times (the logarithm of the target over the
    smallest file), not once for each file that comes.
    """
    merges: list[list[LakeFile]] = []
    ordered = sorted(files, key=lambda one: one[:3])
    last_days = {file.topic: file.day for file in ordered}
    for (topic, day), group in groupby(ordered, key=lambda one: one.place):
        wholly = thorough or day != last_days[topic]
        for run in _runs(list(group), target_bytes):
            worth = run if wholly else _worth_merging(run)
            if len(worth) > 1:
                merges.append(worth)
    return merges


def _runs(files: Sequence[LakeFile], target_bytes: int) -> Iterable[list[LakeFile]]:
    """Return neighbours that fit the target together."""
    run: list[LakeFile] = []
    size_bytes = 0
    for file in files:
        if run and size_bytes + file.size_bytes > target_bytes:
            yield run
            run, size_bytes = [], 0
        run.append(file)
        size_bytes += file.size_bytes
    if run:
        yield run


def _worth_merging(run: list[LakeFile]) -> list[LakeFile]:
    """Leave out files at the beginning that are larger than all that follow."""
    rest = sum(file.size_bytes for file in run)
    for place, file in enumerate(run):
        rest -= file.size_bytes
        if file.size_bytes <= rest:
            return run[place:]
    return []
