"""The subscriber: subscribe, get, ack. For plain Python, from any thread; for asyncio the same verbs, awaited, on the
caller's event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Literal

from clarion.model.arguments import as_list, optional_seconds, seconds, whole
from clarion.model.errors import ClarionError, Closed, TimedOut
from clarion.model.names import to_bytes
from clarion.session.async_session import AsyncSession
from clarion.session.calls import Call
from clarion.session.connection import broker_url
from clarion.session.endings import Works, closed, watch
from clarion.session.thread_session import ThreadSession
from clarion.subscriber.consumer import Attachment
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.fetch_session import FetchedTopic
from clarion.subscriber.subscriber_core import (
    MANY,
    AskState,
    AskStates,
    Close,
    Extend,
    Flush,
    Get,
    Next,
    Order,
    Start,
    Subscribe,
    SubscribeOutcome,
    SubscriberCore,
    Topics,
    Unsubscribe,
    options_of,
)
from clarion.subscriber.subscriber_transactions import AsyncTransaction, Draft, Outcome, State, Transaction
from clarion.wire.messages import Message, MessageBatch

log = logging.getLogger("clarion.subscriber")
AckMode = Literal["auto", "explicit"]
Delivery = Literal["at-least-once", "at-most-once"]


TopicOrTopics = bytes | str | Iterable[bytes | str]
_MOST_TOPICS = 1000


def _topics(topic: TopicOrTopics) -> Topics:
    """Return a topic or pattern as bytes, or several of them, each once."""
    if isinstance(topic, memoryview):
        return bytes(topic)
    if isinstance(topic, (str, bytes, bytearray)):
        return to_bytes(topic, "topic")
    listed = as_list(topic, "topic, where it is not bytes or str,")
    several = tuple(sorted({to_bytes(each, "topic") for each in listed}))
    if not 1 <= len(several) <= _MOST_TOPICS:
        raise ValueError(f"a list names 1 to {_MOST_TOPICS} topics or patterns, not {len(several)}")
    return several if len(several) > 1 else several[0]


class _Works(Works):
    """What works behind a subscriber. It does not hold the subscriber (see `endings`); messages do."""

    session: Any
    lock: AbstractContextManager[Any]  # held by whoever uses the core
    do: Callable[[Callable[[float], None]], None]  # see `ThreadSession.do`

    def __init__(self, core: SubscriberCore) -> None:
        self.core = core

    @property
    def connected(self) -> bool:
        return bool(self.session.connected)

    def ack_offsets(self, attachment: Any, start: int, stop: int) -> None:
        """Say that messages are done."""
        self.do(lambda now_s: attachment.consumer.ack(attachment, start, stop, now_s))

    def nack_offsets(self, attachment: Any, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give messages back."""
        self.do(lambda _now_s: attachment.consumer.nack(attachment, start, stop, delay_s, reason))

    def extend_offsets(self, attachment: Attachment | FetchedTopic, start: int, stop: int) -> Any:
        """Keep messages for longer, and wait for the answer; for asyncio, return what is to be awaited."""
        return self.session.run(Extend(attachment, start, stop))

    def lend_to_transaction(self, draft: Draft, part: MessageBatch) -> None:
        """Have a transaction decide about messages."""
        attachment, start, stop = part.attachment, part.offsets.start, part.offsets.stop

        def lend(_now_s: float) -> None:
            attachment.consumer.lend_to_transaction(attachment, start, stop)
            draft.ack(attachment, start, stop)

        self.do(lend)

    def abandon(self, outcome: Outcome) -> None:
        """A transaction is not committed."""
        self.do(lambda _now_s: self.core.transactions.abandon(outcome))

    def run(self, call: Call) -> Any:
        """Wait for a call of a transaction; for asyncio, return what is to be awaited."""
        return self.session.run(call)

    def check_usable(self) -> None:
        """Raise where it is closed or broken."""
        self.session.check_usable()

    def drop_all(self) -> None:
        """The connection is gone: let go of everything."""
        with self.lock:
            self.core.drop_all(Closed("this client is closed"))


