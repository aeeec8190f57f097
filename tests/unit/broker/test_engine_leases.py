"""What the engine promises those who share a subscription."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.asker import body_of, code_of
from tests.unit.broker.lease_askers import JOBS, NAME, SharedAsker, lent_by

from clarion.model.ranges import Spans
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

LOST = (Kind.REFUSED, Code.LEASE_LOST)


@pytest.fixture
def asker() -> SharedAsker:
    return SharedAsker({"lease_s": 10.0, "max_attempts": 0})


def test_each_message_goes_to_one_consumer(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1", b"2", b"3")
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert asker.borrow(one) == [(0, b"0", 1), (1, b"1", 1)], "half of it: there are two"
    assert asker.borrow(two) == [(2, b"2", 1)]
    assert asker.borrow(one) == [(3, b"3", 1)]
    assert asker.borrow(two) == []


def test_a_take_asked_again_is_the_same_lease(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1", b"2")
    token = asker.join()
    body = bodies.Take(JOBS, NAME, token, 1, 2, 1 << 20, 0)
    assert lent_by(asker.ask(Kind.TAKE, body)) == [(0, b"0", 1), (1, b"1", 1)]
    asker.done(token, (0, 1))
    assert lent_by(asker.ask(Kind.TAKE, body)) == [(1, b"1", 1)], "what is still held of it"
    body.number = 2
    assert lent_by(asker.ask(Kind.TAKE, body)) == [(2, b"2", 1)]
    body.number = 1
    assert asker.ask(Kind.TAKE, body).kind == Kind.NO_MESSAGES


def test_who_waits_is_lent_what_comes(asker: SharedAsker) -> None:
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    keys = [asker.send_take(token, wait_ms=5000, peer=b"peer %d" % token) for token in (one, two)]
    asker.put_jobs(b"0", b"1", b"2", b"3")
    assert [lent_by(asker.replies[key]) for key in keys] == [[(0, b"0", 1), (1, b"1", 1)], [(2, b"2", 1)]]


def test_a_take_that_comes_late_does_not_end_the_wait_of_a_newer_one(asker: SharedAsker) -> None:
    asker.put_jobs(b"first")
    token = asker.join()
    first = bodies.Take(JOBS, NAME, token, 1, 100, 1 << 20, 0)
    assert lent_by(asker.ask(Kind.TAKE, first)) == [(0, b"first", 1)]
    waiting = asker.send(Kind.TAKE, bodies.Take(JOBS, NAME, token, 2, 100, 1 << 20, 5000))
    assert lent_by(asker.ask(Kind.TAKE, first)) == [(0, b"first", 1)]
    assert waiting not in asker.replies
    asker.put_jobs(b"second")
    assert lent_by(asker.replies[waiting]) == [(1, b"second", 1)]


def test_a_wait_ends_with_nothing(asker: SharedAsker) -> None:
    token = asker.join()
    key = asker.send_take(token, wait_ms=2000)
    asker.tick(1.9)
    assert key not in asker.replies
    asker.tick(0.2)
    assert asker.replies[key].kind == Kind.NO_MESSAGES


def test_no_consumer_is_lent_more_than_its_bound(asker: SharedAsker) -> None:
    asker.put_jobs(*[b"%d" % place for place in range(10)])
    token = asker.join(max_unacked=3)
    assert len(asker.borrow(token)) == 3
    key = asker.send_take(token, wait_ms=5000)
    assert key not in asker.replies
    asker.done(token, (1, 3))
    asker.tick()
    assert [offset for offset, _, _ in lent_by(asker.replies[key])] == [3, 4]


def test_a_silent_consumer_loses_what_it_holds_and_cannot_ack(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    one = asker.join(b"consumer 1")
    asker.borrow(one)
    two = asker.join(b"consumer 2")
    asker.now_s += 5
    asker.renew(two)
    asker.tick(5.1)
    asker.settle()
    assert asker.borrow(two) == [(0, b"0", 2), (1, b"1", 2)]
    assert code_of(asker.done(one, (0, 1))) == LOST
    assert code_of(asker.renew(one, (0, 2))) == LOST
    assert code_of(asker.take(one)) == LOST
    assert code_of(asker.nack(one, (0, 1, 1))) == LOST
    assert asker.join(b"consumer 1") > two, "it is a new one now"


def test_heartbeats_keep_what_is_held(asker: SharedAsker) -> None:
    asker.put_jobs(b"0")
    one = asker.join()
    asker.borrow(one)
    for _ in range(5):
        asker.tick(6)
        assert body_of(asker.renew(one, (0, 1)), bodies.Renewed) == bodies.Renewed((), 10.0)
    assert asker.done(one, (0, 1)).body == bodies.Done()


def test_an_ack_of_what_another_holds_is_refused_whole(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    asker.borrow(one)
    asker.borrow(two)
    assert code_of(asker.done(one, (0, 2))) == LOST
    assert body_of(asker.renew(one, (0, 1), (1, 2)), bodies.Renewed).lost == ((1, 2),)
    assert asker.done(one, (0, 1)).body == asker.done(one, (0, 1)).body == bodies.Done()


def test_a_message_given_back_comes_again_as_the_next_attempt_and_after_its_delay(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    token = asker.join()
    asker.borrow(token, 1)
    assert asker.nack(token, (0, 1, 1), delay_ms=3000, reason="no luck").body == bodies.Done()
    assert asker.borrow(token) == [(1, b"1", 1)]
    key = asker.send_take(token, wait_ms=8000)
    asker.tick(2.9)
    assert key not in asker.replies
    asker.tick(0.2)
    asker.settle()
    assert lent_by(asker.replies[key]) == [(0, b"0", 2)]
    assert asker.nack(token, (0, 1, 1)).body == bodies.Done(), "an old one, sent again"
    assert asker.borrow(token) == [], "it is still lent for the second attempt"


def test_what_was_not_touched_comes_again_as_it_was(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1", b"2")
    one = asker.join(b"consumer 1")
    asker.borrow(one)
    asker.release(one, (2, 3, 1))
    two = asker.join(b"consumer 2")
    assert asker.borrow(two) == [(2, b"2", 1)]
    asker.detach(one, (1, 2))
    assert sorted(asker.borrow(two) + asker.borrow(two)) == [(0, b"0", 2), (1, b"1", 1)]
    assert asker.detach(one).body == bodies.Done(), "gone is gone"


def test_after_a_restart_the_backlog_waits_for_who_held_it(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1", b"2")
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert [offset for offset, _, _ in asker.borrow(one)] == [0, 1]
    asker.crash()
    assert code_of(asker.take(two)) == (Kind.REFUSED, Code.SHOW_HELD)
    asker.renew(two)
    assert asker.borrow(two) == [], "consumer 1 may hold any of it"
    asker.put_jobs(b"3")
    assert asker.borrow(two) == [(3, b"3", 1)], "but nothing that was put since"
    assert code_of(asker.done(one, (0, 1))) == (Kind.REFUSED, Code.SHOW_HELD)
    assert body_of(asker.renew(one, (0, 2)), bodies.Renewed).lost == ()
    assert asker.done(one, (0, 2)).body == bodies.Done()
    assert asker.borrow(two) == [(2, b"2", 1)]


def test_after_a_restart_who_does_not_come_back_is_not_waited_for_longer_than_a_lease(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    asker.borrow(one)
    asker.crash()
    asker.renew(two)
    key = asker.send_take(two, wait_ms=20_000)
    asker.tick(9.0)
    asker.renew(two)
    assert key not in asker.replies
    asker.tick(1.1)
    assert key not in asker.replies, "that consumer 1 is gone is not on disk yet"
    asker.settle()
    assert lent_by(asker.replies[key]) == [(0, b"0", 1), (1, b"1", 1)]
    assert code_of(asker.renew(one, (0, 1))) == LOST


def test_attempts_outlive_a_restart(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    token = asker.join()
    asker.borrow(token)
    asker.nack(token, (0, 1, 1))
    asker.nack(token, (1, 2, 1), delay_ms=60_000)
    asker.detach(token)
    asker.crash()
    token = asker.join(b"consumer 2")
    assert asker.borrow(token) == [(0, b"0", 2)]
    asker.now_s += 61
    token = asker.join(b"consumer 3")
    assert (1, b"1", 2) in asker.borrow(token)


def _both_die(asker: SharedAsker) -> None:
    """Broker and consumers die, and those never come back."""
    asker.crash()
    token = asker.join(b"a new consumer")
    asker.tick(11.0)
    asker.settle()
    asker.detach(token)


def test_what_was_lent_when_broker_and_consumer_died_counts_as_tried(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1", b"2")
    for attempt in (1, 2, 3):
        token = asker.join(b"consumer %d" % attempt)
        assert asker.borrow(token, 1) == [(0, b"0", attempt)]
        asker.tick(0.02)  # soon it is on disk, though nobody else asks for anything
        asker.settle()
        _both_die(asker)
    token = asker.join(b"the last consumer")
    assert asker.borrow(token) == [(0, b"0", 4), (1, b"1", 1), (2, b"2", 1)], "what was not lent was not tried"


def test_a_first_attempt_may_go_uncounted_once_and_no_later_one(asker: SharedAsker) -> None:
    """Where both die before it is on disk what was lent: from then on that waits for the disk."""
    asker.put_jobs(b"0")
    token = asker.join(b"consumer 0")
    key = asker.send_take(token)
    assert lent_by(asker.replies[key]) == [(0, b"0", 1)], "it is not kept waiting"
    _both_die(asker)
    for attempt in (1, 2):
        token = asker.join(b"consumer %d" % attempt)
        key = asker.send_take(token)
        assert key not in asker.replies
        asker.settle()
        assert lent_by(asker.replies[key]) == [(0, b"0", attempt)]
        _both_die(asker)


def test_what_is_given_back_untouched_counts_for_nothing_after_a_crash(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    token = asker.join()
    asker.borrow(token)
    asker.release(token, (0, 1, 1))
    _both_die(asker)
    assert asker.borrow(asker.join(b"another consumer")) == [(0, b"0", 1), (1, b"1", 2)]


def test_a_lease_that_never_came_to_a_living_consumer_counts_for_nothing(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    token = asker.join()
    asker.borrow(token, 1)
    asker.borrow(token, 1)  # of which the reply is lost
    asker.crash()
    asker.renew(token, (0, 1))
    assert asker.borrow(token) == [(1, b"1", 1)]
    assert asker.done(token, (0, 2)).kind == Kind.ACK


def test_messages_near_their_last_attempt_are_lent_alone() -> None:
    asker = SharedAsker({"lease_s": 10.0, "max_attempts": 3})
    asker.put_jobs(b"0", b"1", b"2")
    one = asker.join(b"consumer 1")
    assert len(asker.borrow(one)) == 3
    asker.tick(11)
    two = asker.join(b"consumer 2")
    assert asker.borrow(two) == [(0, b"0", 2)], "one of them may be what ended the first consumer"
    assert asker.borrow(two) == []
    asker.done(two, (0, 1))
    assert asker.borrow(two) == [(1, b"1", 2)]


def test_messages_of_one_key_are_lent_one_at_a_time_and_in_order() -> None:
    asker = SharedAsker({"order": "key", "max_attempts": 0, "lease_s": 10.0})
    asker.put_jobs(b"a1", b"a2", b"b1", b"x", b"a3", keys=(b"a", b"a", b"b", None, b"a"))
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert [payload for _, payload, _ in asker.borrow(one) + asker.borrow(two)] == [b"a1", b"b1", b"x"]
    asker.nack(one, (0, 1, 1), delay_ms=5000)
    assert asker.borrow(two) == [], "a1 comes first, and it comes later"
    asker.tick(5.1)
    assert asker.borrow(two) == [(0, b"a1", 2)]
    asker.done(two, (0, 1))
    assert asker.borrow(one) == [(1, b"a2", 1)]
    assert asker.borrow(two) == []


def test_key_order_outlives_a_restart() -> None:
    asker = SharedAsker({"order": "key", "max_attempts": 0, "lease_s": 10.0})
    asker.put_jobs(b"a1", b"a2", b"b1", keys=(b"a", b"a", b"b"))
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert [payload for _, payload, _ in asker.borrow(one)] == [b"a1", b"b1"]
    asker.crash()
    asker.put_jobs(b"a3", keys=(b"a",))
    asker.renew(two)
    assert asker.borrow(two) == []
    asker.renew(one, (0, 1), (2, 3))
    assert asker.borrow(two) == []
    asker.done(one, (0, 1))
    assert asker.borrow(two) == [(1, b"a2", 1)]
    assert asker.borrow(two) == []


def test_only_so_many_may_share() -> None:
    asker = SharedAsker(max_consumers_per_subscription=1)
    token = asker.join(b"consumer 1")
    assert asker.join(b"consumer 1") == token
    full = asker.ask(Kind.ATTACH, bodies.Attach(JOBS, NAME, b"consumer 2"))
    assert code_of(full) == (Kind.REFUSED, Code.LIMIT)


def test_get_is_not_for_shared_subscriptions_nor_take_for_others(asker: SharedAsker) -> None:
    token = asker.join()
    assert asker.ask(Kind.GET, bodies.Get(JOBS, NAME, token, 0, 1, 1, 0)).kind == Kind.INVALID
    asker.subscribe(JOBS, b"alone")
    alone = asker.attach(JOBS, b"alone").token
    assert asker.ask(Kind.TAKE, bodies.Take(JOBS, b"alone", alone, 1, 1, 1, 0)).kind == Kind.INVALID


def test_a_failed_commit_is_like_a_restart(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    token = asker.join()
    asker.borrow(token, 1)
    key = asker.send(Kind.ACK, bodies.Ack(JOBS, NAME, token, ((0, 1),)))
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.DISK_FULL)
    assert code_of(asker.done(token, (0, 1))) == (Kind.REFUSED, Code.SHOW_HELD)
    asker.renew(token, (0, 1))
    assert asker.done(token, (0, 1)).body == bodies.Done()
    assert asker.borrow(token) == [(1, b"1", 1)]


def test_a_message_that_came_back_before_the_restart_is_not_lent_again_to_who_shows_it_with_that_attempt() -> None:
    asker = SharedAsker({"lease_s": 10.0, "max_attempts": 0})
    asker.put_jobs(b"0", b"1")
    token = asker.join()
    asker.borrow(token)
    asker.nack(token, (0, 1, 1), delay_ms=60_000)
    asker.crash()
    held = ((0, 1, 1), (1, 2, 1))
    renewed = asker.ask(Kind.RENEW, bodies.Renew(JOBS, NAME, token, held))
    assert body_of(renewed, bodies.Renewed).lost == ()
    assert asker.nack(token, (0, 1, 1)).body == bodies.Done(), "asked again, it does nothing more"
    assert asker.borrow(token) == []
    assert asker.nack(token, (1, 2, 1)).body == bodies.Done(), "this one was held"
    assert asker.borrow(token) == [(1, b"1", 2)]


def test_showing_the_same_twice_does_no_harm(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1")
    token = asker.join()
    asker.borrow(token)
    asker.crash()
    assert body_of(asker.renew(token, (0, 1), (0, 2), (0, 1)), bodies.Renewed).lost == ()
    assert asker.done(token, (0, 2)).body == bodies.Done()


def test_a_consumer_cannot_show_two_messages_of_one_key() -> None:
    asker = SharedAsker({"order": "key", "max_attempts": 0, "lease_s": 10.0})
    asker.put_jobs(b"a1", b"a2", keys=(b"a", b"a"))
    token = asker.join()
    assert len(asker.borrow(token)) == 1
    asker.crash()
    assert body_of(asker.renew(token, (0, 2)), bodies.Renewed).lost == ((1, 2),)
    asker.done(token, (0, 1))
    assert asker.borrow(token) == [(1, b"a2", 1)]


def test_many_acks_out_of_order_are_taken_and_then_gaps_are_lent_first() -> None:
    asker = SharedAsker({"lease_s": 10.0, "max_attempts": 0}, max_acked_ranges=2)
    asker.put_jobs(*[b"%d" % place for place in range(10)])
    one = asker.join(b"consumer 1")
    assert len(asker.borrow(one, 8)) == 8
    for offset in (1, 3, 5):
        assert asker.done(one, (offset, offset + 1)).body == bodies.Done()
    assert asker.borrow(one) == [], "offsets 8 and 9 would only add to the gaps"
    asker.nack(one, (0, 1, 1))
    assert asker.borrow(one) == [(0, b"0", 2)]
    asker.done(one, (0, 1))
    assert asker.borrow(one) == [], "2, 4, 6 and 7 are lent"
    asker.done(one, (2, 3))
    assert [offset for offset, _, _ in asker.borrow(one)] == [8, 9]


def test_a_consumer_cannot_show_what_was_put_since_the_restart(asker: SharedAsker) -> None:
    asker.put_jobs(b"0")
    token = asker.join()
    asker.borrow(token)
    asker.crash()
    other = asker.join(b"consumer 2")
    asker.put_jobs(b"1")
    assert body_of(asker.renew(token, (0, 2)), bodies.Renewed).lost == ((1, 2),)
    assert asker.borrow(other) == [(1, b"1", 1)]
    assert asker.borrow(token) == []


def test_a_gap_that_one_consumer_acked_is_told_to_nobody_else(asker: SharedAsker) -> None:
    for payload in (b"a", b"b", b"c"):
        asker.put_jobs(payload)
    first, second = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert [offset for offset, _, _ in asker.borrow(first)] == [0, 1]
    asker.release(first, (0, 1, 1))
    asker.ask(Kind.CONFIGURE, bodies.Configure(JOBS, "", {"max_bytes": 1, "at_bound": "trim"}))
    asker.put_jobs(b"d")  # and nothing else fits
    refused = asker.take(second)
    assert body_of(refused, bodies.Refused).gone == (0, 3)  # of which the first holds a part
    assert asker.done(second, (0, 3)).kind == Kind.ACK
    asker.tick(16)  # the first lapses
    asker.settle()
    third = asker.join(b"consumer 3")
    assert [(offset, attempt) for offset, _, attempt in asker.borrow(third)] == [(3, 1)]
    assert asker.store.returned(asker.state.topics[JOBS].number) == []


def test_a_gap_in_the_hands_of_another_is_no_loss_to_it(asker: SharedAsker) -> None:
    for payload in (b"a", b"b", b"c"):
        asker.put_jobs(payload)
    first, second = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert [offset for offset, _, _ in asker.borrow(first)] == [0, 1]
    asker.release(first, (0, 1, 1))
    asker.ask(Kind.CONFIGURE, bodies.Configure(JOBS, "", {"max_bytes": 1, "at_bound": "trim"}))
    asker.put_jobs(b"d")
    assert asker.done(second, (0, 3)).kind == Kind.ACK
    assert body_of(asker.renew(first, (1, 2)), bodies.Renewed).lost == ()
    assert asker.done(first, (1, 2)).kind == Kind.ACK
    assert asker.nack(first, (1, 2, 1)).kind == Kind.ACK


def test_ranges_piled_on_each_other_are_refused_before_they_cost_anything(asker: SharedAsker) -> None:
    asker.put_jobs(b"0", b"1", b"2")
    token = asker.join()
    assert len(asker.borrow(token)) == 3
    piled = ((0, 3, 1),) * 5
    for kind, body in [
        (Kind.RENEW, bodies.Renew(JOBS, NAME, token, piled)),
        (Kind.RETURN, bodies.Return(JOBS, NAME, token, piled, True)),
        (Kind.DETACH, bodies.Detach(JOBS, NAME, token, ((0, 3),) * 5)),
    ]:
        assert code_of(asker.ask(kind, body)) == (Kind.INVALID, Code.MALFORMED)
    twice = bodies.Renew(JOBS, NAME, token, ((0, 3, 1), (1, 2, 2)))
    assert body_of(asker.ask(Kind.RENEW, twice), bodies.Renewed).lost == ()


def test_very_many_ranges_in_any_order_are_taken_at_once(asker: SharedAsker) -> None:
    asker.put_jobs(*[b"x"] * 1000)
    token = asker.join(max_unacked=10_000)
    assert len(asker.borrow(token, most=1000)) == 1000
    odd = [(offset, offset + 1) for offset in range(1, 1000, 2)]
    assert asker.done(token, *reversed(odd)).kind == Kind.ACK
    even = tuple((offset, offset + 1, 1) for offset in range(998, 0, -2))
    assert asker.ask(Kind.RETURN, bodies.Return(JOBS, NAME, token, even, False)).kind == Kind.ACK
    again = asker.borrow(token, most=1000)
    assert [offset for offset, _, _ in again] == list(range(2, 1000, 2))
    everything = [(offset, offset + 1) for offset in range(999, -1, -1)]
    assert asker.done(token, *everything).kind == Kind.ACK
    assert asker.borrow(token) == []


def test_what_is_held_in_very_many_pieces_is_not_looked_through_for_each(
    asker: SharedAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each single take or add moves all pieces behind it: one for each of them would hold the broker up for seconds."""
    single: list[str] = []

    def counted(name: str) -> Any:
        one = getattr(Spans, name)

        def call(spans: Spans, *span: int) -> Any:
            single.append(name)
            return one(spans, *span)

        return call

    for name in ("take", "add"):
        monkeypatch.setattr(Spans, name, counted(name))
    asker.put_jobs(*[b"x"] * 4000)
    token = asker.join(max_unacked=10_000)
    assert len(asker.borrow(token, most=4000)) == 4000
    even = [(offset, offset + 1) for offset in range(0, 4000, 2)]
    odd = [(offset, offset + 1) for offset in range(1, 4000, 2)]
    assert asker.done(token, *even).kind == Kind.ACK
    assert body_of(asker.renew(token, *odd, *even), bodies.Renewed).lost == ()
    asker.crash()
    assert body_of(asker.renew(token, *odd), bodies.Renewed).lost == ()
    assert asker.detach(token, *odd[:1000]).kind == Kind.ACK
    token = asker.join(b"consumer 2", max_unacked=10_000)
    again = asker.borrow(token, most=4000)
    assert [attempt for _, _, attempt in again] == 1000 * [1] + 1000 * [2]
    lost = body_of(asker.renew(token, *odd, *even, (4000, 4001)), bodies.Renewed).lost
    assert lost == ((4000, 4001),)
    assert asker.done(token, *odd[:1999]).kind == Kind.ACK
    assert asker.done(token, (3999, 4000), *((offset, offset + 1) for offset in range(4000, 4100))).kind == Kind.INVALID
    assert len(single) < 100


