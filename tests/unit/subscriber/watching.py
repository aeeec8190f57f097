"""A subscriber to a pattern, and the broker's side of the talk."""

from __future__ import annotations

from tests.unit.subscriber.talking import Asked, Walk, World

from clarion.model.options import SubscriptionOptions
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_core import Get
from clarion.wire import bodies
from clarion.wire.frames import Kind
from clarion.wire.messages import MessageBatch

PATTERN = b"alerts/*"


class Watch(World):
    """A subscriber to a pattern."""

    def __init__(self, *, shared: bool = False, fetch_bytes: int = 100_000) -> None:
        super().__init__(FetchSettings(fetch_bytes))
        self.options = SubscriptionOptions(shared=shared)
        self.tokens: dict[bytes, int] = {}
        self.version = 0

    def get(self, most: int = 10, wait_s: float = 0.0) -> Walk[list[MessageBatch]]:
        return self.run(Get(PATTERN, most, wait_s, holder=self))

    def match(self, *topics: bytes, pattern: bytes = PATTERN) -> None:
        """Answer who asks which topics there are, as the broker does: everybody, once it has to answer one."""
        asking = [asked for asked in self.asked if asked.kind == Kind.MATCHES and asked.body.pattern == pattern]
        assert asking
        self.version += 1
        for asked in asking:
            self.asked.remove(asked)
            asked.answer(Kind.ACK, bodies.Matched(self.version, topics))

    def attach_all(self) -> None:
        attaching = [asked for asked in self.asked if asked.kind == Kind.ATTACH]
        for asked in attaching:
            self.asked.remove(asked)
            self.tokens[asked.body.topic] = len(self.tokens) + 1
            asked.answer(Kind.ACK, bodies.Attached(len(self.tokens), 0, (), self.options))

    def fetches(self) -> dict[bytes, Asked]:
        """Take the gets and takes that are under way, by topic."""
        found = {asked.body.topic: asked for asked in self.asked if asked.kind in (Kind.GET, Kind.TAKE)}
        self.asked = [asked for asked in self.asked if asked.kind not in (Kind.GET, Kind.TAKE)]
        return found

    def begin(self, *topics: bytes, most: int = 10, wait_s: float = 0.0) -> Walk[list[MessageBatch]]:
        """Begin to get, up to the point where every topic was asked."""
        walk = self.get(most, wait_s)
        self.match(*topics)
        walk.go_on()
        self.attach_all()
        return walk
