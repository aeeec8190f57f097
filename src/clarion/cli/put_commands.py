"""`clarion put` stores one message, or one for each line of standard input; `clarion request` waits for the answer."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import note
from clarion.cli.command_options import Headers, Key, Topic, option, read_headers, read_later, read_value
from clarion.cli.output import console, counted, iso, json_line, local_time, readable_duration
from clarion.model.errors import TimedOut, TooLarge
from clarion.model.names import to_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from clarion.publisher import Publisher, Receipt, Receipts

MAX_MESSAGE_BYTES = 2**30  # read before the broker, whose bound is lower, is asked


@broker_command
def put(
    call: BrokerCall,
    topic: Topic,
    message: str | None = typer.Argument(
        None, metavar="MESSAGE", help="The message; left out, it is read from standard input."
    ),
    lines: bool = option(False, "--lines", "Each line of standard input is a message."),
    key: Key = None,
    headers: Headers = None,
    ttl_s: float | None = option(
        None, "--ttl TIME", "They expire so long after they were put (1h).", show_default="as the topic says"
    ),
    deliver_at: str | None = option(
        None, "--deliver-at TIME|+TIME", "When they appear: 2026-01-31T12:00:00Z, or +10m."
    ),
    compress: bool = option(False, "--compress", "Send and store them compressed."),
) -> None:
    """Put messages on a topic, durably.

    When the command ends with 0, they are on the broker's disk. The message is
    the argument, or all of standard input with every byte as it is. With --lines
    each line is a message, without its newline; they are sent as they come, so
    the input may be endless or huge.

    \b
    Examples:
      clarion put alerts 'the door is open'
      clarion put photos --key front-door --header type=image/jpeg < photo.jpg
      clarion put orders --lines < orders.jsonl
      tail -f /var/log/syslog | clarion put syslog --lines
      clarion put reminders 'stand up' --deliver-at +25m
      clarion put prices '17.20' --ttl 1h

    Where nobody subscribes to the topic and it does not keep messages, nothing is
    stored and the exit code is 5.
    """
    packed_key = None if key is None else read_value(key)
    packed_headers = read_headers(headers or [])
    due = None if deliver_at is None else _read_due(deliver_at)
    if lines and message is not None:
        raise typer.BadParameter("--lines reads standard input; leave the message out")
    if lines:
        with call.publisher(topic, compress=compress) as publisher:
            told = put_lines(
                publisher, topic, packed_key, packed_headers, ttl_s=ttl_s, deliver_at=due, timeout_s=call.timeout_s
            )
    else:
        payload = read_message(message)
        with call.publisher(topic, compress=compress) as publisher:
            receipt = publisher.put(topic, payload, packed_key, packed_headers, ttl_s=ttl_s, deliver_at=due)
            receipt.result(call.timeout_s)
        offset = receipt.offset
        told = {"messages": 1, "first_offset": offset, "last_offset": offset, "first_id": str(receipt.id)}
    _print_stored(call, topic, told, due)


def _read_due(text: str) -> datetime:
    try:
        return read_later(text, datetime.now().astimezone())
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="--deliver-at") from None


def read_message(given: str | None) -> bytes:
    """Return the message that was given on the command line, or else all of standard input."""
    if given is not None:
        return os.fsencode(given)
    if sys.stdin.isatty():
        note("type the message, then Ctrl-D")
    payload = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1)
    if len(payload) > MAX_MESSAGE_BYTES:
        raise TooLarge("a message of more than 1 GiB is more than any broker takes; did you mean --lines?")
    return payload


def _print_stored(call: BrokerCall, topic: bytes, told: dict[str, Any], due: datetime | None) -> None:
    name, count = to_text(topic), told["messages"]
    some = counted(count, "message")
    id_text = told["first_id"]
    if count == 0:
        done = f"no lines, so nothing was stored on {name}"
    elif due is not None:
        done = f"{some} stored for {name}, to appear at {local_time(due)}" + (f", id {id_text}" if count == 1 else "")
    elif count == 1:
        done = f"{some} stored on {name} at offset {told['first_offset']}, id {id_text}"
    else:
        done = f"{some} stored on {name}, offsets {told['first_offset']} to {told['last_offset']}"
    call.print({"topic": name, **told, "deliver_at": iso(due)}, done)


MAX_LINE_BYTES = 2**28
_READ_BYTES = 2**18
_PENDING_MAX = 50_000  # receipts that are waited for
_PROGRESS_AFTER_S = 1.0


def split_lines(chunks: Iterator[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Return the lines that each chunk completes, without their newlines, and how many bytes it had.

    What the last newline does not end is a line too. A line longer than MAX_LINE_BYTES is TooLarge.
    """
    rest: list[bytes] = []
    rest_bytes = 0
    for chunk in chunks:
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        rest_bytes += len(first)
        if rest_bytes > MAX_LINE_BYTES:
            raise TooLarge(f"a line has more than {MAX_LINE_BYTES} bytes; the lines before it are stored")
        if lines:
            last = lines.pop()
            yield [b"".join(rest), *lines], len(chunk)
            rest, rest_bytes = [last], len(last)
    if rest_bytes:
        yield [b"".join(rest)], 0


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """Return what can be read, as soon as it is there."""
    while chunk := os.read(descriptor, _READ_BYTES):
        yield chunk


