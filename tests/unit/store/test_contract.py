"""What every store promises."""

from __future__ import annotations

import pytest
from tests.unit.store.making import ALL, Maker, all_batches, fill, put_everywhere, subscribe

from clarion.model.ids import RECEIPTS_KEPT
from clarion.store.port import (
    KEEP,
    UNTIL_READ,
    Changes,
    PublisherRow,
    Receipt,
    Store,
    TopicRow,
)


def test_a_new_store_is_empty(store: Store) -> None:
    assert (store.topic_count(), store.last_topic_number(), store.last_publisher()) == (0, 0, 0)
    assert store.topics(b"", 10) == []
    assert store.topic(b"none") is None
    assert store.publisher(1) is None
    assert store.publisher_by_nonce(b"none") is None


def test_a_store_knows_who_it_is(store: Store) -> None:
    assert store.identity.broker > 0
    assert len(store.identity.store_uuid) == 16
    assert store.identity.timeline == 1


def test_a_topic_without_batches_stands_at_the_beginning(store: Store) -> None:
    store.commit(Changes(topics={1: TopicRow(1, b"news", KEEP)}))
    assert store.topic(b"news") == TopicRow(1, b"news", KEEP)
    assert store.batches(1, 0, ALL, ALL) == []
    assert store.offset_at(1, 0) is None


def test_retention_can_be_changed_and_the_log_stays(store: Store) -> None:
    maker = fill(store, commits=2, topics=1)
    store.commit(Changes(topics={1: TopicRow(1, b"topic 0", UNTIL_READ)}))
    row = store.topic(b"topic 0")
    assert row is not None
    assert (row.retention, row.next_offset) == (UNTIL_READ, maker.next_offset[1])


