"""Several small requests, or replies, as one message: each message that ZeroMQ is given wakes a thread at both ends.

Clients that share a connection send bundles to a broker that knows them, and are answered in bundles from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from clarion.wire.frames import BUNDLE_VERSION, MAGIC, PREFIX, BadFrames, Buffer, Kind

Frames = Sequence[Buffer]
BUNDLED_MAX = 64
_BUNDLED_BYTES = 64 * 1024
_COUNTS_BYTES = 512  # that so many counts take at most
_HEAD = PREFIX.pack(MAGIC, BUNDLE_VERSION, Kind.BUNDLE, 0)
_BEGINNING = _HEAD[:4]  # magic, version, kind
_encode_counts = msgspec.msgpack.Encoder().encode
_decode_counts = msgspec.msgpack.Decoder(list[int]).decode


def bundled(messages: Sequence[Frames]) -> list[Frames]:
    """Return messages as they are sent, in their order: small ones bundled, others as they are."""
    if len(messages) == 1:
        return [messages[0]]
    found: list[Frames] = []
    some: list[Frames] = []
    size = 0
    for frames in messages:
        added = sum(map(len, frames))
        if some and (len(some) == BUNDLED_MAX or size + added > _BUNDLED_BYTES):
            found.append(_bundle(some))
            some, size = [], 0
        some.append(frames)
        size += added
    if some:
        found.append(_bundle(some))
    return found


def _bundle(some: list[Frames]) -> Frames:
    return some[0] if len(some) == 1 else [_HEAD, _encode_counts([*map(len, some)]), *chain(*some)]


def is_bundle(frames: Frames) -> bool:
    """Return whether a message says that it is a bundle."""
    return bool(frames) and len(frames[0]) == PREFIX.size and frames[0][: len(_BEGINNING)] == _BEGINNING


def unbundled(frames: Frames) -> list[Frames]:
    """Return the messages in a bundle; BadFrames where it is none, or has more than it may."""
    if len(frames) < 2 or len(frames[1]) > _COUNTS_BYTES or sum(map(len, frames[2:])) > _BUNDLED_BYTES:
        raise BadFrames(f"the messages in a bundle have at most {_BUNDLED_BYTES} bytes together")
    try:
        counts = _decode_counts(frames[1])
    except msgspec.MsgspecError as error:
        raise BadFrames(f"this bundle cannot be read: {error}") from error
    if not 0 < len(counts) <= BUNDLED_MAX or min(counts) < 1 or sum(counts) != len(frames) - 2:
        raise BadFrames(f"a bundle says how many frames each of its messages has, up to {BUNDLED_MAX} of them")
    found: list[Frames] = []
    at = 2
    for count in counts:
        found.append(frames[at : at + count])
        at += count
    return found
