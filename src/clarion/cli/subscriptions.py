"""`clarion subscriptions`: how far everybody is, and moving or ending a subscription."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.consent import Yes, make_sure
from clarion.cli.describing import age, subscription_json, subscriptions_table
from clarion.cli.failures import asking, tells_errors
from clarion.cli.listing import ListsNames
from clarion.cli.options import (
    DEFAULT_TIMEOUT,
    DEFAULT_URL,
    AsJson,
    SubscriberArgument,
    Timeout,
    Topic,
    Url,
    read_name,
    read_start,
)
from clarion.cli.output import console, counted, print_json
from clarion.model.errors import NoTopic, NotSubscribed
from clarion.model.names import is_pattern, matches, to_text

if TYPE_CHECKING:
    from clarion.admin import Admin, SubscriptionDescription

_HELP = """List subscriptions, have one go on elsewhere, or end one.

`clarion subscriptions` and `clarion subscriptions TOPIC` list, as `clarion
subscriptions list` does. Subscribe with `clarion subscribe`.

\b
Examples:
  clarion subscriptions
  clarion subscriptions orders
  clarion subscriptions seek orders billing --to earliest
  clarion subscriptions delete orders billing
"""
subscriptions_app = typer.Typer(cls=ListsNames, help=_HELP)


@subscriptions_app.command("list")
@tells_errors
def list_subscriptions(
    topic: Annotated[
        bytes | None,
        typer.Argument(
            parser=read_name,
            metavar="TOPIC",
            help="Only those of this topic, or of the topics that match this pattern.",
            show_default="all",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """List subscriptions: who is behind, and who works on what.

    \b
    lag             messages not acked yet
    oldest unacked  how long ago the first of them was put
    consumers       of a shared subscription, at the moment
    leased          messages that these hold
    returned        messages given back, to be tried again
    expires         ended by the broker when nobody used it for so long

    \b
    Examples:
      clarion subscriptions
      clarion subscriptions orders
      clarion subscriptions 'alerts/#'
      clarion subscriptions --json | jq -r 'select(.lag > 1000) | .subscriber'
    """
    with asking(url, timeout_s) as admin:
        found = list(admin.subscriptions(topic))
    if as_json:
        for one in found:
            print_json(subscription_json(one))
    elif found:
        screen = console()
        with_topic = topic is None or len({one.topic for one in found}) > 1
        screen.print(subscriptions_table(found, with_topic=with_topic, width=screen.width))
    else:
        print("nobody subscribes" if topic is None else f"nobody subscribes to {to_text(topic)}")


@subscriptions_app.command("seek")
@tells_errors
def seek(
    topic: Topic,
    name: SubscriberArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="Where it goes on: new (messages to come), earliest (message kept), an offset, or a time"
            " (2026-01-31T12:00:00Z; without a zone it is local time).",
        ),
    ],
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Have a subscription go on elsewhere.

    What lies before counts as read, and what lies after comes, or comes again.
    Consumers that run follow by themselves; what they hold they can no longer
    ack. Messages that no subscriber needs any more may be gone for good.

    \b
    Examples:
      clarion subscriptions seek orders billing --to earliest
      clarion subscriptions seek orders billing --to new --yes
      clarion subscriptions seek orders billing --to 120000
      clarion subscriptions seek orders billing --to 2026-01-31T12:00:00Z
    """
    start = read_start(to, "--to")
    with asking(url, timeout_s) as admin:
        before = admin.describe_subscription(topic, name)
        make_sure(f"{_standing(before)}. Have it go on at {_place(to)}?", yes=yes)
        admin.seek(topic, name, start)
        after = admin.describe_subscription(topic, name)
    if as_json:
        print_json(subscription_json(after))
    else:
        where = f"offset {after.cursor} of {to_text(topic)}"
        print(f"{to_text(name)} goes on at {where}, with {counted(after.lag, 'message')} to read")


@subscriptions_app.command("delete")
@tells_errors
def delete(
    topic: Topic,
    name: SubscriberArgument,
    yes: Yes = False,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """End a subscription, as `clarion unsubscribe` does.

    What only it had not yet read is let go, so where there is something unread it
    asks first. Where there is no such subscription the exit code is 6.

    \b
    Examples:
      clarion subscriptions delete orders billing
      clarion subscriptions delete orders billing --yes
    """
    end_subscription(topic, name, url, timeout_s, yes=yes, as_json=as_json)


def end_subscription(topic: bytes, name: bytes, url: str, timeout_s: float, *, yes: bool, as_json: bool) -> None:
    """End a subscription to a topic or a pattern; a person is asked where messages would be let go unread."""
    with asking(url, timeout_s) as admin:
        if not yes and (standing := _unread(admin, topic, name)):
            make_sure(f"{standing}. End it?", yes=yes)
        if not admin.unsubscribe(topic, name):
            raise NotSubscribed(f"{to_text(name)} does not subscribe to {to_text(topic)}; nothing changed")
    if as_json:
        print_json({"topic": to_text(topic), "subscriber": to_text(name)})
    else:
        print(f"{to_text(name)} no longer subscribes to {to_text(topic)}")


def _unread(admin: Admin, topic: bytes, name: bytes) -> str:
    """Tell what a subscriber has not read on a topic, or on those that match a pattern; nothing where it has all."""
    behind = []
    for row in admin.topics() if is_pattern(topic) else ():
        rows = (cursor for reader, cursor, _ranges in row.subscriptions if reader == name)
        if matches(topic, row.topic) and any(cursor < row.next_offset for cursor in rows):
            behind.append(row.topic)
    found = []
    for one in behind if is_pattern(topic) else [topic]:
        try:
            found.append(admin.describe_subscription(one, name))
        except (NoTopic, NotSubscribed):  # never was, or is no more
            continue
    found = [told for told in found if told.lag]
    if len(found) > 1:
        unread = counted(sum(told.lag for told in found), "message")
        return f"{to_text(name)} has not read {unread} on {len(found):,} topics like {to_text(topic)}"
    return _standing(found[0]) if found else ""


def _standing(told: SubscriptionDescription) -> str:
    name, topic = to_text(told.name), to_text(told.topic)
    if not told.lag:
        return f"{name} has read everything on {topic}"
    since = f", the oldest {age(told.oldest_unacked_at)} old" if told.oldest_unacked_at else ""
    return f"{name} has not read {counted(told.lag, 'message')} on {topic}{since}"


def _place(to: str) -> str:
    words = {"new": "new messages", "end": "new messages", "earliest": "the earliest message kept"}
    return words.get(to) or (f"offset {to}" if to.isdigit() else to)
