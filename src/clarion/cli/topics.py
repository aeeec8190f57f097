"""`clarion topics`: list topics, make them, and set what they keep."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.failures import asking, tells_errors
from clarion.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, AsJson, Timeout, Topic, Url
from clarion.cli.output import add_row, console, plain_table, print_json, readable_bytes
from clarion.model.names import to_text

if TYPE_CHECKING:
    from clarion.wire.bodies import TopicRow

topics_app = typer.Typer(invoke_without_command=True)
_NUMBERS = ("messages", "size", "next offset")


class Retention(StrEnum):
    """What a topic keeps."""

    UNTIL_READ = "until-read"
    KEEP = "keep"


@topics_app.callback()
@tells_errors
def topics(
    context: typer.Context,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """List topics and their subscriptions, or make a topic.

    A topic is made by the first subscribe or put; make it yourself to choose what
    it keeps. For each subscription the table says how many messages it has not
    yet read.

    \b
    Examples:
      clarion topics
      clarion topics --json
      clarion topics create audit --retention keep
    """
    if context.invoked_subcommand is not None:
        return
    from clarion.admin import Admin

    with asking(url), Admin(url, timeout_s=timeout_s) as admin:
        rows = list(admin.topics())
    if as_json:
        print_json([describe_topic(row) for row in rows])
    elif rows:
        _print_table(rows)
    else:
        print("no topics yet; the first subscribe or put makes one: clarion subscribe alerts --as reader")


@topics_app.command("create")
@tells_errors
def create(
    topic: Topic,
    retention: Annotated[
        Retention,
        typer.Option("--retention", help="until-read: until every subscriber has it. keep: for ever, read or not."),
    ],
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Make a topic, or change what an existing one keeps.

    With until-read (as topics are when nobody says otherwise) a message goes when
    every subscriber has read it, and a put where nobody subscribes is refused.
    With keep everything stays, and later subscribers can start anywhere.

    \b
    Examples:
      clarion topics create audit --retention keep
      clarion topics create alerts --retention until-read
    """
    from clarion.admin import Admin

    with asking(url), Admin(url, timeout_s=timeout_s) as admin:
        admin.configure_topic(topic, retention=retention.value)
    if as_json:
        print_json({"topic": to_text(topic), "retention": retention.value})
    else:
        kept = "everything" if retention is Retention.KEEP else "messages until every subscriber has read them"
        print(f"{to_text(topic)} keeps {kept}")


def describe_topic(row: TopicRow) -> dict[str, Any]:
    """Give a topic as JSON shows it. Acked above the cursor are ranges, so `unread` is an upper bound then."""
    return {
        "topic": to_text(row.topic),
        "retention": row.retention,
        "messages": row.next_offset - row.first_offset,
        "first_offset": row.first_offset,
        "next_offset": row.next_offset,
        "stored_bytes": row.stored_bytes,
        "subscriptions": [
            {
                "subscriber": to_text(name),
                "cursor": cursor,
                "unread": max(0, row.next_offset - cursor),
                "acked_ranges_above_cursor": ranges,
            }
            for name, cursor, ranges in row.subscriptions
        ],
    }


def _print_table(rows: list[TopicRow]) -> None:
    table = plain_table(["topic", "keeps", "messages", "size", "next offset", "subscribers (unread)"], _NUMBERS)
    for row in rows:
        told = describe_topic(row)
        readers = [f"{reader['subscriber']} ({reader['unread']:,})" for reader in told["subscriptions"]]
        add_row(
            table,
            told["topic"],
            row.retention,
            f"{told['messages']:,}",
            readable_bytes(row.stored_bytes),
            f"{row.next_offset:,}",
            ", ".join(readers) or "nobody",
        )
    console().print(table)
