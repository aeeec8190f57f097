"""Opening the store: what it finds again, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from tests.unit.store.making import crash_image, everything, fill, open_segmented, put_everywhere

from clarion.model.errors import BadSettings, StoreCorrupt, StoreInUse, StoreTooNew
from clarion.store.index import APPLICATION_ID, connect, load_checksum_vfs
from clarion.store.port import KEEP, Changes, PublisherRow, TopicRow
from clarion.store.schema import SCHEMA_VERSION


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    fill(store)
    identity, before = store.identity, everything(store)
    store.close()
    again = open_segmented(tmp_path)
    assert (again.identity, everything(again)) == (identity, before)
    again.close()


def test_what_was_committed_is_there_after_a_crash(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "data")
    maker = fill(store)
    for place in range(5):
        image = open_segmented(crash_image(store, tmp_path / f"image {place}"))
        assert everything(image) == everything(store)
        image.close()
        put_everywhere(store, maker, b"after the image")
    store.close()


def test_a_crash_soon_after_opening_again_loses_nothing(tmp_path: Path) -> None:
    store = open_segmented(tmp_path / "0")
    maker = fill(store)
    for place in range(1, 6):
        image = crash_image(store, tmp_path / f"{place}")
        store.close()
        store = open_segmented(image)
        put_everywhere(store, maker, b"in life %d" % place)
        assert store.topics(b"", 9)[0].topic.next_offset == 8 + place
    store.close()


def test_going_on_after_reopening_continues_the_log(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    maker = fill(store)
    store.close()
    again = open_segmented(tmp_path)
    put_everywhere(again, maker, b"more")
    assert [batch.first_offset for batch in again.batches(1, 0, 1000, 1 << 30)] == list(range(9))
    again.close()


def test_ids_do_not_come_again_after_reopening(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    store.commit(Changes(publishers={7: PublisherRow(7, b"n", 1)}))
    store.commit(Changes(gone_publishers={7}))
    store.close()
    again = open_segmented(tmp_path)
    assert again.last_publisher() == 7
    again.close()


def test_every_store_has_an_identity_of_its_own(tmp_path: Path) -> None:
    stores = [open_segmented(tmp_path / name) for name in ("a", "b")]
    assert stores[0].identity.store_uuid != stores[1].identity.store_uuid
    for store in stores:
        store.close()


def test_a_clean_close_leaves_database_log_reserve_and_lock(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    fill(store)
    store.close()
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clarion.db", "lock", "log", "reserve"]


def test_a_second_opener_is_told_who_has_it(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    with pytest.raises(StoreInUse, match=rf"process {os.getpid()}.*{tmp_path}"):
        open_segmented(tmp_path)
    store.close()
    open_segmented(tmp_path).close()


def test_another_process_is_refused_and_a_dead_one_leaves_no_lock(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from clarion.store.segmented import SegmentedStore\n"
        "store = SegmentedStore(pathlib.Path(sys.argv[1]), segment_bytes=1 << 20)\n"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse, match=f"process {holder.pid}"):
            open_segmented(tmp_path)
        holder.kill()
        holder.wait()
    open_segmented(tmp_path).close()


def test_a_store_of_a_newer_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    open_segmented(tmp_path).close()
    _change(tmp_path, "PRAGMA user_version = 9")
    with pytest.raises(StoreTooNew, match=f"version 9.*up to {SCHEMA_VERSION}"):
        open_segmented(tmp_path)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    open_segmented(tmp_path).close()
    _change(tmp_path, "PRAGMA application_id = 12")
    with pytest.raises(StoreCorrupt, match="something else"):
        open_segmented(tmp_path)
    _change(tmp_path, f"PRAGMA application_id = {APPLICATION_ID}")
    open_segmented(tmp_path).close()


def test_a_plain_sqlite_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    other = apsw.Connection(str(tmp_path / "clarion.db"), vfs="unix")
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = (tmp_path / "clarion.db").read_bytes()
    with pytest.raises(StoreCorrupt, match="not a Clarion store"):
        open_segmented(tmp_path)
    assert (tmp_path / "clarion.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"x", b"not a database" * 1000, b"SQLite format 3\x00", os.urandom(40_000)])
def test_a_file_of_garbage_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "clarion.db").write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"clarion\.db"):
        open_segmented(tmp_path)
    assert (tmp_path / "clarion.db").read_bytes() == content


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "clarion.db").touch()
    store = open_segmented(tmp_path)
    fill(store)
    store.close()


def test_a_folder_that_cannot_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadSettings, match="data folder"):
            open_segmented(wrong)
    (tmp_path / "data" / "clarion.db").mkdir(parents=True)
    with pytest.raises(BadSettings, match=r"clarion\.db"):
        open_segmented(tmp_path / "data")


def test_a_refused_store_lets_go_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "clarion.db").write_bytes(b"garbage")
    with pytest.raises(StoreCorrupt):
        open_segmented(tmp_path)
    (tmp_path / "clarion.db").unlink()
    open_segmented(tmp_path).close()


def test_the_page_size_of_a_store_stays(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, page_bytes=4096)
    fill(store)
    before = everything(store)
    store.close()
    again = open_segmented(tmp_path, page_bytes=16384)
    assert everything(again) == before
    again.close()
    assert (tmp_path / "clarion.db").read_bytes()[16:18] == (4096).to_bytes(2)


def test_a_hundred_thousand_topics_do_not_slow_opening(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, segment_bytes=16 << 20)
    store.commit(Changes(topics={n: TopicRow(n, b"topic %d" % n, KEEP) for n in range(1, 100_001)}))
    store.close()
    opened = open_segmented(tmp_path)
    assert opened._writer.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)[0] < 20  # pages read, of about a thousand
    assert opened.topic_count() == 100_000
    opened.close()


def _change(folder: Path, statement: str) -> None:
    connection = connect(folder / "clarion.db", load_checksum_vfs())
    connection.execute(statement).fetchall()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
