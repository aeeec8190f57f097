"""The thread that saves histories: what fails is tried again, told once, and waited for no longer than it may be; what
cannot be mended is given up, and the next start knows it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest
from tests.integration.waiting import eventually
from tests.unit.broker.asker import Asker

from clarion.broker import history_writer
from clarion.broker.engine import Engine, Now
from clarion.broker.history_writer import FILE, HistoryWriter, begin_tracks, open_histories
from clarion.broker.settings import BrokerSettings
from clarion.model.errors import BadSettings, StoreCorrupt, StoreFailed, StoreFull, StoreUnavailable
from clarion.store.index import load_checksum_vfs
from clarion.tracking.history_file import HistoryFile, Retained
from clarion.tracking.tracker import HistoryName, Tracker, Unsaved

_NOW_US = 1_750_000_000_000_000
_OFF = "histories.off"
_EVERY_S = 2.0
_FULL = StoreFull("no room for histories")


class _File:
    """A file of histories that fails when it is told to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.settings = SimpleNamespace(strategy="bloom")
        self.saved_us = _NOW_US
        self.fails: dict[str, Exception] = {}  # by what
        self.done: list[str] = []
        self.saved: list[Unsaved] = []
        self.may_save = threading.Event()
        self.may_save.set()
        self.has_to_pack = False
        self.retained = Retained(0, 0)

    def _do(self, what: str) -> None:
        self.done.append(what)
        if what in self.fails:
            raise self.fails[what]

    def save(self, unsaved: Unsaved, *, now_us: int) -> None:
        self.may_save.wait()
        self._do("save")
        self.saved.append(unsaved)

    def is_pack_due(self, now_us: int) -> bool:
        return self.has_to_pack

    def pack(self, *, now_us: int) -> None:
        self._do("pack")

    def retain(self, *, now_us: int) -> Retained:
        self._do("retain")
        return self.retained

    def gaps(self) -> tuple[tuple[int, int], ...]:
        return ()

    def close(self) -> None:
        self._do("close")


