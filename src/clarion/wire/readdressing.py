"""A packed batch under another identity: whose it is, when it was made and its number; its messages stay."""

from __future__ import annotations

import struct

from clarion.wire.batch import HEADER_BYTES, Batch, renumber_batch
from clarion.wire.frames import Buffer

_IDENTITY = struct.Struct("<II")  # broker, publisher
_IDENTITY_AT = 20  # in the batch's header, see clarion.wire.batch
_STAMP = struct.Struct("<Q")
_STAMP_AT = 32


def readdress_batch(packed: Buffer, *, broker: int, publisher: int, stamp: int, number: int) -> bytearray:
    """Give the batch as this publisher's, with this stamp and number. The same arguments give the same bytes."""
    assert len(packed) >= HEADER_BYTES
    readdressed = bytearray(packed)
    _IDENTITY.pack_into(readdressed, _IDENTITY_AT, broker, publisher)
    _STAMP.pack_into(readdressed, _STAMP_AT, stamp)
    readdressed = renumber_batch(readdressed, number)  # with a new checksum
    made = Batch(readdressed)
    assert (made.broker, made.publisher, made.stamp, made.number) == (broker, publisher, stamp, number)
    return readdressed
