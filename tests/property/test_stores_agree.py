"""Whatever is committed, a store on disk tells the same as the store in memory, reopened or not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.making import WRITERS, Maker, crash_image, everything, open_segmented, subscribe

from clarion.model.ids import RECEIPTS_KEPT
from clarion.store.index import load_checksum_vfs, make_index
from clarion.store.index_runs import write_records
from clarion.store.index_writes import write_record
from clarion.store.memory import MemoryStore
from clarion.store.packed_receipts import unpack_receipts
from clarion.store.port import (
    KEEP,
    UNTIL_READ,
    Answer,
    Changes,
    PatternRow,
    PublisherRow,
    ReturnedRow,
    StateRow,
    Store,
    TopicRow,
    WriterRow,
)
from clarion.store.records import Draft, Record, entry_of
from clarion.store.segments import SegmentRow, SegmentRows

PUBLISHERS = (1, 2, 3)
EPOCHS = 3
Step = tuple[str, int, Any]

_place = st.integers(0, 5)
_name = st.binary(min_size=1, max_size=1)
_count = st.integers(1, 5)
_size = st.integers(0, 9000)
_time = st.integers(0, 1 << 50)
_of_topics = st.one_of(
    st.tuples(st.just("topic"), _place, st.binary(min_size=1, max_size=3)),
    st.tuples(st.just("configure"), _place, st.binary(max_size=3)),
    st.tuples(st.just("delete"), _place, st.none()),
    st.tuples(st.just("put"), _place, st.tuples(st.sampled_from(PUBLISHERS), _count, _size, _time)),
    st.tuples(st.just("put"), _place, st.tuples(st.sampled_from(PUBLISHERS), _count, _size, st.just(0))),
    st.tuples(st.just("trim"), _place, st.integers(0, 30)),
    st.tuples(st.just("subscribe"), _place, st.tuples(_name, st.integers(0, 1 << 62), st.binary(max_size=3))),
    st.tuples(st.just("move"), _place, st.integers(0, 1 << 62)),
    st.tuples(st.just("unsubscribe"), _place, _name),
    st.tuples(st.just("give_back"), _place, st.tuples(_name, _place, _time, st.text(max_size=3))),
    st.tuples(st.just("settle"), _place, st.tuples(_name, _place)),
)
_of_staged = st.one_of(
    st.tuples(st.just("stage"), _place, st.tuples(st.sampled_from(WRITERS), _place, _count, _size)),
    st.tuples(st.just("delay"), _place, st.tuples(st.integers(1, 1 << 50), _count, _size)),
    st.tuples(st.just("release"), _place, _time),
    st.tuples(st.just("release"), _place, st.just(0)),
    st.tuples(st.just("progress"), _place, st.none()),
    st.tuples(st.just("drop"), _place, st.none()),
    st.tuples(st.just("writer"), _place, st.sampled_from(WRITERS)),
    st.tuples(st.just("decide"), _place, st.none()),
)
_of_others = st.one_of(
    st.tuples(st.just("publisher"), st.sampled_from(PUBLISHERS), _time),
    st.tuples(st.just("forget"), st.sampled_from(PUBLISHERS), st.none()),
    st.tuples(st.just("answer"), st.sampled_from(PUBLISHERS), st.binary(max_size=3)),
    st.tuples(st.just("set"), _place, st.binary(max_size=300)),
    st.tuples(st.just("unset"), _place, st.none()),
    st.tuples(st.just("pattern"), _place, st.binary(max_size=3)),
    st.tuples(st.just("forget_pattern"), _place, st.none()),
)
_step = st.one_of(_of_topics, _of_topics, _of_staged, _of_others)
_life = st.lists(st.lists(_step, max_size=10), max_size=8)  # the changes of each commit


class _Driver:
    """Turns steps into changes that keep the port's rules."""

    def __init__(self) -> None:
        self.maker = Maker()
        self.names: dict[bytes, int] = {}
        self.answered = dict.fromkeys(PUBLISHERS, 0)
        self.version = 0
        self.subscribed: set[tuple[int, bytes]] = set()

    def changes(self, steps: list[Step]) -> Changes:
        changes = Changes()
        deleted: list[bytes] = []  # names that are free from the next change on
        for step, place, detail in steps:
            if step == "delete":
                deleted += self._delete(changes, place)
            elif step == "topic":
                if detail not in self.names and detail not in deleted:
                    self.names[detail] = self.maker.topic(changes, detail, (KEEP, UNTIL_READ)[place % 2])
            else:
                getattr(self, f"_{step}")(changes, place, detail)
        for topic, trim in changes.trims.items():  # A trim says where the topic stands after the whole change.
            if topic in self.maker.next_offset:
                self.maker.trim(changes, topic, min(trim.below, self.maker.next_offset[topic]))
        return changes

    def _number(self, place: int) -> int | None:
        numbers = list(self.names.values())
        return numbers[place % len(numbers)] if numbers else None

    def _delete(self, changes: Changes, place: int) -> list[bytes]:
        topic = self._number(place)
        if topic is None:
            return []
        name = next(name for name, number in self.names.items() if number == topic)
        del self.names[name]
        self.maker.delete(changes, topic)
        self.subscribed = {key for key in self.subscribed if key[0] != topic}
        return [name]

    def _configure(self, changes: Changes, place: int, packed: bytes) -> None:
        if topic := self._number(place):
            name = next(name for name, number in self.names.items() if number == topic)
            changes.topics[topic] = TopicRow(topic, name, (KEEP, UNTIL_READ)[place % 2], settings=packed)

    def _put(self, changes: Changes, place: int, detail: tuple[int, int, int, int]) -> None:
        publisher, count, size, expires_at_us = detail
        if (topic := self._number(place)) and publisher not in changes.gone_publishers:
            batch = self.maker.put(changes, topic, [bytes([place]) * size] * count, publisher)
            changes.batches[-1] = batch._replace(expires_at_us=expires_at_us)

    def _trim(self, changes: Changes, place: int, below: int) -> None:
        if topic := self._number(place):
            self.maker.trim(changes, topic, below)

    def _subscribe(self, changes: Changes, place: int, detail: tuple[bytes, int, bytes]) -> None:
        name, cursor, packed = detail
        topic = self._number(place)
        if topic and (topic, name) not in changes.gone_subscriptions:
            subscribe(changes, topic, name, cursor)
            row = changes.subscriptions[topic, name]
            changes.subscriptions[topic, name] = row._replace(options=packed, consumers=packed * 2, seen_at_us=place)
            changes.cursors.get(name, {}).pop(topic, None)
            self.subscribed.add((topic, name))

    def _move(self, changes: Changes, place: int, cursor: int) -> None:
        moved = sorted(self.subscribed - changes.subscriptions.keys())
        if moved:
            topic, name = moved[place % len(moved)]
            changes.cursors.setdefault(name, {})[topic] = cursor

    def _unsubscribe(self, changes: Changes, place: int, name: bytes) -> None:
        topic = self._number(place)
        if topic and (topic, name) not in changes.subscriptions:
            changes.gone_subscriptions.add((topic, name))
            changes.cursors.get(name, {}).pop(topic, None)
            self.subscribed.discard((topic, name))

    def _give_back(self, changes: Changes, place: int, detail: tuple[bytes, int, int, str]) -> None:
        name, offset, at_us, reason = detail
        topic = self._number(place)
        if topic and (topic, name, offset) not in changes.gone_returned:
            changes.returned[topic, name, offset] = ReturnedRow(topic, name, offset, 1 + place, at_us, reason)

    def _settle(self, changes: Changes, place: int, detail: tuple[bytes, int]) -> None:
        topic = self._number(place)
        if topic and (topic, *detail) not in changes.returned:
            changes.gone_returned.add((topic, *detail))

    def _stage(self, changes: Changes, place: int, detail: tuple[bytes, int, int, int]) -> None:
        writer, part, count, size = detail
        if topic := self._number(place):
            payloads = [bytes([part]) * size] * count
            self.maker.stage(changes, topic, payloads, writer, place % EPOCHS, bytes([part % 2]), part)

    def _delay(self, changes: Changes, place: int, detail: tuple[int, int, int]) -> None:
        due_us, count, size = detail
        if topic := self._number(place):
            self.maker.delay(changes, topic, [bytes([place]) * size] * count, due_us)

    def _staged_number(self, place: int) -> int | None:
        numbers = list(self.maker.staged)
        return numbers[place % len(numbers)] if numbers else None

    def _release(self, changes: Changes, place: int, expires_at_us: int) -> None:
        number = self._staged_number(place)
        if number and not self.maker.staged[number].released and number not in changes.staged_progress:
            self.maker.release(changes, number, expires_at_us)

    def _progress(self, changes: Changes, place: int, _: None) -> None:
        if (number := self._staged_number(place)) is None:
            return
        row = self.maker.staged[number]
        if row.due_us and row.released < row.count - 1:
            self.maker.staged[number] = row = row._replace(released=row.released + 1, due_us=row.due_us + 1)
            changes.staged_progress[number] = (row.released, row.due_us)

    def _drop(self, changes: Changes, place: int, _: None) -> None:
        if number := self._staged_number(place):
            del self.maker.staged[number]
            changes.gone_staged.add(number)

    def _writer(self, changes: Changes, place: int, writer: bytes) -> None:
        changes.writers[writer] = WriterRow(writer, place, place, 100 * place, place)

    def _decide(self, changes: Changes, _: int, __: None) -> None:
        self.maker.decide(changes)

    def _publisher(self, changes: Changes, publisher: int, seen_at_us: int) -> None:
        if publisher not in changes.gone_publishers:
            changes.publishers[publisher] = PublisherRow(publisher, b"of %d" % publisher, seen_at_us)

    def _forget(self, changes: Changes, publisher: int, _: None) -> None:
        if publisher not in changes.publishers:
            changes.gone_publishers.add(publisher)

    def _answer(self, changes: Changes, publisher: int, body: bytes) -> None:
        self.answered[publisher] += 1
        changes.answers.append(Answer(publisher, self.answered[publisher], (1 << 64) - 1, body))

    def _set(self, changes: Changes, place: int, value: bytes) -> None:
        if bytes([place]) not in changes.gone_states:
            self.version += 1
            changes.states[bytes([place])] = StateRow(bytes([place]), value, self.version)

    def _unset(self, changes: Changes, place: int, _: None) -> None:
        if bytes([place]) not in changes.states:
            changes.gone_states.add(bytes([place]))

    def _pattern(self, changes: Changes, place: int, packed: bytes) -> None:
        if (b"a/*", bytes([place])) not in changes.gone_patterns:
            changes.patterns[b"a/*", bytes([place])] = PatternRow(b"a/*", bytes([place]), packed, place)

    def _forget_pattern(self, changes: Changes, place: int, _: None) -> None:
        if (b"a/*", bytes([place])) not in changes.patterns:
            changes.gone_patterns.add((b"a/*", bytes([place])))


