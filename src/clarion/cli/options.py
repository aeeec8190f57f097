"""Options and arguments that several commands share, and how their text is read."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import typer

from clarion.cli.units import read_number, read_some_time_s, read_time
from clarion.model.address import DEFAULT_URL as DEFAULT_URL
from clarion.model.names import from_text

DEFAULT_TIMEOUT_S = 5.0
# As somebody would type it: the option's parser reads it.
DEFAULT_TIMEOUT: float = f"{DEFAULT_TIMEOUT_S:g}s"  # type: ignore[assignment]


def read_name(text: str) -> bytes:
    """Read a topic's or subscriber's name: UTF-8 as it is, any other bytes as b64:…"""
    try:
        name = from_text(text)
    except UnicodeEncodeError:
        raise typer.BadParameter("it is not UTF-8; give such a name as b64: and its bytes in base64") from None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not name:
        raise typer.BadParameter("a name has at least one byte")
    return name


def read_value(text: str) -> bytes:
    """Read a key or a header's value, in the same form as a name; it may be empty."""
    return read_name(text) if text else b""


def read_headers(pairs: list[str]) -> dict[str, bytes] | None:
    """Read headers given as name=value."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"a header is name=value, not {pair!r}", param_hint="--header")
        headers[name] = read_value(value)
    return headers or None


def read_start(text: str, option: str = "--start") -> Literal["new", "earliest"] | int | datetime:
    """Read where a subscription starts: new (or end), earliest, an offset or a date and time."""
    if text in ("new", "end"):
        return "new"
    if text == "earliest":
        return "earliest"
    try:
        return read_number(text) if text.isdigit() else read_time(text)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"it is new, earliest, an offset like 1200, or a date and time like 2026-01-31T12:00:00Z, not {text!r}",
            param_hint=option,
        ) from None


Topic = Annotated[
    bytes,
    typer.Argument(
        parser=read_name, metavar="TOPIC", help="Name of the topic; for bytes that are not UTF-8, b64: and base64."
    ),
]
TopicOrPattern = Annotated[
    bytes,
    typer.Argument(
        parser=read_name,
        metavar="TOPIC",
        help="Name of the topic, or a pattern like 'alerts/*' or 'alerts/#'; for bytes that are not UTF-8, b64: and"
        " base64.",
    ),
]
SubscriberArgument = Annotated[
    bytes, typer.Argument(parser=read_name, metavar="NAME", help="Name of the subscriber, as in --as.")
]
SubscriberName = Annotated[
    bytes,
    typer.Option(
        "--as", parser=read_name, metavar="NAME", help="Name of the subscriber: the broker remembers what it has read."
    ),
]
Start = Annotated[
    str,
    typer.Option(
        "--start",
        metavar="WHERE",
        help="First message to see: new (ones only), earliest (kept), an offset, or a time"
        " (2026-01-31T12:00:00Z; without a zone it is local time).",
    ),
]
Key = Annotated[
    str | None, typer.Option("--key", help="Key of the messages; for other bytes than text, b64: and base64.")
]
Headers = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")]
Url = Annotated[str, typer.Option("--url", envvar="CLARION_URL", metavar="URL", help="Address of the broker.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        parser=read_some_time_s,
        metavar="TIME",
        help="How long to wait for a broker that does not answer (5s, 500ms).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON objects, one a line, for programs; errors too.")]
