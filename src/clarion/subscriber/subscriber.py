"""The subscriber for plain Python: subscribe, get, ack, from any thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from clarion.model.arguments import optional_seconds, seconds, whole
from clarion.model.errors import ClarionError, Closed, TimedOut
from clarion.model.names import to_bytes
from clarion.session.connection import broker_url
from clarion.session.endings import Works, closed, watch
from clarion.session.exchange import OnReply, Reply
from clarion.session.thread_session import ThreadSession
from clarion.subscriber.choices import AckMode, Delivery, Order, Start, check_choices, options_of
from clarion.subscriber.claim import Steps
from clarion.subscriber.drafts import State
from clarion.subscriber.fetching import FetchSettings
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reader import MANY, Reader
from clarion.subscriber.steps import Ports
from clarion.subscriber.transaction import Transaction
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind

log = logging.getLogger("clarion.subscriber")
T = TypeVar("T")


class Subscriber:
    """Reads topics of the broker at `url` under a durable name. Safe from many threads; close it, or use `with`.
    Without a `url` it is the one in the environment, CLARION_URL, or the usual address.

    ack="auto": a get acks what the last one handed out. ack="explicit": `message.ack()` does.
    delivery="at-most-once": messages are acked before they are handed out, as in the reliable-service document;
    a crash then loses them instead of repeating them.
    `timeout_s` is how long any call waits for a broker that does not answer, before it raises.

    A subscriber that nobody closes lets go when the program ends, or nobody holds it or a message of it any more: acks
    that were made become durable, nothing else is acked, and what is held of shared subscriptions goes to others.

    Of a shared subscription, up to `max_unacked` messages are lent to this consumer at a time, and `heartbeats` keep
    them for as long as it lives. Without, only its calls and `message.extend()` do. LeaseLost says that messages were
    taken away: once from the next get (ack="auto") or `flush_acks`, and from every ack or nack of them.
    """

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
        check_choices(name, ack, delivery, max_unacked)
        whole(fetch_bytes, "fetch_bytes", 1)
        self.name = to_bytes(name, "name")
        settings = FetchSettings(fetch_bytes, prefetch, max_unacked, heartbeats, delivery == "at-most-once")
        self._works = _Works(url, self.name, seconds(timeout_s, "timeout_s"), settings, auto_ack=ack == "auto")
        self._lock = self._works.lock
        self._reader = self._works.reader
        self._session = self._works.session
        self._ports = self._works.ports
        watch(self, self._works, self._session.url)

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
    ) -> bool:
        """Make a durable subscription that sees every message put from now on, or from `start` on: "earliest",
        an offset, or a datetime. Gives False where it was there already, which then stays as it is; InvalidRequest
        where that one is shared and this is not, or the other way round.

        `shared`: several consumers use it, and each message goes to one of them, which holds it until it acks, gives it
        back or gives no sign of life for `lease_s` (None: 15); after `max_attempts` (None: 5; 0: never) it goes to the
        dead letters. With order="key" messages of one key are worked on one at a time, in order. A subscription that
        nobody uses for `expires_s` ends by itself. A topic such as alerts/* or alerts/# is a pattern: all topics that
        match, also new ones, are subscribed to.
        """
        options = options_of(shared, order, lease_s, max_attempts, expires_s)
        return self._works.run(self._reader.subscribing(topic, start, options))

    def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; what only it still needed is let go. Gives False where there was none."""
        return self._works.run(self._reader.unsubscribing(topic))

    def get(self, topic: bytes | str, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Give up to `max_messages`; where there are none, wait up to `wait_s` for the first. [] when that is over."""
        parts = self.get_batches(topic, max_messages, wait_s, _opened=True)
        return [message for part in parts for message in part.messages()]

    def get_batches(
        self, topic: bytes | str, max_messages: int = MANY, wait_s: float = 0.0, *, _opened: bool = False
    ) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        most, patience_s = whole(max_messages, "max_messages", 1), seconds(wait_s, "wait_s")
        parts = self._works.run(self._reader.getting(to_bytes(topic, "topic"), most, patience_s, opened=_opened))
        for part in parts:
            part.keeper = self  # whoever holds messages can ack them
        return parts

    def stream(self, topic: bytes | str, wait_s: float | None = None) -> Iterator[Message]:
        """Give messages one by one, for ever, or until none came for `wait_s`. With ack="auto" a message is acked
        when the next one is asked for. Leave it when you like: the next get goes on where it was left."""
        topic = to_bytes(topic, "topic")
        patience_s = optional_seconds(wait_s, "wait_s")
        while True:
            self._session.check_usable()
            with self._lock:
                message = self._reader.next_now(topic)
            if message is None:
                message = self._works.run(self._reader.streaming(topic, patience_s))
                if message is None:
                    return
            yield message

    def transaction(self) -> Transaction:
        """Begin a transaction: `with subscriber.transaction() as tx`; see there."""
        self._session.check_usable()
        return Transaction(self._works, self._ports, self._reader.transacting, keeper=self)

    def state(self, name: bytes | str) -> State:
        """Give a named state, as transactions set it: its value and version."""
        return self._works.run(self._reader.asking_state(name))

    def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack and nack made so far is durable."""
        self._works.run(self._reader.flushing(optional_seconds(timeout_s, "timeout_s")))

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
        try:
            self.close(ack=error is None)
        except ClarionError as failure:
            if error is None:
                raise
            log.info("while closing the subscriber after an error: %s", failure)

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered and held, in all and by topic, and whether a broker is connected."""
        self._session.check_process()
        with self._lock:
            return {**self._reader.stats(), "connected": self._session.connected}


class _Works(Works):
    """What works behind a subscriber, and what messages and transactions need of it. It does not hold the subscriber
    (see `endings`); messages do."""

    def __init__(
        self, url: str | None, name: bytes, timeout_s: float, settings: FetchSettings, *, auto_ack: bool
    ) -> None:
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._closing = threading.Lock()  # held by who closes it
        self._closed = False
        self.ports = Ports(
            ask=self._ask,
            clock_s=time.monotonic,
            unix_s=time.time,
            nonce=lambda: os.urandom(16),
            on_change=self._changed.notify_all,
            check_usable=self._check_usable,
            owner=self,
            url=broker_url(url),
            timeout_s=timeout_s,
            give_up=self._give_up,
        )
        self.reader = Reader(name, self.ports, settings, auto_ack=auto_ack)
        self.session = ThreadSession(url, on_turn=self._on_turn, on_failure=self._on_failure, on_lost=self._on_lost)
        self.ports.count = self.session.count

    def _check_usable(self) -> None:
        self.session.check_usable()

    def do(self, change: Callable[[], None]) -> None:
        """Change something, unless the client is not usable any more."""
        self.session.check_usable()
        with self.lock:
            change()

    def run(self, steps: Steps[T]) -> T:
        """Go through the steps, waiting in between."""
        self.session.check_usable()
        with self._changed:
            try:
                while True:
                    until_s = next(steps)
                    self._changed.wait(max(0.0, until_s - time.monotonic()))
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                steps.close()

    def _ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None:
        def on_reply_locked(reply: Reply) -> None:
            with self.lock:
                on_reply(reply)

        self.session.ask(kind, body, on_reply_locked, blobs, wait_s)

    def _give_up(self, body: bodies.Body) -> None:
        self.session.give_up(body)

    def _on_lost(self, error: ClarionError) -> None:
        with self.lock:
            self.reader.went_back(error)

    def _on_failure(self, error: ClarionError) -> None:
        with self._changed:
            self._changed.notify_all()

    def _on_turn(self, now_s: float) -> float | None:
        with self.lock:
            return self.reader.pump(now_s)

    def close(self, ack: bool, timeout_s: float | None) -> None:
        """Leave and let go; whoever closes it second waits for the first."""
        self.session.check_process()
        if not self._closing.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimedOut("another thread is closing this subscriber, and has not done so yet")
        try:
            if not self._closed:
                self.run(self.reader.closing(ack, timeout_s))
        finally:
            self._let_go()
            self._closing.release()

    def _let_go(self) -> None:
        self._closed = True
        closed(self)
        self.session.close()
        with self._changed:
            self.reader.drop_all(Closed("this client is closed"))
            self._changed.notify_all()  # whoever still waits hears that it is closed

    def end(self, timeout_s: float) -> None:
        """Leave and let go, as nobody closed it: what was handed out and not acked is not acked now."""
        self.close(False, min(timeout_s, self.ports.timeout_s))
