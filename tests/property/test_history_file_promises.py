"""Histories through saves, packings, restarts, crashes and full disks: nothing that was noted is missing, and no stamp
is in the ranges of more filters than promised."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from clarion.model.errors import StoreFull
from clarion.model.ids import stamp_from_unix_s
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.bloom import Key
from clarion.tracking.history_file import HistoryFile, HistorySettings
from clarion.tracking.tracker import HistoryName, Kind, Strategy, Tracker, merge_claims

_NOW_US = 1_750_000_000_000_000
_AFTER_US = 1_000_000  # when notes are packed: stamps that are later than that are not believed
_NOW = stamp_from_unix_s(_NOW_US / 1e6)
_KINDS: list[tuple[Kind, int, bytes]] = [("publisher", 0, b""), ("routing", 3, b""), ("subscriber", 0, b"alice")]

offs = st.one_of(st.integers(-5, 5), st.integers(-60, 60), st.integers(-5000, 0), st.just(1 << 40))
bursts = st.tuples(
    st.just("note"), st.integers(0, len(_KINDS) - 1), st.integers(0, 2), st.integers(1, 30), st.integers(0, 9), offs
)
settled = st.just(("settle",))
others = st.sampled_from(["save", "pack", "restart", "crash", "full"]).map(lambda what: (what,))
turns = st.tuples(st.lists(bursts, max_size=4), st.one_of(settled, others))
events = st.lists(turns, max_size=12).map(lambda told: [event for noted, then in told for event in (*noted, then)])
strategies = st.sampled_from(["bloom", "bloom", "bloom", "log"])
brokers = st.integers(1, (1 << 32) - 1) | st.just(0x9C540706)


class _Broker:
    """A tracker, its file, and what a log would have: all that was noted, and how much of it is saved."""

    def __init__(self, place: Path, kept: HistorySettings, broker: int) -> None:
        self._place, self._kept, self._broker = place, kept, broker
        self.log: list[tuple[HistoryName, Key]] = []
        self._open()

    def _open(self) -> None:
        self.file = HistoryFile(self._place, self._kept, now_us=_NOW_US)
        self.tracker = Tracker(self.file.names())

    def note(self, kind: int, publisher: int, count: int, step: int, off: int) -> None:
        what, via, subscriber = _KINDS[kind]
        name = HistoryName(what, self._broker, via, subscriber)
        for each in range(count):
            key = (self._broker << 32 | publisher, _NOW + len(self.log) + each * step + off)
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
            self.file.pack(now_us=_NOW_US + _AFTER_US)
        except StoreFull:
            return

    def settle(self) -> None:
        self.save()
        self.pack()

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
        self.settle()
        self.file._writer.pragma("max_page_count", max(1 << 30, pages))

    def check(self) -> None:
        for name, key in self.log:
            claims = merge_claims([*self.tracker.seen(key), *self.file.seen(key)])
            assert name in [claim.history for claim in claims]


def _do(broker: _Broker, told: list[tuple[object, ...]]) -> None:
    for what, *rest in told:
        method: Callable[..., None] = getattr(broker, str(what))
        method(*rest)


@given(events, st.integers(0, 2), st.integers(1, 12), st.sampled_from([1, 4]), strategies, brokers)
def test_nothing_is_missing_and_no_stamp_is_in_too_many_filters(
    told: list[tuple[object, ...]], overlap: int, capacity: int, fewest: int, strategy: Strategy, origin: int
) -> None:
    accuracy = Accuracy(efpp=0.01, overlap=overlap, capacity=capacity, skew_s=0.0)
    kept = HistorySettings(strategy, accuracy, pack_notes=200, fewest_keys=fewest)
    with tempfile.TemporaryDirectory() as folder:
        broker = _Broker(Path(folder) / "histories", kept, origin)
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
