"""The front end: subscribe to web resources, see what is followed and how, and read what changed."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from clarion.admin import Admin
from clarion.feeds.channels import (
    PREFIX,
    BadUrl,
    ChannelRecord,
    Rules,
    channel_hash,
    channel_id,
    channel_topic,
    normalise_url,
    record_name,
)
from clarion.feeds.deltas import Delta, delta_of
from clarion.feeds.poll_schedule import Watched, host_stretches, level_of
from clarion.feeds.polled_channel import Trouble, read_trouble, trouble_name
from clarion.feeds.registry import Channel, Listed, channel_of, kept_record, listed, notice_of
from clarion.feeds.ring_view import (
    NOTICES_KEPT_S,
    NOTICES_TOPIC,
    RING_TOPIC,
    NodeStatus,
    RingView,
    decode_ring_message,
)
from clarion.feeds.versions import Head, content_name, head_name, read_head
from clarion.model.errors import (
    MessagesGone,
    NoSubscriber,
    NoTopic,
    NotSubscribed,
    PermanentError,
    VersionConflict,
)
from clarion.model.names import to_bytes, to_text
from clarion.subscriber import Message, State, Subscriber

if TYPE_CHECKING:
    from clarion.feeds.fetcher import Fetcher

KEPT_S = 90 * 86_400.0  # deltas of a channel; those that a subscriber has not read stay
_STATES_AT_ONCE = 500
_TRIES = 20
_LOOK_S = 1.0
_AT_ONCE = 16  # subscriptions that are made


class NotFollowed(NotSubscribed):
    """Nobody follows this URL, or not under this name."""


class Subscribed(NamedTuple):
    """A subscription to a channel."""

    url: str  # in its one form
    topic: str
    name: str
    is_new: bool  # False: it was there already
    others: int  # who subscribe, too


class ChannelStatus(NamedTuple):
    """A channel as a list shows it."""

    url: str
    topic: str
    names: tuple[str, ...]  # of subscribers
    head: Head | None  # None where nobody has polled it yet
    trouble: Trouble | None
    waiting: int | None  # deltas that the subscriber who asks has not read

    def told(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        head, trouble = self.head, self.trouble
        return {
            "url": self.url, "topic": self.topic, "subscribers": len(self.names), "waiting": self.waiting,
            "title": head.title if head else None, "form": head.form if head else None,
            "version": head.version if head else 0, "found_at": moment(head.found_at_us) if head else None,
            "trouble": None if trouble is None else {"kind": trouble.kind, "text": trouble.text},
        }  # fmt: skip


class ChannelDetail(NamedTuple):
    """Everything that is known of a channel."""

    status: ChannelStatus
    rules: Rules
    deltas: tuple[Delta, ...]  # the last, oldest first
    nodes: int  # on the ring; 0 where none runs
    owner: str | None
    pollers: tuple[str, ...]
    level: int | None
    interval_s: float | None  # between two polls of one node
    detection_s: float | None  # expected: the mean time from a change to its delta

    def told(self) -> dict[str, Any]:
        """Return it as JSON shows it."""
        return {
            **self.status.told(), "names": list(self.status.names), "rules": msgspec.to_builtins(self.rules),
            "nodes": self.nodes, "owner": self.owner, "pollers": list(self.pollers), "level": self.level,
            "poll_interval_s": self.interval_s, "detection_s": self.detection_s,
            "deltas": [msgspec.to_builtins(delta) for delta in self.deltas],
        }  # fmt: skip


def moment(at_us: int) -> str:
    """Return a time for programs."""
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat()


class Feeds:
    """Subscribes to web resources at a broker, and tells of them. Safe from many threads; close it, or use `with`."""

    def __init__(self, url: str | None = None, *, timeout_s: float = 10.0) -> None:
        self._admin = Admin(url, timeout_s=timeout_s)
        self._client = Subscriber(url, f"feeds-{os.urandom(6).hex()}", prefetch=False, timeout_s=timeout_s)
        self._url = url

    # Subscribing.

    def subscribe(
        self, url: str, name: str, *, rules: Rules | None = None, max_attempts: int | None = None
    ) -> Subscribed:
        """Have a URL followed for a subscriber: its topic gets a durable subscription of this name, which sees every
        delta from now on. `rules` say what counts; they are the channel's, for all who follow it. None leaves them.
        With `max_attempts` the subscription is shared, and what failed so often goes to the dead letters."""
        url = normalise_url(url)
        if rules is not None:
            from clarion.feeds.page_text import check_rules

            check_rules(rules)
        topic = channel_topic(url)
        self._keep_record(topic, url, rules)
        self._keep_topic(topic)
        made = self._admin.subscribe(topic, name, shared=max_attempts is not None, max_attempts=max_attempts)
        self._notice(topic)
        others = sum(one.name != to_bytes(name) for one in self._admin.describe_topic(topic).subscriptions)
        return Subscribed(url, topic, name, made.is_new, others)

    def _keep_topic(self, topic: str) -> None:
        """Make a channel's topic; one that is kept already stays as somebody may have set it."""
        with suppress(NoTopic):
            if self._admin.describe_topic(topic).retention == "keep":
                return
        self._admin.configure_topic(topic, retention="keep", max_age_s=KEPT_S)

    def subscribe_many(self, urls: Iterable[str], name: str) -> int:
        """Have many URLs followed for a subscriber, with fewer requests than one by one; return how many are new to
        it. BadUrl where one is none, before anything is done."""
        wanted = {channel_topic(url): url for url in map(normalise_url, urls)}
        rows = {row.topic: row for row in listed(self._admin.topics(PREFIX)) if row.topic in wanted}
        followed = {topic for topic, row in rows.items() if any(one == to_bytes(name) for one, _ in row.subscriptions)}
        missing = [topic for topic in wanted if topic not in followed]
        for at in range(0, len(missing), _STATES_AT_ONCE):
            self._keep_records({topic: wanted[topic] for topic in missing[at : at + _STATES_AT_ONCE]})

        def subscribe(topic: str) -> bool:
            if topic not in rows:
                self._keep_topic(topic)
            return self._admin.subscribe(topic, name).is_new

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            made = sum(pool.map(subscribe, missing))
        if missing:
            self._notice("")
        return made

    def unsubscribe(self, url: str, name: str) -> bool:
        """End a subscription; False where there was none. What is kept of the channel stays; see `forget`."""
        url = normalise_url(url)
        try:
            ended = self._admin.unsubscribe(channel_topic(url), name)
        except (NoTopic, NotSubscribed):
            return False
        if ended:
            self._notice(channel_topic(url))
        return ended

    def forget(self, url: str) -> None:
        """Delete a channel that nobody follows: its topic with all deltas, and what is kept of its versions."""
        url = normalise_url(url)
        topic = channel_topic(url)
        names = [head_name(topic), record_name(channel_hash(topic)), trouble_name(topic)]
        try:
            followers = self._admin.describe_topic(topic).subscriptions
        except NoTopic:
            raise NotFollowed(f"nothing is kept of {url}") from None
        if followers:
            shown = ", ".join(to_text(one.name) for one in followers[:5])
            raise PermanentError(f"{url} is followed by {shown}; unsubscribe first. Nothing was deleted")
        head = read_head(self._client.state(head_name(topic)).value)
        names += [content_name(topic, part) for part in range(head.parts if head else 0)]
        with self._client.transaction() as tx:
            for state in names:
                tx.set(state, None)
        self._admin.delete_topic(topic)

    def _keep_record(self, topic: str, url: str, rules: Rules | None) -> None:
        name = record_name(channel_hash(topic))
        for _ in range(_TRIES):
            state = self._client.state(name)
            known = kept_record(state)
            if known is not None and (rules is None or rules == known.rules):
                return
            at_us = known.subscribed_at_us if known else time.time_ns() // 1000
            record = ChannelRecord(url=url, rules=rules or Rules(), subscribed_at_us=at_us)
            with suppress(VersionConflict):
                with self._client.transaction() as tx:
                    tx.set(name, msgspec.json.encode(record), expect=state.version)
                return
        raise PermanentError(f"others change what is kept of {url} all the time; nothing was changed")

    def _keep_records(self, urls: dict[str, str]) -> None:
        """Keep the records of channels that have none, by topic."""
        states = self._client.states([record_name(channel_hash(topic)) for topic in urls])
        at_us = time.time_ns() // 1000
        try:
            with self._client.transaction() as tx:
                for (topic, url), state in zip(urls.items(), states, strict=True):
                    if kept_record(state) is None:
                        record = ChannelRecord(url=url, subscribed_at_us=at_us)
                        tx.set(record_name(channel_hash(topic)), msgspec.json.encode(record), expect=state.version)
        except VersionConflict:  # others are at it, too
            for topic, url in urls.items():
                self._keep_record(topic, url, None)

    def _notice(self, topic: str) -> None:
        """Hasten the nodes, for one channel or, without its topic, for all; without it they would find out within
        their maintenance interval."""
        for _ in range(2):
            try:
                with self._client.transaction() as tx:
                    tx.put(NOTICES_TOPIC, notice_of(topic))
                return
            except NoSubscriber:  # the topic is not there yet
                self._admin.configure_topic(NOTICES_TOPIC, retention="keep", max_age_s=NOTICES_KEPT_S, at_bound="trim")

    # Looking.

    def channels(self, name: str | None = None) -> list[ChannelStatus]:
        """Return the channels that anybody follows, or those of one subscriber."""
        wanted = None if name is None else to_bytes(name)
        rows = [
            row
            for row in listed(self._admin.topics(PREFIX))
            if row.subscriptions and (wanted is None or any(one == wanted for one, _ in row.subscriptions))
        ]
        found: list[ChannelStatus] = []
        for at in range(0, len(rows), _STATES_AT_ONCE):
            some = rows[at : at + _STATES_AT_ONCE]
            names = [(row.record_name, head_name(row.topic), trouble_name(row.topic)) for row in some]
            states = iter(self._client.states([one for three in names for one in three]))
            for row in some:
                status = _status(row, next(states), next(states), next(states), wanted)
                if status is not None:
                    found.append(status)
        return found

    def show(self, url: str, deltas: int = 5) -> ChannelDetail:
        """Return everything that is known of a channel; NotFollowed where nobody follows it."""
        url = normalise_url(url)
        topic = channel_topic(url)
        rows = {row.topic: row for row in listed(self._admin.topics(PREFIX))}
        row = rows.get(topic)
        if row is None:
            followed = [status.url for status in self.channels()]
            hint = alike(url, followed) or ": clarion feeds subscribe URL"
            raise NotFollowed(f"nobody follows {url}{hint}")
        names = (row.record_name, head_name(topic), trouble_name(topic))
        record, head, trouble = self._client.states(names)
        status = _status(row, record, head, trouble, None)
        channel = channel_of(row, record)
        if status is None or channel is None:
            raise NotFollowed(f"the topic {topic} is no channel's")
        last = tuple(self._last_deltas(row, deltas))
        view = self.ring_view()
        if all(node.is_silent(time.time_ns() // 1000) for node in view.nodes.values()):
            return ChannelDetail(status, channel.rules, last, 0, None, (), None, None, None)
        return _detail(status, channel, last, view, rows)

    def nodes(self) -> dict[str, NodeStatus]:
        """Return the nodes that are on the ring, by name, as each told last."""
        return self.ring_view().nodes

    def ring_view(self) -> RingView:
        """Return the ring as its topic tells of it."""
        view = RingView()
        try:
            for message in self._admin.browse(RING_TOPIC, "earliest"):
                with suppress(PermanentError):
                    view.on_message(decode_ring_message(message.payload), round(message.committed_at.timestamp() * 1e6))
        except NoTopic:
            pass
        view.take_out()
        return view

    def _last_deltas(self, row: Listed, count: int) -> list[Delta]:
        start = max(0, row.next_offset - count)
        try:
            found = list(self._admin.browse(row.topic, start))
        except MessagesGone as gap:
            found = list(self._admin.browse(row.topic, gap.stop))
        return [delta for message in found if (delta := delta_of(message.payload)) is not None][-count:]

    def watch(self, name: str | None = None, *, wait_s: float | None = None) -> Iterator[tuple[Message, Delta] | None]:
        """Return deltas as they come, for ever, or until none came for `wait_s`: those of all channels from now on, or
        those that a subscriber has not read yet, each acked when the next one is asked for. None, about each second,
        says that there is nothing for now."""
        last_s = time.monotonic()
        with closing(self._news() if name is None else self._unread(name)) as source:
            for message in source:
                delta = None if message is None else delta_of(message.payload)
                if message is not None and delta is not None:
                    yield message, delta
                    last_s = time.monotonic()
                elif message is None:
                    yield None
                    if wait_s is not None and time.monotonic() - last_s >= wait_s:
                        return
                    time.sleep(_LOOK_S if wait_s is None else min(_LOOK_S, max(0.05, wait_s)))

    def _news(self) -> Generator[Message | None]:
        """Return what is put on topics of channels from now on; None each time that there is nothing more for now."""
        positions: dict[str, int] = {row.topic: row.next_offset for row in listed(self._admin.topics(PREFIX))}
        while True:
            for row in listed(self._admin.topics(PREFIX)):
                position = positions.get(row.topic, 0)
                try:
                    if row.next_offset > position:
                        for message in self._admin.browse(row.topic, position):
                            position = message.offset + 1
                            yield message
                except (MessagesGone, NoTopic):
                    position = row.next_offset
                positions[row.topic] = position
            yield None

    def _unread(self, name: str) -> Generator[Message | None]:
        wanted = to_bytes(name)
        with Subscriber(self._url, name, prefetch=False) as reader:
            while True:
                for row in listed(self._admin.topics(PREFIX)):
                    if any(one == wanted and cursor < row.next_offset for one, cursor in row.subscriptions):
                        with suppress(NotSubscribed, NoTopic):
                            yield from reader.stream(row.topic, wait_s=0.0)
                yield None

    def close(self) -> None:
        """Let go of the connections."""
        try:
            self._client.close(ack=False)
        finally:
            self._admin.close()

    def __enter__(self) -> Feeds:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def feed_of(url: str, fetcher: Fetcher) -> str:
    """Return the feed that a page offers, or the URL itself where it offers none; FetchFailed where it cannot be had
    now."""
    from clarion.feeds.discovery import find_feeds

    got = await fetcher.fetch(url)
    offered = find_feeds(got.body, got.content_type, got.url)
    try:
        return normalise_url(offered[0].url) if offered and offered[0].url != got.url else url
    except BadUrl:  # the page offers something that nobody can follow
        return url


def alike(url: str, followed: Iterable[str]) -> str:
    """Return what to add to "nobody follows this": what is followed of its host, such as the feed of a page."""
    host = url.split("//")[-1].split("/")[0].lower()
    found = [one for one in followed if one.split("//")[-1].split("/")[0] == host]
    shown = ", ".join(get_close_matches(url, found, 3, 0.0))
    return f"; what is followed of that host: {shown}{', …' if len(found) > 3 else ''}" if found else ""


def _status(row: Listed, record: State, head: State, trouble: State, wanted: bytes | None) -> ChannelStatus | None:
    channel = channel_of(row, record)
    if channel is None:
        return None
    waiting = next((row.next_offset - cursor for one, cursor in row.subscriptions if one == wanted), None)
    names = tuple(to_text(one) for one, _ in row.subscriptions)
    return ChannelStatus(channel.url, row.topic, names, read_head(head.value), read_trouble(trouble.value), waiting)


def _detail(
    status: ChannelStatus, channel: Channel, deltas: tuple[Delta, ...], view: RingView, rows: dict[str, Listed]
) -> ChannelDetail:
    """Return what the ring makes of a channel, as every node computes it."""
    beat = next(iter(view.nodes.values())).beat
    ring = view.ring(beat.base)
    place = channel_id(channel.topic)
    level = level_of(channel_hash(channel.topic), view.levels, ring)
    pollers = ring.pollers(place, level)
    host = channel.host
    beside = {
        channel_hash(topic): Watched(channel_id(topic), host, len(row.subscriptions))
        for topic, row in rows.items()
        if row.subscriptions and row.host == host
    }
    stretch = host_stretches(ring, beside, view.levels, beat.poll_interval_s, beat.host_limit_per_s).get(host, 1.0)
    interval_s = beat.poll_interval_s * stretch
    detection_s = interval_s / (2 * len(pollers)) if status.names else None
    return ChannelDetail(
        status, channel.rules, deltas, len(ring), ring.owner(place), pollers if status.names else (), level,
        interval_s, detection_s,
    )  # fmt: skip
