"""Topics that are deleted and made again, topics in great number, and replies that nobody reads any more."""

from __future__ import annotations

import pytest
from tests.unit.publisher.talking import TOPIC, Talk, numbers, payloads

from clarion.model.errors import Busy, InvalidRequest, NoSubscriber, NoTopic
from clarion.publisher import publisher_core
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_on_a_topic_made_again_what_is_in_flight_is_numbered_from_one() -> None:
    talk = Talk()
    asked = talk.add_and_pump(b"a", b"b", b"c")
    ids = [item.batch.message_id(0) for item in asked]
    for item in asked:
        item.refuse(Code.NO_TOPIC)
    again = talk.pump()
    assert (numbers(again), payloads(again)) == ([1, 2, 3], [[b"a"], [b"b"], [b"c"]])
    assert [item.batch.message_id(0) for item in again] == ids
    for item in again:
        talk.store(item, credit=1 << 40)
    assert numbers(talk.add_and_pump(b"d")) == [4]
    assert talk.core.take_error() is None


def test_nothing_is_sent_anew_while_a_request_with_an_old_number_is_under_way() -> None:
    talk = Talk()
    asked = talk.add_and_pump(b"a", b"b")
    asked[0].refuse(Code.NO_TOPIC)
    assert talk.pump() == []
    assert talk.add_and_pump(b"c") == []
    asked[1].refuse(Code.NO_TOPIC)
    assert payloads(talk.pump())[:2] == [[b"a"], [b"b"]]


def test_what_was_stored_before_the_topic_went_is_not_put_again() -> None:
    talk = Talk()
    batches = talk.add(b"a")
    asked = talk.pump()
    asked += talk.add_and_pump(b"b")
    asked[1].refuse(Code.NO_TOPIC)
    talk.store(asked[0], first_offset=4)
    again = talk.pump()
    assert (numbers(again), payloads(again)) == ([1], [[b"b"]])
    assert (batches[0].first_offset, batches[0].error) == (4, None)


def test_what_may_have_been_stored_before_the_topic_went_is_not_put_on_the_next_one() -> None:
    talk = Talk()
    batches = talk.add(b"a")
    asked = talk.pump()
    batches += talk.add(b"b")
    asked += talk.pump()
    asked[0].refuse(Code.NO_TOPIC, times_sent=2)
    asked[1].refuse(Code.NO_TOPIC)
    again = talk.pump()
    assert (numbers(again), payloads(again)) == ([1], [[b"b"]])
    with pytest.raises(NoTopic, match="cannot be told"):
        batches[0].raise_error()
    talk.store(again[0], first_offset=7)
    assert (batches[1].first_offset, talk.core.buffered_bytes) == (7, 0)


def test_a_refusal_of_one_of_two_copies_leaves_it_in_doubt_whatever_comes_later() -> None:
    talk = Talk()
    (outgoing,) = talk.add(b"a")
    (asked,) = talk.pump()
    asked.refuse(Code.TOPIC_FULL, times_sent=2)
    talk.now_s += 1.0
    (again,) = talk.pump()
    again.refuse(Code.NO_TOPIC)
    assert talk.pump() == []
    assert isinstance(outgoing.error, NoTopic)


def test_every_put_names_the_topic_that_was_opened_and_the_next_one_is_opened_anew() -> None:
    talk = Talk()
    talk.topic_number = 0
    (asked,) = talk.add_and_pump(b"a")
    assert asked.body.topic_number == 1
    asked.refuse(Code.NO_TOPIC)
    (opening,) = talk.pump()
    assert (opening.kind, opening.body.topics) == (Kind.OPEN, (TOPIC,))
    assert talk.add_and_pump(b"b") == [], "it asks once"
    opening.open(5)
    assert [item.body.topic_number for item in talk.pump()] == [5]


def test_many_topics_are_opened_by_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_core, "_OPENED_MAX", 3)
    talk = Talk()
    talk.topic_number = 0
    for number in range(5):
        talk.add(b"x", topic=b"topic %d" % number)
    (first,) = talk.pump()
    assert len(first.body.topics) == 3
    first.open(9)
    asked = talk.pump()
    assert sorted(item.kind for item in asked) == [Kind.PUT, Kind.PUT, Kind.PUT, Kind.OPEN]
    assert asked[0].body.topics == (b"topic 3", b"topic 4")


def test_where_nothing_can_be_put_what_waits_is_told_and_the_next_put_is_a_new_try() -> None:
    talk = Talk()
    talk.topic_number = 0
    (outgoing,) = talk.add(b"a", topic=b"nobody's")
    (opening,) = talk.pump()
    opening.answer(Kind.ACK, bodies.Opened(((0, Code.NO_SUBSCRIBER, "nobody subscribes"),)))
    assert isinstance(outgoing.error, NoSubscriber)
    assert (talk.pump(), talk.core.buffered_bytes) == ([], 0)
    (outgoing,) = talk.add(b"b", topic=b"nobody's")
    (opening,) = talk.pump()
    opening.open(4)
    assert payloads(talk.pump()) == [[b"b"]]


