"""The histories of a broker on disk: a SQLite file. Notes are first appended as they are, every few seconds, and packed
later, many at once; a packing goes with the notes that it replaces in one transaction, so nothing that was saved is
lost whenever the process ends. Everything is on disk when a method returns (WAL, synchronous=FULL).

One thread writes (`save`, `pack`, `retain`) and another may read meanwhile (all the others).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import NamedTuple

import apsw
import numpy as np

from clarion.model.errors import BadSettings, StoreCorrupt, StoreFailed, StoreFull, StoreTooNew, StoreUnavailable
from clarion.model.ids import STAMP_LIMIT, stamp_from_unix_s, stamp_to_unix_s
from clarion.store.disk_errors import described, free_disk_bytes, is_damage, is_no_room
from clarion.store.folder import advice, sync_folder
from clarion.store.index import CHECKSUM_BYTES, load_checksum_vfs
from clarion.store.index_writes import to_signed, to_unsigned
from clarion.tracking.accuracy import Accuracy, efpp_of
from clarion.tracking.bloom import Key, Shape, false_positives, find_filters, salts_of
from clarion.tracking.exported import About, HistoryPart, Segment, Written, write_export
from clarion.tracking.packing import (
    FEWEST_KEYS,
    Block,
    Filter,
    Notes,
    Range,
    Span,
    histories_with,
    make_blocks,
    order,
    pack,
    read_block,
    spans_of,
)
from clarion.tracking.tracker import GONE, Claim, HistoryName, Strategy, Unsaved, merge_claims

APPLICATION_ID = 0x434C4846  # "CLHF"
FORMAT_VERSION = 1
_PAGE_BYTES = 8192
_PART = struct.Struct(">QQII")  # of HistoryPart.parts
_NO_FILTER = (STAMP_LIMIT, -1, 0, 0, 0, b"")  # of Segment, up to `filter`
_CACHE_KIB = 8192
_MOST_AHEAD_US = 86_400_000_000  # of the clock, that a stamp may be: one alone is not to hide all that comes for years
_BUSY_MS = 5000  # for which another process that has the file locked is waited for
_AGAIN = "Move this file away (with its -wal and -shm), and histories begin anew"
_GONE = "Histories are not kept any more; the next start goes on with the file that is there then, or begins anew"

# A block or part of packing 0 is not packed yet. `history.packing` is the last one that the history is in.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE history (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, origin INTEGER NOT NULL, via INTEGER NOT NULL,
    subscriber BLOB NOT NULL, packing INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE packing (
    number INTEGER PRIMARY KEY AUTOINCREMENT, first INTEGER NOT NULL, last INTEGER NOT NULL, until_us INTEGER NOT NULL
) STRICT;
CREATE INDEX packing_stamps ON packing (last, first);
CREATE TABLE block (
    number INTEGER PRIMARY KEY, packing INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    notes INTEGER NOT NULL, at_us INTEGER NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE INDEX block_stamps ON block (packing, last, first);
CREATE TABLE filter (
    number INTEGER PRIMARY KEY, packing INTEGER NOT NULL, history INTEGER NOT NULL, origin INTEGER NOT NULL,
    first INTEGER NOT NULL, last INTEGER NOT NULL, keys INTEGER NOT NULL, bits INTEGER NOT NULL,
    hashes INTEGER NOT NULL, data BLOB NOT NULL
) STRICT;
CREATE INDEX filter_stamps ON filter (packing, origin, last, first);
CREATE INDEX filter_history ON filter (history, last, first);
CREATE TABLE part (
    stamp INTEGER NOT NULL, who INTEGER NOT NULL, history INTEGER NOT NULL, first INTEGER NOT NULL,
    stop INTEGER NOT NULL, packing INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (stamp, who, history, first)
) STRICT, WITHOUT ROWID;
CREATE INDEX part_packing ON part (packing);
CREATE TABLE attachment (
    topic BLOB NOT NULL, subscriber BLOB NOT NULL, first INTEGER NOT NULL, stop INTEGER, from_us INTEGER NOT NULL,
    until_us INTEGER, PRIMARY KEY (topic, subscriber, first)
) STRICT, WITHOUT ROWID;
CREATE TABLE received (
    subscriber BLOB NOT NULL, topic BLOB NOT NULL, up_to INTEGER NOT NULL, PRIMARY KEY (subscriber, topic)
) STRICT, WITHOUT ROWID;
"""
_LATER_TABLES = """
CREATE TABLE IF NOT EXISTS gap (from_us INTEGER NOT NULL, until_us INTEGER NOT NULL) STRICT;
"""
_BLOCKS_WITH = """
SELECT first, last, notes, data FROM block WHERE packing = 0 AND last >= ?1 AND first <= ?1
UNION ALL
SELECT block.first, block.last, notes, data
FROM packing CROSS JOIN block ON block.packing = packing.number AND block.last >= ?1 AND block.first <= ?1
WHERE packing.last >= ?1 AND packing.first <= ?1
"""
_FILTERS_WITH = """
SELECT history, keys, bits, hashes, data
FROM packing CROSS JOIN filter INDEXED BY filter_stamps
  ON filter.packing = packing.number AND origin = ?2 AND filter.last >= ?1 AND filter.first <= ?1
WHERE packing.last >= ?1 AND packing.first <= ?1
"""
_ADD_PART = """
INSERT INTO part (stamp, who, history, first, stop) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET stop = max(stop, excluded.stop), packing = 0
"""
_ATTACH = """
INSERT INTO attachment (topic, subscriber, first, from_us) SELECT ?1, ?2, ?3, ?4
WHERE NOT EXISTS (SELECT * FROM attachment WHERE topic = ?1 AND subscriber = ?2 AND stop IS NULL)
ON CONFLICT DO UPDATE SET stop = NULL, until_us = NULL
"""
_DETACH = "UPDATE attachment SET stop = ?3, until_us = ?4 WHERE topic = ?1 AND subscriber = ?2 AND stop IS NULL"


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """How histories are kept."""

    strategy: Strategy = "bloom"  # `log` packs notes exactly, too
    accuracy: Accuracy = field(default_factory=Accuracy)
    pack_notes: int = 1 << 19  # that a packing has at most; it takes about 200 bytes of memory for each
    fewest_keys: int = FEWEST_KEYS  # that a history has in a packing to have a filter there
    max_age_s: float | None = None
    max_bytes: int | None = None


