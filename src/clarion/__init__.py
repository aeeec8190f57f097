"""Clarion: a reliable publish/subscribe system.

Errors are in `clarion.model.errors`; those a client meets can be imported from here, too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.admin import Admin
    from clarion.model import ClarionError, MessageId
    from clarion.model.errors import (
        BufferFull,
        Closed,
        DiskFull,
        InvalidRequest,
        LimitReached,
        MessagesGone,
        NoSubscriber,
        NotSubscribed,
        PublisherExpired,
        StoredDataCorrupt,
        TakenOver,
        TimedOut,
        TooLarge,
        TopicFull,
        Unreachable,
        UsedAfterFork,
        VersionMismatch,
    )
    from clarion.publisher import AsyncPublisher, Publisher
    from clarion.subscriber import AsyncSubscriber, Message, MessageBatch, Subscriber
from clarion.version import __version__

__all__ = [
    "Admin",
    "AsyncPublisher",
    "AsyncSubscriber",
    "BufferFull",
    "ClarionError",
    "Closed",
    "DiskFull",
    "InvalidRequest",
    "LimitReached",
    "Message",
    "MessageBatch",
    "MessageId",
    "MessagesGone",
    "NoSubscriber",
    "NotSubscribed",
    "Publisher",
    "PublisherExpired",
    "StoredDataCorrupt",
    "Subscriber",
    "TakenOver",
    "TimedOut",
    "TooLarge",
    "TopicFull",
    "Unreachable",
    "UsedAfterFork",
    "VersionMismatch",
    "__version__",
]

_ROOMS = {
    "admin": ("Admin",),
    "model": ("ClarionError", "MessageId"),
    "model.errors": (
        "BufferFull",
        "Closed",
        "DiskFull",
        "InvalidRequest",
        "LimitReached",
        "MessagesGone",
        "NoSubscriber",
        "NotSubscribed",
        "PublisherExpired",
        "StoredDataCorrupt",
        "TakenOver",
        "TimedOut",
        "TooLarge",
        "TopicFull",
        "Unreachable",
        "UsedAfterFork",
        "VersionMismatch",
    ),
    "publisher": ("AsyncPublisher", "Publisher"),
    "subscriber": ("AsyncSubscriber", "Message", "MessageBatch", "Subscriber"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `clarion --help` and the broker need none of the clients."""
    for room, names in _ROOMS.items():
        if name in names:
            from importlib import import_module

            value = globals()[name] = getattr(import_module(f"clarion.{room}"), name)
            return value
    raise AttributeError(f"module 'clarion' has no attribute {name!r}")