def _told(store: Store, driver: _Driver) -> object:
    maker = driver.maker
    times = range(maker.clock_us - 20_000, maker.clock_us + 2000, 500)
    offsets = {
        topic: (
            [store.offset_at(topic, at_us) for at_us in times],
            [store.offset_after_bytes(topic, total) for total in range(0, maker.bytes_total[topic] + 500, 999)],
        )
        for topic in maker.next_offset
    }
    return everything(store, PUBLISHERS, epochs=EPOCHS), offsets


def _agree(life: list[list[Step]], reopen_every: int, **files: int) -> None:
    driver, memory = _Driver(), MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        store = open_segmented(Path(folder) / "0", **files)
        for place, steps in enumerate(life):
            changes = driver.changes(steps)
            memory.commit(changes)
            store.commit(changes, index_later=place % 3 != 0)
            if place % 2:
                store.keep_house()
            if place % reopen_every == 0:
                path = store.path if place % 2 else crash_image(store, Path(folder) / f"{place + 1}")
                store.close()
                store = open_segmented(path, **files)
            assert _told(store, driver) == _told(memory, driver)
        rows = store._segment_rows.rows.values()
        assert sum(row.batch_bytes for row in rows) == memory.used_bytes()
        store.close()


@settings(max_examples=80, deadline=None)
@given(life=_life, reopen_every=st.integers(1, 4), segment_bytes=st.sampled_from([4096, 32768, 1 << 20]))
def test_segments_tell_the_same_as_memory(life: list[list[Step]], reopen_every: int, segment_bytes: int) -> None:
    _agree(life, reopen_every, checkpoint_bytes=64 << 10, page_bytes=1024, segment_bytes=segment_bytes)


