"""`clarion put`: store one message, or one for each line of standard input."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.describing import iso, local_time
from clarion.cli.failures import note, tells_errors, waiting_told
from clarion.cli.options import (
    DEFAULT_TIMEOUT,
    DEFAULT_URL,
    AsJson,
    Headers,
    Key,
    Timeout,
    Topic,
    Url,
    read_headers,
    read_value,
)
from clarion.cli.output import counted, print_json
from clarion.cli.units import read_later, read_some_time_s
from clarion.model.errors import BufferFull, ClarionError, NoSubscriber, TimedOut, TooLarge, Unreachable
from clarion.model.names import to_text

if TYPE_CHECKING:
    from clarion.publisher import Publisher

MAX_MESSAGE_BYTES = 2**30  # read before the broker, whose bound is lower, is asked


@tells_errors
def put(
    topic: Topic,
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="The message; left out, it is read from standard input.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    key: Key = None,
    headers: Headers = None,
    ttl_s: Annotated[
        float | None,
        typer.Option(
            "--ttl",
            parser=read_some_time_s,
            metavar="TIME",
            help="They expire so long after they were put (1h).",
            show_default="as the topic says",
        ),
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option("--deliver-at", metavar="TIME|+TIME", help="When they appear: 2026-01-31T12:00:00Z, or +10m."),
    ] = None,
    compress: Annotated[bool, typer.Option("--compress", help="Send and store them compressed.")] = False,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
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
        from clarion.cli.put_lines import put_lines

        with publishing(url, topic, timeout_s, compress=compress) as publisher:
            told = put_lines(
                publisher, topic, packed_key, packed_headers, ttl_s=ttl_s, deliver_at=due, timeout_s=timeout_s
            )
    else:
        payload = os.fsencode(message) if message is not None else read_message()
        with publishing(url, topic, timeout_s, compress=compress) as publisher:
            receipt = publisher.put(topic, payload, packed_key, packed_headers, ttl_s=ttl_s, deliver_at=due)
            receipt.result(timeout_s)
        offset = receipt.offset
        told = {"messages": 1, "first_offset": offset, "last_offset": offset, "first_id": str(receipt.id)}
    _print(topic, told, due, as_json=as_json)


def _read_due(text: str) -> datetime:
    try:
        return read_later(text, datetime.now().astimezone())
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="--deliver-at") from None


def read_message() -> bytes:
    """Give all of standard input as one message."""
    if sys.stdin.isatty():
        note("type the message, then Ctrl-D")
    payload = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1)
    if len(payload) > MAX_MESSAGE_BYTES:
        raise TooLarge("a message of more than 1 GiB is more than any broker takes; did you mean --lines?")
    return payload


def _print(topic: bytes, told: dict[str, Any], due: datetime | None, *, as_json: bool) -> None:
    name, count = to_text(topic), told["messages"]
    some = counted(count, "message")
    id_text = told["first_id"]
    if as_json:
        print_json({"topic": name, **told, "deliver_at": iso(due)})
    elif count == 0:
        print(f"no lines, so nothing was stored on {name}")
    elif due is not None:
        print(f"{some} stored for {name}, to appear at {local_time(due)}" + (f", id {id_text}" if count == 1 else ""))
    elif count == 1:
        print(f"{some} stored on {name} at offset {told['first_offset']}, id {id_text}")
    else:
        print(f"{some} stored on {name}, offsets {told['first_offset']} to {told['last_offset']}")


@contextmanager
def publishing(url: str, topic: bytes, timeout_s: float, *, compress: bool = False) -> Iterator[Publisher]:
    """Give a publisher and close it. Who uses it waits for the receipts; errors say what became of the messages."""
    from clarion.publisher import Publisher

    publisher = Publisher(url, block_s=timeout_s, compression="zstd" if compress else None)
    try:
        with waiting_told(url, timeout_s):
            yield publisher
        _close(publisher, timeout_s)
    except ClarionError as error:
        raise explained(error, publisher.stats, url, topic) from error
    finally:
        _close(publisher, 0.0)  # does nothing where all went well, and waits for nothing where it did not


def _close(publisher: Publisher, timeout_s: float) -> None:
    try:
        publisher.close(timeout_s)
    except ClarionError:  # the receipts have told by now what is stored, and the broker forgets us in time
        pass


def explained(error: ClarionError, stats: dict[str, Any], url: str, topic: bytes) -> ClarionError:
    """Give the error in the words of a command that ends: what is stored, what is not, and what to do."""
    stored = stats["messages_stored"]
    kept = f"{counted(stored, 'message')} confirmed as stored, no more" if stored else "nothing was confirmed as stored"
    name = shlex.quote(to_text(topic))
    if isinstance(error, NoSubscriber):
        return NoSubscriber(
            f"nobody subscribes to {to_text(topic)}, so nothing was stored."
            f" Let somebody subscribe: clarion subscribe {name} --as NAME;"
            f" or keep messages anyway: clarion topics create {name} --retention keep"
        )
    if isinstance(error, BufferFull | TimedOut) and not stats["connected"]:
        return Unreachable(f"no broker answers at {url}; {kept}. Is one running there? `clarion up` starts one")
    refusal = stats.get("refusal")
    if isinstance(error, BufferFull | TimedOut) and isinstance(refusal, ClarionError):
        return type(refusal)(f"{refusal}; {kept}. Try again later")
    if isinstance(error, TimedOut):
        return TimedOut(f"the broker at {url} did not answer in time; {kept}. A longer --timeout may help")
    return type(error)(f"{error}; {kept}" if stored else str(error))
