"""A consumer in a process of its own that does what it is told, line by line, so that it can be stopped and killed.

`python -m tests.integration.worker_process JSON`; a command is a JSON list of a name and arguments, the answer a JSON
value. An error of Clarion's is answered with its name, as {"error": "LeaseLost"}.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any

from tests.integration.broker_process import ROOT
from tests.integration.waiting import DEADLINE_S

from clarion import Message, Publisher, Subscriber
from clarion.model.errors import ClarionError
from clarion.publisher import Stager


class WorkerDied(AssertionError):
    """The process ended without an answer."""


class Refused(Exception):
    """The worker met an error of Clarion's; `name` says which."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class WorkerProcess:
    """Starts a worker and talks to it; `with` sees to it that it is gone afterwards."""

    def __init__(self, url: str, name: str, **options: Any) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.worker_process", json.dumps([url, name, options])],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def ask(self, command: str, *arguments: Any) -> Any:
        """Have it do something; return the answer, or raise Refused."""
        self.tell(command, *arguments)
        return self.answer()

    def tell(self, command: str, *arguments: Any) -> None:
        """Have it do something; the answer is for `answer`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, *arguments]).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return the next answer, or raise Refused."""
        line = self._answers.get(timeout=DEADLINE_S)
        if not line:
            raise WorkerDied(f"the worker ended with {self.process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise Refused(answer["error"], answer["text"])
        return answer

    def stop(self) -> None:
        """Have it hang, heartbeats and all."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL it and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self._listening.join()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class Worker:
    """What a worker can do; each method is a command."""

    def __init__(self, url: str, name: str, options: dict[str, Any]) -> None:
        self._url = url
        self._subscriber = Subscriber(url, name, ack="explicit", timeout_s=DEADLINE_S, **options)
        self._held: dict[int, Message] = {}

    def get(self, topic: str, most: int, wait_s: float) -> list[list[Any]]:
        """Return [offset, attempt, payload] of messages, which stay at hand."""
        messages = self._subscriber.get(topic, max_messages=most, wait_s=wait_s)
        self._held |= {message.offset: message for message in messages}
        return [[message.offset, message.attempt, message.payload.decode()] for message in messages]

    def ack(self, *offsets: int) -> None:
        """Ack what is at hand, durably."""
        for offset in offsets:
            self._held[offset].ack()
        self._subscriber.flush_acks()

    def extend(self, offset: int) -> None:
        """Renew the lease on a message."""
        self._held[offset].extend()

    def commit(self, offset: int, topic: str, payload: str) -> list[int]:
        """Ack a message and put another one in one transaction; return the offset of that."""
        with self._subscriber.transaction() as tx:
            tx.put(topic, payload)
            tx.ack(self._held[offset])
        return list(tx.offsets)

    def count(self, state: str, times: int) -> int:
        """Add one to a named state so many times, however many others do the same; return the conflicts met."""
        conflicts = done = 0
        while done < times:
            found = self._subscriber.state(state)
            try:
                with self._subscriber.transaction() as tx:
                    tx.set(state, b"%d" % (int(found.value or 0) + 1), expect=found.version)
                done += 1
            except ClarionError as error:
                if type(error).__name__ != "VersionConflict":
                    raise
                conflicts += 1
        return conflicts

    def stage(self, writer: str, epoch: int, part: str, topic: str, count: int) -> None:
        """Stage messages as a part of what a writer writes."""
        with Stager(self._url, writer=writer, epoch=epoch, part=part) as stager:
            stager.put_many(topic, [f"{epoch} {part} {place}".encode() for place in range(count)])

    def put_kept(self, outbox: str, topic: str, count: int) -> None:
        """Put messages through an outbox, which stays open, and wait until they are stored."""
        self._publisher = Publisher(self._url, outbox=outbox)
        for place in range(count):
            self._publisher.put(topic, b"%d" % place).result(DEADLINE_S)

    def put_kept_unanswered(self, topic: str, count: int) -> None:
        """Put more of them, and wait until they are in the outbox."""
        for place in range(count):
            self._publisher.put(topic, b"unanswered %d" % place).saved(DEADLINE_S)

    def serve(self, topic: str, requests: int) -> None:
        """Answer requests with their payload in capitals."""
        with Publisher(self._url) as publisher:
            while requests:
                for message in self._subscriber.get(topic, max_messages=1, wait_s=1):
                    publisher.reply(message, message.payload.upper()).result(DEADLINE_S)
                    message.ack()
                    self._subscriber.flush_acks()
                    requests -= 1

    def close(self) -> None:
        """Leave cleanly."""
        self._subscriber.close()


def main() -> None:
    """Do what the lines say, until they end."""
    url, name, options = json.loads(sys.argv[1])
    worker = Worker(url, name, options)
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        answer: Any
        try:
            answer = getattr(worker, command)(*arguments)
        except ClarionError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
