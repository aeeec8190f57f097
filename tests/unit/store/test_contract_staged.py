"""What every store promises of batches that are stored and not on their topic."""

from __future__ import annotations

import pytest
from tests.unit.store.making import ALL, FOR_EVER_US, WRITERS, Maker, all_batches, fill, put_everywhere

from clarion.store.port import KEEP, Changes, StagedBatch, StagedRow, Store, StoredBatch, TopicRow, WriterRow

A, B = WRITERS


def _numbers(rows: list[StagedRow]) -> list[int]:
    return [row.number for row in rows]


def _stage_some(store: Store, topics: int = 1) -> tuple[Maker, list[StagedBatch]]:
    """Commit four batches staged by two writers, on a store with a message on each topic."""
    maker, changes = fill(store, commits=1, topics=topics), Changes()
    staged = [
        maker.stage(changes, 1, [b"second"] * 2, A, epoch=1, part=b"p", place=2),
        maker.stage(changes, 1, [b"first"], A, epoch=1, part=b"p", place=1),
        maker.stage(changes, topics, [b"of an earlier part"] * 3, A, epoch=1, part=b"", place=9),
        maker.stage(changes, 1, [b"of another epoch"], A, epoch=2),
        maker.stage(changes, 1, [b"of another writer"], B, epoch=1),
    ]
    store.commit(changes)
    return maker, staged


def test_nothing_is_staged_in_a_new_store(store: Store) -> None:
    assert (store.last_staged(), store.first_due_us(), store.staged_batch(1)) == (0, None, None)
    assert (store.staged(A, 1), store.due(FOR_EVER_US, 9), store.stale_staged(FOR_EVER_US, 9)) == ([], [], [])
    assert (store.staged_totals(1), store.writer(A), store.writer_count()) == ((0, 0), None, 0)


def test_what_is_staged_is_stored_and_not_on_its_topic(store: Store) -> None:
    _, staged = _stage_some(store)
    row = store.topic(b"topic 0")
    assert row is not None
    assert (row.next_offset, len(all_batches(store, 1))) == (1, 1)
    assert [store.staged_batch(batch.row.number) for batch in staged] == staged
    assert store.last_staged() == 5


def test_what_is_staged_comes_by_part_and_place(store: Store) -> None:
    _, staged = _stage_some(store)
    assert store.staged(A, 1) == [staged[2].row, staged[1].row, staged[0].row]
    assert _numbers(store.staged(A, 2)) == [4]
    assert store.staged(B, 2) == []


def test_what_is_staged_counts_for_its_topic(store: Store) -> None:
    maker, staged = _stage_some(store, topics=2)
    sizes = [len(batch.data) for batch in staged]
    assert store.staged_totals(1) == (5, sum(sizes) - sizes[2])
    assert store.staged_totals(2) == (3, sizes[2])
    changes = Changes(gone_staged={4})
    maker.release(changes, 1)
    store.commit(changes)
    assert store.staged_totals(1) == (2, sizes[1] + sizes[4])


def test_a_release_puts_the_batch_on_its_topic_whole(store: Store) -> None:
    maker, staged = _stage_some(store)
    changes = Changes()
    release = maker.release(changes, 3, expires_at_us=123)
    store.commit(changes)
    assert store.staged_batch(3) is None
    assert _numbers(store.staged(A, 1)) == [2, 1]
    expected = StoredBatch(1, 1, 3, release.committed_at_us, maker.bytes_total[1], staged[2].data, 123)
    assert all_batches(store, 1)[1:] == [expected]
    row = store.topic(b"topic 0")
    assert row is not None
    assert (row.next_offset, row.last_commit_us) == (4, release.committed_at_us)
    assert row.bytes_total == row.stored_bytes == maker.bytes_total[1]
    assert store.offset_at(1, release.committed_at_us) == 1


