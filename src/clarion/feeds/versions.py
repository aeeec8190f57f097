"""Versions of channels, at the broker: a head and a content for each, and one transaction that makes the next.

The head says which version is the newest, and the hash of what counts in it. Whoever polls a channel and finds another
hash reads the content, and commits head, content and delta together, where the head is still the one it compared with.
So of all nodes that find a version one makes it known, and a node that dies has made it known as a whole or not at all.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple

import msgspec

from clarion.feeds.channels import channel_hash
from clarion.feeds.content import Version
from clarion.feeds.deltas import Delta, Form
from clarion.feeds.difference import difference, fitting, missed

_PART_BYTES = 60_000  # of a content in one state
_RECENT_KEPT = 8
_TRIES = 20


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest version of a channel; in the state `head_name(topic)`."""

    url: str
    version: int
    hash: str
    form: Form
    title: str = ""
    etag: str = ""
    last_modified: str = ""
    size: int = 0  # of the body, in bytes
    first_at_us: int = 0  # when version 1 was found
    found_at_us: int = 0
    seen_until_us: int = 0  # the content is what the server had at some moment before this, by the broker's clock
    node: str = ""  # that found it
    parts: int = 1  # of the content
    recent: tuple[str, ...] = ()  # hashes of versions before this one, the newest first

    @property
    def update_interval_s(self) -> float | None:
        """How long a version lasted on average; None where there was one only."""
        return None if self.version < 2 else max(1.0, (self.found_at_us - self.first_at_us) / 1e6 / (self.version - 1))


class Found(NamedTuple):
    """What a poll found, before anybody knows whether it is new."""

    content: Version
    etag: str
    last_modified: str
    size: int
    began_us: int  # the request, by the broker's clock: no later than this
    at_us: int  # the answer: no earlier


class Outcome(NamedTuple):
    """What became of something found: it is the newest version now, or was already; it is an old one come again; or the
    newest was found while this one was under way, so that nobody knows which of them came first."""

    kind: Literal["made", "known", "old", "late"]
    head: Head
    delta: Delta | None = None  # that was put; None, too, where a version differs in nothing that anybody is told


_heads = msgspec.json.Decoder(Head)


def head_name(topic: str) -> str:
    """Return the name of the state that holds the head of a channel."""
    return f"clarion/feeds/heads/{channel_hash(topic)}"


def content_name(topic: str, part: int) -> str:
    """Return the name of the state that holds a part of a channel's content."""
    return f"clarion/feeds/content/{channel_hash(topic)}/{part}"


def read_head(value: bytes | None) -> Head | None:
    """Return the head that a state holds; None where it holds none, or something else: then versions begin anew."""
    try:
        return None if value is None else _heads.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_old(head: Head, found: Found) -> bool:
    """Tell whether this is a version from before the newest, as servers that lag behind others still show it: unless
    the server says that it was modified since, one node's word is not enough."""
    if found.content.hash not in head.recent:
        return False
    return not _later(found.last_modified, head.last_modified)


def is_late(head: Head, found: Found) -> bool:
    """Tell whether something found may be from before the newest version: its request began before that was found. It
    cannot take its place; whoever found it looks once more."""
    return found.began_us <= head.seen_until_us


def _later(one: str, other: str) -> bool:
    try:
        return parsedate_to_datetime(one) > parsedate_to_datetime(other)
    except (TypeError, ValueError):  # one is missing, or is no time
        return False


class Step(NamedTuple):
    """What follows from something found."""

    head: Head
    content: Version  # to be kept
    delta: Delta
    told: bool  # whether anybody is told; a version may differ in nothing that counts
    late: bool


def next_step(head: Head | None, before: Version | None, found: Found, url: str, node: str, *, settled: bool) -> Step:
    """Return what follows from something found. FormChanged where a feed answers with a page, or the like, and nobody
    `settled` that it stays so."""
    late = head is not None and is_late(head, found)
    if late and before is not None:
        changes, kept = missed(before, found.content)
    else:
        changes, kept = difference(before, found.content, anew=settled)
    fit, left_out = fitting(changes)
    told = bool(changes) or head is None
    version = (0 if head is None else head.version) + told
    if late and head is not None:
        following = msgspec.structs.replace(head, version=version)
    else:
        following = _following(head, found, url, node, version)
    delta = Delta(
        url=url, version=version, kind="snapshot" if before is None else "delta", form=found.content.form,
        title=found.content.title, found_at_us=found.at_us, node=node, changes=fit,
        left_out=left_out + found.content.left_out * (before is None),
    )  # fmt: skip
    return Step(following, kept, delta, told, late)


def _following(head: Head | None, found: Found, url: str, node: str, version: int) -> Head:
    told = head is None or version > head.version
    return Head(
        url=url, version=version, hash=found.content.hash, form=found.content.form, title=found.content.title,
        etag=found.etag, last_modified=found.last_modified, size=found.size, node=node,
        first_at_us=found.at_us if head is None else head.first_at_us,
        found_at_us=found.at_us if head is None or told else head.found_at_us, seen_until_us=found.at_us,
        recent=() if head is None else (head.hash, *head.recent)[:_RECENT_KEPT],
    )  # fmt: skip
