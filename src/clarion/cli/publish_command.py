"""`clarion publish --from-http`: take messages over HTTP and publish them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clarion.cli.command_errors import ExitCode, announce_ready, note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, option, read_name, read_some
from clarion.cli.output import counted, readable_bytes
from clarion.model.errors import PermanentError
from clarion.model.names import to_text

if TYPE_CHECKING:
    from clarion.web import GatewaySettings

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
    """Take messages over HTTP, for sources that cannot use Python.

    POST /topics/NAME puts its body as a message on the topic, and answers 201
    when it is on the broker's disk. With Content-Type: application/x-ndjson each
    line of the body is a message. GET /health and /stats tell how it is doing.

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

    Nothing is dropped silently: what does not fit into the buffer is refused with
    429 and the time to come again. With --outbox, what was accepted survives a
    crash, and is sent when the command is started again.

    The first Ctrl-C or SIGTERM takes no more, finishes what was accepted and ends
    with 0, or with 4 where no broker took it in time; a second one ends at once
    with 130. Logs go to standard error.

    There are no passwords: whoever reaches the address may publish.
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
    run(settings, log_level, as_json=as_json)


def run(settings: GatewaySettings, log_level: str, *, as_json: bool) -> None:
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
