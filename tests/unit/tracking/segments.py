"""Segments of histories, made as exports have them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clarion.model.ids import STAMP_LIMIT
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.bloom import BloomFilter, Key
from clarion.tracking.exported import Segment

_SALT = 0x5A17


def segment_of(
    keys: Iterable[Key], *, exact: Iterable[Key] = (), accuracy: Accuracy | None = None, salt: int = _SALT
) -> Segment:
    """Return a segment with a filter of some keys, as large as accuracy has it, and others beside it."""
    beside = b"".join(np.array(key, dtype=">u8").tobytes() for key in exact)
    packed = np.array(list(keys), dtype=np.uint64).reshape(-1, 2)
    if not len(packed):
        return Segment(STAMP_LIMIT, -1, 0, 0, 0, b"", beside)
    first, last = int(packed[:, 1].min()), int(packed[:, 1].max())
    built = BloomFilter((accuracy or Accuracy()).shape(len(packed)))
    built.add(packed ^ np.array([salt, 0], dtype=np.uint64))
    shape = built.shape
    return Segment(first, last, len(packed), shape.bits, shape.hashes, built.to_bytes(), beside, salt)
