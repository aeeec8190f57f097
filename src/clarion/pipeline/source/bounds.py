"""Where a read begins or ends, as an option names it: earliest, latest, an offset, a time, or one of these by topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import msgspec

from clarion.model.errors import InvalidRequest
from clarion.model.names import from_text, to_text

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"
Bound = Literal["earliest", "latest"] | int | datetime
_EXAMPLES = "earliest, latest, an offset like 1200, or a date and time like 2026-01-31T12:00:00Z (without a zone: UTC)"


@dataclass(frozen=True)
class Bounds:
    """One bound for all topics, but for those that are named; `others` None: whatever is usual."""

    others: Bound | None = None
    named: dict[bytes, Bound] = field(default_factory=dict)

    def of(self, topic: bytes, usual: Bound) -> Bound:
        """Give the bound of a topic."""
        return self.named.get(topic, usual if self.others is None else self.others)

    def check_named(self, option: str, topics: Iterable[bytes]) -> None:
        """Raise InvalidRequest where a topic is named that is not read."""
        strange = set(self.named) - set(topics)
        if strange:
            names = ", ".join(sorted(map(to_text, strange)))
            raise InvalidRequest(f"option {option}: it names {names}, which is not among the topics read")


def read_bounds(option: str, text: str) -> Bounds:
    """Read what an option says: a bound, or a JSON object of them by topic."""
    if not text.lstrip().startswith("{"):
        return Bounds(_read(option, text.strip()))
    try:
        values = msgspec.json.decode(text.encode(), type=dict[str, int | str])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidRequest(
            f'option {option}: {text} is not a JSON object like {{"alerts": 1200, "scores": "earliest"}}: {error}'
        ) from None
    return Bounds(None, {_topic(option, topic): _read(option, str(value)) for topic, value in values.items()})


def _topic(option: str, text: str) -> bytes:
    try:
        return from_text(text)
    except ValueError as error:
        raise InvalidRequest(f"option {option}: {error}") from None


def _read(option: str, text: str) -> Bound:
    if text.lower() == EARLIEST:
        return EARLIEST
    if text.lower() == LATEST:
        return LATEST
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # or no such day in UTC
        raise InvalidRequest(f"option {option}: it is {_EXAMPLES}, not {text!r}") from None
