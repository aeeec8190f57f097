"""`clarion subscribe` and `clarion unsubscribe`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from clarion.cli.consent import Yes
from clarion.cli.failures import asking, tells_errors
from clarion.cli.options import (
    DEFAULT_TIMEOUT,
    DEFAULT_URL,
    AsJson,
    Start,
    SubscriberName,
    Timeout,
    TopicOrPattern,
    Url,
    read_start,
)
from clarion.cli.output import counted, print_json
from clarion.cli.subscriptions import end_subscription
from clarion.cli.units import read_bound_s, read_count, read_duration_s, readable_duration
from clarion.model.names import is_pattern, to_text
from clarion.model.options import SubscriptionOptions

_PLAIN = SubscriptionOptions()


class Order(StrEnum):
    """In which order a shared subscription is worked on."""

    KEY = "key"


@tells_errors
def subscribe(
    topic: TopicOrPattern,
    name: SubscriberName,
    start: Start = "new",
    shared: Annotated[
        bool, typer.Option("--shared", help="Many consumers at a time; each message goes to one of them.")
    ] = False,
    order: Annotated[
        Order | None,
        typer.Option("--order", help="With --shared: messages of one key are worked on one at a time, in order."),
    ] = None,
    lease_s: Annotated[
        float | None,
        typer.Option(
            "--lease",
            parser=read_duration_s,
            metavar="TIME",
            help="With --shared: a consumer that shows no sign of life for so long loses its messages to others.",
            show_default=f"{_PLAIN.lease_s:g}s",
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            parser=read_count,
            metavar="N|none",
            help="With --shared: a message that failed so often goes to the dead letters.",
            show_default=str(_PLAIN.max_attempts),
        ),
    ] = None,
    expires_s: Annotated[
        float | None,
        typer.Option(
            "--expires",
            parser=read_bound_s,
            metavar="TIME|never",
            help="Ended by the broker when nobody used it for so long.",
            show_default="never",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Subscribe to a topic, from now on or from an earlier message on.

    The broker then keeps every message until this subscriber has read it. A
    subscription lasts until it is ended, whether anybody reads or not.
    Subscribing again changes nothing.

    \b
    Examples:
      clarion subscribe alerts --as reader
      clarion subscribe alerts --as auditor --start earliest
      clarion subscribe alerts --as replay --start 2026-01-31T12:00:00Z
      clarion subscribe jobs --as workers --shared --lease 30s --max-attempts 3
      clarion subscribe orders --as billing --shared --order key
      clarion subscribe 'alerts/*' --as night-watch --expires 7d

    A topic may be a pattern over names that look like paths: * stands for one
    part, # at the end for all that follow. It takes in all topics that match, and
    those that come later. Quote it, or the shell takes it for file names.
    """
    first = read_start(start)
    if not shared and (order or lease_s is not None or max_attempts is not None):
        raise typer.BadParameter("--order, --lease and --max-attempts are for subscriptions that are --shared")
    options = SubscriptionOptions(
        shared,
        order.value if order else "",
        _PLAIN.lease_s if lease_s is None else lease_s,
        _PLAIN.max_attempts if max_attempts is None else max_attempts,
        expires_s or 0.0,
    )
    with asking(url, timeout_s) as admin:
        is_new = admin.subscribe(
            topic, name, first, shared=shared, order="key" if order else None, lease_s=options.lease_s,
            max_attempts=options.max_attempts, expires_s=options.expires_s or None,
        )  # fmt: skip
    if as_json:
        print_json({"topic": to_text(topic), "subscriber": to_text(name), "new": is_new})
    elif is_new:
        which = f"every topic like {to_text(topic)}" if is_pattern(topic) else to_text(topic)
        more = f"; {words}" if (words := told_options(options)) else ""
        print(f"{to_text(name)} subscribes to {which}, start {start}{more}")
    else:
        print(f"{to_text(name)} subscribes to {to_text(topic)} already; nothing changed")


@tells_errors
def unsubscribe(
    topic: TopicOrPattern,
    name: SubscriberName,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """End a subscription: what only it had not yet read is let go.

    Where there are messages that it has not read, it says how many and asks
    first; a script says --yes, or the exit code is 2. Ending a pattern ends what
    it subscribed to. Where there is no such subscription the exit code is 6.

    \b
    Examples:
      clarion unsubscribe alerts --as reader
      clarion unsubscribe alerts --as reader --yes
      clarion unsubscribe 'alerts/*' --as night-watch
    """
    end_subscription(topic, name, url, timeout_s, yes=yes, as_json=as_json)


def told_options(options: SubscriptionOptions) -> str:
    """Tell in words how a subscription is used, where that is not the plain way."""
    words = []
    if options.shared:
        words.append("shared: each message goes to one consumer")
        words.append(f"taken back after {readable_duration(options.lease_s)} without a sign of life")
        if options.max_attempts:
            words.append(f"given up after {counted(options.max_attempts, 'attempt')}")
        if options.order:
            words.append("one at a time for each key")
    if options.expires_s:
        words.append(f"ended when not used for {readable_duration(options.expires_s)}")
    return ", ".join(words)
