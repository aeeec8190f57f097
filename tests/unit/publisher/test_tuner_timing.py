"""When the tuner polls and how long messages wait. Quotes are the paper's, or READINGS' where it settles a point."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clarion.publisher.tuner import LAN, PAPER, Publish, Tuner, TunerSettings, Wait, make_tuner

AIMD = ["literal", "recheck"]
POLLED = ["fixed", "literal", "recheck"]
ON_ARRIVAL = replace(PAPER, polls_on_arrival=True)


def start(policy: str, batch_size: int, settings: TunerSettings = PAPER) -> Tuner:
    return make_tuner(policy, replace(settings, batch_size=batch_size), 0.0)


@pytest.mark.parametrize("policy", POLLED)
def test_polls_are_t_poll_apart_from_start_to_start(policy: str) -> None:
    """ "T_poll determines how often MPT checks to see if N messages have accumulated." READINGS: "A poll happens
    T_poll (as in force at the last poll's start) after the last poll's start"."""
    tuner = start(policy, 1)
    tuner.on_poll(pending=1, now_s=0.3)
    tuner.on_published(took_s=0.03, now_s=0.33)
    assert tuner.poll_due_s(1, 5) == pytest.approx(0.35)


@pytest.mark.parametrize("policy", AIMD)
def test_the_t_poll_that_a_publish_sets_counts_from_the_next_poll_on(policy: str) -> None:
    """READINGS: "T_poll (as in force at the last poll's start)"."""
    tuner = start(policy, 1)
    tuner.on_poll(pending=1, now_s=0.3)
    tuner.on_published(took_s=0.15, now_s=0.45)
    assert tuner.poll_due_s(1, 5) == pytest.approx(0.35)
    tuner.on_poll(pending=0, now_s=0.45)
    assert tuner.poll_due_s(1, 5) == pytest.approx(0.45 + 0.18)


@pytest.mark.parametrize("policy", POLLED)
def test_a_missed_poll_checks_at_once(policy: str) -> None:
    """READINGS: "the poll timer runs on during a publish; a missed poll checks at once"."""
    tuner = start(policy, 1)
    tuner.on_poll(pending=1, now_s=0.3)
    tuner.on_published(took_s=0.5, now_s=0.8)
    assert tuner.poll_due_s(1, 1) < 0.8, "a moment that has passed"
    assert tuner.on_poll(pending=1, now_s=0.8) == Publish(1)


@pytest.mark.parametrize("policy", POLLED)
def test_the_wait_counts_from_the_end_of_the_last_publish(policy: str) -> None:
    """READINGS: "at most T = T_poll_max (200 ms) counted from the end of the last publish; then it publishes what there
    is"."""
    tuner = start(policy, 40)
    assert tuner.on_poll(pending=40, now_s=1.0) == Publish(40)
    tuner.on_published(took_s=0.3, now_s=1.3)
    assert isinstance(tuner.on_poll(pending=1, now_s=1.49), Wait)
    assert tuner.on_poll(pending=1, now_s=1.5) == Publish(1)


@pytest.mark.parametrize("policy", POLLED)
def test_the_wait_begins_again_when_it_is_over_and_the_store_is_empty(policy: str) -> None:
    """READINGS: "an empty store restarts T"."""
    tuner = start(policy, 40, replace(PAPER, batch_size=40, batch_size_min=10))
    assert isinstance(tuner.on_poll(pending=0, now_s=0.2), Wait)
    assert isinstance(tuner.on_poll(pending=1, now_s=0.25), Wait)
    assert isinstance(tuner.on_poll(pending=1, now_s=0.39), Wait)
    assert tuner.on_poll(pending=1, now_s=0.4) == Publish(1)


@pytest.mark.parametrize("policy", POLLED)
def test_an_empty_store_restarts_the_wait_only_when_that_is_over(policy: str) -> None:
    """READINGS: "counted from the end of the last publish": a poll of an empty store within T changes nothing."""
    tuner = start(policy, 40, replace(PAPER, batch_size=40, batch_size_min=10))
    assert isinstance(tuner.on_poll(pending=0, now_s=0.1), Wait)
    assert tuner.on_poll(pending=1, now_s=0.2) == Publish(1)


@pytest.mark.parametrize("policy", POLLED)
def test_the_wait_is_the_longest_poll_interval_unless_it_is_set(policy: str) -> None:
    """ "In this study we set T to a fixed value of T_poll^max"."""
    assert PAPER.longest_wait_s == PAPER.poll_max_s == 0.2
    tuner = start(policy, 40, replace(PAPER, batch_size=40, batch_size_min=10, wait_s=1.0))
    assert isinstance(tuner.on_poll(pending=1, now_s=0.9), Wait)
    assert tuner.on_poll(pending=1, now_s=1.0) == Publish(1)


@pytest.mark.parametrize("policy", POLLED)
def test_a_wait_that_is_over_without_credit_ends_with_the_first_credit(policy: str) -> None:
    """ "When T expires, the MPT retrieves however many requests there are": as soon as it may."""
    tuner = start(policy, 40, replace(PAPER, batch_size=40, batch_size_min=10))
    assert isinstance(tuner.on_poll(pending=3, now_s=0.2, credit=0), Wait)
    assert tuner.on_poll(pending=3, now_s=0.25, credit=2) == Publish(2)


@pytest.mark.parametrize("policy", POLLED)
def test_where_polls_may_come_on_arrival_enough_pending_messages_make_a_poll_due(policy: str) -> None:
    """ "setting T_poll^min small would amount to processing the message almost as soon as it arrives. This will be
    similar to an interrupt driven processing which would minimize the latency." """
    tuner = start(policy, 3, ON_ARRIVAL)
    tuner.on_poll(pending=3, now_s=0.1)
    tuner.on_published(took_s=0.0, now_s=0.1)
    enough = tuner.batch_size
    assert tuner.poll_due_s(3, enough) <= 0.1
    assert tuner.poll_due_s(3, enough - 1) == pytest.approx(0.15 if policy != "fixed" else 0.3)  # T_poll; T


@pytest.mark.parametrize("policy", POLLED)
def test_elsewhere_arrivals_wait_for_the_poll(policy: str) -> None:
    """ "When T_poll expires, we check if N messages are pending to be published." """
    tuner = start(policy, 1)
    tuner.on_poll(pending=1, now_s=0.1)
    tuner.on_published(took_s=0.0, now_s=0.1)
    assert tuner.poll_due_s(1, 1000) == pytest.approx(0.15)


@pytest.mark.parametrize("policy", AIMD)
@pytest.mark.parametrize(("polls", "batch_size"), [(0, 16), (1, 8), (2, 4), (3, 2), (4, 1), (500, 1), (10**9, 1)])
def test_who_stops_polling_when_idle_finds_n_as_if_every_poll_had_been_made(
    policy: str, polls: int, batch_size: int
) -> None:
    """ "If enough messages have not accumulated we decrease N multiplicatively (by a factor of 2)": once for each poll
    that would have found nothing."""
    tuner = start(policy, 16)
    tuner.on_poll(pending=16, now_s=1.0)
    tuner.on_published(took_s=0.06, now_s=1.06)
    assert tuner.batch_size == 15
    tuner.batch_size = 16
    for later in range(2):
        tuner.on_idle(1.06 + later * polls * tuner.poll_interval_s)  # who says it again is idle since the first time
    tuner.on_poll(pending=16, now_s=1.06 + (polls + 0.5) * tuner.poll_interval_s)
    assert tuner.batch_size == batch_size


@pytest.mark.parametrize("policy", POLLED)
def test_the_poll_right_after_an_idle_time_does_not_make_t_begin_again(policy: str) -> None:
    """No poll was left out where that of the idle time's end is the next that is due."""
    tuner = start(policy, 2, replace(PAPER, poll_min_s=0.5, poll_max_s=0.625))
    tuner.on_poll(pending=2, now_s=0.0)
    tuner.on_published(took_s=0.0, now_s=0.0)
    tuner.on_idle(0.0)
    tuner.batch_size = 9  # whatever it has become
    assert tuner.on_poll(pending=1, now_s=0.5) == Wait(1.0)
    tuner.batch_size = 9
    assert tuner.on_poll(pending=1, now_s=1.0) == Publish(1), "T, 0.625, is over"


@pytest.mark.parametrize("policy", POLLED)
def test_after_an_idle_time_the_wait_begins_with_the_message_that_ended_it(policy: str) -> None:
    """READINGS: "an empty store restarts T"."""
    tuner = start(policy, 40, replace(PAPER, batch_size=40, batch_size_min=10))
    tuner.on_idle(0.0)
    tuner.on_idle(60.0)
    assert isinstance(tuner.on_poll(pending=1, now_s=77.0), Wait)
    assert isinstance(tuner.on_poll(pending=1, now_s=77.19), Wait)
    assert tuner.on_poll(pending=1, now_s=77.2) == Publish(1)


@pytest.mark.parametrize("policy", AIMD)
@pytest.mark.parametrize("settings", [PAPER, LAN])
def test_a_lone_message_on_an_idle_publisher_leaves_at_once(policy: str, settings: TunerSettings) -> None:
    """ "If the load is very low [...] processing the message almost as soon as it arrives." """
    tuner = start(policy, 64, settings)
    tuner.on_poll(pending=64, now_s=0.1)
    tuner.on_published(took_s=0.04, now_s=0.14)
    tuner.on_idle(0.14)
    assert tuner.poll_due_s(0, 1) <= 5.0
    assert tuner.on_poll(pending=1, now_s=5.0) == Publish(1)


@pytest.mark.parametrize("policy", POLLED)
def test_a_clock_that_stands_still_or_goes_back_changes_no_estimate(policy: str) -> None:
    """ "a sample of the load in the previous polling interval": there is none without an interval."""
    tuner = start(policy, 4)
    tuner.on_poll(pending=2, now_s=1.0)
    load_per_s = tuner.load_per_s
    tuner.on_idle(1.0)
    for now_s in (1.0, 0.5):
        tuner.on_poll(pending=3, now_s=now_s)
        assert tuner.load_per_s == load_per_s
