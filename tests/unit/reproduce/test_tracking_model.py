"""The message-tracking document's scheme as it is written: buffers, bytes and forces, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from clarion.reproduce.tracking_model import (
    TABLE_2,
    Configuration,
    Load,
    Stored,
    buffer_of,
    cut,
    make_traffic,
    model,
)
from clarion.tracking.bloom import BloomFilter, Shape

SMALL = Load(publishers=20, subscribers=30, topics=40, topics_each=10, per_s=1000.0)


def test_a_buffer_is_stored_when_it_is_full() -> None:
    assert cut(np.arange(10, dtype=np.float64), 4, 100.0, 10.0) == [Stored(0, 4, 3.0), Stored(4, 8, 7.0)]


def test_a_buffer_is_stored_when_its_time_is_over_however_little_it_has() -> None:
    at_s = np.arange(10, dtype=np.float64) + 0.5
    found = cut(at_s, 100, 2.5, 10.0)
    assert found == [Stored(0, 3, 2.5), Stored(3, 5, 5.0), Stored(5, 8, 7.5), Stored(8, 10, 10.0)]


def test_an_empty_buffer_is_not_stored() -> None:
    assert cut(np.array([0.1, 5.0]), 10, 1.0, 6.0) == [Stored(0, 1, 1.0), Stored(1, 2, 5.0)]


def test_time_counts_anew_from_each_store() -> None:
    # Full after 1.5 s, so the next one is due at 3.5 s.
    at_s = np.array([0.5, 1.0, 1.5, 2.0, 4.0])
    assert cut(at_s, 3, 2.0, 5.0) == [Stored(0, 3, 1.5), Stored(3, 4, 3.5)]


def test_table_2_has_the_documents_rows() -> None:
    assert len(TABLE_2) == 21
    assert [one.capacity for one in TABLE_2 if one.strategy == "ASYNC"] == [625, 8437, 8437]
    assert sum(one.strategy == "BF" for one in TABLE_2) == 17
    assert len({one.name for one in TABLE_2}) == 21
    for one in TABLE_2:
        assert one.efpp <= 1 - one.accuracy + 1e-12, one.name


def test_filters_take_the_same_full_or_not_and_ids_16_bytes_each() -> None:
    log, bloom = TABLE_2[1], TABLE_2[4]
    assert (log.stored_bytes(1), log.stored_bytes(625)) == (16, 10_000)
    assert (bloom.stored_bytes(1), bloom.stored_bytes(2521)) == (8192, 8192)


def test_every_publisher_puts_on_its_topics_in_turn_and_every_topic_has_as_many() -> None:
    topics = Load().topics_of_publishers()
    assert topics.shape == (200, 10)
    assert set(np.bincount(topics.ravel(), minlength=500)) == {4}
    traffic = make_traffic(Load(), 2.0)
    assert len(traffic.at_s) == 10_000
    assert (np.diff(traffic.at_s) >= 0).all()
    assert set(np.bincount((traffic.keys[:, 0] & np.uint64(0xFFFFFFFF)).astype(np.int64))[1:]) == {50}


def test_a_message_goes_to_all_subscribers_of_its_topic_and_to_nobody_else() -> None:
    traffic, read = make_traffic(SMALL, 1.0), SMALL.topics_of_subscribers()
    each = np.bincount(traffic.message, minlength=len(traffic.at_s))
    topics = SMALL.topics_of_publishers()
    turns: dict[int, int] = {}
    for place, who in enumerate((traffic.keys[:, 0] & np.uint64(0xFFFFFFFF)).astype(int).tolist()):
        turn = turns[who] = turns.get(who, -1) + 1
        topic = topics[who - 1, turn % 10]
        assert each[place] == np.count_nonzero(read == topic)
        assert set(read[traffic.subscriber[traffic.message == place]]) <= {topic}


def test_a_stored_filter_has_its_messages_and_a_stored_log_their_ids() -> None:
    keys = make_traffic(SMALL, 1.0).keys[:500]
    bloom = Configuration("BF", "10K", 0.99999, 2521, 1 << 16, 16, 1.0, True)
    assert BloomFilter(Shape(1 << 16, 16), buffer_of(bloom, keys)).contains(keys).all()
    log = buffer_of(TABLE_2[1], keys)
    assert len(log) == 500 * 16
    publisher, broker = int.from_bytes(log[:4]), int.from_bytes(log[4:8])
    assert broker << 32 | publisher == int(keys[0, 0])
    assert int.from_bytes(log[8:16]) == int(keys[0, 1])


def test_bytes_forces_and_memory_are_those_of_the_documents_arithmetic() -> None:
    _, log, bloom, partly = model(Load(), 4.0, [TABLE_2[0], TABLE_2[1], TABLE_2[4], TABLE_2[9]])
    assert log.configuration.name == "ASYNC 10K 1s"
    assert log.forces_per_s("publisher") == pytest.approx(8, rel=0.05)
    assert log.bytes_per_message("publisher") == 16
    assert log.bytes_per_message("together") == pytest.approx(16 + 16 * log.delivered)
    assert bloom.configuration.name == "BF 10K 99.999% 1s"
    assert bloom.publisher.full == 1
    assert bloom.forces_per_s("publisher") == 7 / 4  # of 20,000 messages seven times 2521 are stored
    assert bloom.bytes_per_message("publisher") == pytest.approx(8192 / 2521)
    assert partly.configuration.name == "BF 135K 99.999% 1s"
    assert partly.publisher.full == 0
    assert partly.bytes_per_message("publisher") == pytest.approx(131_072 / 5000, rel=0.01)
    assert partly.overwritten_per_message("publisher") == pytest.approx(131_072 / 38_836)
    assert partly.gzip_per_message("publisher") < partly.bytes_per_message("publisher")
    assert partly.memory_bytes("each") == 501 * 131_072


def test_a_filter_for_each_subscriber_is_stored_with_the_few_messages_that_it_has() -> None:
    (one,) = model(Load(), 3.0, [TABLE_2[4]])
    assert one.each.histories == 500
    assert one.each.forces_per_s == pytest.approx(500, rel=0.02)
    assert one.each.bytes_per_entry == pytest.approx(8192 / 10, rel=0.05)


def test_no_tracking_takes_nothing() -> None:
    (none,) = model(SMALL, 1.0, [TABLE_2[0]])
    assert none.bytes_per_message("each") == none.forces_per_s("each") == none.memory_bytes("each") == 0
