"""The outbox's file: whole commits, one holder, clear words about what cannot be opened, no loss when it is full."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from clarion import AsyncPublisher
from clarion.model.errors import ClarionError, OutboxFull, OutboxInUse, OutboxUnusable
from clarion.publisher.outbox.ledger_topics import Changes, Found, Home, LedgerRow, Load, Row
from clarion.publisher.outbox.outbox_file import OutboxFile, drop, look, resend
from clarion.session.async_session import AsyncSession
from clarion.wire.batch import Batch, encode_batch, readdress_batch

HOME = Home(7, bytes(range(16)), 1)
TOPIC = LedgerRow(1, b"news", 5, 1, 1, 0)


def row(stamp: int, *payloads: bytes, topic: int = 1) -> Row:
    packed = encode_batch(payloads, broker=0, publisher=0, stamp=stamp, number=0)
    return Row(stamp, topic, len(payloads), 0, b"", packed)


def saved(file: OutboxFile, *rows: Row, topic: LedgerRow = TOPIC) -> None:
    file.commit(Changes(home=HOME, rows=list(rows), last_stamp=rows[-1].stamp, topics={topic.number: topic}))


def load_all(file: OutboxFile, topic: int = 1) -> list[bytes]:
    return [payload for found in file.load(Load(topic, 0, 100, 1 << 30)) for payload in Batch(found.packed).payloads()]


def test_a_new_outbox_is_empty(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    assert file.read() == Found()
    file.close()


def test_what_was_committed_is_there_after_the_files_were_copied_without_a_close(tmp_path: Path) -> None:
    """As a crash leaves them: the log is not moved into the database."""
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"a", b"b"), row(20, b"c"))
    after = tmp_path / "after"
    after.mkdir()
    for name in ("outbox", "outbox-wal"):
        shutil.copy(tmp_path / name, after / name)
    file.close()
    copy = OutboxFile(after / "outbox")
    found = copy.read()
    assert (found.home, found.last_stamp) == (HOME, 20)
    assert [(topic.row, topic.rows, topic.messages, topic.last_stamp) for topic in found.topics] == [(TOPIC, 2, 3, 20)]
    assert load_all(copy) == [b"a", b"b", b"c"]
    copy.close()


def test_a_log_that_was_cut_anywhere_leaves_whole_commits(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"first"))
    saved(file, row(20, b"second"))
    log = (tmp_path / "outbox-wal").read_bytes()
    database = (tmp_path / "outbox").read_bytes()
    file.close()
    used = len(log.rstrip(b"\0"))
    seen = set()
    for cut in range(0, used + 1, max(1, used // 40)):
        folder = tmp_path / f"cut {cut}"
        folder.mkdir()
        (folder / "outbox").write_bytes(database)
        (folder / "outbox-wal").write_bytes(log[:cut])
        try:
            copy = OutboxFile(folder / "outbox", durable=False)
        except OutboxUnusable:  # not even its tables were there
            continue
        found = copy.read()
        there = load_all(copy)
        copy.close()
        seen.add(tuple(there))
        assert there == [b"first", b"second"][: len(there)]
        assert sum(topic.rows for topic in found.topics) == len(there)
        assert found.last_stamp == (0, 10, 20)[len(there)]
    assert (b"first",) in seen


def test_rows_are_read_in_order_in_parts_of_any_size(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, *(row(stamp, bytes(1000)) for stamp in range(1, 11)))
    assert [found.stamp for found in file.load(Load(1, 0, 4, 1 << 30))] == [1, 2, 3, 4]
    assert [found.stamp for found in file.load(Load(1, 4, 100, 2500))] == [5, 6, 7]
    assert [found.stamp for found in file.load(Load(1, 9, 100, 1))] == [10]
    assert file.load(Load(2, 0, 100, 1)) == []
    file.close()


def test_what_is_removed_set_aside_and_renumbered_happens_together(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"a"), row(20, b"b", b"bb"), row(30, b"c"), row(40, b"d"))
    after = LedgerRow(1, b"news", 0, 1, 0, 0)
    changes = Changes(gone=[10], quarantine_first=[(1, 2, "in doubt")], topics={1: after})
    assert file.commit(changes) == 3
    assert load_all(file) == [b"d"]
    found = file.read()
    assert found.topics[0].row == after
    assert found.quarantined_messages == 3
    assert [(aside.topic, aside.messages, aside.reason) for aside in look(file.file).quarantined] == [
        (b"news", 2, "in doubt"),
        (b"news", 1, "in doubt"),
    ]
    file.close()


def test_what_is_resent_comes_last_as_new_messages(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"a"), row(20, b"b"))
    file.commit(Changes(quarantine=[(10, "refused")]))
    file.close()
    assert resend(file.file) == 1
    file = OutboxFile(tmp_path / "outbox")
    assert load_all(file) == [b"b", b"a"]
    rows = file.load(Load(1, 0, 9, 1 << 30))
    assert rows[1].stamp == Batch.parse(rows[1].packed).stamp == file.read().last_stamp > 20
    assert file.read().quarantined_messages == 0
    file.close()


def test_what_was_damaged_on_disk_is_not_resent_under_a_new_checksum(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"whole"))
    file.commit(Changes(quarantine=[(10, "refused")]))
    packed = file._connection.execute("SELECT packed FROM aside").get
    file._connection.execute("UPDATE aside SET packed = ?", (packed.replace(b"whole", b"holed"),))
    file.close()
    with pytest.raises(OutboxUnusable, match=r"damaged.*nothing was changed.*clarion outbox drop"):
        resend(file.file)
    assert len(look(file.file).quarantined) == 1
    assert drop(file.file) == 1


def test_an_outbox_that_cannot_be_used_leaves_no_session_and_no_lock_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"a"))
    file._connection.execute("DELETE FROM lane")
    file.close()
    made: list[AsyncSession] = []
    monkeypatch.setattr(AsyncSession, "__init__", lambda session, *_, **__: made.append(session))

    async def open_it() -> None:
        with pytest.raises(OutboxUnusable, match="damaged"):
            AsyncPublisher("tcp://127.0.0.1:9", outbox=tmp_path / "outbox")
        assert made == []

    asyncio.run(open_it())
    OutboxFile(tmp_path / "outbox").close()


def test_a_session_that_cannot_be_made_leaves_no_lock_behind(tmp_path: Path) -> None:
    async def open_it() -> None:
        with pytest.raises(ClarionError):
            AsyncPublisher("tcp://nowhere", outbox=tmp_path / "outbox")

    asyncio.run(open_it())
    OutboxFile(tmp_path / "outbox").close()


def test_what_was_seen_of_the_broker_is_kept_with_what_went(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    assert (file.read().start, file.read().sequence) == (b"", 0)
    for sequence in (5, 7):
        file.commit(Changes(start=b"a start", sequence=sequence, last_stamp=1))
    file.close()
    file = OutboxFile(tmp_path / "outbox")
    assert (file.read().start, file.read().sequence) == (b"a start", 7)
    file.close()


def test_what_is_dropped_is_gone_and_the_rest_stays(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"a"), row(20, b"b"))
    file.commit(Changes(quarantine=[(10, "refused")]))
    file.close()
    assert (drop(file.file), drop(file.file)) == (1, 0)
    assert [waiting.messages for waiting in look(file.file).waiting] == [1]


def test_a_full_disk_keeps_what_was_saved_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, row(10, b"a"))
    file._connection.pragma("max_page_count", file._connection.pragma("page_count") + 2)
    with pytest.raises(OutboxFull, match="what was saved before is kept"):
        saved(file, row(20, b"b" * 100_000))
    assert load_all(file) == [b"a"]
    file.commit(Changes(gone=[10]))  # what was sent can still be removed
    saved(file, row(30, b"c"))
    file._connection.pragma("max_page_count", 1 << 20)
    saved(file, row(40, b"b" * 100_000))
    assert load_all(file) == [b"c", b"b" * 100_000]
    file.close()


def test_a_second_opener_is_told_who_has_it(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    with pytest.raises(OutboxInUse, match=f"process {os.getpid()}"):
        OutboxFile(tmp_path / "outbox")
    with pytest.raises(OutboxInUse):
        resend(tmp_path / "outbox")
    assert look(tmp_path / "outbox").waiting == []  # looking is allowed
    file.close()
    OutboxFile(tmp_path / "outbox").close()


def test_a_holder_that_was_killed_holds_it_no_longer(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from clarion.publisher.outbox.outbox_file import OutboxFile;"
        "file = OutboxFile(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "outbox")], check=False).returncode == -9
    OutboxFile(tmp_path / "outbox").close()


def test_a_child_that_was_forked_does_not_keep_it(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.read(read_end, 1)  # lives until the parent has tried
        os._exit(0)
    file.close()
    OutboxFile(tmp_path / "outbox").close()
    os.write(write_end, b"x")
    os.waitpid(child, 0)


def test_what_is_no_outbox_is_left_alone(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"not a database at all" * 100)
    with pytest.raises(OutboxUnusable, match="not an outbox"):
        OutboxFile(garbage)
    assert garbage.read_bytes() == b"not a database at all" * 100
    other = apsw.Connection(str(tmp_path / "other"))
    other.execute("CREATE TABLE accounts (number INTEGER)")
    other.close()
    with pytest.raises(OutboxUnusable, match="something else"):
        OutboxFile(tmp_path / "other")
    with pytest.raises(OutboxUnusable):
        OutboxFile(tmp_path)  # a folder
    with pytest.raises(OutboxUnusable, match="No such file"):
        OutboxFile(tmp_path / "nowhere" / "outbox")
    with pytest.raises(OutboxUnusable, match="there is no outbox"):
        look(tmp_path / "missing")


def test_another_format_is_named(tmp_path: Path) -> None:
    OutboxFile(tmp_path / "outbox").close()
    connection = apsw.Connection(str(tmp_path / "outbox"))
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(OutboxUnusable, match="format 99"):
        OutboxFile(tmp_path / "outbox")
    with pytest.raises(OutboxUnusable, match="format 99"):
        look(tmp_path / "outbox")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    place = Path("/proc/outbox")  # nobody may write there, the superuser neither
    with pytest.raises(OutboxUnusable, match="/proc/outbox"):
        OutboxFile(place)


def test_a_damaged_batch_is_not_sent(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    whole = row(10, b"a" * 100)
    damaged = bytearray(whole.packed)
    damaged[-20] ^= 1
    saved(file, whole._replace(packed=damaged))
    with pytest.raises(OutboxUnusable, match="damaged"):
        load_all(file)
    file.close()


def test_an_outbox_that_was_emptied_gives_its_room_back(tmp_path: Path) -> None:
    file = OutboxFile(tmp_path / "outbox")
    saved(file, *(row(stamp, os.urandom(1 << 20)) for stamp in range(1, 21)))
    file.commit(Changes(gone=list(range(1, 21))))
    file.close()
    assert file.file.stat().st_size < 1 << 20
    assert not file.file.with_name("outbox-wal").exists()


def test_a_batch_gets_the_same_bytes_whenever_it_is_addressed_alike() -> None:
    packed = row(10, b"a", b"b").packed
    once = readdress_batch(packed, broker=1, publisher=2, stamp=10, number=3)
    again = readdress_batch(readdress_batch(packed, broker=9, publisher=9, stamp=9, number=9), broker=1, publisher=2,
                            stamp=10, number=3)  # fmt: skip
    assert once == again == encode_batch([b"a", b"b"], broker=1, publisher=2, stamp=10, number=3)
    assert Batch.parse(once).payloads() == [b"a", b"b"]
