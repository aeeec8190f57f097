"""A node of the ring: it beats, keeps its view, decides the levels of the channels it owns, and polls its share.

Five loops on one event loop, and none of them waits for another: while no broker answers, the view stays as it is,
polls go on, and what they find waits. Decisions are elsewhere: who is on the ring in `ring_view`, who polls when in
`poll_schedule`, what an answer means in `polled_channel`, what a version is in `versions`, levels in `honeycomb`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
import numpy as np
import xxhash

from clarion.admin import Admin
from clarion.feeds.broker_clock import BrokerClock
from clarion.feeds.channels import PREFIX, channel_topic
from clarion.feeds.content import Unreadable, read_version
from clarion.feeds.fetcher import Fetched, Fetcher, FetchFailed, FetchSettings
from clarion.feeds.honeycomb import Channels, Clusters, Scheme, clusters_of, decide_alone, merge
from clarion.feeds.politeness import throttles
from clarion.feeds.poll_schedule import Slot, slots_of
from clarion.feeds.polled_channel import FOUND_KEPT, PolledChannel, Trouble, read_trouble, trouble_name
from clarion.feeds.polls import POLLS_TOPIC, PollRecord, encode_poll
from clarion.feeds.registry import Listed, channel_of, listed, look_at, notice_topic
from clarion.feeds.ring_view import (
    MISSED_BEATS,
    NOTICES_TOPIC,
    RING_TOPIC,
    Aggregate,
    Beat,
    Levels,
    NodeStatus,
    RingMessage,
    RingView,
    decode_ring_message,
    encode_ring_message,
)
from clarion.feeds.versions import Found, VersionStore
from clarion.feeds.websub import WebSubCallback
from clarion.model.errors import (
    BadSettings,
    BufferFull,
    ClarionError,
    InvalidRequest,
    MessagesGone,
    NoTopic,
    PermanentError,
    RetryableError,
    TakenOver,
)
from clarion.publisher import AsyncPublisher
from clarion.subscriber import AsyncSubscriber

log = logging.getLogger("clarion.feeds")
Result = TypeVar("Result")
_KEPT_S = {RING_TOPIC: 1800.0, NOTICES_TOPIC: 86_400.0, POLLS_TOPIC: 30 * 86_400.0}
_RECORDS_AT_ONCE = 500
_NOTICES_AT_ONCE = 100
_LEVELS_AT_ONCE = 2000
_HEAD_WITHIN_S = 2.0  # polls do not wait for a broker that is away
_SIZES_BEATS = 5  # after which a node tells of sizes that it learnt
_COMMITS_AT_ONCE = 4  # a client makes one transaction at a time; what waits for its turn there runs out of time
_MADE_UP_S = 0.1  # for which a host was asked too little, by polls that come late
_NEVER_CHANGED_S = 7 * 86_400.0  # update interval of a channel that nobody saw change


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """How a node works; the first six are the same for all nodes of a ring."""

    poll_interval_s: float = 1800.0  # tau
    base: int = 16
    scheme: Scheme = Scheme.LITE
    target_s: float | None = None  # of Corona-Fast
    beat_s: float = 2.0
    host_limit_per_s: float = 1.0  # polls of one host, by all nodes together
    maintenance_s: float = 300.0  # between two rounds of the three phases; they are hastened when something changes
    polls_at_once: int = 64
    poll_log: bool = True
    cache_control: bool = False  # respect for how long an answer says that it is fresh
    websub_callback: str = ""  # the URL by which hubs reach this node; none: hubs are not asked
    websub_listen: tuple[str, int] = ("127.0.0.1", 0)
    fetch: FetchSettings = field(default_factory=FetchSettings)

    def __post_init__(self) -> None:
        """Refuse what no node can work with."""
        for name in ("poll_interval_s", "beat_s", "host_limit_per_s", "maintenance_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise BadSettings(f"{name} is more than 0, not {getattr(self, name)}")
        if (self.scheme is Scheme.FAST) != (self.target_s is not None):
            raise BadSettings("a target of detection is for the scheme fast, which needs one")


class Node:
    """Runs until `stop`; raises TakenOver where another node of its name starts."""

    def __init__(self, url: str | None, name: str, settings: NodeSettings, fetcher: Fetcher | None = None) -> None:
        self.name = name
        self._settings = settings
        self._incarnation = os.urandom(8).hex()
        self._dice = random.Random(self._incarnation)
        self._admin = Admin(url)
        self._client = AsyncSubscriber(url, f"feeds-node/{name}", prefetch=False)
        self._publisher = AsyncPublisher(url)
        self._versions = VersionStore(self._client, name)
        self._fetcher = fetcher or Fetcher(settings.fetch)
        self._websub: WebSubCallback | None = None
        if settings.websub_callback:
            self._websub = WebSubCallback(self._fetcher, settings.websub_callback, *settings.websub_listen)
        self._hubs_asked: set[str] = set()  # about which channels, by URL
        self._threads = ThreadPoolExecutor(4, f"clarion-feeds-{name}")
        self.view = RingView()
        self.channels: dict[str, PolledChannel] = {}  # by topic
        self.slots: dict[str, Slot] = {}  # by topic, of those that this node polls
        self._ring = self.view.ring(settings.base)
        self._clock = BrokerClock()
        self._positions: dict[str, int | None] = {RING_TOPIC: None, NOTICES_TOPIC: None}
        self._due: list[tuple[float, int, str]] = []
        self._serial = 0
        self._wake = asyncio.Event()  # of the loop that polls
        self._reschedule = False
        self._rescan = False  # look at all channels anew
        self._phases_due = asyncio.Event()
        self._aggregates_seen: dict[str, bytes] = {}
        self._own_clusters = b""
        self._sizes_told = True  # of all channels that this node was the first to poll
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(settings.polls_at_once)
        self._commits_at_once = asyncio.Semaphore(_COMMITS_AT_ONCE)
        self._host_free_s: dict[str, float] = {}
        self._host_turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.counts = {"polls": 0, "changes": 0, "failures": 0, "log_dropped": 0, "versions_dropped": 0}

    # Running.

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Join the ring, and poll until `stop`."""
        loops: list[asyncio.Task[None]] = []
        try:
            await self._begin()
            if self._websub is not None:
                await self._websub.start()
                self._start(self._pushes(self._websub))
            if ready is not None:
                ready()
            parts = (self._beat_loop, self._look_loop, self._phases_loop, self._poll_loop, self._until_stopped)
            loops = [asyncio.create_task(part()) for part in parts]
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for task in (*loops, *self._tasks):
                task.cancel()
            await asyncio.gather(*loops, *self._tasks, return_exceptions=True)
            await self._leave()

    def stop(self) -> None:
        """Have it leave the ring and end."""
        self._stopping.set()

    async def _begin(self) -> None:
        for topic in _KEPT_S:
            await self._make_topic(topic)
        self._positions[NOTICES_TOPIC] = (
            await self._in_thread(lambda: self._admin.describe_topic(NOTICES_TOPIC))
        ).next_offset
        await self._read_ring()
        await self._agree()
        await self._beat_once(0)  # by which the broker's clock is known from the start
        await self._read_ring()
        await self._scan()

    async def _until_stopped(self) -> None:
        await self._stopping.wait()

    async def _make_topic(self, topic: str) -> None:
        await self._in_thread(
            lambda: self._admin.configure_topic(topic, retention="keep", max_age_s=_KEPT_S[topic], at_bound="trim")
        )

    async def _leave(self) -> None:
        try:
            if self._stopping.is_set():
                receipt = await self._tell(self._beat(leaving=True))
                if receipt is not None:
                    await receipt.result(timeout_s=2.0)
        except ClarionError as error:
            log.info("%s: leaving: %s", self.name, error)
        if self._websub is not None:
            await self._websub.close()
        for close in (self._fetcher.close(), self._publisher.close(timeout_s=2.0), self._client.close(timeout_s=2.0)):
            try:
                await close
            except ClarionError as error:
                log.info("%s: leaving: %s", self.name, error)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._admin.close()

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _now_s(self) -> float:
        """Return the broker's time, as far as it is known."""
        return self._clock.now_s(time.time())

    # Beating.

    def _beat(self, number: int = 0, *, leaving: bool = False) -> Beat:
        settings = self._settings
        owned = sum(slot.is_owner for slot in self.slots.values())
        return Beat(
            node=self.name, incarnation=self._incarnation, number=number, beat_s=settings.beat_s, base=settings.base,
            poll_interval_s=settings.poll_interval_s, scheme=settings.scheme.value, target_s=settings.target_s,
            host_limit_per_s=settings.host_limit_per_s, leaving=leaving, channels=len(self.slots), owned=owned,
            polls=self.counts["polls"], changes=self.counts["changes"], failures=self.counts["failures"],
        )  # fmt: skip

    async def _beat_loop(self) -> None:
        """Beat; the next beat is sent when the last is answered, so that none of them piles up."""
        number = 0
        while True:
            number += 1
            began_s = time.monotonic()
            try:
                await self._beat_once(number)
            except ClarionError as error:
                log.warning("%s: a heartbeat was refused: %s", self.name, error)
            await asyncio.sleep(max(0.0, self._settings.beat_s - (time.monotonic() - began_s)))

    async def _beat_once(self, number: int) -> None:
        began_s = time.time()
        receipt = await self._tell(self._beat(number))
        if receipt is not None:
            await receipt.result()
            self._clock.on_sent(number, began_s, time.time())

    async def _tell(self, message: RingMessage) -> Any:
        """Put a message on the ring's topic; None where it cannot even be queued."""
        try:
            return await self._publisher.put(RING_TOPIC, encode_ring_message(message), wait=False)
        except BufferFull:
            log.warning("%s: the other nodes cannot be told anything for now", self.name)
            return None

    # Looking at the broker.

    async def _look_loop(self) -> None:
        while True:
            try:
                await self._read_ring()
                await self._read_notices()
            except ClarionError as error:
                log.info("%s: the view of the ring stays as it is: %s", self.name, error)
            if self.view.is_retired(self.name, self._incarnation):
                raise TakenOver(
                    f"another node named {self.name} has started, and this one ends: each node of a ring has a name of"
                    " its own"
                )
            if self._reschedule:
                self._schedule()
            await asyncio.sleep(min(1.0, self._settings.beat_s / 2))

    async def _read(self, topic: str) -> list[Any]:
        """Return the messages of a topic since the last look; all that are kept at the first."""
        position = self._positions[topic]
        try:
            found = await self._in_thread(
                lambda: list(self._admin.browse(topic, "earliest" if position is None else position))
            )
        except MessagesGone as gap:
            self._positions[topic] = gap.stop
            self._look_at_all()
            return []
        except (NoTopic, InvalidRequest):  # it was deleted, or made anew
            self._positions[topic] = None
            await self._make_topic(topic)
            self._look_at_all()
            return []
        if found:
            self._positions[topic] = found[-1].offset + 1
        return found

    async def _read_ring(self) -> None:
        levels_before = dict(self.view.levels)
        for message in await self._read(RING_TOPIC):
            committed_at_us = round(message.committed_at.timestamp() * 1e6)
            try:
                told = decode_ring_message(message.payload)
            except PermanentError as error:
                log.debug("%s", error)
                continue
            self.view.on_message(told, committed_at_us)
            if isinstance(told, Beat) and told.incarnation == self._incarnation:
                self._clock.on_committed(told.number, committed_at_us / 1e6)
        self.view.take_out()
        ring = self.view.ring(self._settings.base)
        if ring != self._ring:
            log.info("%s: the ring has %d nodes: %s", self.name, len(ring), ", ".join(ring.names[:20]))
            self._ring = ring
            self._reschedule = True
            self._phases_due.set()
        if self.view.levels != levels_before:
            self._reschedule = True

    async def _agree(self) -> None:
        """Refuse to join a ring whose nodes work otherwise: everybody computes who polls what from the same numbers. A
        node that does not beat while it is waited for is dead, and its word is nothing."""
        began_s, before = time.monotonic(), self.view.nodes
        while others := self._disagreeing():
            for name, node in others.items():
                if name not in before or node.at_us > before[name].at_us:
                    mine, theirs = self._beat().agreement, node.beat.agreement
                    differ = ", ".join(
                        f"{key} {theirs[key]} (here {mine[key]})" for key in mine if mine[key] != theirs[key]
                    )
                    raise BadSettings(f"node {name} is on this ring with {differ}; all nodes of a ring have the same")
            longest_s = min(60.0, max(MISSED_BEATS * node.beat.beat_s for node in others.values()))
            if time.monotonic() > began_s + longest_s:
                return
            await asyncio.sleep(0.1)
            await self._read_ring()

    def _disagreeing(self) -> dict[str, NodeStatus]:
        mine = self._beat().agreement
        return {
            name: node for name, node in self.view.nodes.items() if name != self.name and node.beat.agreement != mine
        }

    def _look_at_all(self) -> None:
        self._rescan = True
        self._phases_due.set()

    async def _read_notices(self) -> None:
        """Look at the channels that somebody subscribed to or unsubscribed from, or at all where these are many."""
        topics = {notice_topic(message.payload) for message in await self._read(NOTICES_TOPIC)}
        if len(topics) > _NOTICES_AT_ONCE or None in topics:
            self._look_at_all()
        elif topics:
            rows = await self._in_thread(lambda: [look_at(self._admin, topic) for topic in topics if topic is not None])
            await self._take_in([row for row in rows if row.subscriptions])
            for row in rows:
                if not row.subscriptions:
                    self.channels.pop(row.topic, None)
            self._schedule()
            self._phases_due.set()

    async def _scan(self) -> None:
        """Learn which channels there are, and what people want of them."""
        rows = await self._in_thread(lambda: listed(self._admin.topics(PREFIX)))
        wanted = [row for row in rows if row.subscriptions]
        for at in range(0, len(wanted), _RECORDS_AT_ONCE):
            await self._take_in(wanted[at : at + _RECORDS_AT_ONCE])
        topics = {row.topic for row in wanted}
        for topic in [topic for topic in self.channels if topic not in topics]:
            del self.channels[topic]
        self.view.forget_levels({channel.name for channel in self.channels.values()})
        self._schedule()

    async def _take_in(self, rows: list[Listed]) -> None:
        states = await self._client.states([row.record_name for row in rows])
        for row, state in zip(rows, states, strict=True):
            channel = channel_of(row, state)
            known = self.channels.get(row.topic)
            if channel is None:
                self.channels.pop(row.topic, None)
            elif known is None:
                self.channels[row.topic] = PolledChannel(
                    channel.topic, channel.url, channel.host, channel.rules, channel.subscribers
                )
            else:
                known.on_record(channel.url, channel.rules, channel.subscribers)

    # The three phases.

    async def _phases_loop(self) -> None:
        """Aggregation, optimisation and maintenance, again and again; at once where something changed."""
        retell_s = 0.0
        while True:
            try:
                whole = time.monotonic() >= retell_s
                due = whole or self._phases_due.is_set()  # else others told of theirs, and need no answer
                self._phases_due.clear()
                if self._rescan or whole:
                    self._rescan = False
                    await self._scan()
                if due:
                    await self._learn_heads(whole=whole)
                    await self._aggregate()
                await self._optimise(whole=whole)
                if whole:
                    retell_s = time.monotonic() + self._settings.maintenance_s
            except ClarionError as error:
                log.info("%s: levels stay as they are: %s", self.name, error)
                self._look_at_all()
            await self._pause(retell_s)

    async def _pause(self, retell_s: float) -> None:
        """Wait for a change, or the next round; for new sizes not at once, as many channels may be polled first."""
        sizes_s = time.monotonic() + _SIZES_BEATS * self._settings.beat_s
        await asyncio.sleep(min(1.0, self._settings.beat_s / 2))
        while not self._phases_due.is_set() and self.view.aggregates == self._aggregates_seen:
            left_s = retell_s - time.monotonic()
            if left_s <= 0:
                return
            if not self._sizes_told and time.monotonic() >= sizes_s:
                self._phases_due.set()
                return
            await asyncio.sleep(min(left_s, self._settings.beat_s / 2))

    def _owned(self) -> list[PolledChannel]:
        if not len(self._ring):
            return []
        return [one for one in self.channels.values() if self._ring.owner(one.watched.place) == self.name]

    async def _learn_heads(self, *, whole: bool) -> None:
        """Ask for the newest versions of channels that this node owns, or of those of which it knows none: what others
        found, and what nobody has polled yet."""
        owned = [channel for channel in self._owned() if whole or not channel.head_known]
        for at in range(0, len(owned), _RECORDS_AT_ONCE):
            some = owned[at : at + _RECORDS_AT_ONCE]
            heads = await self._versions.heads([channel.topic for channel in some])
            troubles = await self._client.states([trouble_name(channel.topic) for channel in some])
            for channel, trouble in zip(some, troubles, strict=True):
                channel.on_head(heads[channel.topic])
                channel.trouble = channel.trouble or read_trouble(trouble)  # told by another node, which is gone
        if any(channel.head is None and not channel.polled_at_s for channel in owned):
            self._schedule()

    def _facts(self, owned: list[PolledChannel]) -> Channels:
        heads = [channel.head for channel in owned]
        sizes = [
            float(max(1, channel.size or (head.size if head else 0)))
            for channel, head in zip(owned, heads, strict=True)
        ]
        updates = [head.update_interval_s if head else None for head in heads]
        return Channels(
            np.array([float(channel.watched.subscribers) for channel in owned]),
            np.array(sizes),
            np.array([_NEVER_CHANGED_S if one is None else max(1.5, one) for one in updates]),
        )

    async def _aggregate(self) -> None:
        """Tell the others of the channels that this node owns, where that has changed."""
        self._sizes_told = True
        clusters = clusters_of(self._facts(self._owned()), self._settings.scheme).encode()
        if clusters != self._own_clusters or self.name not in self.view.aggregates:
            self._own_clusters = clusters
            await self._tell(Aggregate(node=self.name, clusters=clusters))
        self.view.aggregates[self.name] = clusters

    def _clusters(self) -> dict[str, Clusters]:
        """Return what the nodes of the ring told of their channels, by name."""
        found = {}
        for name, told in sorted(self._aggregates_seen.items()):
            with suppress(PermanentError):  # it is somebody else's
                if name in self._ring:
                    found[name] = Clusters.decode(told)
        return found

    async def _optimise(self, *, whole: bool) -> None:
        """Decide the levels of own channels from all aggregates, and tell those that changed, or all of them."""
        self._aggregates_seen = dict(self.view.aggregates)
        owned = self._owned()
        if not owned:
            return
        settings = self._settings
        try:
            told_by = self._clusters()
            before = [clusters for name, clusters in told_by.items() if name < self.name]
            levels = decide_alone(
                self._facts(owned), merge(told_by.values()), len(self._ring), settings.base, settings.poll_interval_s,
                settings.scheme, settings.target_s, merge([*before, Clusters(settings.scheme)]),
            )  # fmt: skip
        except PermanentError as error:
            log.warning("%s: levels stay as they are: %s", self.name, error)
            return
        decided = {channel.name: int(level) for channel, level in zip(owned, levels, strict=True)}
        told = {name: level for name, level in decided.items() if whole or self.view.levels.get(name) != level}
        names = list(told)
        for at in range(0, len(names), _LEVELS_AT_ONCE):
            some = {name: told[name] for name in names[at : at + _LEVELS_AT_ONCE]}
            await self._tell(Levels(node=self.name, levels=some))
        if any(self.view.levels.get(name) != level for name, level in told.items()):
            self.view.levels.update(told)
            self._schedule()

    # Polling.

    def _schedule(self) -> None:
        """Work out anew which channels this node polls, and when each is due."""
        self._reschedule = False
        settings = self._settings
        watched = {channel.name: channel.watched for channel in self.channels.values()}
        by_name = slots_of(
            self.name, self._ring, watched, self.view.levels, settings.poll_interval_s, settings.host_limit_per_s
        )
        topics = {channel.name: topic for topic, channel in self.channels.items()}
        self.slots = {topics[name]: slot for name, slot in by_name.items()}
        self._due = []
        if self._websub is not None:
            self._change_hubs(self._websub)
        for topic in self.slots:
            self._push(self.channels[topic])
        self._wake.set()

    def _change_hubs(self, websub: WebSubCallback) -> None:
        """Have hubs tell this node of the channels that it owns, and of no others. Only a whole answer names a hub, so
        that a channel that is new here is asked for without conditions."""
        owned = {self.channels[topic].url: topic for topic, slot in self.slots.items() if slot.is_owner}
        for url in self._hubs_asked - owned.keys():
            websub.unsubscribe(url)
        for url in owned.keys() - self._hubs_asked:
            self.channels[owned[url]].forget()
        self._hubs_asked = set(owned)

    def _push(self, channel: PolledChannel) -> None:
        slot = self.slots.get(channel.topic)
        if slot is None or channel.polling:
            return
        now_s, host = self._now_s(), channel.watched.host
        slower = self.view.throttle.stretch(host, now_s)
        if slower > 1 and channel.polled_at_s:
            now_s = max(now_s, channel.polled_at_s + (slower - 1) * slot.interval_s)
        silent_s = (MISSED_BEATS + 1) * self._settings.beat_s  # that a node can be before it is taken out
        until_s = self.view.throttle.until_s(host)
        due_s = channel.due_s(slot, max(now_s, until_s), self._dice.random(), silent_s)
        self._serial += 1
        heapq.heappush(self._due, (due_s, self._serial, channel.topic))
        self._wake.set()

    def poll_now(self, url: str) -> None:
        """Poll a channel at once, where this node polls it: a hub says that there is news."""
        channel = self.channels.get(channel_topic(url))
        if channel is not None and channel.topic in self.slots:
            channel.soon = True
            self._push(channel)

    async def _pushes(self, websub: WebSubCallback) -> None:
        while True:
            self.poll_now(await websub.pushed.get())

    async def _poll_loop(self) -> None:
        while True:
            self._wake.clear()
            now_s = self._now_s()
            turns: dict[str, int] = {}
            while self._due and self._due[0][0] <= now_s:
                _, _, topic = heapq.heappop(self._due)
                channel = self.channels.get(topic)
                if (
                    channel is not None
                    and topic in self.slots
                    and not channel.polling
                    and self._may_ask(channel, now_s, turns)
                ):
                    channel.polling = True
                    self._start(self._poll(channel, self.slots[topic]))
            wait_s = self._due[0][0] - now_s if self._due else 60.0
            with suppress(TimeoutError):  # wait_for, before Python 3.12, would now and then not be cancelled
                async with asyncio.timeout(min(max(wait_s, 0.001), 60.0)):
                    await self._wake.wait()

    def _may_ask(self, channel: PolledChannel, now_s: float, turns: dict[str, int]) -> bool:
        """Tell whether a host may be asked now. Polls in their slots keep to its limit by themselves; those that are
        made at once, because a channel is new, wait for each other, in `turns`."""
        host, apart_s = channel.watched.host, len(self._ring) / self._settings.host_limit_per_s
        if self.view.throttle.until_s(host) > now_s:  # it was heard of since the channel became due
            self._push(channel)
            return False
        if channel.polled_at_s:
            return True
        free_s = max(self._host_free_s.get(host, 0.0), now_s - _MADE_UP_S)
        if free_s > now_s:
            turns[host] = turns.get(host, -1) + 1
            self._serial += 1
            heapq.heappush(self._due, (free_s + turns[host] * apart_s, self._serial, channel.topic))
            return False
        self._host_free_s[host] = free_s + apart_s
        return True

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a poll failed in a way that nobody thought of", self.name, exc_info=error)

    async def _poll(self, channel: PolledChannel, slot: Slot) -> None:
        try:
            async with self._host_turn(channel.watched.host), self._at_once:
                await self._ask_head(channel)
                asked, channel.soon = channel.soon, False
                began_s, began_us = time.monotonic(), self._clock.at_the_latest_us(time.time())
                self.counts["polls"] += 1
                try:
                    fetched = await self._fetcher.fetch(
                        channel.url, channel.etag, channel.last_modified, subscribers=channel.watched.subscribers
                    )
                    news = await self._read_answer(channel, fetched, began_us)
                    self._worked(channel, slot, fetched)
                    record = self._record(channel, slot, fetched.status, fetched.received_bytes, began_s)
                    record = msgspec.structs.replace(record, asked=asked)
                    if news is None:
                        await self._log_poll(record)
                    elif not channel.committing:
                        channel.committing = True
                        self._start(self._commit(channel, slot, record))
                except (FetchFailed, Unreadable) as error:
                    await self._failed(channel, slot, error, began_s)
        finally:
            channel.polled_at_s = self._now_s()
            channel.polling = False
            if self.channels.get(channel.topic) is channel:
                self._push(channel)

    def _host_turn(self, host: str) -> asyncio.Semaphore:
        """Return what polls of a host wait for, before their time runs, and without keeping others waiting."""
        turn = self._host_turns.get(host)
        if turn is None:
            turn = self._host_turns[host] = asyncio.Semaphore(self._settings.fetch.connections_per_host)
        return turn

    async def _ask_head(self, channel: PolledChannel) -> None:
        if not channel.head_known:
            try:
                async with asyncio.timeout(_HEAD_WITHIN_S):
                    channel.on_head(await self._versions.head(channel.topic))
            except (ClarionError, TimeoutError) as error:  # then the request is unconditional
                log.info("%s: %s: %s", self.name, channel.url, str(error) or "the broker does not answer")

    async def _read_answer(self, channel: PolledChannel, fetched: Fetched, began_us: int) -> Found | None:
        """Return what was found where it is news to this node."""
        if self._settings.cache_control:
            channel.max_age_s = fetched.max_age_s or 0.0
        if fetched.not_modified:
            channel.on_unchanged()
            return None
        body_hash = xxhash.xxh3_128_hexdigest(fetched.body)
        if not channel.needs_reading(body_hash):
            channel.on_unchanged()
            return None
        at_us = self._clock.at_the_earliest_us(time.time())
        content = await self._in_thread(
            lambda: read_version(fetched.body, fetched.content_type, fetched.url, channel.rules)
        )
        found = Found(content, fetched.etag, fetched.last_modified, len(fetched.body), began_us, at_us)
        if not channel.on_found(found, body_hash):
            return None
        while len(channel.found) > FOUND_KEPT:
            channel.found.popleft()
            self.counts["versions_dropped"] += 1
            log.warning("%s: %s: a version is dropped, too many wait for the broker", self.name, channel.url)
        return found

    async def _commit(self, channel: PolledChannel, slot: Slot, record: PollRecord) -> None:
        """Make what was found known, in order, and for as long as it takes."""
        pause_s = 0.1
        try:
            while channel.found:
                found = channel.found[0]
                slot = self.slots.get(channel.topic, slot)
                try:
                    async with self._commits_at_once:
                        outcome = await self._versions.commit(
                            channel.url, found, settled=channel.is_settled(found, is_owner=slot.is_owner)
                        )
                except RetryableError as error:
                    log.info("%s: %s: what was found waits: %s", self.name, channel.url, error)
                    await asyncio.sleep(pause_s * (1 + self._dice.random()))
                    pause_s = min(2 * pause_s, 5.0)
                    continue
                except Unreadable as error:
                    channel.found.popleft()
                    channel.on_other_form()
                    await self._failed(channel, slot, error, time.monotonic())
                    continue
                except ClarionError as error:
                    log.warning("%s: %s: what was found cannot be made known: %s", self.name, channel.url, error)
                    channel.found.clear()
                    channel.forget()
                    return
                channel.found.popleft()
                channel.on_outcome(found, outcome, is_owner=slot.is_owner)
                changed = outcome.delta is not None
                self.counts["changes"] += changed
                self._sizes_told &= outcome.head.version > 1
                if changed:
                    log.info("%s: %s: version %d", self.name, channel.url, outcome.head.version)
                await self._log_poll(msgspec.structs.replace(record, changed=changed))
                if channel.soon:
                    self._push(channel)
        finally:
            channel.committing = False

    # What becomes of polls.

    def _record(
        self, channel: PolledChannel, slot: Slot, status: int, received: int, began_s: float, error: str = ""
    ) -> PollRecord:
        level = self.view.levels.get(channel.name, self._ring.levels)
        return PollRecord(
            url=channel.url, node=self.name, at_us=time.time_ns() // 1000, status=status, bytes=received,
            size=channel.size, changed=False, took_ms=round((time.monotonic() - began_s) * 1e3, 3),
            level=min(level, self._ring.levels), subscribers=channel.watched.subscribers, error=error,
        )  # fmt: skip

    async def _log_poll(self, record: PollRecord) -> None:
        if not self._settings.poll_log:
            return
        try:
            await self._publisher.put(POLLS_TOPIC, encode_poll(record), wait=False)
        except BufferFull:
            self.counts["log_dropped"] += 1

    def _worked(self, channel: PolledChannel, slot: Slot, fetched: Fetched) -> None:
        if channel.trouble is not None:
            channel.trouble = None
            self._start(self._tell_trouble(channel))
        asked = self._websub if slot.is_owner and not fetched.not_modified else None
        if asked is not None:
            asked.subscribe(channel.url, fetched)
        if fetched.moved_to:
            log.debug("%s: %s moved to %s for good", self.name, channel.url, fetched.moved_to)

    async def _failed(
        self, channel: PolledChannel, slot: Slot, error: FetchFailed | Unreadable, began_s: float
    ) -> None:
        kind = error.kind if isinstance(error, FetchFailed) else "unreadable"
        retry_after_s = error.retry_after_s if isinstance(error, FetchFailed) else None
        status = (error.status or 0) if isinstance(error, FetchFailed) else 200
        self.counts["failures"] += 1
        now_s = self._now_s()
        if throttles(kind, channel.head is not None):
            await self._tell(self.view.throttle.on_throttled(channel.watched.host, now_s, retry_after_s))
        trouble = Trouble(kind=kind, text=str(error), at_us=time.time_ns() // 1000)
        channel.on_failure(trouble, now_s, slot.interval_s, retry_after_s, self._dice)
        is_news = channel.failures & (channel.failures - 1) == 0
        log.log(logging.INFO if is_news else logging.DEBUG, "%s: %s: %s", self.name, channel.url, error)
        await self._log_poll(self._record(channel, slot, status, 0, began_s, kind))
        if slot.is_owner and channel.is_to_be_told():
            self._start(self._tell_trouble(channel))

    async def _tell_trouble(self, channel: PolledChannel) -> None:
        """Tell at the broker that a channel cannot be had, or that it can again."""
        value = None if channel.trouble is None else msgspec.json.encode(channel.trouble)
        try:
            async with self._client.transaction() as tx:
                tx.set(trouble_name(channel.topic), value)
        except ClarionError as error:
            log.info("%s: %s: %s", self.name, channel.url, error)
