"""The options of a subscriber and of its subscriptions, checked, and as the wire has them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from clarion.model.arguments import seconds, whole
from clarion.model.errors import InvalidRequest
from clarion.model.names import to_text
from clarion.model.options import SubscriptionOptions, check_options
from clarion.wire.timestamps import unix_us

Start = Literal["new", "earliest"] | int | datetime
AckMode = Literal["auto", "explicit"]
Delivery = Literal["at-least-once", "at-most-once"]
Order = Literal["key"]


def check_settings(name: object, ack: str, delivery: str, max_unacked: int) -> None:
    """Raise ValueError for what a subscriber cannot be."""
    if name is None or name in ("", b""):
        raise ValueError("a subscriber has a name: it is how the broker knows what it has read")
    if ack not in ("auto", "explicit") or delivery not in ("at-least-once", "at-most-once"):
        raise ValueError('ack is "auto" or "explicit", delivery "at-least-once" or "at-most-once"')
    whole(max_unacked, "max_unacked", 1, 1_000_000)


def start_fields(start: object) -> tuple[str, int]:
    """Return a subscription's start as the wire has it."""
    if isinstance(start, datetime):
        return "time", unix_us(start)
    if isinstance(start, str) and start in ("new", "earliest"):
        return start, 0
    if hasattr(start, "__index__") and not isinstance(start, bool):
        return "offset", whole(start, "an offset to start at")
    raise ValueError(f'start is "new", "earliest", an offset or a datetime, not {start!r}')


def options_of(
    shared: bool, order: str | None, lease_s: float | None, max_attempts: int | None, expires_s: float | None
) -> SubscriptionOptions:
    """Return a subscription's options, the usual ones where there is None; TypeError, ValueError or InvalidRequest for
    what it cannot be."""
    usual = SubscriptionOptions()
    options = SubscriptionOptions(
        bool(shared),
        "" if order is None else order,
        usual.lease_s if lease_s is None else seconds(lease_s, "lease_s"),
        usual.max_attempts if max_attempts is None else whole(max_attempts, "max_attempts"),
        usual.expires_s if expires_s is None else seconds(expires_s, "expires_s"),
    )
    check_options(options)
    return options


def check_same_use(topic: bytes, name: bytes, asked: SubscriptionOptions, found: SubscriptionOptions) -> None:
    """Raise InvalidRequest where a subscription that is there is used otherwise than asked for."""
    if (asked.shared, asked.order) != (found.shared, found.order):
        raise InvalidRequest(
            f"{to_text(name)} subscribes to {to_text(topic)} already, {_use(found)}, and not {_use(asked)};"
            " unsubscribe it first, or ask for what it is"
        )


def _use(options: SubscriptionOptions) -> str:
    if not options.shared:
        return "for one consumer at a time (shared=False)"
    return "shared" + (f' with order="{options.order}"' if options.order else " without order")