def test_batches_come_back_as_they_were_put_and_in_order(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    put = [maker.put(changes, topic, [b"x" * size] * 3) for size in (0, 100, 70_000)]
    store.commit(changes)
    assert all_batches(store, topic) == [batch._replace(data=bytes(batch.data)) for batch in put]


def test_a_topic_tells_where_it_stands(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    first, second = maker.put(changes, topic, [b"a"] * 3), maker.put(changes, topic, [b"b"] * 2)
    store.commit(changes)
    size = len(first.data) + len(second.data)
    assert store.topic(b"news") == TopicRow(topic, b"news", KEEP, 5, second.committed_at_us, size, 0, size)


def test_reading_begins_with_the_batch_that_holds_the_position(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    for _ in range(3):
        maker.put(changes, topic, [b"m"] * 10)
    store.commit(changes)
    starts = {position: [batch.first_offset for batch in store.batches(topic, position, ALL, ALL)]
              for position in (0, 9, 10, 15, 29, 30, 99)}  # fmt: skip
    assert starts == {0: [0, 10, 20], 9: [0, 10, 20], 10: [10, 20], 15: [10, 20], 29: [20], 30: [], 99: []}


def test_reading_stops_with_the_batch_that_reaches_a_limit(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    size = max(len(maker.put(changes, topic, [b"m"] * 10).data) for _ in range(3))
    store.commit(changes)
    assert len(store.batches(topic, 0, 10, ALL)) == 1
    assert len(store.batches(topic, 0, 11, ALL)) == 2
    assert len(store.batches(topic, 5, 5, ALL)) == 1
    assert len(store.batches(topic, 0, ALL, 1)) == 1
    assert len(store.batches(topic, 0, ALL, size)) == 1
    assert len(store.batches(topic, 0, ALL, size + 1)) == 2


def test_topics_are_listed_by_name_in_pieces_with_their_subscriptions(store: Store) -> None:
    maker, changes = Maker(), Changes()
    for name in (b"b", b"\xff\x00", b"a", b"\x00", b"ab"):
        subscribe(changes, maker.topic(changes, name), b"of " + name)
    store.commit(changes)
    first = store.topics(b"", 3)
    rest = store.topics(first[-1].topic.name, 3)
    assert [summary.topic.name for summary in first + rest] == [b"\x00", b"a", b"ab", b"b", b"\xff\x00"]
    for summary in first + rest:
        assert [row.name for row in summary.subscriptions] == [b"of " + summary.topic.name]
    assert store.topic_count() == store.last_topic_number() == 5


def test_a_trim_forgets_whole_batches_below_it(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    put = [maker.put(changes, topic, [b"m"] * 10) for _ in range(3)]
    store.commit(changes)
    trimming = Changes()
    maker.trim(trimming, topic, 15)
    store.commit(trimming)
    row = store.topic(b"news")
    assert row is not None
    assert (row.first_offset, row.next_offset) == (10, 30)
    assert row.stored_bytes == len(put[1].data) + len(put[2].data)
    assert row.bytes_total == row.stored_bytes + len(put[0].data)
    assert [batch.first_offset for batch in store.batches(topic, 0, ALL, ALL)] == [10, 20]


def test_an_emptied_topic_still_knows_where_it_stands(store: Store) -> None:
    maker = fill(store, commits=3, topics=1)
    trimming = Changes()
    maker.trim(trimming, 1, maker.next_offset[1])
    store.commit(trimming)
    row = store.topic(b"topic 0")
    assert row is not None
    assert row[3:8] == (3, maker.clock_us, maker.bytes_total[1], 3, 0)
    put_everywhere(store, maker, b"more")
    assert [batch.first_offset for batch in store.batches(1, 0, ALL, ALL)] == [3]


def test_a_batch_put_and_trimmed_in_one_commit_is_gone(store: Store) -> None:
    maker = fill(store, commits=1, topics=1)
    changes = Changes()
    maker.put(changes, 1, [b"short-lived"])
    maker.trim(changes, 1, 2)
    store.commit(changes)
    row = store.topic(b"topic 0")
    assert row is not None
    assert (row.first_offset, row.next_offset, row.stored_bytes) == (2, 2, 0)
    assert store.batches(1, 0, ALL, ALL) == []


def test_an_offset_is_found_by_time(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    put = [maker.put(changes, topic, [b"m"] * (1 + place % 7)) for place in range(50)]
    store.commit(changes)
    for batch in put:
        assert store.offset_at(topic, batch.committed_at_us) == batch.first_offset
        assert store.offset_at(topic, batch.committed_at_us - 1) == batch.first_offset
    assert store.offset_at(topic, 0) == 0
    assert store.offset_at(topic, put[-1].committed_at_us + 1) is None


def test_batches_of_one_commit_time_are_found_from_the_first(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    put = [maker.put(changes, topic, [b"m"] * 3) for _ in range(9)]
    changes.batches = [batch._replace(committed_at_us=7 if place < 6 else 9) for place, batch in enumerate(put)]
    store.commit(changes)
    assert [store.offset_at(topic, at_us) for at_us in (6, 7, 8, 9, 10)] == [0, 0, 18, 18, None]


def test_the_last_receipts_are_kept(store: Store) -> None:
    for start in range(1, 400, 10):
        receipts = [Receipt(1, 1, number, number, 0, number, number, number) for number in range(start, start + 10)]
        store.commit(Changes(topics={1: TopicRow(1, b"news", KEEP)}, receipts=receipts))
        kept = [receipt.number for receipt in store.receipts(1, 1)]
        assert kept == list(range(kept[0], start + 10))
        assert min(start + 9, RECEIPTS_KEPT) <= len(kept) <= 2 * RECEIPTS_KEPT + 10


@pytest.mark.parametrize("checksum", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_receipt_keeps_every_checksum(store: Store, checksum: int) -> None:
    receipt = Receipt(1, 2, 3, checksum, 4, 5, 6, 7)
    store.commit(Changes(receipts=[receipt]))
    assert store.receipts(1, 2) == [receipt]
    assert store.receipts(2, 1) == []


def test_a_subscription_is_replaced_and_removed(store: Store) -> None:
    fill(store, commits=0, topics=2)
    changes = Changes()
    subscribe(changes, 1, b"reader", cursor=9, acked=b"\x01" * 16)
    subscribe(changes, 1, b"another")
    changes.gone_subscriptions.add((2, b"reader"))
    store.commit(changes)
    assert [(row.name, row.cursor) for row in store.subscriptions(1)] == [(b"another", 0), (b"reader", 9)]
    assert store.subscriptions(1)[1].acked == b"\x01" * 16
    assert store.subscriptions(2) == []


def test_publishers_are_found_and_their_ids_never_come_again(store: Store) -> None:
    rows = {number: PublisherRow(number, b"nonce %d" % number, 100 * number) for number in (1, 2, 3)}
    store.commit(Changes(publishers=rows, receipts=[Receipt(3, 1, 1, 0, 0, 0, 0, 0)]))
    store.commit(Changes(publishers={1: rows[1]._replace(seen_at_us=900)}))
    assert store.publisher(2) == store.publisher_by_nonce(b"nonce 2") == rows[2]
    assert sorted(store.silent_publishers(301, 10)) == [2, 3]
    assert len(store.silent_publishers(301, 1)) == 1
    store.commit(Changes(gone_publishers={3}))
    assert store.publisher(3) is None
    assert store.publisher_by_nonce(b"nonce 3") is None
    assert store.receipts(3, 1) == []
    assert store.last_publisher() == 3


def test_a_commit_of_many_rows_keeps_each(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topics = [maker.topic(changes, b"t%03d" % place) for place in range(203)]
    for topic in topics:
        maker.put(changes, topic, [b"of %d" % topic])
        subscribe(changes, topic, b"reader", cursor=topic)
    store.commit(changes)
    for summary in store.topics(b"", 1000):
        number = summary.topic.number
        assert [batch.data for batch in store.batches(number, 0, ALL, ALL)] == [
            bytes(batch.data) for batch in changes.batches if batch.topic == number
        ]
        assert [row.cursor for row in summary.subscriptions] == [number]


def test_room_is_told(store: Store) -> None:
    empty = store.used_bytes()
    fill(store, commits=1, payload=b"x" * 300_000, topics=1)
    assert store.used_bytes() > max(empty, 300_000)
    assert store.free_bytes() > 0
