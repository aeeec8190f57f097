"""Politeness towards hosts: waiting, sharing a limit, slowing down and recovering."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.feeds.politeness import (
    HostThrottle,
    Throttled,
    backoff_s,
    read_max_age_s,
    read_retry_after_s,
    throttles,
)
from clarion.feeds.ring_view import decode_ring_message, encode_ring_message
from clarion.model.errors import PermanentError

DAY_S = 86_400.0


class Fixed:
    """Dice that always show the same."""

    def __init__(self, shows: float) -> None:
        self.shows = shows

    def random(self) -> float:
        """Return it."""
        return self.shows


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        (formatdate(1000, usegmt=True), 400.0),
        (formatdate(100, usegmt=True), 0.0),
        ("99999999999999999999", 999_999_999.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("\u0661", None),
        ("Mon, 99 Foo 99999 99:99:99 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_time(text: str, seconds: float | None) -> None:
    assert read_retry_after_s(text, 600.0) == seconds


@pytest.mark.parametrize(
    ("header", "age", "seconds"),
    [
        ("max-age=60", "", 60.0),
        ('public, Max-Age="60"', "20", 40.0),
        ("max-age=60", "90", 0.0),
        ("max-age=31536000", "", DAY_S),
        ("no-cache", "", 0.0),
        ("private, no-store", "", 0.0),
        ("max-age=x", "", None),
        ("", "", None),
    ],
)
def test_max_age_is_what_cache_control_says_less_the_age(header: str, age: str, seconds: float | None) -> None:
    assert read_max_age_s(header, age) == seconds


def test_back_off_doubles_up_to_a_bound_and_chance_spreads_it() -> None:
    assert [backoff_s(failures, 60.0, None, Fixed(0.0)) for failures in (0, 1, 2, 3, 99)] == [60, 60, 120, 240, 3840]
    assert backoff_s(3, 60.0, None, Fixed(0.5)) == 180.0
    assert backoff_s(99, DAY_S, None, Fixed(0.0)) == DAY_S
    assert len({backoff_s(3, 60.0, None, random.Random(seed)) for seed in range(20)}) == 20


@given(st.integers(1, 1000), st.floats(0.1, 1e6), st.none() | st.floats(0, 1e12), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_less_than_asked_for_and_never_without_end(
    failures: int, interval_s: float, retry_after_s: float | None, shows: float
) -> None:
    wait_s = backoff_s(failures, interval_s, retry_after_s, Fixed(shows))
    assert wait_s >= min(retry_after_s or 0.0, DAY_S)
    assert interval_s / 2 <= wait_s <= max(interval_s, 1.1 * DAY_S)


def test_a_403_throttles_only_where_it_worked_before() -> None:
    assert throttles("throttled", worked_before=False)
    assert throttles("forbidden", worked_before=True)
    assert not throttles("forbidden", worked_before=False)
    assert not throttles("timeout", worked_before=True)


def test_a_host_that_throttles_is_asked_half_as_often_each_time_and_recovers_by_and_by() -> None:
    hosts = HostThrottle(wait_s=60.0, half_life_s=1000.0)
    assert hosts.stretch("a.example", 0.0) == 1.0
    assert hosts.on_throttled("a.example", 0.0).until_s == 60.0
    assert hosts.stretch("a.example", 0.0) == 2.0
    hosts.on_throttled("a.example", 100.0, 30.0)
    assert hosts.until_s("a.example") == 130.0
    assert hosts.stretch("a.example", 100.0) == pytest.approx(2**1.9)
    assert hosts.stretch("a.example", 1100.0) == pytest.approx(2**0.9)
    assert hosts.stretch("a.example", 5000.0) == 1.0
    assert hosts.stretch("b.example", 0.0) == 1.0
    assert hosts.until_s("b.example") == 0.0


def test_answers_that_were_on_their_way_count_once() -> None:
    hosts = HostThrottle()
    for _ in range(50):
        hosts.on_throttled("a.example", 1.0, 100.0)
    assert hosts.stretch("a.example", 1.0) == 2.0


def test_slowing_down_and_waiting_have_bounds() -> None:
    hosts = HostThrottle(wait_s=1.0)
    for now_s in range(0, 200, 2):
        told = hosts.on_throttled("a.example", float(now_s), 1.0)
    assert hosts.stretch("a.example", 198.0) == 64.0
    assert hosts.on_throttled("a.example", 300.0, 1e12).until_s == 300.0 + DAY_S
    assert told.host == "a.example"


@given(st.permutations(range(6)))
def test_nodes_that_heard_the_same_are_equally_slow_in_whatever_order(order: list[int]) -> None:
    told = [Throttled(host=f"{n % 2}.example", until_s=100.0 * n, calm_s=1000.0 + 77.0 * n) for n in range(6)]
    heard, otherwise = HostThrottle(), HostThrottle()
    for notice in told:
        heard.learn(notice, 10.0)
    for n in [*order, *order]:
        otherwise.learn(told[n], 10.0)
    for host in ("0.example", "1.example"):
        assert heard.until_s(host) == otherwise.until_s(host)
        assert heard.stretch(host, 500.0) == otherwise.stretch(host, 500.0)


def test_a_notice_travels_and_one_that_lies_is_bounded() -> None:
    told = Throttled(host="a.example", until_s=1e300, calm_s=1e300)
    assert decode_ring_message(encode_ring_message(told)) == told
    hosts = HostThrottle(half_life_s=1000.0)
    hosts.learn(told, 50.0)
    assert hosts.until_s("a.example") == 50.0 + DAY_S
    assert hosts.stretch("a.example", 50.0) == 64.0
    with pytest.raises(PermanentError, match="no message of a ring"):
        decode_ring_message(b"{}")


def test_only_so_many_hosts_are_kept_and_those_that_matter_least_go_first() -> None:
    hosts = HostThrottle(hosts_most=10, half_life_s=1000.0)
    for n in range(100):
        hosts.on_throttled(f"{n}.example", 0.0)
    kept = [n for n in range(100) if hosts.until_s(f"{n}.example")]
    assert kept == [*range(90, 100)]
