"""Bugs that lose data in a power cut and in nothing else, to be planted in a store: each must be found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import apsw
import msgspec
import pytest

from clarion.store import folder, index, recovery, segments
from clarion.store.records import Bytes, Record
from clarion.store.segmented import SegmentedStore
from clarion.store.segments import Segments

BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


@contextmanager
def planted(bug: str | None) -> Iterator[None]:
    """Have this bug in the store, or none."""
    with pytest.MonkeyPatch.context() as patch:
        if bug:
            BUGS[bug](patch)
        yield


def _bug(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    BUGS[plant.__name__] = plant
    return plant


def _nothing(*_: Any, **__: Any) -> None:
    """What is left out."""


@_bug
def new_segments_name_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segments, "_sync_names", _nothing)


@_bug
def new_folders_name_not_synced(patch: pytest.MonkeyPatch) -> None:
    for module in (folder, segments):
        patch.setattr(module, "sync_folder", _nothing)


@_bug
def log_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segments, "sync", _nothing)


@_bug
def log_synced_after_the_ack(patch: pytest.MonkeyPatch) -> None:
    whole, write = Segments.sync, Segments.write

    def sync_then_write(self: Segments, buffers: Sequence[Bytes]) -> None:
        whole(self)
        write(self, buffers)

    patch.setattr(Segments, "sync", _nothing)
    patch.setattr(Segments, "write", sync_then_write)


@_bug
def first_record_of_a_segment_not_synced(patch: pytest.MonkeyPatch) -> None:
    whole = Segments.sync
    patch.setattr(Segments, "sync", lambda self: whole(self) if self.position else None)


@_bug
def moved_batches_not_synced(patch: pytest.MonkeyPatch) -> None:
    whole = SegmentedStore._move

    def move(self: SegmentedStore, *moved: Any) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Segments, "sync", _nothing)
            whole(self, *moved)

    patch.setattr(SegmentedStore, "_move", move)


@_bug
def index_checkpointed_before_the_log_is_synced(patch: pytest.MonkeyPatch) -> None:
    whole = SegmentedStore._apply

    def apply(self: SegmentedStore, records: Sequence[Record], *rest: Any) -> Any:
        rows = whole(self, records, *rest)
        self._writer.execute("COMMIT")
        self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._writer.execute("BEGIN")
        return rows

    patch.setattr(SegmentedStore, "_apply", apply)


@_bug
def index_never_synced(patch: pytest.MonkeyPatch) -> None:
    whole = index.connect

    def connect(*place: Any) -> apsw.Connection:
        connection = whole(*place)
        connection.pragma("synchronous", "off")
        return connection

    patch.setattr(index, "connect", connect)


@_bug
def segments_given_up_without_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    whole = SegmentedStore._checkpoint

    def checkpoint(self: SegmentedStore, mode: int) -> None:
        if mode == apsw.SQLITE_CHECKPOINT_PASSIVE:
            self._durable_segment = max(self._segment_rows.rows, default=0)
        else:
            whole(self, mode)

    patch.setattr(SegmentedStore, "_checkpoint", checkpoint)


@_bug
def answered_before_the_log_is_synced(patch: pytest.MonkeyPatch) -> None:
    append, catch_up, sync = SegmentedStore._append, SegmentedStore._catch_up, Segments.sync

    def append_alone(self: SegmentedStore, *what: Any) -> None:
        with pytest.MonkeyPatch.context() as meanwhile:
            meanwhile.setattr(Segments, "sync", _nothing)
            append(self, *what)

    def sync_then_catch_up(self: SegmentedStore, *rest: Any) -> None:
        if self.is_ahead:
            sync(self._segments)
        catch_up(self, *rest)

    patch.setattr(SegmentedStore, "_append", append_alone)
    patch.setattr(SegmentedStore, "_catch_up", sync_then_catch_up)


@_bug
def index_lacks_answers_that_were_given_before(patch: pytest.MonkeyPatch) -> None:
    whole = SegmentedStore._apply

    def apply(self: SegmentedStore, records: Sequence[Record], *rest: Any) -> Any:
        entries = [msgspec.structs.replace(record.entry, answers=[]) for record in records]
        lacking = [record._replace(entry=entry) for record, entry in zip(records, entries, strict=True)]
        return whole(self, lacking, *rest)

    patch.setattr(SegmentedStore, "_apply", apply)  # whether it follows or goes along, which the moment decides


@_bug
def records_found_after_a_crash_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_write_again", _nothing)


@_bug
def torn_records_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "is_whole", lambda *_: True)
