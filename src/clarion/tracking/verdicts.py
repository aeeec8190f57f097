"""What became of many messages, by the exported histories of brokers: who carried them, who received them.

All of it is NumPy on whole columns. Ids of one batch share a key, which is looked for once. Keys lie in order of origin
and stamp, so that each filter is asked for the slice of them that its range has, and no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from math import log1p
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clarion.model.names import to_text
from clarion.tracking.bloom import BloomFilter, Keys, Shape, false_positives
from clarion.tracking.exported import KEY_BYTES, PART_BYTES, SKIPPED, SUBSCRIBER, About, Export, HistoryPart

Ids = npt.NDArray[np.uint64]  # n rows of two: an id's 16 bytes as two numbers, as `read_ids` has them
Places = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

# What a message may have come to.
DELIVERED, STOPPED, NEVER_SEEN, NOT_COVERED = STATES = ("delivered", "stopped", "never seen", "not covered")
_COUNTER_BITS = 16
_NEARLY_1 = 1 - 1e-15  # what a filter with too many keys errs, so that there is a logarithm
_16, _32, _48 = (np.uint64(shift) for shift in (16, 32, 48))
_COUNTER, _PUBLISHER = np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)
_PART = np.dtype([("who", ">u8"), ("stamp", ">u8"), ("first", ">u4"), ("stop", ">u4")])
assert _PART.itemsize == PART_BYTES


def read_ids(raw: bytes | bytearray | memoryview) -> Ids:
    """Return ids, 16 bytes each one after the other, as numbers."""
    return np.frombuffer(raw, dtype=">u8").reshape(-1, 2).astype(np.uint64)


class Lists(NamedTuple):
    """A list for each row: row i has `values[offsets[i]:offsets[i + 1]]`."""

    offsets: Places
    values: Places

    @classmethod
    def of_pairs(cls, codes: Places, rows: int, kinds: int) -> Lists:
        """Return the lists of (row, value) pairs, each as row * kinds + value, in order and once."""
        counts = np.bincount(codes // kinds, minlength=rows)
        return cls(np.concatenate([[0], np.cumsum(counts)]), codes % kinds)


class Verdicts(NamedTuple):
    """What became of messages. Those that have the same fate for sure share a row: `rows[i]` is that of id i."""

    rows: Places
    origins: npt.NDArray[np.uint64]  # brokers by their ids
    states: npt.NDArray[np.int8]  # places in STATES
    errors: Floats  # the chance that histories which name somebody here, any of them, do so of one they never had
    doubts: Floats  # false positives that are to be expected, as histories that said no have it; they add up
    carried: Lists  # places in `brokers`
    received: Lists  # places in `receivers`
    last_seen: Lists  # where it was stopped: places in `brokers`; empty unless that is its state


class _Filter(NamedTuple):
    first: int
    last: int
    salt: np.uint64
    bloom: BloomFilter
    log_right: float  # log(1 - fpp)


class _History(NamedTuple):
    """All parts of one history."""

    number: int
    export: int
    origin: int
    is_carrier: bool  # of messages that were put or went by here; else of those that somebody received
    filters: list[_Filter]


class _Slice(NamedTuple):
    """The keys of one origin, in order of their stamps."""

    begin: int  # place of the first one among all
    keys: Keys
    stamps: npt.NDArray[np.uint64]


class _Hits(NamedTuple):
    """Who was found where: pairs of a key, or a row, and a history."""

    rows: Places
    histories: Places
    logs: Floats  # of the chance that one that was never there is not found

    def among(self, some: Flags) -> _Hits:
        """Return some of the hits."""
        return _Hits(self.rows[some], self.histories[some], self.logs[some])


class _Pieces(NamedTuple):
    """Parts of batches, and the history that each is of, by its place."""

    keys: npt.NDArray[np.bytes_]
    first: Places
    stop: Places
    of_history: Places

    @classmethod
    def of(cls, histories: Iterable[Sequence[HistoryPart]]) -> _Pieces:
        """Return those of some histories."""
        packed = [b"".join(part.parts for part in parts) for parts in histories]
        pieces = np.frombuffer(b"".join(packed), dtype=_PART)
        keys = _sortable(np.stack([pieces["who"], pieces["stamp"]], axis=1).astype(np.uint64))
        counts = [len(one) // PART_BYTES for one in packed]
        numbered = np.repeat(np.arange(len(counts)), counts)
        return cls(keys, pieces["first"].astype(np.int64), pieces["stop"].astype(np.int64), numbered)

    def codes(self, some: Places, keys: Places, row_code: Places, histories: int) -> Places:
        """Return row * histories + history for the rows that some pieces, of these keys, cover."""
        code = keys << _COUNTER_BITS
        begin, end = (np.searchsorted(row_code, code + at[some]) for at in (self.first, self.stop))
        which, rows = _ranges(begin, end)
        return rows * histories + self.of_history[some][which]


_NONE: Places = np.zeros(0, dtype=np.int64)
_Identity = tuple[int, str, int, int, bytes]  # of a history: its export, kind, origin, via, subscriber


class HistoryIndex:
    """Exported histories, ready to be asked for ids by the million; it can be pickled."""

    def __init__(self, exports: Sequence[Export]) -> None:
        self.exports: list[About] = [export.about for export in exports]
        grouped: dict[_Identity, list[HistoryPart]] = {}
        for number, export in enumerate(exports):
            for part in export.parts:
                if part.kind != SKIPPED:  # what subscribers went past
                    grouped.setdefault((number, *part[:4]), []).append(part)
        self._name(list(grouped))
        histories = [
            _History(number, export, origin, kind != SUBSCRIBER, _filters(parts))
            for number, ((export, kind, origin, _, _), parts) in enumerate(grouped.items())
        ]
        # Those of one broker and origin together, and first those that say what it carried.
        self._histories = sorted(histories, key=lambda one: (one.export, one.origin, not one.is_carrier))
        exact = [b"".join(part.segment.exact for part in parts) for parts in grouped.values()]
        self._exact = _sortable(np.concatenate([np.zeros((0, 2), np.uint64), *map(read_ids, exact)]))
        self._exact_of = np.repeat(np.arange(len(exact)), [len(one) // KEY_BYTES for one in exact])
        self._pieces = _Pieces.of(grouped.values())

    def _name(self, histories: Sequence[_Identity]) -> None:
        """Number brokers and receivers, and have a text for each."""
        exporting = {about.broker: about.name for about in self.exports}
        met = {one for _, _, origin, via, _ in histories for one in (origin, via) if one}
        self.broker_ids = sorted(met.union(exporting))
        place = {broker: number for number, broker in enumerate(self.broker_ids)}
        alike = Counter(exporting.values())
        self.brokers = [_label(one, exporting.get(one, ""), alike) for one in self.broker_ids]
        self._is_exported = np.array([one in exporting for one in self.broker_ids], dtype=np.bool_)
        at = [place[self.exports[export].broker] for export, *_ in histories]
        receivers = [
            f"{self.brokers[broker]}/{to_text(subscriber)}" if kind == SUBSCRIBER else ""
            for (_, kind, _, _, subscriber), broker in zip(histories, at, strict=True)
        ]
        self.receivers = sorted({*receivers} - {""})
        known = {text: number for number, text in enumerate(self.receivers)}
        self._receiver_of = np.array([known.get(text, -1) for text in receivers], dtype=np.int64)
        self._broker_of = np.array(at, dtype=np.int64)
        self._via_of = np.array([place.get(via, -1) for _, _, _, via, _ in histories], dtype=np.int64)
        self._origin_of = np.array([place.get(origin, -1) for _, _, origin, _, _ in histories], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._histories)

    @property
    def size_bytes(self) -> int:
        """How much the filters take, and what is kept beside them."""
        filters = sum(each.bloom.shape.bits // 8 for history in self._histories for each in history.filters)
        return filters + self._exact.nbytes + self._pieces.keys.nbytes

    @property
    def not_exported(self) -> list[str]:
        """Brokers that the histories name, and of which there is no export."""
        return [name for name, there in zip(self.brokers, self._is_exported, strict=True) if not there]

    def judge(self, ids: Ids) -> Verdicts:
        """Return what became of messages."""
        keys = np.stack([ids[:, 0], ids[:, 1] >> _16], axis=1)
        ordered, key_of = np.unique(_sortable(keys), return_inverse=True)
        keys = _unsortable(ordered)
        piece, piece_key = _find(ordered, self._pieces.keys)
        row_code, row_of = _rows(ids, key_of, len(keys), piece_key)
        row_key = row_code >> _COUNTER_BITS
        hits, doubts = self._look_up(ordered, keys, piece_key, self._pieces.of_history[piece])
        if len(row_key) > len(keys):
            some, rows = _ranges(np.searchsorted(row_key, hits.rows), np.searchsorted(row_key, hits.rows, "right"))
            hits = _Hits(rows, hits.histories[some], hits.logs[some])
        if len(piece):
            codes = self._pieces.codes(piece, piece_key, row_code, len(self))
            hits = _merged(hits, _Hits(codes // len(self), codes % len(self), np.zeros(len(codes))), len(self))
        return self._verdicts(keys[row_key], row_of, hits)._replace(doubts=doubts[row_key])

    def _look_up(
        self, ordered: npt.NDArray[np.bytes_], keys: Keys, piece_key: Places, piece_of: Places
    ) -> tuple[_Hits, Floats]:
        """Return the keys that were found as wholes, and for each key the false positives to be expected: where p of
        those that are not there are found, each one that is not stands for p / (1 - p) that are."""
        found, exact_key = _find(ordered, self._exact)
        exact = _by_history(exact_key, self._exact_of[found])
        pieces = _by_history(piece_key, piece_of)
        slices = _slices(keys)
        hits: list[tuple[Places, int, Floats]] = []
        doubts = np.zeros(len(keys))
        for (export, origin), group in groupby(self._histories, key=lambda one: (one.export, one.origin)):
            if (known := slices.get(origin)) is None:
                continue
            # Nobody receives a message at a broker that did not carry it: one of the two filters errs. But what was put
            # before the histories begin, or after the export, may be in the one and not in the other.
            possible = self._is_outside(export, known.stamps)
            histories = list(group)
            if not histories[0].is_carrier:
                possible[:] = True
            for history in histories:
                sure = np.unique(exact.get(history.number, _NONE)) - known.begin
                among = None if history.is_carrier else np.flatnonzero(possible)
                places, logs = _ask(history.filters, known, among, sure, doubts[known.begin :])
                hits.append((places + known.begin, history.number, logs))
                if history.is_carrier:
                    possible[places] = True
                    possible[pieces.get(history.number, _NONE) - known.begin] = True
        numbers = np.array([number for _, number, _ in hits], dtype=np.int64)
        found_as_wholes = _Hits(
            np.concatenate([_NONE, *(places for places, _, _ in hits)]),
            np.repeat(numbers, [len(places) for places, _, _ in hits]),
            np.concatenate([np.zeros(0), *(logs for _, _, logs in hits)]),
        )
        return found_as_wholes, doubts

    def _is_outside(self, export: int, stamps: npt.NDArray[np.uint64]) -> Flags:
        """Return which stamps an export does not cover."""
        about = self.exports[export]
        outside = (stamps < np.uint64(about.begins)) | (stamps > np.uint64(about.ends))
        for _, last in about.gaps:  # what is stamped before may have waited in an outbox
            outside |= stamps <= np.uint64(last)
        return outside

    def _verdicts(self, keys: Keys, row_of: Places, hits: _Hits) -> Verdicts:
        rows, brokers, receivers = len(keys), len(self.brokers), max(1, len(self.receivers))
        receiver, via = self._receiver_of[hits.histories], self._via_of[hits.histories]
        received = _distinct((hits.rows * receivers + receiver)[receiver >= 0])
        # A neighbour without an export says nothing of itself, but a message that came from it was there.
        beyond = (via >= 0) & ~self._is_exported[via]
        at = hits.rows * brokers + self._broker_of[hits.histories]
        carried = _distinct(np.concatenate([at, (hits.rows * brokers + via)[beyond]]))
        covered = self._are_covered(keys)
        states = np.where(covered, STATES.index(NEVER_SEEN), STATES.index(NOT_COVERED)).astype(np.int8)
        states[carried // brokers] = STATES.index(STOPPED)
        states[received // receivers] = STATES.index(DELIVERED)
        stopped = states == STATES.index(STOPPED)
        last_seen = self._last_seen(carried[stopped[carried // brokers]], hits.among(stopped[hits.rows]))
        return Verdicts(
            row_of,
            keys[:, 0] >> _32,
            states,
            0.0 - np.expm1(np.bincount(hits.rows, weights=hits.logs, minlength=rows)),  # which is never -0.0
            np.zeros(rows),
            Lists.of_pairs(carried, rows, brokers),
            Lists.of_pairs(received, rows, receivers),
            Lists.of_pairs(last_seen, rows, brokers),
        )

    def _last_seen(self, carried: Places, hits: _Hits) -> Places:
        """Return those of (row, broker) pairs from which a message went to no other. What came from a neighbour that is
        not known came from the origin, as far as anybody can say."""
        brokers = len(self.brokers)
        at, via = self._broker_of[hits.histories], self._via_of[hits.histories]
        came_from = np.where(via >= 0, via, self._origin_of[hits.histories])
        left = (hits.rows * brokers + came_from)[(came_from >= 0) & (came_from != at)]
        last = carried[~np.isin(carried, left)]
        lost = ~np.isin(carried // brokers, last // brokers)  # in a circle, which only false positives make
        return np.sort(np.concatenate([last, carried[lost]]))

    def _are_covered(self, keys: Keys) -> Flags:
        """Return for which keys the origin's own export would have them, had they been put."""
        covered = np.zeros(len(keys), dtype=np.bool_)
        for number, about in enumerate(self.exports):
            covered |= (keys[:, 0] >> _32 == np.uint64(about.broker)) & ~self._is_outside(number, keys[:, 1])
        return covered


