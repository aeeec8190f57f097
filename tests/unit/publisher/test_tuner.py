"""The tuner: settings, estimates, N and T_poll. Quotes are the paper's, or READINGS' where it settles a point."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from clarion.publisher.tuner import (
    LAN,
    PAPER,
    POLICIES,
    Publish,
    Sample,
    Trace,
    Tuner,
    TunerSettings,
    Wait,
    make_tuner,
    with_batch_size,
)

AIMD = ["literal", "recheck"]
POLLED = ["fixed", "literal", "recheck"]
EVERY = sorted(POLICIES)
MS = 0.001
ON_ARRIVAL = replace(PAPER, polls_on_arrival=True)


def start(policy: str, batch_size: int, settings: TunerSettings = PAPER) -> Tuner:
    return make_tuner(policy, replace(settings, batch_size=batch_size), 0.0)


def wait_of(decision: Publish | Wait) -> float:
    assert isinstance(decision, Wait)
    return decision.until_s


def publish(tuner: Tuner, *, now_s: float, took_s: float, pending: int = 1) -> None:
    """A poll that publishes, and the end of that publish."""
    assert isinstance(tuner.on_poll(pending=pending, now_s=now_s), Publish)
    tuner.on_published(took_s=took_s, now_s=now_s + took_s)


# Its settings, policies by name, and what can be seen of it.


def test_the_defaults_are_those_of_table_i() -> None:
    """ "T_poll^min [...] is set to 50 ms. T_poll^max [...] is set to 200 ms. N^min [...] is set to 1. alpha, gamma
    [...] are set to 0.5 and 0.75, respectively. beta [...] is set to 1.2." """
    settings = TunerSettings()
    assert settings == PAPER
    assert (settings.poll_min_s, settings.poll_max_s, settings.batch_size_min) == (0.05, 0.2, 1)
    assert (settings.load_gain, settings.capacity_gain, settings.poll_factor) == (0.5, 0.75, 1.2)


def test_on_a_lan_polls_begin_far_below_the_paper_and_come_with_the_messages() -> None:
    """The issue: "T_poll_min of 50 ms is the paper's, not a LAN's"."""
    assert LAN.poll_min_s < PAPER.poll_min_s / 10
    assert LAN.polls_on_arrival
    assert not PAPER.polls_on_arrival
    assert (LAN.poll_max_s, LAN.poll_factor, LAN.load_gain) == (PAPER.poll_max_s, PAPER.poll_factor, PAPER.load_gain)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size_min": 0},
        {"batch_size": 2, "batch_size_min": 3},
        {"batch_size": 9, "batch_size_max": 8},
        {"poll_min_s": 0.0},
        {"poll_min_s": -1.0},
        {"poll_min_s": 0.3},
        {"wait_s": -0.1},
        {"wait_s": inf},
        {"wait_s": nan},
        {"load_gain": 1.0},
        {"load_gain": -0.1},
        {"capacity_gain": 1.0},
        {"poll_factor": 0.0},
        {"publishes_in_transfer": 0},
        {"poll_min_s": nan},
        {"poll_max_s": inf},
        {"poll_max_s": nan},
        {"load_gain": nan},
        {"capacity_gain": nan},
        {"poll_factor": inf},
        {"poll_factor": nan},
    ],
)
def test_settings_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    about = {"load_gain": "gains", "capacity_gain": "gains", "batch_size": "batch sizes"}
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=about.get(name, name)):
        TunerSettings(**wrong)


