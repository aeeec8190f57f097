"""Receipts as the index keeps them: some of one publisher on one topic, which follow each other, in a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from clarion.store.port import Receipt

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, int, int]]).decode  # all but publisher and topic
_IN_A_ROW = 20  # so that a row does not outgrow its page

ReceiptsRow = tuple[int, int, int, bytes]  # publisher, topic, number of the last one, all of them


def pack_receipts(receipts: Sequence[Receipt]) -> list[ReceiptsRow]:
    """Return rows for receipts of one publisher on one topic, which are in order."""
    publisher, topic, *_ = receipts[0]
    parts = [receipts[start : start + _IN_A_ROW] for start in range(0, len(receipts), _IN_A_ROW)]
    return [(publisher, topic, part[-1][2], _encode([receipt[2:] for receipt in part])) for part in parts]


def group_receipts(receipts: Iterable[Receipt]) -> list[list[Receipt]]:
    """Return receipts by publisher and topic, those of each in the order they are in."""
    pairs: defaultdict[tuple[int, int], list[Receipt]] = defaultdict(list)
    for receipt in receipts:
        pairs[receipt[0], receipt[1]].append(receipt)
    return [pairs[pair] for pair in sorted(pairs)]


def unpack_receipts(publisher: int, topic: int, packed: bytes) -> list[Receipt]:
    """Return what `pack_receipts` put into a row."""
    return [Receipt(publisher, topic, *fields) for fields in _decode(packed)]
