"""From the frames of a request to its kind, id and typed body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from clarion.wire import bodies
from clarion.wire.frames import OLDEST_VERSION, PROTOCOL_VERSION, BadFrames, Buffer, Kind, unpack_prefix

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
}
REQUEST_KINDS = frozenset(_BODIES)
_DECODERS = {kind: msgspec.msgpack.Decoder(body).decode for kind, body in _BODIES.items()}
# Each is decided once: a nonce, and the count as of which, tell a copy that comes later (docs/protocol.md).
DECIDED_KINDS = frozenset({
    Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.REGISTER, Kind.CONFIGURE, Kind.SEEK, Kind.PURGE, Kind.DELETE, Kind.DEAD,
    Kind.COMMIT_STAGED,
})  # fmt: skip
# What decoding may cost: a body beyond this is refused unread, so that no request holds the broker up for long.
_BODY_BYTES = 64 * 1024
_LARGE_BODY_BYTES = 2**21  # of those that carry ranges, names or times of very many messages
_WITH_LARGE_BODY = frozenset({
    Kind.PUT, Kind.ACK, Kind.RENEW, Kind.RETURN, Kind.DETACH, Kind.TRANSACT, Kind.COMMIT_STAGED, Kind.DEAD, Kind.OPEN,
})  # fmt: skip
WITH_BLOB = frozenset({Kind.PUT, Kind.STAGE, Kind.TRANSACT})  # their third frame: packed batches
# A transaction reads and writes, and registers to do so: these are welcome at every address.
PUBLISHER_KINDS = frozenset({Kind.OPEN, Kind.PUT, Kind.STAGE, Kind.COMMIT_STAGED, Kind.REPORT})
SUBSCRIBER_KINDS = frozenset({
    Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.ATTACH, Kind.GET, Kind.ACK, Kind.TAKE, Kind.RENEW, Kind.RETURN, Kind.DETACH,
    Kind.MATCHES,
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
    most = _LARGE_BODY_BYTES if kind in _WITH_LARGE_BODY else _BODY_BYTES
    if len(frames[1]) > most:
        raise BadFrames(f"the body of a {Kind(kind).name} has at most {most} bytes, this has {len(frames[1])}")
    try:
        body = decode(frames[1])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrames(f"the body of this {Kind(kind).name} cannot be read: {error}") from error
    return Request(kind, request_id, body, frames[2] if len(frames) == 3 else None)


def request_id_of(frames: Sequence[Buffer]) -> int:
    """Give the id a reply to frames that cannot be read should carry; 0 when even that cannot be told."""
    try:
        return unpack_prefix(frames[0])[2] if frames else 0
    except BadFrames:
        return 0
