"""The subscriber for plain Python: subscribe, get, ack, from any thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from clarion.model.errors import ClarionError, Closed
from clarion.model.names import to_bytes
from clarion.session.connection import broker_url
from clarion.session.exchange import OnReply, Reply
from clarion.session.thread import ThreadSession
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

T = TypeVar("T")


class Subscriber:
    """Reads topics of the broker at `url` under a durable name. Safe from many threads; close it, or use `with`.
    Without a `url` it is the one in the environment, CLARION_URL, or the usual address.

    ack="auto": a get acks what the last one handed out. ack="explicit": `message.ack()` does.
    delivery="at-most-once": messages are acked before they are handed out, as in the reliable-service document;
    a crash then loses them instead of repeating them.
    `timeout_s` is how long any call waits for a broker that does not answer, before it raises.

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
        self.name = to_bytes(name)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._owner = _Owner(self)
        self._ports = Ports(
            ask=self._ask,
            clock_s=time.monotonic,
            unix_s=time.time,
            nonce=lambda: os.urandom(16),
            on_change=self._changed.notify_all,
            check_usable=self._check_usable,
            owner=self._owner,
            url=broker_url(url),
            timeout_s=timeout_s,
        )
        settings = FetchSettings(fetch_bytes, prefetch, max_unacked, heartbeats, delivery == "at-most-once")
        self._reader = Reader(self.name, self._ports, settings, auto_ack=ack == "auto")
        self._session = ThreadSession(url, on_turn=self._on_turn, on_failure=self._on_failure)

    def subscribe(
        self,
        topic: bytes | str,
        start: Start = "new",
        *,
        shared: bool = False,
        order: Order | None = None,
        lease_s: float = 15.0,
        max_attempts: int = 5,
        expires_s: float | None = None,
    ) -> bool:
        """Make a durable subscription that sees every message put from now on, or from `start` on: "earliest",
        an offset, or a datetime. Gives False where it was there already, which then stays as it is; InvalidRequest
        where that one is shared and this is not, or the other way round.

        `shared`: several consumers use it, and each message goes to one of them, which holds it until it acks, gives it
        back or gives no sign of life for `lease_s`; after `max_attempts` (0: never) it goes to the dead letters. With
        order="key" messages of one key are worked on one at a time, in order. A subscription that nobody uses for
        `expires_s` ends by itself. A topic such as alerts/* or alerts/# is a pattern: all topics that match, also new
        ones, are subscribed to.
        """
        options = options_of(shared, order, lease_s, max_attempts, expires_s)
        return self._run(self._reader.subscribing(topic, start, options))

    def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; what only it still needed is let go. Gives False where there was none."""
        return self._run(self._reader.unsubscribing(topic))

    def get(self, topic: bytes | str, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Give up to `max_messages`; where there are none, wait up to `wait_s` for the first. [] when that is over."""
        parts = self._run(self._reader.getting(to_bytes(topic), max_messages, wait_s, opened=True))
        return [message for part in parts for message in part.messages()]

    def get_batches(self, topic: bytes | str, max_messages: int = MANY, wait_s: float = 0.0) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        return self._run(self._reader.getting(to_bytes(topic), max_messages, wait_s))

    def stream(self, topic: bytes | str, wait_s: float | None = None) -> Iterator[Message]:
        """Give messages one by one, for ever, or until none came for `wait_s`. With ack="auto" a message is acked
        when the next one is asked for. Leave it when you like: the next get goes on where it was left."""
        topic = to_bytes(topic)
        while True:
            self._session.check_usable()
            with self._lock:
                message = self._reader.next_now(topic)
            if message is None:
                message = self._run(self._reader.streaming(topic, wait_s))
                if message is None:
                    return
            yield message

    def transaction(self) -> Transaction:
        """Begin a transaction: `with subscriber.transaction() as tx`; see there."""
        return Transaction(self._owner, self._ports, self._reader.transacting)

    def state(self, name: bytes | str) -> State:
        """Give a named state, as transactions set it: its value and version."""
        return self._run(self._reader.asking_state(name))

    def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack and nack made so far is durable."""
        self._run(self._reader.flushing(timeout_s))

    def close(self, *, ack: bool = True) -> None:
        """Let go of the connection. With `ack`, what was handed out is acked first, durably; without, only what
        was acked before is. What is still held of shared subscriptions goes to others."""
        if self._closed:
            return
        try:
            self._run(self._reader.closing(ack))
        finally:
            self._closed = True
            self._session.close()
            with self._changed:
                self._reader.drop_all(Closed("this client is closed"))
                self._changed.notify_all()  # whoever still waits hears that it is closed

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(ack=error is None)
        except ClarionError:
            if error is None:
                raise

    @property
    def stats(self) -> dict[str, Any]:
        """What is buffered and held, in all and by topic, and whether a broker is connected."""
        with self._lock:
            return {**self._reader.stats(), "connected": self._session.connected}

    def _check_usable(self) -> None:
        self._session.check_usable()

    def _do(self, change: Callable[[], None]) -> None:
        self._session.check_usable()
        with self._lock:
            change()

    def _run(self, steps: Steps[T]) -> T:
        self._session.check_usable()
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
            with self._lock:
                on_reply(reply)

        self._session.ask(kind, body, on_reply_locked, blobs, wait_s)

    def _on_failure(self, error: ClarionError) -> None:
        with self._changed:
            self._changed.notify_all()

    def _on_turn(self, now_s: float) -> float | None:
        with self._lock:
            return self._reader.pump(now_s)


class _Owner:
    """What messages and transactions need of the subscriber they came from."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.do = subscriber._do
        self.run = subscriber._run