_plain = st.one_of(
    st.tuples(st.just("topic"), _place, st.binary(min_size=1, max_size=2)),
    st.tuples(st.just("configure"), _place, st.binary(max_size=3)),
    st.tuples(st.just("put"), _place, st.tuples(st.sampled_from(PUBLISHERS), _count, st.just(3), _time)),
    st.tuples(st.just("put"), _place, st.tuples(st.just(1), st.just(1), st.just(3), st.just(0))),
    st.tuples(st.just("trim"), _place, st.integers(0, 200)),
    st.tuples(st.just("subscribe"), _place, st.tuples(_name, st.integers(0, 1 << 62), st.binary(max_size=3))),
    st.tuples(st.just("move"), _place, st.integers(0, 1 << 62)),
    st.tuples(st.just("give_back"), _place, st.tuples(_name, _place, _time, st.text(max_size=3))),
    st.tuples(st.just("settle"), _place, st.tuples(_name, _place)),
    st.tuples(st.just("publisher"), st.sampled_from(PUBLISHERS), _time),
    st.tuples(st.just("puts"), _place, st.integers(1, 2 * RECEIPTS_KEPT)),
)
_run = st.lists(st.lists(_plain, max_size=6), min_size=1, max_size=8)
_whatever = st.lists(st.lists(_step, max_size=4), min_size=1, max_size=2)