def test_what_was_refused_by_a_deleted_topic_is_told_where_no_other_has_its_name() -> None:
    talk = Talk()
    talk.topic_number = 0
    (outgoing,) = talk.add(b"a")
    (asked,) = talk.pump()
    asked.refuse(Code.NO_TOPIC)
    (opening,) = talk.pump()
    opening.answer(Kind.ACK, bodies.Opened(((0, Code.NO_SUBSCRIBER, "nobody subscribes"),)))
    assert isinstance(outgoing.error, NoSubscriber)
    assert (talk.pump(), talk.core.buffered_bytes) == ([], 0)


def test_a_topic_that_is_just_being_deleted_is_opened_a_little_later() -> None:
    talk = Talk()
    talk.topic_number = 0
    talk.add(b"a", topic=b"old")
    (opening,) = talk.pump()
    opening.answer(Kind.ACK, bodies.Opened(((0, Code.BUSY, "wait"),)))
    assert talk.pump() == []
    talk.now_s += 1.0
    assert [item.kind for item in talk.pump()] == [Kind.OPEN]


def test_credit_starts_over_with_the_topic() -> None:
    talk = Talk(in_flight=8)
    asked = talk.add_and_pump(b"a", b"b")
    for item in asked:
        item.refuse(Code.NO_TOPIC)
    queue = talk.core.queues[TOPIC]
    assert (queue.sent, queue.credit) == (2, 0)
    talk.pump()
    assert talk.add_and_pump(b"c") == [], "no credit of the new topic yet"


def test_a_gap_behind_the_first_batch_is_only_sent_again() -> None:
    talk = Talk(registered=False)
    talk.add(b"a")
    talk.turn()
    talk.register(1)
    (asked,) = talk.pump()
    asked.refuse(Code.GAP, expected=1)
    (again,) = talk.pump()
    assert again.blobs == asked.blobs


def test_while_a_topic_is_being_deleted_puts_are_tried_again_but_not_in_a_rush() -> None:
    talk = Talk()
    (asked,) = talk.add_and_pump(b"a")
    asked.refuse(Code.BUSY)
    assert talk.pump() == []
    assert isinstance(talk.core.stats()["refusal"], Busy)
    wanted_s = talk.turn()
    assert wanted_s is not None
    talk.now_s = wanted_s
    (again,) = talk.pump()
    again.refuse(Code.NO_TOPIC)
    assert numbers(talk.pump()) == [1]


def test_a_pattern_is_no_topic_to_put_on() -> None:
    talk = Talk()
    with pytest.raises(InvalidRequest, match="many topics"):
        talk.add(b"a", topic=b"alerts/*")
    assert talk.core.buffered_bytes == 0
    talk.add(b"a", topic=b"alerts/*st*r")


def test_lanes_without_work_are_let_go_of_and_their_topics_belong_to_a_new_publisher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_core, "_QUEUES_MAX", 3)
    talk = Talk()
    talk.core.queues_bound = 3
    for topic in (b"one", b"two"):
        talk.add(b"x", topic=topic)
        talk.store(talk.pump()[0])
    talk.add(b"y", topic=b"three")
    forget, register = talk.take() + talk.pump()
    assert set(talk.core.queues) == {b"three"}
    assert (forget.kind, forget.body.publisher, register.kind) == (Kind.FORGET, 1, Kind.REGISTER)
    talk.asked.append(register)
    talk.register(2)
    talk.store(talk.pump()[0])
    (again,) = talk.add_and_pump(b"z")
    assert (again.batch.publisher, again.batch.number) == (2, 1)
    assert talk.core.identities() == {2}


def test_a_busy_lane_keeps_its_publisher_when_others_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_core, "_QUEUES_MAX", 2)
    talk = Talk()
    talk.core.queues_bound = 2
    (under_way,) = talk.add_and_pump(b"x")
    talk.add(b"x", topic=b"other")
    talk.store(talk.pump()[0])
    talk.add(b"y", topic=b"third")
    assert [item.kind for item in talk.take()] == [], "publisher 1 is still needed"
    (register,) = talk.pump()
    talk.asked.append(register)
    talk.register(2)
    assert [item.batch.publisher for item in talk.pump()] == [2]
    talk.store(under_way, credit=1 << 40)
    assert [(item.batch.publisher, item.batch.number) for item in talk.add_and_pump(b"z")] == [(1, 3)]
    assert talk.core.identities() == {1, 2}


def test_a_reply_that_nobody_reads_is_told_by_its_receipt_alone() -> None:
    talk = Talk()
    (outgoing,) = talk.add(b"answer", topic=b"$reply/gone")
    talk.pump()[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    assert isinstance(outgoing.error, NoSubscriber)
    assert talk.core.take_error() is None
    assert talk.core.stats()["replies_unread"] == 1
    assert talk.core.buffered_bytes == 0
