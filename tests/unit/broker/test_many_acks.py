"""Acks of many topics in one request: each topic's are taken or refused by themselves, and durable when answered."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import body_of, code_of
from tests.unit.broker.fetch_reader import FetchReader
from tests.unit.broker.many_askers import A, B, C, ManyAsker, three_feeds

from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

Acks = tuple[tuple[int, int, int, int], ...]


@pytest.fixture
def asker() -> ManyAsker:
    return three_feeds(messages=4, max_acked_ranges=3)


@pytest.fixture
def reader(asker: ManyAsker) -> FetchReader:
    return asker.reader_of_all()


def token_of(asker: ManyAsker, number: int) -> int:
    return next(row.token for row in asker.store.subscriptions(number) if row.name == b"reader")


def ack(asker: ManyAsker, *acks: tuple[int, int, int, int]) -> dict[int, int]:
    """Return the codes of the topics whose acks were refused."""
    done = body_of(asker.ask(Kind.ACK_MANY, bodies.AckMany(b"reader", acks, True)), bodies.AcksDone)
    return {number: code for number, code, _ in done.refused}


def cursors(asker: ManyAsker) -> list[int]:
    return [asker.cursor(number) for number in asker.numbers]


def test_all_that_came_is_acked_at_once_and_does_not_come_again(asker: ManyAsker, reader: FetchReader) -> None:
    assert not asker.ack_all(reader).refused
    assert cursors(asker) == [4, 4, 4]
    asker.crash()
    assert asker.fetch_all(asker.reader(nonce=b"consumer 2")) == []


@pytest.mark.usefixtures("reader")
def test_parts_are_refused_and_others_taken(asker: ManyAsker) -> None:
    a, b, c = asker.numbers
    tokens = [token_of(asker, number) for number in asker.numbers]
    strange = (99, tokens[0], 0, 1)
    refused = ack(asker, (a, tokens[0], 0, 5), (b, tokens[1] - 1, 0, 4), strange, (c, tokens[2], 0, 3))
    assert refused == {a: Code.MALFORMED, b: Code.TAKEN_OVER, 99: Code.NOT_SUBSCRIBED}
    assert cursors(asker) == [0, 0, 3]
    assert ack(asker, (a, tokens[0], 2, 2), (b, 1 << 50, 0, 1), (c, tokens[2], 3, 4)) == {
        a: Code.MALFORMED,
        b: Code.MALFORMED,
    }
    assert cursors(asker) == [0, 0, 4]


@pytest.mark.usefixtures("reader")
def test_several_ranges_of_a_topic_may_come_in_any_order(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    tokens = [token_of(asker, number) for number in asker.numbers]
    assert ack(asker, (a, tokens[0], 3, 4), (a, tokens[0], 0, 1), (b, tokens[1], 1, 2), (b, tokens[1], 3, 4)) == {}
    assert cursors(asker) == [1, 0, 0]
    second = asker.reader(nonce=b"consumer 2")
    asker.fetch_all(second)
    assert [heard.offset for heard in second.heard if heard.topic == A] == [1, 2]
    assert [heard.offset for heard in second.heard if heard.topic == B] == [0, 2]


@pytest.mark.usefixtures("reader")
def test_in_order_and_then_others_of_the_same_topic(asker: ManyAsker) -> None:
    a = asker.numbers[0]
    token = token_of(asker, a)
    assert ack(asker, (a, token, 0, 1), (a, token, 2, 3)) == {}
    assert asker.cursor(a) == 1
    assert ack(asker, (a, token, 1, 2)) == {}
    assert asker.cursor(a) == 3


@pytest.mark.usefixtures("reader")
def test_acks_of_one_topic_that_do_not_lie_together_are_taken_all_the_same(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    tokens = [token_of(asker, number) for number in asker.numbers]
    assert ack(asker, (a, tokens[0], 0, 1), (b, tokens[1], 0, 4), (a, tokens[0], 1, 4)) == {}
    assert cursors(asker) == [4, 4, 0]


def test_more_ranges_than_a_subscription_keeps_are_refused_for_that_topic_alone() -> None:
    asker = ManyAsker(A, B, max_acked_ranges=2)
    for _ in range(8):
        asker.put_on(*asker.numbers)
    asker.fetch_all(asker.reader())
    a, b = asker.numbers
    tokens = [token_of(asker, number) for number in asker.numbers]
    scattered = [(a, tokens[0], offset, offset + 1) for offset in (1, 3, 5, 7)]
    assert ack(asker, *scattered, (b, tokens[1], 0, 8)) == {a: Code.LIMIT}
    assert cursors(asker) == [0, 8]


@pytest.mark.usefixtures("reader")
def test_acks_again_are_done_already(asker: ManyAsker) -> None:
    acks = tuple((number, token_of(asker, number), 0, 4) for number in asker.numbers)
    keys = [asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", acks, True))]
    keys.append(asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", acks, True)))
    group = asker.take_group()
    keys.append(asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", acks, True)))
    keys.append(asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", acks)))
    assert not [key for key in keys if key in asker.replies], "not before it is on disk"
    asker.commit(group)
    asker.go_on()
    asker.crash()
    keys.append(asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", acks)))
    assert all(body_of(asker.replies[key], bodies.AcksDone).refused == () for key in keys)
    assert cursors(asker) == [4, 4, 4]


@pytest.mark.usefixtures("reader")
def test_acks_that_nobody_waits_for_go_with_the_next_change(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    key = asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", ((a, token_of(asker, a), 0, 4),)))
    assert asker.engine.take_group() is None
    assert key not in asker.replies
    asker.send_puts(asker.part(b, b"new"))
    group = asker.take_group()
    assert key not in asker.replies
    asker.commit(group)
    assert key in asker.replies
    assert asker.cursor(a) == 4


@pytest.mark.usefixtures("reader")
def test_acks_that_nobody_waits_for_go_by_themselves_after_a_moment(asker: ManyAsker) -> None:
    a = asker.numbers[0]
    key = asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", ((a, token_of(asker, a), 0, 4),)))
    assert asker.engine.next_deadline_s() <= asker.now_s + 0.0101
    asker.tick(0.005)
    assert asker.engine.take_group() is None
    asker.tick(0.006)
    asker.commit(asker.take_group())
    assert key in asker.replies


@pytest.mark.usefixtures("reader")
def test_acks_that_somebody_waits_for_take_the_others_along(asker: ManyAsker) -> None:
    a, b, _ = asker.numbers
    first = asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", ((a, token_of(asker, a), 0, 4),)))
    second = asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", ((b, token_of(asker, b), 0, 4),), True))
    asker.commit(asker.take_group())
    assert first in asker.replies
    assert second in asker.replies


@pytest.mark.usefixtures("reader")
def test_a_broker_that_stops_waits_for_nothing(asker: ManyAsker) -> None:
    a = asker.numbers[0]
    key = asker.send(Kind.ACK_MANY, bodies.AckMany(b"reader", ((a, token_of(asker, a), 0, 4),)))
    asker.engine.make_haste()
    asker.commit(asker.take_group())
    assert key in asker.replies


@pytest.mark.usefixtures("reader")
def test_acks_of_a_commit_that_failed_are_refused_and_may_be_sent_again(asker: ManyAsker) -> None:
    a = asker.numbers[0]
    body = bodies.AckMany(b"reader", ((a, token_of(asker, a), 0, 4),), True)
    key = asker.send(Kind.ACK_MANY, body)
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key])[1] == Code.DISK_FULL
    assert asker.cursor(a) == 0
    assert body_of(asker.ask(Kind.ACK_MANY, body), bodies.AcksDone).refused == ()
    assert asker.cursor(a) == 4


@pytest.mark.usefixtures("reader")
def test_what_ended_meanwhile_is_refused_alone(asker: ManyAsker) -> None:
    a, b, c = asker.numbers
    acks = tuple((number, token_of(asker, number), 0, 4) for number in asker.numbers)
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(A, b"reader"))
    asker.ask(Kind.SEEK, bodies.Seek(B, b"reader", "earliest"))
    assert ack(asker, *acks) == {a: Code.NOT_SUBSCRIBED, b: Code.MOVED}
    assert asker.cursor(c) == 4
    asker.send(Kind.DELETE, bodies.Delete(C))
    assert ack(asker, acks[2]) == {c: Code.NOT_SUBSCRIBED}


def test_topics_that_are_not_in_memory_are_acked() -> None:
    asker = ManyAsker(A, B, C, max_topics_in_memory=1, topic_unload_interval_s=0.01, stale_msg_interval_s=0.01)
    asker.put_on(*asker.numbers)
    reader = asker.reader()
    assert len(asker.fetch_all(reader)) == 3
    for _ in range(3):
        asker.tick(1.0)
        asker.settle()
    assert asker.engine.stats()["topics_in_memory"] == 1
    assert not asker.ack_all(reader).refused
    assert cursors(asker) == [1, 1, 1]


def test_a_request_has_at_most_so_many_ranges(asker: ManyAsker) -> None:
    acks: Acks = ((asker.numbers[0], 1, 0, 1),) * 65_537
    assert code_of(asker.ask(Kind.ACK_MANY, bodies.AckMany(b"reader", acks))) == (Kind.INVALID, Code.MALFORMED)
    assert asker.ask(Kind.ACK_MANY, bodies.AckMany(b"reader", ())).kind == Kind.ACK


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("apart", [False, True])
def test_who_is_sought_back_after_an_ack_is_there_also_after_a_crash(asker: ManyAsker, apart: bool) -> None:
    number = asker.numbers[0]
    acked = bodies.AckMany(b"reader", ((number, token_of(asker, number), 0, 3),), True)
    asker.send(Kind.ACK_MANY, acked)
    if apart:
        asker.settle()
    asker.ask(Kind.SEEK, bodies.Seek(A, b"reader", "offset", 1))
    assert asker.cursor(number) == 1
    asker.crash()
    assert asker.cursor(number) == 1
