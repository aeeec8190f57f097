"""Clocks of publishers: corrected when they are off, once, and stamps never go back."""

from __future__ import annotations

import pytest

from clarion.model.ids import STAMPS_PER_S, stamp_from_unix_s
from clarion.tracking.skew import SkewAdjustment, correction_of

_NOW_S = 1_750_000_000.0


@pytest.mark.parametrize("off_s", [-5.0, -0.2, -0.1, 0.0, 0.2, 0.25, 3600.0])
def test_only_what_is_out_of_tolerance_is_corrected(off_s: float) -> None:
    stamp = stamp_from_unix_s(_NOW_S) + int(off_s * STAMPS_PER_S)
    expected = 0 if abs(off_s) <= 0.2 else -int(off_s * STAMPS_PER_S)
    assert correction_of(stamp, stamp_from_unix_s(_NOW_S), 0.2) == expected


@pytest.mark.parametrize("off_s", [-30.0, 30.0])
def test_a_clock_that_is_off_is_right_after_a_correction_and_stamps_go_on(off_s: float) -> None:
    """Four batches are under way before the first correction comes; then one a second."""
    clock = SkewAdjustment()
    stamps = [clock.next_stamp(_NOW_S + off_s + each / 10) for each in range(4)]
    told = [correction_of(stamp, stamp_from_unix_s(_NOW_S + each / 10), 0.2) for each, stamp in enumerate(stamps)]
    for stamp, correction in zip(stamps, told, strict=True):
        clock.corrected(stamp, correction, _NOW_S + 1 + off_s)
    for second in range(1, 60):
        stamp = clock.next_stamp(_NOW_S + second + off_s)
        assert stamp > stamps[-1]
        stamps.append(stamp)
        if correction := correction_of(stamp, stamp_from_unix_s(_NOW_S + second), 0.2):
            assert second < 31, "it goes on from where it was while the time comes there"
            clock.corrected(stamp, correction, _NOW_S + second + off_s)
    assert abs(stamps[-1] - stamp_from_unix_s(_NOW_S + 59)) <= 0.2 * STAMPS_PER_S


def test_a_connection_sets_the_clock() -> None:
    clock = SkewAdjustment()
    clock.connected(_NOW_S, _NOW_S - 77)
    assert correction_of(clock.next_stamp(_NOW_S - 76), stamp_from_unix_s(_NOW_S + 1), 0.001) == 0