def test_another_n_to_begin_with_changes_nothing_else() -> None:
    assert with_batch_size(LAN, None) is LAN
    changed = with_batch_size(LAN, 7)
    assert (changed.batch_size, changed.poll_min_s) == (7, LAN.poll_min_s)
    with pytest.raises(ValueError, match="batch sizes"):
        with_batch_size(LAN, 0)


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"fixed, literal, recheck, eager.*'quick'"):
        make_tuner("quick", PAPER, 0.0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_poll_can_be_seen_with_what_it_found_and_did(policy: str) -> None:
    tuner = make_tuner(policy, PAPER, 0.0)
    tuner.on_transferred(took_s=0.125, in_transfer=3)
    published = tuner.on_poll(pending=1, now_s=0.5, credit=9)
    assert isinstance(published, Publish)
    first = tuner.sample(0.5, 1, published.messages)
    assert isinstance(tuner.on_poll(pending=0, now_s=0.6), Wait)
    second = tuner.sample(0.6, 0, 0)
    assert first == Sample(0.5, 1, tuner.poll_interval_s, 1.0, 24.0, 9, 1, 1)
    assert (second.at_s, second.credit, second.pending, second.published) == (0.6, -1, 0, 0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_looking_changes_nothing(policy: str) -> None:
    tuner = make_tuner(policy, PAPER, 0.0)
    tuner.on_poll(pending=3, now_s=0.5, credit=2)
    before = vars(tuner).copy()
    assert tuner.sample(0.7, 4, 0) == tuner.sample(0.7, 4, 0)
    assert vars(tuner) == before


def test_a_trace_keeps_the_newest_samples_and_gives_them_by_topic() -> None:
    trace = Trace(3)
    samples = [make_tuner("fixed", PAPER, 0.0).sample(float(at), 0, 0) for at in range(5)]
    for place, sample in enumerate(samples):
        trace.add(b"odd" if place % 2 else b"even", sample)
    assert trace.of(b"even") == [samples[2], samples[4]]
    assert trace.of(b"odd") == [samples[3]]
    assert trace.of(b"none") == []


# What it estimates and sets from it: lambda_est, eta_est, N_max, T_poll.


@pytest.mark.parametrize("policy", EVERY)
def test_the_load_estimate_is_the_filter_of_equation_1_over_what_each_interval_brought(policy: str) -> None:
    """ "At each T_poll, we have a sample of the load in the previous polling interval [...]
    lambda_est^n = alpha lambda_est^(n-1) + (1 - alpha) lambda_s (1)" with alpha of 0.5 (Table I)."""
    tuner = make_tuner(policy, replace(PAPER, batch_size=100), 10.0)
    tuner.on_poll(pending=4, now_s=10.1, credit=0)
    assert tuner.load_per_s == pytest.approx(0.5 * 0 + 0.5 * 40)
    tuner.on_poll(pending=5, now_s=10.2, credit=0)
    assert tuner.load_per_s == pytest.approx(0.5 * 20 + 0.5 * 10), "four of the five were seen before"


def test_the_load_sample_is_of_the_interval_that_was_however_long_it_was() -> None:
    """ "Note that the polling interval is not fixed since T_poll changes as explained below." """
    tuner = make_tuner("fixed", replace(PAPER, batch_size=100), 0.0)
    tuner.on_poll(pending=10, now_s=0.05)
    tuner.on_poll(pending=20, now_s=0.25)
    assert tuner.load_per_s == pytest.approx(0.5 * (0.5 * 10 / 0.05) + 0.5 * 10 / 0.2)


def test_what_a_poll_published_is_not_taken_for_a_fall_of_the_load() -> None:
    """ "a sample of the load in the previous polling interval": what came, not what is there."""
    tuner = make_tuner("fixed", replace(PAPER, batch_size=10), 0.0)
    assert tuner.on_poll(pending=12, now_s=0.1) == Publish(10)
    tuner.on_published(took_s=0.0, now_s=0.1)
    tuner.on_poll(pending=5, now_s=0.2)
    assert tuner.load_per_s == pytest.approx(0.5 * (0.5 * 120) + 0.5 * 30), "three came: two of five were left over"


def test_the_gain_of_the_load_estimate_is_a_setting() -> None:
    """ "alpha, gamma: these are filter gain parameters" (Table I)."""
    tuner = make_tuner("fixed", replace(PAPER, batch_size=100, load_gain=0.9), 0.0)
    tuner.on_poll(pending=10, now_s=0.1)
    assert tuner.load_per_s == pytest.approx(0.1 * 100)


@pytest.mark.parametrize("policy", ["fixed", "literal"])
def test_the_load_estimate_decides_nothing(policy: str) -> None:
    """READINGS: "lambda_est: computed and reported; the text never uses it to decide"."""
    plain, misled = (make_tuner(policy, replace(PAPER, batch_size=8), 0.0) for _ in range(2))
    for turn, pending in enumerate((3, 9, 0, 20, 1, 2), 1):
        misled.load_per_s = 1e6
        now_s = turn / 10
        assert misled.on_poll(pending=pending, now_s=now_s) == plain.on_poll(pending=pending, now_s=now_s)
        assert misled.batch_size == plain.batch_size
        assert misled.poll_interval_s == plain.poll_interval_s


@pytest.mark.parametrize("policy", EVERY)
def test_the_capacity_estimate_is_the_filter_of_equation_2_over_messages_in_transfer_by_time(policy: str) -> None:
    """ "we estimate the current available message transferring capacity [...] by eta(i) = n_i/s_i [...]
    eta_est(i+1) = gamma eta_est(i) + (1 - gamma) eta(i) (2)" with gamma of 0.75 (Table I). The first sample is the
    first estimate: before it there is none to weigh it against."""
    tuner = make_tuner(policy, PAPER, 0.0)
    assert tuner.capacity_per_s == 0
    tuner.on_transferred(took_s=0.1, in_transfer=4)
    assert tuner.capacity_per_s == pytest.approx(40)
    tuner.on_transferred(took_s=0.2, in_transfer=2)
    assert tuner.capacity_per_s == pytest.approx(0.75 * 40 + 0.25 * 10)


def test_a_transfer_that_took_no_time_the_clock_can_see_is_no_sample() -> None:
    """ "eta(i) = n_i/s_i" has no value where s_i is 0."""
    tuner = make_tuner("literal", PAPER, 0.0)
    tuner.on_transferred(took_s=0.1, in_transfer=4)
    tuner.on_transferred(took_s=0.0, in_transfer=4)
    assert tuner.capacity_per_s == pytest.approx(40)


@pytest.mark.parametrize("policy", AIMD)
def test_n_max_is_the_capacity_estimate_as_a_count(policy: str) -> None:
    """ "We set N_max to eta_est(i+1)." READINGS: "messages/s used as a count. Keep it as written"."""
    tuner = make_tuner(policy, PAPER, 0.0)
    tuner.on_transferred(took_s=0.5, in_transfer=8)
    assert tuner.batch_size_max == 16


@pytest.mark.parametrize("policy", AIMD)
def test_n_max_falls_when_transfers_take_longer_and_rises_when_they_take_less(policy: str) -> None:
    """ "As the service time s_i increases, the message throughput will decrease which would decrease the estimated
    eta_est which in turn would decrease N_max. [...] Conversely, when the service time s_i decreases it will result in
    [...] higher value of N_max." """
    tuner = make_tuner(policy, PAPER, 0.0)
    tuner.on_transferred(took_s=0.1, in_transfer=4)
    usual = tuner.batch_size_max
    tuner.on_transferred(took_s=0.4, in_transfer=4)
    slow = tuner.batch_size_max
    tuner.on_transferred(took_s=0.01, in_transfer=4)
    assert slow < usual < tuner.batch_size_max


@pytest.mark.parametrize("policy", AIMD)
def test_n_does_not_grow_beyond_n_max(policy: str) -> None:
    """ "The value of N_max will limit how much N can increase and should depend on the broker-side capacity." """
    tuner = make_tuner(policy, replace(PAPER, batch_size=4), 0.0)
    tuner.on_transferred(took_s=1.0, in_transfer=5)
    for turn in range(1, 6):
        publish(tuner, now_s=turn / 10, took_s=MS, pending=100)
    assert tuner.batch_size == 5


@pytest.mark.parametrize("policy", AIMD)
def test_n_comes_down_with_n_max(policy: str) -> None:
    """ "N^max: maximum number of requests that will be batched" (Table I)."""
    tuner = make_tuner(policy, replace(PAPER, batch_size=50), 0.0)
    tuner.on_transferred(took_s=1.0, in_transfer=20)
    assert tuner.batch_size == 20
    assert tuner.on_poll(pending=100, now_s=0.1) == Publish(20)


@pytest.mark.parametrize("policy", AIMD)
def test_n_max_is_never_below_n_min(policy: str) -> None:
    """ "N^min: minimum number of requests that will be batched. In this study it is set to 1" (Table I)."""
    tuner = make_tuner(policy, replace(PAPER, batch_size=3), 0.0)
    tuner.on_transferred(took_s=100.0, in_transfer=1)
    assert (tuner.batch_size_max, tuner.batch_size) == (1, 1)


@pytest.mark.parametrize("policy", AIMD)
def test_n_max_is_never_above_the_setting(policy: str) -> None:
    """ "N^max: maximum number of requests that will be batched" (Table I): a batch holds only so many."""
    tuner = make_tuner(policy, replace(PAPER, batch_size_max=7), 0.0)
    assert tuner.batch_size_max == 7, "nothing was transferred yet: the setting alone bounds it"
    tuner.on_transferred(took_s=MS, in_transfer=1000)
    assert tuner.batch_size_max == 7


@pytest.mark.parametrize("policy", AIMD)
@pytest.mark.parametrize(
    ("took_s", "interval_s"),
    [(0.100, 0.120), (0.050, 0.060), (0.041, 0.050), (0.001, 0.050), (0.170, 0.200), (9.0, 0.200)],
)
def test_t_poll_follows_t_mpt_within_its_limits(policy: str, took_s: float, interval_s: float) -> None:
    """ "we set T_poll = max(min(beta T_mpt, T_poll^max), T_poll^min) where beta is set to a factor greater than 1",
    to 1.2, between 50 and 200 ms (Table I)."""
    tuner = make_tuner(policy, PAPER, 0.0)
    publish(tuner, now_s=0.1, took_s=took_s)
    assert tuner.poll_interval_s == pytest.approx(interval_s)


@pytest.mark.parametrize("policy", AIMD)
def test_every_publish_sets_t_poll_and_a_poll_that_publishes_nothing_does_not(policy: str) -> None:
    """ "Each time MPT reads a batch of messages from the data store [...] T_poll should be set so that it closely
    tracks T_mpt." """
    tuner = make_tuner(policy, PAPER, 0.0)
    publish(tuner, now_s=0.1, took_s=0.1)
    tuner.on_poll(pending=0, now_s=0.3)
    assert tuner.poll_interval_s == pytest.approx(0.12)
    publish(tuner, now_s=0.5, took_s=0.15)
    assert tuner.poll_interval_s == pytest.approx(0.18)


@pytest.mark.parametrize("policy", EVERY)
def test_t_poll_begins_at_its_least(policy: str) -> None:
    """ "If the load is very low, N should be set to N_min and T_poll should be set to T_poll^min." """
    tuner = make_tuner(policy, PAPER, 0.0)
    assert (tuner.batch_size, tuner.poll_interval_s) == (1, 0.05)


def test_polls_closer_than_t_poll_min_make_one_sample_of_the_load() -> None:
    """A message that comes right after the beginning is not a load of thousands a second."""
    tuner = make_tuner("eager", LAN, 0.0)
    tuner.on_poll(pending=1, now_s=0.0001)
    assert tuner.load_per_s == 0.0
    tuner.on_poll(pending=1, now_s=0.1)
    assert tuner.load_per_s == pytest.approx(0.5 * 2 / 0.1)


def test_a_silence_is_one_sample_with_the_message_that_ends_it() -> None:
    """So that the estimate is right for messages that come one by one."""
    tuner = make_tuner("eager", LAN, 0.0)
    for number in range(1, 50):
        tuner.on_idle(0.5 * number - 0.499)
        tuner.on_poll(pending=1, now_s=0.5 * number)
    assert tuner.load_per_s == pytest.approx(2.0)


# How the policies choose N and how much leaves.


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


# When it polls and how long messages wait.


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
