"""`clarion get`: print messages, and ack those that whoever reads them took."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.exit_codes import ExitCode
from clarion.cli.failures import end_cleanly_on_sigterm, no_answer_told, note, tells_errors, waiting_told
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
from clarion.cli.output import counted, standard_output
from clarion.cli.units import read_duration_s, read_some
from clarion.model.errors import MessagesGone, NotSubscribed, Unreachable
from clarion.model.names import is_pattern, to_text
from clarion.wire.batch import BadBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from clarion.cli.failures import ClientNotes
    from clarion.cli.records import RecordWriter
    from clarion.subscriber import MessageBatch, Subscriber

_MANY = 65_536
_FOLLOW_WAIT_S = 2.0  # then it looks whether anybody still reads what it prints


@tells_errors
def get(
    topic: TopicOrPattern,
    name: SubscriberName,
    most: Annotated[
        int | None,
        typer.Option("--max", parser=read_some, metavar="N", help="End after so many.", show_default="all there are"),
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
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print the messages that a subscriber has not read yet, one a line.

    A message counts as read once it is in the file, on the terminal, or taken out
    of the pipe by the next program; the rest comes again next time. Where that
    program goes away, the last few that it took may come again, too, and that is
    told. One consumer reads a subscription at a time: a second `get` with the
    same name takes over from the first. A subscription made with --shared is
    read by many at a time, and each message goes to one.

    \b
    Examples:
      clarion subscribe alerts --as reader
      clarion get alerts --as reader                      # all there are now
      clarion get alerts --as reader | head -1            # acks one
      clarion get alerts --as reader --max 1 --wait 60s   # wait for the next
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
    from clarion.cli.records import RecordWriter
    from clarion.subscriber import Subscriber

    writer = RecordWriter(standard_output())
    end_cleanly_on_sigterm()
    lines = text_lines_with_topic if is_pattern(topic) else text_lines
    shape = json_lines if as_json else whole_payloads if no_newline else lines
    with (
        no_answer_told(url),
        Subscriber(url, name, ack="explicit", timeout_s=timeout_s, prefetch=follow or most is None) as reader,
        waiting_told(url, timeout_s) as notes,
    ):
        try:
            if subscribe:
                reader.subscribe(topic, first)
            printed = _print_all(
                reader, topic, shape, writer, notes, most=most, wait_s=wait_s, follow=follow, nack=nack
            )
        except NotSubscribed:
            raise NotSubscribed(_how_to_subscribe(topic, name)) from None
        except BrokenPipeError:
            if writer.in_doubt:
                note(
                    f"whoever read the output went away; {counted(writer.in_doubt, 'message')} taken last may not have"
                    " been used, and will come again",
                    not_acked=writer.in_doubt,
                )
            raise
    if not printed:
        raise typer.Exit(ExitCode.NOTHING_THERE)


def _print_all(
    reader: Subscriber,
    topic: bytes,
    shape: Callable[[MessageBatch], list[bytes]],
    writer: RecordWriter,
    notes: ClientNotes,
    *,
    most: int | None,
    wait_s: float,
    follow: bool,
    nack: str | None,
) -> int:
    """Print and ack (or nack) until there is nothing more, or enough; give how many."""
    printed = 0
    answered = False
    while most is None or printed < most:
        wanted = _MANY if most is None else min(_MANY, most - printed)
        usual_wait_s = _FOLLOW_WAIT_S if follow and answered else wait_s
        parts: list[MessageBatch] | None
        try:
            parts = reader.get_batches(topic, wanted, 0.0 if writer.in_doubt else usual_wait_s)
        except Unreachable:
            if not follow or not answered:
                raise
            writer.check_reader()
            continue  # for ever: the client itself has told, once
        except MessagesGone as gap:
            _tell_gap(gap)
            parts = None
        answered, notes.for_ever = True, follow
        if parts is None:
            continue
        for part in parts:
            try:
                part.batch.open()
            except BadBatch as error:
                _tell_unreadable(part, error)
                continue
            writer.write(shape(part), _Settling(part, nack))
            printed += len(part)
        if not parts and writer.in_doubt:
            writer.finish()
        elif not parts and not follow:
            break
        elif not parts:
            writer.check_reader()
    writer.finish()
    return printed


def _tell_gap(gap: MessagesGone) -> None:
    name = to_text(gap.topic)
    note(
        f"offsets {gap.start} to {gap.stop - 1} of {name} are no longer kept; going on after them",
        code=MessagesGone.__name__, topic=name, start=gap.start, stop=gap.stop,
    )  # fmt: skip


def _tell_unreadable(part: MessageBatch, error: BadBatch) -> None:
    """Say that messages cannot be printed; they count as read, or of a shared subscription as tried."""
    from clarion.subscriber.messages import unreadable

    told = unreadable(part, error)
    assert part.claim is not None
    if part.claim.reading.stats()["shared"]:
        part.nack(reason=str(told))
    else:
        part.ack()
    name = to_text(told.topic)
    note(f"{told}; going on after them", code=type(told).__name__, topic=name, start=told.start, stop=told.stop)


class _Settling:
    """Acks those messages of a part that were taken, or gives them back where there is a reason to."""

    def __init__(self, part: MessageBatch, nack: str | None) -> None:
        self._part = part
        self._nack = nack

    def __call__(self, start: int, stop: int) -> None:
        taken = self._part.cut(self._part.start + start, self._part.start + stop)
        if self._nack is None:
            taken.ack()
        else:
            taken.nack(reason=self._nack)


def _how_to_subscribe(topic: bytes, name: bytes) -> str:
    command = f"{shlex.quote(to_text(topic))} --as {shlex.quote(to_text(name))}"
    return (
        f"{to_text(name)} does not subscribe to {to_text(topic)}. Run: clarion subscribe {command};"
        f" or both at once: clarion get {command} --subscribe"
    )
