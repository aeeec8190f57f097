"""A gateway in a process of its own, as a person starts it, and a plain HTTP client for it."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.integration.shell import DEADLINE_S, read_line, start
from tests.integration.waiting import eventually

from clarion import Subscriber


class Answer(NamedTuple):
    """What came back."""

    status: int
    told: Any
    headers: dict[str, str]


class Client:
    """One keep-alive connection to a gateway."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=DEADLINE_S)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; underscores in names of headers are hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, named)
        response = self._connection.getresponse()
        content = response.read()
        told = json.loads(content) if response.getheader("Content-Type") == "application/json" else content
        return Answer(response.status, told, {name.lower(): value for name, value in response.getheaders()})

    def post(self, topic: str, body: Any = b"", **headers: str) -> Answer:
        """Post to a topic, which is written as in a URL."""
        return self.ask("POST", f"/topics/{topic}", body, **headers)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


class GatewayProcess:
    """Starts a gateway on a free port; it is gone when the block ends."""

    def __init__(self, url: str, *flags: str, open_files: int | None = None) -> None:
        always = ("--listen", "127.0.0.1:0", "--json", "--timeout", f"{DEADLINE_S}")
        within = () if open_files is None else ("sh", "-c", f'ulimit -n {open_files}; exec "$0" "$@"')
        self.process: subprocess.Popen[bytes] = start(
            "publish", "--from-http", "--url", url, *always, *flags, within=within
        )
        line = read_line(self.process)
        if not line:
            raise AssertionError(f"the gateway did not start: {self.process.communicate()[1].decode()[-2000:]}")
        self.ready = json.loads(line)
        parts = urlsplit(self.ready["listen"])
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)

    def client(self) -> Client:
        """Return another connection."""
        return Client(self.address)

    def post(self, topic: str, body: Any = b"", **headers: str) -> Answer:
        """Post on a connection of its own."""
        client = self.client()
        try:
            return client.post(topic, body, **headers)
        finally:
            client.close()

    def get(self, path: str) -> Answer:
        """Ask for /health or /stats on a connection of its own."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request on a connection of its own."""
        client = self.client()
        try:
            return client.ask(method, path, body, **headers)
        finally:
            client.close()

    def connected(self) -> bool:
        """Whether it says that it has its broker."""
        return self.get("/health").status == 200

    def refuses(self) -> bool:
        """Whether it takes no more connections."""
        try:
            socket.create_connection(self.address).close()
        except ConnectionRefusedError:
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, list[dict[str, Any]]]:
        """Send a signal; return the exit code and what it logged."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Wait until it has ended; return the exit code and what it logged."""
        _, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, [json.loads(line) for line in err.splitlines()]

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=DEADLINE_S)

    def end_at_once(self) -> bytes:
        """Stop it by two signals, the second of which ends it at once; return what it said on standard error."""
        self.process.send_signal(signal.SIGTERM)
        eventually(self.refuses, "it takes no more")
        self.process.send_signal(signal.SIGINT)  # the same again might be taken for the first one
        _, err = self.process.communicate(timeout=DEADLINE_S)
        return bytes(err)


def make_reader(url: str, topic: str) -> None:
    """Subscribe a reader of what is posted to a topic."""
    with Subscriber(url, "reader") as reader:
        reader.subscribe(topic)


def read_posted(url: str, topic: str, count: int) -> list[bytes]:
    """Return so many messages that were posted, and whatever comes right behind them."""
    found: list[bytes] = []
    with Subscriber(url, "reader") as reader:
        while len(found) < count:
            some = reader.get(topic, wait_s=DEADLINE_S)
            assert some, f"only {len(found)} of {count} messages came"
            found += [message.payload for message in some]
        found += [message.payload for message in reader.get(topic)]
    return found
