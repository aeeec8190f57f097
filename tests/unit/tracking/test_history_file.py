"""The file of histories: what was saved is found, whatever happens in between; what is dropped is told."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pytest

from clarion.model.errors import BadSettings, StoreCorrupt, StoreFailed, StoreFull, StoreTooNew, StoreUnavailable
from clarion.model.ids import STAMP_LIMIT, stamp_from_unix_s, stamp_to_unix_s
from clarion.store.index import load_checksum_vfs
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.exported import About, Export
from clarion.tracking.history_file import FORMAT_VERSION, HistoryFile, HistorySettings
from clarion.tracking.packing import Block, Notes
from clarion.tracking.tracker import GONE, Claim, HistoryName, Tracker, Unsaved
from clarion.tracking.verdicts import STATES, HistoryIndex

_NOW_US = 1_750_000_000_000_000
_STAMP = stamp_from_unix_s(_NOW_US / 1e6)
_BROKER = 0x9C540706  # a key with it takes all of 64 bits
_WHO = _BROKER << 32 | 1
_PUBLISHED = HistoryName("publisher", _BROKER)
_ALICE = HistoryName("subscriber", _BROKER, 0, b"alice")
_BOB = HistoryName("subscriber", _BROKER, 0, b"bob")

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


@pytest.mark.parametrize("broker", [1, 7, 0x7FFFFFFF, 0x80000000, _BROKER, 0xFFFFFFFF])
def test_a_batch_of_any_broker_is_found_in_filters(opened: HistoryFile, broker: int) -> None:
    tracker = Tracker()
    number = tracker.number_of(HistoryName("publisher", broker))
    for stamp in range(_STAMP, _STAMP + 500):
        tracker.note(number, broker << 32 | 0xFFFFFFFF, stamp)
    _save(opened, tracker)
    opened.pack(now_us=_NOW_US)
    for stamp in range(_STAMP, _STAMP + 500):
        (claim,) = opened.seen((broker << 32 | 0xFFFFFFFF, stamp))
        assert claim.efpp > 0


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
    exported = {struct.unpack(">QQII", part.parts) for part in opened.parts()}
    assert exported == {(*key, 0, 5), (*key, 5, 7), (*key, 8, 9)}
    tracker.note(alice, *key)
    _save(opened, tracker)
    opened.pack(now_us=_NOW_US)
    assert opened.seen(key) == [Claim(_ALICE)]
    assert [part.parts for part in opened.parts()] == [b""]


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


@pytest.mark.parametrize("fails", ["full", "locked", "before anything is written"])
def test_notes_arrive_while_a_save_fails_and_its_error_is_still_told(
    opened: HistoryFile, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker()
    number = tracker.number_of(_ALICE)
    for stamp in np.random.default_rng(1).integers(0, _STAMP, 20_000).tolist():
        tracker.note(number, _WHO, stamp)
    opened._writer.set_busy_timeout(0)
    locking = apsw.Connection(str(opened.file), vfs=load_checksum_vfs())
    if fails == "full":
        opened._writer.pragma("max_page_count", opened._writer.pragma("page_count"))
    elif fails == "locked":
        locking.execute("BEGIN IMMEDIATE")
    else:
        monkeypatch.setattr("clarion.tracking.history_file.make_blocks", _fail_with_a_view)
    taken = _take(tracker)
    tracker.note(number, _WHO, 1)
    with pytest.raises((StoreFull, StoreUnavailable, MemoryError)) as told:
        opened.save(taken, now_us=_NOW_US)
    assert told.value.__traceback__ is not None  # which has the frames, and what they look at
    tracker.failed()
    tracker.note(number, _WHO, 2)
    monkeypatch.undo()
    locking.close()
    opened._writer.pragma("max_page_count", 1 << 30)
    _save(opened, tracker)
    for found in (stamp, 1, 2):
        assert opened.seen((_WHO, found)) == [Claim(_ALICE)]


def _fail_with_a_view(notes: Notes) -> Iterator[Block]:
    raise MemoryError(notes.shape)


def test_packing_is_due_by_count_and_by_age(tmp_path: Path) -> None:
    settings = HistorySettings(accuracy=Accuracy(persist_s=5), pack_notes=10)
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
        _note(tracker, HistoryName("subscriber", _BROKER, 0, b"%d" % each), 5000, _STAMP + each * 640_000)
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


def _drop_all(file: HistoryFile) -> None:
    retained = file.retain(now_us=1 << 60)
    assert retained.dropped
    assert retained.begins_us == file.begins_us
    assert file.retain(now_us=1 << 60) == (0, 0)


def _pack_one(file: HistoryFile, tracker: Tracker, stamp: int, now_us: int) -> None:
    _note(tracker, _PUBLISHED, 1, stamp)
    _save(file, tracker, now_us)
    file.pack(now_us=now_us)


def test_what_may_have_been_dropped_is_not_told_as_never_seen(tmp_path: Path) -> None:
    """Clocks of publishers are off by the skew, and may be ahead by more: outboxes and transactions are not set right;
    the broker's own may be ahead for a while, and be put back."""
    file = HistoryFile(tmp_path / "histories", HistorySettings(max_age_s=60.0), now_us=_NOW_US)
    tracker = Tracker()
    _pack_one(file, tracker, _STAMP, _NOW_US + 10)
    _drop_all(file)
    assert file.begins_us == _NOW_US + 10 + 200_000
    ahead_us = _NOW_US + 600_000_000
    ahead = stamp_from_unix_s(ahead_us / 1e6)
    _pack_one(file, tracker, ahead, _NOW_US + 20)
    _drop_all(file)
    begins_us = file.begins_us
    assert stamp_to_unix_s(ahead) * 1e6 < begins_us < ahead_us + 1000
    _pack_one(file, tracker, _STAMP + 1, _NOW_US + 30)
    _drop_all(file)
    assert file.begins_us == begins_us
    _pack_one(file, tracker, STAMP_LIMIT - 1, _NOW_US + 40)
    _drop_all(file)
    assert file.begins_us == _NOW_US + 40 + 86_400_000_000, "one stamp alone does not hide all that comes for years"
    file.close()


