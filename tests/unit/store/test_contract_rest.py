"""What every store promises of settings, states, answers, returned messages, patterns, and of topics that are gone."""

from __future__ import annotations

import pytest
from tests.unit.store.making import ALL, Maker, all_batches, everything, fill, put_everywhere, subscribe

from clarion.model.ids import RECEIPTS_KEPT
from clarion.store import index_writes, memory
from clarion.store.port import (
    KEEP,
    UNTIL_READ,
    Answer,
    Changes,
    HistoryRow,
    PatternRow,
    PublisherRow,
    Receipt,
    ReturnedRow,
    StateRow,
    Store,
    StoredBatch,
    TopicRow,
)


def test_a_change_is_something_when_any_part_of_it_is() -> None:
    assert not Changes()
    for name in Changes.__slots__:
        changes = Changes()
        filled = {list: [None], set: {1}, dict: {1: 1}, int: 1}
        setattr(changes, name, filled[type(getattr(changes, name))])
        assert changes


def test_a_topics_settings_are_kept_and_changed(store: Store) -> None:
    maker = fill(store, commits=1, topics=1)
    store.commit(Changes(topics={1: TopicRow(1, b"topic 0", UNTIL_READ, settings=b"\x81 settings")}))
    row = store.topic(b"topic 0")
    assert row is not None
    assert (row.retention, row.settings, row.next_offset) == (UNTIL_READ, b"\x81 settings", maker.next_offset[1])
    assert store.topics(b"", 9)[0].topic == row
    store.commit(Changes(topics={1: TopicRow(1, b"topic 0", KEEP)}))
    row = store.topic(b"topic 0")
    assert row is not None
    assert (row.retention, row.settings) == (KEEP, b"")


def test_a_subscription_keeps_its_options_and_consumers(store: Store) -> None:
    fill(store, commits=0, topics=1)
    changes = Changes()
    subscribe(changes, 1, b"shared", cursor=3)
    row = changes.subscriptions[1, b"shared"]._replace(options=b"o", consumers=b"c" * 5000, seen_at_us=1 << 50)
    changes.subscriptions[1, b"shared"] = row
    store.commit(changes)
    assert store.subscriptions(1)[1] == row
    assert store.topics(b"", 9)[0].subscriptions[1] == row


def test_a_store_tells_which_topics_a_subscriber_has_something_to_read_on(store: Store) -> None:
    maker = fill(store, commits=5, topics=4)
    ends = maker.next_offset
    changes = Changes()
    subscribe(changes, 1, b"reader", cursor=ends[1])
    subscribe(changes, 2, b"reader", cursor=ends[2] - 1)
    subscribe(changes, 4, b"another")
    maker.trim(changes, 3, ends[3])
    empty = maker.topic(changes, b"topic 4")
    subscribe(changes, empty, b"reader")
    store.commit(changes)
    names = {number: b"topic %d" % (number - 1) for number in (1, 2, 3, 4, 5)}
    to_read = {1: False, 2: True, 3: True, 4: True, 5: False}  # of the third all is gone, unread: that is to be told
    expected = [(number, names[number], to_read[number]) for number in sorted(names)]
    assert store.topics_of(b"reader", 0, 100) == expected
    assert store.topics_of(b"reader", 0, 2) == expected[:2]
    assert store.topics_of(b"reader", 2, 2) == expected[2:4]
    assert store.topics_of(b"reader", 5, 2) == []
    assert store.topics_of(b"another", 0, 100) == [expected[3]]
    assert store.topics_of(b"nobody", 0, 100) == []


