"""What becomes of files: which of a micro-batch are moved into the lake, and which small ones are merged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

import msgspec

from clarion.model.errors import InvalidRequest
from clarion.pipeline.lake.layout import LakeFile


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


class Sifted(NamedTuple):
    """Staged files whose rows the lake does not have; and topics of which it has some of the rows staged."""

    fresh: list[Staged]
    known: list[Staged]  # the lake has all of their rows
    mixed: set[str]  # topics of files that have rows of both kinds


def sift(staged: Iterable[Staged], lake_ends: Mapping[str, int]) -> Sifted:
    """Tell what is new from what the lake has already: rows up to a topic's end are there, since archives go in
    order of offsets and add a micro-batch whole or not at all."""
    found = Sifted([], [], set())
    for one in staged:
        end = lake_ends.get(one.file.topic, -1)
        if one.file.first > end:
            found.fresh.append(one)
        elif one.file.last <= end:
            found.known.append(one)
        else:
            found.mixed.add(one.file.topic)
    return found


def plan_moves(staged: Iterable[Staged], present: Iterable[LakeFile]) -> Intent:
    """Give the moves that add staged files to the lake, in order of offsets.

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
    """Give the groups of files to merge, of at most `target_bytes` each: neighbours of one topic and day.

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
    """Give neighbours that fit the target together."""
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