def test_a_history_of_which_all_was_dropped_but_what_is_not_packed_keeps_its_name(tmp_path: Path) -> None:
    settings = HistorySettings(max_age_s=60.0)
    for each, is_part in enumerate((False, True)):
        place = tmp_path / f"histories-{each}"
        file = HistoryFile(place, settings, now_us=_NOW_US)
        tracker = Tracker()
        _pack_one(file, tracker, _STAMP, _NOW_US)
        number = tracker.number_of(_PUBLISHED)
        if is_part:
            tracker.note_part(number, _WHO, _STAMP + 1, 0, 2)
        else:
            tracker.note(number, _WHO, _STAMP + 1)
        _save(file, tracker)
        _drop_all(file)
        file.close()
        file = HistoryFile(place, settings, now_us=_NOW_US)
        assert file.names() == {_PUBLISHED: number}
        assert file.seen((_WHO, _STAMP)) == []
        assert file.seen((_WHO, _STAMP + 1)) == [Claim(_PUBLISHED, 0.0, ((0, 2),) if is_part else ())]
        file.close()


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


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("PRAGMA user_version = 0", "does not say its format"),
        ("DELETE FROM meta WHERE key = 'salt'", "has lost what its filters were made with"),
        ("DROP TABLE part", "lack something that belongs to them .*no such table: part"),
        ("ALTER TABLE block RENAME notes TO count", "lack something that belongs to them .*no such column: notes"),
    ],
)
def test_a_file_that_lacks_something_is_refused_with_what_to_do(tmp_path: Path, change: str, why: str) -> None:
    place = tmp_path / "histories"
    HistoryFile(place, HistorySettings(), now_us=_NOW_US).close()
    with apsw.Connection(str(place), vfs=load_checksum_vfs()) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(StoreCorrupt, match=f"{why}.*Move this file away .*, and histories begin anew"):
        HistoryFile(place, HistorySettings(), now_us=_NOW_US)


def test_a_file_that_cannot_be_opened_or_written_is_told_with_what_to_do(opened: HistoryFile, tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(tmp_path / "missing" / "histories")
    for place, advised in ((folder, "a folder of that name"), (link, "a link to .*missing/histories, .* remove it")):
        with pytest.raises(BadSettings, match=f"{place} cannot be opened for writing: .*{advised}"):
            HistoryFile(place, HistorySettings(), now_us=_NOW_US)
    opened._writer.pragma("query_only", True)  # as permissions do
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 1)
    with pytest.raises(BadSettings, match=r"cannot be opened for writing: .*see the permissions of .*histories"):
        opened.save(_take(tracker), now_us=_NOW_US)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_was_taken_away_is_noticed_at_the_next_save(opened: HistoryFile, is_replaced: bool) -> None:
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 1)
    _save(opened, tracker)
    opened.file.rename(opened.file.with_name("elsewhere"))
    if is_replaced:
        opened.file.write_bytes(opened.file.with_name("elsewhere").read_bytes())
    _note(tracker, _PUBLISHED, 1, _STAMP + 1)
    with pytest.raises(StoreFailed, match="histories was taken away"):
        opened.save(_take(tracker), now_us=_NOW_US)


