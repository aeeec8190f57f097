"""The real engine beside a plain shared subscription: consumers ask, and each reply is checked as it comes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.property.crew_disk import CREW, WORK, check_crew_store
from tests.property.driven_engine import DrivenEngine, Key, code_of, done
from tests.property.plain_broker import runs
from tests.property.plain_crew import DeadLetter, PlainCrew, Returned
from tests.property.plain_loans import Loans

from clarion.broker.engine import Limits, Reply
from clarion.broker.engine.share.sharing import LAPSED, LEFT
from clarion.model.options import SubscriptionOptions
from clarion.model.spans import Span
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind
from clarion.wire.refusals import Code

ALL = 1 << 40
UNBURIED_AGAIN_US = 1_000_000


@dataclass
class Worker:
    """A consumer, and what it knows."""

    nonce: bytes
    max_unacked: int
    token: int = 0  # 0: none that is known to be good
    number: int = 0  # of its last take
    view: dict[int, int] = field(default_factory=dict)  # offset and attempt, of what it has and does not know as done

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


class CrewBeside(DrivenEngine[PlainCrew]):
    """Consumers' requests, sent to the engine and followed in the model."""

    def __init__(self, limits: Limits, options: SubscriptionOptions) -> None:
        super().__init__(limits, PlainCrew())
        self.options = options
        self.loans = Loans(options, limits)
        self.parked: dict[Key, ParkedTake] = {}
        self.moved_token = 0
        self.tokens: dict[int, bytes] = {}  # told, with the nonce of who was told

    @property
    def end(self) -> int:
        """The end of what may be seen."""
        return len(self.durable.log)

    def check_store(self, plain: PlainCrew) -> None:
        check_crew_store(self.store, plain, self.now_us)

    def ask(self, peer: bytes, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> Key:
        key = super().ask(peer, kind, body, blob)
        self.let_expire()
        return key

    def let_expire(self, *, held: bool = False) -> None:
        """When it lets go of what expired is for the engine to choose; of what is held only on the clock."""
        topic = self.engine._state.topics.get(WORK)
        crew = topic.subscriptions.get(CREW) if topic else None
        if crew is None or not self.current.subscribed:
            return
        for offset in [offset for offset in range(self.end) if offset in crew.acked]:
            if self.current.is_expired(offset, self.now_us) and (held or self.loans.holder(offset) is None):
                self.finish(offset)

    def on_committed(self) -> None:
        self.let_expire()
        self.look()

    def on_forgotten(self, *, told: bool) -> None:
        parked, self.parked = self.parked, {}
        self.moved_token = 0
        self.loans.forget(self.current.attached)
        for key in parked if told else ():
            self.expect_at_once(key, Kind.NO_MESSAGES)

    # Who may ask.

    def is_refused(self, key: Key, token: int, worker: Worker | None = None) -> bool:
        """Check how who may not ask is refused; one who may has its lease renewed."""
        if not self.current.subscribed:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
        else:
            kind, code = self.wrong_token(token)
            if not kind:
                return False
            reply = self.answers.get(key)
            if token <= self.moved_token and reply is not None and code_of(reply) == Code.MOVED:
                code = Code.MOVED
            self.expect_at_once(key, kind, code)
            if code == Code.SHOW_HELD:
                return True
        if worker is not None and worker.token == token:
            lose(worker)
        return True

    def wrong_token(self, token: int) -> tuple[int, int]:
        """Give how a token is refused; zeros when it is good."""
        loans = self.loans
        loans.begin(self.current, self.durable, self.now_s)
        if token in loans.held:
            loans.renew(token, self.now_s)
            return 0, 0
        if token in loans.awaited:
            return Kind.REFUSED, Code.SHOW_HELD
        if token > self.current.token:
            return Kind.INVALID, Code.MALFORMED
        return Kind.REFUSED, Code.LEASE_LOST

    # Coming, and showing what is held.

    def attach(self, worker: Worker) -> None:
        key = self.ask(worker.peer, Kind.ATTACH, bodies.Attach(WORK, CREW, worker.nonce, worker.max_unacked))
        plain = self.current
        if not plain.subscribed:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
            return
        self.loans.begin(plain, self.durable, self.now_s)
        token = plain.token_of(worker.nonce)
        if token is None:
            if len(plain.attached) >= self.limits.max_consumers_per_subscription:
                self.expect_at_once(key, Kind.REFUSED, Code.LIMIT)
                return
            plain.token += 1
            token = plain.token
            plain.attached[token] = (worker.nonce, worker.max_unacked)
            self.loans.attach(token, self.now_s)
        era, nonce = plain.era, worker.nonce

        def check(reply: Reply) -> None:
            assert isinstance(reply.body, bodies.Attached), f"not attached: {reply}"
            assert (reply.body.token, reply.body.options) == (token, self.options)
            assert self.tokens.setdefault(token, nonce) == nonce, "two consumers were given one token"
            if worker.nonce == nonce and worker.token != token:
                worker.token, worker.number = token, 0
                worker.view.clear()

        self.expect(key, check, lambda durable: durable.era != era or durable.token >= token)

    def renew(self, worker: Worker, lies: Iterable[Span] = ()) -> None:
        """Show what is held, and perhaps what is not."""
        loans, plain, token = self.loans, self.current, worker.token
        claims = [*spans_of(worker.view), *lies]
        key = self.ask(worker.peer, Kind.RENEW, bodies.Renew(WORK, CREW, token, tuple(claims)))
        if plain.subscribed:
            loans.begin(plain, self.durable, self.now_s)
            if token in loans.awaited:
                self._adopt(token, claims, self.answers[key])
        if self.is_refused(key, token, worker):
            return
        reply = self.expect_at_once(key, Kind.ACK)
        lost = self._lost(token, claims)
        assert _told_lost(reply) == lost
        for offset in lost & worker.view.keys():
            del worker.view[offset]
        self.look()

    def _adopt(self, token: int, claims: list[Span], reply: Reply) -> None:
        """Whoever shows what it holds keeps it, unless another has it, or it came back already from that attempt."""
        loans, plain = self.loans, self.current
        loans.awaited.discard(token)
        loans.attach(token, self.now_s)
        for offset, attempt in [(o, attempt) for start, stop, attempt in claims for o in range(start, stop)]:
            if offset >= self.end or offset in plain.acked or self._came_back(offset, attempt):
                continue
            if offset >= loans.backlog_end and offset in _told_lost(reply):  # put since: nobody can hold it
                continue
            free = loans.holder(offset) is None and not loans.is_coming(plain, self.durable, offset)
            if free and loans.claim(self.durable, offset):
                loans.held[token][offset] = plain.attempt(offset)
        if not loans.awaited:
            loans.end_hold()

    def _came_back(self, offset: int, attempt: int) -> bool:
        return attempt > 0 and self.current.attempt(offset) > attempt

    def _lost(self, token: int, claims: list[Span]) -> set[int]:
        return {
            offset
            for start, stop, attempt in claims
            for offset in range(start, stop)
            if self._is_lost(token, offset) and not self._came_back(offset, attempt)
        }

    def _is_lost(self, token: int, offset: int) -> bool:
        return offset not in self.current.acked and offset not in self.loans.held[token]

    # Borrowing.

    def take(self, worker: Worker, token: int, number: int, most: int, wait_ms: int) -> None:
        key = self.ask(worker.peer, Kind.TAKE, bodies.Take(WORK, CREW, token, number, most, ALL, wait_ms))
        if self.is_refused(key, token, worker):
            return
        for older in [older for older, take in self.parked.items() if take.token == token]:
            del self.parked[older]
            self.expect_at_once(older, Kind.NO_MESSAGES)
        take = ParkedTake(worker, token, number, most, self.now_s + wait_ms / 1000)
        if number <= self.loans.last[token][0]:
            self._check_lent_again(key, take)
        elif key in self.answers and self.answers[key].kind == Kind.MESSAGES:
            self._lend(take, self.expect_at_once(key, Kind.MESSAGES))
        else:
            due = self.loans.due_to(token, self.current, self.durable, self.now_us)
            assert not due, f"{due} could be lent and was not"
            if wait_ms:
                assert key not in self.answers
                self.parked[key] = take
            else:
                self.expect_at_once(key, Kind.NO_MESSAGES)

    def _check_lent_again(self, key: Key, take: ParkedTake) -> None:
        """The same number gives what is still held of the same loan."""
        last, loan = self.loans.last[take.token]
        held = self.loans.held[take.token]
        again = {offset: held[offset] for offset in loan if take.number == last and offset in held}
        if not again:
            self.expect_at_once(key, Kind.NO_MESSAGES)
            return
        lent = self._read(self.expect_at_once(key, Kind.MESSAGES))
        assert lent == again, "asked again, another loan was given"
        take.worker.view.update(lent)

    def look(self) -> None:
        """Take in what those who wait were lent, in the order in which they were."""
        for key in [key for key in self.answers if key in self.parked]:
            reply = self.answers[key]
            if reply.kind == Kind.MESSAGES:
                del self.answers[key]
                self._lend(self.parked.pop(key), reply)

    def _lend(self, take: ParkedTake, reply: Reply) -> None:
        """Whatever is lent is nobody else's, not done, due, and told with the right attempt; and no more than fair."""
        loans, plain = self.loans, self.current
        lent = self._read(reply)
        held = loans.held[take.token]
        free = loans.lendable(plain, self.durable, self.now_us)
        assert lent.keys() <= set(free), f"{sorted(lent)} was lent, {free} was free"
        assert lent == {offset: plain.attempt(offset) for offset in lent}, "told the wrong attempt"
        assert 1 <= len(lent) <= take.max_messages
        assert len(held) + len(lent) <= plain.attached[take.token][1], "lent beyond its bound"
        careful = [offset for offset, attempt in lent.items() if loans.is_careful(attempt)]
        assert not careful or (len(lent) == 1 and not held), "what may be poison is lent alone"
        assert not any(loans.is_careful(attempt) for attempt in held.values()), "lent beside what may be poison"
        expired = sum(plain.is_expired(offset, self.now_us) for offset in range(self.end))
        if not self.options.order:
            assert len(lent) <= -(-(len(free) + expired) // len(loans.held)), "lent what is others' share"
        if len(plain.returned) >= self.limits.max_returned:
            assert lent.keys() <= plain.returned.keys(), "more was lent than may come back"
        if loans.is_crowded(plain) and not expired:
            assert max(lent) < max(plain.acked), "more was lent than could be acked out of order"
        assert all(loans.claim(self.durable, offset) for offset in lent)
        held |= lent
        loans.last[take.token] = (take.number, list(lent))
        take.worker.view.update(lent)

    def _read(self, reply: Reply) -> dict[int, int]:
        """Give offsets and attempts of a loan whose messages are what was put, and on disk."""
        assert isinstance(reply.body, bodies.Lent)
        found: dict[int, tuple[bytes, bytes | None]] = {}
        for (first, _), blob in zip(reply.body.batches, reply.blobs, strict=True):
            batch = Batch.parse(bytes(blob))
            for place, payload in enumerate(batch.payloads()):
                found[first + place] = (payload, batch.key(place))
        lent = {offset: attempt for start, stop, attempt in reply.body.lent for offset in range(start, stop)}
        assert len(lent) == sum(stop - start for start, stop, _ in reply.body.lent), "lent twice in one loan"
        assert all(offset < self.end for offset in lent), "lent before it was on disk"
        assert {offset: found[offset] for offset in lent} == {offset: self.durable.log[offset][:2] for offset in lent}
        return lent

    # Done, given back, gone.

    def ack(self, worker: Worker, token: int, acked: bodies.Ranges) -> None:
        key = self.ask(worker.peer, Kind.ACK, bodies.Ack(WORK, CREW, token, acked))
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
        """Give how an ack of who may ask is refused."""
        if any(not 0 <= start < stop <= self.end for start, stop in acked):
            return Kind.INVALID, Code.MALFORMED
        if any(self._is_lost(token, offset) for each in acked for offset in range(*each)):
            return Kind.REFUSED, Code.LEASE_LOST
        return None

    def take_ack(self, acked: bodies.Ranges) -> None:
        for offset in [offset for each in acked for offset in range(*each)]:
            self.finish(offset)

    def finish(self, offset: int) -> None:
        self.current.ack(offset)
        self.loans.done(offset)

    def give_back(self, worker: Worker, token: int, offsets: dict[int, int], delay_ms: int | None) -> None:
        """Nack with a delay, or release untouched (None)."""
        spans = tuple((offset, offset + 1, attempt) for offset, attempt in offsets.items())
        reason = f"nacked at {self.now_us}"
        full = self.disk_is_full()
        body = bodies.Return(WORK, CREW, token, spans, delay_ms is not None, delay_ms or 0, reason)
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

        def is_durable(durable: PlainCrew) -> bool:
            return durable.era != era or not counted or all(
                offset in durable.acked or durable.attempt(offset) > attempt for offset, attempt in taken.items()
            )  # fmt: skip

        self.expect(key, check, is_durable)
        self.look()

    def detach(self, worker: Worker, untouched: set[int]) -> None:
        token, full = worker.token, self.disk_is_full()
        ranges = tuple((offset, offset + 1) for offset in sorted(untouched))
        key = self.ask(worker.peer, Kind.DETACH, bodies.Detach(WORK, CREW, token, ranges))
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

    def _come_back(self, offsets: dict[int, int], reason: str, delay_us: int, full: bool) -> None:
        plain, most = self.current, self.options.max_attempts
        for offset, attempt in sorted(offsets.items()):
            self.loans.freed.add(offset)
            last = most and attempt >= most
            if last and not full:
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
            for token in loans.end_hold():
                del self.current.attached[token]
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


def _told_lost(reply: Reply) -> set[int]:
    assert isinstance(reply.body, bodies.Renewed), f"not renewed: {reply}"
    return {offset for each in reply.body.lost for offset in range(*each)}


def spans_of(held: dict[int, int]) -> list[Span]:
    """Give offsets and attempts as ranges."""
    attempts = sorted(set(held.values()))
    return [(*each, attempt) for attempt in attempts for each in runs(o for o in held if held[o] == attempt)]


def lose(worker: Worker) -> None:
    """A worker hears that its token is good for nothing any more."""
    worker.token, worker.number = 0, 0
    worker.nonce += b"'"
    worker.view.clear()


def forget(worker: Worker, offsets: set[int]) -> None:
    """A worker hears that messages are done, or given back."""
    for offset in offsets:
        worker.view.pop(offset, None)
