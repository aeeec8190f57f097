"""Bytes to requests and replies, and back; and the batch layout that goes from publisher to Spark.

`docs/protocol.md` describes all of it byte by byte.
"""

from clarion.wire.batch import Batch, encode_batch, slice_batch
from clarion.wire.codes import Code, error_of
from clarion.wire.frames import PROTOCOL_VERSION, Kind, pack_frames, unpack_prefix

__all__ = [
    "PROTOCOL_VERSION",
    "Batch",
    "Code",
    "Kind",
    "encode_batch",
    "error_of",
    "pack_frames",
    "slice_batch",
    "unpack_prefix",
]
