"""Deliveries to people: who has deltas waiting is found, the deltas are handed to whoever delivers them, and acked.

A recipient is a durable subscription on the topic of each channel it follows; its name is a prefix and who it is. So
the broker counts recipients as it counts any subscriber, and keeps what they have not got. Nobody reads all the time
for each: the list of topics tells at a look where something is unread, and a client is opened for that recipient and
moment. A thousand people cost a request for each thousand channels every two seconds, and not a thousand connections.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from clarion.admin import Admin
from clarion.feeds.channels import PREFIX as CHANNELS
from clarion.feeds.deltas import Delta, decode_delta
from clarion.model.errors import (
    ClarionError,
    MessagesGone,
    NoTopic,
    NotSubscribed,
    PermanentError,
    RetryableError,
    TakenOver,
)
from clarion.model.names import to_text
from clarion.subscriber import AsyncSubscriber, Message
from clarion.wire.bodies import TopicRow

log = logging.getLogger("clarion.feeds.feed_deliveries")
ATTEMPTS = 8  # of a shared subscription, before its dead letters
_LONGEST_RETRY_S = 3600.0
_NOTHING_S = 5.0  # where what waits is with another, or not to be tried again yet
_LONGEST_WAIT_S = 60.0
_LOOKING_SHARE = 10  # the time between two looks is at least so many times what the last one took

Deliver = Callable[[str, Sequence[Delta], int], Awaitable[None]]  # to whom, what, and which attempt it is


class DeliveryFailed(RetryableError):
    """It did not arrive; it is kept, and tried again later."""


class DeliverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often it is looked, and what one delivery may take."""

    look_every_s: float = 2.0
    at_once: int = 32  # recipients
    limit_s: float = 60.0  # of one delivery
    most_deltas: int = 50  # of one delivery
    first_retry_s: float = 5.0
    timeout_s: float = 10.0  # for the broker


def unread_by_recipient(rows: Iterable[TopicRow], prefix: bytes) -> dict[str, dict[bytes, bool]]:
    """Return the channels' topics that each recipient follows, each with whether something is unread there."""
    found: defaultdict[str, dict[bytes, bool]] = defaultdict(dict)
    for row in rows:
        for name, cursor, _ in row.subscriptions:
            if name.startswith(prefix):
                with suppress(UnicodeDecodeError):  # no name that we gave
                    found[name.removeprefix(prefix).decode()][row.topic] = cursor < row.next_offset
    return dict(found)


def retry_after_s(attempt: int, first_s: float, dice: random.Random) -> float:
    """Return how long to wait after a failed attempt: four times as long each time up to an hour, and up to a fifth
    more, so that not all come at once."""
    return min(_LONGEST_RETRY_S, first_s * 4.0 ** min(attempt - 1, 16)) * dice.uniform(1.0, 1.2)