def _ask(
    filters: Sequence[_Filter], known: _Slice, among: Places | None, sure: Places, doubts: Floats
) -> tuple[Places, Floats]:
    """Return which keys of a slice, or among some of it, are in filters, and those that are there for sure; with logs
    of the chances that they would not be found, had they never been there. What is not found adds to its doubt."""
    keys, stamps = (known.keys, known.stamps) if among is None else (known.keys[among], known.stamps[among])
    seen, logs = np.zeros(len(keys), dtype=np.bool_), np.zeros(len(keys))
    begins = np.searchsorted(stamps, np.array([each.first for each in filters], dtype=np.uint64))
    ends = np.searchsorted(stamps, np.array([each.last for each in filters], dtype=np.uint64), "right")
    for each, begin, end in zip(filters, begins.tolist(), ends.tolist(), strict=True):
        if begin < end:
            left = np.flatnonzero(~seen[begin:end]) + begin
            seen[left[each.bloom.contains(keys[left] ^ np.array([each.salt, 0], dtype=np.uint64))]] = True
            logs[begin:end] += each.log_right
    at = np.arange(len(keys)) if among is None else among
    is_sure = np.isin(at, sure) if len(sure) else np.zeros(len(keys), dtype=np.bool_)
    missing = ~(seen | is_sure)
    doubts[at[missing]] += np.expm1(-logs[missing])
    found = seen & ~is_sure
    places, logs = np.concatenate([at[found], sure]), np.concatenate([logs[found], np.zeros(len(sure))])
    return places, logs


