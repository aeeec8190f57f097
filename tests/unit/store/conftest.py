"""Every store that keeps the promises of the port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.store.failing_disk import Disk
from tests.unit.store.making import SMALL_LOG, SMALL_SEGMENT, open_segmented

from clarion.store.memory import MemoryStore
from clarion.store.port import Changes, Store
from clarion.store.segmented import SegmentedStore


class IndexLater(SegmentedStore):
    """A store whose commits all leave the index for later."""

    def commit(self, changes: Changes, *, index_later: bool = True) -> None:
        super().commit(changes, index_later=True)


_OPEN: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "segmented": open_segmented,
    "index later": lambda folder: IndexLater(folder, segment_bytes=SMALL_SEGMENT, checkpoint_bytes=SMALL_LOG),
    "index later, small segments": lambda folder: IndexLater(folder, segment_bytes=16 << 10, checkpoint_bytes=64 << 10),
    "small segments": lambda folder: open_segmented(folder, segment_bytes=4096, checkpoint_bytes=1),
}


@pytest.fixture(params=_OPEN)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = _OPEN[request.param](tmp_path / "data")
    yield opened
    opened.close()


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk("failing disk")
    yield made
    made.unregister()
