"""`clarion put` stores a message, or each line of its input; `request` waits for an answer; `publish` takes HTTP."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import ExitCode, announce_ready, note, tells_errors
from clarion.cli.command_options import (
    DEFAULT_URL,
    AsJson,
    Headers,
    Key,
    Topic,
    Url,
    option,
    read_headers,
    read_later,
    read_name,
    read_some,
    read_value,
)
from clarion.cli.output import console, counted, iso, json_line, local_time, readable_bytes, readable_duration
from clarion.model.errors import PermanentError, TimedOut, TooLarge
from clarion.model.names import to_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from clarion.publisher import Publisher, Receipt, Receipts
    from clarion.web import GatewaySettings

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
        self._show_at_s = time.monotonic() + _PROGRESS_AFTER_S
        self._bar: Progress | None = None
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
        if self._bar is None and self._wanted and time.monotonic() >= self._show_at_s:
            self._bar = self._show()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._bytes, messages=f"{self._messages:,}")

    def _show(self) -> Progress:
        from rich import progress

        text = progress.TextColumn("{task.fields[messages]} messages")
        bytes_read, speed = progress.DownloadColumn(), progress.TransferSpeedColumn()
        columns = (text, progress.BarColumn(), bytes_read, speed, progress.TimeElapsedColumn())
        bar = progress.Progress(*columns, console=console(stderr=True), transient=True)
        bar.add_task("put", total=self._total, messages="0")
        bar.start()
        return bar


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


_LOG_LEVELS = ("debug", "info", "warning", "error")
_ANYBODY = "others than this machine can reach this address, and there are no passwords: whoever does may publish"


@tells_errors
def publish(
    from_http: bool = option(False, "--from-http", "Take messages by HTTP POST."),
    listen: str = option("127.0.0.1:8080", "--listen HOST:PORT", "Where to listen; port 0 is any that is free."),
    topics: list[str] | None = option(
        None,
        "--topic TOPIC",
        "Take messages for this topic, or pattern like 'alerts/#', and no others; may be repeated.",
        show_default="any topic",
    ),
    buffer_messages: int | None = option(
        None,
        "--buffer-messages",
        "Messages accepted and not yet stored, at most.",
        parser=read_some,
        show_default="10000; with an outbox 100000",
    ),
    buffer_bytes: int = option("64MiB", "--buffer-bytes SIZE", "Their bytes in memory, at most."),
    body_bytes: int = option("16MiB", "--body-bytes SIZE", "Largest body of one request."),
    outbox: Path | None = option(
        None,
        "--outbox FILE",
        "Keep what was accepted in this file until the broker has it; it survives a crash.",
        show_default="in memory alone",
    ),
    outbox_bytes: int = option("1GiB", "--outbox-bytes SIZE", "Bytes in it, at most."),
    max_connections: int = option(500, "--max-connections", "Connections at one time, at most.", parser=read_some),
    timeout_s: float = option("10s", "--timeout --timeout-s TIME", "How long a POST waits for the broker."),
    read_timeout_s: float = option("60s", "--read-timeout TIME", "How long a body, or the next request, may take."),
    stop_timeout_s: float = option("30s", "--stop-timeout TIME", "How long to finish what was accepted."),
    tuning: str = option("auto", "--tuning POLICY", "auto, eager, recheck, literal or fixed."),
    batch_size: int | None = option(
        None,
        "--batch-size",
        "Messages that a batch gathers, to begin with; for ever with --tuning fixed.",
        parser=read_some,
        show_default="1",
    ),
    compress: bool = option(False, "--compress", "Send and store messages compressed."),
    url: Url = DEFAULT_URL,
    log_level: str = option("info", "--log-level LEVEL", "debug, info, warning or error."),
    as_json: AsJson = False,
) -> None:
    """Take messages and jobs over HTTP, for sources that cannot use Python.

    POST /topics/NAME puts its body as a message on the topic, and answers 201
    when it is on the broker's disk. With Content-Type: application/x-ndjson each
    line of the body is a message. GET /health and /stats tell how it is doing.

    POST /jobs/TYPE?workflow=NAME asks for a job whose input is the body, and
    answers 201 with its id; GET /jobs/ID and /jobs/ID/result?wait=30 tell what
    became of it, DELETE /jobs/ID cancels it. With --topic there are no jobs, but
    for those of a workflow whose topic clarion/jobs/NAME is named.

    \b
    Examples:
      clarion publish --from-http                # at http://127.0.0.1:8080
      clarion publish --from-http --topic 'sensors/#' --listen 0.0.0.0:8080
      clarion publish --from-http --outbox /var/lib/clarion/outbox
    \b
    and then, from anywhere that reaches it:
      curl -d 'hello' http://127.0.0.1:8080/topics/alerts
      curl -H 'Content-Type: application/x-ndjson' --data-binary @events.ndjson \\
           http://127.0.0.1:8080/topics/events
      curl -d '{"tile": 7}' -H 'Content-Type: application/json' \\
           http://127.0.0.1:8080/jobs/survey

    Nothing is dropped silently: what does not fit into the buffer is refused with
    429 and the time to come again. With --outbox, what was accepted survives a
    crash, and is sent when the command is started again.

    The first Ctrl-C or SIGTERM takes no more, finishes what was accepted and ends
    with 0, or with 4 where no broker took it in time; a second one ends at once
    with 130. Logs go to standard error.

    There are no passwords: whoever reaches the address may publish, and ask for
    jobs and cancel them.
    """
    if not from_http:
        raise typer.BadParameter(
            "say where messages come from: --from-http takes them by POST"
            " (to put one message, or lines of standard input, use `clarion put`)",
            param_hint="--from-http",
        )
    if log_level not in _LOG_LEVELS:
        raise typer.BadParameter(f"it is one of {', '.join(_LOG_LEVELS)}", param_hint="--log-level")
    try:
        from clarion.web import GatewaySettings, read_listen
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "aiohttp":
            raise
        raise PermanentError('the HTTP gateway needs aiohttp: pip install "clarion[web]"') from None
    host, port = read_listen(listen)
    allowed = {"topics": tuple(map(read_name, topics))} if topics else {}
    settings = GatewaySettings(
        url=url,
        host=host,
        port=port,
        **allowed,
        buffer_messages=buffer_messages,
        buffer_bytes=buffer_bytes,
        body_bytes=body_bytes,
        max_connections=max_connections,
        timeout_s=timeout_s,
        read_timeout_s=read_timeout_s,
        idle_timeout_s=read_timeout_s,
        stop_timeout_s=stop_timeout_s,
        outbox=None if outbox is None else str(outbox),
        outbox_bytes=outbox_bytes,
        compress=compress,
        tuning=tuning,  # type: ignore[arg-type]  # the settings check it
        batch_size=batch_size,
    )
    serve_gateway(settings, log_level, as_json=as_json)


def serve_gateway(settings: GatewaySettings, log_level: str, *, as_json: bool) -> None:
    """Serve until told to stop; a second signal is exit code 130."""
    import asyncio
    import logging

    from clarion.broker.logs import log_json_lines
    from clarion.web import serve

    log_json_lines(log_level)

    def on_ready(address: str) -> None:
        facts = {"listen": address, "broker": settings.url, "pid": os.getpid()}
        logging.getLogger("clarion.web").info("ready", extra=facts)
        warning = "" if settings.is_local else _ANYBODY
        announce_ready(facts, _ready_text(settings, address), as_json=as_json, warning=warning)

    left = asyncio.run(serve(settings, on_ready))
    if left:
        fate = "what it does not have is lost" if settings.outbox is None else f"they are kept in {settings.outbox}"
        note(f"{counted(left, 'message')} accepted and not confirmed by the broker; {fate}")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _ready_text(settings: GatewaySettings, address: str) -> str:
    topics = [to_text(topic) for topic in settings.topics]
    example = next((name for name in topics if not {"*", "#"} & set(name)), "alerts")
    room_bytes = settings.buffer_bytes if settings.outbox is None else settings.outbox_bytes
    where = "in memory" if settings.outbox is None else f"in {settings.outbox}"
    bound = f"{counted(settings.messages_max, 'message')} or {readable_bytes(room_bytes)} wait {where}"
    return (
        f"clarion: taking messages at {address} for the broker at {settings.url} (pid {os.getpid()})\n"
        f"  topics: {'any' if topics == ['#'] else ', '.join(topics)}; at most {bound}, then 429\n"
        f"  try it: curl -d 'hello' {address}/topics/{example}"
    )