def _filters(parts: Iterable[HistoryPart]) -> list[_Filter]:
    found = []
    for segment in (part.segment for part in parts if part.segment.count):
        bloom = BloomFilter(Shape(segment.bits, segment.hashes), segment.filter)
        right = log1p(-min(false_positives(segment.bits, segment.hashes, segment.count), _NEARLY_1))
        found.append(_Filter(segment.first, segment.last, np.uint64(segment.salt), bloom, right))
    return found


def _label(broker: int, name: str, alike: Counter[str]) -> str:
    """Return the name of a broker where that is one, else its id."""
    if not name:
        return f"{broker:08x}"
    return name if alike[name] == 1 else f"{name} ({broker:08x})"


def _sortable(keys: Keys) -> npt.NDArray[np.bytes_]:
    """Return keys as bytes that sort by origin, stamp and publisher."""
    who, stamp = keys[:, 0], keys[:, 1]
    packed = np.empty((len(keys), 2), dtype=">u8")
    packed[:, 0] = who & ~_PUBLISHER | stamp >> _16
    packed[:, 1] = stamp << _48 | who & _PUBLISHER
    return packed.view("S16").reshape(-1)


def _unsortable(ordered: npt.NDArray[np.bytes_]) -> Keys:
    packed = ordered.view(">u8").reshape(-1, 2).astype(np.uint64)
    upper, lower = packed[:, 0], packed[:, 1]
    return np.stack([upper & ~_PUBLISHER | lower & _PUBLISHER, (upper & _PUBLISHER) << _16 | lower >> _48], axis=1)


