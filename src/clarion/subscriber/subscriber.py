"""The subscriber for plain Python: subscribe, get, ack, from any thread."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal

from clarion.model.address import DEFAULT_URL
from clarion.model.errors import ClarionError, NotSubscribed, Unreachable
from clarion.model.names import to_bytes, to_text
from clarion.session.exchange import OnReply, Reply
from clarion.session.thread import ThreadSession
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.reading import Reading, check_choices, no_answer, start_fields
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind

log = logging.getLogger("clarion.subscriber")
Start = Literal["new", "earliest"] | int | datetime
AckMode = Literal["auto", "explicit"]
Delivery = Literal["at-least-once", "at-most-once"]
MANY = 65_536
LONG_WAIT_S = 30.0
GRACE_S = 0.05  # for the broker to answer a get whose wait is over


class Subscriber:
    """Reads topics of the broker at `url` under a durable name. Safe from many threads; close it, or use `with`.

    ack="auto": a get acks what the last one handed out. ack="explicit": `message.ack()` does.
    delivery="at-most-once": messages are acked before they are handed out, as in the reliable-service document;
    a crash then loses them instead of repeating them.
    `timeout_s` is how long any call waits for a broker that does not answer, before it raises.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        name: bytes | str = "",
        *,
        ack: AckMode = "auto",
        delivery: Delivery = "at-least-once",
        timeout_s: float = 10.0,
        fetch_bytes: int = 2**20,
        prefetch: bool = True,
    ) -> None:
        check_choices(name, ack, delivery)
        self.name = to_bytes(name)
        self._auto_ack = ack == "auto"
        self._at_most_once = delivery == "at-most-once"
        self._timeout_s = timeout_s
        self._fetch_bytes = fetch_bytes
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._readings: dict[bytes, Reading] = {}
        self._closed = False
        self._session = ThreadSession(url, on_turn=self._on_turn, on_failure=self._on_failure)

    def subscribe(self, topic: bytes | str, start: Start = "new") -> bool:
        """Make a durable subscription that sees every message put from now on, or from `start` on: "earliest",
        an offset, or a datetime. Gives False where it was there already, which then stays as it is."""
        kind, at = start_fields(start)
        body = bodies.Subscribe(to_bytes(topic), self.name, kind, at)
        reply = self._session.call(Kind.SUBSCRIBE, body, timeout_s=self._timeout_s)
        if reply.kind == Kind.ALREADY_SUBSCRIBED:
            return False
        reply.read(bodies.Subscribed)
        return True

    def unsubscribe(self, topic: bytes | str) -> bool:
        """End the subscription; what only it still needed is let go. Gives False where there was none."""
        topic = to_bytes(topic)
        with self._lock:
            self._readings.pop(topic, None)
        reply = self._session.call(Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, self.name), timeout_s=self._timeout_s)
        try:
            reply.read(bodies.Done)
        except NotSubscribed:
            return False
        return True

    def get(self, topic: bytes | str, max_messages: int = 100, wait_s: float = 0.0) -> list[Message]:
        """Give up to `max_messages`; where there are none, wait up to `wait_s` for the first. [] when that is over."""
        return [message for part in self.get_batches(topic, max_messages, wait_s) for message in part.messages()]

    def get_batches(self, topic: bytes | str, max_messages: int = MANY, wait_s: float = 0.0) -> list[MessageBatch]:
        """As `get`, but in columns as they are stored, with no object for each message."""
        if max_messages < 1:
            raise ValueError(f"max_messages is at least 1, not {max_messages}")
        self._session.check_usable()
        deadline_s = time.monotonic() + wait_s
        with self._changed:
            reading = self._reading(to_bytes(topic))
            if self._auto_ack:
                reading.ack_handed()
            if not self._wait_for_messages(reading, max_messages, deadline_s):
                return []
            parts = reading.take(max_messages)
            self._hand_out(reading, parts)
            return parts

    def stream(self, topic: bytes | str, wait_s: float | None = None) -> Iterator[Message]:
        """Give messages one by one, for ever, or until none came for `wait_s`. With ack="auto" a message is acked
        when the next one is asked for. Leave it when you like: the next get goes on where it was left."""
        topic = to_bytes(topic)
        while True:
            with self._changed:
                self._session.check_usable()
                reading = self._reading(topic)
                if self._auto_ack:
                    reading.ack_handed()
                message = reading.next_message()
                if message is None:
                    if not self._wait_in_stream(reading, wait_s):
                        return
                    continue
                self._hand_out(reading, [message.alone()])
            yield message

    def _wait_in_stream(self, reading: Reading, wait_s: float | None) -> bool:
        if wait_s is not None:
            return self._wait_for_messages(reading, MANY, time.monotonic() + wait_s)
        try:
            self._wait_for_messages(reading, MANY, time.monotonic() + LONG_WAIT_S)
        except Unreachable:
            log.warning("no broker answers at %s; the stream goes on when one does", self._session.url)
        return True

    def _hand_out(self, reading: Reading, parts: list[MessageBatch]) -> None:
        if self._at_most_once:
            try:
                for part in parts:
                    reading.ack(part.offsets.start, part.offsets.stop)
                self._wait_for_acks(reading, self._timeout_s)
            except Unreachable:
                reading.put_back(parts)
                raise
        elif self._auto_ack:
            reading.handed += [(part.offsets.start, part.offsets.stop) for part in parts]

    def _wait_for_messages(self, reading: Reading, most: int, deadline_s: float) -> bool:
        gets_before = reading.gets_sent
        give_up_s = deadline_s + self._timeout_s
        while True:
            self._raise_error(reading)
            if reading.buffered:
                return True
            now_s = time.monotonic()
            if now_s >= deadline_s and reading.empty_get > gets_before:
                return False
            if now_s >= give_up_s:
                raise no_answer(self._session.url)
            reading.want(max(0.0, deadline_s - now_s), most)
            # The get under way may be another thread's that waits longer: then an own one asks when time is up.
            ask_again_s = deadline_s + GRACE_S
            self._changed.wait((ask_again_s if now_s < ask_again_s else give_up_s) - now_s)

    def _reading(self, topic: bytes) -> Reading:
        reading = self._readings.get(topic)
        if reading is None:
            reading = self._readings[topic] = Reading(
                topic,
                self.name,
                os.urandom(16),
                self._ask,
                time.monotonic,
                self._changed.notify_all,
                lambda start, stop: self._ack(topic, start, stop),
                fetch_bytes=self._fetch_bytes,
                prefetch=self._prefetch,
            )
        return reading

    def _raise_error(self, reading: Reading) -> None:
        self._session.check_usable()
        if reading.error is not None:
            self._readings.pop(reading.topic, None)  # the next call starts afresh
            raise reading.error

    def _ack(self, topic: bytes, start: int, stop: int) -> None:
        self._session.check_usable()
        with self._lock:
            reading = self._readings.get(topic)
            if reading is None:
                raise NotSubscribed(f"{to_text(self.name)} no longer reads {to_text(topic)}")
            reading.ack(start, stop)

    def flush_acks(self, timeout_s: float | None = None) -> None:
        """Wait until every ack made so far is durable."""
        patience_s = self._timeout_s if timeout_s is None else timeout_s
        with self._changed:
            for reading in list(self._readings.values()):
                self._wait_for_acks(reading, patience_s)

    def _wait_for_acks(self, reading: Reading, patience_s: float) -> None:
        deadline_s = time.monotonic() + patience_s
        while not reading.acks_done():
            self._raise_error(reading)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise no_answer(self._session.url)
            self._changed.wait(left_s)
        self._raise_error(reading)

    def close(self, *, ack: bool = True) -> None:
        """Let go of the connection. With `ack`, what was handed out is acked first, durably; without, only what
        was acked before is."""
        if self._closed:
            return
        try:
            if ack and self._auto_ack:
                with self._lock:
                    for reading in self._readings.values():
                        reading.ack_handed()
            self.flush_acks()
        finally:
            self._closed = True
            self._session.close()
            with self._changed:
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
        """What is buffered, and whether a broker is connected."""
        with self._lock:
            buffered = sum(reading.buffered for reading in self._readings.values())
            return {"buffered": buffered, "topics": len(self._readings), "connected": self._session.connected}

    def _ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None:
        def on_reply_locked(reply: Reply) -> None:
            with self._lock:
                on_reply(reply)

        self._session.ask(kind, body, on_reply_locked, blobs, wait_s)

    def _on_failure(self, error: ClarionError) -> None:
        with self._changed:
            for reading in self._readings.values():
                reading.error = error
            self._changed.notify_all()

    def _on_turn(self, now_s: float) -> float | None:
        with self._lock:
            wanted = [reading.pump(now_s) for reading in self._readings.values()]
        return min((moment_s for moment_s in wanted if moment_s is not None), default=None)
