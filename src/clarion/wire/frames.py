"""The frames of requests and replies: a prefix with the kind, a typed body, and what is sent as it is."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from clarion.wire import bodies, link_bodies

PROTOCOL_VERSION = 3
OLDEST_VERSION = 1
MANY_TOPICS_VERSION = 2  # from which on a broker takes requests of many topics, and acks that gets bring along
BUNDLE_VERSION = 3  # from which on it takes several requests as one message (`bundles.py`)
MAGIC = b"CN"
PREFIX = struct.Struct("<2sBBQ")  # magic, version, kind, request id

Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a request asks or a reply says. 1 to 10 are those of *Reliable Publisher/Subscriber Service*."""

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
    PUT_MANY = 44  # from here on: of MANY_TOPICS_VERSION
    BEGIN_FETCH = 45
    FETCH = 46
    ACK_MANY = 47
    DESCRIBE_MANY = 48
    BUNDLE = 49  # several requests, or replies; of BUNDLE_VERSION
    LINK_HELLO = 50  # from here on: between brokers
    LINK_STATE = 51
    LINK_PACKET = 52
    LINKS = 53  # ask for them
    TRACE = 54  # where a message went


class BadFrames(ValueError):
    """These frames are not a request of this protocol."""


_encode = msgspec.msgpack.Encoder().encode
_OF_MANY_TOPICS = frozenset({Kind.PUT_MANY, Kind.BEGIN_FETCH, Kind.FETCH, Kind.ACK_MANY, Kind.DESCRIBE_MANY})


def pack_frames(kind: int, request_id: int, body: object, blobs: Sequence[Buffer] = ()) -> list[Buffer]:
    """Return the frames of a request or reply: prefix, msgpack body, and what is sent as it is."""
    version = MANY_TOPICS_VERSION if kind in _OF_MANY_TOPICS else OLDEST_VERSION  # so that older ones take the others
    return [PREFIX.pack(MAGIC, version, kind, request_id), _encode(body), *blobs]


def unpack_prefix(frame: Buffer) -> tuple[int, int, int]:
    """Read (version, kind, request id); whatever else is a BadFrames."""
    if len(frame) != PREFIX.size:
        raise BadFrames(f"the first frame has {PREFIX.size} bytes, not {len(frame)}")
    magic, version, kind, request_id = PREFIX.unpack(frame)
    if magic != MAGIC:
        raise BadFrames(f"the first frame begins with {MAGIC!r}, not {magic!r}")
    return version, kind, request_id


