"""Batches of many topics that go to the broker in one request, and the one tuner that lets them go."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from tests.unit.publisher.talking import MOMENT_S, Asked, Talk

from clarion.model.errors import InvalidRequest, NoSubscriber, NoTopic, PublisherExpired, TopicFull
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.put_requests import requests_of
from clarion.publisher.topic_queue import TopicQueue
from clarion.publisher.tuner import LAN, make_tuner
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

CREDIT = 1 << 40
Refusal = tuple[int, int]  # place and code


def many_talk(version: int = 2, **more: Any) -> Talk:
    """A publisher that is registered with a broker which takes requests of many topics."""
    talk = Talk(**more)
    talk.core.last_seen.version = version
    return talk


def add(talk: Talk, *topics: bytes, payload: bytes = b"x") -> list[OutgoingBatch]:
    return [talk.add(payload, topic=topic)[0] for topic in topics]


def batches(asked: Asked) -> list[Batch]:
    """The batches of a PUT_MANY."""
    assert asked.kind == Kind.PUT_MANY
    (blob,) = asked.blobs
    found, at = [], 0
    for _, size, _ in asked.body.puts:
        found.append(Batch.parse(bytes(blob[at : at + size])))
        at += size
    assert at == len(blob)
    return found


def answer(asked: Asked, *refused: tuple[int, int] | tuple[int, int, float, int], times_sent: int = 1) -> None:
    """Take all batches of a PUT_MANY but those at these places, which are refused with these codes."""
    why = tuple((place, code, "because", *(rest or (0.0, 0))) for place, code, *rest in refused)
    out = {place for place, *_ in refused}
    count = len(asked.body.puts)
    offsets = tuple(-1 if place in out else 100 + place for place in range(count))
    done = bodies.PutsDone(offsets, (0,) * count, (CREDIT,) * count, 1e9, why)
    asked.answer(Kind.ACK, done, times_sent)


def kinds(asked: list[Asked]) -> list[Kind]:
    return [item.kind for item in asked]


def test_what_is_due_on_many_topics_leaves_in_one_request() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b", b"c", payload=b"payload")
    (asked,) = talk.pump()
    assert [batch.payloads() for batch in batches(asked)] == [[b"payload"]] * 3
    assert [batch.number for batch in batches(asked)] == [1, 1, 1]
    assert not any(batch.done for batch in held)
    answer(asked)
    assert [batch.first_offset for batch in held] == [100, 101, 102]
    assert talk.core.buffered_bytes == 0
    assert talk.core.stats()["in_flight"] == 0


def test_what_the_broker_tells_of_readers_reaches_the_tuner_of_all_topics_and_is_forgotten_with_the_next() -> None:
    talk = many_talk(tuner=LAN)
    topics = [b"t%d" % place for place in range(200)]
    took_s = []
    for lag_ms in (900, 900, 0, 0):  # what is told with a publish holds from the next one on
        add(talk, *topics)
        sent_s = talk.now_s
        talk.now_s = talk.turn() or talk.now_s
        took_s.append(talk.now_s - sent_s)
        talk.turn()
        (asked,) = talk.take()
        done = bodies.PutsDone((0,) * 200, (0,) * 200, (CREDIT,) * 200, 1e9, lag_ms=lag_ms)
        asked.answer(Kind.ACK, done)
        talk.now_s += 0.001
    assert took_s == pytest.approx([0.0, 0.0, 0.099, 0.0], abs=0.002)


def test_a_lone_batch_goes_by_itself() -> None:
    talk = many_talk()
    add(talk, b"a")
    assert kinds(talk.pump()) == [Kind.PUT]


@pytest.mark.parametrize("tuning", ["auto", "literal", "recheck"])
def test_an_old_broker_gets_each_batch_by_itself(tuning: str) -> None:
    talk = many_talk(version=1, tuning=tuning)
    add(talk, b"a", b"b", b"c")
    assert kinds(talk.pump()) == [Kind.PUT] * 3


def test_topics_with_tuners_of_their_own_leave_in_one_request_too() -> None:
    talk = many_talk(tuning="recheck")
    add(talk, b"a", b"b")
    (asked,) = talk.pump()
    answer(asked)
    assert talk.core.messages_stored == 3


def test_large_and_delayed_batches_go_by_themselves_and_in_order() -> None:
    talk = many_talk()
    add(talk, b"a", b"b")
    add(talk, b"b", payload=bytes(40_000))
    talk.put(b"c", b"later", None, None, due_us=1 << 50)
    add(talk, b"d", b"e")
    asked = talk.pump()
    assert sorted(kinds(asked)) == sorted([Kind.PUT_MANY, Kind.PUT, Kind.PUT])
    assert {item.body.topic for item in asked if item.kind == Kind.PUT} == {b"b", b"c"}


def test_a_request_has_no_more_than_so_many_batches_and_bytes() -> None:
    talk = many_talk()
    add(talk, *[b"t%d" % place for place in range(600)])
    assert [len(item.body.puts) for item in talk.pump()] == [256, 256, 88]
    talk = many_talk()
    add(talk, *[b"t%d" % place for place in range(80)], payload=bytes(30_000))
    asked = talk.pump()
    assert all(len(item.blobs[0]) <= 2**20 for item in asked)
    assert sum(len(item.body.puts) for item in asked) == 80


def test_one_part_is_refused_and_the_others_are_taken() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b", b"c")
    (asked,) = talk.pump()
    answer(asked, (1, Code.NO_SUBSCRIBER))
    assert [batch.first_offset for batch in held] == [100, -1, 102]
    assert isinstance(held[1].error, NoSubscriber)
    assert talk.core.buffered_bytes == 0
    error = talk.core.take_error()
    assert error is not None
    assert "1 message not stored" in str(error)


def test_parts_that_are_refused_for_now_are_sent_again_together() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b", b"c")
    (asked,) = talk.pump()
    answer(asked, (0, Code.TOPIC_FULL, 0.5, 0), (2, Code.TOPIC_FULL, 0.5, 0))
    assert isinstance(talk.core.refused(b"a"), TopicFull)
    assert talk.core.refused(b"b") is None
    assert talk.turn() == pytest.approx(talk.now_s + 0.5)
    talk.now_s += 0.5
    (again,) = talk.pump()
    assert [batch.number for batch in batches(again)] == [1, 1]
    assert again.body.puts == (asked.body.puts[0], asked.body.puts[2])
    answer(again)
    assert all(batch.done and batch.error is None for batch in held)


def test_a_whole_request_that_is_refused_is_a_refusal_of_each_part() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b")
    (asked,) = talk.pump()
    asked.refuse(Code.BUSY, retry_after_s=0.1)
    talk.now_s += 0.2
    (again,) = talk.pump()
    assert again.blobs == asked.blobs
    again.refuse(Code.MALFORMED, kind=Kind.INVALID)
    assert all(isinstance(batch.error, InvalidRequest) for batch in held)


def test_a_broker_that_became_an_older_one_gets_the_batches_one_by_one() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b")
    (asked,) = talk.pump()
    asked.refuse(Code.VERSION, kind=Kind.INVALID, times_sent=2)
    again = talk.pump()
    assert kinds(again) == [Kind.PUT, Kind.PUT]
    for item in again:
        talk.store(item, 7)
    assert [batch.first_offset for batch in held] == [7, 7]


def test_a_reply_that_was_lost_changes_nothing_when_the_request_is_answered_again() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b")
    (asked,) = talk.pump()
    answer(asked, times_sent=2)
    stored = talk.core.messages_stored
    add(talk, b"a", b"b")
    (following,) = talk.pump()
    assert [batch.number for batch in batches(following)] == [2, 2]
    answer(following, (0, Code.NO_SUBSCRIBER))
    answer(following)
    assert talk.core.messages_stored == stored + 1
    assert [batch.first_offset for batch in held] == [100, 101]


def test_a_topic_that_is_deleted_in_the_middle_starts_over_and_the_others_do_not() -> None:
    talk = many_talk()
    first = add(talk, b"a", b"b")
    (asked,) = talk.pump()
    answer(asked)
    second = add(talk, b"a", b"b")
    (asked,) = talk.pump()
    answer(asked, (1, Code.NO_TOPIC))
    again = talk.pump()
    assert [(item.body.topic, item.batch.number) for item in again] == [(b"b", 1)]
    talk.store(again[0], 0)
    assert [batch.first_offset for batch in (*first, *second)] == [100, 101, 100, 0]


def test_what_may_have_been_taken_by_a_deleted_topic_fails_as_it_would_alone() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b")
    (asked,) = talk.pump()
    answer(asked, (0, Code.NO_TOPIC), times_sent=2)
    assert isinstance(held[0].error, NoTopic)
    assert held[1].error is None


def test_an_expired_publisher_fails_its_part_alone() -> None:
    talk = many_talk()
    held = add(talk, b"a", b"b")
    (asked,) = talk.pump()
    answer(asked, (0, Code.PUBLISHER_EXPIRED))
    assert isinstance(held[0].error, PublisherExpired)
    assert held[1].first_offset == 101
    add(talk, b"a")
    assert kinds(talk.pump()) == [Kind.REGISTER]


def test_two_batches_of_a_topic_follow_each_other_and_a_gap_is_sent_again() -> None:
    talk = many_talk(batch_bytes=100)
    add(talk, b"other")
    talk.store(talk.pump()[0])
    held = [*talk.add(bytes(60), bytes(60)), *add(talk, b"other")]
    (asked,) = talk.pump()
    assert [batch.number for batch in batches(asked)] == [2, 3, 2]
    answer(asked, (0, Code.TOPIC_FULL, 0.1, 0), (1, Code.GAP, 0.0, 2))
    assert [batch.done for batch in held] == [False, False, True]
    talk.now_s += 0.2
    (again,) = talk.pump()
    assert [batch.number for batch in batches(again)] == [2, 3]
    answer(again)
    assert all(batch.error is None and batch.done for batch in held)


def test_all_topics_gather_while_two_publishes_of_many_are_not_answered() -> None:
    """However long the broker takes, what comes meanwhile is in the next request, and a batch for each topic."""
    talk = many_talk(in_flight=20)
    topics = [b"t%d" % place for place in range(50)]
    add(talk, *topics)
    answer(talk.pump()[0])
    asked = []
    for _ in range(10):
        add(talk, *topics)
        talk.now_s += 1.0
        asked += talk.pump()
    assert len(asked) == 2
    answer(asked[0])
    (following,) = talk.pump()
    assert {batch.count for batch in batches(following)} == {8}


def test_nobody_needs_to_come_before_the_tuner_lets_go() -> None:
    talk = many_talk(tuner=LAN)
    for _ in range(2):
        talk.now_s += 1.0
        add(talk, b"a", b"b")
        talk.turn()
        (asked,) = talk.take()
        if not talk.core.queues[b"a"].stored:
            answer(asked)
    assert talk.core.holds_until_s == 0.0, "the next put is to be looked at"
    add(talk, b"a")
    wanted_s = talk.turn()
    assert wanted_s is not None
    assert wanted_s == talk.core.holds_until_s > talk.now_s
    add(talk, b"b")
    add(talk, b"new")
    assert talk.core.holds_until_s == 0.0, "the number of a new topic is asked for at once"
    talk.now_s = wanted_s
    assert kinds(talk.pump()) == [Kind.PUT_MANY]
    answer(asked)


def test_nobody_comes_again_for_the_tuner_where_nothing_came_the_last_time() -> None:
    talk = many_talk(tuner=LAN)
    add(talk, b"a", b"b")
    answer(talk.pump()[0])

    def publish() -> float | None:
        """Have something under way; return when the core wants a turn, its reports aside."""
        talk.now_s += 0.1
        add(talk, b"a", b"b")
        wanted_s = talk.turn()
        return wanted_s if talk.core.holds_until_s else None

    assert publish() is None
    (asked,) = talk.take()
    add(talk, b"a", b"b")
    assert talk.turn() == talk.core.holds_until_s, "this came before the tuner lets it go"
    talk.now_s = talk.core.holds_until_s
    (early,) = talk.pump()
    answer(asked)
    answer(early)
    wanted_s = publish()
    assert wanted_s is not None, "and so may the next"
    (asked,) = talk.take()
    talk.now_s = wanted_s
    assert talk.pump() == [], "it did not"
    answer(asked)
    assert publish() is None


def test_a_slow_broker_is_forgotten_after_two_quick_answers() -> None:
    talk = many_talk(tuner=LAN, in_flight=20)
    for took_s in (0.002, 3.0, 4.0, 5.0, 0.002, 0.002):
        talk.now_s += 1.0
        add(talk, b"a", b"b", b"c", b"d")
        (asked,) = talk.pump()
        talk.now_s += took_s
        answer(asked)
    assert talk.core.seen(talk.now_s)[b"a"].poll_interval_s <= 0.003


def test_what_is_sent_and_what_gathers_over_many_topics_takes_what_is_counted() -> None:
    talk = many_talk()
    add(talk, *[b"before %d" % place for place in range(10)])
    answer(talk.pump()[0])
    topics = [b"topic %d" % place for place in range(2000)]
    tracemalloc.start()
    try:
        before_bytes, counted_bytes = tracemalloc.get_traced_memory()[0], talk.core.memory_bytes
        for place, topic in enumerate(topics):
            add(talk, topic, payload=b"%200d" % place)
        asked = talk.pump()
        for place, topic in enumerate(topics):
            add(talk, topic, payload=b"%200d" % place)
        taken_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    counted_bytes = talk.core.memory_bytes - counted_bytes
    assert 0.8 * taken_bytes < counted_bytes < 1.25 * taken_bytes
    for item in asked:
        answer(item)
    for item in talk.pump():
        answer(item)
    assert talk.core.buffered_bytes == 0


def test_everything_that_is_left_is_counted_over_all_topics() -> None:
    talk = many_talk()
    add(talk, *[b"t%d" % place for place in range(100)])
    talk.pump()
    for _ in range(3):
        add(talk, *[b"t%d" % place for place in range(100)])
        talk.now_s += MOMENT_S
        talk.turn()
    assert talk.core.unconfirmed() == 400


def test_a_request_of_many_batches_is_no_larger_than_the_broker_takes() -> None:
    parts = []
    for number in range(12):
        queue = TopicQueue(b"t/%d" % number, make_tuner("auto", LAN, 0.0))
        batch = OutgoingBatch(queue.topic)
        batch.builder.add(bytes(9000), None, None, 9016)
        batch.seal(broker=1, publisher=1, stamp=1, number=1)
        parts.append((queue, batch))
    requests = requests_of(parts, together=True, most_bytes=20_000)
    assert [part for request in requests for part in request] == parts
    assert [len(request) for request in requests] == [2] * 6
    assert [len(request) for request in requests_of(parts, together=True, most_bytes=100)] == [1] * 12
