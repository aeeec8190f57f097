"""The administrator's client: topics, their retention, and the broker's counters."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal

from clarion.model.address import DEFAULT_URL
from clarion.model.names import to_bytes
from clarion.session.thread import ThreadSession
from clarion.wire import bodies
from clarion.wire.bodies import TopicRow
from clarion.wire.frames import OLDEST_VERSION, PROTOCOL_VERSION, Kind

_PAGE = 1000


class Admin:
    """Asks the broker at `url`. Safe from many threads; close it, or use `with`."""

    def __init__(self, url: str = DEFAULT_URL, *, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._session = ThreadSession(url)

    def hello(self) -> bodies.Welcome:
        """Ask who answers: its version, ids and limits."""
        hello = bodies.Hello(OLDEST_VERSION, PROTOCOL_VERSION, "clarion admin")
        return self._session.call(Kind.HELLO, hello, timeout_s=self._timeout_s).read(bodies.Welcome)

    def configure_topic(self, topic: bytes | str, *, retention: Literal["until-read", "keep"]) -> None:
        """Make the topic if it is not there, and set what it keeps: messages until every subscriber has read them,
        or for ever."""
        body = bodies.Configure(to_bytes(topic), retention)
        self._session.call(Kind.CONFIGURE, body, timeout_s=self._timeout_s).read(bodies.Done)

    def topics(self) -> Iterator[TopicRow]:
        """Give every topic with its subscriptions, by name."""
        after = b""
        while True:
            reply = self._session.call(Kind.TOPICS, bodies.ListTopics(after, _PAGE), timeout_s=self._timeout_s)
            page = reply.read(bodies.TopicRows)
            yield from page.topics
            if not page.more or not page.topics:
                return
            after = page.topics[-1].topic

    def stats(self) -> dict[str, Any]:
        """Give the broker's counters since its start, and what it holds now."""
        return self._session.call(Kind.STATS, bodies.AskStats(), timeout_s=self._timeout_s).read(bodies.Stats).values

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
