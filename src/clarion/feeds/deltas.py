"""Deltas: what changed between two versions of a channel, as it travels on the topic and as people read it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from clarion.model.errors import PermanentError

Form = Literal["feed", "page", "lines", "bytes"]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that changed: an entry of a feed, or a piece of a page's text."""

    kind: Literal["new", "changed", "gone"]
    id: str = ""  # of the entry; of a page's piece: none
    title: str = ""
    link: str = ""
    text: str = ""  # as it is now
    before: str = ""  # as it was, where it changed or is gone
    published: str = ""  # as the feed says


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version of a channel: as a snapshot where it is the first, and as what changed since the version before."""

    url: str
    version: int  # from 1 on, without gaps
    kind: Literal["snapshot", "delta"]
    form: Form
    title: str = ""
    found_at_us: int = 0  # when the poll was answered that found it, by the node's clock
    node: str = ""
    changes: tuple[Change, ...] = ()
    left_out: int = 0  # changes beyond what one delta holds

    @property
    def found_at(self) -> datetime:
        """When it was found."""
        return datetime.fromtimestamp(self.found_at_us / 1e6, UTC)

    def readable(self) -> str:
        """Return it as people read it in a chat or a mail: a line that says what it is, and then what changed."""
        name = self.title or self.url
        if self.kind == "snapshot":
            lines = [f"{name}: you follow it now" + _some(self.changes, " has")]
        else:
            lines = [f"{name}: {_counted(self.changes) or 'it changed'}"]
        lines += [_shown(change) for change in self.changes[:_SHOWN]]
        if (more := len(self.changes) - _SHOWN + self.left_out) > 0:
            lines.append(f"… and {more} more")
        return "\n".join([*lines, self.url])


_SHOWN = 10
_TEXT_SHOWN = 300
_deltas = msgspec.json.Decoder(Delta)
_MARKS = {"new": "+", "changed": "~", "gone": "-"}


def _some(changes: Iterable[Change], verb: str) -> str:
    count = sum(1 for _ in changes)
    return f"; it{verb} {count} {'entry' if count == 1 else 'entries'}" if count else ""


def _counted(changes: tuple[Change, ...]) -> str:
    kinds = [change.kind for change in changes]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in _MARKS if kind in kinds)


def _shown(change: Change) -> str:
    text = change.title or change.text or change.before
    text = " ".join(text.split())
    shown = text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + "…"
    return f"{_MARKS[change.kind]} {shown}" + (f"\n  {change.link}" if change.link else "")


def encode_delta(delta: Delta) -> bytes:
    """Return a delta as the payload of a message: JSON."""
    return msgspec.json.encode(delta)


def decode_delta(payload: bytes) -> Delta:
    """Return the delta of a message; PermanentError where it is none."""
    try:
        return _deltas.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this message is no delta of a channel: {error}") from error
