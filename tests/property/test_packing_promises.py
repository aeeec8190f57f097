"""Packings one after another, over any clocks: nothing that was noted is missing, and no stamp is in the ranges of more
filters than promised (*Low-Overhead Message Tracking for Distributed Messaging*, Theorem 1 and Corollary 2)."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.tracking.accuracy import Accuracy
from clarion.tracking.bloom import find_filters, salts_of
from clarion.tracking.packing import Filter, order, pack, spans_of

_WHO = 7 << 32
_SALT = 99
_BELIEVED = 100  # by how much a stamp may be ahead
_FINE = 1024  # more than the notes of a test

Note = tuple[int, int, int]  # the history, who, the stamp
Burst = tuple[int, int, int, int, int]  # the history, the publisher, how many notes, their steps, how far they are off

offs = st.one_of(st.integers(-5, 5), st.integers(-60, 60), st.integers(-500, 0), st.just(10_000))
bursts = st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 20), st.integers(0, 9), offs)
packings = st.lists(st.lists(bursts, min_size=1, max_size=6), max_size=8)
skews = st.tuples(*[st.integers(-80, 80)] * 3)
brokers = st.integers(1, (1 << 32) - 1) | st.just(0x9C540706)


class _Packed:
    """What packings left of notes."""

    def __init__(self, accuracy: Accuracy, fewest: int) -> None:
        self._accuracy, self._fewest = accuracy, fewest
        self.filters: list[Filter] = []
        self.exact: list[Note] = []

    def pack(self, noted: list[Note], latest: int) -> None:
        ordered = order(np.array(noted, dtype=np.uint64))
        spans = spans_of(ordered)
        ranges = {
            span.history: [
                (each.first, each.last)
                for each in self.filters
                if each.history == span.history and each.last >= span.first
            ]
            for span in spans
        }
        filters, exact = pack(
            ordered, spans, ranges, self._accuracy, salt=_SALT, latest=latest, fewest=self._fewest
        )  # fmt: skip
        assert sum(each.keys for each in filters) + len(exact) == len(ordered)
        assert all(each.keys <= self._accuracy.capacity and each.last <= latest for each in filters)
        self.filters += filters
        self.exact += [(history, who, stamp) for history, who, stamp in exact.tolist()]

    def missing(self, noted: list[Note]) -> set[Note]:
        """Return the notes that neither a filter has nor what stayed exact."""
        asked = [
            (note, each)
            for note in noted
            for each in self.filters
            if each.history == note[0] and each.first <= note[2] <= each.last
        ]
        keys = np.array([note[1:] for note, _ in asked], dtype=np.uint64).reshape(-1, 2)
        keys[:, 0] ^= salts_of(_SALT, np.array([note[0] for note, _ in asked], dtype=np.uint64))
        found = find_filters(keys, [(each.shape, each.data) for _, each in asked])
        return {*noted} - {*self.exact} - {asked[at][0] for at in found}

    def largest_matching_set(self) -> int:
        """Return how many filters of a history have one stamp in their ranges, at most: counted where one begins."""
        marks = {(each.history, each.first) for each in self.filters}
        matching = Counter(
            (history, mark)
            for history, mark in marks
            for each in self.filters
            if each.history == history and each.first <= mark <= each.last
        )
        return max(matching.values(), default=0)


@settings(deadline=None)
@given(packings, skews, st.integers(0, 2), st.integers(1, 12), st.sampled_from([1, 4]), brokers)
def test_whatever_clocks_do_nothing_is_missing_and_no_stamp_is_in_too_many_filters(
    told: list[list[Burst]], skews: tuple[int, int, int], overlap: int, capacity: int, fewest: int, broker: int
) -> None:
    """Publishers whose clocks are off, each by its own skew, and jitter; notes of messages sent anew with old stamps,
    and a clock that is far ahead."""
    accuracy = Accuracy(efpp=0.01, overlap=overlap, capacity=capacity, skew_s=0.0)
    packed = _Packed(accuracy, fewest)
    noted: list[Note] = []
    now = 5000
    for some in told:
        new = []
        for history, publisher, count, step, off in some:
            first = now + skews[publisher] + off
            new += [(history, (broker << 32) + publisher, first + each * step) for each in range(count)]
            now += count
        packed.pack(new, latest=now + _BELIEVED)
        noted += new
    assert not packed.missing(noted)
    assert packed.largest_matching_set() <= accuracy.matching


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=30), max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(1, 3),
)
def test_clocks_within_the_bound_need_no_exception(
    told: list[list[tuple[int, int]]], skew: int, jitter: int, overlap: int
) -> None:
    """Where 2 T_s + T_j <= w T_n, which is what Accuracy asks for, no note stays exact for its stamp: a packing of T_n
    and more meets w others at most. There is a note a second, and each has a stamp of its own."""
    capacity = max(1, -(-(2 * skew + jitter) // overlap))
    accuracy = Accuracy(
        efpp=0.01, overlap=overlap, capacity=capacity, skew_s=skew, jitter_s=jitter, peak_per_s=1.0, persist_s=capacity
    )
    packed = _Packed(accuracy, fewest=1)
    noted: list[Note] = []
    for some in told:
        new = []
        for at in range(max(capacity, len(some))):
            off, late = some[at % len(some)] if some else (0, 0)
            now = len(noted) + at
            second = 1000 + now + off % (2 * skew + 1) - skew - late % (jitter + 1)
            new.append((1, _WHO, second * _FINE + now))
        packed.pack(new, latest=(1000 + len(noted) + len(new) + skew) * _FINE)
        noted += new
    assert not packed.exact
    assert not packed.missing(noted)
    assert packed.largest_matching_set() <= accuracy.matching
