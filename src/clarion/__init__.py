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
    "Admin": "admin",
    "AsyncPublisher": "publisher",
    "AsyncSubscriber": "subscriber",
    "Message": "subscriber",
    "MessageBatch": "subscriber",
    "MessageId": "model",
    "Publisher": "publisher",
    "Subscriber": "subscriber",
}  # every other public name is an error


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `clarion --help` and the broker need none of the clients."""
    if name not in __all__:
        raise AttributeError(f"module 'clarion' has no attribute {name!r}")
    from importlib import import_module

    room = import_module(f"clarion.{_ROOMS.get(name, 'model.errors')}")
    value = globals()[name] = getattr(room, name)
    return value
