"""The policy beyond the paper: what is pending leaves as soon as the publishing side is free for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clarion.publisher.tuner import LAN, PAPER, Publish, Tuner, TunerSettings, Wait, make_tuner


def start(settings: TunerSettings = PAPER) -> Tuner:
    return make_tuner("eager", settings, 0.0)


def wait_of(decision: Publish | Wait) -> float:
    assert isinstance(decision, Wait)
    return decision.until_s


def test_the_best_policy_is_meant_by_auto() -> None:
    assert type(make_tuner("auto", PAPER, 0.0)) is type(start())


@pytest.mark.parametrize("settings", [PAPER, LAN])
def test_a_lone_message_on_an_idle_publisher_leaves_at_once(settings: TunerSettings) -> None:
    """ "processing the message almost as soon as it arrives [...] similar to an interrupt driven processing": with
    nothing in transfer the poll timer is not waited for."""
    tuner = start(settings)
    for now_s in (0.0, 0.001, 0.002, 7.0):
        assert tuner.poll_due_s(0, 1) <= now_s
        assert tuner.on_poll(pending=1, now_s=now_s) == Publish(1)
        tuner.on_published(took_s=0.0, now_s=now_s)
        tuner.on_transferred(took_s=0.0005, in_transfer=1)
        tuner.on_idle(now_s)


@pytest.mark.parametrize("pending", [1, 2, 50, 100_000])
def test_a_poll_takes_all_that_is_pending(pending: int) -> None:
    """ "This amortizes the fixed cost of a data store read over a number of messages": over all there are."""
    assert start().on_poll(pending=pending, now_s=0.1) == Publish(pending)


def test_there_is_at_most_one_publish_in_each_t_poll_while_something_is_in_transfer() -> None:
    """ "T_poll determines how often MPT checks"."""
    tuner = start()
    tuner.on_poll(pending=1, now_s=1.0)
    tuner.on_published(took_s=0.001, now_s=1.001)
    assert tuner.poll_due_s(1, 1000) == pytest.approx(1.05)


def test_t_poll_spreads_the_publishes_that_may_be_in_transfer_over_the_time_of_a_transfer() -> None:
    """With 20 workers and 2 s for a transfer, a publish each 100 ms keeps all of them busy and none waiting."""
    tuner = start()
    tuner.on_transferred(took_s=2.0, in_transfer=1)
    assert tuner.poll_interval_s == pytest.approx(2.0 / 20)
    tuner.on_transferred(took_s=4.0, in_transfer=1)
    assert tuner.poll_interval_s == pytest.approx((0.75 * 2.0 + 0.25 * 4.0) / 20)
    few = start(replace(PAPER, publishes_in_transfer=4))
    few.on_transferred(took_s=0.4, in_transfer=1)
    assert few.poll_interval_s == pytest.approx(0.1)


@pytest.mark.parametrize(("took_s", "interval_s"), [(0.01, 0.05), (1000.0, 0.2)])
def test_t_poll_stays_within_its_limits(took_s: float, interval_s: float) -> None:
    """ "the max and the min functions bound the value of T_poll within T_poll^max and T_poll^min"."""
    tuner = start()
    tuner.on_transferred(took_s=took_s, in_transfer=1)
    assert tuner.poll_interval_s == interval_s


def test_what_is_written_during_a_read_is_not_missed_by_a_moment() -> None:
    """ "we assume that writes have non-preemptive priority over reads": they come right after a read, so that the next
    poll waits for beta times what the read took, whatever is in transfer; it sets T_poll, too."""
    tuner = start()
    tuner.on_poll(pending=1, now_s=1.0)
    tuner.on_published(took_s=0.16, now_s=1.16, read_s=0.1)
    assert tuner.poll_due_s(0, 5) == pytest.approx(1.12)
    assert tuner.poll_interval_s == pytest.approx(0.12)


def test_after_a_long_read_the_next_poll_is_no_later_than_the_longest_poll_interval() -> None:
    tuner = start()
    tuner.on_poll(pending=1, now_s=1.0)
    tuner.on_published(took_s=50.0, now_s=51.0, read_s=50.0)
    assert tuner.poll_due_s(1, 5) == pytest.approx(51.2)
    assert tuner.poll_interval_s == 0.2


def test_a_store_that_is_read_in_no_time_makes_nobody_wait() -> None:
    tuner = start()
    tuner.on_poll(pending=1, now_s=1.0)
    tuner.on_published(took_s=0.3, now_s=1.3)
    assert tuner.poll_due_s(0, 1) <= 1.0
    assert tuner.poll_interval_s == 0.05


def test_n_shows_how_much_the_last_poll_found() -> None:
    tuner = start()
    tuner.on_poll(pending=17, now_s=0.1)
    assert tuner.batch_size == 17
    tuner.on_poll(pending=0, now_s=0.2)
    assert tuner.batch_size == 17, "an empty poll says nothing of batches"


def test_n_stays_between_the_least_and_the_most_that_is_set() -> None:
    tuner = start(replace(PAPER, batch_size=5, batch_size_min=3, batch_size_max=8))
    tuner.on_poll(pending=1, now_s=0.1)
    assert tuner.batch_size == 3
    tuner.on_poll(pending=100, now_s=0.2)
    assert tuner.batch_size == 8


def test_a_slow_transfer_is_no_reason_to_hold_back_a_burst() -> None:
    """Where the paper's N_max is the capacity in use, this policy leaves holding back to the broker's credit."""
    tuner = start()
    tuner.on_transferred(took_s=10.0, in_transfer=1)
    assert tuner.on_poll(pending=500, now_s=0.1) == Publish(500)
    assert tuner.on_poll(pending=500, now_s=0.2, credit=20) == Publish(20)


def test_an_empty_poll_waits() -> None:
    tuner = start()
    assert wait_of(tuner.on_poll(pending=0, now_s=0.1)) == pytest.approx(0.15)


def behind(lag_s: float, topics: int) -> Tuner:
    """Return a tuner after a publish of so many topics that was answered at once, with readers so far behind."""
    tuner = start(LAN)
    tuner.on_poll(pending=100, now_s=1.0, topics=topics)
    tuner.on_published(took_s=0.0, now_s=1.0)
    tuner.readers_lag_s = lag_s
    tuner.on_transferred(took_s=0.001, in_transfer=100)
    tuner.on_poll(pending=100, now_s=1.002, topics=topics)
    return tuner


@pytest.mark.parametrize(("lag_s", "gathers_s"), [(0.35, 0.05), (0.45, 0.1), (60.0, 0.2)])
def test_many_topics_gather_for_readers_who_are_behind(lag_s: float, gathers_s: float) -> None:
    tuner = behind(lag_s, topics=500)
    assert tuner.poll_due_s(0, 100) == pytest.approx(1.002 + gathers_s)


@pytest.mark.parametrize(("topics", "gathers_s"), [(2, 0.001), (20, 0.01), (200, 0.1), (2000, 0.2)])
def test_few_topics_gather_for_less_since_readers_take_two_thousand_batches_a_second(
    topics: int, gathers_s: float
) -> None:
    assert behind(9.9, topics).poll_due_s(0, 100) == pytest.approx(1.002 + gathers_s)


@pytest.mark.parametrize(("lag_s", "topics"), [(0.0, 500), (0.25, 500), (1.0, 1)])
def test_nothing_gathers_for_readers_who_keep_up_or_on_one_topic(lag_s: float, topics: int) -> None:
    assert behind(lag_s, topics).poll_due_s(0, 100) <= 1.002


def test_a_message_after_a_while_leaves_at_once_however_far_behind_readers_were() -> None:
    tuner = behind(9.0, topics=500)
    assert tuner.poll_due_s(0, 1) < 5.0
    assert tuner.on_poll(pending=1, now_s=5.0) == Publish(1)
    assert tuner.poll_due_s(0, 1) <= 5.0
