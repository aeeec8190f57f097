"""A sheaf whose messages came as packed columns: it leaves as a batch of its own, and no single message is touched."""

from __future__ import annotations

from clarion.model.arguments import whole
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.wire.batch import PackedColumn, column_bytes, encode_columns


class PackedSheaf:
    """Columns of `count` messages for one topic, until they are sealed with an identity and a number."""

    __slots__ = ("_columns", "count", "packed", "size", "topic")

    def __init__(
        self,
        topic: bytes,
        count: int,
        payloads: PackedColumn,
        keys: PackedColumn | None = None,
        headers: PackedColumn | None = None,
    ) -> None:
        self.topic = topic
        self.count = whole(count, "count", 1, MAX_BATCH_MESSAGES)
        for name, column in (("payloads", payloads), ("keys", keys), ("headers", headers)):
            if column is not None or name == "payloads":
                _check_column(column, name, self.count)
        self.size = column_bytes(payloads) + column_bytes(keys) + column_bytes(headers)
        self._columns: tuple[PackedColumn, PackedColumn | None, PackedColumn | None] | None = (payloads, keys, headers)
        self.packed: bytearray | None = None

    def seal(self, *, broker: int, publisher: int, stamp: int, number: int, compressed: bool = False) -> bytearray:
        """Pack it for good; the columns are let go."""
        assert self._columns is not None
        payloads, keys, headers = self._columns
        self.packed = encode_columns(
            self.count,
            payloads,
            keys=keys,
            headers=headers,
            broker=broker,
            publisher=publisher,
            stamp=stamp,
            number=number,
            compressed=compressed,
        )
        self._columns = None
        return self.packed


def _check_column(column: object, name: str, count: int) -> None:
    """Raise where the column is none, or its sections are not those of `count` values."""
    if not isinstance(column, PackedColumn):
        raise TypeError(f"{name} is a PackedColumn, not {type(column).__name__}")
    bitmap_bytes = None if name == "payloads" else (count + 7) // 8
    found_bytes = None if column.bitmap is None else len(column.bitmap)
    if len(column.offsets) != 4 * (count + 1) or found_bytes != bitmap_bytes:
        raise ValueError(
            f"{name} of {count} messages have {4 * (count + 1)} bytes of offsets and"
            f" {'no bitmap' if bitmap_bytes is None else f'a bitmap of {bitmap_bytes}'}; nothing was queued"
        )
