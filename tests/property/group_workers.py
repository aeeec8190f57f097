"""Those who share a subscription, and what each of them knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.property.broker_model import runs

from clarion.model.ranges import Span


@dataclass
class Worker:
    """A consumer, and what it knows."""

    nonce: bytes
    max_unacked: int
    token: int = 0  # 0: none that is known to be good
    number: int = 0  # of its last take
    view: dict[int, int] = field(default_factory=dict)  # offset and attempt, of what it has and does not know as done
    gap: tuple[int, int] | None = None  # that it was told of, and has not acked yet

    @property
    def peer(self) -> bytes:
        return b"peer of " + self.nonce


@dataclass
class ParkedTake:
    """A take that waits for messages."""

    worker: Worker
    token: int
    number: int
    max_messages: int
    deadline_s: float


def spans_of(held: dict[int, int]) -> list[Span]:
    """Return offsets and attempts as ranges."""
    attempts = sorted(set(held.values()))
    return [(*each, attempt) for attempt in attempts for each in runs(o for o in held if held[o] == attempt)]


def lose(worker: Worker) -> None:
    """A worker hears that its token is good for nothing any more."""
    worker.token, worker.number = 0, 0
    worker.nonce += b"'"
    worker.view.clear()
    worker.gap = None


def forget(worker: Worker, offsets: set[int]) -> None:
    """A worker hears that messages are done, or given back."""
    for offset in offsets:
        worker.view.pop(offset, None)
