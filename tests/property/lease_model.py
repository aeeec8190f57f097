"""Who holds what of a shared subscription: known to the engine only until it dies, and to the consumers themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.property.group_model import GroupModel

from clarion.broker.engine import Limits
from clarion.model.options import SubscriptionOptions

CAREFUL_ATTEMPTS = 2  # the last ones, for which a message is lent alone


@dataclass
class Loans:
    """Loans, leases, and what is kept after a crash for those who may come back."""

    options: SubscriptionOptions
    limits: Limits
    held: dict[int, dict[int, int]] = field(default_factory=dict)  # token: offset and attempt
    deadlines: dict[int, float] = field(default_factory=dict)
    last: dict[int, tuple[int, list[int]]] = field(default_factory=dict)  # token: number of a take, and its loan
    owners: dict[bytes, int] = field(default_factory=dict)  # by key, the message that has it until it is durably done
    left: dict[int, int] = field(default_factory=dict)  # offset and token: given back untouched by who left
    awaited: set[int] = field(default_factory=set)  # attached before a crash, not heard of since
    given_up: set[int] = field(default_factory=set)  # of those, who did not come in time
    hold_until_s: float | None = None  # all is kept until then, and until it is on disk who was given up
    backlog_end: int = 0  # that is below here, but for what was
    suspect_below: int = 0  # may have been lent to one who did not come back
    freed: set[int] = field(default_factory=set)
    begun: bool = False

    def forget(self, attached: Iterable[int]) -> None:
        """The engine forgot everything but who is attached."""
        for known in (self.held, self.deadlines, self.last, self.owners, self.left, self.freed, self.given_up):
            known.clear()
        self.awaited = set(attached)
        self.hold_until_s = None
        self.suspect_below = 0
        self.begun = False

    def begin(self, plain: GroupModel, durable: GroupModel, first_offset: int, now_s: float) -> None:
        """The first request since the engine began: from now on the backlog is kept for a lease."""
        if not self.begun:
            self.begun = True
            self.backlog_end = len(durable.log)
            self.hold_until_s = now_s + self.options.lease_s if self.awaited else None
            for offset in [offset for offset in sorted(plain.returned) if offset >= first_offset]:
                self.claim(durable, offset)

    # Consumers.

    def attach(self, token: int, now_s: float) -> None:
        self.held[token] = {}
        self.last[token] = (0, [])
        self.renew(token, now_s)

    def renew(self, token: int, now_s: float) -> None:
        self.deadlines[token] = now_s + self.options.lease_s

    def end(self, token: int) -> dict[int, int]:
        """A consumer is gone; gives what it held."""
        del self.deadlines[token], self.last[token]
        return self.held.pop(token)

    def end_hold(self) -> set[int]:
        """Wait for nobody any more; gives those who did not come."""
        self.given_up, self.awaited = self.awaited, set()
        self.suspect_below = self.backlog_end if self.given_up else self.suspect_below
        self.hold_until_s = None
        return self.given_up

    # Messages.

    def claim(self, durable: GroupModel, offset: int) -> bool:
        """A message takes its key; says whether that was free."""
        key = durable.log[offset].key if self.options.order else None
        if key is not None and self.owners.get(key, -1) in (-1, *durable.acked):
            self.owners[key] = offset
        return key is None or self.owners[key] == offset

    def done(self, offset: int) -> None:
        """A message is done for good."""
        for held in self.held.values():
            held.pop(offset, None)

    def holder(self, offset: int) -> int | None:
        return next((token for token, held in self.held.items() if offset in held), None)

    def is_suspect(self, lent: dict[int, int]) -> bool:
        """Tell whether it must be on disk that this is lent, before anybody has it."""
        return any(attempt > 1 or offset < self.suspect_below for offset, attempt in lent.items())

    def is_careful(self, attempt: int) -> bool:
        """Tell whether a message is lent alone for this attempt, so that it harms no others."""
        most = self.options.max_attempts
        return bool(most) and (most == 1 or attempt >= max(2, most - CAREFUL_ATTEMPTS + 1))

    def lendable(self, plain: GroupModel, durable: GroupModel, now_us: int, *, strict: bool = False) -> list[int]:
        """Return what may be lent: seen, not done, nobody's, kept for nobody, due, and its key's turn.

        What has to wait for the key of something that expired need not be lent, so is left out when it is `strict`.
        """
        out = {offset for held in self.held.values() for offset in held}
        busy = {plain.log[offset].key for offset in out}
        expired = {offset for offset in range(len(durable.log)) if plain.is_expired(offset, now_us)}
        found: list[int] = []
        met: set[bytes] = set()
        for offset in range(len(durable.log)):
            if offset in plain.acked or (offset in expired and not strict):
                continue
            key = plain.log[offset].key if self.options.order else None
            if key is not None:
                owner = self.owners.get(key)
                owned = owner is not None and owner not in durable.acked and (strict or owner not in expired)
                turn = key not in busy and (owner == offset if owned else key not in met)
                met.add(key)
                if not turn:
                    continue
            is_open = offset in self.freed or not self._is_kept(durable, offset)
            if offset not in out | expired and is_open and self._is_due(plain, durable, offset, now_us):
                found.append(offset)
        return found

    def _is_due(self, plain: GroupModel, durable: GroupModel, offset: int, now_us: int) -> bool:
        """Tell whether a message that came back may come again: that is on disk, and the time has come."""
        row = plain.returned.get(offset)
        return (row is None or row.not_before_us <= now_us) and not self.is_coming(plain, durable, offset)

    def is_coming(self, plain: GroupModel, durable: GroupModel, offset: int) -> bool:
        """Tell whether a message is given back, and that is not on disk yet."""
        came_back = plain.returned.get(offset) != durable.returned.get(offset)
        return self.holder(offset) is None and (came_back or self.left.get(offset, 0) in durable.attached)

    def _is_kept(self, durable: GroupModel, offset: int) -> bool:
        """Tell whether a message is kept for those who may still come back, as far as the store knows."""
        holds = self.hold_until_s is not None or self.given_up & durable.attached.keys()
        return bool(holds) and (offset < self.backlog_end or bool(self.options.order))

    def due_to(self, token: int, plain: GroupModel, durable: GroupModel, now_us: int) -> list[int]:
        """Return those of which a consumer that asks must get some."""
        held = self.held[token]
        if len(held) >= plain.attached[token][1] or any(self.is_careful(attempt) for attempt in held.values()):
            return []
        found = self.lendable(plain, durable, now_us, strict=True)
        if len(plain.returned) + sum(map(len, self.held.values())) >= self.limits.max_returned:
            found = [offset for offset in found if offset in plain.returned]
        if self.is_crowded(plain):
            found = [offset for offset in found if offset < max(plain.acked)]
        return [offset for offset in found if not held or not self.is_careful(plain.attempt(offset))]

    def is_crowded(self, plain: GroupModel) -> bool:
        """Tell whether so much is acked out of order that only what lies in between is lent."""
        return len(plain.acked_ranges()) >= self.limits.max_acked_ranges
