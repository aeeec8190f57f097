"""`clarion request`: put a message and wait for somebody's answer."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from clarion.cli.failures import asking, tells_errors
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
from clarion.cli.put import publishing, read_message
from clarion.cli.units import read_some_time_s, readable_duration
from clarion.model.errors import TimedOut
from clarion.model.names import to_text


@tells_errors
def request(
    topic: Topic,
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="The question; left out, it is read from standard input.")
    ] = None,
    wait_s: Annotated[
        float,
        typer.Option("--wait", parser=read_some_time_s, metavar="TIME", help="How long to wait for the answer."),
    ] = "10s",  # type: ignore[assignment]
    no_newline: Annotated[bool, typer.Option("--no-newline", help="Print the bytes of the answer alone.")] = False,
    key: Key = None,
    headers: Headers = None,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
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
    from clarion.cli.printing import json_line

    if no_newline and as_json:
        raise typer.BadParameter("give --json or --no-newline, not both")
    packed_key = None if key is None else read_value(key)
    packed_headers = read_headers(headers or [])
    payload = os.fsencode(message) if message is not None else read_message()
    with asking(url, timeout_s) as admin:
        admin.hello()  # no need to wait for an answer where there is no broker
    with publishing(url, topic, timeout_s) as publisher:
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
    shape = json_line(answer) if as_json else answer.payload + (b"" if no_newline else b"\n")
    sys.stdout.buffer.write(shape)
    sys.stdout.buffer.flush()
