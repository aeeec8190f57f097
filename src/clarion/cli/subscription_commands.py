"""`clarion subscribe`, `unsubscribe` and `subscriptions`: make subscriptions, see how far each is, move and end it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import confirm
from clarion.cli.command_options import (
    ListsNames,
    Start,
    SubscriberArgument,
    SubscriberName,
    Topic,
    TopicOrPattern,
    Yes,
    name_argument,
    option,
    read_duration_s,
    read_start,
)
from clarion.cli.output import (
    add_row,
    age,
    all_fields,
    console,
    counted,
    iso,
    plain_table,
    print_json,
    readable_duration,
)
from clarion.model.errors import NoTopic, NotSubscribed
from clarion.model.names import is_pattern, matches, to_text
from clarion.model.options import SubscriptionOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from clarion.admin import Admin, SubscriptionDescription
    from clarion.subscriber import SubscribeOutcome

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
@broker_command
def list_subscriptions(
    call: BrokerCall,
    topic: bytes | None = name_argument(
        None, "TOPIC", "Only those of this topic, or of the topics that match this pattern.", show_default="all"
    ),
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
    with call.admin() as admin:
        found = list(admin.subscriptions(topic))
    if call.as_json:
        for one in found:
            print_json(subscription_json(one))
    elif found:
        screen = console()
        with_topic = topic is None or len({one.topic for one in found}) > 1
        screen.print(subscriptions_table(found, with_topic=with_topic, width=screen.width))
    else:
        print("nobody subscribes" if topic is None else f"nobody subscribes to {to_text(topic)}")


@subscriptions_app.command("seek")
@broker_command
def seek(
    call: BrokerCall,
    topic: Topic,
    name: SubscriberArgument,
    to: str = option(
        ...,
        "--to WHERE",
        "Where it goes on: new (messages to come), earliest (message kept), an offset, or a time"
        " (2026-01-31T12:00:00Z; without a zone it is local time).",
    ),
    yes: Yes = False,
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
    with call.admin() as admin:
        before = admin.describe_subscription(topic, name)
        confirm(f"{_standing(before)}. Have it go on at {_place(to)}?", yes=yes)
        admin.seek(topic, name, start)
        after = admin.describe_subscription(topic, name)
    where = f"offset {after.cursor} of {to_text(topic)}"
    words = f"{to_text(name)} goes on at {where}, with {counted(after.lag, 'message')} to read"
    call.print(subscription_json(after), words)


@subscriptions_app.command("delete")
@broker_command
def delete(call: BrokerCall, topic: Topic, name: SubscriberArgument, yes: Yes = False) -> None:
    """End a subscription, as `clarion unsubscribe` does.

    What only it had not yet read is let go, so where there is something unread it
    asks first. Where there is no such subscription the exit code is 6.

    \b
    Examples:
      clarion subscriptions delete orders billing
      clarion subscriptions delete orders billing --yes
    """
    end_subscription(call, topic, name, yes=yes)


def end_subscription(call: BrokerCall, topic: bytes, name: bytes, *, yes: bool) -> None:
    """End a subscription to a topic or a pattern; a person is asked where messages would be let go unread."""
    with call.admin() as admin:
        if not yes and (standing := _unread(admin, topic, name)):
            confirm(f"{standing}. End it?", yes=yes)
        if not admin.unsubscribe(topic, name):
            raise NotSubscribed(f"{to_text(name)} does not subscribe to {to_text(topic)}; nothing changed")
    words = f"{to_text(name)} no longer subscribes to {to_text(topic)}"
    call.print({"topic": to_text(topic), "subscriber": to_text(name)}, words)


def _unread(admin: Admin, topic: bytes, name: bytes) -> str:
    """Return in words what a subscriber has not read on a topic, or on those of a pattern; "" where it has all."""
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


_PLAIN = SubscriptionOptions()
Order = StrEnum("Order", ["KEY"])  # in which a shared subscription is worked on


@broker_command
def subscribe(
    call: BrokerCall,
    topic: TopicOrPattern,
    name: SubscriberName,
    start: Start = "new",
    shared: bool = option(False, "--shared", "Many consumers at a time; each message goes to one of them."),
    order: Order | None = option(
        None, "--order", "With --shared: messages of one key are worked on one at a time, in order."
    ),
    lease_s: float | None = option(
        None,
        "--lease TIME",
        "With --shared: a consumer that shows no sign of life for so long loses its messages to others.",
        parser=read_duration_s,
        show_default=f"{_PLAIN.lease_s:g}s",
    ),
    max_attempts: int | None = option(
        None,
        "--max-attempts N|none",
        "With --shared: a message that failed so often goes to the dead letters.",
        show_default=str(_PLAIN.max_attempts),
    ),
    expires_s: float | None = option(
        None, "--expires TIME|never", "Ended by the broker when nobody used it for so long.", show_default="never"
    ),
) -> None:
    """Subscribe to a topic, from now on or from an earlier message on.

    The broker then keeps every message until this subscriber has read it. A
    subscription lasts until it is ended, whether anybody reads or not.
    Subscribing again changes nothing.

    At a broker with links it also says which other brokers have confirmed it: all
    that is put there from the offset told on comes. For that it waits a second at
    most; with the others it is in force as soon as they can be reached.

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
    with call.admin() as admin:
        made = admin.subscribe(
            topic, name, first, shared=shared, order="key" if order else None, lease_s=options.lease_s,
            max_attempts=options.max_attempts, expires_s=options.expires_s or None,
        )  # fmt: skip
    if made:
        which = f"every topic like {to_text(topic)}" if is_pattern(topic) else to_text(topic)
        more = f"; {words}" if (words := told_options(options)) else ""
        done = f"{to_text(name)} subscribes to {which}, start {start}{more}"
    else:
        done = f"{to_text(name)} subscribes to {to_text(topic)} already; nothing changed"
    if origins := told_origins(made):
        done += f"\n{origins}"
    facts = {
        "topic": to_text(topic),
        "subscriber": to_text(name),
        "new": made.is_new,
        "origins": [
            {"broker": broker, "offset": None if offset < 0 else offset} for broker, offset in made.origins.items()
        ],
        "unconfirmed": list(made.unconfirmed),
        "reasons": made.reasons,
    }
    call.print(facts, done)


