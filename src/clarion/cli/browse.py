"""`clarion browse`: look at a topic's messages without a subscription."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clarion.cli.exit_codes import ExitCode
from clarion.cli.failures import asking, end_cleanly_on_sigterm, note, tells_errors
from clarion.cli.options import DEFAULT_TIMEOUT, DEFAULT_URL, AsJson, Timeout, Topic, Url
from clarion.cli.output import add_row, console, plain_table, standard_output
from clarion.cli.units import read_number, read_some
from clarion.model.errors import MessagesUnreadable
from clarion.model.names import to_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clarion.admin import Admin
    from clarion.subscriber import Message

_AT_ONCE = 1000
_SHOWN = 100  # characters of a payload in the table


@tells_errors
def browse(
    topic: Topic,
    position: Annotated[
        str,
        typer.Option("--from", metavar="OFFSET|earliest", help="First message to show."),
    ] = "earliest",
    last: Annotated[
        int | None, typer.Option("--last", parser=read_some, metavar="N", help="Show the newest so many instead.")
    ] = None,
    most: Annotated[int, typer.Option("--max", parser=read_some, metavar="N", help="End after so many.")] = 100,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Look at a topic's messages without a subscription.

    Nothing changes: whoever subscribes gets them all the same. Only what the
    topic still holds can be seen. With --json each line is as in `clarion get`.

    \b
    Examples:
      clarion browse orders
      clarion browse orders --last 10
      clarion browse orders --from 120000 --max 20
      clarion browse audit --max 1000000 --json > audit.jsonl

    Where there are no messages nothing is printed and the exit code is 3. Where
    those at the offset are no longer kept, the error says which there are.
    """
    start = read_position(position)
    if last is not None and start != "earliest":
        raise typer.BadParameter("give --from or --last, not both")
    end_cleanly_on_sigterm()
    with asking(url, timeout_s) as admin:
        if last is not None:
            told = admin.describe_topic(topic)
            start = max(told.first_offset, told.next_offset - last)
            most = last
        messages = islice(_readable(admin, topic, start), most)
        printed = 0
        while some := list(islice(messages, _AT_ONCE)):
            _print(some, as_json=as_json, with_header=not printed)
            printed += len(some)
    if not printed:
        raise typer.Exit(ExitCode.NOTHING_THERE)


def _readable(admin: Admin, topic: bytes, start: int | Literal["earliest"]) -> Iterator[Message]:
    """Give the messages from there on; what nobody can open is told, and passed over."""
    while True:
        try:
            yield from admin.browse(topic, start)
            return
        except MessagesUnreadable as told:
            start, name = told.stop, to_text(told.topic)
            note(f"{told}; going on after them", code=type(told).__name__, topic=name, start=told.start, stop=told.stop)


def read_position(text: str) -> int | Literal["earliest"]:
    """Read where to begin."""
    if text == "earliest":
        return "earliest"
    try:
        return read_number(text)
    except typer.BadParameter:
        raise typer.BadParameter(f"it is an offset like 1200, or earliest, not {text!r}", param_hint="--from") from None


def _print(messages: list[Message], *, as_json: bool, with_header: bool) -> None:
    from clarion.cli.printing import json_line, payload_glance, value_text
    from clarion.cli.records import write_records

    if as_json:
        write_records(standard_output(), [json_line(message) for message in messages])
        return
    table = plain_table(["offset", "committed", "key", "message"], ("offset",))
    table.show_header = with_header
    for message in messages:
        add_row(
            table,
            str(message.offset),
            f"{message.committed_at.astimezone():%Y-%m-%d %H:%M:%S}",
            "" if message.key is None else value_text(message.key),
            payload_glance(message.payload, _SHOWN),
        )
    console().print(table)