_BODIES: dict[int, type[bodies.Body]] = {
    Kind.HELLO: bodies.Hello,
    Kind.REGISTER: bodies.Register,
    Kind.FORGET: bodies.Forget,
    Kind.PUT: bodies.Put,
    Kind.SUBSCRIBE: bodies.Subscribe,
    Kind.UNSUBSCRIBE: bodies.Unsubscribe,
    Kind.ATTACH: bodies.Attach,
    Kind.GET: bodies.Get,
    Kind.ACK: bodies.Ack,
    Kind.CONFIGURE: bodies.Configure,
    Kind.TOPICS: bodies.ListTopics,
    Kind.STATS: bodies.AskStats,
    Kind.TAKE: bodies.Take,
    Kind.RENEW: bodies.Renew,
    Kind.RETURN: bodies.Return,
    Kind.DETACH: bodies.Detach,
    Kind.TRANSACT: bodies.Transact,
    Kind.STATE: bodies.AskState,
    Kind.STAGE: bodies.Stage,
    Kind.COMMIT_STAGED: bodies.CommitStaged,
    Kind.DESCRIBE: bodies.Describe,
    Kind.SEEK: bodies.Seek,
    Kind.PURGE: bodies.Purge,
    Kind.DELETE: bodies.Delete,
    Kind.READ: bodies.Read,
    Kind.MATCHES: bodies.Matches,
    Kind.DEAD: bodies.Dead,
    Kind.REPORT: bodies.Report,
    Kind.FIND_OFFSET: bodies.FindOffset,
    Kind.OPEN: bodies.Open,
    Kind.PUT_MANY: bodies.PutMany,
    Kind.BEGIN_FETCH: bodies.BeginFetch,
    Kind.FETCH: bodies.Fetch,
    Kind.ACK_MANY: bodies.AckMany,
    Kind.DESCRIBE_MANY: bodies.DescribeMany,
    Kind.LINK_HELLO: link_bodies.LinkHello,
    Kind.LINK_STATE: link_bodies.LinkState,
    Kind.LINK_PACKET: link_bodies.LinkPacket,
    Kind.LINKS: link_bodies.AskLinks,
    Kind.TRACE: link_bodies.Trace,
}
LINK_KINDS = frozenset(
    {Kind.LINK_HELLO, Kind.LINK_STATE, Kind.LINK_PACKET, Kind.LINKS, Kind.TRACE}
)  # not for the engine
REQUEST_KINDS = frozenset(_BODIES) - LINK_KINDS
_DECODERS = {kind: msgspec.msgpack.Decoder(body).decode for kind, body in _BODIES.items()}
# Each is decided once: a nonce, and the count as of which, tell a copy that comes later (docs/protocol.md).
DECIDED_KINDS = frozenset({
    Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.REGISTER, Kind.CONFIGURE, Kind.SEEK, Kind.PURGE, Kind.DELETE, Kind.DEAD,
    Kind.COMMIT_STAGED,
})  # fmt: skip
# What decoding may cost: a body beyond this is refused unread, so that no request holds the broker up for long.
_BODY_BYTES = 64 * 1024
LARGE_BODY_BYTES = 2**21  # of those that carry ranges, names or times of very many messages
_WITH_LARGE_BODY = frozenset({
    Kind.PUT, Kind.ACK, Kind.RENEW, Kind.RETURN, Kind.DETACH, Kind.TRANSACT, Kind.COMMIT_STAGED, Kind.DEAD, Kind.OPEN,
    Kind.PUT_MANY, Kind.BEGIN_FETCH, Kind.FETCH, Kind.GET, Kind.ACK_MANY, Kind.DESCRIBE_MANY, Kind.LINK_STATE,
    Kind.LINK_PACKET,
})  # fmt: skip
# Their third frame: packed batches
WITH_BLOB = frozenset({Kind.PUT, Kind.PUT_MANY, Kind.STAGE, Kind.TRANSACT, Kind.LINK_PACKET})
# A transaction reads and writes, and registers to do so: these are welcome at every address.
PUBLISHER_KINDS = frozenset({Kind.OPEN, Kind.PUT, Kind.PUT_MANY, Kind.STAGE, Kind.COMMIT_STAGED, Kind.REPORT})
SUBSCRIBER_KINDS = frozenset({
    Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.ATTACH, Kind.GET, Kind.ACK, Kind.TAKE, Kind.RENEW, Kind.RETURN, Kind.DETACH,
    Kind.MATCHES, Kind.BEGIN_FETCH, Kind.FETCH, Kind.ACK_MANY,
})  # fmt: skip


class UnknownVersion(BadFrames):
    """The request is of a protocol version that is not spoken here."""


class Request(NamedTuple):
    """A request as it came in; `blob` is the frame after the body, where there is one."""

    kind: int
    request_id: int
    body: bodies.Body
    blob: Buffer | None


def parse_request(frames: Sequence[Buffer]) -> Request:
    """Read the frames of a request; whatever cannot be understood is a BadFrames that says why."""
    if not 2 <= len(frames) <= 3:
        raise BadFrames(f"a request has 2 or 3 frames, this has {len(frames)}")
    version, kind, request_id = unpack_prefix(frames[0])
    if not OLDEST_VERSION <= version <= PROTOCOL_VERSION:
        raise UnknownVersion(
            f"protocol version {version} is not spoken here; versions {OLDEST_VERSION} to {PROTOCOL_VERSION} are"
        )
    decode = _DECODERS.get(kind)
    if decode is None:
        raise BadFrames(f"request kind {kind} is not known here")
    wanted = 3 if kind in WITH_BLOB else 2
    if len(frames) != wanted:
        raise BadFrames(f"a {Kind(kind).name} has {wanted} frames, this has {len(frames)}")
    most = LARGE_BODY_BYTES if kind in _WITH_LARGE_BODY else _BODY_BYTES
    if len(frames[1]) > most:
        raise BadFrames(f"the body of a {Kind(kind).name} has at most {most} bytes, this has {len(frames[1])}")
    try:
        body = decode(frames[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrames(f"the body of this {Kind(kind).name} cannot be read: {error}") from error
    return Request(kind, request_id, body, frames[2] if len(frames) == 3 else None)


def request_id_of(frames: Sequence[Buffer]) -> int:
    """Return the id a reply to frames that cannot be read should carry; 0 when even that cannot be told."""
    try:
        return unpack_prefix(frames[0])[2] if frames else 0
    except BadFrames:
        return 0
