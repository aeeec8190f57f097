"""Channels: web resources that are watched. Each has a normalised URL, a place on the ring, a topic and a record.

The topic is what subscribers take; that it has subscriptions is what makes a channel be polled. The record is a named
state of the broker, with what people asked for beside the URL: rules about what counts as a change.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import msgspec
from yarl import URL

from clarion.model.errors import PermanentError
from clarion.overlay import ring_id

PREFIX = "feeds/"
_MOST_BYTES = 900  # of a URL within the name of a topic
_URL_MOST_BYTES = 4096
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]*(%[a-z0-9._-]+)?", re.IGNORECASE)


class BadUrl(PermanentError):
    """This is no URL that can be watched; nothing was done."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts in a channel: parts of a page to keep and to leave out, each a CSS selector or an XPath (`//…`)."""

    keep: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()


class ChannelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a channel beside its versions; in the state `record_name(url)`."""

    url: str
    rules: Rules = Rules()
    subscribed_at_us: int = 0


_records = msgspec.json.Decoder(ChannelRecord)


def normalise_url(text: str) -> str:
    """Return the one form of a URL: http or https, host in lower case and ASCII, no fragment; BadUrl otherwise."""
    shown = text if len(text) < 200 else text[:200] + "…"
    try:
        url = URL(str(URL(text.strip())))  # twice: what yarl makes of the strangest ones it does not read again
    except (ValueError, IndexError) as error:
        raise BadUrl(f"{shown!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https"):
        raise BadUrl(f"{shown!r} is not watched: only http:// and https:// are")
    if not url.raw_host:
        raise BadUrl(f"{shown!r} names no host")
    if not _HOST.fullmatch(host := url.raw_host.rstrip(".")):
        raise BadUrl(f"{shown!r} names no host: {url.host!r} is none")
    if url.user is not None or url.password is not None:
        raise BadUrl("a URL with a user's name or password is not watched: all who see the topic would see them")
    if host != url.raw_host:  # a dot at its end says that it is whole
        url = url.with_host(host)
    found = str(url.with_fragment(None).with_path(url.raw_path or "/", encoded=True, keep_query=True))
    if len(found) > _URL_MOST_BYTES:
        raise BadUrl(f"{shown!r} is longer than {_URL_MOST_BYTES} bytes")
    return found


def channel_topic(url: str) -> str:
    """Return the topic of a channel: `feeds/` and its URL, or its host and hash where that is too long for a name. No
    such name is a pattern."""
    if len(url) > _MOST_BYTES:
        return f"{PREFIX}{URL(url).origin()}/~{ring_id(url):040x}"
    return PREFIX + "/".join(quote(part, safe="") if part == "*" else part for part in url.split("/"))


def channel_id(topic: str) -> int:
    """Return a channel's place on the ring: the id of its topic."""
    return ring_id(topic)


def channel_hash(topic: str) -> str:
    """Return the id of a channel's topic as 40 hexadecimal digits: short enough for names of states."""
    return f"{ring_id(topic):040x}"


def record_name(channel: str) -> str:
    """Return the name of the state that holds the record of a channel, by its hash."""
    return f"clarion/feeds/channels/{channel}"


def read_record(value: bytes) -> ChannelRecord:
    """Return a channel's record; PermanentError where the state holds none."""
    try:
        return _records.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PermanentError(f"this is no record of a channel: {error}") from error
