"""`clarion dead`: look at messages that were given up, put them back, or let them go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import confirm
from clarion.cli.command_options import Topic, Yes, option
from clarion.cli.output import (
    age,
    console,
    counted,
    iso,
    one_line,
    payload_glance,
    print_json,
    table_of,
    text_or_base64,
    value_text,
)
from clarion.model.names import shell_name, to_text

if TYPE_CHECKING:
    from clarion.admin import DeadLetter

_HELP = """Look at dead letters, put them back, or let them go.

A message of a shared subscription that failed max_attempts times (subscribe
--max-attempts) is put aside, with where it came from and why, and waits here.

\b
Examples:
  clarion dead list jobs
  clarion dead replay jobs
  clarion dead replay jobs --offset 3 --offset 5
  clarion dead drop jobs --yes
"""

dead_app = typer.Typer(help=_HELP, no_args_is_help=True)
_NUMBERS = ("offset", "attempts", "given up")
_SHOWN = 60  # characters of a payload in the table
Offsets = Annotated[
    list[int] | None,
    option(..., "--offset OFFSET", "Only this one, as the list has it; may be repeated.", show_default="all"),
]


@dead_app.command("list")
@broker_command
def list_dead(
    call: BrokerCall,
    topic: Topic,
    most: int = option(100, "--max N", "The oldest so many."),
) -> None:
    """List a topic's dead letters, oldest first.

    With --json there is an object a line, with everything about each: offset,
    topic, subscriber, attempts, reason, at, id, key, headers, payload (or
    payload_b64) and original_offset.

    \b
    Examples:
      clarion dead list jobs
      clarion dead list jobs --max 1000 --json | jq -r .reason | sort | uniq -c
    """
    with call.admin() as admin:
        found = admin.dead_letters(topic, most + 1)
    shown = found[:most]
    if call.as_json:
        for letter in shown:
            print_json(letter_json(letter))
    elif shown:
        _print_table(shown)
        if len(found) > most:
            console().print(f"\nthere are more; --max shows more than {most:,}")
    else:
        print(f"no dead letters of {to_text(topic)}")


@dead_app.command("replay")
@broker_command
def replay(call: BrokerCall, topic: Topic, offsets: Offsets = None) -> None:
    """Put dead letters back on their topic, to be tried again.

    Each goes to the subscription that gave it up, and to no other, with attempts
    counted anew. Where that subscription is no more, the letter stays.

    \b
    Examples:
      clarion dead replay jobs
      clarion dead replay jobs --offset 3 --offset 5
    """
    name = to_text(topic)
    with call.admin() as admin:
        told = admin.replay_dead(topic, offsets)
    if call.as_json:
        print_json({"topic": name, "replayed": told.done, "skipped": told.skipped})
        return
    print(f"{counted(told.done, 'dead letter')} of {name} put back" if any(told) else _none(name, offsets))
    if told.skipped:
        print(f"{counted(told.skipped, 'dead letter')} left: the subscription each came from is no more")


@dead_app.command("drop")
@broker_command
def drop(call: BrokerCall, topic: Topic, offsets: Offsets = None, yes: Yes = False) -> None:
    """Forget dead letters for good.

    \b
    Examples:
      clarion dead drop jobs
      clarion dead drop jobs --offset 3 --yes
    """
    name = to_text(topic)
    which = "all dead letters" if offsets is None else counted(len(set(offsets)), "dead letter")
    look = f"`clarion dead list {shell_name(topic)}` shows them"
    with call.admin() as admin:
        confirm(f"{look}. Forget {which} of {name} for good?", yes=yes)
        dropped = admin.drop_dead(topic, offsets)
    done = f"{counted(dropped, 'dead letter')} of {name} forgotten" if dropped else _none(name, offsets)
    call.print({"topic": name, "dropped": dropped}, done)


def _none(name: str, offsets: list[int] | None) -> str:
    return f"no dead letters of {name}" + ("" if offsets is None else f" at offset {', '.join(map(str, offsets))}")


def letter_json(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as JSON shows it."""
    return {
        "offset": letter.offset,
        "topic": to_text(letter.topic),
        "subscriber": to_text(letter.subscription),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "at": iso(letter.at),
        "id": str(letter.id),
        "key": value_text(letter.key),
        "headers": {name: value_text(value) for name, value in letter.headers.items()},
        "original_offset": letter.original_offset,
        **text_or_base64("payload", letter.payload),
    }


def _reason(reason: str) -> str:
    """Return the last line of a Python trace, which says what happened; --json has all of it."""
    return reason.strip().splitlines()[-1] if reason.startswith("Traceback (") else reason


def _print_table(letters: list[DeadLetter]) -> None:
    rows = (
        (
            str(letter.offset), to_text(letter.subscription), f"{letter.attempts:,}", f"{age(letter.at)} ago",
            one_line(_reason(letter.reason)), value_text(letter.key) or "", payload_glance(letter.payload, _SHOWN),
        )
        for letter in letters
    )  # fmt: skip
    columns = ["offset", "subscriber", "attempts", "given up", "reason", "key", "message"]
    console().print(table_of(columns, rows, _NUMBERS))
