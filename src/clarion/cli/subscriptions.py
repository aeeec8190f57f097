"""`clarion subscribe` and `clarion unsubscribe`."""

from __future__ import annotations

from clarion.cli.failures import asking, tells_errors
from clarion.cli.options import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    AsJson,
    Start,
    SubscriberName,
    Timeout,
    Topic,
    Url,
    read_start,
)
from clarion.cli.output import print_json
from clarion.model.errors import NotSubscribed
from clarion.model.names import to_text


@tells_errors
def subscribe(
    topic: Topic,
    name: SubscriberName,
    start: Start = "new",
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
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
    """
    from clarion.subscriber import Subscriber

    first = read_start(start)
    with asking(url), Subscriber(url, name, timeout_s=timeout_s) as reader:
        is_new = reader.subscribe(topic, first)
    if as_json:
        print_json({"topic": to_text(topic), "subscriber": to_text(name), "new": is_new})
    elif is_new:
        print(f"{to_text(name)} subscribes to {to_text(topic)}, start {start}")
    else:
        print(f"{to_text(name)} subscribes to {to_text(topic)} already; nothing changed")


@tells_errors
def unsubscribe(
    topic: Topic,
    name: SubscriberName,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """End a subscription: what only it had not yet read is let go.

    Where there is no such subscription the exit code is 6.

    \b
    Example:
      clarion unsubscribe alerts --as reader
    """
    from clarion.subscriber import Subscriber

    with asking(url), Subscriber(url, name, timeout_s=timeout_s) as reader:
        if not reader.unsubscribe(topic):
            raise NotSubscribed(f"{to_text(name)} does not subscribe to {to_text(topic)}; nothing changed")
    if as_json:
        print_json({"topic": to_text(topic), "subscriber": to_text(name)})
    else:
        print(f"{to_text(name)} no longer subscribes to {to_text(topic)}")
