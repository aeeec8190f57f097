"""Those who share work in a torture campaign, each a process: `python -m tests.integration.torture_consumers JSON`.

Their logs have, with the time of the monotonic clock, in ns, as the last word:

* `R topic offset id publisher counter attempt` when a message is in hand;
* `B topic offset` before it is acked, by itself or in a transaction, `K topic offset` once an ack is durable;
* `N topic offset delay_ms` before a message is given back, `D topic offset` once that is durable;
* `C topic offset` once a transaction that acked it is committed;
* `L topic offset` when its lease is said to be lost;
* `G from` when the process got no time to run for a good part of its lease;
* `E` and `X text` as other clients.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from tests.integration.torture_clients import ClientProcess, Log, Task, make_message, read_message, run_client

from clarion import LeaseLost, Message, Subscriber, VersionConflict

_PATIENCE_S = 120.0
_TURN_S = 0.3
_TICK_S = 0.02
COUNTED = "worked"  # the named state that a stage counts in


def is_poison(publisher: str, topic: str, counter: int) -> bool:
    """Tell whether nobody can work on a message: every consumer gives it back."""
    return zlib.crc32(f"poison {publisher}/{topic}/{counter}".encode()) % 50 == 0


def worked(stage: int, payload: bytes) -> bytes:
    """Return what a stage makes of a payload."""
    digest = hashlib.blake2b(b"%d" % stage + payload, digest_size=8).hexdigest()
    return payload + b"#%d:" % stage + digest.encode()


def unworked(stages: int, payload: bytes) -> bytes | None:
    """Return the payload that so many stages made this one of; None if they did not."""
    for stage in range(stages, 0, -1):
        before, _, _ = payload.rpartition(b"#%d:" % stage)
        if worked(stage, before) != payload:
            return None
        payload = before
    return payload


class Watch:
    """Notes when the process got no time to run: its lease may lapse then, and nobody is to blame."""

    def __init__(self, log: Log, lease_s: float) -> None:
        self._log = log
        self._longest_ns = int(lease_s * 1e9 / 4)
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        last_ns = time.monotonic_ns()
        while not self._ended.wait(_TICK_S):
            now_ns = time.monotonic_ns()
            if now_ns - last_ns > self._longest_ns:
                self._log.write([f"G {last_ns} {now_ns}"])
            last_ns = now_ns

    def end(self) -> None:
        """Watch no longer."""
        self._ended.set()


class Consumer:
    """What all of them do: get messages, note them, and note what became of them."""

    def __init__(self, task: Task, log: Log, stopping: threading.Event) -> None:
        self._task = task
        self._log = log
        self._stopping = stopping
        self._dice = random.Random(task.seed)
        self._topic = task.topics[0]
        self._lease_s = float(task.options["lease_s"])
        self._watch = Watch(log, self._lease_s)
        self._subscriber = Subscriber(
            task.url,
            task.options["subscription"],
            ack="explicit",
            timeout_s=_PATIENCE_S,
            max_unacked=task.options["max_unacked"],
        )
        self._in_hand: dict[int, Message] = {}

    def run(self) -> None:
        """Do all of it."""
        while not self._stopping.is_set():
            try:
                most = self._dice.choice((1, 1, 3, 10))
                messages = self._subscriber.get(self._topic, max_messages=most, wait_s=_TURN_S)
                self._note_received(messages)
                self._work(messages)
            except LeaseLost:
                self._note("L", list(self._in_hand))
        self._subscriber.close()
        self._watch.end()

    def _work(self, messages: Sequence[Message]) -> None:
        raise NotImplementedError

    def _note(self, what: str, offsets: Sequence[int], more: str = "") -> None:
        """Note something about messages; they are in hand no more unless it is only said to begin."""
        now_ns = time.monotonic_ns()
        self._log.write(f"{what} {self._topic} {offset} {more}{now_ns}" for offset in offsets)
        if what in "KDCL":
            for offset in offsets:
                self._in_hand.pop(offset, None)

    def _note_received(self, messages: Sequence[Message]) -> None:
        now_ns = time.monotonic_ns()
        lines = []
        for message in messages:
            whose = self._whose(message)
            if whose is None:
                lines.append(
                    f"X a message at {self._topic} {message.offset} that nobody made: {message.payload[:80]!r}"
                )
                continue
            about = f"{message.id} {whose[0]} {whose[2]} {message.attempt}"
            lines.append(f"R {self._topic} {message.offset} {about} {now_ns}")
            self._in_hand[message.offset] = message
        self._log.write(lines)

    def _whose(self, message: Message) -> tuple[str, str, int] | None:
        return read_message(message.payload, message.key)

    def _take_time(self) -> None:
        """Work for a while, now and then for longer than a lease, which only heartbeats keep alive."""
        chance = self._dice.random()
        if chance < 0.01:
            self._stopping.wait(1.5 * self._lease_s)
        elif chance < 0.3:
            self._stopping.wait(0.1)


class SharingProcess(Consumer):
    """Acks most, gives some back, and works long on a few."""

    def _work(self, messages: Sequence[Message]) -> None:
        acked: list[int] = []
        given_back: list[int] = []
        for message in messages:
            whose = self._whose(message)
            chance = self._dice.random()
            if (whose and is_poison(*whose)) or chance < 0.05:
                delay_s = self._dice.choice((0.0, 0.0, 0.3, 1.0))
                self._note("N", [message.offset], f"{delay_s * 1000:.0f} ")
                message.nack(delay_s=delay_s, reason="poison" if whose and is_poison(*whose) else "a whim")
                given_back.append(message.offset)
            else:
                self._take_time()
                if chance < 0.1:
                    message.extend()
                self._note("B", [message.offset])
                message.ack()
                acked.append(message.offset)
            if self._dice.random() < 0.5:
                self._settle(acked, given_back)
        self._settle(acked, given_back)

    def _settle(self, acked: list[int], given_back: list[int]) -> None:
        self._subscriber.flush_acks(_PATIENCE_S)
        self._note("K", acked)
        self._note("D", given_back)
        acked.clear()
        given_back.clear()


class StageProcess(Consumer):
    """Takes, transforms and puts, all in one transaction."""

    def __init__(self, task: Task, log: Log, stopping: threading.Event) -> None:
        super().__init__(task, log, stopping)
        self._stage = int(task.options["stage"])
        self._next = str(task.options["next"])

    def _whose(self, message: Message) -> tuple[str, str, int] | None:
        made = unworked(self._stage - 1, message.payload)
        return None if made is None else read_message(made, message.key)

    def _work(self, messages: Sequence[Message]) -> None:
        left = list(messages)
        while left:
            some = [left.pop() for _ in range(min(len(left), self._dice.choice((1, 2, 4))))]
            self._take_time()
            while not self._commit(some):
                pass

    def _commit(self, messages: Sequence[Message]) -> bool:
        """Do it in one transaction; False where it has to be done again."""
        offsets = [message.offset for message in messages]
        counted = self._subscriber.state(COUNTED) if self._task.options["counts"] else None
        self._note("B", offsets)
        try:
            with self._subscriber.transaction() as tx:
                for message in messages:
                    tx.put(self._next, worked(self._stage, message.payload), key=message.key)
                    tx.ack(message)
                if counted is not None:
                    done = int(counted.value or 0) + len(messages)
                    tx.set(COUNTED, b"%d" % done, expect=counted.version)
                if self._dice.random() < 0.03:
                    raise _SecondThoughts
        except (VersionConflict, _SecondThoughts):
            return False
        self._note("C", offsets)
        return True


class _SecondThoughts(Exception):
    pass


def _kind_of(role: str) -> Callable[[Task, Log, threading.Event], ClientProcess]:
    return SharingProcess if role == "share" else StageProcess


__all__ = ["COUNTED", "is_poison", "make_message", "unworked", "worked"]

if __name__ == "__main__":
    sys.exit(run_client(_kind_of))
