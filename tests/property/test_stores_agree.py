"""Whatever is committed, a store on disk tells the same as the store in memory, reopened or not."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.making import Maker, everything, open_segmented, subscribe

from clarion.store.memory import MemoryStore
from clarion.store.port import KEEP, UNTIL_READ, Changes, PublisherRow, Store

PUBLISHERS = (1, 2, 3)
_place = st.integers(0, 5)
_step = st.one_of(
    st.tuples(st.just("topic"), _place, st.binary(min_size=1, max_size=3)),
    st.tuples(st.just("put"), _place, st.tuples(st.sampled_from(PUBLISHERS), st.integers(1, 5), st.integers(0, 9000))),
    st.tuples(st.just("trim"), _place, st.integers(0, 30)),
    st.tuples(st.just("subscribe"), _place, st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 1 << 62))),
    st.tuples(st.just("unsubscribe"), _place, st.binary(min_size=1, max_size=1)),
    st.tuples(st.just("publisher"), st.sampled_from(PUBLISHERS), st.integers(0, 1 << 50)),
    st.tuples(st.just("forget"), st.sampled_from(PUBLISHERS), st.none()),
)
_life = st.lists(st.lists(_step, max_size=8), max_size=8)  # the changes of each commit


class _Driver:
    """Turns steps into changes that keep the port's rules."""

    def __init__(self) -> None:
        self.maker = Maker()
        self.names: dict[bytes, int] = {}

    def changes(self, steps: list[tuple[str, int, object]]) -> Changes:
        changes = Changes()
        for step, place, detail in steps:
            getattr(self, f"_{step}")(changes, place, detail)
        for topic, trim in changes.trims.items():  # A trim says where the topic stands after the whole change.
            self.maker.trim(changes, topic, min(trim.below, self.maker.next_offset[topic]))
        return changes

    def _topic(self, changes: Changes, place: int, name: bytes) -> None:
        retention = (KEEP, UNTIL_READ)[place % 2]
        if name not in self.names:
            self.names[name] = self.maker.topic(changes, name, retention)

    def _number(self, place: int) -> int | None:
        return place % len(self.names) + 1 if self.names else None

    def _put(self, changes: Changes, place: int, detail: tuple[int, int, int]) -> None:
        publisher, count, size = detail
        if (topic := self._number(place)) and publisher not in changes.gone_publishers:
            self.maker.put(changes, topic, [bytes([place]) * size] * count, publisher)

    def _trim(self, changes: Changes, place: int, below: int) -> None:
        if topic := self._number(place):
            self.maker.trim(changes, topic, below)

    def _subscribe(self, changes: Changes, place: int, detail: tuple[bytes, int]) -> None:
        topic = self._number(place)
        if topic and (topic, detail[0]) not in changes.gone_subscriptions:
            subscribe(changes, topic, *detail)

    def _unsubscribe(self, changes: Changes, place: int, name: bytes) -> None:
        topic = self._number(place)
        if topic and (topic, name) not in changes.subscriptions:
            changes.gone_subscriptions.add((topic, name))

    def _publisher(self, changes: Changes, publisher: int, seen_at_us: int) -> None:
        if publisher not in changes.gone_publishers:
            changes.publishers[publisher] = PublisherRow(publisher, b"of %d" % publisher, seen_at_us)

    def _forget(self, changes: Changes, publisher: int, _: None) -> None:
        if publisher not in changes.publishers:
            changes.gone_publishers.add(publisher)


def _told(store: Store, driver: _Driver) -> object:
    times = range(driver.maker.clock_us - 20_000, driver.maker.clock_us + 2000, 500)
    offsets = {topic: [store.offset_at(topic, at_us) for at_us in times] for topic in driver.maker.next_offset}
    return everything(store, PUBLISHERS), offsets


def _agree(life: list[list[tuple[str, int, object]]], reopen_every: int, opened: Callable[[Path], Store]) -> None:
    driver, memory = _Driver(), MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        store = opened(Path(folder))
        for place, steps in enumerate(life):
            changes = driver.changes(steps)
            memory.commit(changes)
            store.commit(changes)
            if place % reopen_every == 0:
                store.close()
                store = opened(Path(folder))
            assert _told(store, driver) == _told(memory, driver)
        store.close()


@settings(max_examples=60, deadline=None)
@given(life=_life, reopen_every=st.integers(1, 4), segment_bytes=st.sampled_from([4096, 32768, 1 << 20]))
def test_segments_tell_the_same_as_memory(
    life: list[list[tuple[str, int, object]]], reopen_every: int, segment_bytes: int
) -> None:
    opened = partial(open_segmented, checkpoint_bytes=64 << 10, page_bytes=1024, segment_bytes=segment_bytes)
    _agree(life, reopen_every, opened)
