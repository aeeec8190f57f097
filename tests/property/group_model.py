"""A shared subscription as a plain model: what is durable of it, its topic, and what is made of its messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.property.broker_model import runs


class Message(NamedTuple):
    """A message as it was put."""

    payload: bytes
    key: bytes | None
    expires_at_us: int = 0


class Returned(NamedTuple):
    """A message that was lent, tried, and came back."""

    attempts: int
    not_before_us: int
    reason: str


class DeadLetter(NamedTuple):
    """A message that had its last attempt."""

    payload: bytes
    key: bytes | None
    offset: int
    attempts: int
    reason: str


class Transaction(NamedTuple):
    """What a transaction was answered: `code` 0, or why nothing of it was done."""

    code: int
    offsets: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()


@dataclass
class GroupModel:
    """Everything durable: two topics, a shared subscription and a watcher on one of them, dead letters and states."""

    log: list[Message] = field(default_factory=list)
    out: list[Message] = field(default_factory=list)
    subscribed: bool = False
    era: int = 0  # grows when the group subscribes anew, or is sought elsewhere
    token: int = 0
    acked: set[int] = field(default_factory=set)
    returned: dict[int, Returned] = field(default_factory=dict)
    attached: dict[int, tuple[bytes, int]] = field(default_factory=dict)  # token: nonce and max_unacked
    lent: dict[int, frozenset[int]] = field(default_factory=dict)  # by token, as the store knows it
    dead: list[DeadLetter] = field(default_factory=list)
    undead: Counter[DeadLetter] = field(default_factory=Counter)  # replayed or dropped
    hidden: set[int] = field(default_factory=set)  # offsets that are for the group alone
    states: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    version: int = 0  # the last that a state got
    transactions: dict[int, list[Transaction]] = field(default_factory=dict)  # by publisher
    batches: int = 0  # that the publisher put
    watched: int = 0  # below here the watcher has acked all

    def copy(self) -> GroupModel:
        return replace(
            self,
            log=list(self.log),
            out=list(self.out),
            acked=set(self.acked),
            returned=dict(self.returned),
            attached=dict(self.attached),
            lent=dict(self.lent),
            dead=list(self.dead),
            undead=Counter(self.undead),
            hidden=set(self.hidden),
            states=dict(self.states),
            transactions={publisher: list(answers) for publisher, answers in self.transactions.items()},
        )

    def begin_at(self, cursor: int, token: int) -> None:
        """Start anew, without anybody."""
        self.subscribed = True
        self.era += 1
        self.token = token
        self.acked = set(range(cursor))
        self.returned.clear()
        self.attached.clear()
        self.lent.clear()

    def end(self) -> None:
        """There is no such subscription any more."""
        self.begin_at(0, 0)
        self.subscribed = False

    def ack(self, offset: int) -> None:
        self.acked.add(offset)
        self.returned.pop(offset, None)

    def attempt(self, offset: int) -> int:
        """Return the number of the next attempt: one more than the returns that count."""
        row = self.returned.get(offset)
        return row.attempts + 1 if row else 1

    def acked_ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the runs of what is acked above what is not."""
        cursor = next(offset for offset in range(len(self.log) + 1) if offset not in self.acked)
        return runs(offset for offset in self.acked if offset > cursor)

    def token_of(self, nonce: bytes) -> int | None:
        return next((token for token, (known, _) in self.attached.items() if known == nonce), None)

    def still_dead(self) -> Counter[DeadLetter]:
        return Counter(self.dead) - self.undead

    def is_expired(self, offset: int, now_us: int) -> bool:
        return 0 < self.log[offset].expires_at_us <= now_us
