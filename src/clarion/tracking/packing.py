"""How notes are kept: exactly, in compressed blocks ordered by stamp; and packed, as filters for each history.

A packing takes notes of some minutes. Each history's become filters whose ranges of stamps do not meet each other, nor,
where they are later than everything packed before, those of earlier packings. Late notes have filters of their own,
where no stamp is then in the range of more filters than accuracy allows; where it would be, and where notes are too few
for a filter, they stay exact.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clarion.tracking.accuracy import Accuracy
from clarion.tracking.bloom import Key, Shape, build_filters, salts_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Notes = npt.NDArray[np.uint64]  # n rows of three: the history's number, who, and the stamp
Range = tuple[int, int]  # stamps, the last one included

FEWEST_KEYS = 128  # of a history that has filters in a packing: fewer take less room as they are
BLOCK_NOTES = 8192
_PIECE_KEYS = 1 << 15  # of which filters are built at once, so that others have the interpreter in between


class Block(NamedTuple):
    """Notes, ordered by stamp."""

    first: int
    last: int
    notes: int
    data: bytes


class Filter(NamedTuple):
    """Many keys of one history."""

    history: int
    first: int
    last: int
    keys: int
    shape: Shape
    data: bytes


class Span(NamedTuple):
    """The stamps that a history has among notes, and where these are."""

    history: int
    start: int
    stop: int
    first: int
    last: int


def make_blocks(notes: Notes) -> Iterator[Block]:
    """Return blocks that have these notes. Columns of bytes, and stamps as steps, compress to a third or a fourth."""
    ordered = notes[np.argsort(notes[:, 2], kind="stable")]
    for at in range(0, len(ordered), BLOCK_NOTES):
        some = ordered[at : at + BLOCK_NOTES].copy()
        first, last = int(some[0, 2]), int(some[-1, 2])
        some[:, 2] = np.diff(some[:, 2], prepend=some[:1, 2])
        columns = np.ascontiguousarray(some.T).astype("<u8").view(np.uint8).reshape(3, len(some), 8)
        yield Block(first, last, len(some), zstd.compress(columns.transpose(0, 2, 1).tobytes(), 3))


def read_block(block: Block) -> Notes:
    """Return the notes of a block."""
    columns = np.frombuffer(zstd.decompress(block.data), dtype=np.uint8).reshape(3, 8, block.notes)
    notes = np.ascontiguousarray(columns.transpose(0, 2, 1)).view("<u8")[:, :, 0].astype(np.uint64).T
    notes[:, 2] = np.cumsum(notes[:, 2]) + np.uint64(block.first)
    return notes


def histories_with(block: Block, key: Key) -> list[int]:
    """Return the histories that have a key in this block."""
    notes = read_block(block)
    start, stop = np.searchsorted(notes[:, 2], np.array([key[1], key[1] + 1], dtype=np.uint64))
    some = notes[start:stop]
    return [int(number) for number in some[some[:, 1] == np.uint64(key[0]), 0]]


def order(notes: Notes) -> Notes:
    """Return notes by history and stamp, each once."""
    ordered = notes[np.lexsort((notes[:, 1], notes[:, 2], notes[:, 0]))]
    is_new = np.ones(len(ordered), dtype=np.bool_)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    return ordered if is_new.all() else ordered[is_new]


def spans_of(ordered: Notes) -> list[Span]:
    """Return where each history is among ordered notes."""
    starts, stops = _runs(ordered[:, 0])
    firsts, lasts = ordered[starts, 2], ordered[stops - 1, 2]
    rows = zip(
        ordered[starts, 0].tolist(), starts.tolist(), stops.tolist(), firsts.tolist(), lasts.tolist(), strict=True
    )
    return [Span(*row) for row in rows]


def pack(
    ordered: Notes,
    spans: Sequence[Span],
    packed: Mapping[int, Sequence[Range]],
    accuracy: Accuracy,
    *,
    salt: int,
    latest: int,
    fewest: int = FEWEST_KEYS,
) -> tuple[list[Filter], Notes]:
    """Return filters for ordered notes, and those notes that stay exact.

    `packed` has, by history, the ranges of filters that end at its first stamp here or later; `latest` is the latest
    stamp that is believed: a clock that is far ahead stretches no filter.
    """
    stamps = ordered[:, 2]
    exact = stamps > np.uint64(latest)
    group = np.zeros(len(ordered), dtype=np.int64)
    for span in spans:
        here = slice(span.start, span.stop)
        if span.stop - span.start < fewest:
            exact[here] = True
        elif ranges := packed.get(span.history):
            group[here], is_full = _places_left(stamps[here], ranges, accuracy.matching)
            exact[here] |= is_full
    chosen = np.flatnonzero(~exact)
    is_kept, lengths = _cut(ordered[chosen, 0], group[chosen], stamps[chosen], accuracy.capacity, fewest)
    exact[chosen[~is_kept]] = True
    return list(_build(ordered[chosen[is_kept]], lengths, accuracy, salt)), ordered[exact]


def _places_left(
    stamps: npt.NDArray[np.uint64], ranges: Sequence[Range], most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return for each stamp a number, such that a filter over stamps of one number stretches over no place that has
    the most filters already, nor from late stamps to new ones; and which stamps are in such a place."""
    bounds = np.array(ranges, dtype=np.uint64)
    edges, steps = np.concatenate([bounds[:, 1] + np.uint64(1), bounds[:, 0]]), np.repeat([-1, 1], len(bounds))
    by_place = np.argsort(edges, kind="stable")
    edges, depth = edges[by_place], np.cumsum(steps[by_place])
    # What counts behind equal edges is the last of them, which is the one that searchsorted finds.
    full = np.concatenate([[False], depth >= most])
    areas = np.concatenate([[0], np.cumsum(full[1:] != full[:-1])])
    places = np.searchsorted(edges, stamps, side="right")
    is_new = stamps > bounds[:, 1].max()
    return np.where(is_new, areas[-1] + 1, areas[places]), full[places]