class _Many(_Driver):
    """Has steps that are many, too, and a broker that counts."""

    def changes(self, steps: list[Step]) -> Changes:
        changes = super().changes(steps)
        changes.clock_us = self.maker.clock_us if len(steps) % 3 == 0 else 0
        changes.count, changes.stamp = max(changes.count, len(steps) % 4), max(changes.stamp, len(steps) % 3)
        return changes

    def _puts(self, changes: Changes, place: int, times: int) -> None:
        for _ in range(times):
            self._put(changes, place, (1, 1, 3, 0))


def _tables(records: list[list[Record]], folder: Path, *, together: bool) -> tuple[object, dict[int, SegmentRow]]:
    """Return all that an index holds after records, and how the segments stand."""
    connection = make_index(folder / f"{together}", vfs=load_checksum_vfs(), page_bytes=4096, identity=None)
    rows = SegmentRows()
    try:
        for some in records:
            changed: dict[int, SegmentRow] = {}
            connection.execute("BEGIN IMMEDIATE")
            if together:
                for record, growth in write_records(connection.execute, some):
                    rows.grow(changed, growth, record)
            else:
                for record in some:
                    rows.grow(changed, write_record(connection.execute, record), record)
            connection.execute("COMMIT")
            rows.settle(changed)
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        told = {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names}
        told["receipts"] = _receipts_kept(told["receipts"])
        told["meta"] = [row for row in told["meta"] if row[0] not in ("store_uuid", "broker")]
        return told, rows.rows
    finally:
        connection.close()


def _receipts_kept(rows: list[Any]) -> list[Any]:
    """Return those that have to be there of each publisher and topic; rows go whole, once none of them has to."""
    receipts = sorted(receipt for publisher, topic, _, packed in rows
                      for receipt in unpack_receipts(publisher, topic, packed))  # fmt: skip
    last = {receipt[:2]: receipt.number for receipt in receipts}
    return [receipt for receipt in receipts if receipt.number > last[receipt[:2]] - RECEIPTS_KEPT]


@settings(max_examples=150, deadline=None)
@given(lives=st.lists(st.one_of(_run, _run, _run, _whatever), min_size=1, max_size=4), at_once=st.integers(1, 20))
def test_records_taken_together_leave_what_they_leave_one_by_one(lives: list[list[list[Step]]], at_once: int) -> None:
    driver, made = _Many(), list[Record]()
    for steps in (steps for life in lives for steps in life):
        draft = Draft(entry_of(driver.changes(steps)))
        sequence = len(made) + 1
        place = {"segment": 1 + sequence // 4, "at": sequence % 4 * (1 << 20), "sequence": sequence}
        made.append(draft.at(**place, store=bytes(16), secret=b"")[0])
    records = [made[start : start + at_once] for start in range(0, len(made), at_once)]
    with tempfile.TemporaryDirectory() as folder:
        assert _tables(records, Path(folder), together=True) == _tables(records, Path(folder), together=False)
