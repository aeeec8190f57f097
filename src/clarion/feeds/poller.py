"""Polling: each channel of a node when it is due, what the answer says, and how it is made known. For one event loop.

While no broker answers, polls go on, and what they find waits. What an answer means is decided in `polled_channel`,
and what follows from a version in `versions`.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import time
from collections.abc import Awaitable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from weakref import WeakValueDictionary

import msgspec
import xxhash

from clarion.feeds.broker_clock import BrokerClock
from clarion.feeds.channels import channel_topic
from clarion.feeds.content import Unreadable, read_version
from clarion.feeds.fetcher import Fetched, Fetcher, FetchFailed
from clarion.feeds.node_broker import NodeBroker
from clarion.feeds.node_settings import NodeSettings
from clarion.feeds.politeness import HostThrottle, throttles
from clarion.feeds.poll_schedule import Slot
from clarion.feeds.polled_channel import PolledChannel, Trouble, trouble_name
from clarion.feeds.polls import PollRecord
from clarion.feeds.ring_view import MISSED_BEATS
from clarion.feeds.version_store import VersionStore
from clarion.feeds.versions import Found
from clarion.feeds.websub import WebSubCallback
from clarion.model.errors import BadSettings, ClarionError, RetryableError

log = logging.getLogger("clarion.feeds")
_HEAD_WITHIN_S = 2.0  # polls do not wait for a broker that is away
_COMMITS_AT_ONCE = 4  # a client makes one transaction at a time; what waits for its turn there runs out of time
_SLOW_S = 5.0  # a host of which a poll took longer is slow, until one takes less
_FOUND_WAITS = "what is found waits, and is made known when the broker takes it"
_UNCONDITIONAL = "the broker cannot be asked what is known already, so that pages are asked for whole"
_MADE_UP_S = 0.1  # for which a host was asked too little, by polls that come late


class Poller:
    """Polls the channels that a node has slots for."""

    def __init__(
        self,
        name: str,
        settings: NodeSettings,
        broker: NodeBroker,
        versions: VersionStore,
        fetcher: Fetcher,
        clock: BrokerClock,
        throttle: HostThrottle,
        dice: random.Random,
    ) -> None:
        self._name = name
        self._settings = settings
        self._broker = broker
        self._versions = versions
        self._fetcher = fetcher
        self._clock = clock
        self._throttle = throttle
        self._dice = dice
        self._websub: WebSubCallback | None = None
        if settings.websub_callback:
            self._websub = WebSubCallback(fetcher, settings.websub_callback, *settings.websub_listen)
        self._hubs_asked: set[str] = set()  # about which channels, by URL
        self.slots: dict[str, Slot] = {}  # by topic
        self._channels: Mapping[str, PolledChannel] = {}  # by topic
        self._nodes = 1
        self._due: list[tuple[float, int, str]] = []
        self._serial = 0
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers = ThreadPoolExecutor(
            2, f"clarion-feeds-{name}-reader"
        )  # a page that takes long blocks no other work
        self._at_once = asyncio.Semaphore(settings.polls_at_once)
        self._slow_at_once = asyncio.Semaphore(max(1, settings.polls_at_once // 2))
        self._slow_hosts: set[str] = set()
        self._commits_at_once = asyncio.Semaphore(_COMMITS_AT_ONCE)
        self._host_free_s: dict[str, float] = {}
        self._host_turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.sizes_told = True  # whether the node has told of all channels that were polled for the first time here
        self.counts = {"polls": 0, "changes": 0, "failures": 0, "log_dropped": 0, "versions_dropped": 0}

    async def run(self) -> None:
        """Poll, until it is cancelled."""
        try:
            if self._websub is not None:
                await self._listen(self._websub)
                self._start(self._pushes(self._websub))
            await self._poll_loop()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._websub is not None:
                await self._websub.close()
            self._readers.shutdown(wait=False, cancel_futures=True)

    async def _listen(self, websub: WebSubCallback) -> None:
        try:
            await websub.start()
        except OSError as error:
            where = ":".join(map(str, self._settings.websub_listen))
            raise BadSettings(f"hubs cannot be listened for at {where}: {error.strerror or error}") from error

    def _now_s(self) -> float:
        """Return the broker's time, as far as it is known."""
        return self._clock.now_s(time.monotonic())

    # What is due.

    def schedule(self, slots: dict[str, Slot], channels: Mapping[str, PolledChannel], nodes: int) -> None:
        """Poll by these slots from now on; `nodes` is how many the ring has."""
        self.slots, self._channels, self._nodes = slots, channels, nodes
        self._due = []
        self._slow_hosts &= {channels[topic].watched.host for topic in slots}
        if self._websub is not None:
            self._change_hubs(self._websub)
        for topic in self.slots:
            self._push(self._channels[topic])
        self._wake.set()

    def _change_hubs(self, websub: WebSubCallback) -> None:
        """Have hubs tell this node of the channels that it owns, and of no others. Only a whole answer names a hub, so
        that a channel that is new here is asked for without conditions."""
        owned = {self._channels[topic].url: topic for topic, slot in self.slots.items() if slot.is_owner}
        for url in self._hubs_asked - owned.keys():
            websub.unsubscribe(url)
        for url in owned.keys() - self._hubs_asked:
            self._channels[owned[url]].forget()
        self._hubs_asked = set(owned)

    def _push(self, channel: PolledChannel) -> None:
        slot = self.slots.get(channel.topic)
        if slot is None or channel.polling:
            return
        now_s, host = self._now_s(), channel.watched.host
        slower = self._throttle.stretch(host, now_s)
        if slower > 1 and channel.polled_at_s:
            now_s = max(now_s, channel.polled_at_s + (slower - 1) * slot.interval_s)
        silent_s = (MISSED_BEATS + 1) * self._settings.beat_s  # that a node can be before it is taken out
        until_s = self._throttle.until_s(host)
        due_s = channel.due_s(slot, max(now_s, until_s), self._dice.random(), silent_s)
        self._serial += 1
        heapq.heappush(self._due, (due_s, self._serial, channel.topic))
        self._wake.set()

    def poll_now(self, url: str) -> None:
        """Poll a channel at once, where this node polls it: a hub says that there is news."""
        channel = self._channels.get(channel_topic(url))
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
                channel = self._channels.get(topic)
                if (
                    channel is not None
                    and topic in self.slots
                    and not channel.polling
                    and self._may_ask(channel, now_s, turns)
                ):
                    channel.polling = True
                    self._start(self._poll(channel, self.slots[topic]))
            wait_s = self._due[0][0] - now_s if self._due else 60.0
            with suppress(TimeoutError):
                async with asyncio.timeout(min(max(wait_s, 0.001), 60.0)):  # wait_for may lose that it is cancelled
                    await self._wake.wait()

    def _may_ask(self, channel: PolledChannel, now_s: float, turns: dict[str, int]) -> bool:
        """Tell whether a host may be asked now. Polls in their slots keep to its limit by themselves; those that are
        made at once, because a channel is new or a hub has news, wait for each other, in `turns`."""
        host, apart_s = channel.watched.host, self._nodes / self._settings.host_limit_per_s
        if self._throttle.until_s(host) > now_s:  # it was heard of since the channel became due
            self._push(channel)
            return False
        if channel.polled_at_s and not channel.soon:
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
            log.error("%s: a poll failed in a way that nobody thought of", self._name, exc_info=error)

    async def _poll(self, channel: PolledChannel, slot: Slot) -> None:
        host = channel.watched.host
        try:
            async with self._host_turn(host), self._room(host), self._at_once:
                await self._ask_head(channel)
                asked, channel.soon = channel.soon, False
                began_s, began_us = time.monotonic(), self._clock.at_the_latest_us(time.monotonic())
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
                (self._slow_hosts.add if time.monotonic() - began_s > _SLOW_S else self._slow_hosts.discard)(host)
        finally:
            channel.polled_at_s = self._now_s()
            channel.polling = False
            if self._channels.get(channel.topic) is channel:
                self._push(channel)

    def _host_turn(self, host: str) -> asyncio.Semaphore:
        """Return what polls of a host wait for, before their time runs, and without keeping others waiting."""
        turn = self._host_turns.get(host)
        if turn is None:
            turn = self._host_turns[host] = asyncio.Semaphore(self._settings.fetch.connections_per_host)
        return turn

    def _room(self, host: str) -> AbstractAsyncContextManager[None]:
        """Return what polls of slow hosts wait for: they have half of the room, so that others find some."""
        return self._slow_at_once if host in self._slow_hosts else nullcontext()

    async def _ask_head(self, channel: PolledChannel) -> None:
        if not channel.head_known:
            try:
                async with asyncio.timeout(_HEAD_WITHIN_S):
                    channel.on_head(await self._versions.head(channel.topic))
                self._broker.troubles.ends(_UNCONDITIONAL)
            except (ClarionError, TimeoutError) as error:
                self._broker.troubles.begins(_UNCONDITIONAL, error)

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
        at_us, rules = self._clock.at_the_earliest_us(time.monotonic()), channel.rules
        content = await asyncio.get_running_loop().run_in_executor(
            self._readers, lambda: read_version(fetched.body, fetched.content_type, fetched.url, rules)
        )
        if channel.rules != rules:  # somebody changed them meanwhile, and it is to be read by those
            channel.forget()
            return None
        found = Found(content, fetched.etag, fetched.last_modified, len(fetched.body), began_us, at_us)
        dropped = channel.dropped
        if not channel.on_found(found, body_hash):
            return None
        if channel.dropped > dropped:
            self.counts["versions_dropped"] += 1
            log.warning("%s: %s: a version is dropped, too many wait for the broker", self._name, channel.url)
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
                    self._broker.troubles.begins(_FOUND_WAITS, error)
                    await asyncio.sleep(pause_s * (1 + self._dice.random()))
                    pause_s = min(2 * pause_s, 5.0)
                    continue
                except Unreadable as error:
                    channel.found.popleft()
                    channel.on_other_form()
                    await self._failed(channel, slot, error, time.monotonic())
                    continue
                except ClarionError as error:
                    log.warning("%s: %s: what was found cannot be made known: %s", self._name, channel.url, error)
                    channel.found.clear()
                    channel.forget()
                    return
                self._broker.troubles.ends(_FOUND_WAITS)
                channel.found.popleft()
                channel.on_outcome(found, outcome, is_owner=slot.is_owner)
                changed = outcome.delta is not None
                self.counts["changes"] += changed
                self.sizes_told &= outcome.head.version > 1
                if changed:
                    log.info("%s: %s: version %d", self._name, channel.url, outcome.head.version)
                await self._log_poll(msgspec.structs.replace(record, changed=changed))
                if channel.soon:
                    self._push(channel)
        finally:
            channel.committing = False

    # What becomes of polls.

    def _record(
        self, channel: PolledChannel, slot: Slot, status: int, received: int, began_s: float, error: str = ""
    ) -> PollRecord:
        return PollRecord(
            url=channel.url, node=self._name, at_us=time.time_ns() // 1000, status=status, bytes=received,
            size=channel.size, changed=False, took_ms=round((time.monotonic() - began_s) * 1e3, 3),
            level=slot.level, subscribers=channel.watched.subscribers, error=error,
        )  # fmt: skip

    async def _log_poll(self, record: PollRecord) -> None:
        if self._settings.poll_log and not await self._broker.log_poll(record):
            self.counts["log_dropped"] += 1

    def _worked(self, channel: PolledChannel, slot: Slot, fetched: Fetched) -> None:
        if channel.on_worked():
            self._start(self._tell_trouble(channel))
        asked = self._websub if slot.is_owner and not fetched.not_modified else None
        if asked is not None:
            asked.subscribe(channel.url, fetched)
        if fetched.moved_to:
            log.debug("%s: %s moved to %s for good", self._name, channel.url, fetched.moved_to)

    async def _failed(
        self, channel: PolledChannel, slot: Slot, error: FetchFailed | Unreadable, began_s: float
    ) -> None:
        kind = error.kind if isinstance(error, FetchFailed) else "unreadable"
        retry_after_s = error.retry_after_s if isinstance(error, FetchFailed) else None
        status = (error.status or 0) if isinstance(error, FetchFailed) else 200
        self.counts["failures"] += 1
        now_s = self._now_s()
        if throttles(kind, channel.head is not None):
            await self._broker.tell(self._throttle.on_throttled(channel.watched.host, now_s, retry_after_s))
        trouble = Trouble(kind=kind, text=str(error), at_us=time.time_ns() // 1000)
        channel.on_failure(trouble, now_s, slot.interval_s, retry_after_s, self._dice)
        log.log(logging.INFO if channel.is_news() else logging.DEBUG, "%s: %s: %s", self._name, channel.url, error)
        await self._log_poll(self._record(channel, slot, status, 0, began_s, kind))
        if slot.is_owner and channel.is_to_be_told():
            self._start(self._tell_trouble(channel))

    async def _tell_trouble(self, channel: PolledChannel) -> None:
        """Tell at the broker that a channel cannot be had, or that it can again."""
        value = None if channel.trouble is None else msgspec.json.encode(channel.trouble)
        try:
            async with self._broker.client.transaction() as tx:
                tx.set(trouble_name(channel.topic), value)
        except ClarionError as error:
            log.info("%s: %s: %s", self._name, channel.url, error)