class _ThreadWorks(_Works):
    session: ThreadSession

    def __init__(self, core: SubscriberCore) -> None:
        super().__init__(core)
        self.session = ThreadSession(core.url, core)
        self.lock = self.session.lock
        self.do = self.session.do
        self._closing = threading.Lock()  # held by who closes it
        self._closed = False

    def close(self, ack: bool, timeout_s: float | None) -> None:
        """Leave and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if not self._closing.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimedOut("another thread is closing this subscriber, and has not done so yet")
        try:
            if not self._closed:
                self.session.run(Close(ack, timeout_s))
        finally:
            self._closed = True
            closed(self)
            self.session.close()
            self.drop_all()
            self._closing.release()

    def end(self, timeout_s: float) -> None:
        """Leave and let go, as nobody closed it: what was handed out and not acked is not acked now."""
        self.close(False, min(timeout_s, self.core.state.timeout_s))


class _AsyncWorks(_Works):
    session: AsyncSession

    def __init__(self, core: SubscriberCore) -> None:
        super().__init__(core)
        self._closed: asyncio.Future[None] | None = None  # while it is being closed, and then
        self.session = AsyncSession(core.url, core, name=core.state.name)
        self.loop = self.session.loop
        self.lock = nullcontext()

    def do(self, change: Callable[[float], None]) -> None:
        """Change something of the core, now, unless the client is not usable any more."""
        self.session.check_usable()
        change(self.session.now_s())
        if self.core.wants_turn():
            self.session.perform()

    def leave_loop(self) -> None:
        """Have the loop do nothing more."""
        self.session.leave_loop()

    async def end(self, timeout_s: float) -> None:
        """Leave and let go, as nobody closed it, on this loop or, once it has left it, on another: what was handed out
        and not acked is not acked now."""
        if asyncio.get_running_loop() is not self.loop:
            self.loop = asyncio.get_running_loop()
            self.session.join_loop()
            self._closed = None  # whoever was closing it is gone with the other loop
        await self.close(False, min(timeout_s, self.core.state.timeout_s))

    async def close(self, ack: bool, timeout_s: float | None) -> None:
        """Leave and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if self._closed is not None:
            await asyncio.wait([self._closed])
            return
        self._closed = asyncio.get_running_loop().create_future()
        try:
            await self.session.run(Close(ack, timeout_s))
        except GeneratorExit:  # its loop is over before it is: the end of the program finishes it
            raise
        except BaseException:
            self._let_go()
            raise
        self._let_go()

    def _let_go(self) -> None:
        self.session.close()
        closed(self)
        assert self._closed is not None
        self._closed.set_result(None)
        self.drop_all()


