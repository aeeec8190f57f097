"""What the tuner estimates and sets from it: lambda_est, eta_est, N_max, T_poll. Quotes are the paper's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clarion.publisher.tuner import LAN, PAPER, POLICIES, Publish, Tuner, make_tuner

EVERY = sorted(POLICIES)
AIMD = ["literal", "recheck"]
MS = 0.001


def publish(tuner: Tuner, *, now_s: float, took_s: float, pending: int = 1) -> None:
    """A poll that publishes, and the end of that publish."""
    assert isinstance(tuner.on_poll(pending=pending, now_s=now_s), Publish)
    tuner.on_published(took_s=took_s, now_s=now_s + took_s)


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
