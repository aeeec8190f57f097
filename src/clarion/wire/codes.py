"""Why a broker refused, as a code on the wire and as an error in Python."""

from __future__ import annotations

from enum import IntEnum

from clarion.model import errors


class Code(IntEnum):
    """The codes of INVALID, NO_SUBSCRIBER, NOT_SUBSCRIBED and REFUSED replies."""

    MALFORMED = 1
    VERSION = 2
    CHECKSUM_DIFFERS = 3
    WRONG_SOCKET = 4
    TOO_LARGE = 5
    NO_SUBSCRIBER = 6
    NOT_SUBSCRIBED = 7
    TAKEN_OVER = 8
    PUBLISHER_EXPIRED = 9
    GAP = 10
    TOPIC_FULL = 11
    DISK_FULL = 12
    CORRUPT = 13
    GONE = 14
    LIMIT = 15
    LEASE_LOST = 16
    SHOW_HELD = 17  # the broker restarted: say with RENEW what is held, then ask again
    MOVED = 18  # the subscription was sought elsewhere: attach again
    CONFLICT = 19
    NO_TOPIC = 20
    BUSY = 21
    ALREADY_DONE = 22  # what a transaction acks is acked already
    STALE = 23  # decided as of too long ago: things have changed, or a copy of it may be done and forgotten
    NO_SESSION = 24  # the fetch session is not known (any more): begin it again with the same nonce
    READ_ONLY = 25  # a cache broker takes no messages
    WENT_BACK = 99  # never on the wire, said by the client itself: the store is not the one it spoke with


_ERRORS: dict[int, type[errors.ClarionError]] = {
    Code.MALFORMED: errors.InvalidRequest,
    Code.VERSION: errors.VersionMismatch,
    Code.CHECKSUM_DIFFERS: errors.InvalidRequest,
    Code.WRONG_SOCKET: errors.InvalidRequest,
    Code.TOO_LARGE: errors.TooLarge,
    Code.NO_SUBSCRIBER: errors.NoSubscriber,
    Code.NOT_SUBSCRIBED: errors.NotSubscribed,
    Code.TAKEN_OVER: errors.TakenOver,
    Code.PUBLISHER_EXPIRED: errors.PublisherExpired,
    Code.TOPIC_FULL: errors.TopicFull,
    Code.DISK_FULL: errors.DiskFull,
    Code.CORRUPT: errors.StoredDataCorrupt,
    Code.GONE: errors.MessagesGone,
    Code.LIMIT: errors.LimitReached,
    Code.LEASE_LOST: errors.LeaseLost,
    Code.MOVED: errors.LeaseLost,
    Code.CONFLICT: errors.VersionConflict,
    Code.NO_TOPIC: errors.NoTopic,
    Code.BUSY: errors.Busy,
    Code.WENT_BACK: errors.StoreWentBack,
    Code.ALREADY_DONE: errors.AlreadyDone,
    Code.STALE: errors.InDoubt,
    Code.NO_SESSION: errors.InvalidRequest,
    Code.READ_ONLY: errors.ReadOnly,
}

# A client sends the same request again after these; everything else it raises.
RETRIED = frozenset({Code.GAP, Code.TOPIC_FULL, Code.DISK_FULL, Code.BUSY})


def error_of(code: int, text: str) -> errors.ClarionError:
    """Return the typed error for a refusal."""
    return _ERRORS.get(code, errors.InvalidRequest)(text)