def _find(ordered: npt.NDArray[np.bytes_], wanted: npt.NDArray[np.bytes_]) -> tuple[Places, Places]:
    """Return which of those wanted are there, and where."""
    if not len(ordered) or not len(wanted):
        return _NONE, _NONE
    at = np.searchsorted(ordered, wanted)
    found = np.flatnonzero(ordered[np.minimum(at, len(ordered) - 1)] == wanted)
    return found, at[found]


def _rows(ids: Ids, key_of: Places, keys: int, split: Places) -> tuple[Places, Places]:
    """Return the rows, each a key with a counter, and the row of each id: a row for each key, but for those of which
    parts are known one for each counter that is asked for."""
    if not len(split):
        return np.arange(keys) << _COUNTER_BITS, key_of
    is_split = np.zeros(keys, dtype=np.bool_)
    is_split[split] = True
    counters = np.where(is_split[key_of], (ids[:, 1] & _COUNTER).astype(np.int64), 0)
    codes, row_of = np.unique((key_of << _COUNTER_BITS) + counters, return_inverse=True)
    return codes, row_of


def _slices(keys: Keys) -> dict[int, _Slice]:
    """Return the keys of each origin."""
    origins = keys[:, 0] >> _32
    edges = [0, *(np.flatnonzero(np.diff(origins)) + 1).tolist(), len(keys)]
    return {
        int(origins[begin]): _Slice(begin, keys[begin:end], keys[begin:end, 1])
        for begin, end in pairwise(edges)
        if begin < end
    }


