"""Deliveries made disjoint cover the same offsets, each once, at its earliest time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.pipeline.jobs.deliveries import disjoint

quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)
_ranges = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 9)), max_size=12)


@quick
@given(_ranges)
def test_disjoint_ranges_give_each_offset_its_earliest_time_once(drawn: list[tuple[int, int, int]]) -> None:
    ranges = [(first, first + length, at) for first, length, at in drawn]
    wanted: dict[int, int] = {}
    for first, end, at in ranges:
        for offset in range(first, end):
            wanted[offset] = min(at, wanted.get(offset, at))
    found: dict[int, int] = {}
    behind = 0
    for first, end, at in disjoint(ranges):
        assert behind <= first < end
        behind = end
        found.update(dict.fromkeys(range(first, end), at))
    assert found == wanted
