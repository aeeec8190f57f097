"""What a caller may choose, checked, and as the wire has it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from clarion.model.errors import InvalidRequest
from clarion.model.names import to_text
from clarion.model.options import SubscriptionOptions, check_options
from clarion.wire.moments import unix_us

Start = Literal["new", "earliest"] | int | datetime
AckMode = Literal["auto", "explicit"]
Delivery = Literal["at-least-once", "at-most-once"]
Order = Literal["key"]


def check_choices(name: object, ack: str, delivery: str, max_unacked: int) -> None:
    """Raise ValueError for what is no choice of a subscriber."""
    if not name:
        raise ValueError("a subscriber has a name: it is how the broker knows what it has read")
    if ack not in ("auto", "explicit") or delivery not in ("at-least-once", "at-most-once"):
        raise ValueError('ack is "auto" or "explicit", delivery "at-least-once" or "at-most-once"')
    if not 1 <= max_unacked <= 1_000_000:
        raise ValueError(f"max_unacked is 1 to 1000000, not {max_unacked}")


def start_fields(start: object) -> tuple[str, int]:
    """Give a subscription's start as the wire has it."""
    if isinstance(start, datetime):
        return "time", unix_us(start)
    if isinstance(start, int):
        return "offset", start
    if start in ("new", "earliest"):
        return str(start), 0
    raise ValueError(f'start is "new", "earliest", an offset or a datetime, not {start!r}')


def options_of(
    shared: bool, order: str | None, lease_s: float, max_attempts: int, expires_s: float | None
) -> SubscriptionOptions:
    """Give a subscription's options; raises InvalidRequest for what it cannot be."""
    options = SubscriptionOptions(shared, order or "", lease_s, max_attempts, expires_s or 0.0)
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
