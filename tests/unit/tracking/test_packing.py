"""Packing: blocks give back what they got, and clocks within the bound leave few notes exact."""

from __future__ import annotations

import numpy as np
import pytest

from clarion.tracking.accuracy import Accuracy
from clarion.tracking.packing import Notes, Range, histories_with, make_blocks, order, pack, read_block, spans_of

_LATEST = (1 << 48) - 1


def _notes(count: int, seed: int = 1) -> Notes:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, top, count, dtype=np.uint64) for top in (1000, 1 << 64, 1 << 48)], axis=1)


@pytest.mark.parametrize("count", [0, 1, 2, 8192, 20_000])
def test_blocks_give_back_what_they_got_in_order_of_stamps(count: int) -> None:
    notes = _notes(count)
    blocks = list(make_blocks(notes))
    expected = notes[np.argsort(notes[:, 2], kind="stable")]
    assert np.array_equal(np.concatenate([notes[:0], *(read_block(each) for each in blocks)]), expected)
    for number, who, stamp in notes[:5].tolist():
        assert [histories_with(each, (who, stamp)) for each in blocks if each.first <= stamp <= each.last] == [[number]]


@pytest.mark.parametrize("jitter", [0, 100, 1000])
def test_clocks_that_jitter_leave_few_notes_exact(jitter: int) -> None:
    """Ten packings of 20,000 notes, a stamp each, that come up to so many stamps too early or too late: late are those
    alone that come within twice the jitter after one of the nine bounds."""
    rng = np.random.default_rng(5)
    stamps = 1_000_000 + np.arange(200_000) + rng.integers(-jitter, jitter + 1, 200_000)
    ranges: list[Range] = []
    left = 0
    for some in np.split(stamps.astype(np.uint64), 10):
        ordered = order(np.stack([np.ones_like(some), np.full_like(some, 0x9C540706 << 32), some], axis=1))
        spans = spans_of(ordered)
        filters, exact = pack(ordered, spans, {1: ranges} if ranges else {}, Accuracy(), salt=1, latest=_LATEST)
        assert sum(each.keys for each in filters) + len(exact) == len(ordered)
        ranges += [(each.first, each.last) for each in filters]
        left += len(exact)
    assert left <= 9 * 2 * jitter
    bounds = np.array(ranges)
    assert max(int(((bounds[:, 0] <= at) & (at <= bounds[:, 1])).sum()) for at in bounds.ravel()) <= 2


def test_a_clock_far_ahead_stretches_no_filter() -> None:
    stamps = np.arange(1000, 2000, dtype=np.uint64)
    stamps[500] = 1 << 40
    ordered = order(np.stack([np.ones_like(stamps), stamps, stamps], axis=1))
    (only,), exact = pack(ordered, spans_of(ordered), {}, Accuracy(), salt=1, latest=5000)
    assert (only.first, only.last, only.keys) == (1000, 1999, 999)
    assert exact[:, 2].tolist() == [1 << 40]
