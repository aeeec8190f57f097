"""The real engine on a store in memory, with its disk and its clock in the hands of a test, and a plain model of it.

The model is copied when a group of changes is closed: a crash, or a failed commit, goes back to the copy on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from hypothesis import HealthCheck, settings

from clarion.broker.engine import Engine, Group, Limits, Now, Reply
from clarion.model.errors import StoreFull
from clarion.store.memory import MemoryStore
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, Request

Key = tuple[bytes, int]  # peer and request id
REPLAYED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)  # the same examples every time


class Plain(Protocol):
    """A model of what is durable."""

    def copy(self) -> Self: ...


P = TypeVar("P", bound=Plain)


@dataclass
class Asked(Generic[P]):
    """A request whose answer waits for the disk."""

    check: Callable[[Reply], None]
    durable: Callable[[P], bool]


class CheckedEngine(Generic[P]):
    """Sends requests, sorts replies, lets groups of changes reach the store or not, and crashes the engine."""

    def __init__(self, limits: Limits, plain: P) -> None:
        self.limits = limits
        self.store = MemoryStore()
        self.engine = self.make_engine()
        self.now_s = 1000.0
        self.now_us = 1_700_000_000_000_000
        self.current = plain
        self.durable = plain.copy()  # what the engine knows to be on disk
        self.closed: P | None = None  # the state with the group in flight
        self.group: Group | None = None
        self.stored = False  # the group in flight is in the store, and the engine was not told yet
        self.asked: dict[Key, Asked[P]] = {}
        self.answers: dict[Key, Reply] = {}
        self.failing = False  # a commit failed: everybody who waits for the disk must be told
        self.last_request = 0
        self.last_stamp = 0

    # What a model adds.

    def make_engine(self) -> Engine:
        """Return an engine that knows what is in the store."""
        return Engine(self.store, self.limits)

    def check_store(self, plain: P) -> None:
        """Compare what is on disk with the model."""

    def on_committed(self) -> None:
        """What was taken is on disk, and the engine was told."""

    def on_forgotten(self, *, told: bool) -> None:
        """The engine knows only what is on disk: after a failed commit, of which who waits is told, or a crash."""

    # Sending and hearing.

    @property
    def now(self) -> Now:
        return Now(self.now_s, self.now_us)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.now_us += int(seconds * 1e6)

    def ask(self, peer: bytes, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> Key:
        self.pass_time(0.001)
        self.last_request += 1
        key = (peer, self.last_request)
        self.engine.handle(peer, Request(kind, self.last_request, body, blob), self.now)
        self.hear()
        return key

    def hear(self) -> None:
        """Sort the replies: to who waits for the disk, and at once."""
        for reply in self.engine.take_replies():
            key = (reply.peer, reply.request_id)
            if key in self.asked:
                asked = self.asked.pop(key)
                if not self.failing:
                    assert asked.durable(self.durable), f"answered before it was on disk: {reply}"
                    asked.check(reply)
                else:
                    assert is_reply(reply, Kind.REFUSED, Code.DISK_FULL)
            else:
                assert key not in self.answers, f"answered twice: {reply}"
                self.answers[key] = reply

    def on_its_way(self, key: Key) -> Reply | None:
        """Return a reply that is decided, and waits for the open group to be on disk."""
        replies = [effect for effect in self.engine._state.open.on_durable if isinstance(effect, Reply)]
        return next((reply for reply in replies if (reply.peer, reply.request_id) == key), None)

    def heard(self, key: Key) -> Reply | None:
        return self.answers.pop(key, None)

    def expect_at_once(self, key: Key, kind: int, code: int = 0) -> Reply:
        reply = self.heard(key)
        assert reply is not None, f"no answer at once where {Kind(kind).name} {code} was due"
        assert is_reply(reply, kind, code), f"{Kind(kind).name} {code} was due, not {reply}"
        return reply

    def expect(self, key: Key, check: Callable[[Reply], None], durable: Callable[[P], bool]) -> None:
        """The answer must come when the change is on disk, and not before; at once where it is already."""
        reply = self.heard(key)
        if reply is None:
            self.asked[key] = Asked(check, durable)
        else:
            assert self.group is None, "answered at once while a commit is under way"
            assert durable(self.durable), f"answered before it was on disk: {reply}"
            check(reply)

    def expect_shown(self, key: Key) -> None:
        """Who has to show what it holds is told so, at the latest when it is on disk that the broker began anew."""

        def check(reply: Reply) -> None:
            assert is_reply(reply, Kind.REFUSED, Code.SHOW_HELD), f"SHOW_HELD was due, not {reply}"

        reply = self.heard(key)
        if reply is None:
            self.asked[key] = Asked(check, lambda _: True)
        else:
            check(reply)

    @property
    def count(self) -> int:
        """The engine's count, which is for it to choose."""
        return int(self.engine._state.count)

    def next_stamp(self) -> int:
        self.last_stamp += 1
        return self.last_stamp

    def pack(self, publisher: int, number: int, payloads: list[bytes], keys: list[bytes | None] | None = None) -> bytes:
        """Return the bytes of a batch."""
        stamp = self.next_stamp()
        return bytes(encode_batch(payloads, keys=keys, broker=1, publisher=publisher, stamp=stamp, number=number))

    # The disk.

    def take_group(self) -> bool:
        assert self.group is None
        self.group = self.engine.take_group()
        self.closed = self.current.copy() if self.group else None
        self.stored = False
        return self.group is not None

    def store_group(self) -> bool:
        """Let the group reach the store; False when it has no room."""
        assert self.group is not None
        assert not self.stored
        try:
            self.store.commit(self.group.changes)
        except StoreFull:
            return False
        self.stored = True
        assert self.closed is not None
        self.check_store(self.closed)
        return True

    def tell_committed(self) -> None:
        assert self.group is not None
        assert self.closed is not None
        assert self.stored
        self.durable, self.closed = self.closed, None
        group, self.group, self.stored = self.group, None, False
        self.engine.committed(group, self.now)
        self.hear()
        self.on_committed()

    def tell_failed(self) -> None:
        assert self.group is not None
        assert not self.stored
        group, self.group, self.closed = self.group, None, None
        self.current = self.durable.copy()
        self.engine.commit_failed(group, Code.DISK_FULL, "full")
        waiting = list(self.asked)
        self.failing = True
        self.hear()
        self.failing = False
        assert not self.asked, f"not told of the failed commit: {waiting}"
        self.on_forgotten(told=True)

    def crash(self) -> None:
        """The process dies: what is in the store is all there is, and no answer is sent any more."""
        if self.stored:
            assert self.closed is not None
            self.durable = self.closed
        self.group = self.closed = None
        self.stored = False
        self.current = self.durable.copy()
        self.asked.clear()
        self.answers.clear()
        self.engine = self.make_engine()
        self.on_forgotten(told=False)

    def advance(self, steps: int) -> None:
        """Go so many steps of: close a group, have it reach the disk, tell the engine."""
        for _ in range(steps):
            if self.group is None:
                self.take_group()
            elif self.stored:
                self.tell_committed()
            elif not self.store_group():
                self.tell_failed()

    def settle(self) -> None:
        """Commit until nothing waits for the disk."""
        while self.group is not None or self.take_group():
            if self.stored or self.store_group():
                self.tell_committed()
            else:
                self.tell_failed()


def code_of(reply: Reply) -> int:
    """Return the code of a refusal; 0 when it is none."""
    return reply.body.code if isinstance(reply.body, bodies.Refused) else 0


def is_reply(reply: Reply, kind: int, code: int) -> bool:
    """Tell whether a reply is of this kind and code."""
    return reply.kind == kind and code_of(reply) == code


def subscribed(reply: Reply) -> tuple[int, bodies.Body]:
    """Return how a SUBSCRIBE was answered, but for the broker's count."""
    assert isinstance(reply.body, bodies.Subscribed), f"not subscribed: {reply}"
    return reply.kind, bodies.Subscribed(reply.body.cursor, reply.body.options)


def done(reply: Reply) -> None:
    """Check that what was asked is done."""
    assert (reply.kind, reply.body) == (Kind.ACK, bodies.Done()), f"not done: {reply}"