class Retained(NamedTuple):
    """How many packings were dropped, and since when everything is here now, if any was."""

    dropped: int
    begins_us: int


class HistoryFile:
    """An open file of histories."""

    def __init__(self, file: Path, settings: HistorySettings, *, now_us: int, broker: int = 0) -> None:
        self.file, self.settings = file, settings
        with self._typed_errors(), ExitStack() as undoing:
            self._writer = self._connect()
            undoing.callback(self._writer.close)
            self._prepare(now_us)
            self._reader = self._connect()
            undoing.callback(self._reader.close)
            self._salt = self._known_salt()
            self._writer.execute(_LATER_TABLES)
            if broker:
                self._check_broker(broker)
            self._place = self._find_place()
            with suppress(StoreFull, StoreUnavailable), self._typed_errors():  # then at another start
                self._forget_names()
            self._unpacked, self._unpacked_since_us = self._count_unpacked()
            undoing.pop_all()

    @classmethod
    def to_read(cls, file: Path) -> HistoryFile:
        """Open histories that a broker keeps, or kept, to read alone; FileNotFoundError where there are none."""
        if not file.is_file():
            raise FileNotFoundError(file)
        self = cls.__new__(cls)
        self.file, self.settings = file, HistorySettings()
        with self._typed_errors(), ExitStack() as undoing:
            self._reader = self._writer = self._connect()
            undoing.callback(self._reader.close)
            self._check_format()
            self._salt = self._known_salt()
            undoing.pop_all()
        return self

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.file), vfs=load_checksum_vfs())
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_timeout(_BUSY_MS)
        connection.pragma("synchronous", "full")
        connection.pragma("cache_size", -_CACHE_KIB)
        return connection

    def _prepare(self, now_us: int) -> None:
        """Make the tables of a new file; refuse another's file, and one of a newer version."""
        writer = self._writer
        if not writer.pragma("schema_version"):
            writer.reserve_bytes(reserve=CHECKSUM_BYTES)
            writer.pragma("page_size", _PAGE_BYTES)
            writer.pragma("auto_vacuum", "incremental")
            writer.pragma("journal_mode", "wal")
            with self._transaction():
                writer.execute(_TABLES)
                salt = int.from_bytes(os.urandom(6))  # two brokers must not err about the same keys
                writer.execute("INSERT INTO meta VALUES ('begins_us', ?), ('salt', ?)", (now_us, salt))
                writer.pragma("application_id", APPLICATION_ID)
                writer.pragma("user_version", FORMAT_VERSION)
            sync_folder(self.file.parent)
        self._check_format()

    def _check_format(self) -> None:
        writer = self._writer
        if writer.pragma("application_id") != APPLICATION_ID:
            raise StoreCorrupt(f"{self.file} is a database of something else; nothing was changed. Use another place")
        if (version := writer.pragma("user_version")) > FORMAT_VERSION:
            raise StoreTooNew(
                f"{self.file} has format {version}, this Clarion knows up to {FORMAT_VERSION}; nothing was changed. Use"
                " a newer Clarion"
            )
        if version < 1:
            raise StoreCorrupt(f"{self.file} does not say its format; nothing was changed. {_AGAIN}")

    def _known_salt(self) -> int:
        """Return what keys are salted with: with another salt no filter would have any."""
        if salt := self._meta("salt"):
            return salt
        raise StoreCorrupt(f"{self.file} has lost what its filters were made with; nothing was changed. {_AGAIN}")

    def _check_broker(self, broker: int) -> None:
        """Refuse histories of another broker: what it saw is not to be told as ours."""
        known = self._meta("broker")
        if not known:
            self._writer.execute("INSERT OR REPLACE INTO meta VALUES ('broker', ?)", (broker,))
        elif known != broker:
            raise StoreCorrupt(
                f"{self.file} has the histories of broker {known:08x}, and this is {broker:08x}; nothing was changed."
                f" {_AGAIN}"
            )

    def _find_place(self) -> tuple[int, int]:
        """Return which file is there under the name: its device and inode."""
        try:
            found = self.file.stat()
        except OSError as error:
            raise StoreFailed(f"{self.file} was taken away ({error.strerror}). {_GONE}") from None
        return found.st_dev, found.st_ino

    def _check_place(self) -> None:
        """Refuse to go on with a file that nobody will find again."""
        if self._find_place() != self._place:
            raise StoreFailed(f"{self.file} was taken away, and another file is there. {_GONE}")

    def _count_unpacked(self) -> tuple[int, int | None]:
        """Return how many notes and parts are not packed, and since when there are some."""
        execute = self._writer.execute
        notes, since_us = execute("SELECT coalesce(sum(notes), 0), min(at_us) FROM block WHERE packing = 0").get
        return notes + execute("SELECT count(*) FROM part WHERE packing = 0").get, since_us

    def close(self) -> None:
        """Let go of it; what was saved stays."""
        self._reader.close()
        self._writer.close()

    # What the writing thread does.

    def save(self, unsaved: Unsaved, *, now_us: int) -> None:
        """Save all of it, or nothing where an error is raised: StoreFull while there is no room, StoreUnavailable while
        another process has the file locked, StoreFailed where the file is not there any more."""
        self._check_place()
        blocks = list(make_blocks(np.frombuffer(unsaved.notes, dtype=np.uint64).reshape(-1, 3)))
        parts = [
            (stamp, to_signed(who), number, first, stop)
            for (number, who, stamp), ranges in unsaved.parts.items()
            for first, stop in zip(ranges[::2], ranges[1::2], strict=True)
        ]
        with self._typed_errors(), self._transaction():
            many = self._writer.executemany
            many("INSERT OR IGNORE INTO history VALUES (?, ?, ?, ?, ?, 0)", ((n, *name) for n, name in unsaved.names))
            self._add_blocks(0, blocks, now_us)
            many(_ADD_PART, parts)
            for subscriber, topic, offset, at_us, begins in unsaved.attachments:
                self._writer.execute(_ATTACH if begins else _DETACH, (topic, subscriber, offset, at_us))
            received = unsaved.received.items()
            many(
                "REPLACE INTO received VALUES (?, ?, ?)",
                [(*who, up_to) for who, up_to in received if up_to != GONE],
            )
            many(
                "DELETE FROM received WHERE subscriber = ? AND topic = ?",
                [who for who, up_to in received if up_to == GONE],
            )
            if unsaved.published_us:
                self._writer.execute("REPLACE INTO meta VALUES ('published_us', ?)", (unsaved.published_us,))
            self._writer.execute("REPLACE INTO meta VALUES ('saved_us', ?)", (now_us,))
        if (blocks or parts) and not self._unpacked:
            self._unpacked_since_us = now_us
        self._unpacked += sum(block.notes for block in blocks) + len(parts)

    def add_gap(self, *, until_us: int) -> None:
        """Save that nothing was noted since something was saved last."""
        with self._typed_errors(), self._transaction():
            since_us = self._meta("saved_us") or self._meta("begins_us")
            self._writer.execute("INSERT INTO gap VALUES (?, ?)", (since_us, max(since_us, until_us)))

    def _add_blocks(self, packing: int, blocks: list[Block], at_us: int) -> None:
        self._writer.executemany(
            "INSERT INTO block (packing, first, last, notes, at_us, data) VALUES (?, ?, ?, ?, ?, ?)",
            ((packing, first, last, notes, at_us, data) for first, last, notes, data in blocks),
        )

    def is_pack_due(self, now_us: int) -> bool:
        """Return whether there is enough to pack, or something for long enough."""
        settings = self.settings
        since_s = (now_us - (self._unpacked_since_us or now_us)) / 1e6
        is_old = since_s >= settings.accuracy.persist_s
        return self._unpacked >= settings.pack_notes or (self._unpacked > 0 and is_old)

    def pack(self, *, now_us: int) -> int:
        """Pack what was saved first, so much as is packed at once, and return how many notes that were."""
        with self._typed_errors():
            numbers, notes, until_us = self._unpacked_notes()
            if not numbers:
                self._pack_parts(now_us)
                return 0
            ordered = order(notes)
            spans = spans_of(ordered)
            filters: list[Filter] = []
            exact = ordered
            if self.settings.strategy == "bloom":
                accuracy, fewest = self.settings.accuracy, self.settings.fewest_keys
                latest = stamp_from_unix_s(now_us / 1e6 + accuracy.skew_s)
                packed = self._packed(spans)
                filters, exact = pack(
                    ordered, spans, packed, accuracy, salt=self._salt, latest=latest, fewest=fewest
                )  # fmt: skip
            blocks = list(make_blocks(exact))
            ends = (int(ordered[:, 2].min()), int(ordered[:, 2].max()), until_us)
            with self._transaction():
                execute, many = self._writer.execute, self._writer.executemany
                execute("INSERT INTO packing (first, last, until_us) VALUES (?, ?, ?)", ends)
                packing = self._writer.last_insert_rowid()
                self._add_blocks(packing, blocks, until_us)
                many(
                    "INSERT INTO filter (packing, history, origin, first, last, keys, bits, hashes, data)"
                    " VALUES (?1, ?2, (SELECT origin FROM history WHERE number = ?2), ?3, ?4, ?5, ?6, ?7, ?8)",
                    (
                        (packing, number, first, last, keys, shape.bits, shape.hashes, data)
                        for number, first, last, keys, shape, data in filters
                    ),
                )
                many("DELETE FROM block WHERE number = ?", ((number,) for number in numbers))
                self._settle_parts(packing, ordered, spans)
                many("UPDATE history SET packing = ? WHERE number = ?", ((packing, span.history) for span in spans))
                self._unpacked, self._unpacked_since_us = self._count_unpacked()
        return len(notes)

    def _pack_parts(self, now_us: int) -> None:
        """Have parts of batches belong to a packing, where there is nothing else."""
        first, last = self._writer.execute("SELECT min(stamp), max(stamp) FROM part WHERE packing = 0").get
        if first is not None:
            with self._transaction():
                self._writer.execute(
                    "INSERT INTO packing (first, last, until_us) VALUES (?, ?, ?)", (first, last, now_us)
                )
                self._settle_parts(self._writer.last_insert_rowid(), np.zeros((0, 3), dtype=np.uint64), [])
        self._unpacked, self._unpacked_since_us = 0, None

    def _unpacked_notes(self) -> tuple[list[int], Notes, int]:
        """Return the first blocks that are not packed, by number, their notes, and when the last of them was saved."""
        rows = "SELECT number, at_us, first, last, notes, data FROM block WHERE packing = 0 ORDER BY number"
        numbers: list[int] = []
        found: list[Notes] = []
        count = until_us = 0
        with closing(self._writer.execute(rows)) as cursor:
            for number, at_us, *row in cursor:
                if found and count + row[2] > self.settings.pack_notes:
                    break
                numbers.append(number)
                found.append(read_block(Block(*row)))
                count, until_us = count + row[2], max(until_us, at_us)
        return numbers, np.concatenate(found) if found else np.zeros((0, 3), dtype=np.uint64), until_us

    def _packed(self, spans: list[Span]) -> dict[int, list[Range]]:
        """Return the ranges of filters that end where a history's new notes begin, or later."""
        ranges = "SELECT first, last FROM filter WHERE history = ? AND last >= ?"
        found = {
            span.history: list(self._writer.execute(ranges, (span.history, span.first)))
            for span in spans
            if span.stop - span.start >= self.settings.fewest_keys
        }
        return {history: ranges for history, ranges in found.items() if ranges}

    def _settle_parts(self, packing: int, ordered: Notes, spans: list[Span]) -> None:
        """Remove parts of batches that came to be whole, and have the others belong to the packing."""
        rows = list(self._writer.execute("SELECT DISTINCT stamp, who, history FROM part WHERE packing = 0"))
        where = {span.history: ordered[span.start : span.stop] for span in spans} if rows else {}
        for stamp, who, history in rows:
            some = where.get(history, ordered[:0])
            start, stop = np.searchsorted(some[:, 2], np.array([stamp, stamp + 1], dtype=np.uint64))
            if np.uint64(to_unsigned(who)) in some[start:stop, 1]:
                self._writer.execute(
                    "DELETE FROM part WHERE stamp = ? AND who = ? AND history = ?", (stamp, who, history)
                )
        left = "SELECT DISTINCT history FROM part WHERE packing = 0"
        self._writer.execute(f"UPDATE history SET packing = ? WHERE number IN ({left})", (packing,))
        self._writer.execute("UPDATE part SET packing = ? WHERE packing = 0", (packing,))

    def retain(self, *, now_us: int) -> Retained:
        """Drop the oldest packings, whole, while they are too old or the file too large."""
        dropped = begins_us = 0
        settings = self.settings
        before_us = now_us - int(settings.max_age_s * 1e6) if settings.max_age_s is not None else 0
        with self._typed_errors():
            while True:
                oldest = self._writer.execute("SELECT number, until_us, last FROM packing ORDER BY number LIMIT 1").get
                if oldest is None or not (oldest[1] < before_us or self._is_too_large()):
                    return Retained(dropped, begins_us)
                with self._transaction():
                    for table in ("block", "filter", "part"):
                        self._writer.execute(f"DELETE FROM {table} WHERE packing = ?", (oldest[0],))
                    self._writer.execute("DELETE FROM packing WHERE number = ?", (oldest[0],))
                    self._writer.execute("DELETE FROM attachment WHERE until_us < ?", (oldest[1],))
                    # Nothing that was noted may seem never to have been, whatever clocks did: one that was ahead may
                    # have been put back, and stamps may be ahead of the clock; by more than a day none is believed.
                    later = "UPDATE meta SET value = max(value, ?, ?) WHERE key = 'begins_us' RETURNING value"
                    skewed_us = oldest[1] + int(settings.accuracy.skew_s * 1e6)
                    stamped_us = min(ceil(stamp_to_unix_s(oldest[2] + 1) * 1e6), oldest[1] + _MOST_AHEAD_US)
                    begins_us = self._writer.execute(later, (skewed_us, stamped_us)).get
                    self._writer.execute("DELETE FROM gap WHERE until_us < ?", (begins_us,))
                self._writer.execute("PRAGMA incremental_vacuum").fetchall()
                dropped += 1

    def _is_too_large(self) -> bool:
        most, used = self.settings.max_bytes, self._writer.pragma("page_count") - self._writer.pragma("freelist_count")
        return most is not None and used * _PAGE_BYTES > most

    def _forget_names(self) -> None:
        """Forget histories of which everything was dropped. Only now: while it runs, a broker keeps their numbers."""
        oldest = self._writer.execute(
            "SELECT coalesce((SELECT min(number) FROM packing),"
            " (SELECT seq + 1 FROM sqlite_sequence WHERE name = 'packing'), 0)"
        ).get
        gone = {number for (number,) in self._writer.execute(
            "SELECT number FROM history WHERE packing BETWEEN 1 AND ?", (oldest - 1,)
        )}  # fmt: skip
        if gone:
            rows = self._writer.execute("SELECT first, last, notes, data FROM block WHERE packing = 0")
            gone.difference_update(*(read_block(Block(*row))[:, 0].tolist() for row in rows))
            gone.difference_update(n for (n,) in self._writer.execute("SELECT history FROM part WHERE packing = 0"))
            with self._transaction():
                self._writer.executemany("DELETE FROM history WHERE number = ?", ((number,) for number in gone))

    # What the reading thread may do.

    @property
    def begins_us(self) -> int:
        """Since when everything is here: what was noted before was dropped, or never kept."""
        return self._meta("begins_us")

    @property
    def published_us(self) -> int:
        """The commit time up to which all that came from publishers and neighbours is here; 0 where nothing is."""
        return self._meta("published_us")

    @property
    def broker(self) -> int:
        """The id of the broker that keeps it."""
        return self._meta("broker")

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Return the times in which nothing was tracked: from when until when."""
        with self._typed_errors():
            is_there = "SELECT count(*) FROM sqlite_schema WHERE name = 'gap'"  # not where only old ones wrote
            if not self._reader.execute(is_there).get:
                return ()
            return tuple((since, until) for since, until in self._reader.execute("SELECT * FROM gap ORDER BY from_us"))

    @property
    def saved_us(self) -> int:
        """When something was saved last."""
        return self._meta("saved_us")

    def worst_fpp(self) -> float:
        """Return how often one of the filters errs at most."""
        with self._typed_errors():
            shapes = self._reader.execute("SELECT DISTINCT bits, hashes, keys FROM filter")
            return max((false_positives(*row) for row in shapes), default=0.0)

    def _meta(self, key: str) -> int:
        with self._typed_errors():
            return int(self._reader.execute("SELECT value FROM meta WHERE key = ?", (key,)).get or 0)

    def names(self) -> dict[HistoryName, int]:
        """Return the numbers of all histories, for the tracker to go on with."""
        with self._typed_errors():
            rows = self._reader.execute("SELECT number, kind, origin, via, subscriber FROM history")
            return {HistoryName(*name): number for number, *name in rows}

    def received(self) -> dict[tuple[bytes, bytes], int]:
        """Return for each subscriber and topic the offset below which all that it acked is here."""
        with self._typed_errors():
            rows = self._reader.execute("SELECT subscriber, topic, up_to FROM received")
            return {(subscriber, topic): up_to for subscriber, topic, up_to in rows}

    def subscribers_of(self, topic: bytes) -> set[bytes]:
        """Return who subscribes to a topic, or did since the histories begin."""
        with self._typed_errors():
            rows = self._reader.execute("SELECT subscriber FROM attachment WHERE topic = ?", (topic,))
            return {subscriber for (subscriber,) in rows}

    def seen(self, key: Key) -> list[Claim]:
        """Return what histories claim of a batch."""
        who, stamp = key
        with self._typed_errors(), self._snapshot():
            execute = self._reader.execute
            whole = self._seen_in_filters(key, list(execute(_FILTERS_WITH, (stamp, who >> 32))))
            for row in execute(_BLOCKS_WITH, (stamp,)):
                whole |= dict.fromkeys(histories_with(Block(*row), key), 0.0)
            claims = [Claim(self._name(number), efpp) for number, efpp in whole.items()]
            rows = execute("SELECT history, first, stop FROM part WHERE stamp = ? AND who = ?", (stamp, to_signed(who)))
            claims += [Claim(self._name(number), 0.0, ((first, stop),)) for number, first, stop in list(rows)]
        return merge_claims(claims)

    def _seen_in_filters(self, key: Key, rows: Sequence[tuple[int, int, int, int, bytes]]) -> dict[int, float]:
        """Return which histories have a key in one of their filters, and the chance that one of those errs (Eq. 2)."""
        numbers = [row[0] for row in rows]
        keys = np.array([key], dtype=np.uint64).repeat(len(rows), axis=0)  # np.full would go over floats
        keys[:, 0] ^= salts_of(self._salt, np.array(numbers, dtype=np.uint64))
        found = find_filters(keys, [(Shape(bits, hashes), data) for _, _, bits, hashes, data in rows])
        right = dict.fromkeys((numbers[at] for at in found), 1.0)
        for number, count, bits, hashes, _ in rows:
            if number in right:
                right[number] *= 1 - false_positives(bits, hashes, count)
        return {number: 1 - chance for number, chance in right.items()}

    def _name(self, number: int) -> HistoryName:
        row = "SELECT kind, origin, via, subscriber FROM history WHERE number = ?"
        return HistoryName(*self._reader.execute(row, (number,)).get)

    def parts(self) -> Iterator[HistoryPart]:
        """Return all that is here of brokers and subscribers: filters, exact keys for each packing and history, parts
        of batches."""
        with self._typed_errors(), self._snapshot():
            names = {number: name for name, number in self.names().items() if name.kind != "topic"}
            filters = self._reader.execute("SELECT history, first, last, keys, bits, hashes, data FROM filter")
            for history, first, last, keys, bits, hashes, data in filters:
                if history in names:
                    salt = int(salts_of(self._salt, np.array([history], dtype=np.uint64))[0])
                    yield HistoryPart(*names[history], Segment(first, last, keys, bits, hashes, data, salt=salt))
            blocks = self._reader.execute(
                "SELECT packing, first, last, notes, data FROM block ORDER BY packing, number"
            )
            for _, rows in groupby(blocks, lambda row: row[0]):
                notes = order(np.concatenate([read_block(Block(*row[1:])) for row in rows]))
                for span in spans_of(notes):
                    if span.history not in names:
                        continue
                    exact = notes[span.start : span.stop, 1:].astype(">u8").tobytes()
                    yield HistoryPart(*names[span.history], Segment(*_NO_FILTER, exact))
            for stamp, who, number, first, stop, _ in self._reader.execute("SELECT * FROM part"):
                yield HistoryPart(
                    *names[number], Segment(*_NO_FILTER), _PART.pack(to_unsigned(who), stamp, first, stop)
                )

    # Transactions and errors.

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Have the reader see one state: a packing in between would hide what it moves."""
        self._reader.execute("BEGIN")
        try:
            yield
        finally:
            if self._reader.in_transaction:
                self._reader.execute("ROLLBACK")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            said = described(error)
            if is_no_room(error, self.file) or (isinstance(error, apsw.CantOpenError) and self._is_disk_full()):
                raise StoreFull(
                    f"no room for histories in {self.file} ({said}); nothing of the change was kept, all that was saved"
                    " before is. Free space, or have histories dropped sooner"
                ) from error
            if isinstance(error, apsw.BusyError | apsw.LockedError):
                raise StoreUnavailable(f"{self.file} is in use by another process ({said}); let that end") from error
            if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
                raise BadSettings(
                    f"{self.file} cannot be opened for writing: {error}; {self._advice(error)}. Messages are not"
                    " concerned"
                ) from error
            if is_damage(error):
                raise StoreCorrupt(
                    f"the histories in {self.file} are damaged ({said}). Messages are not. {_AGAIN}"
                ) from error
            if isinstance(error, apsw.SQLError):
                raise StoreCorrupt(
                    f"the histories in {self.file} lack something that belongs to them ({said}). Messages are not"
                    f" concerned. {_AGAIN}"
                ) from error
            raise StoreFailed(f"the disk failed under {self.file} ({said}); histories are not kept any more") from error

    def _is_disk_full(self) -> bool:
        """Return whether there is no room for the files beside it, which are made anew at each opening."""
        return self.file.parent.is_dir() and free_disk_bytes(self.file.parent) < _PAGE_BYTES

    def _advice(self, error: apsw.Error) -> str:
        """Return what to do where the file cannot be opened, or written to."""
        if self.file.is_dir():
            return "there is a folder of that name: move it away"
        if self.file.is_symlink() and not self.file.exists():
            return f"it is a link to {self.file.readlink()}, where nothing can be made: remove it, or have that folder"
        return advice(error, self.file)


def export_file(file: Path, folder: str | Path, name: str) -> Written:
    """Export the histories of a broker, which may be running: all that it has saved."""
    histories = HistoryFile.to_read(file)
    try:
        fpp = histories.worst_fpp()
        about = About(
            broker=histories.broker,
            name=name or f"broker-{histories.broker:08x}",
            strategy="bloom" if fpp else "log",
            efpp=efpp_of(fpp, Accuracy().matching),
            begins=stamp_from_unix_s(histories.begins_us / 1e6),
            ends=stamp_from_unix_s(histories.published_us / 1e6),
            gaps=tuple((stamp_from_unix_s(a / 1e6), stamp_from_unix_s(b / 1e6)) for a, b in histories.gaps()),
        )
        return write_export(folder, about, histories.parts())
    finally:
        histories.close()
