"""Runs of plain records as few rows: what the index takes of them at once, just as if it took them one by one.

Plain are puts, receipts, acks, trims, and what a broker counts. Of a run the last row of a subscription stands for all
before it, a batch that is trimmed within the run gets no row, and a receipt that a later one makes superfluous neither.
What deletes, moves, stages or decides is not plain, and ends a run. Rows are written by key, so that those that share a
page come together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Any

from clarion.model.ids import RECEIPTS_KEPT
from clarion.store.index_writes import (
    ADD_LOG,
    ADD_PUBLISHERS,
    ADD_RECEIPTS,
    ADD_RETURNED,
    ADD_SUBSCRIPTIONS,
    ADD_TOPICS,
    FORGET_OLD_RECEIPTS,
    HIGHEST,
    Execute,
    Rows,
    move_cursors,
    to_signed,
    write_record,
)
from clarion.store.packed_receipts import ReceiptsRow, group_receipts, pack_receipts
from clarion.store.port import Receipt, SubscriptionRow, Trim
from clarion.store.records import Entry, Envelope, Record
from clarion.store.segments import Growth, grow
from clarion.store.unhurried import Rest, in_pieces, no_rest

_PLAIN = {
    "topics", "publishers", "batches", "receipts", "subscriptions", "cursors", "trims", "returned", "gone_returned",
    "clock_us", "count", "stamp",
}  # fmt: skip
_others = attrgetter(*(name for name in Entry.__struct_fields__ if name not in _PLAIN))
_first, _size = itemgetter(0), attrgetter("size")

_TRIM = Rows(
    "DELETE FROM log WHERE (topic, first_offset) IN (WITH trim(topic, below) AS (",
    2,
    """) SELECT log.topic, log.first_offset FROM trim CROSS JOIN log ON log.topic = trim.topic
    AND log.first_offset < below WHERE log.first_offset + log.count <= below) RETURNING segment, size""",
)
_STAND = Rows(
    "WITH stand(number, next_offset, last_commit_us, bytes_total) AS (",
    4,
    """) UPDATE topic SET next_offset = max(topic.next_offset, stand.next_offset),
    last_commit_us = max(topic.last_commit_us, stand.last_commit_us),
    bytes_total = max(topic.bytes_total, stand.bytes_total) FROM stand WHERE topic.number = stand.number""",
)
_FORGET_RETURNED = Rows("DELETE FROM returned WHERE (topic, name, offset) IN (", 3, ")")


def is_plain(entry: Entry) -> bool:
    """Return whether an entry may be taken together with others."""
    return not any(_others(entry))


def write_records(execute: Execute, records: Sequence[Record], rest: Rest = no_rest) -> Iterator[tuple[Record, Growth]]:
    """Apply records inside the open transaction; return what they mean for the segments, each time with the last record
    that it is of. Every segment that is written to has its last record among them, in order. Between small pieces of
    the work it may `rest`."""
    for plain, some in groupby(records, lambda record: is_plain(record.entry)):
        if plain:
            run = list(some)
            growth = _write_run(execute, run, rest)
            for before, record in pairwise(run):
                if record.segment != before.segment:
                    yield before, {}
            yield run[-1], growth
        else:
            for record in some:
                yield record, write_record(execute, record)


def _write_run(execute_now: Execute, run: Sequence[Record], rest: Rest) -> Growth:
    def execute(statement: str, values: Any) -> Any:
        rest()
        return execute_now(statement, values)

    def in_turn() -> Iterator[Entry]:
        return in_pieces(entries, rest)

    entries, growth = [record.entry for record in run], Growth()
    topics = _last_of(chain.from_iterable(entry.topics for entry in entries), _first)
    if topics:
        ADD_TOPICS.run(execute, topics)
        execute(HIGHEST, (topics[-1][0], "last_topic"))
    ADD_PUBLISHERS.run(execute, _last_of(chain.from_iterable(entry.publishers for entry in entries), _first))
    trimmed_below = _write_trims(execute, [trim for entry in in_turn() for trim in entry.trims], growth)
    _write_batches(execute, in_pieces(run, rest), trimmed_below, growth)
    _write_receipts(execute, chain.from_iterable(entry.receipts for entry in in_turn()), rest)
    _write_subscriptions(execute, in_turn())
    if any(entry.returned or entry.gone_returned for entry in entries):
        _write_returned(execute, entries)
    if told := [entry.clock_us for entry in entries if entry.clock_us]:
        execute("UPDATE meta SET value = ? WHERE key = 'clock_us'", (told[-1],))
    if count := max(entry.count for entry in entries):
        execute(HIGHEST, (count, "count"))
    if stamp := max(entry.stamp for entry in entries):
        execute(HIGHEST, (stamp, "stamp"))
    return growth


def _write_subscriptions(execute: Execute, entries: Iterable[Entry]) -> None:
    """Write how subscriptions stand at the end; a cursor is of the row before it, here or in the index."""
    rows: dict[tuple[int, bytes], SubscriptionRow] = {}
    cursors: defaultdict[bytes, dict[int, int]] = defaultdict(dict)
    for entry in entries:
        for row in entry.subscriptions:
            rows[row.topic, row.name] = row
            cursors[row.name].pop(row.topic, None)
        for name, moved in entry.cursors.items():
            cursors[name].update(moved)
    for (topic, name), row in rows.items():
        if (cursor := cursors[name].pop(topic, None)) is not None:
            rows[topic, name] = row._replace(cursor=cursor)
    ADD_SUBSCRIPTIONS.run(execute, sorted(rows.values()))
    move_cursors(execute, cursors)


def _last_of(rows: Iterable[Any], key: itemgetter[Any]) -> list[Any]:
    """Return the last row of each key, by key, which rows begin with."""
    return sorted({key(row): row for row in rows}.values())


def _write_trims(execute: Execute, trims: list[Trim], growth: Growth) -> dict[int, int]:
    """Forget what the run trims of what was there before it; return up to where each topic is trimmed.

    What is put after a trim begins where the trim says that the topic stands, so the order of the two does not matter.
    """
    ordered = sorted(trims)  # a topic's highest is its last
    trimmed_below = {trim[0]: min(trim[1], trim[2]) for trim in ordered}
    stands = {trim[0]: (trim[0], *trim[2:]) for trim in ordered if trim[1] >= trim[2]}  # else the last log row says it
    for segment, size in _TRIM.run_reading(execute, list(trimmed_below.items())):
        grow(growth, segment, -1, -size)
    _STAND.run(execute, list(stands.values()))
    return trimmed_below


def _write_batches(execute: Execute, run: Iterable[Record], trimmed_below: dict[int, int], growth: Growth) -> None:
    rows: list[tuple[int, ...]] = []
    below = trimmed_below.get
    for record in run:
        segment, batches = record.segment, record.entry.batches
        kept = [place for place, batch in enumerate(batches) if batch[1] + batch[2] > below(batch[0], 0)]
        if not kept:
            continue
        positions = list(_positions(batches, record.data_at))
        for place in kept:
            topic, first, count, at_us, total, size, checksum, expires_at_us = batches[place]
            place_in_log = (size, to_signed(checksum), segment, positions[place], expires_at_us, 0)
            rows.append((topic, first, count, at_us, total, *place_in_log))
        grow(growth, segment, len(kept), sum([row[5] for row in rows[-len(kept) :]]))
    rows.sort()
    ADD_LOG.run(execute, rows)


def _positions(batches: list[Envelope], at: int) -> Iterator[int]:
    return accumulate(map(_size, batches), initial=at)


def _write_receipts(execute: Execute, receipts: Iterable[Receipt], rest: Rest) -> None:
    """Write receipts but those that are pruned at once, as one record after the other does it."""
    rows: list[ReceiptsRow] = []
    for some in in_pieces(group_receipts(receipts), rest):
        pruned = some[-1].number // RECEIPTS_KEPT * RECEIPTS_KEPT - RECEIPTS_KEPT
        if pruned > 0 and pruned + RECEIPTS_KEPT >= some[0].number:
            execute(FORGET_OLD_RECEIPTS, (*some[0][:2], pruned))
            some = [receipt for receipt in some if receipt.number > pruned]
        rows += pack_receipts(some)
    ADD_RECEIPTS.run(execute, rows)


def _write_returned(execute: Execute, entries: Iterable[Entry]) -> None:
    last: dict[tuple[int, bytes, int], Any] = {}
    for entry in entries:
        last |= {row[:3]: row for row in entry.returned}
        last |= dict.fromkeys(entry.gone_returned)
    ADD_RETURNED.run(execute, sorted(row for row in last.values() if row is not None))
    _FORGET_RETURNED.run(execute, sorted(key for key, row in last.items() if row is None))
