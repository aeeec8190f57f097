"""Topics as a plain model, with what is stored for them and not seen yet: staged, or due later."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Shown(NamedTuple):
    """A message on a topic."""

    payload: bytes
    expires_at_us: int


class Staged(NamedTuple):
    """A batch that waits for its epoch to be committed."""

    topic: bytes
    born: int  # of the topic
    payloads: tuple[bytes, ...]
    packed: bytes
    staged_at_us: int


class Delayed(NamedTuple):
    """A batch whose messages appear when each is due."""

    number: int
    topic: bytes
    payloads: tuple[bytes, ...]
    due_us: tuple[int, ...]
    ttl_us: int
    released: int = 0

    def is_due(self, now_us: int) -> bool:
        return self.due_us[self.released] <= now_us


Epoch = dict[tuple[bytes, int], Staged]  # by part and place


@dataclass
class DelayModel:
    """All of it. Topics are told from others that had their name by when they were born."""

    logs: dict[bytes, list[Shown]] = field(default_factory=dict)
    born: dict[bytes, int] = field(default_factory=dict)
    taken: dict[bytes, list[bytes]] = field(default_factory=dict)  # by topic, the batches that were put, in order
    deleting: set[bytes] = field(default_factory=set)  # names that are free once this is on disk
    staged: dict[tuple[bytes, int], Epoch] = field(default_factory=dict)  # by writer and epoch
    writers: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # last epoch, and its messages
    delayed: list[Delayed] = field(default_factory=list)
    clock: int = 0  # grows with every change
    last_born: int = 0
    last_delayed: int = 0

    def copy(self) -> DelayModel:
        return replace(
            self,
            logs={name: list(log) for name, log in self.logs.items()},
            born=dict(self.born),
            taken={name: list(batches) for name, batches in self.taken.items()},
            deleting=set(self.deleting),
            staged={key: dict(epoch) for key, epoch in self.staged.items()},
            writers=dict(self.writers),
            delayed=list(self.delayed),
        )

    def make(self, topic: bytes) -> None:
        if topic not in self.logs:
            self.clock += 1
            self.last_born += 1
            self.logs[topic], self.born[topic], self.taken[topic] = [], self.last_born, []

    def delete(self, topic: bytes) -> None:
        """A topic goes, with all that waits for it; what is staged for it keeps its place until that is on disk."""
        self.clock += 1
        del self.logs[topic], self.born[topic], self.taken[topic]
        self.deleting.add(topic)
        self.delayed = [each for each in self.delayed if each.topic != topic]

    def forget_deleted(self, topics: set[bytes]) -> None:
        for epoch in self.staged.values():
            for place in [place for place, staged in epoch.items() if staged.topic in topics]:
                del epoch[place]

    def count_staged(self, writer: bytes, epoch: int, parts: tuple[bytes, ...] | None) -> int:
        """Return how many messages can still be shown of an epoch."""
        rows = self.staged.get((writer, epoch), {}).items()
        wanted = [row for (part, _), row in rows if parts is None or part in parts]
        return sum(len(row.payloads) for row in wanted if row.topic not in self.deleting)

    def show(self, topic: bytes, payloads: tuple[bytes, ...], expires_at_us: int) -> int:
        """Put messages at the end of a topic; gives the offset of the first."""
        self.clock += 1
        first = len(self.logs[topic])
        self.logs[topic] += [Shown(payload, expires_at_us) for payload in payloads]
        return first

    def commit_staged(self, writer: bytes, epoch: int, parts: tuple[bytes, ...] | None) -> int:
        """Show an epoch, in order; gives how many messages that was."""
        shown = self.count_staged(writer, epoch, parts)
        self.clock += 1
        for (part, _), staged in sorted(self.staged.pop((writer, epoch), {}).items()):
            if staged.topic not in self.deleting and (parts is None or part in parts):
                self.show(staged.topic, staged.payloads, 0)
        self.writers[writer] = (epoch, shown)
        return shown

    def drop_staged(self, writer: bytes, epoch: int) -> None:
        self.clock += bool(self.staged.pop((writer, epoch), None))

    def release(self, each: Delayed, now_us: int) -> None:
        """Show what is due of a delayed batch."""
        stop = sum(due <= now_us for due in each.due_us)
        self.show(each.topic, each.payloads[each.released : stop], now_us + each.ttl_us if each.ttl_us else 0)
        place = self.delayed.index(each)
        self.delayed[place : place + 1] = [each._replace(released=stop)] if stop < len(each.payloads) else []
