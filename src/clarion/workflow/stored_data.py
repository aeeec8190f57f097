"""Data that is stored once and passed by reference: in pieces on a topic that keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from xxhash import xxh3_64_hexdigest

from clarion.admin import Admin
from clarion.model.errors import MessagesGone, PermanentError
from clarion.model.names import to_bytes
from clarion.publisher import Publisher
from clarion.workflow.job_messages import DATA_TOPIC, INLINE_BYTES, Value

PIECE_BYTES = 4 * 2**20
_SCHEME = "clarion-data"
_WAIT_S = 60.0


class Reference(str):
    """Where data is stored, as a text: JSON can hold it, and it can be passed on like any other value."""

    __slots__ = ()

    @classmethod
    def of(cls, offsets: list[int], size: int, checksum: str) -> Reference:
        """Return a reference to pieces."""
        return cls(f"{_SCHEME}:{','.join(map(str, offsets))}:{size}:{checksum}")

    def read(self) -> tuple[list[int], int, str]:
        """Return the offsets of the pieces, how many bytes they are together, and their checksum."""
        scheme, _, rest = self.partition(":")
        try:
            offsets, size, checksum = rest.split(":")
            if scheme == _SCHEME:
                return [int(offset) for offset in offsets.split(",") if offset], int(size), checksum
        except ValueError:
            pass
        raise PermanentError(f"this is no reference to stored data: {self[:100]!r}")

    @property
    def size(self) -> int:
        """How many bytes it is."""
        return self.read()[1]


class Clients(Protocol):
    """Whoever stores and loads."""

    @property
    def publisher(self) -> Publisher:
        """Return what stores."""

    admin: Admin


class StoredData:
    """Stores data at a broker, and loads it again."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def store(self, data: bytes | str) -> Reference:
        """Store data durably; return the reference to it. Kept as long as the topic `clarion/data` keeps it."""
        data = to_bytes(data, "data")
        receipts = [self._clients.publisher.put(DATA_TOPIC, piece) for piece in _pieces(data)]
        offsets = [receipt.result(timeout_s=_WAIT_S).offset for receipt in receipts]
        return Reference.of([offset for offset in offsets if offset is not None], len(data), xxh3_64_hexdigest(data))

    def load(self, reference: str) -> bytes:
        """Return the data that a reference means; PermanentError where it is no longer kept, or is not what it was."""
        offsets, size, checksum = Reference(reference).read()
        pieces = []
        for offset in offsets:
            try:
                found = self._clients.admin.read(DATA_TOPIC, offset, max_messages=1)
            except MessagesGone:
                found = []
            if not found or found[0].offset != offset:
                raise PermanentError(f"stored data at offset {offset} of {DATA_TOPIC} is no longer kept")
            pieces.append(found[0].payload)
        data = b"".join(pieces)
        if len(data) != size or xxh3_64_hexdigest(data) != checksum:
            raise PermanentError(f"stored data at offsets {offsets} of {DATA_TOPIC} is not what the reference says")
        return data

    def keep_small(self, value: Value, most: int = INLINE_BYTES) -> Value:
        """Return a value, stored and by reference where it is larger than `most`."""
        if len(value.payload) <= most or value.kind not in ("bytes", "json"):
            return value
        reference = self.store(value.payload).encode()
        return Value("stored-bytes" if value.kind == "bytes" else "stored-json", reference)

    def whole(self, value: Value) -> Value:
        """Return a value itself, where what is given is a reference to it."""
        if value.kind == "stored-bytes":
            return Value("bytes", self.load(value.payload.decode()))
        if value.kind == "stored-json":
            return Value("json", self.load(value.payload.decode()))
        return value


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
