"""Filters: what was added is always found, and what was not as seldom as the formula says."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.tracking.bloom import BloomFilter, Keys, Shape, build_filters, false_positives, find_filters

# n, m, k of the message-tracking document's Table 2.
TABLE_2 = [
    (2521, 1 << 16, 16), (5461, 1 << 16, 8), (7281, 1 << 16, 8),
    (38836, 1 << 20, 12), (87381, 1 << 20, 6), (131072, 1 << 20, 6),
]  # fmt: skip
_HITS = 150  # that are expected of probes, so that a tenth more or less of the rate would show
_AT_ONCE = 1 << 20


def keys_of(who: int, first: int, count: int) -> Keys:
    """Return keys of one publisher, with stamps that follow each other."""
    stamps = np.arange(first, first + count, dtype=np.uint64)
    return np.stack([np.full(count, who, dtype=np.uint64), stamps], axis=1)


@pytest.mark.parametrize(("keys", "bits", "hashes"), TABLE_2)
def test_false_positives_are_as_frequent_as_the_formula_says(keys: int, bits: int, hashes: int) -> None:
    """Keys that differ in a few bits, as those of one publisher do, over several filters: what is in one decides how
    often it errs, so that hits of one filter are not independent."""
    expected = false_positives(bits, hashes, keys)
    whos = [(0x9C540706 << 32) + each for each in range(10)]
    shapes = [Shape(bits, hashes)] * len(whos)
    built = build_filters(np.concatenate([keys_of(who, 1000, keys) for who in whos]), [keys] * len(whos), shapes)
    probes = int(_HITS / expected) // len(whos) + 1
    hits = 0
    for who, data in zip(whos, built, strict=True):
        made = BloomFilter(Shape(bits, hashes), data)
        for first in range(0, probes, _AT_ONCE):
            asked = keys_of(who, 1 << 40 | first, min(_AT_ONCE, probes - first))
            hits += int(made.contains(asked).sum())
    assert abs(hits - _HITS) < 4 * sqrt(_HITS)


def test_the_document_says_the_same_of_its_settings() -> None:
    """99.999 %, 99 % and 95 % for two filters that overlap."""
    found = [1 - (1 - false_positives(m, k, n)) ** 2 for n, m, k in TABLE_2]
    assert found[0] < 1e-5
    assert found[3] < 1e-5
    assert [round(each, 2) for each in (found[1], found[2], found[4], found[5])] == [0.01, 0.03, 0.01, 0.04]


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**48 - 1)), min_size=1, max_size=50),
    st.integers(1, 40),
    st.integers(1, 20),
)
def test_what_was_added_is_found_whatever_the_filter(keys: list[tuple[int, int]], size: int, hashes: int) -> None:
    made = BloomFilter(Shape(8 * size, hashes))
    packed = np.array(keys, dtype=np.uint64)
    made.add(packed[: len(keys) // 2])
    made.add(packed[len(keys) // 2 :])
    again = BloomFilter(made.shape, made.to_bytes())
    assert made.contains(packed).all()
    assert again.contains(packed).all()


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(0, 2**64 - 9),
)
def test_filters_that_are_built_or_asked_together_say_what_each_says_alone(
    sizes: list[tuple[int, int]], hashes: int, who: int
) -> None:
    shapes = [Shape(8 * size, hashes) for _, size in sizes]
    each_has = [keys_of(who + at, 1000, count) for at, (count, _) in enumerate(sizes)]
    built = build_filters(np.concatenate(each_has), [count for count, _ in sizes], shapes)
    alone = [BloomFilter(shape) for shape in shapes]
    for one, keys in zip(alone, each_has, strict=True):
        one.add(keys)
    assert built == [one.to_bytes() for one in alone]
    for stamp in (1000, 1001, 5000, 5001):
        asked = keys_of(who, stamp, 1).repeat(len(sizes), axis=0)
        found = find_filters(asked, list(zip(shapes, built, strict=True)))
        assert sorted(found) == [at for at, one in enumerate(alone) if one.contains(asked[:1])[0]]


@pytest.mark.parametrize("keys", [1, 2, 10, 100, 2521, 38836])
@pytest.mark.parametrize("fpp", [0.5, 0.05, 1e-3, 5e-6])
def test_a_shape_is_the_smallest_that_keeps_the_probability(keys: int, fpp: float) -> None:
    shape = Shape.for_keys(keys, fpp)
    assert false_positives(shape.bits, shape.hashes, keys) <= fpp
    if shape.bits > 8:
        assert false_positives(shape.bits - 8, shape.hashes, keys) > fpp


@pytest.mark.parametrize(("bits", "hashes"), [(0, 1), (12, 1), (8, 0), (8, 65), (-8, 3)])
def test_shapes_that_are_none_are_refused(bits: int, hashes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 8 bits"):
        Shape(bits, hashes)


def test_bits_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="2 bytes, not 3"):
        BloomFilter(Shape(16, 1), b"abc")
