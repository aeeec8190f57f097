"""Histories through saves, packings, restarts, crashes and full disks: nothing that was noted is missing, and no stamp
is in the ranges of more filters than promised."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.model.errors import StoreFull
from clarion.model.ids import stamp_from_unix_s
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.history import Key
from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.tracker import HistoryName, Strategy, Tracker, merge_claims

_NOW_US = 1_750_000_000_000_000
_NOW = stamp_from_unix_s(_NOW_US / 1e6)
_NAMES = [HistoryName("publisher", 7), HistoryName("routing", 7, 3), HistoryName("subscriber", 7, 0, b"alice")]

offs = st.one_of(st.integers(-5, 5), st.integers(-60, 60), st.integers(-5000, 0), st.just(1 << 40))
bursts = st.tuples(
    st.just("note"), st.sampled_from(_NAMES), st.integers(0, 2), st.integers(1, 30), st.integers(0, 9), offs
)
others = st.sampled_from(["save", "pack", "restart", "crash", "full"]).map(lambda what: (what,))
events = st.lists(st.one_of(bursts, others), max_size=40)


class _Broker:
    """A tracker, its file, and what a log would have: all that was noted, and how much of it is saved."""

    def __init__(self, place: Path, kept: HistorySettings) -> None:
        self._place, self._kept = place, kept
        self.log: list[tuple[HistoryName, Key]] = []
        self._open()

    def _open(self) -> None:
        self.file = HistoryFile(self._place, self._kept, now_us=_NOW_US)
        self.tracker = Tracker(self.file.names())

    def note(self, name: HistoryName, publisher: int, count: int, step: int, off: int) -> None:
        for each in range(count):
            key = (7 << 32 | publisher, _NOW + len(self.log) + each * step + off)
            self.log.append((name, key))
            self.tracker.note(self.tracker.number_of(name), *key)
        self.tracker.received_up_to(b"", b"", len(self.log))

    def save(self) -> None:
        if (taken := self.tracker.take()) is not None:
            try:
                self.file.save(taken, now_us=_NOW_US)
                self.tracker.saved()
            except StoreFull:
                self.tracker.failed()

    def pack(self) -> None:
        try:
            self.file.pack(now_us=_NOW_US)
        except StoreFull:
            return

    def restart(self) -> None:
        self.save()
        self.crash()

    def crash(self) -> None:
        self.file.close()
        self._open()
        for name, key in self.log[self.file.received().get((b"", b""), 0) :]:
            self.tracker.note(self.tracker.number_of(name), *key)
        self.tracker.received_up_to(b"", b"", len(self.log))

    def full(self) -> None:
        """Have one save and one packing meet a full disk."""
        pages = self.file._writer.pragma("max_page_count", self.file._writer.pragma("page_count"))
        self.save()
        self.pack()
        self.file._writer.pragma("max_page_count", max(1 << 30, pages))

    def check(self) -> None:
        for name, key in self.log:
            claims = merge_claims([*self.tracker.seen(key), *self.file.seen(key)])
            assert name in [claim.history for claim in claims]


def _do(broker: _Broker, told: list[tuple[object, ...]]) -> None:
    for what, *rest in told:
        method: Callable[..., None] = getattr(broker, str(what))
        method(*rest)


@settings(max_examples=50)
@given(events, st.integers(0, 2), st.integers(1, 12), st.sampled_from([1, 4]), st.sampled_from(["bloom", "log"]))
def test_nothing_is_missing_and_no_stamp_is_in_too_many_filters(
    told: list[tuple[object, ...]], overlap: int, capacity: int, fewest: int, strategy: Strategy
) -> None:
    accuracy = Accuracy(efpp=0.01, overlap=overlap, capacity=capacity, skew_s=0.0)
    kept = HistorySettings(strategy, accuracy, pack_notes=200, fewest_keys=fewest)
    with tempfile.TemporaryDirectory() as folder:
        broker = _Broker(Path(folder) / "histories", kept)
        _do(broker, told)
        broker.check()
        broker.restart()
        broker.pack()
        broker.check()
        ranges: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for *name, segment, _parts in broker.file.parts():
            if segment.count:
                assert segment.count <= capacity
                ranges.setdefault(tuple(name), []).append((segment.first, segment.last))
        for some in ranges.values():
            marks = {mark for each in some for mark in each}
            assert max(sum(first <= mark <= last for first, last in some) for mark in marks) <= accuracy.matching
        assert strategy == "bloom" or not ranges
        broker.file.close()
