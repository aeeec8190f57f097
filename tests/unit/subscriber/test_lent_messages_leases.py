"""Holding what is shared: kept while the consumer lives, shown to a broker that began anew, lost, and left."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import LEASE_S, Talk

from clarion.model.errors import (
    LeaseLost,
    NotSubscribed,
    Unreachable,
)
from clarion.subscriber.subscriber_core import Close
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

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
    lease = message.part.lease
    talk.reading.lend_to_transaction(lease, 0, 1)
    talk.reading.want(0.0, 5)
    talk.one(Kind.TAKE).refuse(Code.SHOW_HELD)
    talk.one(Kind.RENEW).answer(Kind.ACK, bodies.Renewed(((0, 1),), LEASE_S))
    assert isinstance(lease.error, LeaseLost)


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