def _cut(
    histories: npt.NDArray[np.uint64],
    groups: npt.NDArray[np.int64],
    stamps: npt.NDArray[np.uint64],
    capacity: int,
    fewest: int,
) -> tuple[npt.NDArray[np.bool_], list[int]]:
    """Return which notes go into filters, and how many into each: a group into filters of about the same size. Notes
    with the last stamp of the filter before are left out, as are those of groups that are too small."""
    if not len(stamps):
        return np.zeros(0, dtype=np.bool_), []
    starts, stops = _runs(histories, groups)
    sizes = stops - starts
    size = np.repeat(sizes, sizes)
    rank = np.arange(len(stamps)) - np.repeat(starts, sizes)
    starts, stops = _runs(np.repeat(np.arange(len(sizes)), sizes), rank * -(-size // capacity) // size)
    lengths = stops - starts
    is_tied = (rank[starts] > 0) & (stamps[starts] == stamps[starts - 1])
    is_left = np.repeat(is_tied, lengths) & (stamps == np.repeat(stamps[starts - 1], lengths))
    is_kept = (size >= fewest) & ~is_left
    starts, stops = _runs(np.repeat(np.arange(len(lengths)), lengths)[is_kept])
    return is_kept, (stops - starts).tolist()


def _build(notes: Notes, lengths: Sequence[int], accuracy: Accuracy, salt: int) -> Iterator[Filter]:
    """Return the filters, built some at a time."""
    notes[:, 1] ^= salts_of(salt, notes[:, 0])
    at = done = 0
    while done < len(lengths):
        stop, keys = done, 0
        while stop < len(lengths) and (stop == done or keys + lengths[stop] <= _PIECE_KEYS):
            keys += lengths[stop]
            stop += 1
        some = lengths[done:stop]
        shapes = [accuracy.shape(length) for length in some]
        built = build_filters(notes[at : at + keys, 1:], some, shapes)
        for length, shape, data in zip(some, shapes, built, strict=True):
            first, last = notes[at], notes[at + length - 1]
            yield Filter(int(first[0]), int(first[2]), int(last[2]), length, shape, data)
            at += length
        done = stop


def _runs(*columns: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where each run of equal values starts and stops."""
    count = len(columns[0])
    if not count:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    changes = np.zeros(count - 1, dtype=np.bool_)
    for column in columns:
        changes |= column[1:] != column[:-1]
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return starts, np.concatenate([starts[1:], [count]])
