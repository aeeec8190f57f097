"""A Bloom filter over the keys of batches: bits, and many keys added or looked for at once.

Of n keys in m bits with k hash functions, one that was never added is found with probability
fpp = (1 - (1 - 1/m)^(kn))^k (Low-Overhead Message Tracking for Distributed Messaging, Eq. 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, exp, log, log1p

import numpy as np
import numpy.typing as npt

Key = tuple[int, int]  # of a batch: who put it (broker << 32 | publisher), and the stamp
Keys = npt.NDArray[np.uint64]  # a key in each row

_LN2 = log(2)
_MOST_HASHES = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = (np.uint64(shift) for shift in (30, 27, 31, 32))
_BITS = np.left_shift(np.uint8(1), np.arange(8, dtype=np.uint8))


def false_positives(bits: int, hashes: int, keys: int) -> float:
    """Return the probability that a filter with so many keys finds another one in itself (Eq. 1)."""
    if not keys:
        return 0.0
    return float((-np.expm1(hashes * keys * log1p(-1 / bits))) ** hashes) if bits > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a filter is: m bits, a multiple of 8, and k hash functions."""

    bits: int  # m
    hashes: int  # k

    def __post_init__(self) -> None:
        if self.bits < 8 or self.bits % 8 or not 1 <= self.hashes <= _MOST_HASHES:
            raise ValueError(
                f"a filter has a multiple of 8 bits and 1 to {_MOST_HASHES} hash functions,"
                f" not {self.bits} and {self.hashes}"
            )

    @classmethod
    @lru_cache(maxsize=4096)
    def for_keys(cls, keys: int, fpp: float) -> Shape:
        """Return the smallest shape that keeps the probability for so many keys, with the best count of functions."""
        if keys < 1 or not 0 < fpp < 1:
            raise ValueError(f"a filter is for 1 key and more, with a probability between 0 and 1; not {keys}, {fpp:g}")
        per_key = -log(fpp) / _LN2**2
        hashes = min(_MOST_HASHES, max(1, round(per_key * _LN2)))
        # Eq. 1 solved for m, with 1 - 1/m as e^(-1/m), and then made good for what that leaves out.
        bits = 8 * ceil(-hashes * keys / log1p(-exp(log(fpp) / hashes)) / 8)
        while false_positives(bits, hashes, keys) > fpp:
            bits += 8
        return cls(bits, hashes)


class BloomFilter:
    """The bits. Keys that were added are always found; there are no false negatives."""

    __slots__ = ("_bytes", "shape")

    def __init__(self, shape: Shape, data: bytes | None = None) -> None:
        self.shape = shape
        if data is None:
            self._bytes = np.zeros(shape.bits // 8, dtype=np.uint8)
        else:
            if 8 * len(data) != shape.bits:
                raise ValueError(f"a filter of {shape.bits} bits has {shape.bits // 8} bytes, not {len(data)}")
            self._bytes = np.frombuffer(data, dtype=np.uint8).copy()

    def add(self, keys: Keys) -> None:
        """Add keys."""
        places = np.concatenate([_places(keys, each, self.shape.bits) for each in range(self.shape.hashes)])
        np.bitwise_or.at(self._bytes, places >> 3, _BITS[places & 7])

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for each key whether it was added, or seems so. Each function is asked for those alone that are left:
        of keys that were not added, half at each."""
        left = np.arange(len(keys))
        for each in range(self.shape.hashes):
            places = _places(keys[left], each, self.shape.bits)
            left = left[(self._bytes[places >> 3] & _BITS[places & 7]) != 0]
            if not len(left):
                break
        found = np.zeros(len(keys), dtype=np.bool_)
        found[left] = True
        return found

    def to_bytes(self) -> bytes:
        """Return the bits."""
        return self._bytes.tobytes()


def build_filters(keys: Keys, counts: Sequence[int], shapes: Sequence[Shape]) -> list[bytes]:
    """Return the bits of many filters, all with the same count of functions: each has the next so many of the keys."""
    (hashes,) = {shape.hashes for shape in shapes}
    sizes = np.array([shape.bits for shape in shapes], dtype=np.uint64)
    ends = np.cumsum(sizes) // 8
    bits, begins = np.repeat(sizes, counts), np.repeat(ends * 8 - sizes, counts).astype(np.int64)
    made = np.zeros(int(ends[-1]), dtype=np.uint8)
    for each in range(hashes):
        places = begins + _places(keys, each, bits)
        np.bitwise_or.at(made, places >> 3, _BITS[places & 7])
    return [some.tobytes() for some in np.split(made, ends[:-1].astype(np.int64))]


def find_filters(keys: Keys, filters: Sequence[tuple[Shape, bytes]]) -> list[int]:
    """Return which filters have the key in the same row, or seem to."""
    bits = np.array([shape.bits for shape, _ in filters], dtype=np.uint64)
    found: list[int] = []
    left = list(range(len(filters)))
    each = 0
    while left:
        found += [at for at in left if filters[at][0].hashes == each]
        left = [at for at in left if filters[at][0].hashes > each]
        places = _places(keys[left], each, bits[left]).tolist()
        left = [at for at, place in zip(left, places, strict=True) if filters[at][1][place >> 3] >> (place & 7) & 1]
        each += 1
    return found


def salts_of(salt: int, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return for each history, by number, with what its keys are salted: `who` by exclusive or. Histories that have
    the same keys would else err about the same ones, and one that supports another would say nothing."""
    with np.errstate(over="ignore"):
        return _mix(np.uint64(salt) + numbers * _GOLDEN)


def _places(keys: Keys, function: int, bits: int | Keys) -> npt.NDArray[np.int64]:
    """Return where one of the hash functions puts each key, in a filter of so many bits or each in its own."""
    return ((_hashed(keys, function) * np.asarray(bits, dtype=np.uint64)) >> _32).astype(np.int64)


def _hashed(keys: Keys, function: int) -> npt.NDArray[np.uint64]:
    """Return 32 bits for each key. Both halves of a key are mixed anew for each function (as in SplitMix64), so
    functions are independent, which two hashes and their multiples are not in small filters."""
    with np.errstate(over="ignore"):
        return _mix(_mix(keys[:, 0] + np.uint64(function + 1) * _GOLDEN) ^ keys[:, 1]) >> _32


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> _30)) * _MIX_1
    values = (values ^ (values >> _27)) * _MIX_2
    return values ^ (values >> _31)
