"""Options, arguments and groups that several commands share, and how their text is read: 7d, 1h30m, 10GB, +10m."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

import typer
from typer.core import TyperGroup

from clarion.model.address import DEFAULT_URL as DEFAULT_URL
from clarion.model.arguments import duration_s, size_bytes
from clarion.model.names import from_text

Read = TypeVar("Read")
_NO_BOUND = ("none", "never")
_MOST_DIGITS = 15  # which every program can read again


def _parsed(read: Callable[[str], Read], text: str) -> Read:
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def read_duration_s(text: str) -> float:
    """Read a duration: 500ms, 30s, 1h30m, 7d, 2w, or seconds as a number."""
    return _parsed(duration_s, text)


def read_some_time_s(text: str) -> float:
    """Read a duration that is more than 0."""
    seconds = read_duration_s(text)
    if seconds <= 0:
        raise typer.BadParameter("a time of more than 0 is wanted here")
    return seconds


def read_bound_s(text: str) -> float:
    """Read a duration that may also be none, which is 0."""
    return 0.0 if text.strip().lower() in _NO_BOUND else read_duration_s(text)


def read_size(text: str) -> int:
    """Read a number of bytes: 500, 64KB, 1.5GB (powers of 1000), 64KiB (powers of 1024); none is 0."""
    return 0 if text.strip().lower() in _NO_BOUND else _parsed(size_bytes, text)


def read_count(text: str) -> int:
    """Read a number of things; none is 0."""
    return 0 if text.strip().lower() in _NO_BOUND else read_number(text)


def read_number(text: str | int) -> int:
    """Read a whole number, as an offset is: 1200, 1,000,000."""
    plain = str(text).strip().replace(",", "").replace("_", "")
    if not (plain.isascii() and plain.isdigit() and len(plain) <= _MOST_DIGITS):
        raise typer.BadParameter(
            f"a whole number from 0 on, of at most {_MOST_DIGITS} digits, is wanted here, not {text!r}"
        )
    return int(plain)


def read_some(text: str | int) -> int:
    """Read a whole number of 1 or more."""
    number = read_number(text)
    if not number:
        raise typer.BadParameter("a number of 1 or more is wanted here")
    return number


def read_time(text: str) -> datetime:
    """Read a date and time; without a zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"a date and time is like 2026-01-31T12:00:00Z, not {text!r}") from None


def read_later(text: str, now: datetime) -> datetime:
    """Read a time, or with + a duration from `now` on."""
    if not text.startswith("+"):
        return read_time(text)
    try:
        return now + timedelta(seconds=read_duration_s(text[1:]))
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is later than anybody can wait") from None


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


def read_pairs(pairs: Iterable[str], form: str, option: str) -> dict[str, str]:
    """Read what is given as name=value; `form` says so of it: "a header is name=value"."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{form}, not {pair!r}", param_hint=option)
        found[name] = value
    return found


def read_headers(pairs: list[str]) -> dict[str, bytes] | None:
    """Read headers given as name=value."""
    texts = read_pairs(pairs, "a header is name=value", "--header")
    return {name: read_value(value) for name, value in texts.items()} or None


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


# The word for an option's value says how the value is read.
_READERS: dict[str, Callable[[str], Any]] = {
    "TIME": read_some_time_s,
    "TIME|none": read_bound_s,
    "TIME|never": read_bound_s,
    "SIZE": read_size,
    "SIZE|none": read_size,
    "N": read_some,
    "N|none": read_count,
    "OFFSET": read_number,
}
# Or that the command reads it, as what it is annotated with.
_OTHER_WORDS = frozenset({
    "DIR", "FILE", "HOST:PORT", "ID", "LAKE", "LEVEL", "LIST", "NAME", "NAME=VALUE", "NETWORK", "OFFSET|earliest",
    "POLICY", "REASON", "TIME|+TIME", "TOPIC", "URL", "WHERE",
})  # fmt: skip


def option(default: Any, names: str, help: str, **more: Any) -> Any:
    """Return an option named as its help shows it: "--wait TIME". `default` is what somebody would type, or `...`."""
    words = names.split()
    word = None if words[-1].startswith("-") else words.pop()
    assert word is None or word in _READERS or word in _OTHER_WORDS or "parser" in more, (
        f"{word} is no word for a value"
    )
    told = {"metavar": word, "parser": _READERS.get(word or ""), "help": help, **more}
    return typer.Option(default, *words, **told)


def with_options(options: Iterable[tuple[str, Any, Any]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options to a command behind its own: the name, type and default of each. They reach it by keyword."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        made = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, kind, default in options
        ]
        command.__signature__ = own.replace(parameters=[*kept, *made])  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in (*kept, *made)}
        return command

    return add


def name_argument(default: Any, word: str, help: str, **more: Any) -> Any:
    """Return an argument that is the name of a topic, a subscriber or a state, or several of them."""
    return typer.Argument(default, metavar=word, help=help, parser=read_name, **more)


_OTHER_BYTES = "for bytes that are not UTF-8, b64: and base64."
_PATTERN = f"Name of the topic, or a pattern like 'alerts/*' or 'alerts/#'; {_OTHER_BYTES}"
Topic = Annotated[bytes, name_argument(..., "TOPIC", f"Name of the topic; {_OTHER_BYTES}")]
TopicOrPattern = Annotated[bytes, name_argument(..., "TOPIC", _PATTERN)]
StateName = Annotated[bytes, name_argument(..., "NAME", f"Name of the state; {_OTHER_BYTES}")]
SubscriberArgument = Annotated[bytes, name_argument(..., "NAME", "Name of the subscriber, as in --as.")]
SubscriberName = Annotated[
    bytes, option(..., "--as NAME", "Name of the subscriber: the broker remembers what it has read.", parser=read_name)
]
Start = Annotated[
    str,
    option(
        ...,
        "--start WHERE",
        "First message to see: new (ones only), earliest (kept), an offset, or a time"
        " (2026-01-31T12:00:00Z; without a zone it is local time).",
    ),
]
Key = Annotated[str | None, option(..., "--key", "Key of the messages; for other bytes than text, b64: and base64.")]
Headers = Annotated[list[str] | None, option(..., "--header NAME=VALUE", "A header; may be repeated.")]
Url = Annotated[str, option(..., "--url URL", "Address of the broker.", envvar="CLARION_URL")]
Timeout = Annotated[
    float, option(..., "--timeout TIME", "How long to wait for a broker that does not answer (5s, 500ms).")
]
AsJson = Annotated[bool, option(..., "--json", "Print JSON objects, one a line, for programs; errors too.")]
Yes = Annotated[bool, option(..., "--yes -y", "Do it without asking.")]
_HELP_OPTIONS = ("-h", "--help")
LIST = "list"


class ListsByDefault(TyperGroup):
    """Where options come first, or nothing at all, `list` is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.means_list(args):
            args = [LIST, *args]
        return super().parse_args(ctx, args)

    def means_list(self, args: list[str]) -> bool:
        """Whether these arguments, which follow the group's name, are those of `list`."""
        return not args or (args[0].startswith("-") and args[0] not in _HELP_OPTIONS)


class ListsNames(ListsByDefault):
    """What is not a command is the name of what is listed."""

    def means_list(self, args: list[str]) -> bool:
        return super().means_list(args) or (args[0] not in self.commands and args[0] not in _HELP_OPTIONS)
