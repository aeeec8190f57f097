"""Clarion: a reliable publish/subscribe system that tunes itself."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.admin import Admin
    from clarion.model import ClarionError, MessageId
    from clarion.publisher import AsyncPublisher, Publisher
    from clarion.subscriber import AsyncSubscriber, Message, MessageBatch, Subscriber
from clarion.version import __version__

__all__ = [
    "Admin",
    "AsyncPublisher",
    "AsyncSubscriber",
    "ClarionError",
    "Message",
    "MessageBatch",
    "MessageId",
    "Publisher",
    "Subscriber",
    "__version__",
]

_ROOMS = {
    "admin": ("Admin",),
    "model": ("ClarionError", "MessageId"),
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
