"""What commands print: JSON for programs, tables for people, and numbers that people can read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDTH_WITHOUT_TERMINAL = 10_000  # wide enough that nothing is cut where another program reads


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object in one line, at once."""
    import msgspec

    print(msgspec.json.encode(value).decode(), flush=True)


def standard_output() -> int:
    """Give the descriptor of standard output; PermanentError where who started us closed it."""
    if sys.stdout is None:
        raise PermanentError("standard output is closed: there is nowhere to write messages")
    return sys.stdout.fileno()


def console(*, stderr: bool = False) -> Console:
    """Give a console that neither wraps nor colours what goes into a file or pipe."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # how a command ends is not for Rich to decide

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL
    return Screen(file=stream, width=width, highlight=False)


def plain_table(columns: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """Give an empty table; columns named in `numbers` are set to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    return table


def add_row(table: Table, *cells: str, style: str | None = None) -> None:
    """Add a row of plain text; names that look like markup stay as they are."""
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells), style=style)


def readable_bytes(count: float) -> str:
    """Give a number of bytes as people say it: 0 B, 999 B, 1.5 KB, 2.0 GB (powers of 1000)."""
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("KB", "MB", "GB"):
        count /= 1000
        if abs(count) < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} TB"


def counted(count: int, thing: str) -> str:
    """Give a number with its noun: 1 message, 2 messages, 1,000 messages."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