class Deliveries:
    """Delivers what waits for the recipients of a prefix: at least once, the attempt told. `run` it on one event loop.

    Where the subscription is shared, several of these may share the work, and what failed `ATTEMPTS` times goes to the
    dead letters of the channel's topic. Where it is not, it is tried for as long as the subscription is there.
    """

    def __init__(
        self,
        url: str | None,
        prefix: str,
        deliver: Deliver,
        settings: DeliverySettings | None = None,
        *,
        shared: bool = False,
        dice: random.Random | None = None,
    ) -> None:
        self.settings = settings or DeliverySettings()
        self.delivered = 0  # deltas
        self.failed = 0  # attempts
        self.followed: dict[str, dict[bytes, bool]] = {}  # as of the last look
        self.reachable = False  # the broker, at the last look
        self.paused = False  # nothing can be delivered for now
        self._url = url
        self._prefix = prefix
        self._deliver = deliver
        self._shared = shared
        self._dice = dice or random.Random()
        self._served: dict[str, asyncio.Task[None]] = {}
        self._not_before_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._room = asyncio.Semaphore(self.settings.at_once)
        self._soon = asyncio.Event()
        self._noted: list[tuple[str, bytes, bool]] = []  # since the last look began

    def look_soon(self) -> None:
        """Look again at once."""
        self._soon.set()

    def note(self, recipient: str, topic: bytes, *, follows: bool) -> None:
        """Take in that somebody follows a channel now, or no longer does, which a look under way may have missed."""
        self._noted.append((recipient, topic, follows))
        self._apply(recipient, topic, follows)

    def _apply(self, recipient: str, topic: bytes, follows: bool) -> None:
        topics = self.followed.setdefault(recipient, {})
        if follows:
            topics.setdefault(topic, False)
        else:
            topics.pop(topic, None)

    async def run(self) -> None:
        """Deliver until this is cancelled; what is then under way is given back."""
        admin = Admin(self._url, timeout_s=self.settings.timeout_s)
        try:
            while True:
                self._soon.clear()
                wait_s = self.settings.look_every_s
                try:
                    began_s = time.monotonic()
                    await self._look(admin)
                    wait_s = max(wait_s, min(_LONGEST_WAIT_S, (time.monotonic() - began_s) * _LOOKING_SHARE))
                except ClarionError as error:
                    self.reachable = False
                    log.info("cannot see who waits, and will look again: %s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):  # `wait_for` of Python 3.11 may lose that this is cancelled
                        await self._soon.wait()
        finally:
            for task in self._served.values():
                task.cancel()
            await asyncio.gather(*self._served.values(), return_exceptions=True)
            await asyncio.to_thread(admin.close)

    async def _look(self, admin: Admin) -> None:
        prefix = self._prefix.encode()
        self._noted.clear()
        self.followed = await asyncio.to_thread(lambda: unread_by_recipient(admin.topics(CHANNELS), prefix))
        for noted in self._noted:
            self._apply(*noted)
        self.reachable = True
        if self.paused:
            return
        now_s = time.monotonic()
        self._not_before_s = {who: at_s for who, at_s in self._not_before_s.items() if at_s > now_s}
        self._failures = {who: count for who, count in self._failures.items() if who in self.followed}
        for recipient, topics in self.followed.items():
            waiting = [topic for topic, unread in topics.items() if unread]
            if waiting and recipient not in self._served and recipient not in self._not_before_s:
                task = asyncio.create_task(self._serve(recipient, waiting))
                self._served[recipient] = task
                task.add_done_callback(lambda _, who=recipient: self._served.pop(who))  # type: ignore[misc]

    async def _serve(self, recipient: str, topics: list[bytes]) -> None:
        async with self._room:
            try:
                await self._serve_now(recipient, topics)
            except TakenOver:
                log.warning("another process delivers to %s%s as well", self._prefix, recipient)
                self._wait(recipient, _NOTHING_S)
            except ClarionError as error:
                log.info("cannot deliver to %s%s for now: %s", self._prefix, recipient, error)
                self._wait(recipient, _NOTHING_S)

    async def _serve_now(self, recipient: str, topics: list[bytes]) -> None:
        name = self._prefix + recipient
        subscriber = AsyncSubscriber(self._url, name, ack="explicit", prefetch=False, timeout_s=self.settings.timeout_s)
        try:
            messages = await self._unread(subscriber, topics)
            deltas = [delta for message in messages if (delta := _delta_of(message)) is not None]
            attempt = max([message.attempt for message in messages] + [self._failures.get(recipient, 0) + 1])
            try:
                if deltas:
                    async with asyncio.timeout(self.settings.limit_s):
                        await self._deliver(recipient, deltas, attempt)
            except (DeliveryFailed, TimeoutError) as error:
                reason = str(error) or f"it took longer than {self.settings.limit_s:g} s"
                self._on_failed(recipient, messages, attempt, reason)
            else:
                self._on_delivered(recipient, messages, deltas)
            await subscriber.flush_acks()
        finally:
            with suppress(ClarionError):
                await subscriber.close(ack=False)

    async def _unread(self, subscriber: AsyncSubscriber, topics: list[bytes]) -> list[Message]:
        """Return what is unread, in the order in which it was committed."""
        found: list[Message] = []
        for topic in topics:
            if (room := self.settings.most_deltas - len(found)) <= 0:
                self.look_soon()
                break
            try:
                found += await subscriber.get(topic, room)
            except (NotSubscribed, NoTopic):  # it was ended meanwhile
                continue
            except MessagesGone as error:
                log.warning("%s", error)
                found += await subscriber.get(topic, room)
        return sorted(found, key=lambda message: message.committed_at)

    def _on_delivered(self, recipient: str, messages: list[Message], deltas: list[Delta]) -> None:
        for message in messages:
            message.ack()
        self.delivered += len(deltas)
        self._failures.pop(recipient, None)
        if not messages:
            self._wait(recipient, _NOTHING_S)
        elif len(messages) >= self.settings.most_deltas:
            self.look_soon()

    def _on_failed(self, recipient: str, messages: list[Message], attempt: int, reason: str) -> None:
        self.failed += 1
        self._failures[recipient] = attempt
        wait_s = retry_after_s(attempt, self.settings.first_retry_s, self._dice)
        if self._shared:
            for message in messages:
                message.nack(wait_s, reason)
        log.warning("not delivered to %s%s, attempt %d: %s", self._prefix, recipient, attempt, reason)
        self._wait(recipient, wait_s)

    def _wait(self, recipient: str, wait_s: float) -> None:
        self._not_before_s[recipient] = time.monotonic() + wait_s


def _delta_of(message: Message) -> Delta | None:
    """Return a message's delta; what is none is told, and passed over."""
    try:
        return decode_delta(message.payload)
    except PermanentError as error:
        log.warning("offset %d of %s is passed over: %s", message.offset, to_text(message.topic), error)
        return None