class _Client:
    """What is the same for threads and asyncio: all but waiting."""

    _works_type: type[_Works]

    def __init__(
        self,
        url: str | None = None,
        name: bytes | str = "",
        *,
        ack: AckMode = "auto",
        delivery: Delivery = "at-least-once",
        timeout_s: float = 10.0,
        fetch_bytes: int = 2**20,
        prefetch: bool = True,
        max_unacked: int = 10_000,
        heartbeats: bool = True,
    ) -> None:
        if name is None or name in ("", b""):
            raise ValueError("a subscriber has a name: it is how the broker knows what it has read")
        if ack not in ("auto", "explicit") or delivery not in ("at-least-once", "at-most-once"):
            raise ValueError('ack is "auto" or "explicit", delivery "at-least-once" or "at-most-once"')
        whole(max_unacked, "max_unacked", 1, 1_000_000)
        whole(fetch_bytes, "fetch_bytes", 1)
        self.name = to_bytes(name, "name")
        settings = FetchSettings(fetch_bytes, prefetch, max_unacked, heartbeats, delivery == "at-most-once")
        timeout_s, url = seconds(timeout_s, "timeout_s"), broker_url(url)
        self._core = SubscriberCore(self.name, url, timeout_s, settings, auto_ack=ack == "auto", seed=os.urandom(16))
        self._works: Any = self._works_type(self._core)
        self._session: Any = self._works.session
        watch(self, self._works, url)

    __init__.__qualname__ = "Subscriber.__init__"  # as Python calls it where an argument is wrong

    def _get(self, topic: TopicOrTopics, max_messages: int, wait_s: float, *, single: bool = False) -> Get:
        most, patience_s = whole(max_messages, "max_messages", 1), seconds(wait_s, "wait_s")
        return Get(_topics(topic), most, patience_s, opened=single, single=single, holder=self._works, keeper=self)

    @contextmanager
    def _closing(self, error: BaseException | None) -> Iterator[None]:
        """What goes wrong while it is closed after an error is logged, and not raised in its place."""
        try:
            yield
        except ClarionError as failure:
            if error is None:
                raise
            log.info("while closing the subscriber after an error: %s", failure)

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered and held, in all and by topic, and whether a broker is connected."""
        self._session.check_process()
        with self._works.lock:
            return {**self._core.stats(), "connected": self._session.connected}


class Subscriber(_Client):
    """Reads topics of the broker at `url` under a durable name. Safe from many threads; close it, or use `with`.
    Without a `url` it is the one in the environment, CLARION_URL, or the usual address.

    ack="auto": a get acks what the last one handed out. ack="explicit": `message.ack()` does.
    delivery="at-most-once": messages are acked before they are handed out, as in the reliable service;
    a crash then loses them instead of repeating them.
    `timeout_s` is how long any call waits for a broker that does not answer, before it raises.

    A subscriber that nobody closes lets go when the program ends, or nobody holds it or a message of it any more: acks
    that were made become durable, nothing else is acked, and what is held of shared subscriptions goes to others.

    Of a shared subscription, up to `max_unacked` messages are lent to this consumer at a time, and `heartbeats` keep
    them for as long as it lives. Without, only its calls and `message.extend()` do. LeaseLost says that messages were
    taken away: once from the next get (ack="auto") or `flush_acks`, and from every ack or nack of them.
    """

    _works_type = _ThreadWorks
    _works: _ThreadWorks
    _session: ThreadSession

    def subscribe(
        self,
        topic: bytes | str,
        start: Start = "new",
        *,
        shared: bool = False,
        order: Order | None = None,
        lease_s: float | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> SubscribeOutcome:
        """Make a durable subscription that sees every message put from now on, or from `start` on: "earliest",
        an offset, or a datetime. What is returned is false where it was there already, which then stays as it is;
        InvalidRequest where that one is shared and this is not, or the other way round. At a broker with links it says
        which other brokers have confirmed it, for which the broker waits a second at most.

        `shared`: several consumers use it, and each message goes to one of them, which holds it until it acks, gives it
        back or gives no sign of life for `lease_s` (None: 15); after `max_attempts` (None: 5; 0: never) it goes to the
        dead letters. With order="key" messages of one key are worked on one at a time, in order. A subscription that
        nobody uses for `expires_s` ends by itself. A topic such as alerts/* or alerts/# is a pattern: all topics that
        match, also new ones, are subscribed to.
        """
        options = options_of(shared, order, lease_s, max_attempts, expires_s)
        call = Subscribe(topic, self.name, start, options, self._core.state.timeout_s)
        found: SubscribeOutcome = self._session.run(call)
        return found

    def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; what only it still needed is let go. Return False where there was none."""
        found: bool = self._session.run(Unsubscribe(topic, self.name, self._core.state.timeout_s))
        return found

    def get(self, topic: TopicOrTopics, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Return up to `max_messages`; where there are none, wait up to `wait_s` for the first: [] when it is over.

        A pattern, or a list of up to 1000 topics and patterns, is read in the order in which messages come to the
        broker, as far as one reply brings them; each topic keeps its own order. All must be subscribed to.
        """
        found: list[Message] = self._session.run(self._get(topic, max_messages, wait_s, single=True))
        return found

    def get_batches(self, topic: TopicOrTopics, max_messages: int = MANY, wait_s: float = 0.0) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        found: list[MessageBatch] = self._session.run(self._get(topic, max_messages, wait_s))
        return found

    def stream(self, topic: TopicOrTopics, wait_s: float | None = None) -> Iterator[Message]:
        """Return messages one by one, for ever, or until none came for `wait_s`. With ack="auto" a message is acked
        when the next one is asked for. Leave it when you like: the next get goes on where it was left."""
        topics = _topics(topic)
        patience_s = optional_seconds(wait_s, "wait_s")
        while True:
            self._session.check_usable()
            with self._works.lock:
                message = self._core.next_now(topics, self._works, time.monotonic())
                wants_turn = self._core.wants_turn()
            if wants_turn:
                self._session.wake()
            if message is None:
                message = self._session.run(Next(topics, patience_s, holder=self._works))
                if message is None:
                    return
            yield message

    def transaction(self) -> Transaction:
        """Begin a transaction: `with subscriber.transaction() as tx`; see there."""
        self._session.check_usable()
        return Transaction(self._works, keeper=self)

    def state(self, name: bytes | str) -> State:
        """Return a named state, as transactions set it: its value and version."""
        found: State = self._session.run(AskState(name, self._core.state.timeout_s))
        return found

    def states(self, names: Iterable[bytes | str]) -> list[State]:
        """Return several named states, which are asked for at once."""
        found: list[State] = self._session.run(AskStates(names, self._core.state.timeout_s))
        return found

    def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack and nack made so far is durable."""
        self._session.run(Flush(optional_seconds(timeout_s, "timeout_s")))

    def close(self, *, ack: bool = True, timeout_s: float | None = None) -> None:
        """Let go of the connection, waiting for the broker as any call does, or for `timeout_s`. With `ack`, what was
        handed out is acked first, durably; without, only what was acked before is. What is still held of shared
        subscriptions goes to others."""
        self._works.close(ack, optional_seconds(timeout_s, "timeout_s"))

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._closing(error):
            self.close(ack=error is None)


class AsyncSubscriber(_Client):
    """Reads topics of the broker at `url` under a durable name; made and used on one event loop. See Subscriber."""

    _works_type = _AsyncWorks
    _works: _AsyncWorks
    _session: AsyncSession

    async def subscribe(
        self,
        topic: bytes | str,
        start: Start = "new",
        *,
        shared: bool = False,
        order: Order | None = None,
        lease_s: float | None = None,
        max_attempts: int | None = None,
        expires_s: float | None = None,
    ) -> SubscribeOutcome:
        """Make a durable subscription; see Subscriber.subscribe."""
        options = options_of(shared, order, lease_s, max_attempts, expires_s)
        call = Subscribe(topic, self.name, start, options, self._core.state.timeout_s)
        found: SubscribeOutcome = await self._session.run(call)
        return found

    async def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; see Subscriber.unsubscribe."""
        found: bool = await self._session.run(Unsubscribe(topic, self.name, self._core.state.timeout_s))
        return found

    async def get(self, topic: TopicOrTopics, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Return up to `max_messages`; wait up to `wait_s` for the first. [] when that is over."""
        found: list[Message] = await self._session.run(self._get(topic, max_messages, wait_s, single=True))
        return found

    async def get_batches(
        self, topic: TopicOrTopics, max_messages: int = MANY, wait_s: float = 0.0
    ) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        found: list[MessageBatch] = await self._session.run(self._get(topic, max_messages, wait_s))
        return found

    async def stream(self, topic: TopicOrTopics, wait_s: float | None = None) -> AsyncIterator[Message]:
        """Return messages one by one, for ever, or until none came for `wait_s`; see Subscriber.stream."""
        topics = _topics(topic)
        patience_s = optional_seconds(wait_s, "wait_s")
        while True:
            self._session.check_usable()
            message = self._core.next_now(topics, self._works, self._session.now_s())
            if self._core.wants_turn():
                self._session.perform()
            if message is None:
                message = await self._session.run(Next(topics, patience_s, holder=self._works))
                if message is None:
                    return
            yield message

    def transaction(self) -> AsyncTransaction:
        """Begin a transaction: `async with subscriber.transaction() as tx`; see Transaction."""
        self._session.check_usable()
        return AsyncTransaction(self._works, keeper=self)

    async def state(self, name: bytes | str) -> State:
        """Return a named state, as transactions set it: its value and version."""
        found: State = await self._session.run(AskState(name, self._core.state.timeout_s))
        return found

    async def states(self, names: Iterable[bytes | str]) -> list[State]:
        """Return several named states, which are asked for at once."""
        found: list[State] = await self._session.run(AskStates(names, self._core.state.timeout_s))
        return found

    async def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack and nack made so far is durable."""
        await self._session.run(Flush(optional_seconds(timeout_s, "timeout_s")))

    async def close(self, *, ack: bool = True, timeout_s: float | None = None) -> None:
        """Let go of the connection; see Subscriber.close."""
        await self._works.close(ack, optional_seconds(timeout_s, "timeout_s"))

    async def __aenter__(self) -> AsyncSubscriber:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._closing(error):
            await self.close(ack=error is None)
