"""Which channels there are: topics under `feeds/` that somebody subscribes to, with the records of what they want."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from yarl import URL

from clarion.admin import Admin
from clarion.feeds.channels import (
    PREFIX,
    BadUrl,
    ChannelRecord,
    Rules,
    channel_hash,
    channel_topic,
    normalise_url,
    read_record,
    record_name,
)
from clarion.model.errors import PermanentError
from clarion.subscriber import State
from clarion.wire.bodies import TopicRow


class Listed(NamedTuple):
    """A topic under `feeds/`, as the broker lists it."""

    topic: str
    subscriptions: tuple[tuple[bytes, int], ...]  # name and cursor
    next_offset: int

    @property
    def record_name(self) -> str:
        """The state that holds the channel's record."""
        return record_name(channel_hash(self.topic))

    @property
    def host(self) -> str:
        """The host that serves it, by its name alone."""
        try:
            return URL(self.topic.removeprefix(PREFIX)).host or ""
        except ValueError:  # nobody's channel
            return ""


class Channel(NamedTuple):
    """A channel, with what people want of it."""

    topic: str
    url: str
    rules: Rules
    subscribers: int

    @property
    def host(self) -> str:
        """The host that serves it: what must not be asked too often."""
        return URL(self.url).host or ""


def listed(rows: Iterable[TopicRow]) -> list[Listed]:
    """Return the topics that may be channels."""
    found = []
    for row in rows:
        try:
            topic = row.topic.decode()
        except UnicodeDecodeError:  # nobody's channel
            continue
        if topic.startswith(PREFIX):
            subscriptions = tuple((name, cursor) for name, cursor, _ in row.subscriptions)
            found.append(Listed(topic, subscriptions, row.next_offset))
    return found


def look_at(admin: Admin, topic: str) -> Listed:
    """Return a topic as the broker would list it; without subscriptions where there is none, or can be none."""
    try:
        found = admin.describe_topic(topic)
    except PermanentError:
        return Listed(topic, (), 0)
    return Listed(topic, tuple((one.name, one.cursor) for one in found.subscriptions), found.next_offset)


def notice_of(topic: str) -> bytes:
    """Return the notice that who subscribes to a channel has changed."""
    return msgspec.json.encode({"topic": topic})


def notice_topic(payload: bytes) -> str | None:
    """Return the channel's topic that a notice names; None where it names none."""
    try:
        topic = msgspec.json.decode(payload, type=dict[str, str])["topic"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return None
    return topic if topic.startswith(PREFIX) else None


def channel_of(one: Listed, state: State) -> Channel | None:
    """Return the channel of a topic, with its record where it has one: without, its name tells the URL. None where the
    topic is no channel's."""
    record = _record(one.topic, state)
    return None if record is None else Channel(one.topic, record.url, record.rules, len(one.subscriptions))


def kept_record(state: State) -> ChannelRecord | None:
    """Return the record that a state holds; None where it holds none, or something else."""
    try:
        return None if state.value is None else read_record(state.value)
    except PermanentError:
        return None


def _record(topic: str, state: State) -> ChannelRecord | None:
    try:
        record = kept_record(state) or ChannelRecord(url=normalise_url(topic[len(PREFIX) :]))
        return record if channel_topic(record.url) == topic else None
    except BadUrl:
        return None
