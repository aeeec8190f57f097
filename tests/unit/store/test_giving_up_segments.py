"""Crashes around the moment when a segment that holds nothing any more is given up."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.store.making import Maker, all_batches, crash_image, open_segmented

from clarion.model.errors import StoreCorrupt
from clarion.store.port import UNTIL_READ, Changes, Trim
from clarion.store.segmented import SegmentedStore

_SEGMENT = 256 << 10


class Killed(BaseException):
    """Stands for the end of the process."""


def _filled(folder: Path, maker: Maker, **settings: object) -> tuple[SegmentedStore, int]:
    """Return a store with a topic that fills several segments."""
    store = open_segmented(folder, segment_bytes=_SEGMENT, **settings)
    changes = Changes()
    topic = maker.topic(changes, b"t", UNTIL_READ)
    store.commit(changes)
    for number in range(40):
        changes = Changes()
        maker.put(changes, topic, [bytes([number]) * 30_000])
        store.commit(changes)
    return store, topic


def _trim(maker: Maker, topic: int, below: int) -> Changes:
    changes = Changes()
    end, last_us, total = maker.next_offset[topic], maker.last_us[topic], maker.bytes_total[topic]
    changes.trims[topic] = Trim(topic, below, end, last_us, total)
    return changes


def _offsets(store: SegmentedStore, topic: int) -> list[int]:
    return [batch.first_offset for batch in all_batches(store, topic)]


def test_a_kill_between_giving_up_the_file_and_its_row_leaves_a_store_that_works(tmp_path: Path) -> None:
    def die(point: str) -> None:
        if point == "inside-give-up":
            raise Killed

    maker = Maker()
    store, topic = _filled(tmp_path / "data", maker, crash_points=die)
    with pytest.raises(Killed):
        store.commit(_trim(maker, topic, 20))
    image = crash_image(store, tmp_path / "image")
    again = open_segmented(image, segment_bytes=_SEGMENT)
    assert _offsets(again, topic) == list(range(20, 40))
    changes = Changes()
    maker.put(changes, topic, [b"more"])
    again.commit(changes)
    assert _offsets(again, topic) == list(range(20, 41))
    again.close()


def test_a_power_cut_after_a_trim_leaves_a_store_that_works(tmp_path: Path) -> None:
    maker = Maker()
    store, topic = _filled(tmp_path / "data", maker, checkpoint_bytes=1)
    store._checkpoint_bytes = 1 << 30  # what follows stays in SQLite's own log …
    store.commit(_trim(maker, topic, 20))
    image = crash_image(store, tmp_path / "image")
    (image / "clarion.db-wal").write_bytes(b"")  # … and a power cut takes that
    (image / "clarion.db-shm").unlink()
    again = open_segmented(image, segment_bytes=_SEGMENT)
    assert _offsets(again, topic) == list(range(20, 40))
    again.close()
    store.close()


def test_a_segment_that_is_missed_is_told(tmp_path: Path) -> None:
    store, _ = _filled(tmp_path, Maker())
    store.close()
    (tmp_path / "log" / "0000000002.seg").unlink()
    with pytest.raises(StoreCorrupt, match=r"0000000002\.seg is missing"):
        open_segmented(tmp_path, segment_bytes=_SEGMENT)