def test_opening_again_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it needs no room, and no lock: names that could be forgotten are, where that can be done."""
    place = tmp_path / "histories"
    file = HistoryFile(place, HistorySettings(max_age_s=60.0), now_us=_NOW_US, broker=_BROKER)
    _pack_one(file, Tracker(), _STAMP, _NOW_US)
    _drop_all(file)
    locking = apsw.Connection(str(place), vfs=load_checksum_vfs())
    locking.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("clarion.tracking.history_file._BUSY_MS", 0)
    again = HistoryFile(place, HistorySettings(), now_us=_NOW_US, broker=_BROKER)
    assert (again.broker, len(again.names())) == (_BROKER, 1)
    again.close()
    locking.close()
    again = HistoryFile(place, HistorySettings(), now_us=_NOW_US, broker=_BROKER)
    assert (again.broker, again.names()) == (_BROKER, {})
    again.close()
    file.close()


def test_an_export_has_everything(opened: HistoryFile) -> None:
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 5000)
    _note(tracker, _ALICE, 3)
    _save(opened, tracker)
    opened.pack(now_us=_NOW_US)
    _note(tracker, _PUBLISHED, 10, _STAMP + 5000)
    _save(opened, tracker)
    parts = list(opened.parts())
    about = About(broker=_BROKER, name="here", strategy="bloom", efpp=1e-5, begins=0)
    asked = np.array([(_WHO, stamp << 16) for stamp in range(_STAMP, _STAMP + 5010)], dtype=np.uint64)
    found = HistoryIndex([Export(about, parts)]).judge(asked)
    assert [STATES[found.states[row]] for row in found.rows] == ["delivered"] * 3 + ["stopped"] * 5007
    assert sum(each.segment.count + len(each.segment.exact) // 16 for each in parts) == 5013


def test_false_positives_are_as_frequent_as_claims_say(tmp_path: Path) -> None:
    settings = HistorySettings(accuracy=Accuracy(efpp=0.05, capacity=200, peak_per_s=100), fewest_keys=1)
    file = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    tracker = Tracker()
    for each in range(300):
        _note(tracker, HistoryName("subscriber", _BROKER, 0, b"%d" % each), 200)
    _save(file, tracker)
    file.pack(now_us=_NOW_US)
    found = [claim for publisher in range(2, 20) for claim in file.seen((_BROKER << 32 | publisher, _STAMP + 100))]
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


def _take(tracker: Tracker) -> Unsaved:
    unsaved = tracker.take()
    assert unsaved is not None
    return unsaved


def test_a_time_in_which_nothing_was_tracked_is_kept_and_exported(opened: HistoryFile, tmp_path: Path) -> None:
    tracker = Tracker()
    _note(tracker, _PUBLISHED, 10)
    opened.save(_take(tracker), now_us=_NOW_US + 5)
    assert opened.gaps() == ()
    opened.add_gap(until_us=_NOW_US + 50)
    assert opened.gaps() == ((_NOW_US + 5, _NOW_US + 50),)


def test_histories_of_another_broker_are_refused(tmp_path: Path) -> None:
    HistoryFile(tmp_path / "histories", HistorySettings(), now_us=_NOW_US, broker=0xA1).close()
    with pytest.raises(StoreCorrupt, match="has the histories of broker 000000a1, and this is 000000a2"):
        HistoryFile(tmp_path / "histories", HistorySettings(), now_us=_NOW_US, broker=0xA2)
    HistoryFile(tmp_path / "histories", HistorySettings(), now_us=_NOW_US, broker=0xA1).close()


def test_who_does_not_subscribe_any_more_has_no_position(opened: HistoryFile) -> None:
    tracker = Tracker()
    tracker.received_up_to(b"alice", b"t", 7)
    opened.save(_take(tracker), now_us=_NOW_US)
    assert opened.received() == {(b"alice", b"t"): 7}
    tracker.saved()
    tracker.detached(b"alice", b"t", 7, _NOW_US)
    opened.save(_take(tracker), now_us=_NOW_US)
    assert opened.received() == {}


def test_parts_of_batches_alone_are_packed_too(tmp_path: Path) -> None:
    settings = HistorySettings(accuracy=Accuracy(persist_s=1.0), max_age_s=1.0)
    file = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    tracker = Tracker()
    number = tracker.number_of(HistoryName("subscriber", 1, 0, b"alice"))
    tracker.note_part(number, 1 << 32 | 1, 5, 0, 2)
    file.save(_take(tracker), now_us=_NOW_US)
    assert file.is_pack_due(_NOW_US + 2_000_000)
    file.pack(now_us=_NOW_US + 2_000_000)
    assert not file.is_pack_due(_NOW_US + 9_000_000)
    assert [claim.parts for claim in file.seen((1 << 32 | 1, 5))] == [((0, 2),)]
    assert file.retain(now_us=_NOW_US + 9_000_000).dropped == 1
    assert file.seen((1 << 32 | 1, 5)) == []
    file.close()
    again = HistoryFile(tmp_path / "histories", settings, now_us=_NOW_US)
    assert again.names() == {}
    again.close()


def test_of_what_could_not_be_saved_the_last_position_counts() -> None:
    tracker = Tracker()
    tracker.received_up_to(b"alice", b"news", 5)
    tracker.received_up_to(b"bob", b"news", 5)
    assert tracker.take() is not None
    tracker.received_up_to(b"alice", b"news", 7)
    tracker.detached(b"bob", b"news", 5, _NOW_US)
    tracker.failed()
    again = tracker.take()
    assert again is not None
    assert again.received == {(b"alice", b"news"): 7, (b"bob", b"news"): GONE}