def test_releases_and_puts_of_one_change_take_turns(store: Store) -> None:
    maker, _ = _stage_some(store)
    changes = Changes()
    for number in (1, 2, 3):
        maker.release(changes, number)
        maker.put(changes, 1, [b"between"])
    changes.releases.reverse()
    store.commit(changes)
    found = all_batches(store, 1)
    assert [(batch.first_offset, batch.count) for batch in found] == [
        (0, 1), (1, 2), (3, 1), (4, 1), (5, 1), (6, 3), (9, 1)
    ]  # fmt: skip
    put_everywhere(store, maker, b"after")
    assert all_batches(store, 1)[-1].first_offset == 10


def test_a_batch_staged_and_released_in_one_change_is_on_its_topic(store: Store) -> None:
    maker, changes = fill(store, commits=1, topics=1), Changes()
    staged = maker.stage(changes, 1, [b"at once"])
    maker.put(changes, 1, [b"before"])
    maker.release(changes, 1)
    store.commit(changes)
    assert store.staged(A, 1) == []
    assert store.staged_totals(1) == (0, 0)
    assert all_batches(store, 1)[-1].data == staged.data
    assert store.last_staged() == 1


def test_a_released_batch_is_trimmed_like_any_other(store: Store) -> None:
    maker, _ = _stage_some(store)
    changes = Changes()
    maker.release(changes, 1)
    maker.trim(changes, 1, maker.next_offset[1])
    store.commit(changes)
    row = store.topic(b"topic 0")
    assert row is not None
    assert (row.first_offset, row.next_offset, row.stored_bytes) == (3, 3, 0)
    assert row.bytes_total == maker.bytes_total[1]


def test_dropped_batches_are_gone_and_their_numbers_never_come_again(store: Store) -> None:
    _, staged = _stage_some(store)
    store.commit(Changes(gone_staged={1, 2, 3, 4, 5}))
    assert [store.staged_batch(batch.row.number) for batch in staged] == [None] * 5
    assert (store.staged(A, 1), store.staged_totals(1), store.last_staged()) == ([], (0, 0), 5)


def test_a_batch_staged_and_dropped_in_one_change_is_gone(store: Store) -> None:
    maker, changes = fill(store, commits=0, topics=1), Changes()
    maker.stage(changes, 1, [b"for nothing"])
    maker.delay(changes, 1, [b"for nothing, too"], due_us=9)
    changes.gone_staged |= {1, 2}
    store.commit(changes)
    assert (store.staged_batch(1), store.first_due_us(), store.staged_totals(1)) == (None, None, (0, 0))
    assert store.last_staged() == 2


def test_delayed_batches_come_in_the_order_they_are_due(store: Store) -> None:
    maker, changes = fill(store, commits=0, topics=1), Changes()
    for due_us in (300, 100, 200, 100):
        maker.delay(changes, 1, [b"m"] * 2, due_us=due_us)
    maker.stage(changes, 1, [b"not delayed"])
    store.commit(changes)
    assert store.first_due_us() == 100
    assert _numbers(store.due(FOR_EVER_US, 9)) == [2, 4, 3, 1]
    assert [_numbers(store.due(at_us, 9)) for at_us in (99, 100, 200)] == [[], [2, 4], [2, 4, 3]]
    assert _numbers(store.due(FOR_EVER_US, 1)) == [2]
    assert store.due(100, 1) == [changes.staged[1].row]
    assert store.due(100, 1)[0].due == (100).to_bytes(8, "little") + (101).to_bytes(8, "little")


def test_a_delayed_batch_goes_to_its_topic_bit_by_bit(store: Store) -> None:
    maker, changes = fill(store, commits=0, topics=1), Changes()
    row, data = maker.delay(changes, 1, [b"a", b"b", b"c"], due_us=100)
    store.commit(changes)
    store.commit(Changes(staged_progress={1: (2, 102)}))
    assert store.due(FOR_EVER_US, 9) == [row._replace(released=2, due_us=102)]
    assert store.staged_batch(1) == StagedBatch(row._replace(released=2, due_us=102), data)
    assert (store.first_due_us(), store.due(101, 9)) == (102, [])
    assert store.staged_totals(1) == (1, len(data))
    store.commit(Changes(gone_staged={1}))
    assert (store.first_due_us(), store.due(FOR_EVER_US, 9)) == (None, [])


