"""What is shared: borrowed, kept while the consumer lives, acked, given back, shown, and lost."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import LEASE_S, Talk, packed, payloads_of

from clarion.model.errors import LeaseLost, LimitReached, MessagesGone, NotSubscribed, StoredDataCorrupt, Unreachable
from clarion.subscriber.subscriber_core import Close
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


# Staying alive.


def test_a_heartbeat_comes_three_times_a_lease_also_when_nothing_is_held() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE)
    assert talk.reading.on_time(talk.now_s) == talk.now_s + LEASE_S / 3
    for _ in range(3):
        talk.now_s += LEASE_S / 3
        talk.reading.on_time(talk.now_s)
        beat = talk.one(Kind.ACK)
        assert beat.body.acked == ()
        beat.done()


def test_heartbeats_without_an_answer_do_not_pile_up() -> None:
    talk = Talk(shared=True)
    talk.take_asked()
    for _ in range(20):
        talk.now_s += LEASE_S
        talk.reading.on_time(talk.now_s)
    assert len(talk.asked) == 3


def test_without_heartbeats_only_extend_renews() -> None:
    talk = Talk(shared=True, heartbeats=False)
    (message,) = talk.lent(0)
    talk.now_s += LEASE_S
    assert talk.reading.on_time(talk.now_s) is None
    assert talk.asked == []
    extending = message.extend()
    assert not extending.go_on()
    talk.one(Kind.ACK).done()
    extending.end()


def test_extend_raises_what_became_of_the_lease() -> None:
    talk = Talk(shared=True)
    first, second, third = talk.lent(0, 1, 2)
    silent = first.extend()
    silent.go_on()
    talk.now_s += talk.core.state.timeout_s
    with pytest.raises(Unreachable):
        silent.end()
    second.nack()
    decided = second.extend()
    for asked in talk.take_asked():
        asked.done()
    with pytest.raises(LeaseLost, match="given back"):
        decided.end()
    lost = third.extend()
    talk.one(Kind.ACK).refuse(Code.LEASE_LOST)
    with pytest.raises(LeaseLost):
        lost.end()


# A broker that began anew.


def test_what_is_held_is_shown_and_what_was_refused_asked_again() -> None:
    talk = Talk(shared=True)
    messages = talk.lent(0, 1, 2, 3, 9)
    messages[0].ack()
    talk.one(Kind.ACK).done()
    messages[1].ack()
    ack = talk.one(Kind.ACK)
    talk.reading.want(1.0, 5)
    take = talk.one(Kind.TAKE)
    ack.refuse(Code.SHOW_HELD)
    take.refuse(Code.SHOW_HELD)
    messages[2].ack()
    renew = talk.one(Kind.RENEW)
    assert sorted(renew.body.held) == [(1, 2, 0), (2, 4, 1), (9, 10, 1)]
    renew.answer(Kind.ACK, bodies.Renewed((), 30.0))
    again, take_again = talk.take_asked()
    assert (again.body, take_again.body) == (ack.body, take.body), "with the same number"
    again.done()
    assert talk.one(Kind.ACK).body.acked == ((2, 3),)


def test_what_is_shown_is_for_the_start_that_asked_and_makes_older_requests_come_too_late() -> None:
    talk = Talk(shared=True)
    talk.pick(Kind.TAKE).lend(0, 1, waiting=5)
    for _ in range(2):  # untouched, and given back
        talk.now_s += 2.0
        talk.reading.on_time(talk.now_s)
        (returned,) = [asked for asked in talk.take_asked() if asked.kind == Kind.RETURN]
        number = returned.body.number
        returned.done()
        talk.reading.want(0.0, 5)
        talk.pick(Kind.TAKE).lend(0, 1, waiting=5)
    assert number == 2, "those that are not counted are numbered"
    (message, _) = talk.hand_out()
    message.nack(delay_s=60)
    returned = talk.pick(Kind.RETURN)
    assert returned.body.number == 0, "those that are counted name the attempt"
    returned.refuse(Code.SHOW_HELD, expected=33)
    talk.pick(Kind.RENEW).refuse(Code.SHOW_HELD, expected=44)
    renew = talk.pick(Kind.RENEW)
    assert (renew.body.start, renew.body.taken, renew.body.released) == (44, 3, 2)
    renew.answer(Kind.ACK, bodies.Renewed((), LEASE_S))
    assert talk.pick(Kind.RETURN).body == returned.body


def test_what_is_held_is_shown_again_where_the_broker_cannot_take_it_now() -> None:
    talk = Talk(shared=True)
    talk.lent(0, 1)
    talk.reading.want(0.0, 5)
    talk.one(Kind.TAKE).refuse(Code.SHOW_HELD, expected=33)
    talk.one(Kind.RENEW).refuse(Code.DISK_FULL, retry_after_s=0.5)
    talk.now_s += 0.5
    talk.reading.on_time(talk.now_s)
    talk.reading.raise_error()
    again = talk.one(Kind.RENEW)
    assert again.body.held == ((0, 2, 1),)
    again.answer(Kind.ACK, bodies.Renewed((), LEASE_S))
    talk.one(Kind.TAKE)


def test_nothing_is_asked_until_what_is_held_was_shown() -> None:
    """Otherwise something could be lent that a late copy of what was shown lacks."""
    talk = Talk(shared=True)
    messages = talk.lent(0, 1)
    messages[0].ack()
    talk.one(Kind.ACK).refuse(Code.SHOW_HELD)
    renew = talk.one(Kind.RENEW)
    talk.reading.want(0.0, 5)
    talk.now_s += LEASE_S
    talk.reading.on_time(talk.now_s)
    assert talk.asked == []
    renew.answer(Kind.ACK, bodies.Renewed((), LEASE_S))
    assert sorted(asked.kind for asked in talk.take_asked()) == [Kind.ACK, Kind.ACK, Kind.TAKE]


def test_what_is_being_given_back_as_tried_is_shown_with_its_attempt_and_given_back_again() -> None:
    talk = Talk(shared=True)
    messages = talk.lent(0, 1)
    messages[0].nack(delay_s=60)
    returned = talk.one(Kind.RETURN)
    returned.refuse(Code.SHOW_HELD)
    renew = talk.one(Kind.RENEW)
    assert sorted(renew.body.held) == [(0, 1, 1), (1, 2, 1)]
    assert not talk.reading.acks_done()
    renew.answer(Kind.ACK, bodies.Renewed((), LEASE_S))
    again = talk.one(Kind.RETURN)
    assert again.body == returned.body
    again.answer(Kind.ACK, bodies.Done())
    assert talk.reading.acks_done()


def test_what_was_lent_to_others_meanwhile_is_lost() -> None:
    talk = Talk(shared=True)
    messages = talk.lent(0, 1)
    talk.mark_handed(messages[0].alone())
    talk.reading.want(0.0, 5)
    talk.one(Kind.TAKE).refuse(Code.SHOW_HELD)
    talk.one(Kind.RENEW).answer(Kind.ACK, bodies.Renewed(((0, 2),), LEASE_S))
    assert talk.one(Kind.DETACH).body.token == 7
    with pytest.raises(LeaseLost, match="offsets 0 of news"):
        talk.reading.raise_error()


def test_what_a_transaction_was_given_can_be_lost_too() -> None:
    talk = Talk(shared=True)
    (message,) = talk.lent(0)
    attachment = message.part.attachment
    talk.reading.lend_to_transaction(attachment, 0, 1)
    talk.reading.want(0.0, 5)
    talk.one(Kind.TAKE).refuse(Code.SHOW_HELD)
    talk.one(Kind.RENEW).answer(Kind.ACK, bodies.Renewed(((0, 1),), LEASE_S))
    assert isinstance(attachment.error, LeaseLost)


# Losing it all.


def test_a_lost_lease_is_told_once_where_acks_were_due_and_attached_anew() -> None:
    talk = Talk(shared=True)
    talk.pick(Kind.TAKE).lend(0, 1, 2, 3, 7)
    messages = talk.hand_out(4)
    for message in messages[1:]:
        talk.mark_handed(message.alone())
    messages[0].ack()
    talk.one(Kind.ACK).refuse(Code.LEASE_LOST)
    detach = talk.one(Kind.DETACH)
    assert (detach.body.token, detach.body.untouched) == (7, ((7, 8),))
    assert talk.reading.buffered == 0
    with pytest.raises(LeaseLost, match="offsets 0 to 3 of news"):
        talk.reading.raise_error()
    talk.reading.raise_error()
    for gone in (messages[1].ack, messages[1].nack, messages[1].extend):
        with pytest.raises(LeaseLost):
            gone()
    talk.reading.ack_handed()
    assert talk.asked == []
    talk.reading.want(0.0, 5)
    (asked,) = talk.asked
    assert asked.body.nonce == b"nonce 2"
    talk.attach(token=9)
    assert (talk.asked[0].body.token, talk.asked[0].body.number) == (9, 1)


def test_a_lost_lease_is_told_where_a_nack_was_under_way() -> None:
    talk = Talk(shared=True)
    messages = talk.lent(0, 1, 2)
    messages[1].nack()
    talk.one(Kind.RETURN).done()
    messages[2].nack(delay_s=3600)
    talk.one(Kind.RETURN).refuse(Code.LEASE_LOST)
    with pytest.raises(LeaseLost, match="offsets 2 of news"):
        talk.reading.raise_ack_error()
    talk.reading.raise_ack_error()
    assert talk.reading.acks_done()
    for gone in (messages[0].nack, messages[2].nack, messages[2].ack):
        with pytest.raises(LeaseLost):
            gone()


def test_a_nack_that_the_broker_finds_lost_after_a_restart_is_told() -> None:
    talk = Talk(shared=True)
    (message,) = talk.lent(4)
    message.nack()
    talk.one(Kind.RETURN).refuse(Code.SHOW_HELD)
    talk.one(Kind.RENEW).answer(Kind.ACK, bodies.Renewed(((4, 5),), LEASE_S))
    with pytest.raises(LeaseLost, match="offsets 4 of news"):
        talk.reading.raise_ack_error()


def test_what_was_given_back_by_nobody_but_the_client_is_not_told() -> None:
    talk = Talk(shared=True)
    talk.pick(Kind.TAKE).lend(0, waiting=0)
    talk.now_s += 2
    talk.reading.on_time(talk.now_s)  # it lies here untouched
    talk.one(Kind.RETURN).refuse(Code.LEASE_LOST)
    talk.reading.raise_error()


def test_a_lost_lease_on_nothing_is_told_to_nobody() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).refuse(Code.LEASE_LOST)
    talk.reading.raise_error()
    talk.take_asked()
    talk.reading.want(0.0, 5)
    assert talk.one(Kind.ATTACH).body.nonce == b"nonce 2"


def test_late_answers_to_a_lost_token_are_nobodys() -> None:
    talk = Talk(shared=True)
    (message,) = talk.lent(0)
    talk.reading.want(0.0, 5)
    take = talk.one(Kind.TAKE)
    message.ack()
    talk.one(Kind.ACK).refuse(Code.LEASE_LOST)
    take.lend(5)
    assert talk.reading.buffered == 0


def test_a_moved_subscription_is_followed_in_silence() -> None:
    talk = Talk(shared=True)
    first, second = talk.lent(0, 1)
    talk.mark_handed(first.alone())
    second.ack()
    talk.one(Kind.ACK).refuse(Code.MOVED)
    talk.reading.raise_error()
    with pytest.raises(LeaseLost):
        first.ack()
    talk.reading.want(0.0, 5)
    talk.attach(token=8)
    assert talk.one(Kind.TAKE).body.token == 8


def test_an_ended_subscription_fails_the_reading() -> None:
    talk = Talk(shared=True)
    (message,) = talk.lent(0)
    talk.reading.want(0.0, 5)
    talk.one(Kind.TAKE).refuse(Code.NOT_SUBSCRIBED, kind=Kind.NOT_SUBSCRIBED)
    with pytest.raises(NotSubscribed):
        talk.reading.raise_error()
    with pytest.raises(NotSubscribed):
        message.ack()


def test_at_most_once_nothing_is_told_of_messages_that_nobody_saw() -> None:
    talk = Talk(shared=True, at_most_once=True)
    talk.lent(0)[0].ack()
    talk.one(Kind.ACK).refuse(Code.LEASE_LOST)
    talk.reading.raise_error()


# Leaving.


def test_leaving_gives_back_what_was_not_handed_out_as_untouched() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).lend(0, 1, 2)
    talk.hand_out(1)
    leaving = talk.run(Close(False, 5.0))
    detach = talk.one(Kind.DETACH)
    assert (detach.body.token, detach.body.untouched) == (7, ((1, 3),))
    detach.done()
    leaving.end()


def test_leaving_waits_for_a_take_that_will_soon_bring_something() -> None:
    talk = Talk(shared=True)
    leaving = talk.run(Close(False, 5.0))
    talk.one(Kind.TAKE).lend(0, 1)
    assert not leaving.go_on()
    assert talk.one(Kind.DETACH).body.untouched == ((0, 2),)
    talk.now_s += 5
    leaving.end()


def test_leaving_does_not_wait_for_a_take_that_waits_itself() -> None:
    talk = Talk(shared=True)
    talk.one(Kind.TAKE).nothing()
    talk.reading.want(30.0, 5)
    leaving = talk.run(Close(False, 5.0))
    talk.pick(Kind.DETACH).done()
    leaving.end()
