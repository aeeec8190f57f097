"""Reading the store while another thread commits, and with many topics."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.unit.store.making import Maker, fill, open_segmented, put_everywhere

from clarion.store.port import KEEP, Changes, TopicRow
from clarion.store.segmented import SegmentedStore

COMMITS = 200


def test_a_reader_beside_the_writer_sees_whole_commits_in_order(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, checkpoint_bytes=256 << 10)  # so that the log is begun anew on the way
    maker = fill(store, commits=0, topics=3)
    writer = threading.Thread(target=_commit_many, args=(store, maker))
    writer.start()
    position = 0
    while position < COMMITS:
        for batch in store.batches(1, position, 50, 1 << 20):
            assert batch.first_offset == position
            assert b"1 commit %d " % position in bytes(batch.data)
            position += batch.count
        ends = {summary.topic.next_offset for summary in store.topics(b"", 10)}
        assert len(ends) == 1  # a commit puts on every topic, so a state between commits would show
        assert min(ends) >= position
        last = store.batches(3, min(ends) - 1, 1, 1)
        assert not last or store.offset_at(3, last[0].committed_at_us) == last[0].first_offset
    writer.join()
    store.close()


def test_many_topics_are_listed_in_pieces(tmp_path: Path) -> None:
    store = open_segmented(tmp_path)
    store.commit(Changes(topics={n: TopicRow(n, b"%06d" % (n * 7919 % 5003), KEEP) for n in range(1, 5001)}))
    assert store.topic_count() == store.last_topic_number() == 5000
    names: list[bytes] = []
    while piece := store.topics(names[-1] if names else b"", 999):
        names += [summary.topic.name for summary in piece]
    assert names == sorted(names)
    assert len(set(names)) == 5000
    store.close()


def _commit_many(store: SegmentedStore, maker: Maker) -> None:
    for place in range(COMMITS):
        put_everywhere(store, maker, b"commit %d " % place + b"p" * 5000)


def test_a_reader_never_sees_what_a_segment_was_used_for_again(tmp_path: Path) -> None:
    store = open_segmented(tmp_path, segment_bytes=16 << 10, checkpoint_bytes=64 << 10)
    maker = fill(store, commits=0, topics=2)
    writer = threading.Thread(target=_put_and_trim_many, args=(store, maker))
    writer.start()
    position = 0
    while position < COMMITS:
        for topic in (1, 2):
            for batch in store.batches(topic, 0, 50, 1 << 20):
                assert b"%d commit %d " % (topic, batch.first_offset) in bytes(batch.data)
                position = max(position, batch.first_offset + 1)
    writer.join()
    assert store._segments.number > 20
    assert len(list((tmp_path / "log").iterdir())) < 20  # of a hundred; a reader may have put some off
    store.close()


def _put_and_trim_many(store: SegmentedStore, maker: Maker) -> None:
    for place in range(COMMITS):
        changes = Changes()
        for topic in (1, 2):
            maker.put(changes, topic, [b"%d commit %d " % (topic, place) + b"p" * 3000])
            maker.trim(changes, topic, place - 2)
        store.commit(changes)