class _Broker:
    """The part of a broker that notes, and has that saved; on a clock that moves when it is told."""

    def __init__(self, folder: Path, file: Any = None) -> None:
        self.mark = folder / _OFF
        self.file: Any = _File(folder / FILE) if file is None else file
        self.tracker = Tracker()
        self.asker = Asker()
        self.tracks = Engine(self.asker.store, self.asker.limits, tracker=self.tracker).tracks
        self.now_s = 100.0
        self.noted = 0
        self.writer = HistoryWriter(cast(HistoryFile, self.file), self.tracks, _EVERY_S, self.now)

    @property
    def now(self) -> Now:
        return Now(self.now_s, _NOW_US + int(self.now_s * 1e6))

    def note(self, count: int = 1) -> None:
        for _ in range(count):
            self.noted += 1
            self.tracker.note(self.tracker.number_of(HistoryName("publisher", 7)), 7 << 32, self.noted)

    def turn(self, after_s: float = 0.0, *, is_awaited: bool = False) -> None:
        """Have one turn of the loop, and what it had saved done."""
        self.now_s += after_s
        self.writer.turn(self.now, is_awaited=is_awaited)
        eventually(self._is_idle, "the thread did what it was to do")

    def _is_idle(self) -> bool:
        self.writer.turn(self.now)
        return not self.writer._is_saving

    def count(self, what: str) -> int:
        return list(self.file.done).count(what)

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Have the loop turn until something is so."""

        def is_so_now() -> bool:
            self.writer.turn(self.now)
            return bool(is_so())

        eventually(is_so_now, what)

    def wait_for(self, what: str, count: int) -> None:
        """Have the loop turn until the thread has done something so often."""
        self.until(lambda: self.count(what) >= count, f"{what} is done {count} times")


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[_Broker]:
    monkeypatch.setattr(history_writer, "_LOOK_FOR_WORK_S", 0.01)
    caplog.set_level(logging.INFO, "clarion.broker")
    made = _Broker(tmp_path)
    yield made
    made.file.fails.clear()
    made.file.may_save.set()
    made.writer.close()


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[str]]:
    """What the log has of a level."""
    return lambda level: [record.getMessage() for record in caplog.records if record.levelno == level]


def test_notes_are_saved_at_once_and_then_when_they_are_due(broker: _Broker) -> None:
    for after_s, saves in ((0.0, 1), (1.9, 1), (0.1, 2)):
        broker.note()
        broker.turn(after_s)
        assert len(broker.file.saved) == saves
    broker.turn(10.0)
    assert len(broker.file.saved) == 2, "there was nothing to save"
    assert len(broker.tracker) == 0


def test_what_a_link_awaits_is_saved_soon(broker: _Broker) -> None:
    broker.note()
    broker.turn()
    broker.note()
    broker.turn(0.5, is_awaited=True)
    assert len(broker.file.saved) == 1
    assert broker.writer.next_deadline_s(broker.now_s) == pytest.approx(broker.now_s + 0.05)
    broker.turn(0.05)
    assert len(broker.file.saved) == 2


def test_a_commit_waits_until_its_notes_are_saved(broker: _Broker) -> None:
    broker.note()
    broker.turn()
    broker.note()
    broker.file.may_save.clear()
    ticket = broker.writer.ticket()
    broker.writer.turn(broker.now)
    assert not broker.writer.is_saved(ticket)
    broker.file.may_save.set()
    broker.turn()
    assert broker.writer.is_saved(ticket)
    assert len(broker.file.saved) == 2


def test_a_commit_goes_on_when_its_notes_cannot_be_saved_and_not_because_packing_failed(
    broker: _Broker, told: Callable[[int], list[str]]
) -> None:
    broker.note()
    broker.turn()
    broker.file.may_save.clear()
    broker.note()
    ticket = broker.writer.ticket()
    broker.file.fails["save"] = _FULL
    broker.file.may_save.set()
    broker.turn()
    assert broker.writer.is_saved(ticket)
    broker.note()
    ticket = broker.writer.ticket()
    broker.file.fails["pack"] = _FULL
    broker.file.has_to_pack = True
    broker.until(lambda: "Histories are packed later" in told(logging.WARNING)[-1], "that packing failed is told")
    assert not broker.writer.is_saved(ticket)


def test_saves_that_fail_are_tried_once_a_second_also_where_they_are_awaited(
    broker: _Broker, told: Callable[[int], list[str]]
) -> None:
    broker.file.fails["save"] = _FULL
    for _ in range(40):
        broker.note()
        broker.writer.ticket()
        broker.turn(0.1, is_awaited=True)
    assert 4 <= broker.count("save") <= 5
    assert told(logging.WARNING) == ["no room for histories. What is noted waits"]
    assert broker.writer.stats()["histories_save_failures"] == broker.count("save")
    assert broker.writer.stats()["histories_unsaved"] == 40
    broker.file.fails.clear()
    broker.turn(1.0)
    assert [len(unsaved) for unsaved in broker.file.saved] == [40]
    assert told(logging.INFO) == ["histories are saved again, with all that was noted meanwhile"]


def test_where_saves_fail_for_long_nobody_waits_for_them_and_the_next_start_knows(
    broker: _Broker, told: Callable[[int], list[str]]
) -> None:
    broker.file.fails["save"] = StoreUnavailable("in use by another process")
    broker.note()
    broker.turn()
    for _ in range(4):
        noted = broker.tracks.round
        broker.turn(1.2)
        assert not broker.tracks.is_saved(noted)
        assert not broker.mark.exists()
    for _ in range(3):
        broker.note()
        noted = broker.tracks.round
        broker.turn(1.0)
        assert broker.tracks.is_saved(noted)
        assert broker.writer.is_saved(broker.writer.ticket())
        assert broker.mark.exists()
    assert len(told(logging.WARNING)) == 2
    assert "messages over links and ends of subscriptions wait for that no longer" in told(logging.WARNING)[1]
    broker.file.fails.clear()
    broker.turn(1.0)
    assert [len(unsaved) for unsaved in broker.file.saved] == [4]
    assert not broker.mark.exists()
    assert told(logging.INFO) == ["histories are saved again, with all that was noted meanwhile"]
    broker.note()
    noted = broker.tracks.round
    broker.writer.turn(broker.now)
    assert not broker.tracks.is_saved(noted), "they are waited for as before"
    broker.file.fails["save"] = _FULL
    broker.turn(5.0)
    broker.turn(4.9)
    assert not broker.mark.exists(), "five seconds begin anew"
    broker.turn(0.1)
    assert broker.mark.exists()


def test_a_mark_that_cannot_be_made_is_told_and_messages_go_on(
    broker: _Broker, tmp_path: Path, told: Callable[[int], list[str]]
) -> None:
    broker.file.file = tmp_path / "missing" / FILE
    broker.file.fails["save"] = _FULL
    broker.note()
    broker.turn()
    noted = broker.tracks.round
    broker.turn(5.0)
    broker.turn(5.0)
    assert broker.tracks.is_saved(noted)
    assert len([text for text in told(logging.WARNING) if "will not tell that nothing was tracked" in text]) == 1


@pytest.mark.parametrize(
    ("what", "error", "why"),
    [
        ("save", StoreFailed("the disk failed"), "the disk failed. "),
        ("save", ValueError("of a mistake"), "histories failed: ValueError('of a mistake'). "),
        ("pack", StoreCorrupt("a page is damaged"), "a page is damaged. "),
        ("retain", StoreCorrupt("a page is damaged"), "a page is damaged. "),
    ],
)
def test_what_cannot_be_mended_is_given_up_and_the_next_start_knows(
    broker: _Broker, what: str, error: Exception, why: str, told: Callable[[int], list[str]]
) -> None:
    broker.note()
    broker.turn()
    broker.wait_for("retain", 1)
    broker.file.fails[what] = error
    broker.file.has_to_pack = True
    broker.note()
    broker.turn(60.0)
    broker.until(lambda: told(logging.CRITICAL), "it is told")
    assert told(logging.CRITICAL) == [
        f"{why}Nothing is tracked any more until the broker is started again; messages are safe"
    ]
    assert broker.mark.exists()
    assert broker.writer.stats()["tracking"] == "given up"
    assert broker.writer.gaps() == ((_NOW_US, broker.now.unix_us),)
    assert broker.writer.is_saved(broker.writer.ticket()), "nobody waits"
    assert broker.writer.next_deadline_s(broker.now_s) > 1e9
    broker.writer.close()
    assert broker.mark.exists()


@pytest.mark.parametrize("is_full", [False, True])
def test_too_much_in_memory_is_given_up_with_the_cause_also_while_a_save_is_under_way(
    broker: _Broker, is_full: bool, monkeypatch: pytest.MonkeyPatch, told: Callable[[int], list[str]]
) -> None:
    monkeypatch.setattr(history_writer, "_MOST_UNSAVED", 10)
    if is_full:
        broker.file.fails["save"] = _FULL
    broker.note()
    broker.turn()
    broker.file.may_save.clear()
    broker.note()
    broker.writer.turn(broker.now._replace(monotonic_s=broker.now_s + _EVERY_S))
    assert broker.writer._is_saving
    broker.note(10)
    broker.now_s += _EVERY_S + 1.0
    broker.writer.turn(broker.now)
    assert not told(logging.CRITICAL), "it may pass"
    broker.now_s += 5.0
    broker.writer.turn(broker.now)
    (why,) = told(logging.CRITICAL)
    if is_full:
        assert why.startswith("no room for histories. What is noted meanwhile has come to more than is kept in memory.")
    else:
        assert "cannot be saved as fast as it comes" in why
    broker.file.may_save.set()
    broker.turn()
    assert broker.writer.stats()["tracking"] == "given up"
    assert broker.mark.exists()
    broker.writer.close()
    assert told(logging.CRITICAL) == [why]
    assert broker.mark.exists()


@pytest.mark.parametrize("meanwhile", ["nothing", "a save is under way", "a save fails once"])
def test_what_comes_all_at_once_is_saved_at_once(
    broker: _Broker, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_writer, "_MOST_UNSAVED", 10)
    broker.note()
    if meanwhile == "a save is under way":
        broker.file.may_save.clear()
        broker.writer.turn(broker.now)
    else:
        broker.turn()
    if meanwhile == "a save fails once":
        broker.file.fails["save"] = StoreUnavailable("histories are locked")
    broker.note(20)
    broker.now_s += 0.1
    broker.writer.turn(broker.now)
    assert broker.writer._is_saving
    broker.file.may_save.set()
    broker.turn()
    broker.file.fails.clear()
    broker.turn(1.0)
    assert broker.writer.stats()["tracking"] != "given up"
    assert not broker.tracker.waiting
    assert not broker.mark.exists()
    broker.writer.close()


def test_too_much_for_long_is_given_up_though_saves_that_fail_are_tried_again(
    broker: _Broker, monkeypatch: pytest.MonkeyPatch, told: Callable[[int], list[str]]
) -> None:
    monkeypatch.setattr(history_writer, "_MOST_UNSAVED", 10)
    broker.file.fails["save"] = _FULL
    broker.note(20)
    for _ in range(7):
        broker.turn(1.0)
    assert broker.writer.stats()["tracking"] == "given up"
    assert "What is noted meanwhile has come to more than is kept in memory" in told(logging.CRITICAL)[0]
    broker.writer.close()


def test_packing_that_fails_is_tried_once_a_minute_after_what_is_too_old_is_dropped(
    broker: _Broker, told: Callable[[int], list[str]]
) -> None:
    broker.file.fails["pack"] = _FULL
    broker.file.has_to_pack = True
    broker.wait_for("pack", 1)
    for minute in range(1, 4):
        for _ in range(10):
            broker.note()
            broker.turn(5.9)
        assert broker.count("pack") == minute
        broker.turn(1.5)
        broker.wait_for("pack", minute + 1)
    done = [what for what in broker.file.done if what != "save"]
    assert done == ["retain", "pack"] * 4
    assert told(logging.WARNING) == ["no room for histories. Histories are packed later"]
    broker.file.fails.clear()
    broker.turn(60.0)
    broker.wait_for("pack", 5)
    broker.until(lambda: "histories are packed again" in told(logging.INFO), "that it is over is told")


def test_retention_that_fails_is_told_once_and_keeps_nothing_from_being_packed(
    broker: _Broker, told: Callable[[int], list[str]]
) -> None:
    broker.file.fails["retain"] = _FULL
    broker.turn(60.0)
    broker.wait_for("retain", 1)
    broker.turn(60.0)
    broker.wait_for("retain", 2)
    broker.file.has_to_pack = True
    broker.wait_for("pack", 1)
    broker.turn()
    assert told(logging.WARNING) == ["no room for histories. What is too old, or too much, is dropped later"]


def test_it_is_told_what_was_dropped_and_since_when_all_is_kept(
    broker: _Broker, told: Callable[[int], list[str]]
) -> None:
    broker.file.retained = Retained(3, _NOW_US)
    broker.turn(60.0)
    broker.until(lambda: told(logging.INFO), "it is told")
    assert told(logging.INFO)[0] == (
        "3 packings of histories were too old, or too many, and are dropped; all is kept since"
        " 2025-06-15T15:06:40.000+00:00"
    )


def test_the_rest_is_saved_at_the_end_also_after_saves_that_failed_for_long(broker: _Broker) -> None:
    broker.file.fails["save"] = _FULL
    broker.note()
    broker.turn()
    broker.turn(5.0)
    assert broker.mark.exists()
    broker.file.may_save.clear()
    broker.note()
    broker.writer.turn(broker.now._replace(monotonic_s=broker.now_s + 1.0))  # which is under way
    broker.note()
    broker.file.fails.clear()
    broker.file.may_save.set()
    broker.writer.close()
    assert sum(len(unsaved) for unsaved in broker.file.saved) == 3
    assert broker.file.done[-1] == "close"
    assert not broker.mark.exists()


def test_what_cannot_be_saved_at_the_end_is_told_and_its_mark_stays(
    broker: _Broker, told: Callable[[int], list[str]]
) -> None:
    broker.file.fails["save"] = _FULL
    broker.note()
    broker.turn()
    broker.turn(5.0)
    broker.writer.close()
    assert "noted again from the log at the next start" in told(logging.WARNING)[-1]
    assert broker.mark.exists()


# With a file as it is.


def _open(folder: Path) -> HistoryFile | None:
    return open_histories(BrokerSettings(data=folder, tracking="bloom"), 7, now_us=_NOW_US)


def _opened(folder: Path) -> HistoryFile:
    file = _open(folder)
    assert file is not None
    return file


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_start_whose_histories_are_locked_goes_on_without_tracking(
    tmp_path: Path, is_marked: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("clarion.tracking.history_file._BUSY_MS", 0)
    _opened(tmp_path).close()
    if is_marked:
        (tmp_path / _OFF).touch()
    locking = apsw.Connection(str(tmp_path / FILE), vfs=load_checksum_vfs())
    locking.execute("BEGIN IMMEDIATE" if is_marked else "PRAGMA locking_mode = exclusive; BEGIN EXCLUSIVE").fetchall()
    assert _open(tmp_path) is None
    (record,) = caplog.records
    assert record.levelno == logging.CRITICAL
    assert "in use by another process" in record.getMessage()
    assert "Nothing is tracked any more until the broker is started again" in record.getMessage()
    assert (tmp_path / _OFF).exists()
    locking.close()
    file = _opened(tmp_path)
    assert file.gaps() == ((_NOW_US, _NOW_US),)
    assert not (tmp_path / _OFF).exists()
    file.close()


def test_a_start_without_room_for_histories_goes_on_without_tracking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect = HistoryFile._connect

    def connect_without_room(self: HistoryFile) -> apsw.Connection:
        connection = connect(self)
        connection.pragma("max_page_count", 1)
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(HistoryFile, "_connect", connect_without_room)
        assert _open(tmp_path) is None
        (record,) = caplog.records
        assert record.levelno == logging.CRITICAL
        assert "no room for histories" in record.getMessage()
        assert "Free space" in record.getMessage()
    assert (tmp_path / _OFF).exists()
    file = _opened(tmp_path)
    assert file.gaps()
    file.close()


def test_a_mark_that_cannot_be_removed_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / _OFF).mkdir()
    with pytest.raises(BadSettings, match=rf"{_OFF} cannot be removed \(.*directory\).*: remove it, and start"):
        _open(tmp_path)
    (tmp_path / _OFF).rmdir()
    _opened(tmp_path).close()


def test_a_file_that_is_taken_away_while_it_is_used_is_given_up_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = _Broker(tmp_path, _opened(tmp_path))
    broker.note()
    broker.turn()
    (tmp_path / FILE).unlink()
    broker.note()
    broker.turn(_EVERY_S)
    assert caplog.records[-1].levelno == logging.CRITICAL
    assert f"{FILE} was taken away" in caplog.records[-1].getMessage()
    broker.writer.close()
    assert (tmp_path / _OFF).exists()
    file = _opened(tmp_path)
    assert (file.names(), file.begins_us) == ({}, _NOW_US)
    file.close()


def test_a_gap_that_cannot_be_kept_at_a_start_ends_tracking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asker = Asker()
    asker.subscribe(b"news")
    file = _opened(tmp_path)
    tracker = Tracker()
    tracker.received_up_to(b"anna", b"news", 10)
    tracker.published_up_to(_NOW_US)
    unsaved = tracker.take()
    assert unsaved is not None
    file.save(unsaved, now_us=_NOW_US)
    tracks = Engine(asker.store, asker.limits, tracker=Tracker()).tracks
    file._writer.set_busy_timeout(0)
    locking = apsw.Connection(str(file.file), vfs=load_checksum_vfs())
    locking.execute("BEGIN IMMEDIATE")
    begin_tracks(file, tracks, Now(100.0, _NOW_US + 5))
    assert tracks.tracker is None
    assert (tmp_path / _OFF).exists()
    assert [record.levelname for record in caplog.records] == ["WARNING", "CRITICAL"]
    locking.close()
    file.close()
