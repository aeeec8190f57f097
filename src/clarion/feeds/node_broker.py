"""What a node talks to its broker with: clients, the topics on which nodes meet, and threads for what would wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from clarion.admin import Admin
from clarion.feeds.polls import POLLS_TOPIC, PollRecord, encode_poll
from clarion.feeds.ring_view import NOTICES_KEPT_S, NOTICES_TOPIC, RING_TOPIC, RingMessage, encode_ring_message
from clarion.model.errors import BufferFull, ClarionError, InvalidRequest, MessagesGone, NoTopic
from clarion.publisher import AsyncPublisher
from clarion.subscriber import AsyncSubscriber, Message

log = logging.getLogger("clarion.feeds")
Result = TypeVar("Result")
_KEPT_S = {RING_TOPIC: 1800.0, NOTICES_TOPIC: NOTICES_KEPT_S, POLLS_TOPIC: 30 * 86_400.0}
_KEPT_BYTES = 4 << 30  # of each: what nodes say of themselves fills no disk
_LEAVING_S = 2.0


class Troubles:
    """What goes wrong again and again, told when it begins and when it is over."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: set[str] = set()

    def begins(self, what: str, error: BaseException) -> None:
        """Tell what goes wrong, unless it was told and is not over."""
        is_news = what not in self._told
        self._told.add(what)
        why = str(error) or "the broker does not answer"
        log.log(logging.WARNING if is_news else logging.DEBUG, "%s: %s: %s", self._name, what, why)

    def ends(self, what: str) -> None:
        """Tell that it is over, where it was told."""
        if what in self._told:
            self._told.remove(what)
            log.info("%s: over: %s", self._name, what)


class NodeBroker:
    """The broker as one node reaches it."""

    def __init__(self, url: str | None, name: str) -> None:
        self._name = name
        self.troubles = Troubles(name)
        self.admin = Admin(url)
        self.client = AsyncSubscriber(url, f"feeds-node/{name}", prefetch=False)
        self._publisher = AsyncPublisher(url)
        self._threads = ThreadPoolExecutor(4, f"clarion-feeds-{name}")
        self._positions: dict[str, int | None] = {RING_TOPIC: None, NOTICES_TOPIC: None}

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Return what some work returns that would keep the event loop waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def begin(self) -> None:
        """Make the topics on which nodes meet, where they are not there; notices are read from now on."""
        for topic in _KEPT_S:
            await self._make_topic(topic)
        found = await self.in_thread(lambda: self.admin.describe_topic(NOTICES_TOPIC))
        self._positions[NOTICES_TOPIC] = found.next_offset

    async def _make_topic(self, topic: str) -> None:
        def make() -> None:
            try:
                if self.admin.describe_topic(topic).retention == "keep":
                    return  # with bounds that somebody may have set
            except NoTopic:
                pass
            self.admin.configure_topic(
                topic, retention="keep", max_age_s=_KEPT_S[topic], max_bytes=_KEPT_BYTES, at_bound="trim"
            )

        await self.in_thread(make)

    async def read(self, topic: str) -> list[Message] | None:
        """Return the messages of a topic since the last look, all that are kept at the first; None where some of them
        are gone, or the topic itself was."""
        position = self._positions[topic]
        try:
            found = await self.in_thread(
                lambda: list(self.admin.browse(topic, "earliest" if position is None else position))
            )
        except MessagesGone as gap:
            self._positions[topic] = gap.stop
            return None
        except (NoTopic, InvalidRequest):  # it was deleted, or made anew
            self._positions[topic] = None
            await self._make_topic(topic)
            return None
        if found:
            self._positions[topic] = found[-1].offset + 1
        return found

    async def tell(self, message: RingMessage) -> Any:
        """Put a message on the ring's topic, and return its receipt; None where it cannot even be queued."""
        try:
            return await self._publisher.put(RING_TOPIC, encode_ring_message(message), wait=False)
        except BufferFull:
            log.warning("%s: the other nodes cannot be told anything for now", self._name)
            return None

    async def log_poll(self, record: PollRecord) -> bool:
        """Tell of a poll; False where there is no room for it."""
        try:
            await self._publisher.put(POLLS_TOPIC, encode_poll(record), wait=False)
        except BufferFull:
            return False
        return True

    async def leave(self, last_word: RingMessage | None) -> None:
        """Let go, with a last word where there is one; waits for the broker only so long."""
        try:
            receipt = None if last_word is None else await self.tell(last_word)
            if receipt is not None:
                await receipt.result(timeout_s=_LEAVING_S)
        except ClarionError as error:
            log.info("%s: leaving: %s", self._name, error)
        for close in (self._publisher.close(timeout_s=_LEAVING_S), self.client.close(timeout_s=_LEAVING_S)):
            try:
                await close
            except ClarionError as error:
                log.info("%s: leaving: %s", self._name, error)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.admin.close()
