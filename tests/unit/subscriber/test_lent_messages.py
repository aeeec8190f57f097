"""Reading what is shared: borrowed, kept while the consumer lives, acked, given back, and lost."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import Talk, packed, payloads_of

from clarion.model.errors import (
    LimitReached,
    MessagesGone,
    StoredDataCorrupt,
)
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

# Taking.


def test_what_is_shared_is_taken_and_only_what_is_lent_is_handed_out() -> None:
    talk = Talk(shared=True)
    take = talk.one(Kind.TAKE)
    assert (take.body.token, take.body.number, take.body.max_messages) == (7, 1, 5)
    batches = bodies.Lent(((0, 5), (10, 6)), ((1, 3, 1), (11, 12, 4)), 0)
    take.answer(Kind.MESSAGES, batches, packed(b"0", b"1", b"2", b"3"), packed(b"10", b"11"))
    messages = talk.hand_out()
    assert [(message.payload, message.attempt) for message in messages] == [(b"1", 1), (b"2", 1), (b"11", 4)]


def test_one_take_is_under_way_and_its_number_is_used_until_it_brought_something() -> None:
    talk = Talk(shared=True)
    first = talk.one(Kind.TAKE)
    talk.reading.want(0.0, 5)
    assert talk.asked == []
    first.nothing()
    talk.reading.want(0.0, 5)
    second = talk.one(Kind.TAKE)
    assert second.body.number == 1, "a copy of the first may still be lent something"
    second.lend(0)
    talk.hand_out()
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.TAKE).body.number == 2


def test_no_more_is_taken_than_may_be_unacked() -> None:
    talk = Talk(shared=True, max_unacked=3)
    take = talk.one(Kind.TAKE)
    assert take.body.max_messages == 3
    take.lend(0, 1, 2)
    messages = talk.hand_out()
    mark = talk.reading.mark()
    talk.reading.want(0.0, 5)
    assert talk.asked == []
    assert talk.reading.empty_since(mark), "there is nothing to wait for"
    messages[1].ack()
    talk.reading.want(0.0, 5)
    assert not talk.reading.empty_since(mark), "there soon is"
    talk.one(Kind.ACK).done()
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.TAKE).body.max_messages == 1


def test_who_does_not_want_to_wait_asks_behind_the_take_that_does() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).nothing()
    talk.reading.want(30.0, 5)
    parked = talk.one(Kind.TAKE)
    for _ in range(2):
        mark = talk.reading.mark()
        talk.reading.want(0.0, 5)
        talk.reading.want(0.0, 5)
        assert not talk.reading.empty_since(mark)
        beat = talk.one(Kind.ACK)
        assert beat.body.acked == ()
        beat.done()
        assert talk.reading.empty_since(mark), "what could be lent would have come first"
    parked.lend(0)
    assert talk.reading.buffered == 1


def test_a_loan_is_never_handed_out_twice() -> None:
    talk = Talk(shared=True)
    messages = talk.lent(0, 1, 2)
    messages[1].ack()
    talk.reading.want(0.0, 5)
    talk.pick(Kind.TAKE).lend(0, 1, 2, 3)
    assert [message.offset for message in talk.hand_out()] == [3]


def test_messages_that_are_gone_are_told_once_and_acked_though_not_held() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).refuse(Code.GONE, gone=(3, 9))
    assert talk.one(Kind.ACK).body.acked == ((3, 9),)
    with pytest.raises(MessagesGone) as told:
        talk.reading.raise_error()
    assert (told.value.start, told.value.stop) == (3, 9)
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.TAKE).body.number == 1


def test_what_came_damaged_is_given_back_and_told() -> None:
    talk = Talk(shared=True)
    lent = bodies.Lent(((0, 5), (2, 5)), ((0, 2, 1), (2, 3, 1)), 0)
    talk.one(Kind.TAKE).answer(Kind.MESSAGES, lent, packed(b"0", b"1")[:-1] + b"?", packed(b"2"))
    returned = talk.one(Kind.RETURN)
    assert (returned.body.returned, returned.body.counted) == (((0, 2, 1),), True)
    assert payloads_of(talk.reading.take(9)) == [b"2"]
    with pytest.raises(StoredDataCorrupt, match="offset 0"):
        talk.reading.raise_error()


def test_a_take_refused_for_a_limit_is_told_and_tried_again_by_the_next_call() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).refuse(Code.LIMIT)
    with pytest.raises(LimitReached):
        talk.reading.raise_error()
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.TAKE).body.token == 7


# Fetching ahead.


def stream(talk: Talk, work_s: float, loans: int) -> list[int]:
    """Work messages off one by one; give how many were asked for each time."""
    asked: list[int] = []
    offset = 0
    for _ in range(loans):
        talk.reading.want(0.0, 0)
        take = talk.pick(Kind.TAKE)
        asked.append(take.body.max_messages)
        take.lend(*range(offset, offset + take.body.max_messages))
        offset += take.body.max_messages
        while (message := talk.reading.next_message()) is not None:
            talk.now_s += work_s
            message.ack()
        while talk.asked:
            talk.one(Kind.ACK).done()
    return asked


def test_who_works_fast_borrows_twice_as_much_each_time() -> None:
    talk = Talk(shared=True, max_unacked=200)
    talk.one(Kind.TAKE).nothing()
    assert stream(talk, 0.001, 8) == [1, 2, 4, 8, 16, 32, 64, 100]


def test_who_works_slowly_borrows_one_at_a_time_and_nothing_ahead() -> None:
    talk = Talk(shared=True, max_unacked=200)
    talk.one(Kind.TAKE).nothing()
    assert stream(talk, 60.0, 4) == [1, 1, 1, 1]
    talk.reading.want(0.0, 0)
    talk.pick(Kind.TAKE).lend(99, waiting=50)
    assert talk.reading.next_message() is not None
    assert talk.asked == []


def test_a_loan_is_what_is_worked_off_in_a_second() -> None:
    talk = Talk(shared=True, max_unacked=200)
    talk.one(Kind.TAKE).nothing()
    assert stream(talk, 0.125, 6) == [1, 2, 4, 8, 8, 8]
    assert stream(talk, 0.5, 6)[-1] == 2, "and falls back when it takes longer"


def test_more_is_borrowed_ahead_when_it_is_needed_soon() -> None:
    talk = Talk(shared=True, max_unacked=200)
    talk.one(Kind.TAKE).nothing()
    stream(talk, 0.01, 4)
    talk.reading.want(0.0, 0)
    talk.pick(Kind.TAKE).lend(*range(100, 104), waiting=9)
    talk.reading.next_message()
    assert talk.one(Kind.TAKE).body.max_messages > 4
    talk.reading.next_message()
    assert talk.asked == [], "one is under way"


def test_who_asks_for_so_many_gets_so_many_ahead_too() -> None:
    talk = Talk(shared=True, max_unacked=200)
    messages = talk.lent(0, 1, 2, waiting=9)
    assert talk.asked == [], "nothing is known of its pace yet"
    talk.now_s += 0.03
    for message in messages:
        message.ack()
    talk.take_asked()[0].done()
    talk.take_asked()[0].done()
    talk.reading.mark()
    talk.reading.want(1.0, 3)
    talk.lent(3, 4, 5, waiting=6)
    assert talk.one(Kind.TAKE).body.max_messages == 3


def test_what_lies_untouched_is_given_back_uncounted() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).lend(0, 1, 2, 3)
    assert talk.hand_out(1)[0].offset == 0
    wanted_s = talk.reading.on_time(talk.now_s)
    assert wanted_s is not None
    talk.now_s = wanted_s
    talk.reading.on_time(talk.now_s)
    returned = talk.one(Kind.RETURN)
    assert (returned.body.returned, returned.body.counted) == (((1, 4, 1),), False)
    assert talk.reading.buffered == 0
    talk.reading.want(0.0, 5)
    assert talk.asked == [], "before it is known to be given back, it could be taken for lent again"
    returned.done()
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.TAKE).body.number == 2


# Acking and giving back.


def test_a_nack_says_which_attempt_and_why_and_nothing_acks_it_any_more() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).lend(0, 1, attempt=2)
    first, second = talk.hand_out()
    for message in (first, second):
        talk.mark_handed(message.alone())
    first.nack(1.5, "no luck")
    body = talk.one(Kind.RETURN).body
    assert (body.returned, body.counted, body.delay_ms, body.reason) == (((0, 1, 2),), True, 1500, "no luck")
    assert not talk.reading.acks_done()
    talk.reading.ack_handed()
    assert talk.one(Kind.ACK).body.acked == ((1, 2),)
    first.ack()
    first.nack()
    second.nack()
    assert talk.asked == [], "it is decided"


def test_a_batch_can_be_given_back_as_a_whole() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).answer(Kind.MESSAGES, bodies.Lent(((0, 5),), ((0, 3, 1),), 0), packed(b"0", b"1", b"2"))
    (part,) = talk.reading.take(9)
    part.messages()[1].ack()
    talk.one(Kind.ACK).done()
    part.nack()
    assert talk.one(Kind.RETURN).body.returned == ((0, 1, 1), (2, 3, 1))


def test_acks_that_older_messages_of_others_hold_up_are_sent_again() -> None:
    talk = Talk(shared=True)
    talk.lent(5)[0].ack()
    talk.one(Kind.ACK).refuse(Code.LIMIT)
    talk.reading.raise_error()
    talk.now_s += 1.0
    talk.reading.on_time(talk.now_s)
    assert talk.pick(Kind.ACK).body.acked == ((5, 6),)
