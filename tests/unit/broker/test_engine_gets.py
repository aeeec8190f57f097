"""What the engine promises subscribers."""

from __future__ import annotations

from typing import NoReturn

import pytest
from tests.unit.broker.asker import FIRST_TOPIC, START_US, Asker, body_of, code_of, news_asker, payloads_of

from clarion.model.errors import StoreUnavailable
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"


@pytest.fixture
def asker() -> Asker:
    """A topic of three batches, a subscription that saw none of them, and its consumer."""
    asker = news_asker()
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2")
    return asker


def test_a_subscription_sees_what_was_put_after_it_was_made(asker: Asker) -> None:
    asker.subscribe(NEWS, b"late")
    asker.put_many(NEWS, 1, 4, b"3")
    token = asker.attach(NEWS, b"late").token
    assert payloads_of(asker.get(NEWS, token, name=b"late")) == [b"3"]
    assert payloads_of(asker.get(NEWS, asker.attach(NEWS).token)) == [b"0", b"1", b"2", b"3"]


def test_subscribing_twice_is_told_and_changes_nothing(asker: Asker) -> None:
    again = asker.subscribe(NEWS, start="earliest")
    assert (again.kind, body_of(again, bodies.Subscribed).cursor) == (Kind.ALREADY_SUBSCRIBED, 0)


@pytest.mark.parametrize(
    ("start", "at", "cursor"), [("new", 0, 3), ("earliest", 0, 0), ("offset", 2, 2), ("offset", 3, 3)]
)
def test_a_subscription_starts_where_it_asks(asker: Asker, start: str, at: int, cursor: int) -> None:
    assert body_of(asker.subscribe(NEWS, b"late", start, at), bodies.Subscribed).cursor == cursor


def test_a_subscription_from_a_time_sees_what_was_committed_since(asker: Asker) -> None:
    second = asker.store.batches(FIRST_TOPIC, 1, 1, 1)[0].committed_at_us
    assert body_of(asker.subscribe(NEWS, b"exact", "time", second), bodies.Subscribed).cursor == 1
    assert body_of(asker.subscribe(NEWS, b"after", "time", second + 1), bodies.Subscribed).cursor == 2
    assert body_of(asker.subscribe(NEWS, b"before", "time", -5), bodies.Subscribed).cursor == 0
    assert body_of(asker.subscribe(NEWS, b"future", "time", (1 << 64) - 1), bodies.Subscribed).cursor == 3
    assert body_of(asker.subscribe(b"empty", b"any", "time", START_US), bodies.Subscribed).cursor == 0


@pytest.mark.parametrize(("start", "at"), [("offset", 4), ("offset", -1), ("yesterday", 0)])
def test_a_start_that_cannot_be_is_invalid(asker: Asker, start: str, at: int) -> None:
    assert code_of(asker.subscribe(NEWS, b"late", start, at)) == (Kind.INVALID, Code.MALFORMED)
    assert code_of(asker.ask(Kind.ATTACH, bodies.Attach(NEWS, b"late", b"consumer nonce"))) == (
        Kind.NOT_SUBSCRIBED,
        Code.NOT_SUBSCRIBED,
    )


def test_an_offset_that_was_trimmed_is_gone(asker: Asker) -> None:
    asker.ack(NEWS, asker.attach(NEWS).token, (0, 2))
    asker.tick(2)
    asker.settle()
    refused = asker.subscribe(NEWS, b"late", "offset", 1)
    assert code_of(refused) == (Kind.REFUSED, Code.GONE)
    assert "offsets 1 to 1" in body_of(refused, bodies.Refused).text
    assert body_of(asker.subscribe(NEWS, b"late", "offset", 2), bodies.Subscribed).cursor == 2


