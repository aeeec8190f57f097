"""Histories over any clocks: nothing that went by is missing, and no stamp is in more filters than promised."""

from __future__ import annotations

from itertools import accumulate

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.tracking.accuracy import Accuracy
from clarion.tracking.history import History, Key, Segment

_WHO = 7 << 32
_decode = msgspec.msgpack.Decoder(Segment).decode

steps = st.integers(0, 40)
offs = st.one_of(st.integers(-5, 5), st.integers(-60, 60), st.integers(-2000, 0), st.just(10_000))
events = st.lists(st.tuples(steps, offs, st.integers(0, 3), st.booleans()), max_size=300)


def _run(told: list[tuple[int, int, int, bool]], accuracy: Accuracy) -> tuple[list[Key], list[Segment]]:
    """Add keys at times that go on, with stamps that are off by so much; end and begin again where that is told."""
    history = History(accuracy)
    stored: dict[int, Segment] = {}
    keys = []
    for now, (_, off, who, ends) in zip(accumulate((each[0] for each in told), initial=5000), told, strict=False):
        key = (_WHO + who, max(0, now + off))
        keys.append(key)
        history.add(key, latest=now + 100)
        assert history.contains(key)
        if history.is_full:
            done = history.seal()
            stored[done.number] = done
        if ends:
            kept = history.segment()
            stored[kept.number] = _decode(msgspec.msgpack.encode(kept))
            ranges = [(each.first, each.last) for _, each in sorted(stored.items()) if each.count]
            history = History(accuracy, number=kept.number + 1, ranges=ranges)
    last = history.segment()
    stored[last.number] = last
    return keys, list(stored.values())


@settings(deadline=None)
@given(events, st.integers(0, 3), st.integers(1, 12))
def test_no_key_is_missing_and_no_stamp_is_in_too_many_filters(
    told: list[tuple[int, int, int, bool]], overlap: int, capacity: int
) -> None:
    accuracy = Accuracy(efpp=0.01, overlap=overlap, capacity=capacity, skew_s=0.0)
    keys, segments = _run(told, accuracy)
    assert all(any(each.contains(key).seen for each in segments) for key in keys)
    marks = {mark for each in segments if each.count for mark in (each.first, each.last)}
    assert max((sum(each.matches(mark) for each in segments) for mark in marks), default=0) <= accuracy.matching


@settings(deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=400), st.integers(1, 3))
def test_clocks_within_the_bound_need_no_exception(offs: list[int], overlap: int) -> None:
    """Theorem 1: with 2 T_s <= w T_n no key is kept exactly, since no range reaches too far."""
    capacity = -(-40 // overlap)  # one key for each stamp: so long is T_n at least, and T_s is 20
    history = History(Accuracy(efpp=0.01, overlap=overlap, capacity=capacity, skew_s=0.0))
    segments = []
    for now, off in enumerate(offs):
        history.add((_WHO, 1000 + now + off), latest=1000 + now + 20)
        if history.is_full:
            segments.append(history.seal())
    segments.append(history.segment())
    assert not any(each.exact for each in segments)