def put_lines(
    publisher: Publisher,
    topic: bytes,
    key: bytes | None,
    headers: dict[str, bytes] | None,
    *,
    ttl_s: float | None = None,
    deliver_at: datetime | None = None,
    timeout_s: float,
) -> dict[str, Any]:
    """Put every line of standard input and wait until they are stored; return what `clarion put` prints."""
    descriptor = sys.stdin.fileno()
    progress = LineProgress(descriptor)
    first: Receipt | None = None
    last: Receipt | Receipts | None = None
    pending: deque[Receipt | Receipts] = deque()
    count = 0
    with progress:
        for lines, size in split_lines(read_chunks(descriptor)):
            count += len(lines)
            progress.advance(len(lines), size)
            if first is None:
                first = publisher.put(topic, lines.pop(0), key, headers, ttl_s=ttl_s, deliver_at=deliver_at)
                pending.append(first)
            if lines:
                many = len(lines)
                keys = None if key is None else [key] * many
                all_headers = None if headers is None else [headers] * many
                pending.append(publisher.put_many(topic, lines, keys, all_headers, ttl_s=ttl_s, deliver_at=deliver_at))
            last = pending[-1] if pending else last
            # Told at once, a refusal ends even an input that never does.
            while pending and (pending[0].done() or len(pending) > _PENDING_MAX):
                pending.popleft().result(timeout_s)
        while pending:
            pending.popleft().result(timeout_s)
            progress.advance(0, 0)
    if first is None or last is None:
        return {"messages": 0, "first_offset": None, "last_offset": None, "first_id": None}
    return {
        "messages": count,
        "first_offset": first.offset,
        "last_offset": _last_offset(last),
        "first_id": str(first.id),
    }


def _last_offset(last: Receipt | Receipts) -> int | None:
    from clarion.publisher import Receipts

    if not isinstance(last, Receipts):
        return last.offset
    return last.offsets[-1][-1] if last.offsets else None


class LineProgress:
    """A progress bar on standard error, if that is a terminal and the work takes longer than a second."""

    def __init__(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._total = found.st_size if stat.S_ISREG(found.st_mode) else None
        self._wanted = sys.stderr.isatty() and not os.isatty(descriptor)
        self._began_s = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._messages = self._bytes = 0

    def __enter__(self) -> LineProgress:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, messages: int, size: int) -> None:
        """Note what was read."""
        self._messages += messages
        self._bytes += size
        if not self._wanted:
            return
        if self._bar is None:
            if time.monotonic() - self._began_s < _PROGRESS_AFTER_S:
                return
            self._show()
        assert self._bar is not None
        assert self._task is not None
        self._bar.update(self._task, completed=self._bytes, messages=f"{self._messages:,}")

    def _show(self) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        self._bar = Progress(
            TextColumn("{task.fields[messages]} messages"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeElapsedColumn(), console=console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("put", total=self._total, messages="0")
        self._bar.start()


@broker_command
def request(
    call: BrokerCall,
    topic: Topic,
    message: str | None = typer.Argument(
        None, metavar="MESSAGE", help="The question; left out, it is read from standard input."
    ),
    wait_s: float = option("10s", "--wait TIME", "How long to wait for the answer."),
    no_newline: bool = option(False, "--no-newline", "Print the bytes of the answer alone."),
    key: Key = None,
    headers: Headers = None,
) -> None:
    """Put a message on a topic, wait for the answer and print it.

    Somebody must subscribe to the topic and answer: in Python,
    publisher.reply(message, answer). With --json the answer is printed as in
    `clarion get`. Where none comes in time the exit code is 4; the question may
    still be worked on.

    \b
    Examples:
      clarion request prices 'AAPL'
      clarion request resize --wait 1m --no-newline < photo.jpg > small.jpg
      clarion request prices 'AAPL' --json | jq .payload
    """
    if no_newline and call.as_json:
        raise typer.BadParameter("give --json or --no-newline, not both")
    packed_key = None if key is None else read_value(key)
    packed_headers = read_headers(headers or [])
    payload = read_message(message)
    with call.admin() as admin:
        admin.hello()  # no need to wait for an answer where there is no broker
    with call.publisher(topic) as publisher:
        try:
            answer = publisher.request(topic, payload, wait_s=wait_s, key=packed_key, headers=packed_headers)
        except TimedOut:
            if not publisher.stats["connected"]:
                raise
            answer = None
    if answer is None:
        raise TimedOut(
            f"nobody answered on {to_text(topic)} within {readable_duration(wait_s)}; the question may still be worked"
            " on. A longer --wait may help"
        )
    shape = json_line(answer) if call.as_json else answer.payload + (b"" if no_newline else b"\n")
    sys.stdout.buffer.write(shape)
    sys.stdout.buffer.flush()
