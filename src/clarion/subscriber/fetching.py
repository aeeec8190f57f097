"""What the two ways of fetching share: where they stand, whom they tell, and how they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clarion.model.errors import ClarionError, MessagesGone, NotSubscribed
from clarion.model.names import to_text
from clarion.subscriber.acking import Acks
from clarion.subscriber.inbox import Inbox
from clarion.subscriber.line import Line


@dataclass(slots=True)
class FetchSettings:
    """How a subscriber fetches."""

    fetch_bytes: int = 2**20
    prefetch: bool = True
    max_unacked: int = 10_000  # messages of a shared subscription lent to this consumer at a time
    heartbeats: bool = True
    at_most_once: bool = False  # what is acked was not handed out yet


@dataclass(slots=True)
class Station:
    """One attached consumer: its line to the broker, its inbox and its acks."""

    topic: bytes
    name: bytes
    settings: FetchSettings
    clock_s: Callable[[], float]
    line: Line
    inbox: Inbox
    acks: Acks
    tell_once: Callable[[ClarionError], None]  # to the next call, which then goes on
    fail: Callable[[ClarionError], None]  # what is fetched and handed out is nobody's any more
    lose: Callable[[str], None]  # what was lent was taken away
    changed: Callable[[], None]


def gone_error(topic: bytes, start: int, stop: int, text: str) -> MessagesGone:
    """Give the error that names a gap."""
    error = MessagesGone(f"{to_text(topic)}: {text}; the next call goes on after them")
    error.topic, error.start, error.stop = topic, start, stop
    return error


def no_longer_reads(name: bytes, topic: bytes) -> NotSubscribed:
    """Give the error of a subscription that was ended here, or is gone."""
    return NotSubscribed(f"{to_text(name)} no longer reads {to_text(topic)}")
