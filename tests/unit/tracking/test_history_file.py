"""The file of histories: what was saved is found, whatever happens in between; what is dropped is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest

from clarion.model.errors import StoreCorrupt, StoreFull, StoreTooNew
from clarion.model.ids import stamp_from_unix_s
from clarion.store.index import load_checksum_vfs
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.history_file import FORMAT_VERSION, HistoryFile, HistorySettings
from clarion.tracking.tracker import Claim, HistoryName, Tracker

_NOW_US = 1_750_000_000_000_000
_STAMP = stamp_from_unix_s(_NOW_US / 1e6)
_WHO = 7 << 32 | 1
_PUBLISHED = HistoryName("publisher", 7)
_ALICE = HistoryName("subscriber", 7, 0, b"alice")
_BOB = HistoryName("subscriber", 7, 0, b"bob")

Opened = tuple[HistoryFile, Tracker]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[HistoryFile]:
    file = HistoryFile(tmp_path / "histories", HistorySettings(), now_us=_NOW_US)
    yield file
    file.close()


def _save(file: HistoryFile, tracker: Tracker, now_us: int = _NOW_US) -> None:
    taken = tracker.take()
    assert taken is not None
    file.save(taken, now_us=now_us)
    tracker.saved()


def _note(tracker: Tracker, name: HistoryName, count: int, first: int = _STAMP) -> None:
    number = tracker.number_of(name)
    for stamp in range(first, first + count):
        tracker.note(number, _WHO, stamp)


def test_a_batch_is_found_before_it_is_saved_then_and_packed(opened: HistoryFile) -> None:
    tracker = Tracker(opened.names())
    _note(tracker, _PUBLISHED, 1000)
    _note(tracker, _ALICE, 3)
    key = (_WHO, _STAMP + 1)
    expected = [Claim(_PUBLISHED), Claim(_ALICE)]
    assert tracker.seen(key) == expected
    taken = tracker.take()
    assert taken is not None
    assert tracker.take() is None
    assert tracker.seen(key) == expected
    opened.save(taken, now_us=_NOW_US)
    tracker.saved()
    assert tracker.seen(key) == []
    assert opened.seen(key) == expected
    assert opened.pack(now_us=_NOW_US) == 1003
    published, alice = opened.seen(key)
    assert published.history == _PUBLISHED
    assert 0 < published.efpp <= opened.settings.accuracy.efpp
    assert alice == Claim(_ALICE)
    assert opened.seen((_WHO, _STAMP + 1000)) == []
    assert opened.seen((_WHO + 1, _STAMP)) == []
    assert opened.pack(now_us=_NOW_US) == 0


def test_the_log_keeps_exactly_what_it_packs(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "histories", HistorySettings(strategy="log"), now_us=_NOW_US)
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 20_000)
    _save(file, tracker)
    file.pack(now_us=_NOW_US)
    assert file.seen((_WHO, _STAMP + 12_345)) == [Claim(_PUBLISHED)]
    file.close()


def test_parts_are_told_until_the_batch_is_whole(opened: HistoryFile) -> None:
    tracker = Tracker()
    alice = tracker.number_of(_ALICE)
    key = (1 << 63 | 5, _STAMP)
    tracker.note_part(alice, *key, 0, 2)
    tracker.note_part(alice, *key, 2, 5)
    tracker.note_part(alice, *key, 8, 9)
    (claim,) = tracker.seen(key)
    assert claim == Claim(_ALICE, 0.0, ((0, 5), (8, 9)))
    assert [claim.has(index) for index in (0, 4, 5, 8)] == [True, True, False, True]
    _save(opened, tracker)
    tracker.note_part(alice, *key, 5, 7)
    _save(opened, tracker)
    assert opened.seen(key) == [Claim(_ALICE, 0.0, ((0, 7), (8, 9)))]
    assert {(each.key, each.first, each.stop) for each in opened.partial_batches()} == {
        (key, 0, 5), (key, 5, 7), (key, 8, 9)
    }  # fmt: skip
    tracker.note(alice, *key)
    _save(opened, tracker)
    opened.pack(now_us=_NOW_US)
    assert opened.seen(key) == [Claim(_ALICE)]
    assert not list(opened.partial_batches())


def test_names_positions_and_attachments_are_there_after_a_restart(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "histories", HistorySettings(), now_us=_NOW_US)
    tracker = Tracker()
    _note(tracker, _ALICE, 1)
    tracker.attached(b"alice", b"t", 10, _NOW_US)
    tracker.attached(b"bob", b"t", 0, _NOW_US)
    tracker.received_up_to(b"alice", b"t", 11)
    tracker.published_up_to(_NOW_US - 5)
    _save(file, tracker)
    tracker.detached(b"bob", b"t", 12, _NOW_US + 1)
    tracker.attached(b"alice", b"t", 11, _NOW_US + 2)  # again, after a restart say: nothing new
    tracker.received_up_to(b"alice", b"t", 12)
    _save(file, tracker)
    file.close()
    again = HistoryFile(tmp_path / "histories", HistorySettings(), now_us=_NOW_US + 9)
    assert again.names() == {_ALICE: 1}
    assert Tracker(again.names()).number_of(_BOB) == 2
    assert again.received() == {(b"alice", b"t"): 12}
    assert (again.published_us, again.begins_us) == (_NOW_US - 5, _NOW_US)
    assert again.subscribers_of(b"t") == {b"alice", b"bob"}  # the one that left, too
    assert not again.subscribers_of(b"u")
    again.close()


def test_a_full_disk_keeps_what_was_saved_and_takes_the_rest_later(opened: HistoryFile) -> None:
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 100)
    tracker.received_up_to(b"alice", b"t", 1)
    _save(opened, tracker)
    opened._writer.pragma("max_page_count", opened._writer.pragma("page_count"))
    rng = np.random.default_rng(1)
    for stamp in rng.integers(0, _STAMP, 20_000).tolist():
        tracker.note(tracker.number_of(_ALICE), _WHO, stamp)
    tracker.received_up_to(b"alice", b"t", 2)
    taken = tracker.take()
    assert taken is not None
    with pytest.raises(StoreFull, match=r"nothing of the change was kept.*Free space"):
        opened.save(taken, now_us=_NOW_US)
    tracker.failed()
    assert opened.received() == {(b"alice", b"t"): 1}
    assert opened.seen((_WHO, _STAMP + 99)) == [Claim(_PUBLISHED)]
    assert tracker.seen((_WHO, stamp)) == [Claim(_ALICE)]
    tracker.note(tracker.number_of(_BOB), _WHO, 5)
    opened._writer.pragma("max_page_count", 1 << 30)
    _save(opened, tracker)
    assert opened.seen((_WHO, stamp)) == [Claim(_ALICE)]
    assert opened.seen((_WHO, 5)) == [Claim(_BOB)]
    assert opened.received() == {(b"alice", b"t"): 2}
    opened._writer.pragma("max_page_count", opened._writer.pragma("page_count"))
    with pytest.raises(StoreFull):
        opened.pack(now_us=_NOW_US)
    assert opened.seen((_WHO, stamp)) == [Claim(_ALICE)]
    opened._writer.pragma("max_page_count", 1 << 30)
    assert opened.pack(now_us=_NOW_US) == 20_101


def test_what_there_is_no_room_for_is_forgotten_and_the_positions_say_so(opened: HistoryFile) -> None:
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 10)
    tracker.received_up_to(b"alice", b"t", 1)
    assert len(tracker) == 10
    tracker.forget()
    assert len(tracker) == 0
    _note(tracker, _PUBLISHED, 2)
    _save(opened, tracker)
    assert opened.received() == {}
    assert opened.seen((_WHO, _STAMP)) == [Claim(_PUBLISHED)]


def test_packing_is_due_by_count_and_by_age(tmp_path: Path) -> None:
    settings = HistorySettings(pack_notes=10, pack_after_s=5)
    file = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    tracker = Tracker()
    assert not file.is_pack_due(_NOW_US + 10**9)
    _note(tracker, _PUBLISHED, 6)
    _save(file, tracker)
    assert [file.is_pack_due(_NOW_US + after_us) for after_us in (0, 4_999_999, 5_000_000)] == [False, False, True]
    _note(tracker, _PUBLISHED, 6, _STAMP + 6)
    _save(file, tracker, _NOW_US + 1_000_000)
    assert file.is_pack_due(_NOW_US)
    assert file.pack(now_us=_NOW_US) == 6, "so many as go at once"
    file.close()
    file = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    assert [file.is_pack_due(_NOW_US + after_us) for after_us in (5_999_999, 6_000_000)] == [False, True]
    file.close()


@pytest.mark.parametrize("bound", [{"max_age_s": 100.0}, {"max_bytes": 400_000}])
def test_the_oldest_is_dropped_whole_and_told(tmp_path: Path, bound: dict[str, float]) -> None:
    settings = HistorySettings(**bound)  # type: ignore[arg-type]
    file = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    tracker = Tracker()
    for each in range(20):
        _note(tracker, HistoryName("subscriber", 7, 0, b"%d" % each), 5000, _STAMP + each * 640_000)
        _save(file, tracker, _NOW_US + each * 10_000_000)
        file.pack(now_us=_NOW_US + each * 10_000_000)
        file.retain(now_us=_NOW_US + each * 10_000_000)
    assert _NOW_US < file.begins_us <= _NOW_US + 190_000_000 - 100_000_000
    dropped = (file.begins_us - _NOW_US) // 10_000_000 + 1
    assert [len(file.seen((_WHO, _STAMP + each * 640_000))) for each in range(20)] == [
        each >= dropped for each in range(20)
    ]
    file.close()
    file = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    assert len(file.names()) == 20 - dropped, "names of histories that are gone are forgotten"
    file.close()
    if "max_bytes" in bound:
        assert (tmp_path / "histories").stat().st_size <= bound["max_bytes"]


def test_a_newer_format_and_another_database_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "histories"
    HistoryFile(place, HistorySettings(), now_us=_NOW_US).close()
    for pragma, value, error in (
        ("user_version", FORMAT_VERSION + 1, StoreTooNew),
        ("application_id", 1, StoreCorrupt),
    ):
        with apsw.Connection(str(place), vfs=load_checksum_vfs()) as connection:
            connection.pragma(pragma, value)
        connection.close()
        with pytest.raises(error, match="nothing was changed"):
            HistoryFile(place, HistorySettings(), now_us=_NOW_US)


def test_an_export_has_everything(opened: HistoryFile) -> None:
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 5000)
    _note(tracker, _ALICE, 3)
    _save(opened, tracker)
    opened.pack(now_us=_NOW_US)
    _note(tracker, _PUBLISHED, 10, _STAMP + 5000)
    _save(opened, tracker)
    parts = list(opened.parts())
    for name, count in ((_PUBLISHED, 5010), (_ALICE, 3)):
        segments = [each.segment for each in parts if each[:4] == name]
        for stamp in range(_STAMP, _STAMP + count, 97):
            assert any(each.contains((_WHO, stamp)).seen for each in segments)
    assert sum(each.segment.count + len(each.segment.exact) // 16 for each in parts) == 5013


def test_false_positives_are_as_frequent_as_claims_say(tmp_path: Path) -> None:
    settings = HistorySettings(accuracy=Accuracy(efpp=0.05, capacity=200, peak_per_s=100), fewest_keys=1)
    file = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    tracker = Tracker()
    for each in range(300):
        _note(tracker, HistoryName("subscriber", 7, 0, b"%d" % each), 200)
    _save(file, tracker)
    file.pack(now_us=_NOW_US)
    found = [claim for publisher in range(2, 20) for claim in file.seen((7 << 32 | publisher, _STAMP + 100))]
    expected = 300 * 18 * found[0].efpp
    assert expected > 100
    assert abs(len(found) - expected) < 4 * expected**0.5
    file.close()


def test_a_reader_misses_nothing_while_another_thread_saves_and_packs(opened: HistoryFile) -> None:
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 200)
    _save(opened, tracker)

    def write() -> None:
        for each in range(1, 15):
            _note(tracker, _PUBLISHED, 200, _STAMP + 200 * each)
            _save(opened, tracker)
            opened.pack(now_us=_NOW_US)

    writer = threading.Thread(target=write)
    writer.start()
    asked = 0
    while writer.is_alive() or not asked:
        assert [claim.history for claim in opened.seen((_WHO, _STAMP + asked % 200))] == [_PUBLISHED]
        asked += 1
    writer.join()