def test_progress_counts_in_the_change_that_stages(store: Store) -> None:
    maker, changes = fill(store, commits=0, topics=1), Changes()
    maker.delay(changes, 1, [b"a", b"b"], due_us=100)
    changes.staged_progress[1] = (1, 101)
    store.commit(changes)
    assert (store.first_due_us(), store.staged_totals(1)[0]) == (101, 1)


def test_only_what_writers_staged_grows_stale(store: Store) -> None:
    maker, staged = _stage_some(store)
    changes = Changes()
    maker.delay(changes, 1, [b"m"], due_us=100)
    store.commit(changes)
    third = staged[2].row.staged_at_us
    assert _numbers(store.stale_staged(third, 9)) == [1, 2]
    assert _numbers(store.stale_staged(third + 1, 2)) == [1, 2]
    assert _numbers(store.stale_staged(FOR_EVER_US, 9)) == [1, 2, 3, 4, 5]


def test_delayed_batches_have_no_writer_to_be_found_by(store: Store) -> None:
    maker, changes = fill(store, commits=0, topics=1), Changes()
    maker.delay(changes, 1, [b"m"], due_us=100)
    store.commit(changes)
    assert store.staged(b"", 0) == []


@pytest.mark.parametrize("checksum_seed", range(8))
def test_a_staged_batch_keeps_its_checksum(store: Store, checksum_seed: int) -> None:
    maker, changes = fill(store, commits=0, topics=1), Changes()
    staged = maker.stage(changes, 1, [b"%d" % checksum_seed])  # half of them have the highest bit
    store.commit(changes)
    assert store.staged_batch(1) == staged


def test_writers_are_found_and_counted(store: Store) -> None:
    rows = {name: WriterRow(name, epoch, 5, 10 * epoch) for name, epoch in ((A, 3), (B, 1), (b"\xff", 2))}
    store.commit(Changes(writers=rows))
    assert store.writer(A) == rows[A]
    store.commit(Changes(writers={B: WriterRow(B, 4, 1, 99, 7)}))
    assert (store.writer(A), store.writer(B)) == (rows[A], WriterRow(B, 4, 1, 99, 7))
    assert store.writer_count() == 3


def test_what_is_staged_takes_room(store: Store) -> None:
    maker, changes = fill(store, commits=0, topics=1), Changes()
    empty = store.used_bytes()
    maker.stage(changes, 1, [bytes(300_000)])
    store.commit(changes)
    assert store.used_bytes() > empty + 290_000


def test_a_deleted_topic_takes_what_is_staged_for_it(store: Store) -> None:
    maker, _ = _stage_some(store, topics=2)
    changes = Changes()
    maker.delay(changes, 1, [b"m"], due_us=100)
    maker.stage(changes, 1, [b"in the same change"])
    maker.delete(changes, 1)
    store.commit(changes)
    assert _numbers(store.staged(A, 1)) == [3]
    assert (store.first_due_us(), store.staged_totals(1), store.last_staged()) == (None, (0, 0), 7)
    assert _numbers(store.stale_staged(FOR_EVER_US, 9)) == [3]


def test_batches_beside_a_released_one_are_read_up_to_a_limit(store: Store) -> None:
    maker, _ = _stage_some(store)
    changes = Changes(topics={1: TopicRow(1, b"topic 0", KEEP)})
    for number in (1, 2, 3):
        maker.release(changes, number)
    store.commit(changes)
    assert [batch.first_offset for batch in store.batches(1, 2, 1, ALL)] == [1]
    assert [batch.first_offset for batch in store.batches(1, 2, 2, ALL)] == [1, 3]