def test_a_consumer_is_let_in_when_that_is_on_disk(asker: SharedAsker) -> None:
    key = asker.send(Kind.ATTACH, bodies.Attach(JOBS, NAME, b"consumer 1"))
    assert key not in asker.replies
    asker.settle()
    assert asker.replies[key].kind == Kind.ACK


def test_what_a_consumer_leaves_untouched_is_lent_to_others_when_that_is_on_disk(asker: SharedAsker) -> None:
    asker.put_jobs(b"0")
    one, two = asker.join(b"consumer 1"), asker.join(b"consumer 2")
    assert asker.borrow(one) == [(0, b"0", 1)]
    asker.settle()
    asker.send(Kind.DETACH, bodies.Detach(JOBS, NAME, one, ((0, 1),)))
    key = asker.send_take(two)
    assert asker.replies[key].kind == Kind.NO_MESSAGES, "after a crash the first could still show it"
    asker.settle()
    assert asker.borrow(two) == [(0, b"0", 1)]


def test_what_a_living_consumer_does_not_show_counts_for_nothing_after_the_next_crash_either(
    asker: SharedAsker,
) -> None:
    asker.put_jobs(b"0", b"1", b"2", b"3")
    token, silent = asker.join(), asker.join(b"consumer 2")
    assert [offset for offset, _, _ in asker.borrow(token)] == [0, 1]
    assert asker.borrow(silent) == [(2, b"2", 1)]
    asker.tick(0.1)
    asker.settle()
    asker.crash()
    assert asker.ask(Kind.RENEW, bodies.Renew(JOBS, NAME, token, ((0, 1, 1),))).kind == Kind.ACK
    asker.tick(0.1)
    asker.settle()
    asker.crash()
    other = asker.join(b"consumer 3")
    for _ in range(2):
        asker.tick(6.0)
        asker.renew(other)
    attempts = [(offset, attempt) for offset, _, attempt in asker.borrow(other)]
    assert sorted(attempts) == [(0, 2), (1, 1), (2, 2), (3, 1)]