@broker_command
def unsubscribe(call: BrokerCall, topic: TopicOrPattern, name: SubscriberName, yes: Yes = False) -> None:
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
    end_subscription(call, topic, name, yes=yes)


def told_origins(made: SubscribeOutcome) -> str:
    """Return in words which linked brokers have confirmed a subscription, and which not; "" where there are none."""
    confirmed = ", ".join(
        f"{broker} (from offset {offset})" if offset >= 0 else broker for broker, offset in made.origins.items()
    )
    parts = [f"confirmed by {confirmed}"] if confirmed else []
    if waited := [broker for broker in made.unconfirmed if broker not in made.reasons]:
        parts.append(f"not yet by {', '.join(waited)}")
    parts += [f"not by {broker}: {why}" for broker, why in made.reasons.items()]
    return "; ".join(parts)


def told_options(options: SubscriptionOptions) -> str:
    """Return in words how a subscription is used, where that is not the plain way."""
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


_NUMBERS_OF_SUBSCRIPTIONS = ("lag", "consumers", "leased", "returned", "oldest unacked", "oldest")
_WIDE_SUBSCRIPTIONS = 110  # columns


def subscription_json(told: SubscriptionDescription) -> dict[str, Any]:
    """Return everything about a subscription as JSON."""
    return {
        "topic": to_text(told.topic),
        "subscriber": to_text(told.name),
        "cursor": told.cursor,
        "lag": told.lag,
        "acked_ranges_above_cursor": told.acked_ranges,
        "consumers": told.consumers,
        "leased": told.leased,
        "returned": told.returned,
        "oldest_unacked_at": iso(told.oldest_unacked_at),
        "seen_at": iso(told.seen_at),
        "options": all_fields(told.options),
    }


def kind_of(options: SubscriptionOptions) -> str:
    """Return in short how a subscription is used."""
    if not options.shared:
        return "exclusive"
    return f"shared by {options.order}" if options.order else "shared"


def subscriptions_table(told: Sequence[SubscriptionDescription], *, with_topic: bool, width: int) -> Table:
    """Return the table of subscriptions, for people; on a wide screen it says more."""
    wide = width >= _WIDE_SUBSCRIPTIONS
    names = ["topic"] if with_topic else []
    rest = ["kind", "lag", "oldest unacked" if wide else "oldest", "consumers", "leased", "returned"]
    more = ["expires"] if wide else []
    table = plain_table([*names, "subscriber", *rest, *more], _NUMBERS_OF_SUBSCRIPTIONS)
    for column in table.columns[len(names) + 1 :]:
        column.no_wrap = True
    for one in told:
        shared, expires_s = one.options.shared, one.options.expires_s
        cells = [
            to_text(one.name),
            kind_of(one.options),
            f"{one.lag:,}",
            age(one.oldest_unacked_at),
            f"{one.consumers:,}" if shared else "",
            f"{one.leased:,}" if shared else "",
            f"{one.returned:,}" if shared else "",
        ]
        if wide:
            cells.append(f"unused for {readable_duration(expires_s)}" if expires_s else "never")
        add_row(table, *([to_text(one.topic)] if with_topic else []), *cells)
    return table
