"""A node of the ring: it beats, keeps its view, decides the levels of the channels it owns, and has its share polled.

Loops on one event loop, none of which waits for another: while no broker answers, the view stays as it is, and polls
go on. Decisions are elsewhere: the ring in `ring_view`, who polls when in `poll_schedule`, levels in `honeycomb`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress

import numpy as np

from clarion.feeds.broker_clock import BrokerClock
from clarion.feeds.channels import PREFIX
from clarion.feeds.fetcher import Fetcher
from clarion.feeds.honeycomb import Channels, Clusters, clusters_of, decide_alone, merge
from clarion.feeds.node_broker import NodeBroker
from clarion.feeds.node_settings import NodeSettings
from clarion.feeds.poll_schedule import slots_of
from clarion.feeds.polled_channel import PolledChannel, read_trouble, trouble_name
from clarion.feeds.poller import Poller
from clarion.feeds.registry import Listed, channel_of, listed, look_at, notice_topic
from clarion.feeds.ring_view import (
    MISSED_BEATS,
    NOTICES_TOPIC,
    RING_TOPIC,
    Aggregate,
    Beat,
    Levels,
    NodeStatus,
    RingView,
    decode_ring_message,
)
from clarion.feeds.update_intervals import UNCHANGED_S
from clarion.feeds.version_store import VersionStore
from clarion.model.errors import BadSettings, ClarionError, PermanentError, RetryableError, TakenOver, TimedOut

log = logging.getLogger("clarion.feeds")
_RECORDS_AT_ONCE = 500
_NOTICES_AT_ONCE = 100
_LEVELS_AT_ONCE = 2000
_TELL_AGAIN_S = 900.0  # at the latest: who joins reads what the ring's topic keeps, which is half an hour
_SIZES_BEATS = 5  # after which a node tells of sizes that it learnt
_TRIED_AGAIN_S = 1.0  # after which a node tries to join that could not
_NOT_JOINED = "not on the ring yet, and goes on trying"
_VIEW_STAYS = "the view of the ring stays as it is, and polls go on"
_LEVELS_STAY = "levels stay as they are"
_LATE_S = 10.0  # for which a heartbeat waits until that is told
_BEATS_WAIT = "heartbeats wait for the broker; its own log says why, where it runs"
_NO_BEAT = "heartbeats are refused"


class Node:
    """Runs until `stop`; raises TakenOver where another node of its name starts."""

    def __init__(self, url: str | None, name: str, settings: NodeSettings, fetcher: Fetcher | None = None) -> None:
        self.name = name
        self._settings = settings
        self._incarnation = os.urandom(8).hex()
        self._broker = NodeBroker(url, name)
        self._versions = VersionStore(self._broker.client, name)
        self._fetcher = fetcher or Fetcher(settings.fetch)
        self._clock = BrokerClock(time.time() - time.monotonic())  # of the one here that nobody sets
        self.view = RingView()
        self.poller = Poller(
            name, settings, self._broker, self._versions, self._fetcher, self._clock, self.view.throttle,
            random.Random(self._incarnation),
        )  # fmt: skip
        self.channels: dict[str, PolledChannel] = {}  # by topic
        self._ring = self.view.ring(settings.base)
        self._reschedule = False
        self._rescan = False  # look at all channels anew
        self._phases_due = asyncio.Event()
        self._aggregates_seen: dict[str, bytes] = {}
        self._own_clusters = b""
        self._has_beaten = False
        self._stopping = asyncio.Event()

    # Running.

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Join the ring, and poll until `stop`."""
        try:
            await self._until_one_ends(self._begin, self._until_stopped)
            if not self._stopping.is_set():
                if ready is not None:
                    ready()
                await self._until_one_ends(
                    self._beat_loop, self._look_loop, self._phases_loop, self.poller.run, self._until_stopped
                )
        finally:
            await self._fetcher.close()
            await self._broker.leave(self._beat(leaving=True) if self._has_beaten and self._stopping.is_set() else None)

    async def _until_one_ends(self, *parts: Callable[[], Coroutine[None, None, None]]) -> None:
        tasks = [asyncio.create_task(part()) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Have it leave the ring and end."""
        self._stopping.set()

    async def _begin(self) -> None:
        """Join the ring, for as long as it takes: a broker and its nodes may be started in any order."""
        while True:
            try:
                await self._join()
            except RetryableError as error:
                self._broker.troubles.begins(_NOT_JOINED, error)
                await asyncio.sleep(_TRIED_AGAIN_S)
            else:
                self._broker.troubles.ends(_NOT_JOINED)
                return

    async def _join(self) -> None:
        await self._broker.begin()
        await self._read_ring()
        await self._agree()
        await self._beat_once(0)  # by which the broker's clock is known from the start
        await self._read_ring()
        await self._scan()

    async def _until_stopped(self) -> None:
        await self._stopping.wait()

    # Beating.

    def _beat(self, number: int = 0, *, leaving: bool = False) -> Beat:
        settings, counts = self._settings, self.poller.counts
        owned = sum(slot.is_owner for slot in self.poller.slots.values())
        return Beat(
            node=self.name, incarnation=self._incarnation, number=number, beat_s=settings.beat_s, base=settings.base,
            poll_interval_s=settings.poll_interval_s, scheme=settings.scheme.value, target_s=settings.target_s,
            host_limit_per_s=settings.host_limit_per_s, leaving=leaving, channels=len(self.poller.slots), owned=owned,
            polls=counts["polls"], changes=counts["changes"], failures=counts["failures"],
        )  # fmt: skip

    async def _beat_loop(self) -> None:
        """Beat; the next beat is sent when the last is answered, so that none of them piles up."""
        number = 0
        while True:
            number += 1
            began_s = time.monotonic()
            try:
                await self._beat_once(number)
                self._broker.troubles.ends(_NO_BEAT)
            except ClarionError as error:
                self._broker.troubles.begins(_NO_BEAT, error)
            await asyncio.sleep(max(0.0, self._settings.beat_s - (time.monotonic() - began_s)))

    async def _beat_once(self, number: int) -> None:
        began_s = time.monotonic()
        receipt = await self._broker.tell(self._beat(number))
        if receipt is not None:
            try:
                await receipt.result(timeout_s=_LATE_S)
            except TimedOut as error:  # it is sent for as long as it takes, and no other before
                self._broker.troubles.begins(_BEATS_WAIT, error)
                await receipt.result()
            self._broker.troubles.ends(_BEATS_WAIT)
            self._has_beaten = True
            self._clock.on_sent(number, began_s, time.monotonic())

    # Looking at the broker.

    async def _look_loop(self) -> None:
        while True:
            try:
                await self._read_ring()
                await self._read_notices()
                self._broker.troubles.ends(_VIEW_STAYS)
            except ClarionError as error:
                self._broker.troubles.begins(_VIEW_STAYS, error)
            except Exception:  # of some message that nobody thought of
                log.exception("%s: the view of the ring stays as it is", self.name)
            if self.view.is_retired(self.name, self._incarnation):
                raise TakenOver(
                    f"another node named {self.name} has started, and this one ends: each node of a ring has a name of"
                    " its own"
                )
            if self._reschedule:
                self._schedule()
            await asyncio.sleep(min(1.0, self._settings.beat_s / 2))

    async def _read_ring(self) -> None:
        levels_before = dict(self.view.levels)
        messages = await self._broker.read(RING_TOPIC)
        if messages is None:
            self._look_at_all()
        for message in messages or ():
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
                    raise BadSettings(
                        f"node {name} is on this ring with {differ}; all nodes of a ring have the same, so start this"
                        " one with these settings, or all of them anew with others"
                    )
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
        messages = await self._broker.read(NOTICES_TOPIC)
        topics = {None} if messages is None else {notice_topic(message.payload) for message in messages}
        if len(topics) > _NOTICES_AT_ONCE or None in topics:
            self._look_at_all()
        elif topics:
            rows = await self._broker.in_thread(
                lambda: [look_at(self._broker.admin, topic) for topic in topics if topic is not None]
            )
            await self._take_in([row for row in rows if row.subscriptions])
            for row in rows:
                if not row.subscriptions:
                    self.channels.pop(row.topic, None)
            self._schedule()
            self._phases_due.set()

    async def _scan(self) -> None:
        """Learn which channels there are, and what people want of them."""
        rows = await self._broker.in_thread(lambda: listed(self._broker.admin.topics(PREFIX)))
        wanted = [row for row in rows if row.subscriptions]
        for at in range(0, len(wanted), _RECORDS_AT_ONCE):
            await self._take_in(wanted[at : at + _RECORDS_AT_ONCE])
        topics = {row.topic for row in wanted}
        for topic in [topic for topic in self.channels if topic not in topics]:
            del self.channels[topic]
        self.view.forget_levels({channel.name for channel in self.channels.values()})
        self._schedule()

    async def _take_in(self, rows: list[Listed]) -> None:
        states = await self._broker.client.states([row.record_name for row in rows])
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
                    retell_s = time.monotonic() + min(self._settings.maintenance_s, _TELL_AGAIN_S)
                self._broker.troubles.ends(_LEVELS_STAY)
            except ClarionError as error:
                self._broker.troubles.begins(_LEVELS_STAY, error)
                self._look_at_all()
            except Exception:
                log.exception("%s: levels stay as they are", self.name)
            await self._pause(retell_s)

    async def _pause(self, retell_s: float) -> None:
        """Wait for a change, or the next round; for new sizes not at once, as many channels may be polled first."""
        sizes_s = time.monotonic() + _SIZES_BEATS * self._settings.beat_s
        await asyncio.sleep(min(1.0, self._settings.beat_s / 2))
        while not self._phases_due.is_set() and self.view.aggregates == self._aggregates_seen:
            left_s = retell_s - time.monotonic()
            if left_s <= 0:
                return
            if not self.poller.sizes_told and time.monotonic() >= sizes_s:
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
            troubles = await self._broker.client.states([trouble_name(channel.topic) for channel in some])
            for channel, trouble in zip(some, troubles, strict=True):
                channel.on_head(heads[channel.topic])
                channel.trouble = channel.trouble or read_trouble(trouble.value)  # told by another node, which is gone
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
            np.array([UNCHANGED_S if one is None else max(1.5, one) for one in updates]),
        )

    async def _aggregate(self) -> None:
        """Tell the others of the channels that this node owns, where that has changed."""
        self.poller.sizes_told = True
        clusters = clusters_of(self._facts(self._owned()), self._settings.scheme).encode()
        if clusters != self._own_clusters or self.name not in self.view.aggregates:
            self._own_clusters = clusters
            await self._broker.tell(Aggregate(node=self.name, clusters=clusters))
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
            await self._broker.tell(Levels(node=self.name, levels=some))
        if any(self.view.levels.get(name) != level for name, level in told.items()):
            self.view.levels.update(told)
            self._schedule()

    def _schedule(self) -> None:
        """Work out anew which channels this node polls, and when."""
        self._reschedule = False
        settings = self._settings
        watched = {channel.name: channel.watched for channel in self.channels.values()}
        by_name = slots_of(
            self.name, self._ring, watched, self.view.levels, settings.poll_interval_s, settings.host_limit_per_s
        )
        topics = {channel.name: topic for topic, channel in self.channels.items()}
        slots = {topics[name]: slot for name, slot in by_name.items()}
        self.poller.schedule(slots, self.channels, max(1, len(self._ring)))
