"""Waits between tries: they double, stay within bounds, and begin anew after success."""

from __future__ import annotations

import pytest

from clarion.session.connection import Backoff


@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999])
def test_each_wait_is_between_half_and_all_of_a_doubling_bound(dice: float) -> None:
    backoff = Backoff(first_s=0.1, most_s=2.0)
    for bound_s in [0.1, 0.2, 0.4, 0.8, 1.6] + [2.0] * 100:
        assert backoff.next_wait_s(dice) == pytest.approx(bound_s * (0.5 + 0.5 * dice))


def test_after_success_it_begins_anew() -> None:
    backoff = Backoff(first_s=0.1)
    waits = [backoff.next_wait_s(0.0) for _ in range(5)]
    backoff.reset()
    assert [backoff.next_wait_s(0.0) for _ in range(5)] == waits
