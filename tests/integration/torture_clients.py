"""The clients of the torture campaign, each a process: `python -m tests.integration.torture_clients JSON`.

Everything an oracle must know is appended to the process's own log before it can be forgotten by a kill:

* publisher: `I topic first count` before a put, `A topic first count offset` once it is acked;
* subscriber: `R topic offset id publisher counter` when a message is in hand, `K topic offset` once its ack is durable;
* both: `E` at a clean end, `X text` when something is wrong that no kill explains.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from clarion import Message, Publisher, Subscriber
from clarion.model.errors import ClarionError

_PATIENCE_S = 120.0
_OUTSTANDING = 60
_TURN_S = 0.3


@dataclass(frozen=True, slots=True)
class Task:
    """What one client process is told to do."""

    role: str  # publish, or a way of reading: auto, batches, stream, explicit, at-most-once; or of sharing
    url: str
    name: str
    topics: list[str]
    log: str
    seed: int
    pace_s: float = 0.01
    options: dict[str, Any] = field(default_factory=dict)  # of those who share

    def to_json(self) -> str:
        """Return it as a command line argument."""
        return json.dumps(asdict(self))


def make_message(publisher: str, topic: str, counter: int) -> tuple[bytes, bytes | None]:
    """Return the payload and key that this publisher's message has; where the payload is empty, the key says whose."""
    name = f"{publisher}/{topic}/{counter}".encode()
    dice = zlib.crc32(name)
    if dice % 16 == 0:
        return b"", name
    size = 50_000 if dice % 97 == 0 else dice // 16 % 300
    return name + b"|" + (name * (size // len(name) + 1))[:size], name[-4:] if dice % 3 == 0 else None


def read_message(payload: bytes, key: bytes | None) -> tuple[str, str, int] | None:
    """Return (publisher, topic, counter) of a message; None if it is not, byte for byte, one that was made."""
    name = payload.partition(b"|")[0] if payload else key
    try:
        publisher, topic, counter = (name or b"").decode().split("/")
        made = publisher, topic, int(counter)
    except ValueError:
        return None
    return made if make_message(*made) == (payload, key) else None


class Log:
    """An append-only file; what was written survives the process, whole lines at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, lines: Iterable[str]) -> None:
        """Append lines."""
        if text := "".join(f"{line}\n" for line in lines):
            os.write(self._file, text.encode())


class PublishingProcess:
    """Puts until it is told to stop, then flushes and closes."""

    def __init__(self, task: Task, log: Log, stopping: threading.Event) -> None:
        self._task = task
        self._log = log
        self._stopping = stopping
        self._dice = random.Random(task.seed)
        self._next = dict.fromkeys(task.topics, 0)
        self._waiting: deque[tuple[str, int, int, Any]] = deque()
        self._publisher = self._connect()

    def _connect(self) -> Publisher:
        return Publisher(self._task.url, block_s=_PATIENCE_S, in_flight=self._dice.choice((1, 4, 16)))

    def run(self) -> None:
        """Do all of it."""
        while not self._stopping.wait(self._task.pace_s * self._dice.random() * 2):
            self._put_some()
            self._note_acked(all_of_it=len(self._waiting) > _OUTSTANDING)
            if self._dice.random() < 0.01:  # a clean close has the broker forget the publisher
                self._publisher.close(_PATIENCE_S)
                self._note_acked(all_of_it=True)
                self._publisher = self._connect()
        self._publisher.close(_PATIENCE_S)
        self._note_acked(all_of_it=True)

    def _put_some(self) -> None:
        topic = self._dice.choice(self._task.topics)
        count = self._dice.choice((1, 1, 1, 1, 2, 5, 20, 60))
        first = self._next[topic]
        self._next[topic] += count
        made = [make_message(self._task.name, topic, first + place) for place in range(count)]
        self._log.write([f"I {topic} {first} {count}"])
        if count > 1 and self._dice.random() < 0.6:
            payloads, keys = [payload for payload, _ in made], [key for _, key in made]
            self._waiting.append((topic, first, count, self._publisher.put_many(topic, payloads, keys)))
        else:
            for place, (payload, key) in enumerate(made):
                receipt = self._publisher.put(topic, payload, key)
                self._waiting.append((topic, first + place, 1, receipt))

    def _note_acked(self, *, all_of_it: bool) -> None:
        lines: list[str] = []
        while self._waiting and (all_of_it or self._waiting[0][3].done()):
            topic, first, count, receipt = self._waiting.popleft()
            receipt.result(_PATIENCE_S)
            ranges = [range(receipt.offset, receipt.offset + 1)] if count == 1 else receipt.offsets
            for offsets in ranges:
                lines.append(f"A {topic} {first} {len(offsets)} {offsets.start}")
                first += len(offsets)
        self._log.write(lines)


class ReadingProcess:
    """Reads its topics, one thread each on one Subscriber, until it is told to stop."""

    def __init__(self, task: Task, log: Log, stopping: threading.Event) -> None:
        self._task = task
        self._log = log
        self._stopping = stopping
        self._subscriber = Subscriber(
            task.url,
            task.name,
            ack="explicit" if task.role == "explicit" else "auto",
            delivery="at-most-once" if task.role == "at-most-once" else "at-least-once",
            timeout_s=_PATIENCE_S,
        )
        self._read = {"stream": self._stream, "explicit": self._explicit}.get(task.role, self._get)
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """Do all of it."""
        threads = [threading.Thread(target=self._guarded, args=(topic,)) for topic in self._task.topics]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        self._subscriber.close()

    def _guarded(self, topic: str) -> None:
        try:
            self._read(topic, random.Random(f"{self._task.seed} {topic}"))
        except BaseException as error:  # noqa: BLE001 it is raised again where the process ends
            self._failures.append(error)
            self._stopping.set()

    def _note_received(self, messages: Iterable[Message]) -> None:
        lines = []
        for message in messages:
            whose = read_message(message.payload, message.key)
            topic = message.topic.decode()
            if whose is None or whose[1] != topic:
                lines.append(f"X a message at {topic} {message.offset} that nobody put: {message.payload[:80]!r}")
            else:
                lines.append(f"R {topic} {message.offset} {message.id} {whose[0]} {whose[2]}")
        self._log.write(lines)

    def _note_durable(self, topic: str, offsets: list[int]) -> None:
        self._subscriber.flush_acks(_PATIENCE_S)
        self._log.write(f"K {topic} {offset}" for offset in offsets)
        offsets.clear()

    def _get(self, topic: str, dice: random.Random) -> None:
        """With auto-ack: a get acks what the one before handed out."""
        acked: list[int] = []
        handed: list[int] = []
        while not self._stopping.is_set():
            most = dice.choice((1, 10, 100, 1000))
            if self._task.role == "batches":
                parts = self._subscriber.get_batches(topic, max_messages=most, wait_s=_TURN_S)
                messages = [message for part in parts for message in part.messages()]
            else:
                messages = self._subscriber.get(topic, max_messages=most, wait_s=_TURN_S)
            self._note_received(messages)
            acked += handed
            handed = [message.offset for message in messages]
            if acked and dice.random() < 0.2:
                self._note_durable(topic, acked)

    def _stream(self, topic: str, dice: random.Random) -> None:
        acked: list[int] = []
        handed: list[int] = []
        while not self._stopping.is_set():
            for message in self._subscriber.stream(topic, wait_s=_TURN_S):
                self._note_received([message])
                acked += handed
                handed = [message.offset]
                if acked and dice.random() < 0.02:
                    self._note_durable(topic, acked)
                if dice.random() < 0.02 or self._stopping.is_set():
                    break

    def _explicit(self, topic: str, dice: random.Random) -> None:
        """Ack out of order, and keep some back for a while."""
        held: list[Message] = []
        acked: list[int] = []
        while not self._stopping.is_set():
            messages = self._subscriber.get(topic, max_messages=dice.choice((1, 10, 200)), wait_s=_TURN_S)
            self._note_received(messages)
            held += messages
            dice.shuffle(held)
            keep = dice.randrange(len(held) + 1) if messages and len(held) < 300 else 0
            for message in held[keep:]:
                message.ack()
                acked.append(message.offset)
            del held[keep:]
            if acked and dice.random() < 0.2:
                self._note_durable(topic, acked)
        for message in held:
            message.ack()


class ClientProcess(Protocol):
    """What runs in a process of its own."""

    def run(self) -> None:
        """Do all of it."""


def run_client(kind_of: Callable[[str], Callable[[Task, Log, threading.Event], ClientProcess]]) -> int:
    """Run one client, of the kind that its role asks for, until SIGTERM."""
    task = Task(**json.loads(sys.argv[1]))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    log = Log(Path(task.log))  # that it is there says that a SIGTERM ends this process cleanly
    try:
        kind_of(task.role)(task, log, stopping).run()
    except ClarionError as error:
        log.write([f"X {type(error).__name__}: {error}"])
        raise
    log.write(["E"])
    return 0


def _kind_of(role: str) -> Callable[[Task, Log, threading.Event], ClientProcess]:
    return PublishingProcess if role == "publish" else ReadingProcess


if __name__ == "__main__":
    sys.exit(run_client(_kind_of))
