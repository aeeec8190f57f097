"""Every store that keeps the promises of the port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.store.failing_disk import Disk
from tests.unit.store.making import open_segmented

from clarion.store.memory import MemoryStore
from clarion.store.port import Store

_OPEN: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "segmented": open_segmented,
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
