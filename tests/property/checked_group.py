"""The real engine, checked against a model of a shared subscription: what was borrowed is acked, returned or lost."""

from __future__ import annotations

from tests.property.checked_engine import done
from tests.property.checked_leases import CheckedLeases
from tests.property.group_disk import GROUP, WORK, buried_with
from tests.property.group_model import DeadLetter, GroupModel, Returned
from tests.property.group_workers import Worker, forget, lose

from clarion.broker.engine import Reply
from clarion.broker.engine.leases import LAPSED, LEFT, NOT_SHOWN
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

UNBURIED_AGAIN_US = 1_000_000


class CheckedGroup(CheckedLeases):
    """Consumers' acks and returns, and the clock, at the engine and in the model."""

    # Done, given back, gone.

    def ack(self, worker: Worker, token: int, acked: bodies.Ranges) -> None:
        key = self.ask(worker.peer, Kind.ACK, bodies.Ack(WORK, GROUP, token, acked))
        if self.is_refused(key, token, worker):
            return
        wrong = self.wrong_ack(token, acked)
        if wrong:
            self.expect_at_once(key, *wrong)
            return
        self.take_ack(acked)
        offsets, era = {offset for each in acked for offset in range(*each)}, self.current.era

        def check(reply: Reply) -> None:
            done(reply)
            forget(worker, offsets)

        self.expect(key, check, lambda durable: durable.era != era or offsets <= durable.acked)
        self.look()

    def wrong_ack(self, token: int, acked: bodies.Ranges) -> tuple[int, int] | None:
        """Return how an ack of who may ask is refused."""
        if any(not 0 <= start < stop <= self.end for start, stop in acked):
            return Kind.INVALID, Code.MALFORMED
        if any(self._is_lost(token, offset) for each in acked for offset in range(*each)):
            return Kind.REFUSED, Code.LEASE_LOST
        return None

    def take_ack(self, acked: bodies.Ranges) -> None:
        for offset in [offset for each in acked for offset in range(*each)]:
            self.finish(offset)

    def give_back(self, worker: Worker, token: int, offsets: dict[int, int], delay_ms: int | None) -> None:
        """Nack with a delay, or release untouched (None)."""
        spans = tuple((offset, offset + 1, attempt) for offset, attempt in offsets.items())
        reason = f"nacked at {self.now_us}"
        full = self.disk_is_full()
        body = bodies.Return(WORK, GROUP, token, spans, delay_ms is not None, delay_ms or 0, reason)
        key = self.ask(worker.peer, Kind.RETURN, body)
        if self.is_refused(key, token, worker):
            return
        held = self.loans.held[token]
        taken = {offset: held.pop(offset) for offset, attempt in offsets.items() if held.get(offset) == attempt}
        if delay_ms is None:
            self.loans.freed |= taken.keys()
        else:
            self._come_back(taken, reason, 1000 * delay_ms, full)
        era, counted = self.current.era, delay_ms is not None

        def check(reply: Reply) -> None:
            done(reply)
            forget(worker, {offset for offset, attempt in offsets.items() if worker.view.get(offset) == attempt})

        def is_durable(durable: GroupModel) -> bool:
            return durable.era != era or not counted or all(
                offset in durable.acked or durable.attempt(offset) > attempt for offset, attempt in taken.items()
            )  # fmt: skip

        self.expect(key, check, is_durable)
        self.look()

    def detach(self, worker: Worker, untouched: set[int]) -> None:
        token, full = worker.token, self.disk_is_full()
        ranges = tuple((offset, offset + 1) for offset in sorted(untouched))
        key = self.ask(worker.peer, Kind.DETACH, bodies.Detach(WORK, GROUP, token, ranges))
        if not self.current.subscribed or self.wrong_token(token)[1] == Code.SHOW_HELD:
            self.is_refused(key, token, worker)
            return
        if token in self.loans.held:
            self._let_go(token, LEFT, full, untouched)
        lose(worker)
        self.expect(key, done, lambda durable: token not in durable.attached)
        self.look()

    def disk_is_full(self) -> bool:
        """Tell whether the engine takes the disk for full, as it does for a while when a commit failed."""
        return self.engine._state.free_bytes < 1 << 30

    def _let_go(self, token: int, reason: str, full: bool, untouched: set[int]) -> None:
        del self.current.attached[token]
        held = self.loans.end(token)
        self.loans.freed |= untouched
        self.loans.left |= dict.fromkeys(untouched & held.keys(), token)
        for key in [key for key, take in self.parked.items() if take.token == token]:
            del self.parked[key]
            self.expect_at_once(key, Kind.NO_MESSAGES)
        self._come_back({o: attempt for o, attempt in held.items() if o not in untouched}, reason, 0, full)

    def _give_up(self, tokens: set[int], full: bool) -> None:
        """What was lent to those who did not come was tried, as far as anybody can tell."""
        plain = self.current
        lost: set[int] = set()
        for token in tokens:
            del plain.attached[token]
            lost |= plain.lent.pop(token, frozenset())
        nobodys = {offset for offset in lost - plain.acked if self.loans.holder(offset) is None}
        coming = {offset for offset in nobodys if self.loans.is_coming(plain, self.durable, offset)}
        for offset in sorted(nobodys - coming):
            if offset >= self.first_offset:
                self.loans.claim(self.durable, offset)
        self._come_back({offset: plain.attempt(offset) for offset in nobodys - coming}, NOT_SHOWN, 0, full)

    def _come_back(self, offsets: dict[int, int], reason: str, delay_us: int, full: bool) -> None:
        plain, most = self.current, self.options.max_attempts
        buried = buried_with(self.engine._state.open.changes)
        for offset, attempt in sorted(offsets.items()):
            self.loans.freed.add(offset)
            last = most and attempt >= most
            if last and not full and offset < self.first_offset and offset not in buried:  # gone, and so not even dead
                self.finish(offset)
            elif last and not full:
                plain.dead.append(DeadLetter(*plain.log[offset][:2], offset, attempt, reason))
                self.finish(offset)
            else:
                after_us = UNBURIED_AGAIN_US if last else delay_us
                plain.returned[offset] = Returned(attempt, self.now_us + after_us, reason)

    # The clock.

    def tick(self, seconds: float) -> None:
        loans, full = self.loans, self.disk_is_full()
        self.pass_time(seconds)
        self.engine.tick(self.now)
        self.hear()
        if loans.hold_until_s is not None and self.now_s >= loans.hold_until_s:
            self._give_up(loans.end_hold(), full)
        for token in [token for token, deadline_s in loans.deadlines.items() if deadline_s <= self.now_s]:
            self._let_go(token, LAPSED, full, set())
        self.let_expire(held=True)
        for key in [key for key, take in self.parked.items() if take.deadline_s <= self.now_s]:
            del self.parked[key]
            self.expect_at_once(key, Kind.NO_MESSAGES)
        self.look()
        for take in self.parked.values():
            due = loans.due_to(take.token, self.current, self.durable, self.now_us)
            assert not due, f"{due} could be lent to who waits, and was not"
