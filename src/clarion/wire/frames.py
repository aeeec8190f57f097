"""The first frame of every request and reply, and the kinds they come in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

import msgspec

PROTOCOL_VERSION = 1
OLDEST_VERSION = 1
MAGIC = b"CN"
PREFIX = struct.Struct("<2sBBQ")  # magic, version, kind, request id

Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a request asks or a reply says. 1 to 10 are the reliable-service document's types."""

    SUBSCRIBE = 1
    UNSUBSCRIBE = 2
    GET = 3
    PUT = 4
    ACK = 5  # as a request: these offsets are done; as a reply: your request is done
    INVALID = 6
    NO_MESSAGES = 7
    NOT_SUBSCRIBED = 8
    ALREADY_SUBSCRIBED = 9
    NO_SUBSCRIBER = 10
    HELLO = 16
    REGISTER = 17
    FORGET = 18
    ATTACH = 19
    CONFIGURE = 20
    TOPICS = 21
    STATS = 22
    TAKE = 23
    RENEW = 24
    RETURN = 25
    DETACH = 26
    TRANSACT = 27
    STATE = 28
    STAGE = 29
    COMMIT_STAGED = 30
    MESSAGES = 32
    REFUSED = 33
    DESCRIBE = 34
    SEEK = 35
    PURGE = 36
    DELETE = 37
    READ = 38
    MATCHES = 39
    DEAD = 40
    REPORT = 41
    FIND_OFFSET = 42
    OPEN = 43


class BadFrames(ValueError):
    """These frames are not a request of this protocol."""


_encode = msgspec.msgpack.Encoder().encode


def pack_frames(kind: int, request_id: int, body: object, blobs: Sequence[Buffer] = ()) -> list[Buffer]:
    """Give the frames of a request or reply: prefix, msgpack body, and what is sent as it is."""
    return [PREFIX.pack(MAGIC, PROTOCOL_VERSION, kind, request_id), _encode(body), *blobs]


def unpack_prefix(frame: Buffer) -> tuple[int, int, int]:
    """Read (version, kind, request id); whatever else is a BadFrames."""
    if len(frame) != PREFIX.size:
        raise BadFrames(f"the first frame has {PREFIX.size} bytes, not {len(frame)}")
    magic, version, kind, request_id = PREFIX.unpack(frame)
    if magic != MAGIC:
        raise BadFrames(f"the first frame begins with {MAGIC!r}, not {magic!r}")
    return version, kind, request_id
