"""`clarion topics`: list topics, tell everything about one, make and change them, purge and delete them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import confirm, note
from clarion.cli.command_options import ListsByDefault, Topic, Yes, option, with_options
from clarion.cli.output import (
    age,
    all_fields,
    console,
    counted,
    iso,
    local_time,
    print_json,
    readable_bytes,
    readable_duration,
    table_of,
)
from clarion.cli.subscription_commands import subscription_json, subscriptions_table
from clarion.model.errors import NoTopic
from clarion.model.names import shell_name, to_text
from clarion.model.options import KEEP, TRIM, TopicSettings

if TYPE_CHECKING:
    from clarion.admin import TopicDescription
    from clarion.wire.bodies import TopicRow

Retention = StrEnum("Retention", {"UNTIL_READ": "until-read", "KEEP": "keep"})
AtBound = StrEnum("AtBound", ["REFUSE", "TRIM"])
Sort = StrEnum("Sort", ["NAME", "SIZE", "MESSAGES"])  # by what topics are listed
_KEEPS = (
    "until-read: until every subscriber has it, as topics are where nobody says otherwise."
    " keep: read or not, within --max-age and --max-size."
)
_OVERTAKES = (
    "Where a bound would overtake a subscriber. refuse: puts must wait. trim: the oldest go, and readers are"
    " told what they missed."
)
# What a topic may be set to, by the names that `Admin.configure_topic` has for it.
_SETTINGS = (
    ("retention", Retention | None, option(None, "--retention", _KEEPS)),
    ("max_age_s", float | None, option(None, "--max-age TIME|none", "With keep: older messages go (7d).")),
    ("max_bytes", int | None, option(None, "--max-size SIZE|none", "Bytes of messages it holds (10GB).")),
    ("at_bound", AtBound | None, option(None, "--at-bound", _OVERTAKES)),
    ("ttl_s", float | None, option(None, "--ttl TIME|none", "Messages expire so long after they were put (1h).")),
    ("max_batch_bytes", int | None, option(None, "--max-batch SIZE|none", "Bytes of a batch, and so of a message.")),
    ("max_subscriptions", int | None, option(None, "--max-subscriptions N|none", "So many subscribe.")),
)

_HELP = """List topics, make and change them, purge and delete them.

`clarion topics` alone lists them, as `clarion topics list` does.

\b
Examples:
  clarion topics
  clarion topics --sort size --json
  clarion topics create audit --retention keep --max-age 30d --max-size 10GB
  clarion topics configure audit --at-bound trim
  clarion topics describe audit
  clarion topics purge audit
  clarion topics delete audit
