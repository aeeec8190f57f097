"""A sheaf: messages for one topic that gather until they leave as one batch, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from clarion.model.errors import ClarionError
from clarion.model.ids import MAX_BATCH_MESSAGES, RECEIPTS_KEPT, MessageId
from clarion.model.names import to_bytes
from clarion.wire.batch import Headers, encode_batch

OVERHEAD_BYTES = 16  # of a message in the packed batch, at most, without key and headers


class Sheaf:
    """Gathers messages, is sealed with an identity and a number, and ends stored or refused."""

    __slots__ = (
        "_count", "broker", "done", "error", "first_offset", "headers", "keys", "number", "observed", "on_done",
        "packed", "payloads", "publisher", "refused", "size", "stamp", "topic",
    )  # fmt: skip

    def __init__(self, topic: bytes) -> None:
        self.topic = topic
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self._count = 0  # once sealed
        self.size = 0  # bytes it will take, roughly
        self.broker = self.publisher = self.stamp = self.number = 0
        self.packed: bytearray | None = None
        self.refused = False  # the broker said "again later"
        self.done = False
        self.first_offset = -1
        self.error: ClarionError | None = None
        self.observed = False  # somebody was told of the error
        self.on_done: list[Callable[[], None]] | None = None

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self._count or len(self.payloads)

    def add(self, payload: bytes, key: bytes | None, headers: Headers | None, size: int) -> int:
        """Add one message; give its place."""
        place = len(self.payloads)
        self.payloads.append(payload)
        if key is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * place
            self.keys.append(key)
        if headers is not None or self.headers is not None:
            if self.headers is None:
                self.headers = [None] * place
            self.headers.append(headers)
        self.size += size
        return place

    def extend(self, payloads: Sequence[bytes], keys: Sequence[bytes | None] | None, size: int) -> int:
        """Add many messages without headers; give the place of the first."""
        place = len(self.payloads)
        self.payloads.extend(payloads)
        if keys is not None or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * place
            self.keys.extend(keys if keys is not None else [None] * len(payloads))
        if self.headers is not None:
            self.headers.extend([None] * len(payloads))
        self.size += size
        return place

    def has_room(self, messages: int, size: int, batch_bytes: int) -> bool:
        """Whether so much more still fits below the bounds of a batch."""
        return self.count + messages <= MAX_BATCH_MESSAGES and self.size + size <= batch_bytes

    def seal(self, *, broker: int, publisher: int, stamp: int, number: int) -> bytearray:
        """Pack it for good; the single messages are let go."""
        self.broker, self.publisher, self.stamp, self.number = broker, publisher, stamp, number
        self.packed = encode_batch(
            self.payloads,
            keys=self.keys,
            headers=self.headers,
            broker=broker,
            publisher=publisher,
            stamp=stamp,
            number=number,
        )
        self._count = len(self.payloads)
        self.payloads = []
        self.keys = self.headers = None
        return self.packed

    def end(self, *, first_offset: int = -1, error: ClarionError | None = None) -> None:
        """Note what became of it, and tell who asked to be told."""
        self.first_offset = first_offset
        self.error = error
        self.packed = None
        self.done = True
        for tell in self.on_done or ():
            tell()
        self.on_done = None

    def raise_error(self) -> None:
        """Raise what went wrong, if something did."""
        if self.error is not None:
            self.observed = True
            raise self.error

    def message_id(self, place: int) -> MessageId:
        """Give the id of a message; known once the sheaf is sealed."""
        return MessageId(self.broker, self.publisher, self.stamp, place)


def as_headers(headers: Mapping[str, bytes | str] | None) -> Headers | None:
    """Give headers as a dict of text to bytes; values of str are encoded as UTF-8."""
    if not headers:
        return None
    return {name: to_bytes(value) for name, value in headers.items()}


def all_bytes(payloads: Sequence[bytes | str]) -> Sequence[bytes]:
    """Give the payloads, str encoded as UTF-8; what is neither bytes nor str is a TypeError."""
    if set(map(type, payloads)) <= {bytes}:
        return payloads  # type: ignore[return-value]
    return [to_bytes(payload) for payload in payloads]


def check_settings(in_flight: int, batch_bytes: int, buffer_bytes: int) -> None:
    """Raise ValueError for what a publisher cannot work with."""
    if not 1 <= in_flight <= RECEIPTS_KEPT:
        raise ValueError(f"in_flight is 1 to {RECEIPTS_KEPT}: the broker keeps so many receipts; not {in_flight}")
    if batch_bytes < 1 or buffer_bytes < 1:
        raise ValueError("batch_bytes and buffer_bytes are at least 1")
