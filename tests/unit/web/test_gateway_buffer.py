"""What a gateway holds stays within its bounds, and idempotency keys are known as long as they should."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.web.gateway_buffer import (
    LONGEST_S,
    STALLED_S,
    Buffer,
    DrainRate,
    IdempotencyKeys,
    KnownRequest,
    Reservation,
    retry_after_s,
)

_STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.integers(0, 60), st.booleans()))


@given(_STEPS)
def test_room_is_what_its_places_hold_and_never_more_than_its_bounds(steps: list[tuple[int, int, int, bool]]) -> None:
    buffer = Buffer(10, 100)
    places = [Reservation(buffer) for _ in range(4)]
    for which, messages, size, leaves in steps:
        reservation = places[which]
        before = (reservation.messages, reservation.size)
        if leaves:
            reservation.leave()
            assert (reservation.messages, reservation.size) == (0, 0)
        elif reservation.grow_to(messages, size):
            assert (reservation.messages, reservation.size) == (messages, size)
        else:
            assert (reservation.messages, reservation.size) == before
            others = [other for other in places if other is not reservation]
            assert (
                sum(other.messages for other in others) + max(messages, before[0]) > 10
                or sum(other.size for other in others) + max(size, before[1]) > 100
            )
        assert buffer.messages == sum(reservation.messages for reservation in places) <= 10
        assert buffer.bytes == sum(reservation.size for reservation in places) <= 100
    for reservation in places:
        reservation.leave()
    assert (buffer.messages, buffer.bytes) == (0, 0)


def test_what_lacks_is_what_must_go_first() -> None:
    buffer = Buffer(10, 100)
    assert buffer.take(8, 90)
    assert buffer.lacks(1, 5) == (0, 0)
    assert buffer.lacks(4, 30) == (2, 20)
    assert not buffer.take(1, 11)
    assert (buffer.messages, buffer.bytes) == (8, 90)


@pytest.mark.parametrize(
    ("lacking", "per_s", "wait_s"),
    [
        (0, 0.0, 1),
        (1, 1000.0, 1),
        (1000, 100.0, 10),
        (1001, 100.0, 11),
        (10**9, 1.0, LONGEST_S),
        (1, 0.0, STALLED_S),
    ],
)
def test_who_is_refused_comes_again_when_it_fits(lacking: int, per_s: float, wait_s: int) -> None:
    assert retry_after_s(lacking, per_s) == wait_s


@given(st.integers(-10, 10**12), st.floats(0, 1e12))
def test_the_time_to_come_again_is_in_whole_seconds_and_bounded(lacking: int, per_s: float) -> None:
    wait_s = retry_after_s(lacking, per_s)
    assert isinstance(wait_s, int)
    assert 1 <= wait_s <= LONGEST_S


@pytest.mark.parametrize("seconds", [1, 3, 30])
def test_a_steady_drain_is_estimated_from_the_beginning_on(seconds: int) -> None:
    drain = DrainRate(100.0)
    for tenth in range(1, 10 * seconds + 1):
        drain.note(20, 2000, 100.0 + tenth / 10)
    messages_per_s, bytes_per_s = drain.per_s(100.0 + seconds)
    assert math.isclose(messages_per_s, 200, rel_tol=0.1)
    assert math.isclose(bytes_per_s, 20_000, rel_tol=0.1)


def test_a_drain_that_stopped_is_forgotten() -> None:
    drain = DrainRate(0.0)
    drain.note(1000, 1000, 1.0)
    assert drain.per_s(2.0)[0] > 100
    assert drain.per_s(120.0)[0] < 0.01
    assert retry_after_s(5, drain.per_s(121.0)[0]) == STALLED_S


def test_a_key_is_known_from_its_begin_until_others_push_it_out() -> None:
    keys: IdempotencyKeys[str] = IdempotencyKeys(kept_max=2)
    for name in ("a", "b", "c"):
        keys.begin(name, name.encode(), name.upper())
        assert keys.find(name) == KnownRequest(name.encode(), name.upper())
    assert len(keys) == 3
    for name in ("a", "b", "c"):
        keys.end(name)
    assert keys.find("a") is None
    assert keys.find("b") == KnownRequest(b"b", "B")
    assert len(keys) == 2


def test_what_is_under_way_is_not_pushed_out() -> None:
    keys: IdempotencyKeys[int] = IdempotencyKeys(kept_max=3)
    keys.begin("slow", b"", 0)
    for number in range(100):
        keys.begin(f"quick {number}", b"", number)
        keys.end(f"quick {number}")
    assert keys.find("slow") is not None
    keys.end("slow")
    assert keys.find("slow") is not None
    assert len(keys) == 3


def test_what_came_to_nothing_is_forgotten() -> None:
    keys: IdempotencyKeys[int] = IdempotencyKeys()
    keys.begin("a", b"", 1)
    keys.forget("a")
    assert keys.find("a") is None
    keys.begin("a", b"", 2)
    assert keys.find("a") == KnownRequest(b"", 2)
