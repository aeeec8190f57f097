"""Message ids and the stamps inside them."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import NamedTuple

MAX_BATCH_MESSAGES = 65_536  # the counter has 2 bytes
RECEIPTS_KEPT = 64  # for each publisher and topic, at least; no client may have more batches in flight
DECISIONS_KEPT = 16_384  # answers to requests that changed something, of all clients together
STAMPS_PER_S = 64_000  # a stamp counts 1/64 ms
STAMP_EPOCH_UNIX_S = int(datetime(2020, 1, 1, tzinfo=UTC).timestamp())
STAMP_LIMIT = 1 << 48

_ID = struct.Struct(">II")
# The counter's two bytes, for every counter there is.
_COUNTERS_HIGH = bytes(counter >> 8 for counter in range(MAX_BATCH_MESSAGES))
_COUNTERS_LOW = bytes(range(256)) * 256


class MessageId(NamedTuple):
    """The 16-byte id of a message: broker 4, publisher 4, stamp 6, counter 2, all big-endian.

    Ids of one publisher sort by the order in which they were put.
    """

    broker: int
    publisher: int
    stamp: int
    counter: int

    def to_bytes(self) -> bytes:
        """Return the 16 bytes."""
        tail = self.stamp.to_bytes(6, "big") + self.counter.to_bytes(2, "big")
        return _ID.pack(self.broker, self.publisher) + tail

    @classmethod
    def from_bytes(cls, raw: bytes) -> MessageId:
        """Read the 16 bytes; anything else is a ValueError."""
        if len(raw) != 16:
            raise ValueError(f"a message id has 16 bytes, not {len(raw)}")
        broker, publisher = _ID.unpack_from(raw)
        return cls(broker, publisher, int.from_bytes(raw[8:14], "big"), int.from_bytes(raw[14:], "big"))

    @property
    def batch_key(self) -> tuple[int, int]:
        """What all messages of its batch share: who put it (broker << 32 | publisher), and the stamp."""
        return self.broker << 32 | self.publisher, self.stamp

    def __str__(self) -> str:
        return self.to_bytes().hex()

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read the 32 hexadecimal digits that `str` gives."""
        return cls.from_bytes(bytes.fromhex(text))


def pack_ids(first: MessageId, count: int) -> bytearray:
    """Return `count` ids, `first` and those whose counters follow, as their bytes one after the other."""
    stop = first.counter + count
    assert stop <= MAX_BATCH_MESSAGES
    packed = bytearray(first.to_bytes()) * count
    packed[14::16] = _COUNTERS_HIGH[first.counter : stop]
    packed[15::16] = _COUNTERS_LOW[first.counter : stop]
    return packed


def stamp_from_unix_s(unix_s: float) -> int:
    """Return the stamp of a time: 1/64 ms since 2020, at least 0."""
    return min(STAMP_LIMIT - 1, max(0, int((unix_s - STAMP_EPOCH_UNIX_S) * STAMPS_PER_S)))


def stamp_from_unix_us(unix_us: int) -> int:
    """Return the stamp of a time in microseconds, at least 0."""
    return max(0, (unix_us - STAMP_EPOCH_UNIX_S * 1_000_000) * STAMPS_PER_S // 1_000_000)


def next_stamp(last: int, unix_s: float) -> int:
    """Return the stamp of a publisher's next batch: that of the time, but later than the last one's."""
    return max(last + 1, stamp_from_unix_s(unix_s))


def stamp_to_unix_s(stamp: int) -> float:
    """Return the time of a stamp in seconds since 1970."""
    return STAMP_EPOCH_UNIX_S + stamp / STAMPS_PER_S
