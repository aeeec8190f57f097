"""The real engine, checked against a model of a shared subscription: consumers come and borrow."""

from __future__ import annotations

from collections.abc import Iterable

from tests.property.checked_engine import CheckedEngine, Key, code_of, is_reply
from tests.property.group_disk import GROUP, WORK, check_group_store
from tests.property.group_model import GroupModel
from tests.property.group_workers import ParkedTake, Worker, lose, spans_of
from tests.property.lease_model import Loans

from clarion.broker.engine import Engine, Limits, Reply
from clarion.broker.engine.answers import ReplyTo
from clarion.broker.engine.lease_table import LeaseTable
from clarion.broker.engine.leases import NewLease
from clarion.model.options import SubscriptionOptions
from clarion.model.ranges import Span
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

ALL = 1 << 40


class CheckedLeases(CheckedEngine[GroupModel]):
    """Consumers come, show what they hold, and borrow, at the engine and in the model."""

    def __init__(self, limits: Limits, options: SubscriptionOptions) -> None:
        self.lent_order: list[Key] = []  # takes that were lent something, at once or when that is on disk
        super().__init__(limits, GroupModel())
        self.options = options
        self.loans = Loans(options, limits)
        self.parked: dict[Key, ParkedTake] = {}
        self.moved_token = 0
        self.tokens: dict[int, bytes] = {}  # told, with the nonce of who was told

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        reply_leased = engine._leases._reply_leased

        def listen(reply_to: ReplyTo, leases: LeaseTable, lease: NewLease) -> None:
            self.lent_order.append((reply_to.peer, reply_to.request_id))
            reply_leased(reply_to, leases, lease)

        engine._leases._reply_leased = listen  # type: ignore[method-assign]
        return engine

    @property
    def end(self) -> int:
        """The end of what may be seen."""
        return len(self.durable.log)

    @property
    def first_offset(self) -> int:
        """The first message that is not gone; where that is is for the engine to choose, where the topic trims."""
        topic = self.engine._state.topics.get(WORK) or self.store.topic(WORK)
        assert topic is not None
        return topic.first_offset

    def check_store(self, plain: GroupModel) -> None:
        check_group_store(self.store, plain, self.now_us)

    def ask(self, peer: bytes, kind: Kind, body: bodies.Body, blob: bytes | None = None) -> Key:
        key = super().ask(peer, kind, body, blob)
        self.let_expire()
        return key

    def let_expire(self, *, held: bool = False) -> None:
        """When it lets go of what expired is for the engine to choose; of what is held only on the clock."""
        topic = self.engine._state.topics.get(WORK)
        group = topic.subscriptions.get(GROUP) if topic else None
        if group is None or not self.current.subscribed:
            return
        for offset in [offset for offset in range(self.end) if offset in group.acked]:
            if self.current.is_expired(offset, self.now_us) and (held or self.loans.holder(offset) is None):
                self.finish(offset)

    def finish(self, offset: int) -> None:
        """A message is done for good, whoever holds it."""
        self.current.ack(offset)
        self.loans.done(offset)

    def take_group(self) -> bool:
        """With each group it is known what every consumer is lent, as far as those are here; of the others it stays."""
        loans = self.loans
        kept = {token: lent for token, lent in self.current.lent.items() if token in loans.awaited}
        held = {token: frozenset(held) for token, held in loans.held.items() if held}
        self.current.lent = kept | held
        return super().take_group()

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
            if code == Code.SHOW_HELD:
                self.expect_shown(key)
                return True
            self.expect_at_once(key, kind, code)
        if worker is not None and worker.token == token:
            lose(worker)
        return True

    def wrong_token(self, token: int) -> tuple[int, int]:
        """Return how a token is refused; zeros when it is good."""
        loans = self.loans
        loans.begin(self.current, self.durable, self.first_offset, self.now_s)
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
        key = self.ask(worker.peer, Kind.ATTACH, bodies.Attach(WORK, GROUP, worker.nonce, worker.max_unacked))
        plain = self.current
        if not plain.subscribed:
            self.expect_at_once(key, Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
            return
        self.loans.begin(plain, self.durable, self.first_offset, self.now_s)
        token = plain.token_of(worker.nonce)
        if token is None:
            if len(plain.attached) >= self.limits.max_consumers_per_subscription:
                self.expect_at_once(key, Kind.REFUSED, Code.LIMIT)
                return
            assert self.count > max(plain.token, *self.tokens, 0), "tokens only grow"
            token = plain.token = self.count
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
        key = self.ask(worker.peer, Kind.RENEW, bodies.Renew(WORK, GROUP, token, tuple(claims)))
        if plain.subscribed:
            loans.begin(plain, self.durable, self.first_offset, self.now_s)
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
        plain.lent.pop(token, None)
        loans.attach(token, self.now_s)
        for offset, attempt in [(o, attempt) for start, stop, attempt in claims for o in range(start, stop)]:
            if offset >= self.end or offset in plain.acked or self._came_back(offset, attempt):
                continue
            if offset >= loans.backlog_end and offset in _told_lost(reply):  # put since: nobody can hold it
                continue
            free = loans.holder(offset) is None and not loans.is_coming(plain, self.durable, offset)
            if free and (offset < self.first_offset or loans.claim(self.durable, offset)):  # what is gone has no key
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
        return offset >= self.first_offset and offset not in (self.current.acked | self.loans.held[token].keys())

    # Borrowing.

    def take(self, worker: Worker, token: int, number: int, most: int, wait_ms: int) -> None:
        key = self.ask(worker.peer, Kind.TAKE, bodies.Take(WORK, GROUP, token, number, most, ALL, wait_ms))
        if self.is_refused(key, token, worker):
            return
        for older in [older for older, take in self.parked.items() if take.token == token]:
            del self.parked[older]
            self.expect_at_once(older, Kind.NO_MESSAGES)
        take = ParkedTake(worker, token, number, most, self.now_s + wait_ms / 1000)
        if number <= self.loans.last[token][0]:
            self._check_lent_again(key, take)
        elif (key in self.answers and self.answers[key].kind != Kind.NO_MESSAGES) or self.on_its_way(key) is not None:
            self._answer(take, key)
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
        self._hand_over(key, take, again)

    def look(self) -> None:
        """Take in what those who wait were lent, in the order in which they were."""
        lent = [key for key in self.parked if self.on_its_way(key) is not None]
        lent += [key for key in self.answers if key in self.parked and self.answers[key].kind != Kind.NO_MESSAGES]
        for key in sorted(lent, key=lambda key: self.lent_order.index(key) if key in self.lent_order else -1):
            self._answer(self.parked.pop(key), key)
        self.lent_order.clear()

    def _answer(self, take: ParkedTake, key: Key) -> None:
        reply = self.answers.get(key) or self.on_its_way(key)
        assert reply is not None
        if reply.kind == Kind.MESSAGES:
            self._hand_over(key, take, self._lend(take, reply))
        else:
            self._miss(take, self.answers.pop(key))

    def _hand_over(self, key: Key, take: ParkedTake, lent: dict[int, int]) -> None:
        """A worker has what it is lent when the reply comes: at once, or once it is on disk that this was lent."""

        def check(reply: Reply) -> None:
            assert self._read(reply) == lent, "asked again, another loan was given"
            if take.worker.token == take.token:
                take.worker.view.update(lent)

        if self.loans.is_suspect(lent):
            token, era = take.token, self.current.era
            self.expect(key, check, lambda durable: durable.era != era or lent.keys() <= durable.lent[token])
        else:
            check(self.expect_at_once(key, Kind.MESSAGES))

    def _miss(self, take: ParkedTake, reply: Reply) -> None:
        """Who would be lent what is gone is told what that is, exactly."""
        assert is_reply(reply, Kind.REFUSED, Code.GONE), f"not lent: {reply}"
        assert isinstance(reply.body, bodies.Refused)
        assert reply.body.gone is not None
        start, stop = reply.body.gone
        assert start < stop == self.first_offset
        assert start not in self.current.acked, "told of a gap that was told and acked"
        assert self.loans.holder(start) is None
        take.worker.gap = (start, stop)

    def _lend(self, take: ParkedTake, reply: Reply) -> dict[int, int]:
        """Whatever is lent is nobody else's, not done, due, and told with the right attempt; and no more than fair."""
        loans, plain = self.loans, self.current
        lent = self._read(reply)
        held = loans.held[take.token]
        free = loans.lendable(plain, self.durable, self.now_us)
        assert lent.keys() <= set(free), f"{sorted(lent)} was lent, {free} was free"
        assert min(free) >= self.first_offset, "lent beyond a gap that nobody was told of"
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
        return lent

    def _read(self, reply: Reply) -> dict[int, int]:
        """Return offsets and attempts of a loan whose messages are what was put, and on disk."""
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


def _told_lost(reply: Reply) -> set[int]:
    assert isinstance(reply.body, bodies.Renewed), f"not renewed: {reply}"
    return {offset for each in reply.body.lost for offset in range(*each)}
