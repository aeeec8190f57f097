"""How the policies choose N and how much leaves. Quotes are the paper's, or READINGS' where it settles a point."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clarion.publisher.tuner import PAPER, POLICIES, Publish, Tuner, TunerSettings, Wait, make_tuner

AIMD = ["literal", "recheck"]
POLLED = ["fixed", "literal", "recheck"]
EVERY = sorted(POLICIES)


def start(policy: str, batch_size: int, settings: TunerSettings = PAPER) -> Tuner:
    return make_tuner(policy, replace(settings, batch_size=batch_size), 0.0)


def wait_of(decision: Publish | Wait) -> float:
    assert isinstance(decision, Wait)
    return decision.until_s


@pytest.mark.parametrize("policy", AIMD)
@pytest.mark.parametrize(("before", "after"), [(9, 4), (8, 4), (3, 1), (2, 1), (1, 1)])
def test_a_poll_that_finds_too_little_halves_n(policy: str, before: int, after: int) -> None:
    """ "If enough messages have not accumulated we decrease N multiplicatively (by a factor of 2) and restart the poll
    timer." READINGS: "N = max(1, N // 2)"."""
    tuner = start(policy, before)
    assert wait_of(tuner.on_poll(pending=0, now_s=0.1)) == pytest.approx(0.15)
    assert tuner.batch_size == after


@pytest.mark.parametrize("policy", AIMD)
def test_n_is_never_halved_below_n_min(policy: str) -> None:
    """ "N^min: minimum number of requests that will be batched" (Table I)."""
    tuner = start(policy, 8, replace(PAPER, batch_size=8, batch_size_min=3))
    for turn in range(1, 4):
        tuner.on_poll(pending=0, now_s=turn / 20)
    assert tuner.batch_size == 3


def test_after_halving_the_literal_rule_publishes_nothing() -> None:
    """READINGS: "poll expires with fewer than N pending: N = max(1, N // 2), and nothing is published by the literal
    rule"."""
    tuner = start("literal", 10)
    assert isinstance(tuner.on_poll(pending=9, now_s=0.1), Wait)
    assert tuner.batch_size == 5


def test_after_halving_recheck_publishes_all_that_is_pending_if_it_is_enough_for_the_new_n() -> None:
    """READINGS: "After halving, publish everything pending at once if that is at least the new N ("recheck")"."""
    tuner = start("recheck", 10)
    assert tuner.on_poll(pending=9, now_s=0.1) == Publish(9)
    assert tuner.batch_size == 5


def test_after_halving_recheck_waits_where_even_the_new_n_is_not_there() -> None:
    """READINGS: "publish everything pending at once if that is at least the new N"."""
    tuner = start("recheck", 10)
    assert isinstance(tuner.on_poll(pending=4, now_s=0.1), Wait)
    assert tuner.batch_size == 5


@pytest.mark.parametrize("took_s", [0.001, 0.190])
def test_the_publish_of_a_recheck_does_not_move_n_again(took_s: float) -> None:
    """READINGS: "N is not moved again by that publish"."""
    tuner = start("recheck", 10)
    assert tuner.on_poll(pending=9, now_s=0.1) == Publish(9)
    tuner.on_published(took_s=took_s, now_s=0.1 + took_s)
    assert tuner.batch_size == 5


@pytest.mark.parametrize("policy", AIMD)
def test_the_publish_of_an_expired_wait_does_not_move_n_again(policy: str) -> None:
    """READINGS: "Enough pending: publish; then +1 if T_mpt < the T_poll in force, else -1": only then."""
    tuner = start(policy, 10)
    assert tuner.on_poll(pending=2, now_s=0.2) == Publish(2)
    assert tuner.batch_size == 5
    tuner.on_published(took_s=0.01, now_s=0.21)
    assert tuner.batch_size == 5


@pytest.mark.parametrize("policy", POLLED)
@pytest.mark.parametrize("pending", [5, 6, 100])
def test_a_full_poll_takes_n_and_not_all_that_is_pending(policy: str, pending: int) -> None:
    """ "The parameter N denotes the maximum number of requests that the MPT attempts to retrieve at a time from the
    data store." READINGS: "A full poll takes N messages (not all pending)"."""
    assert start(policy, 5).on_poll(pending=pending, now_s=0.1) == Publish(5)


@pytest.mark.parametrize("policy", AIMD)
def test_a_publish_that_is_over_before_the_next_poll_raises_n_by_one(policy: str) -> None:
    """ "If the time to perform this publish event finishes before the next poll timer expires then the value of N is
    increased by 1." """
    tuner = start(policy, 5)
    tuner.on_poll(pending=5, now_s=0.1)
    tuner.on_published(took_s=0.049, now_s=0.149)
    assert tuner.batch_size == 6


@pytest.mark.parametrize("policy", AIMD)
@pytest.mark.parametrize("took_s", [0.05, 0.051, 3.0])
def test_a_publish_that_takes_as_long_as_the_poll_timer_or_longer_lowers_n_by_one(policy: str, took_s: float) -> None:
    """ "If on the other hand, the time required by MPT to assign the messages to WT takes longer than the current poll
    timer, then N is decreased by 1." """
    tuner = start(policy, 5)
    tuner.on_poll(pending=5, now_s=0.1)
    tuner.on_published(took_s=took_s, now_s=0.1 + took_s)
    assert tuner.batch_size == 4


@pytest.mark.parametrize("policy", AIMD)
def test_a_publish_is_measured_against_the_t_poll_in_force_at_its_poll_not_the_one_it_sets(policy: str) -> None:
    """READINGS: "then +1 if T_mpt < the T_poll in force, else -1"."""
    tuner = start(policy, 5)
    tuner.on_poll(pending=5, now_s=0.1)
    tuner.on_published(took_s=0.1, now_s=0.2)  # over 50 ms; below the 120 ms that it sets
    assert tuner.batch_size == 4
    assert tuner.poll_interval_s == pytest.approx(0.12)
    tuner.on_poll(pending=4, now_s=0.2)
    tuner.on_published(took_s=0.1, now_s=0.3)
    assert tuner.batch_size == 5, "and now 120 ms are in force"


@pytest.mark.parametrize("policy", AIMD)
def test_n_is_never_lowered_below_n_min(policy: str) -> None:
    """ "If the load is low then N should be set to N_min = 1." """
    tuner = start(policy, 1)
    tuner.on_poll(pending=1, now_s=0.1)
    tuner.on_published(took_s=1.0, now_s=1.1)
    assert tuner.batch_size == 1


@pytest.mark.parametrize("policy", POLLED)
def test_an_expired_wait_takes_all_that_is_pending(policy: str) -> None:
    """ "When T expires, the MPT retrieves however many requests there are in the data store and processes them." """
    tuner = start(policy, 50)
    assert isinstance(tuner.on_poll(pending=3, now_s=0.199), Wait)
    assert tuner.on_poll(pending=3, now_s=0.2) == Publish(3)


def test_without_tuning_n_and_t_poll_never_change() -> None:
    """READINGS: "`fixed` (no tuning)": "waits for N", "checked at each T_poll"."""
    tuner = start("fixed", 10)
    for turn, pending in enumerate((3, 12, 0, 40, 1, 10), 1):
        now_s = turn / 2
        if isinstance(tuner.on_poll(pending=pending, now_s=now_s), Publish):
            tuner.on_published(took_s=0.15, now_s=now_s + 0.15)
        tuner.on_transferred(took_s=2.0, in_transfer=1)
        tuner.on_idle(now_s + 0.2)
        assert (tuner.batch_size, tuner.poll_interval_s, tuner.gathers) == (10, 0.05, 10)


def test_without_tuning_a_poll_waits_for_n() -> None:
    """READINGS: "tuning OFF: does it wait for N? yes: checked at each T_poll"."""
    tuner = start("fixed", 10)
    assert wait_of(tuner.on_poll(pending=9, now_s=0.05)) == pytest.approx(0.1)
    assert tuner.on_poll(pending=10, now_s=0.1) == Publish(10)


@pytest.mark.parametrize("policy", EVERY)
def test_no_more_is_published_than_there_is_credit_for(policy: str) -> None:
    """READINGS: "Taking a worker only against broker credit dropped exactly 0 in every run. Build the credit gate." """
    assert start(policy, 5).on_poll(pending=20, now_s=0.1, credit=3) == Publish(3)


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("credit", [0, -4])
def test_without_credit_nothing_is_published_whatever_is_pending_and_however_long(policy: str, credit: int) -> None:
    """READINGS: "Build the credit gate." A limit may have been passed: that is no credit, not an unknown one."""
    tuner = start(policy, 5)
    assert wait_of(tuner.on_poll(pending=20, now_s=9.0, credit=credit)) == pytest.approx(9.05)
    assert tuner.credit == 0


@pytest.mark.parametrize("policy", EVERY)
def test_a_poll_that_lacked_credit_is_not_made_again_at_once(policy: str) -> None:
    """ "If enough messages have not accumulated we [...] restart the poll timer": nor where credit has not. Whoever
    polls whenever a poll is due would poll for ever in that very moment."""
    tuner = start(policy, 5, replace(PAPER, polls_on_arrival=True))
    assert wait_of(tuner.on_poll(pending=20, now_s=0.1, credit=0)) == pytest.approx(0.15)
    assert tuner.poll_due_s(0, 20) == pytest.approx(0.15)
    assert isinstance(tuner.on_poll(pending=20, now_s=0.15, credit=20), Publish)


@pytest.mark.parametrize("policy", EVERY)
def test_where_nobody_counts_credit_nothing_is_held_back(policy: str) -> None:
    """The gate is the broker's to close: `credit=None` is no bound, and is shown as -1."""
    tuner = start(policy, 5)
    assert tuner.on_poll(pending=5, now_s=0.1) == Publish(5)
    assert tuner.credit == -1


@pytest.mark.parametrize("policy", AIMD)
def test_a_full_poll_without_credit_does_not_halve_n(policy: str) -> None:
    """ "If enough messages have not accumulated we decrease N": here enough have."""
    tuner = start(policy, 5)
    tuner.on_poll(pending=5, now_s=0.1, credit=0)
    assert tuner.batch_size == 5