def test_a_get_gives_messages_from_its_position_on(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    reply = asker.get(NEWS, token, position=1)
    assert payloads_of(reply) == [b"1", b"2"]
    delivery = body_of(reply, bodies.Delivery)
    assert [offset for offset, _ in delivery.batches] == [1, 2]
    assert delivery.end == 3
    assert payloads_of(asker.get(NEWS, token, most=2)) == [b"0", b"1"]


def test_a_small_part_of_a_batch_is_cut_out_and_keeps_its_ids(asker: Asker) -> None:
    packed = asker.batch(1, 4, *(b"%d" % place for place in range(10)))
    asker.put(NEWS, packed)
    token = asker.attach(NEWS).token
    reply = asker.get(NEWS, token, position=3 + 4, most=3)
    part = Batch.parse(bytes(reply.blobs[0]))
    assert body_of(reply, bodies.Delivery).batches[0][0] == 7
    assert part.payloads() == [b"4", b"5", b"6"]
    assert [part.message_id(place) for place in range(3)] == [Batch.parse(packed).message_id(4 + i) for i in range(3)]


@pytest.mark.parametrize("memory", [{"memory_bytes": 0}, {"topic_queue_size": 0}, {"topic_queue_size": 2}, {}])
def test_what_is_not_in_memory_comes_from_the_store(memory: dict[str, int]) -> None:
    asker = news_asker(**memory)
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2", b"3")
    token = asker.attach(NEWS).token
    for position in range(4):
        expected = [b"%d" % place for place in range(position, 4)]
        assert payloads_of(asker.get(NEWS, token, position)) == expected
    assert (asker.engine.stats().get("store_reads", 0) != 0) == bool(memory)


def test_what_cannot_be_read_just_now_is_worth_another_try_and_not_damaged(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> NoReturn:
        raise StoreUnavailable("too many open files")

    asker.crash()  # so that nothing is in memory
    token = asker.attach(NEWS).token
    with monkeypatch.context() as patch:
        patch.setattr(asker.store, "batches", unavailable)
        assert code_of(asker.get(NEWS, token)) == (Kind.REFUSED, Code.BUSY)
    stats = asker.engine.stats()
    assert stats["unavailable_reads"] == 1
    assert "corrupt_reads" not in stats
    assert payloads_of(asker.get(NEWS, token)) == [b"0", b"1", b"2"]


def test_nothing_at_the_position_is_told_at_once_or_after_the_wait(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    assert asker.get(NEWS, token, position=3).body == bodies.NoMessages(3)
    key = asker.send_wait(NEWS, token, position=3, wait_ms=1000)
    asker.tick(0.9)
    assert key not in asker.replies
    asker.tick(0.2)
    assert asker.replies[key].kind == Kind.NO_MESSAGES
    assert asker.engine.stats()["waiting_gets"] == 0


def test_a_position_beyond_the_end_is_invalid(asker: Asker) -> None:
    assert code_of(asker.get(NEWS, asker.attach(NEWS).token, position=4)) == (Kind.INVALID, Code.MALFORMED)


def test_a_waiting_get_is_woken_by_the_commit_and_not_before(asker: Asker) -> None:
    key = asker.send_wait(NEWS, asker.attach(NEWS).token, position=3)
    put = asker.send_put(NEWS, asker.batch(1, 4, b"3"))
    assert key not in asker.replies
    asker.settle()
    assert payloads_of(asker.replies[key]) == [b"3"]
    assert asker.order.index(key) < asker.order.index(put), "delivered first: the publisher can wait"


def test_a_consumer_waits_once_its_older_question_is_answered(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    first = asker.send_wait(NEWS, token, position=3)
    second = asker.send_wait(NEWS, token, position=3)
    assert asker.replies[first].kind == Kind.NO_MESSAGES
    assert second not in asker.replies
    assert asker.engine.stats()["waiting_gets"] == 1


def test_gets_that_wait_are_bounded() -> None:
    asker = Asker(max_waiting_gets=1)
    asker.subscribe(NEWS)
    token = asker.attach(NEWS).token
    asker.send_wait(NEWS, token, peer=b"one")
    assert code_of(asker.replies[asker.send_wait(NEWS, token, peer=b"two")]) == (Kind.REFUSED, Code.LIMIT)


def test_gets_answered_long_ago_are_not_remembered(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    for _ in range(5000):
        asker.send_wait(NEWS, token, position=3, wait_ms=60_000)
    assert len(asker.engine._gets._deadlines) < 2000


def test_acked_is_never_handed_out_again(asker: Asker) -> None:
    attached = asker.attach(NEWS)
    asker.ack(NEWS, attached.token, (0, 1), (2, 3))
    asker.crash()
    again = asker.attach(NEWS, nonce=b"another consumer")
    assert (again.cursor, again.acked) == (1, ((2, 3),))
    assert payloads_of(asker.get(NEWS, again.token, position=0))[0] == b"1"


def test_acks_are_answered_when_they_are_on_disk(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    key = asker.send(Kind.ACK, bodies.Ack(NEWS, b"reader", token, ((0, 1),)))
    group = asker.take_group()
    again = asker.send(Kind.ACK, bodies.Ack(NEWS, b"reader", token, ((0, 1),)))
    assert not {key, again} & asker.replies.keys()
    asker.commit(group)
    asker.settle()
    assert asker.replies[key].body == asker.replies[again].body == bodies.Done()


@pytest.mark.parametrize("acked", [(0, 4), (-1, 1), (2, 2), (2, 1), (0, (1 << 64) - 1)])
def test_an_ack_of_what_is_not_there_is_invalid(asker: Asker, acked: tuple[int, int]) -> None:
    attached = asker.attach(NEWS)
    assert code_of(asker.ack(NEWS, attached.token, acked)) == (Kind.INVALID, Code.MALFORMED)
    assert asker.attach(NEWS).cursor == 0


def test_ranges_above_the_cursor_are_bounded_but_those_that_join_always_fit() -> None:
    asker = news_asker(max_acked_ranges=2)
    asker.put(NEWS, asker.batch(1, 1, *[b"x"] * 12))
    token = asker.attach(NEWS).token
    assert asker.ack(NEWS, token, (1, 2), (3, 4)).kind == Kind.ACK
    assert code_of(asker.ack(NEWS, token, (5, 6), (7, 8))) == (Kind.REFUSED, Code.LIMIT)
    assert asker.attach(NEWS).acked == ((1, 2), (3, 4)), "a refused ack changes nothing"
    assert asker.ack(NEWS, token, (4, 5), (5, 6), (6, 7), (2, 3)).kind == Kind.ACK
    assert asker.attach(NEWS).acked == ((1, 7),)
    assert asker.ack(NEWS, token, (0, 1)).kind == Kind.ACK
    assert asker.attach(NEWS).cursor == 7


def test_a_second_consumer_takes_over_and_the_first_is_refused(asker: Asker) -> None:
    first = asker.attach(NEWS, nonce=b"first consumer")
    waiting = asker.send_wait(NEWS, first.token, position=3)
    second = asker.attach(NEWS, nonce=b"second consumer")
    assert code_of(asker.replies[waiting]) == (Kind.REFUSED, Code.TAKEN_OVER)
    assert code_of(asker.get(NEWS, first.token)) == (Kind.REFUSED, Code.TAKEN_OVER)
    assert code_of(asker.ack(NEWS, first.token, (0, 3))) == (Kind.REFUSED, Code.TAKEN_OVER)
    asker.crash()
    assert code_of(asker.ack(NEWS, first.token, (0, 3))) == (Kind.REFUSED, Code.TAKEN_OVER)
    assert payloads_of(asker.get(NEWS, second.token)) == [b"0", b"1", b"2"]


def test_attaching_again_with_the_same_nonce_is_the_same_attach(asker: Asker) -> None:
    assert asker.attach(NEWS) == asker.attach(NEWS)
    asker.crash()
    before = asker.engine.stats().get("attached", 0)
    asker.attach(NEWS)
    assert asker.engine.stats().get("attached", 0) == before


def test_a_token_that_was_never_given_out_is_invalid(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    assert code_of(asker.get(NEWS, token + 1)) == (Kind.INVALID, Code.MALFORMED)


def test_a_consumer_of_an_ended_subscription_has_no_say_in_the_next_of_that_name(asker: Asker) -> None:
    old = asker.attach(NEWS, nonce=b"old consumer")
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(NEWS, b"reader"))
    asker.subscribe(NEWS)
    new = asker.attach(NEWS, nonce=b"new consumer")
    assert new.token > old.token
    asker.put_many(NEWS, 1, 4, b"3")
    assert code_of(asker.ack(NEWS, old.token, (3, 4))) == (Kind.REFUSED, Code.TAKEN_OVER)
    assert payloads_of(asker.get(NEWS, new.token)) == [b"3"]


def test_unsubscribing_ends_it_for_good(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    waiting = asker.send_wait(NEWS, token, position=3)
    assert asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(NEWS, b"reader")).body == bodies.Done()
    assert code_of(asker.replies[waiting]) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
    asker.crash()
    for reply in (asker.get(NEWS, token), asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(NEWS, b"reader"))):
        assert code_of(reply) == (Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)


def test_subscriptions_of_a_topic_are_bounded() -> None:
    asker = Asker(max_subscriptions_per_topic=1)
    asker.subscribe(NEWS)
    assert code_of(asker.subscribe(NEWS, b"second")) == (Kind.REFUSED, Code.LIMIT)


@pytest.mark.parametrize("name", [b"", bytes(1025)])
def test_names_have_1_to_1024_bytes(asker: Asker, name: bytes) -> None:
    assert code_of(asker.subscribe(NEWS, name)) == (Kind.INVALID, Code.TOO_LARGE)
    assert code_of(asker.subscribe(name)) == (Kind.INVALID, Code.TOO_LARGE)
    assert code_of(asker.put(name, asker.batch(1, 1, b"x"))) == (Kind.INVALID, Code.TOO_LARGE)
