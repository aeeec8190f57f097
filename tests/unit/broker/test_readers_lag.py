"""How far behind the quickest reader is, and that publishers of many topics are told."""

from __future__ import annotations

import pytest
from tests.unit.broker.many_askers import A, B, ManyAsker

from clarion.broker.engine.readers_lag import ReadersLag


def test_the_quickest_of_the_last_moments_counts() -> None:
    lag = ReadersLag()
    assert lag.quickest_s(1.0) == 0
    lag.note(5.0, 1.0)
    lag.note(0.3, 1.1)
    lag.note(7.0, 1.2)
    assert lag.quickest_s(1.3) == 0.3
    lag.note(7.0, 1.7)  # the quick one is of the window before
    assert lag.quickest_s(1.9) == 0.3
    lag.note(7.0, 2.3)
    assert lag.quickest_s(2.4) == 7.0


@pytest.mark.parametrize("after_s", [1.1, 10.0, 1e6])
def test_where_nobody_reads_any_more_nobody_is_behind(after_s: float) -> None:
    lag = ReadersLag()
    lag.note(5.0, 1.0)
    assert lag.quickest_s(1.0 + after_s) == 0


def test_a_clock_that_was_set_back_makes_nobody_early() -> None:
    lag = ReadersLag()
    lag.note(-3.0, 1.0)
    assert lag.quickest_s(1.0) == 0


def test_a_publisher_of_many_topics_is_told_how_late_the_quickest_reader_is() -> None:
    asker = ManyAsker(A, B)
    reader = asker.reader()
    a, b = asker.numbers
    assert asker.put_parts(asker.part(a, b"1"), asker.part(b, b"2")).lag_ms == 0
    asker.tick(3.0)
    assert len(asker.fetch_all(reader)) == 2
    told_ms = asker.put_parts(asker.part(a, b"3"), asker.part(b, b"4")).lag_ms
    assert 3000 <= told_ms < 3200
    asker.tick(1.5)
    asker.put_on(a, b)
    assert len(asker.fetch_all(reader)) == 4
    assert asker.put_parts(asker.part(a, b"5"), asker.part(b, b"6")).lag_ms < 1700