"""

topics_app = typer.Typer(cls=ListsByDefault, help=_HELP)
_NUMBERS = ("messages", "size", "next offset")


@topics_app.command("list")
@broker_command
def list_topics(call: BrokerCall, sort: Sort = option(Sort.NAME, "--sort", "By name, or the largest first.")) -> None:
    """List topics, what they take on disk, and their subscribers.

    For each subscriber the table says how many messages it has not yet read. With
    --json there is an object a line.

    \b
    Examples:
      clarion topics
      clarion topics list --sort size
      clarion topics --json | jq -r 'select(.stored_bytes > 1000000) | .topic'
    """
    with call.admin() as admin:
        rows = list(admin.topics())
    if sort is not Sort.NAME:
        rows.sort(key=lambda row: _weight(row, sort), reverse=True)
    if call.as_json:
        for row in rows:
            print_json(row_json(row))
    elif rows:
        _print_table(rows)
    else:
        print("no topics yet; the first subscribe makes one: clarion subscribe alerts --as reader")


@topics_app.command("describe")
@broker_command
def describe(call: BrokerCall, topic: Topic) -> None:
    """Tell everything about a topic and its subscriptions.

    \b
    Examples:
      clarion topics describe orders
      clarion topics describe orders --json | jq '.subscriptions[].lag'
    """
    with call.admin() as admin:
        told = admin.describe_topic(topic)
    if call.as_json:
        print_json(topic_json(told))
    else:
        _print_description(told)


@topics_app.command("create")
@broker_command
@with_options(_SETTINGS)
def create(call: BrokerCall, topic: Topic, **settings: Any) -> None:
    """Make a topic, or change what an existing one keeps.

    With until-read a message goes when every subscriber has read it, and a put
    where nobody subscribes is refused. With keep messages stay, for ever or
    within bounds, and later subscribers can start anywhere.

    \b
    Examples:
      clarion topics create alerts
      clarion topics create audit --retention keep
      clarion topics create readings --retention keep --max-age 7d --at-bound trim
      clarion topics create orders --max-size 10GB --ttl 1d
    """
    _configure(call, topic, settings)


@topics_app.command("configure")
@broker_command
@with_options(_SETTINGS)
def configure(call: BrokerCall, topic: Topic, **settings: Any) -> None:
    """Change what a topic keeps, and its limits.

    What is not named stays as it is; none takes a bound away. Where there is no
    such topic the exit code is 9.

    \b
    Examples:
      clarion topics configure audit --max-age 30d --max-size 10GB
      clarion topics configure audit --max-age none
      clarion topics configure readings --at-bound trim
      clarion topics configure alerts --ttl 1h --max-subscriptions 20
    """
    if all(setting is None for setting in settings.values()):
        raise typer.BadParameter("say what to change, as --max-age 7d; `clarion topics describe` tells what it is now")
    _configure(call, topic, settings, must_exist=True)


@topics_app.command("purge")
@broker_command
def purge(
    call: BrokerCall,
    topic: Topic,
    below: int | None = option(None, "--below OFFSET", "Only messages below this offset.", show_default="all"),
    yes: Yes = False,
) -> None:
    """Forget a topic's messages, read or not.

    They count as read for every subscriber. The topic and its subscriptions stay.
    Messages are stored in batches and go in batches: one that reaches beyond
    --below stays stored until the rest of it goes.

    \b
    Examples:
      clarion topics purge alerts
      clarion topics purge audit --below 120000 --yes
    """
    name = to_text(topic)
    with call.admin() as admin:
        told = admin.describe_topic(topic)
        which = "all messages" if below is None else f"those below offset {below}"
        confirm(f"{name} has {_holdings(told)}. Forget {which} for good?", yes=yes)
        messages = admin.purge(topic, below)
        after = admin.describe_topic(topic)
    if call.as_json:
        print_json({"topic": name, "purged": messages})
    elif below is not None and after.first_offset < min(below, told.next_offset):
        print(f"{counted(messages, 'message')} of {name} count as read by everybody")
        note(f"a batch that reaches beyond offset {below} stays stored, whole, until the rest of it goes")
    else:
        print(f"{counted(messages, 'message')} of {name} forgotten")


@topics_app.command("delete")
@broker_command
def delete(call: BrokerCall, topic: Topic, yes: Yes = False) -> None:
    """Forget a topic with its messages and its subscriptions.

    \b
    Examples:
      clarion topics delete alerts
      clarion topics delete alerts --yes
    """
    name = to_text(topic)
    with call.admin() as admin:
        told = admin.describe_topic(topic)
        confirm(f"{name} has {_holdings(told)}. Delete it for good, with all of that?", yes=yes)
        admin.delete_topic(topic)
    call.print({"topic": name, "deleted": True}, f"{name} is gone")


def _weight(row: TopicRow, sort: Sort) -> int:
    return row.stored_bytes if sort is Sort.SIZE else row.next_offset - row.first_offset


def _holdings(told: TopicDescription) -> str:
    readers = ", ".join(to_text(one.name) for one in told.subscriptions[:5])
    more = ", …" if len(told.subscriptions) > 5 else ""
    subscriptions = counted(len(told.subscriptions), "subscription") + (f" ({readers}{more})" if readers else "")
    return f"{counted(told.messages, 'message')} ({readable_bytes(told.stored_bytes)}) and {subscriptions}"


def _configure(call: BrokerCall, topic: bytes, settings: dict[str, Any], *, must_exist: bool = False) -> None:
    with call.admin() as admin:
        try:
            if must_exist:
                admin.describe_topic(topic)
        except NoTopic:
            raise NoTopic(
                f"there is no topic {to_text(topic)}; make it: clarion topics create {shell_name(topic)}"
            ) from None
        admin.configure_topic(topic, **settings)
        told = admin.describe_topic(topic)
    words = f"{to_text(told.topic)} keeps {settings_words(told.retention, told.settings)}"
    call.print(topic_json(told), words)


def _print_description(told: TopicDescription) -> None:
    screen = console()
    facts = [("topic", to_text(told.topic)), ("keeps", settings_words(told.retention, told.settings))]
    offsets = f", offsets {told.first_offset} to {told.next_offset - 1}" if told.messages else ""
    facts.append(("messages", f"{told.messages:,} ({readable_bytes(told.stored_bytes)}){offsets}"))
    if told.oldest_at is not None:
        facts.append(("oldest", f"{local_time(told.oldest_at)}, {age(told.oldest_at)} ago"))
    facts.append(("next offset", str(told.next_offset)))
    if told.staged_messages:
        staged = f"{told.staged_messages:,} ({readable_bytes(told.staged_bytes)}), staged or delayed"
        facts.append(("to come", staged))
    screen.print(table_of(["", ""], facts, show_header=False))
    screen.print()
    if told.subscriptions:
        screen.print(subscriptions_table(told.subscriptions, with_topic=False, width=screen.width))
    else:
        screen.print("nobody subscribes")


def _print_table(rows: list[TopicRow]) -> None:
    cells = []
    for row in rows:
        told = row_json(row)
        readers = [f"{reader['subscriber']} ({reader['lag']:,})" for reader in told["subscriptions"]]
        size, offset = readable_bytes(row.stored_bytes), f"{row.next_offset:,}"
        kept = keeps(row.retention, settings_of(row))
        cells.append((told["topic"], kept, f"{told['messages']:,}", size, offset, ", ".join(readers) or "nobody"))
    screen = console()
    screen.print(table_of(["topic", "keeps", *_NUMBERS, "subscribers (unread)"], cells, _NUMBERS))
    if len(rows) > 1:
        total = sum(row.stored_bytes for row in rows)
        screen.print(f"\n{counted(len(rows), 'topic')}, {readable_bytes(total)}")


def row_json(row: TopicRow) -> dict[str, Any]:
    """Return a topic as JSON lists it. Where some above the cursor are acked, `lag` is an upper bound."""
    readers = [
        {
            "subscriber": to_text(name),
            "shared": name in row.shared,
            "cursor": cursor,
            "lag": max(0, row.next_offset - cursor),
            "acked_ranges_above_cursor": ranges,
        }
        for name, cursor, ranges in row.subscriptions
    ]
    return {**_holds_json(row, settings_of(row)), "subscriptions": readers}


def _holds_json(told: TopicRow | TopicDescription, settings: TopicSettings) -> dict[str, Any]:
    return {
        "topic": to_text(told.topic),
        "retention": told.retention,
        "settings": all_fields(settings),
        "messages": told.next_offset - told.first_offset,
        "first_offset": told.first_offset,
        "next_offset": told.next_offset,
        "stored_bytes": told.stored_bytes,
    }


def settings_of(row: TopicRow) -> TopicSettings:
    """Return the settings of a topic that was listed; those that a newer broker knows are left out."""
    return TopicSettings(
        **{name: row.settings[name] for name in TopicSettings.__struct_fields__ if name in row.settings}
    )


def topic_json(told: TopicDescription) -> dict[str, Any]:
    """Return everything about a topic as JSON."""
    return {
        **_holds_json(told, told.settings),
        "staged_messages": told.staged_messages,
        "staged_bytes": told.staged_bytes,
        "oldest_at": iso(told.oldest_at),
        "subscriptions": [subscription_json(one) for one in told.subscriptions],
    }


def keeps(retention: str, settings: TopicSettings) -> str:
    """Return in short what a topic keeps: keep 7d 10.0 GB trim."""
    words = [retention]
    if retention == KEEP and settings.max_age_s:
        words.append(readable_duration(settings.max_age_s))
    if settings.max_bytes:
        words.append(readable_bytes(settings.max_bytes))
    if len(words) > 1 and settings.at_bound == TRIM:
        words.append(TRIM)
    return " ".join(words)


def settings_words(retention: str, settings: TopicSettings) -> str:
    """Return in a sentence what a topic keeps, and what else it is set to."""
    bounds = []
    if retention == KEEP and settings.max_age_s:
        bounds.append(f"for {readable_duration(settings.max_age_s)}")
    if settings.max_bytes:
        bounds.append(f"up to {readable_bytes(settings.max_bytes)}")
    kept = "messages until every subscriber has read them" if retention != KEEP else "messages, read or not"
    if retention == KEEP and not bounds:
        kept = "everything"
    words = [", ".join([kept, *bounds])]
    if bounds:
        refused = "puts are refused where a bound would overtake a subscriber"
        words.append("at a bound the oldest go, read or not" if settings.at_bound == TRIM else refused)
    if settings.ttl_s:
        words.append(f"messages expire after {readable_duration(settings.ttl_s)} where the put does not say otherwise")
    if settings.max_batch_bytes:
        words.append(f"a batch has at most {readable_bytes(settings.max_batch_bytes)}")
    if settings.max_subscriptions:
        words.append(f"at most {settings.max_subscriptions:,} subscribe")
    return "; ".join(words)
