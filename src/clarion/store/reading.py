"""A connection for reading: statements with typed errors, one state for several of them, and batches that are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from clarion.model.errors import ClarionError, StoredDataCorrupt
from clarion.store.failures import START_AGAIN, is_damage, typed, unavailable
from clarion.store.folder import suspect
from clarion.store.port import StagedRow
from clarion.store.records import Envelope, is_batch
from clarion.store.segments import Segments

_LOST = "Restore a backup, or trim the topic past it"


class Reader:
    """What all reading of the store stands on; for one thread."""

    def __init__(self, connection: apsw.Connection, file: Path, segments: Segments) -> None:
        self._reader = connection
        self._segments = segments
        self.file = file

    def close(self) -> None:
        self._reader.close()

    def settle(self) -> None:
        """Have the index come up to the log; every read does so first, and none sees an index that lacks a commit."""
        raise NotImplementedError

    def _rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        self.settle()
        try:
            return self._reader.execute(statement, values).fetchall()
        except apsw.Error as error:
            raise self._typed(error) from error

    def _typed(self, error: apsw.Error) -> ClarionError:
        """Give the typed error for what SQLite said; damage is remembered, so that the next start mends it."""
        if is_damage(error):
            suspect(self.file)
        return typed(error, self.file)

    def _row(self, statement: str, values: tuple[Any, ...]) -> Any | None:
        rows = self._rows(statement, values)
        return rows[0] if rows else None

    def _value(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        return self._rows(statement, values)[0][0]

    @contextmanager
    def _one_state(self) -> Iterator[None]:
        """Have several statements see the same committed state."""
        self.settle()
        try:
            self._reader.execute("BEGIN")
            try:
                yield
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")
        except apsw.Error as error:
            raise self._typed(error) from error

    def _content(self, what: str, batch: Envelope | StagedRow, segment: int, position: int) -> bytes:
        """Read a batch; `reading` must be held since it was looked up.

        Damage is a missing file, or bytes that are not the batch's; what the system did not let be read is neither.
        """
        try:
            data = self._segments.read(segment, position, batch.size)
            reason = None if is_batch(data, batch) else "the batch that was put there is not whole"
        except FileNotFoundError as error:
            reason = str(error)
        except OSError as error:
            raise unavailable(error, f"{self._segments.path(segment)} cannot be read") from error
        if reason is not None:
            raise damaged(what, f"{self._segments.path(segment)} at byte {position}", reason, _LOST)
        return data

    def _unindexed(self, what: str, reason: str) -> StoredDataCorrupt:
        """Give the error for a batch that the index should have and has not; that is remembered as damage."""
        suspect(self.file)
        return damaged(what, self.file, reason, START_AGAIN)


def damaged(what: str, where: object, reason: str, advice: str) -> StoredDataCorrupt:
    """Give the error for a batch that cannot be served."""
    return StoredDataCorrupt(f"{what} in {where} ({reason}); it is not served from there on. {advice}")
