"""Deltas: what changed between two versions of a channel, as it travels on the topic and as people read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from difflib import SequenceMatcher
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
        name = _one_line(self.title) or self.url
        is_feed = self.form == "feed"
        if self.kind == "snapshot":
            said = f"; it has {_entries(len(self.changes) + self.left_out)}" if is_feed and self.changes else ""
            lines, shown = [f"{name}: you follow it now{said}"], _SHOWN_AT_FIRST
        else:
            lines, shown = [f"{name}: {_counted(self.changes) or 'it changed'}"], _SHOWN
        lines += [_shown(change, is_feed=is_feed) for change in self.changes[:shown]]
        if (more := len(self.changes) - shown + self.left_out) > 0:
            lines.append(f"… and {more} more")
        return "\n".join([*lines, self.url])


_SHOWN = 10
_SHOWN_AT_FIRST = 3
_TEXT_SHOWN = 300
_deltas = msgspec.json.Decoder(Delta)
# Control characters (a chat's stream ends at one), what turns the direction of text, and what no character is.
_STEERS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_MARKS = {"new": "+", "changed": "~", "gone": "-"}


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _counted(changes: tuple[Change, ...]) -> str:
    kinds = [change.kind for change in changes]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in _MARKS if kind in kinds)


def _one_line(text: str) -> str:
    """Return a text as one line of bounded length, with nothing in it that steers a screen or is not allowed in XML."""
    text = " ".join(_STEERS.sub(" ", text[: 4 * _TEXT_SHOWN]).split())
    return _cut(text, _TEXT_SHOWN)


def _shown(change: Change, *, is_feed: bool) -> str:
    """Return a change as a line or two. The title of a piece of a page is that of its part, and says little."""
    text = change.title if is_feed and change.title else change.text or change.before or change.title
    shown = _one_line(text)
    if change.kind == "changed" and change.before and change.text:
        told = _words_changed(_one_line(change.before), _one_line(change.text))
        shown = f"{shown}: {told}" if is_feed and change.title else told
    return f"{_MARKS[change.kind]} {shown}" + (f"\n  {_one_line(change.link)}" if change.link else "")


def _words_changed(before: str, after: str) -> str:
    """Return a text as it is now, with what it was where it changed: Apples cost [3 → 5] euros."""
    was, now = before.split(), after.split()
    words: list[str] = []
    for kind, start, stop, begin, end in SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        gone, new = " ".join(was[start:stop]), " ".join(now[begin:end])
        words.append(
            {"equal": new, "replace": f"[{gone} → {new}]", "insert": f"[+ {new}]", "delete": f"[- {gone}]"}[kind]
        )
    return " ".join(words)


def readable_together(deltas: Sequence[Delta], most_chars: int) -> str:
    """Return deltas as one text of at most so many characters (100 or more), with a blank line between each two; those
    that have no room are counted."""
    room = most_chars - len(f"\n\n… and {len(deltas)} more")
    text = _cut(deltas[0].readable(), room)
    told = 1
    for delta in deltas[1:]:
        longer = f"{text}\n\n{delta.readable()}"
        if len(longer) > room:
            break
        text, told = longer, told + 1
    more = len(deltas) - told
    return f"{text}\n\n… and {more} more" if more else text


def _cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else text[: most_chars - 1] + "…"


def encode_delta(delta: Delta) -> bytes:
    """Return a delta as the payload of a message: JSON."""
    return msgspec.json.encode(delta)


def delta_of(payload: bytes) -> Delta | None:
    """Return the delta of a message; None where somebody else put something on a channel's topic."""
    try:
        return decode_delta(payload)
    except PermanentError:
        return None


def decode_delta(payload: bytes) -> Delta:
    """Return the delta of a message; PermanentError where it is none."""
    try:
        return _deltas.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this message is no delta of a channel: {error}") from error
