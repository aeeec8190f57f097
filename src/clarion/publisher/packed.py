"""A sheaf whose messages came as packed columns: it leaves as a batch of its own, and no single message is touched."""

from __future__ import annotations

from clarion.wire.batch import encode_columns
from clarion.wire.columns import PackedColumn, column_bytes


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
        self.count = count
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