def _by_history(places: Places, histories: Places) -> dict[int, Places]:
    """Return the places of each history."""
    order = np.argsort(histories, kind="stable")
    numbers, begins = np.unique(histories[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(places[order], begins[1:]), strict=False))


def _distinct(codes: Places) -> Places:
    """Return each number once, in order. Hits come history by history, each in order: a few runs to merge, where
    NumPy's `unique` would hash all of them."""
    ordered = np.sort(codes, kind="stable")
    return ordered[np.concatenate([[True], np.diff(ordered) > 0])] if len(ordered) else ordered


def _ranges(begins: Places, ends: Places) -> tuple[Places, Places]:
    """Return the numbers from each begin on and before its end, after the number of the range that each is of."""
    lengths = ends - begins
    which = np.repeat(np.arange(len(begins)), lengths)
    before = np.cumsum(lengths) - lengths
    return which, np.arange(len(which)) - before[which] + begins[which]


def _merged(one: _Hits, other: _Hits, histories: int) -> _Hits:
    """Return all hits, those that are twice there once, with the better chance."""
    rows, numbers, logs = (np.concatenate(both) for both in zip(one, other, strict=True))
    codes = rows * histories + numbers
    order = np.lexsort((-logs, codes))
    first = order[np.concatenate([[True], np.diff(codes[order]) > 0])] if len(order) else order
    return _Hits(rows[first], numbers[first], logs[first])