def test_a_store_knows_the_starts_and_timelines_that_it_had(store: Store) -> None:
    before, sequence = store.identity, store.sequence
    store.commit(Changes(history=[HistoryRow(b"first", before.timeline)]))
    assert (store.identity, store.sequence > sequence) == (before, True)
    first = store.sequence
    fill(store, commits=1, topics=1)
    store.commit(Changes(history=[HistoryRow(b"", 5), HistoryRow(b"second", 9)]))
    assert store.identity == before._replace(timeline=9)
    second = store.sequence
    rows = {HistoryRow(b"first", before.timeline, first), HistoryRow(b"", 5, second), HistoryRow(b"second", 9, second)}
    assert (set(store.history()), store.history()[0].start) == (rows, b"first")


def test_a_store_remembers_the_brokers_clock(store: Store) -> None:
    assert store.clock_us() == 0
    for told_us in (1 << 50, 1 << 49):  # whichever was told last
        store.commit(Changes(clock_us=told_us))
        assert store.clock_us() == told_us


def test_a_batch_keeps_when_it_expires(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    for _ in range(2):
        maker.put(changes, topic, [b"m"])
    changes.batches[1] = changes.batches[1]._replace(expires_at_us=1 << 51)
    store.commit(changes)
    assert [batch.expires_at_us for batch in store.batches(topic, 0, ALL, ALL)] == [0, 1 << 51]


def test_an_offset_is_found_by_bytes(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    put = [maker.put(changes, topic, [b"m" * (place % 5)] * (1 + place % 7)) for place in range(50)]
    store.commit(changes)
    for batch, following in zip(put, [*put[1:], None], strict=True):
        assert store.offset_after_bytes(topic, batch.bytes_total - 1) == batch.first_offset
        assert store.offset_after_bytes(topic, batch.bytes_total) == (following.first_offset if following else None)
    trimming = Changes()
    maker.trim(trimming, topic, put[20].first_offset)
    store.commit(trimming)
    assert store.offset_after_bytes(topic, 0) == put[20].first_offset
    assert store.offset_after_bytes(9, 0) is None


def test_returned_messages_are_kept_until_they_are_gone(store: Store) -> None:
    fill(store, commits=0, topics=2)
    rows = [
        ReturnedRow(1, b"a", 7, 1, 1 << 50, ""),
        ReturnedRow(1, b"a", 8, 2, 0, "no room: é"),
        ReturnedRow(1, b"b", 3, 9, 5, "x" * 1000),
        ReturnedRow(2, b"a", 7, 1, 0, "of another topic"),
    ]
    store.commit(Changes(returned={row[:3]: row for row in reversed(rows)}))
    assert (store.returned(1), store.returned(2), store.returned(3)) == (rows[:3], rows[3:], [])
    again = rows[0]._replace(attempts=2, reason="again")
    store.commit(Changes(returned={again[:3]: again}, gone_returned={(1, b"a", 8), (1, b"none", 1)}))
    assert store.returned(1) == [again, rows[2]]


def test_a_subscription_takes_what_was_returned_to_it(store: Store) -> None:
    fill(store, commits=0, topics=2)
    keys = [(1, b"reader", 1), (1, b"other", 2), (2, b"reader", 3)]
    store.commit(Changes(returned={key: ReturnedRow(*key, 1, 0, "") for key in keys[:2]}))
    store.commit(
        Changes(gone_subscriptions={(1, b"reader")}, returned={key: ReturnedRow(*key, 2, 0, "") for key in keys[::2]})
    )
    assert [row[:4] for row in store.returned(1)] == [(1, b"other", 2, 1)]
    assert [row[:4] for row in store.returned(2)] == [(2, b"reader", 3, 2)]


def test_the_last_answers_are_kept(store: Store) -> None:
    for start in range(1, 400, 10):
        answers = [Answer(5, number, number, b"%d" % number) for number in range(start, start + 10)]
        store.commit(Changes(answers=answers))
        kept = [answer.number for answer in store.answers(5)]
        assert kept == list(range(kept[0], start + 10))
        assert min(start + 9, RECEIPTS_KEPT) <= len(kept) <= 2 * RECEIPTS_KEPT + 10
    assert store.answers(6) == []


@pytest.mark.parametrize("checksum", [0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_publisher_takes_its_answers(store: Store, checksum: int) -> None:
    answers = [Answer(publisher, 1, checksum, b"\0 body") for publisher in (1, 2)]
    store.commit(Changes(publishers={n: PublisherRow(n, b"%d" % n, 1) for n in (1, 2)}, answers=answers))
    assert [store.answers(1), store.answers(2)] == [answers[:1], answers[1:]]
    store.commit(Changes(gone_publishers={1}, answers=[Answer(1, 2, 0, b"in the same change")]))
    assert [store.answers(1), store.answers(2)] == [[], answers[1:]]


def test_states_are_set_listed_and_removed(store: Store) -> None:
    rows = [StateRow(b"\x00", b"", 3), StateRow(b"a", b"value", 1), StateRow(b"b", bytes(65_536), 2)]
    assert (store.state(b"a"), store.states(b"", 9), store.last_version()) == (None, [], 0)
    store.commit(Changes(states={row.name: row for row in reversed(rows)}))
    assert [store.state(row.name) for row in rows] == rows
    assert store.states(b"", 2) == rows[:2]
    assert store.states(rows[1].name, 2) == rows[2:]
    changed = StateRow(b"a", b"another", 4)
    store.commit(Changes(states={b"a": changed}, gone_states={b"b", b"none"}))
    assert store.states(b"", 9) == [rows[0], changed]


def test_a_states_version_never_comes_again(store: Store) -> None:
    store.commit(Changes(states={b"a": StateRow(b"a", b"", 7), b"b": StateRow(b"b", b"", 6)}))
    store.commit(Changes(gone_states={b"a"}))
    assert store.last_version() == 7
    store.commit(Changes(states={b"c": StateRow(b"c", b"", 9)}))
    store.commit(Changes(gone_states={b"b", b"c"}))
    assert (store.states(b"", 9), store.last_version()) == ([], 9)


def test_patterns_are_kept_changed_and_removed(store: Store) -> None:
    rows = [PatternRow(b"a/#", b"x", b""), PatternRow(b"a/*", b"x", b"options", 7), PatternRow(b"a/*", b"y", b"")]
    store.commit(Changes(patterns={row[:2]: row for row in reversed(rows)}))
    assert store.patterns() == rows
    changed = rows[0]._replace(options=b"others")
    store.commit(Changes(patterns={changed[:2]: changed}, gone_patterns={rows[1][:2], (b"none", b"x")}))
    assert store.patterns() == [changed, rows[2]]


def test_a_topic_is_found_by_number(store: Store) -> None:
    fill(store, commits=0, topics=2)
    assert [store.topic_name(number) for number in (1, 2, 3)] == [b"topic 0", b"topic 1", None]


def test_a_deleted_topic_takes_all_that_is_its_own_and_nothing_else(store: Store) -> None:
    maker = fill(store, commits=3, topics=3)
    key = (2, b"reader", 1)
    publishers = {n: PublisherRow(n, b"%d" % n, 1) for n in (7, 8, 9)}
    store.commit(Changes(returned={key: ReturnedRow(*key, 1, 0, "")}, publishers=publishers))
    changes = Changes()
    for publisher in publishers:
        for topic in (1, 2, 3):
            maker.put(changes, topic, [b"m"], publisher)
    store.commit(changes)
    others = [everything(store)[part] for part in ("publishers", "batches", "receipts")]
    changes = Changes()
    maker.put(changes, 2, [b"in the same change"], 8)
    subscribe(changes, 2, b"in the same change")
    changes.returned[2, b"reader", 9] = ReturnedRow(2, b"reader", 9, 1, 0, "")
    maker.trim(changes, 2, 1)
    maker.delete(changes, 2)
    store.commit(changes)
    assert (store.topic(b"topic 1"), store.topic_name(2), store.topic_count()) == (None, None, 2)
    assert [summary.topic.number for summary in store.topics(b"", 9)] == [1, 3]
    assert (store.batches(2, 0, ALL, ALL), store.subscriptions(2), store.returned(2)) == ([], [], [])
    assert (store.offset_at(2, 0), store.offset_after_bytes(2, 0)) == (None, None)
    assert [store.receipts(publisher, 2) for publisher in (1, 7, 8, 9)] == [[]] * 4
    now = everything(store)
    assert now["publishers"] == others[0]
    for topic in (1, 3):
        assert now["batches"][topic] == others[1][topic]
        assert now["receipts"][1, topic] == others[2][1, topic]
    put_everywhere(store, maker, b"going on")
    assert len(all_batches(store, 3)) == 7


def test_a_topics_number_never_comes_again_and_its_name_may(store: Store) -> None:
    maker = fill(store, commits=1, topics=2)
    changes = Changes()
    maker.delete(changes, 2)
    store.commit(changes)
    assert (store.last_topic_number(), store.topic_count()) == (2, 1)
    changes = Changes()
    number = maker.topic(changes, b"topic 1")
    maker.delete(changes, 1)
    store.commit(changes)
    assert store.topic(b"topic 1") == TopicRow(number, b"topic 1", KEEP)
    assert (store.last_topic_number(), all_batches(store, number)) == (3, [])


def test_a_topic_made_and_deleted_in_one_change_was_there(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"short-lived")
    maker.put(changes, topic, [b"m"])
    maker.delete(changes, topic)
    store.commit(changes)
    assert (store.topic_count(), store.last_topic_number(), store.topics(b"", 9)) == (0, 1, [])


def test_receipts_of_many_publishers_go_with_their_topic(store: Store) -> None:
    fill(store, commits=0, topics=2)
    pairs = [(publisher, topic) for publisher in range(1, 300) for topic in (1, 2)]
    store.commit(Changes(receipts=[Receipt(*pair, 1, 0, 0, 0, 0, 0) for pair in pairs]))
    store.commit(Changes(gone_topics={1}))
    assert [len(store.receipts(publisher, 1)) for publisher in range(1, 300)] == [0] * 299
    assert [len(store.receipts(publisher, 2)) for publisher in range(1, 300)] == [1] * 299


def test_keeping_house_changes_nothing_that_is_told(store: Store) -> None:
    maker = fill(store, commits=4, topics=2)
    trimming = Changes()
    maker.trim(trimming, 1, maker.next_offset[1])
    store.commit(trimming)
    before = everything(store)
    for _ in range(20):
        store.keep_house()
    assert everything(store) == before


def test_room_is_given_back(store: Store) -> None:
    maker, changes = Maker(), Changes()
    topic = maker.topic(changes, b"news")
    store.commit(changes)
    for _ in range(8):
        changes = Changes()
        batch = maker.put(changes, topic, [bytes(400_000)])
        store.commit(changes)
    assert isinstance(batch, StoredBatch)
    full = store.used_bytes()
    changes = Changes()
    maker.delete(changes, topic)
    store.commit(changes)
    for _ in range(20):
        store.keep_house()
    assert store.used_bytes() < full - 2_000_000


def test_the_last_decisions_are_found_by_their_nonce(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, index_writes):
        monkeypatch.setattr(module, "DECISIONS_KEPT", 3)
    maker = Maker()
    assert (store.first_decision(), store.last_decision(), store.decision(b"nonce 1"), store.count()) == (
        None,
        0,
        None,
        0,
    )
    made = []
    for several in (1, 1, 3):
        changes = Changes()
        made += [maker.decide(changes) for _ in range(several)]
        store.commit(changes)
    assert (store.first_decision(), store.last_decision(), store.count()) == (made[2], 5, made[-1].number)
    assert [store.decision(each.nonce) for each in made] == [None, None, *made[2:]]
    store.commit(Changes(count=7))
    assert store.count() == made[-1].number, "it never goes back"
