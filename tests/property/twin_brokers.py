"""Two engines that are asked the same in step, of which only the second hears repeats: whatever a repeat changes tells
them apart, at once or by any answer that is given later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from clarion.broker.engine import Engine, Group, Limits, Now, Reply
from clarion.store.memory import MemoryStore
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind, Request, parse_request

Key = tuple[bytes, int]  # peer and request id
LEASE_S = 1.0
_NOT_COMPARED = frozenset({"_sequence", "_history", "_clock_us"})  # they count commits, and answers alone are one, too


_encode = msgspec.msgpack.Encoder().encode


class Told(msgspec.Struct, frozen=True):
    """An answer as it goes over the wire."""

    kind: int
    body: bytes
    blobs: tuple[bytes, ...] = ()

    @property
    def refusal(self) -> bodies.Refused | None:
        """The refusal, if it is one."""
        refused = (Kind.INVALID, Kind.REFUSED, Kind.NO_SUBSCRIBER, Kind.NOT_SUBSCRIBED)
        return msgspec.msgpack.decode(self.body, type=bodies.Refused) if self.kind in refused else None

    def read(self, body: Any) -> Any:
        """Return the body as what it is."""
        return msgspec.msgpack.decode(self.body, type=body)


def _told(reply: Reply) -> Told:
    body = reply.body
    if isinstance(body, bodies.Lent):  # how much more there is, is a hint, as of when somebody looked
        body = msgspec.structs.replace(body, waiting=0)
    return Told(reply.kind, _encode(body), tuple(bytes(blob) for blob in reply.blobs))


class OneBroker:
    """An engine, its store, and what it answered to whom."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.store = MemoryStore()
        self.starts = 0
        self.group: Group | None = None
        self.stored = False
        self.answers: dict[Key, list[Told]] = {}
        self.engine: Engine

    def start(self, now: Now) -> None:
        """Begin with what is in the store, and look at everything that is shared: when that is done first must not
        depend on who asks first."""
        self.starts += 1
        self.group, self.stored = None, False
        self.engine = Engine(self.store, self._limits, start=b"start %10d" % self.starts)
        if self.starts > 1:
            self.look_at_all(now)

    def look_at_all(self, now: Now) -> None:
        """Have the broker know which start it is, and who shared what before it."""
        self.engine._state.start_number()
        for summary in self.store.topics(b"", 1000):
            for row in summary.subscriptions:
                detach = bodies.Detach(summary.topic.name, row.name, 0, ())
                self.engine.handle(b"nobody", Request(Kind.DETACH, 0, detach, None), now)
        self.settle(now)
        self.answers.pop((b"nobody", 0), None)

    def take(self, peer: bytes, frames: list[Buffer], now: Now) -> None:
        """Take a request."""
        self.engine.handle(peer, parse_request(frames), now)
        self._hear()

    def tick(self, now: Now) -> None:
        """Do what is due."""
        self.engine.tick(now)
        self._hear()

    def _hear(self) -> None:
        for reply in self.engine.take_replies():
            self.answers.setdefault((reply.peer, reply.request_id), []).append(_told(reply))

    def begin_commit(self) -> None:
        """Close the group of changes."""
        assert self.group is None
        self.group = self.engine.take_group()
        self.stored = False

    def reach_disk(self) -> None:
        """Have the group in flight on disk; the engine does not know yet."""
        if self.group is not None and not self.stored:
            self.store.commit(self.group.changes)
        self.stored = True

    def finish_commit(self, now: Now) -> None:
        """Have the group in flight on disk, and tell the engine."""
        self.reach_disk()
        group, self.group = self.group, None
        if group is not None:
            self.engine.committed(group, now)
            self._hear()

    def fail_commit(self, now: Now) -> None:
        """The group in flight did not fit: the engine knows only what is on disk."""
        assert self.group is not None
        assert not self.stored
        group, self.group = self.group, None
        self.engine.commit_failed(group, Code.DISK_FULL, "full")
        self._hear()
        self.engine.tick(now)
        self.engine._state.free_bytes = self.store.free_bytes()
        self.look_at_all(now)

    def settle(self, now: Now) -> bool:
        """Commit until nothing waits for the disk; say whether anything did, or was answered since."""
        had_news = self.group is not None or bool(self.answers)
        self.finish_commit(now)
        while True:
            self.begin_commit()
            if self.group is None:
                return had_news
            had_news = True
            self.finish_commit(now)

    def durable(self) -> dict[str, Any]:
        """Return all that is on disk and has a meaning."""
        return {name: value for name, value in vars(self.store).items() if name not in _NOT_COMPARED}

    def lent(self) -> dict[tuple[bytes, bytes], Any]:
        """Return who holds what of the subscriptions that are shared."""
        return {
            (topic.name, name): (
                {each.token: (list(each.held), each.last_take, each.last_release) for each in _consumers(leases)},
                list(leases.coming), sorted(leases.waiting), sorted(leases.awaited),
            )
            for topic in self.engine._state.topics.values()
            for name, subscription in topic.subscriptions.items()
            if (leases := subscription.leases) is not None
        }  # fmt: skip


def _consumers(leases: Any) -> Iterator[Any]:
    return iter(leases.consumers.values())
