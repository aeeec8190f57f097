"""What reports of all papers share: what was seen of a claim, and how numbers and tables are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """What the runs gave: in words, whether the claim holds, and the numbers it was judged by."""

    text: str
    holds: bool
    values: dict[str, Any]


def percent(ratio: float) -> str:
    """Return a ratio as a signed difference: +12 %."""
    return f"{100 * (ratio - 1):+.0f} %"


def listed(values: Iterable[float], form: str) -> str:
    """Return numbers in one form: 1.3 / 4.3 / 7.7."""
    return " / ".join(format(value, form) for value in values)


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *lines])


def word(holds: bool) -> str:
    """Return whether a claim holds, as tables say it."""
    return "yes" if holds else "**no**"
