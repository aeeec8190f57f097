"""A store that version 1 of the layout wrote is opened, brought up to date, and goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.unit.store.making import ALL, add_all_sorts, crash_image, everything, fill, open_segmented

from clarion.model.errors import StoreFailed
from clarion.store import index
from clarion.store.index import APPLICATION_ID, CHECKSUM_BYTES, connect, load_checksum_vfs
from clarion.store.index_writes import to_signed
from clarion.store.memory import MemoryStore
from clarion.store.packed_receipts import unpack_receipts
from clarion.store.port import KEEP, UNTIL_READ, Changes, Identity, Receipt, SubscriptionRow, TopicRow
from clarion.store.records import Draft, Entry
from clarion.wire.batch import Batch, encode_batch

SEGMENT_BYTES = 64 << 10
STORE = Identity(77, bytes(range(16)), 3)
FIRST, SECOND, THIRD = (bytes(encode_batch([b"%d" % n] * n, broker=77, publisher=1, stamp=n, number=n))
                        for n in (1, 2, 3))  # fmt: skip


class Old:
    """Writes records and rows as version 1 did: arrays of ten fields, rows without the columns of today."""

    def __init__(self, folder: Path) -> None:
        (folder / "log").mkdir(parents=True)
        self.segment = (folder / "log" / "0000000001.seg").open("wb")
        self.segment.truncate(SEGMENT_BYTES)
        self.index = connect(folder / "clarion.db", load_checksum_vfs())
        self.index.reserve_bytes(reserve=CHECKSUM_BYTES)
        self.index.pragma("page_size", 4096)
        self.index.pragma("journal_mode", "wal")
        self.index.execute(index.VERSION_1)
        self.index.executemany("INSERT INTO meta VALUES (?, ?)", STORE._asdict().items())
        self.index.pragma("application_id", APPLICATION_ID)
        self.index.pragma("user_version", 1)
        self.at = self.sequence = 0

    def write(self, entry: list[Any], data: bytes = b"") -> int:
        """Write a record, and give where its data begins."""
        draft = Draft(Entry())
        draft.packed = msgspec.msgpack.encode(entry)
        draft.data_bytes = len(data)
        size = 64 + len(draft.packed) + -len(draft.packed) % 8 + len(data)
        draft.size = size + -size % 64
        self.sequence += 1
        place = {"segment": 1, "at": self.at, "sequence": self.sequence}
        record, head = draft.at(**place, store=STORE.store_uuid, secret=b"")
        self.segment.seek(self.at)
        self.segment.write(head + data)
        self.last_at, self.at = self.at, record.end
        return record.data_at

    def close(self, batches: int, batch_bytes: int) -> None:
        """Say in the index that it has come up to the last record."""
        row = (1, self.last_at, self.at, self.sequence, batches, batch_bytes)
        self.index.execute("REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?)", row)

    def end(self) -> None:
        self.segment.flush()
        os.fsync(self.segment.fileno())
        self.segment.close()
        self.index.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.index.close()


def _envelope(topic: int, first: int, data: bytes, total: int) -> list[int]:
    batch = Batch(data)
    return [topic, first, batch.count, 1000 + first, total, len(data), batch.checksum]


def _made_by_version_1(folder: Path) -> Path:
    """Make a store whose last record the index has not got."""
    old = Old(folder)
    old.write([[], [], [], [], [], [], [], [], 0, [STORE.broker, STORE.store_uuid, STORE.timeline]])
    topics: list[list[Any]] = [[1, b"a", KEEP], [5, b"b", UNTIL_READ]]
    first = _envelope(1, 0, FIRST, len(FIRST))
    second = _envelope(5, 0, SECOND, len(SECOND))
    receipt = [1, 1, 1, first[6], 0, 0, 1000, 1]
    subscription = [5, b"reader", 1, b"", 2, b"nonce"]
    at = old.write(
        [topics, [[1, b"pub", 9]], [first, second], [receipt], [subscription], [], [], [], 0, None], FIRST + SECOND
    )
    execute = old.index.execute
    for number, name, retention in topics:
        execute("INSERT INTO topic (number, name, retention) VALUES (?, ?, ?)", (number, name, retention))
    execute("INSERT INTO publisher VALUES (1, ?, 9)", (b"pub",))
    for envelope, position in ((first, at), (second, at + len(FIRST))):
        row = (*envelope[:6], to_signed(envelope[6]), 1, position)
        execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    execute("INSERT INTO receipt VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*receipt[:3], to_signed(receipt[3]), *receipt[4:]))
    execute("INSERT INTO subscription VALUES (?, ?, ?, ?, ?, ?)", subscription)
    old.close(2, len(FIRST) + len(SECOND))
    third = _envelope(1, 1, THIRD, len(FIRST) + len(THIRD))
    trim = [5, 2, 2, 1000, len(SECOND)]
    moved_on = [5, b"reader", 2, b"", 2, b"nonce"]
    old.write([[[1, b"a", UNTIL_READ]], [], [third], [], [moved_on], [], [], [trim], 0, None], THIRD)
    old.end()
    return folder


def _version(folder: Path) -> tuple[int, int]:
    connection = connect(folder / "clarion.db", load_checksum_vfs())
    found = connection.pragma("user_version"), connection.execute("SELECT count(*) FROM sqlite_schema").get
    connection.close()
    return found


def test_a_store_of_version_1_has_all_it_had(tmp_path: Path) -> None:
    store = open_segmented(_made_by_version_1(tmp_path / "data"))
    assert store.identity == STORE
    size = len(FIRST) + len(THIRD)
    assert store.topic(b"a") == TopicRow(1, b"a", UNTIL_READ, 4, 1001, size, 0, size)
    assert store.topic(b"b") == TopicRow(5, b"b", UNTIL_READ, 2, 1000, len(SECOND), 2, 0)
    assert [bytes(batch.data) for batch in store.batches(1, 0, ALL, ALL)] == [FIRST, THIRD]
    assert [batch.expires_at_us for batch in store.batches(1, 0, ALL, ALL)] == [0, 0]
    assert store.subscriptions(5) == [SubscriptionRow(5, b"reader", 2, b"", 2, b"nonce")]
    assert [receipt.checksum for receipt in store.receipts(1, 1)] == [Batch(FIRST).checksum]
    assert (store.last_topic_number(), store.last_publisher(), store.last_staged(), store.last_version()) == (
        5,
        1,
        0,
        0,
    )
    before = everything(store)
    image = open_segmented(crash_image(store, tmp_path / "image"))
    assert everything(image) == before
    image.close()
    store.close()
    again = open_segmented(tmp_path / "data")
    assert everything(again) == before
    again.close()
    assert _version(tmp_path / "data")[0] == index.SCHEMA_VERSION


def test_a_migration_is_told_once_with_what_it_means(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = _made_by_version_1(tmp_path / "data")
    for _ in range(2):
        open_segmented(folder).close()
    told = f"had schema version 1 and has {index.SCHEMA_VERSION} now: older Clarions refuse it from now on"
    assert [told in message for message in caplog.messages].count(True) == 1


def test_a_migrated_store_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    open_segmented(_made_by_version_1(tmp_path / "old")).close()
    open_segmented(tmp_path / "new").close()
    tables = []
    for folder in ("old", "new"):
        connection = connect(tmp_path / folder / "clarion.db", load_checksum_vfs())
        tables.append(set(connection.execute("SELECT type, name, sql FROM sqlite_schema")))
        connection.close()
    assert tables[0] == tables[1]


def test_a_migrated_store_never_uses_a_topics_number_again(tmp_path: Path) -> None:
    store = open_segmented(_made_by_version_1(tmp_path))
    store.commit(Changes(gone_topics={5}))
    assert (store.last_topic_number(), store.topic_count()) == (5, 1)
    store.close()
    again = open_segmented(tmp_path)
    assert again.last_topic_number() == 5
    again.close()


def test_a_migrated_store_takes_what_a_new_one_takes(tmp_path: Path) -> None:
    told = []
    for folder in (_made_by_version_1(tmp_path / "old"), tmp_path / "new"):
        store = open_segmented(folder)
        store.commit(Changes(gone_topics={1, 5}))
        maker = fill(MemoryStore(), commits=0, topics=1)
        store.commit(Changes(topics={1: TopicRow(1, b"topic 0", KEEP)}))
        for place in range(6):
            changes = Changes()
            add_all_sorts(changes, maker, place)
            store.commit(changes)
        told.append(everything(store))
        store.close()
    assert {name for name in told[0] if told[0][name] != told[1][name]} <= {"last", "publishers", "silent", "by nonce"}


def test_a_migration_that_is_broken_off_leaves_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _made_by_version_1(tmp_path)
    before = _version(folder)
    with monkeypatch.context() as patch:
        broken = index.VERSION_2 + "CREATE TABLE state (twice INTEGER) STRICT;"
        patch.setattr(index, "_STEPS", (index.VERSION_1, broken))
        with pytest.raises(StoreFailed):
            open_segmented(folder)
    assert _version(folder) == before
    store = open_segmented(folder)
    assert store.topic_count() == 2
    store.close()


def test_without_its_index_the_log_of_version_1_gives_all_again(tmp_path: Path) -> None:
    store = open_segmented(_made_by_version_1(tmp_path))
    store.commit(Changes(topics={6: TopicRow(6, b"c", KEEP)}))  # by a record of today
    before = everything(store)
    store.close()
    (tmp_path / "clarion.db").unlink()
    again = open_segmented(tmp_path)
    assert (again.identity, everything(again)) == (STORE, before)
    again.close()


class _Dies:
    """A connection on which a process dies after a while."""

    def __init__(self, connection: apsw.Connection, pieces: int) -> None:
        self._connection = connection
        self._left = pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def wal_checkpoint(self, **arguments: Any) -> None:
        self._left -= 1
        if not self._left:
            raise RuntimeError("killed")


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_receipts_are_packed_to_the_last_one_whenever_that_is_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setattr(index, "_PACKED_AT_ONCE", 7)
    connection = connect(tmp_path / "index", load_checksum_vfs())
    connection.pragma("journal_mode", "wal")
    for step in index._STEPS:
        connection.execute(step)
    old = [
        Receipt(publisher, topic, number, (1 << 63) + number, publisher % 2, -publisher % 3, 1000 * number, number)
        for publisher in (1, 2) for topic in (1, 5) for number in range(1, 26)
    ]  # fmt: skip
    for receipt in old:
        row = (*receipt[:3], to_signed(receipt[3]), *receipt[4:])
        connection.execute("INSERT INTO receipt VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    with pytest.raises(RuntimeError):
        index.pack_old_receipts(_Dies(connection, pieces))  # type: ignore[arg-type]
    for _ in range(2):
        index.pack_old_receipts(connection)
    rows: list[Any] = connection.execute("SELECT * FROM receipts ORDER BY publisher, topic, last_number").fetchall()
    packed = [(last, unpack_receipts(publisher, topic, some)) for publisher, topic, last, some in rows]
    assert [receipt for _, some in packed for receipt in some] == old
    assert all(some[-1].number == last for last, some in packed)
    connection.close()
