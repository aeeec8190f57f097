"""`clarion outbox`: look into a publisher's outbox, and decide what becomes of messages that were quarantined."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.command_errors import confirm, tells_errors
from clarion.cli.command_options import AsJson, Yes
from clarion.cli.output import console, counted, one_line, print_json, print_result, readable_bytes, table_of
from clarion.model.names import to_text

if TYPE_CHECKING:
    from clarion.publisher.outbox.outbox_file import Contents

_HELP = """Look into a publisher's outbox, and decide about what was set aside.

A publisher made with outbox=FILE saves messages there until the broker has them,
and sends what an earlier process left. What the broker may have, or may not, and
what it refused when nobody was there to be told, is set aside: it is not sent by
itself.

\b
Examples:
  clarion outbox show app.outbox
  clarion outbox resend app.outbox
  clarion outbox drop app.outbox --yes
"""

outbox_app = typer.Typer(help=_HELP, no_args_is_help=True)
File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The outbox, as given to the publisher.", show_default=False)
]


@outbox_app.command("show")
@tells_errors
def show(file: File, as_json: AsJson = False) -> None:
    """Show what waits to be sent, and what was set aside, and why.

    A publisher may have the outbox open meanwhile.

    \b
    Examples:
      clarion outbox show app.outbox
      clarion outbox show app.outbox --json | jq .aside
    """
    from clarion.publisher.outbox.outbox_file import look

    contents = look(file)
    if as_json:
        print_json(_json(contents))
        return
    if contents.waiting:
        _print_waiting(contents)
    else:
        print(f"nothing waits in {file}")
    if contents.quarantined:
        print()
        _print_quarantined(contents)
        print(f"\n`clarion outbox resend {file}` has these sent as new messages, `clarion outbox drop {file}` lets go")


@outbox_app.command("resend")
@tells_errors
def resend(file: File, yes: Yes = False, as_json: AsJson = False) -> None:
    """Have everything that was set aside sent, as new messages.

    The next publisher that opens the outbox sends it, after what waits there
    already. What the broker had all along is there twice then.

    \b
    Examples:
      clarion outbox resend app.outbox
      clarion outbox resend app.outbox --yes
    """
    from clarion.publisher.outbox.outbox_file import look
    from clarion.publisher.outbox.outbox_file import resend as send_again

    messages = sum(row.messages for row in look(file).quarantined)
    if messages:
        confirm(
            f"{counted(messages, 'message')} set aside in {file} will be sent as new; the broker may have some already."
            " Send them?",
            yes=yes,
        )
        messages = send_again(file)
    will = f"{counted(messages, 'message')} will be sent by the next publisher that opens {file}"
    done = will if messages else f"nothing was set aside in {file}"
    print_result({"outbox": str(file), "resent": messages}, done, as_json=as_json)


@outbox_app.command("drop")
@tells_errors
def drop(file: File, yes: Yes = False, as_json: AsJson = False) -> None:
    """Forget everything that was set aside, for good. What waits to be sent stays.

    \b
    Examples:
      clarion outbox drop app.outbox
      clarion outbox drop app.outbox --yes
    """
    from clarion.publisher.outbox.outbox_file import drop as let_go
    from clarion.publisher.outbox.outbox_file import look

    messages = sum(row.messages for row in look(file).quarantined)
    if messages:
        confirm(f"Forget {counted(messages, 'message')} set aside in {file} for good?", yes=yes)
        messages = let_go(file)
    done = f"{counted(messages, 'message')} forgotten" if messages else f"nothing was set aside in {file}"
    print_result({"outbox": str(file), "dropped": messages}, done, as_json=as_json)


def _json(contents: Contents) -> dict[str, object]:
    return {
        "waiting": [
            {
                "topic": to_text(row.topic), "batches": row.batches, "messages": row.messages, "bytes": row.size,
                "batches_perhaps_sent": row.numbered, "oldest": _time(row.oldest_stamp),
            }
            for row in contents.waiting
        ],
        "aside": [
            {
                "topic": to_text(row.topic), "messages": row.messages, "bytes": row.size, "reason": row.reason,
                "put": _time(row.stamp),
            }
            for row in contents.quarantined
        ],
    }  # fmt: skip


def _time(stamp: int) -> str:
    from clarion.model.ids import stamp_to_unix_s

    return datetime.fromtimestamp(stamp_to_unix_s(stamp), UTC).isoformat()


def _print_waiting(contents: Contents) -> None:
    rows = (
        (to_text(row.topic), f"{row.messages:,}", readable_bytes(row.size), f"{row.batches:,}", _time(row.oldest_stamp))
        for row in contents.waiting
    )
    numbers = ["messages", "bytes", "batches"]
    console().print(table_of(["topic", *numbers, "oldest"], rows, numbers))


def _print_quarantined(contents: Contents) -> None:
    rows = (
        (to_text(row.topic), f"{row.messages:,}", readable_bytes(row.size), _time(row.stamp), one_line(row.reason))
        for row in contents.quarantined
    )
    numbers = ["messages", "bytes"]
    console().print(table_of(["set aside", *numbers, "put", "because"], rows, numbers))
