"""What commands print: JSON for programs, tables for people, and numbers, times and messages that people can read."""

from __future__ import annotations

import base64
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from clarion.model.arguments import SECONDS
from clarion.model.errors import MessagesUnreadable, PermanentError
from clarion.model.names import to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from clarion.subscriber import Message, MessageBatch

_MANY_ROWS = 100  # of a table
_WIDTH_WITHOUT_TERMINAL = 10_000  # wide enough that nothing is cut where another program reads


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object in one line, at once."""
    print(msgspec.json.encode(value).decode(), flush=True)


def print_result(value: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print what a command did: JSON for programs, or a line for people."""
    if as_json:
        print_json(value)
    else:
        print(text)


def standard_output() -> int:
    """Return the descriptor of standard output; PermanentError where who started us closed it."""
    if sys.stdout is None:
        raise PermanentError("standard output is closed: there is nowhere to write messages")
    return sys.stdout.fileno()


def console(*, stderr: bool = False) -> Console:
    """Return a console that neither wraps nor colours what goes into a file or pipe."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # how a command ends is not for Rich to decide

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Screen(file=stream, width=width, highlight=False)


def show_again(pictures: Iterable[RenderableType], every_s: float) -> None:
    """Show one picture after the other, until Ctrl-C: on a terminal over each other, in a file or pipe below."""
    from rich.live import Live

    screen = console()
    drawn = Live(console=screen, auto_refresh=False) if screen.is_terminal else None
    with drawn or nullcontext():
        for picture in pictures:
            if drawn is None:
                screen.print(picture)
            else:
                drawn.update(picture, refresh=True)
            time.sleep(every_s)


def plain_table(columns: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Return an empty table; columns named in `numbers` are set to the right."""
    from rich.cells import cell_len, set_cell_size
    from rich.segment import Segment
    from rich.table import Table

    class Plain(Table):
        def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
            """Set what fits without wrapping ourselves: Rich takes most of a millisecond for a row."""
            heads = [[str(column.header)] if self.show_header else [] for column in self.columns]
            cells = [[*head, *map(str, column.cells)] for head, column in zip(heads, self.columns, strict=True)]
            widths = [max(map(cell_len, column), default=0) for column in cells]
            is_plain = not any(row.style for row in self.rows) and all(map(str.isprintable, chain(*cells)))
            if len(self.rows) < _MANY_ROWS or not is_plain or sum(widths) + 2 * len(widths) - 2 > options.max_width:
                yield from super().__rich_console__(screen, options)
                return
            rights = [column.justify == "right" for column in self.columns]
            for number, row in enumerate(zip(*cells, strict=True)):
                line = "  ".join(
                    " " * (width - cell_len(cell)) + cell if right else set_cell_size(cell, width)
                    for cell, width, right in zip(row, widths, rights, strict=True)
                )
                yield Segment(line, screen.get_style("bold") if self.show_header and number == 0 else None)
                yield Segment.line()

    table = Plain(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table


def add_row(table: Table, *cells: str, style: str | None = None) -> None:
    """Add a row of plain text; names that look like markup stay as they are."""
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells), style=style)


def table_of(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = (), *, show_header: bool = True
) -> Table:
    """Return a table of rows of plain text."""
    table = plain_table(columns, numbers)
    table.show_header = show_header
    for cells in rows:
        add_row(table, *cells)
    return table


def readable_bytes(count: float) -> str:
    """Return a number of bytes as people say it: 0 B, 999 B, 1.5 KB, 2.0 GB (powers of 1000)."""
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if abs(count) < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def one_line(text: str) -> str:
    """Return a text without its line breaks."""
    return " ".join(text.split())


def counted(count: int, thing: str) -> str:
    """Return a number with its noun: 1 message, 2 messages, 1,000 messages."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def readable_duration(seconds: float) -> str:
    """Return a duration as people say it, in the two largest units that it has: 250ms, 12s, 1h 30m, 7d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms" if seconds else "0s"
    if seconds < 60 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    left = round(seconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, left = divmod(left, int(SECONDS[unit]))
        if count:
            parts.append(f"{count:,}{unit}")
        elif parts:  # nothing between: what follows is too small to tell
            break
    return " ".join(parts[:2])


def all_fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return every field with its name, also those at their default."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def iso(time: datetime | None) -> str | None:
    """Return a time for programs."""
    return None if time is None else time.isoformat()


def age(time: datetime | None) -> str:
    """Return how long ago that was, for people."""
    return "" if time is None else readable_duration(max(0, round((datetime.now(UTC) - time).total_seconds())))


def local_time(time: datetime | None) -> str:
    """Return a time for people: where they are, to the second."""
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"


def text_lines(part: MessageBatch) -> list[bytes]:
    """Return each payload with a newline after it."""
    return [payload + b"\n" for payload in part.payloads()]


def text_lines_with_topic(part: MessageBatch) -> list[bytes]:
    """Return each payload after its topic and a tab, with a newline after it."""
    topic = to_text(part.topic).encode() + b"\t"
    return [topic + payload + b"\n" for payload in part.payloads()]


def whole_payloads(part: MessageBatch) -> list[bytes]:
    """Return each payload as it is."""
    return part.payloads()


def json_lines(part: MessageBatch) -> list[bytes]:
    """Return each message as a JSON object with a newline after it, and how often it was handed out."""
    return [json_line(message, attempt=part.attempt) for message in part.messages()]


def json_line(message: Message, **more: int) -> bytes:
    """Return a message as a JSON object with a newline after it."""
    return msgspec.json.encode(describe_message(message) | more) + b"\n"


def describe_message(message: Message) -> dict[str, Any]:
    """Return a message as JSON shows it: bytes in their text form, a payload that is not UTF-8 in base64."""
    return {
        "topic": to_text(message.topic),
        "offset": message.offset,
        "id": str(message.id),
        "key": value_text(message.key),
        "headers": _headers(message),
        "committed_at": message.committed_at.isoformat(),
        **text_or_base64("payload", message.payload),
    }


def _headers(message: Message) -> dict[str, str | None] | None:
    try:
        return {name: value_text(value) for name, value in message.headers.items()}
    except MessagesUnreadable:  # they are no map of text to bytes; the rest of the message is to be seen
        return None


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return bytes under their name where they are UTF-8, else in base64 under name_b64."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(value).decode()}


def payload_glance(payload: bytes, most: int) -> str:
    """Return the beginning of a payload for a table: one line, or what can be said about other bytes than text."""
    try:
        text = payload[: 8 * most].decode()
    except UnicodeDecodeError as error:
        if len(payload) <= 8 * most or error.start < 8 * most - 4:  # not just a character cut in two
            return f"({len(payload):,} bytes, not text)"
        text = payload[: error.start].decode()
    line = one_line(text)
    if not line.isprintable():
        line = "".join(character if character.isprintable() else "�" for character in line)
    return line if len(line) <= most and len(payload) <= 8 * most else f"{line[: most - 1]}…"


def value_text(value: bytes | None) -> str | None:
    """Return the text form of a key or header, as for names; an empty one is empty, and none is None."""
    return to_text(value) if value else None if value is None else ""
