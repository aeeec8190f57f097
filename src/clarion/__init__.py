"""Clarion: a reliable publish/subscribe system.

Errors are in `clarion.model.errors`; those a client meets can be imported from here, too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.admin import (
        Admin,
        DeadLetter,
        LinkDescription,
        LinkedBroker,
        LinksDescription,
        SubscriptionDescription,
        TopicDescription,
        Trace,
    )
    from clarion.model import ClarionError, MessageId
    from clarion.model.errors import (
        AlreadyDone,
        BadSettings,
        BufferFull,
        Busy,
        Closed,
        DiskFull,
        InDoubt,
        InvalidRequest,
        LeaseLost,
        LimitReached,
        MessagesGone,
        MessagesUnreadable,
        NoOutbox,
        NoSubscriber,
        NoTopic,
        NotSubscribed,
        OutboxFull,
        OutboxInDoubt,
        OutboxInUse,
        OutboxUnusable,
        PublisherExpired,
        ReadOnly,
        StoredDataCorrupt,
        StoreWentBack,
        TakenOver,
        TimedOut,
        TooLarge,
        TopicFull,
        Unreachable,
        UsedAfterFork,
        VersionConflict,
        VersionMismatch,
    )
    from clarion.publisher import AsyncPublisher, Publisher, Stager, commit_staged, drop_staged
    from clarion.publisher.tuner import TunerSettings
    from clarion.subscriber import (
        AsyncSubscriber,
        AsyncTransaction,
        Message,
        MessageBatch,
        State,
        SubscribeOutcome,
        Subscriber,
        Transaction,
    )
from clarion.version import __version__

__all__ = [
    "Admin",
    "AlreadyDone",
    "AsyncPublisher",
    "AsyncSubscriber",
    "AsyncTransaction",
    "BadSettings",
    "BufferFull",
    "Busy",
    "ClarionError",
    "Closed",
    "DeadLetter",
    "DiskFull",
    "InDoubt",
    "InvalidRequest",
    "LeaseLost",
    "LimitReached",
    "LinkDescription",
    "LinkedBroker",
    "LinksDescription",
    "Message",
    "MessageBatch",
    "MessageId",
    "MessagesGone",
    "MessagesUnreadable",
    "NoOutbox",
    "NoSubscriber",
    "NoTopic",
    "NotSubscribed",
    "OutboxFull",
    "OutboxInDoubt",
    "OutboxInUse",
    "OutboxUnusable",
    "Publisher",
    "PublisherExpired",
    "ReadOnly",
    "Stager",
    "State",
    "StoreWentBack",
    "StoredDataCorrupt",
    "SubscribeOutcome",
    "Subscriber",
    "SubscriptionDescription",
    "TakenOver",
    "TimedOut",
    "TooLarge",
    "TopicDescription",
    "TopicFull",
    "Trace",
    "Transaction",
    "TunerSettings",
    "Unreachable",
    "UsedAfterFork",
    "VersionConflict",
    "VersionMismatch",
    "__version__",
    "commit_staged",
    "drop_staged",
]

_ROOMS = {
    "Admin": "admin",
    "AsyncPublisher": "publisher",
    "AsyncSubscriber": "subscriber",
    "AsyncTransaction": "subscriber",
    "DeadLetter": "admin",
    **dict.fromkeys(("LinkDescription", "LinkedBroker", "LinksDescription", "Trace"), "admin"),
    "Message": "subscriber",
    "MessageBatch": "subscriber",
    "MessageId": "model",
    **dict.fromkeys(("NoOutbox", "OutboxFull", "OutboxInDoubt", "OutboxInUse", "OutboxUnusable"), "model.errors"),
    "Publisher": "publisher",
    "Stager": "publisher",
    "State": "subscriber",
    "SubscribeOutcome": "subscriber",
    "Subscriber": "subscriber",
    "SubscriptionDescription": "admin",
    "TopicDescription": "admin",
    "Transaction": "subscriber",
    "TunerSettings": "publisher.tuner",
    "commit_staged": "publisher",
    "drop_staged": "publisher",
}  # every other public name is an error


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `clarion --help` and the broker need none of the clients."""
    if name not in __all__:
        raise AttributeError(f"module 'clarion' has no attribute {name!r}")
    from importlib import import_module

    room = import_module(f"clarion.{_ROOMS.get(name, 'model.errors')}")
    value = globals()[name] = getattr(room, name)
    return value
