"""Clarion: a reliable publish/subscribe system that tunes itself."""

from clarion.admin import Admin
from clarion.model import ClarionError, MessageId
from clarion.publisher import AsyncPublisher, Publisher
from clarion.subscriber import AsyncSubscriber, Message, MessageBatch, Subscriber

__version__ = "0.1.0"

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
]
