"""Opening the store: what it finds again, and what it refuses."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from tests.unit.store.making import crash_image, everything, fill, open_segmented, put_everywhere

from clarion.model.errors import BadSettings, StoreCorrupt, StoreInUse, StoreTooNew
from clarion.store.folder import take_folder
from clarion.store.index import APPLICATION_ID, SCHEMA_VERSION, connect, load_checksum_vfs
from clarion.store.port import KEEP, Changes, PublisherRow, TopicRow
from clarion.store.records import Draft, Entry

_NOBODY = 65534


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


def test_a_store_that_was_not_closed_says_so_when_it_is_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_segmented(tmp_path / "data")
    fill(store)
    image = crash_image(store, tmp_path / "image")
    store.close()
    open_segmented(tmp_path / "data").close()
    assert caplog.messages == [], "it was closed"
    open_segmented(image).close()
    (said,) = caplog.messages
    assert f"{image} was not closed by who used it last" in said
    assert "nothing acked is lost" in said


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


def test_a_disk_without_room_for_the_holders_name_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_segmented(tmp_path).close()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr("clarion.store.folder.os.pwrite", full)
        lock = take_folder(tmp_path)
    with pytest.raises(StoreInUse, match="process unknown"):
        take_folder(tmp_path)
    os.close(lock)


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


# Files that are missing, or do not belong together: nothing is written over.


FIRST = "log/0000000001.seg"
Spoil = Callable[[Path, Path], None]


def _flip_first_record(at: int) -> Spoil:
    def flip(folder: Path, _: Path) -> None:
        content = bytearray((folder / FIRST).read_bytes())
        content[at] ^= 4
        (folder / FIRST).write_bytes(content)
        _lose_index(folder, folder)

    return flip


def _lose_index(folder: Path, _: Path) -> None:
    for file in folder.glob("clarion.db*"):
        file.unlink()


def _lose_index_and_first_segment(folder: Path, _: Path) -> None:
    _lose_index(folder, folder)
    (folder / FIRST).unlink()


def _lose_index_and_cut_first_segment(folder: Path, _: Path) -> None:
    _lose_index(folder, folder)
    (folder / FIRST).write_bytes((folder / FIRST).read_bytes()[:100])


def _empty_index_and_garbage_in_log(folder: Path, _: Path) -> None:
    (folder / "clarion.db").write_bytes(b"")
    (folder / FIRST).write_bytes(b"garbage" * 1000)


def _index_of_another(folder: Path, other: Path) -> None:
    shutil.copy(other / "clarion.db", folder / "clarion.db")


def _log_of_another(folder: Path, other: Path) -> None:
    shutil.rmtree(folder / "log")
    shutil.copytree(other / "log", folder / "log")


def _lose_log(folder: Path, _: Path) -> None:
    shutil.rmtree(folder / "log")


def _empty_log(folder: Path, _: Path) -> None:
    for file in (folder / "log").iterdir():
        file.write_bytes(bytes(file.stat().st_size))


def _segment_of_another(folder: Path, other: Path) -> None:
    number = max(int(file.stem) for file in (folder / "log").glob("*.seg"))
    shutil.copy(other / FIRST, folder / "log" / f"{number + 1:010d}.seg")


def _garbage_for_a_segment(folder: Path, _: Path) -> None:
    (folder / "log" / "0000000099.seg").write_bytes(b"something else" * 1000)


def _another_newer_version(folder: Path, _: Path) -> None:
    """Have the record at the end of the log be of a version that is not known here."""
    store = open_segmented(folder)
    file, at = store._segments.path(store._segments.number), store._segments.position
    uuid = store.identity.store_uuid
    store.close()
    draft, place = Draft(Entry()), {"segment": int(file.stem), "at": at, "sequence": store.sequence + 1}
    head = bytearray(draft.at(**place, store=uuid, secret=b"12345678")[1])
    head[4] = 3
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(head)


SPOILT: dict[str, Spoil] = {
    **{f"index lost, bit flipped at {at}": _flip_first_record(at) for at in (0, 4, 9, 17, 40, 57, 70, 90)},
    "index and first segment lost": _lose_index_and_first_segment,
    "index lost and first segment cut": _lose_index_and_cut_first_segment,
    "index empty and garbage in the log": _empty_index_and_garbage_in_log,
    "index of another": _index_of_another,
    "log of another": _log_of_another,
    "log lost": _lose_log,
    "log empty": _empty_log,
    "segment of another": _segment_of_another,
    "garbage for a segment": _garbage_for_a_segment,
    "newer record": _another_newer_version,
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_what_cannot_be_read_or_does_not_belong_together_is_refused_and_not_written_over(
    tmp_path: Path, spoil: str
) -> None:
    for name, payload in (("mine", b"m" * 20_000), ("other", b"o" * 100)):
        store = open_segmented(tmp_path / name, segment_bytes=64 << 10)
        fill(store, commits=4, payload=payload)
        store.close()
    SPOILT[spoil](tmp_path / "mine", tmp_path / "other")
    before = _files(tmp_path / "mine")
    for _ in range(2):
        with pytest.raises((StoreCorrupt, StoreTooNew), match=str(tmp_path / "mine")):
            open_segmented(tmp_path / "mine", segment_bytes=64 << 10)
        assert _files(tmp_path / "mine") == before


@pytest.mark.parametrize("lost", [("clarion.db",), ("reserve", "lock"), ("clarion.db", "lock", "reserve")])
def test_what_can_be_made_again_is(tmp_path: Path, lost: tuple[str, ...]) -> None:
    store = open_segmented(tmp_path / "data")
    fill(store)
    identity, before = store.identity, everything(store)
    image = crash_image(store, tmp_path / "image")
    store.close()
    for folder in (tmp_path / "data", image):  # of a killed broker SQLite's log stays, which alone is nothing
        for name in lost:
            (folder / name).unlink()
        again = open_segmented(folder)
        assert (again.identity, everything(again)) == (identity, before)
        again.close()


def test_a_log_that_was_never_written_to_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "lock").write_bytes(b"1\n")
    (tmp_path / FIRST).write_bytes(bytes(1 << 20))
    (tmp_path / "log" / "0000000002-0.spare").write_bytes(bytes(1 << 20))
    store = open_segmented(tmp_path)
    fill(store)
    store.close()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    others = (
        "notes",
        "log/notes",
        "log/x.seg",
        "log/theirs.spare",
        "log/0000000001.seg.bak",
        "log/1.seg",
        "clarion.db~",
    )
    (tmp_path / "log").mkdir()
    for name in others:
        (tmp_path / name).write_bytes(name.encode() * 100)
    maker = None
    for _ in range(2):
        store = open_segmented(tmp_path)
        maker = maker or fill(store)
        put_everywhere(store, maker, b"p" * 2_000_000)
        store.close()
        assert all((tmp_path / name).read_bytes() == name.encode() * 100 for name in others)


@pytest.mark.parametrize(("path", "mode"), [("", 0o555), ("log", 0), (FIRST, 0), ("clarion.db", 0)])
def test_files_that_may_not_be_read_or_written_are_no_missing_ones(path: str, mode: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        store = open_segmented(folder)
        fill(store)
        store.close()
        if path == FIRST:
            (folder / "clarion.db").unlink()
        (folder / path).chmod(mode)
        assert _opened_by_nobody(Path(name)) in ("BadSettings", "StoreFailed")
        assert {file.name for file in folder.iterdir()} <= {"clarion.db", "lock", "log", "reserve"}


def test_a_folder_of_somebody_else_is_told_with_both_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_segmented(tmp_path / "data").close()
    (tmp_path / "data" / "lock").chmod(0o400)

    def denied(path: Path, *_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("clarion.store.folder.os.open", denied)
    with pytest.raises(
        BadSettings, match=r"Permission denied; see the permissions of .*/lock, which is this user's own"
    ):
        take_folder(tmp_path / "data")
    monkeypatch.setattr("clarion.store.folder.os.geteuid", lambda: 12345)
    with pytest.raises(
        BadSettings, match=rf"/lock is of user {os.getuid()}, and this is user 12345: run the broker as"
    ):
        take_folder(tmp_path / "data")
    with pytest.raises(BadSettings, match=rf"of user {os.getuid()}, and this is user 12345"):
        take_folder(tmp_path / "not" / "there")


def _opened_by_nobody(folder: Path) -> str:
    """Try to open the store in folder/data as a user who is nobody special; give the error's name."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        told = "opened"
        try:
            if os.geteuid() == 0:
                for path in (folder, *folder.rglob("*")):
                    os.chown(path, _NOBODY, _NOBODY)
                os.setegid(_NOBODY)
                os.seteuid(_NOBODY)
            open_segmented(folder / "data").close()
        except BaseException as error:  # noqa: BLE001 it is told by name
            told = type(error).__name__
        os.write(writes, told.encode())
        os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as opened:
        return opened.read()


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files of a store with what is in them, but for what SQLite makes anew, and who has it locked."""
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(("lock", "-shm", "-wal")))
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def _change(folder: Path, statement: str) -> None:
    connection = connect(folder / "clarion.db", load_checksum_vfs())
    connection.execute(statement).fetchall()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
