"""`clarion get`: print messages, and ack them once they are written."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.exit_codes import ExitCode
from clarion.cli.failures import asking, end_cleanly_on_sigterm, note, tell_error, tells_errors
from clarion.cli.options import (
    DEFAULT_TIMEOUT_S,
    DEFAULT_URL,
    Start,
    SubscriberName,
    Timeout,
    TopicOrPattern,
    Url,
    read_start,
)
from clarion.cli.units import read_duration_s
from clarion.model.errors import MessagesGone, NotSubscribed, PermanentError, Unreachable
from clarion.model.names import to_text
from clarion.model.topics import is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from clarion.subscriber import MessageBatch, Subscriber

_MANY = 65_536
_FOLLOW_WAIT_S = 30.0


@tells_errors
def get(
    topic: TopicOrPattern,
    name: SubscriberName,
    most: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="End after so many.", show_default="all there are")
    ] = None,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", parser=read_duration_s, metavar="TIME", help="End when no message came for so long (60s, 5m)."
        ),
    ] = "0s",  # type: ignore[assignment]
    follow: Annotated[bool, typer.Option("--follow", help="Go on for ever, also while the broker is away.")] = False,
    subscribe: Annotated[bool, typer.Option("--subscribe", help="Subscribe first, if that is not done yet.")] = False,
    start: Start = "new",
    no_newline: Annotated[
        bool, typer.Option("--no-newline", help="Print the bytes of the messages and nothing between them.")
    ] = False,
    nack: Annotated[
        str | None,
        typer.Option(
            "--nack",
            metavar="REASON",
            help="Of a shared subscription: print them, but give them back as failed, to be tried again or to become"
            " dead letters. Needs --max.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a message; errors too.")] = False,
) -> None:
    """Print the messages that a subscriber has not read yet, one a line.

    A message counts as read once it is written to standard output; what could not
    be written comes again next time. One consumer reads a subscription at a time:
    a second `get` with the same name takes over from the first. A subscription
    made with --shared is read by many at a time, and each message goes to one.

    \b
    Examples:
      clarion subscribe alerts --as reader
      clarion get alerts --as reader                      # all there are now
      clarion get alerts --as reader --max 1 --wait 60    # wait for the next
      clarion get alerts --as reader --follow --json | jq .payload
      clarion get photos --as reader --max 1 --no-newline > photo.jpg
      clarion get audit --as me --subscribe --start earliest
      clarion get 'alerts/*' --as night-watch --follow    # topic, tab, message
      clarion get jobs --as workers --max 1 --nack 'cannot be read'

    With --json each line has topic, offset, id, key, headers, committed_at,
    attempt and payload; a payload that is not UTF-8 is in payload_b64 instead.
    Where there are no messages nothing is printed and the exit code is 3.
    Messages that are no longer kept are told on standard error, and reading goes
    on.
    """
    first = read_start(start)
    if follow and wait_s:
        raise typer.BadParameter("--follow waits for ever; leave --wait out")
    if no_newline and as_json:
        raise typer.BadParameter("give --json or --no-newline, not both")
    if start != "new" and not subscribe:
        raise typer.BadParameter("--start is for a new subscription; give --subscribe too")
    if nack is not None and most is None:
        raise typer.BadParameter("what is given back comes again at once; say with --max when it is enough")
    from clarion.cli.printing import json_lines, text_lines, text_lines_with_topic, whole_payloads
    from clarion.subscriber import Subscriber

    end_cleanly_on_sigterm()
    lines = text_lines_with_topic if is_pattern(topic) else text_lines
    shape = json_lines if as_json else whole_payloads if no_newline else lines
    with (
        asking(url),
        Subscriber(url, name, ack="explicit", timeout_s=timeout_s, prefetch=follow or most is None) as reader,
    ):
        try:
            if subscribe:
                reader.subscribe(topic, first)
            printed = _print_all(
                reader, topic, shape, most=most, wait_s=wait_s, follow=follow, nack=nack, as_json=as_json
            )
        except NotSubscribed:
            raise NotSubscribed(_how_to_subscribe(topic, name)) from None
    if not printed:
        raise typer.Exit(ExitCode.NOTHING_THERE)


def _print_all(
    reader: Subscriber,
    topic: bytes,
    shape: Callable[[MessageBatch], list[bytes]],
    *,
    most: int | None,
    wait_s: float,
    follow: bool,
    nack: str | None,
    as_json: bool,
) -> int:
    """Print and ack (or nack) until there is nothing more, or enough; give how many."""
    printed = 0
    answered = False
    while most is None or printed < most:
        wanted = _MANY if most is None else min(_MANY, most - printed)
        try:
            parts = reader.get_batches(topic, wanted, _FOLLOW_WAIT_S if follow and answered else wait_s)
        except Unreachable:
            if not follow or not answered:
                raise
            note("the broker does not answer; waiting for it to come back")
            continue
        except MessagesGone as gap:
            missed = f"offsets {gap.start} to {gap.stop - 1} of {to_text(gap.topic)}"
            tell_error(MessagesGone(f"{missed} are no longer kept; going on after them"), as_json=as_json)
            answered = True
            continue
        answered = True
        for part in parts:
            _print_part(part, shape, nack)
            printed += len(part)
        if not parts and not follow:
            break
    return printed


def _print_part(part: MessageBatch, shape: Callable[[MessageBatch], list[bytes]], nack: str | None) -> None:
    from clarion.cli.printing import write_records

    written, error = write_records(sys.stdout.fileno(), shape(part))
    printed = part.cut(part.start, part.start + written)
    if written and nack is not None:
        printed.nack(reason=nack)
    elif written:
        printed.ack()
    if isinstance(error, BrokenPipeError):
        raise typer.Exit(ExitCode.READER_GONE)
    if error is not None:
        raise PermanentError(f"cannot write the messages: {error.strerror}; what was not written comes again")


def _how_to_subscribe(topic: bytes, name: bytes) -> str:
    command = f"{shlex.quote(to_text(topic))} --as {shlex.quote(to_text(name))}"
    return (
        f"{to_text(name)} does not subscribe to {to_text(topic)}. Run: clarion subscribe {command};"
        f" or both at once: clarion get {command} --subscribe"
    )
