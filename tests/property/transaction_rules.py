"""Transactions in any order, again, out of turn, with tokens good for nothing: the rules of the state machine."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.property.broker_model import runs
from tests.property.checked_engine import Key, code_of
from tests.property.checked_group import CheckedGroup
from tests.property.group_disk import GROUP, OUT, WATCHER, WORK
from tests.property.group_model import Message, Transaction
from tests.property.group_rules import choose, mask, places
from tests.property.group_workers import Worker, forget

from clarion.broker.engine import Reply
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NOBODY = b"nobody"  # a topic without subscribers
TELLERS = (2, 3)  # publishers that make transactions
STATES = (b"one", b"two")
NOT_FINAL = frozenset({Code.SHOW_HELD, Code.DISK_FULL})

tellers = st.sampled_from(TELLERS)
settings_of = st.tuples(
    st.sampled_from(STATES), st.sampled_from((b"x", b"y", None)), st.sampled_from(("any", "right", "right", "wrong"))
)


class Request(NamedTuple):
    """A transaction as it is sent, each time."""

    body: bodies.Transact
    blob: bytes
    puts: tuple[tuple[bytes, Message], ...]
    worker: Worker


class Transacting(RuleBasedStateMachine):
    """Take, transform, put; and states that several fight for."""

    both: CheckedGroup
    workers: list[Worker]
    lost: list[tuple[int, dict[int, int]]]
    requests: dict[tuple[int, int], Request]  # by publisher and number
    watcher: int
    counter: int

    @rule(
        teller=tellers,
        place=places,
        which=mask,
        whose=st.sampled_from(("own", "own", "own", "nobody's", "lost", "watched")),
        puts=st.lists(st.sampled_from((OUT, OUT, WORK, WORK, NOBODY)), max_size=2),
        sets=st.lists(settings_of, max_size=2, unique_by=lambda each: each[0]),
    )
    def transact(
        self,
        teller: int,
        place: int,
        which: int,
        whose: str,
        puts: list[bytes],
        sets: list[tuple[bytes, bytes | None, str]],
    ) -> None:
        """The next number; where that was sent before and lost, or refused for now, what was sent then."""
        number = len(self.both.current.transactions.get(teller, ())) + 1
        if (teller, number) not in self.requests:
            worker = self.workers[place]
            acks = self.acks_of(worker, whose, which)
            wanted = tuple((name, value, self.expected(name, way)) for name, value, way in sets)
            self.requests[teller, number] = self.make(teller, number, acks, puts, wanted, worker)
        self.send(self.requests[teller, number])

    def acks_of(self, worker: Worker, whose: str, which: int) -> tuple[tuple[bytes, bytes, int, bodies.Ranges], ...]:
        both = self.both
        if whose == "own" and worker.token and worker.view:
            return ((WORK, GROUP, worker.token, runs(choose(list(worker.view), which))),)
        if whose == "lost" and self.lost:
            token, held = self.lost[which % len(self.lost)]
            return ((WORK, GROUP, token, runs([offset for offset in held if offset < both.end])),)
        stop = min(both.end, both.current.watched + which % 4)
        if whose == "watched" and stop > both.current.watched:
            return ((WORK, WATCHER, self.watcher, ((both.current.watched, stop),)),)
        return ()

    def expected(self, name: bytes, way: str) -> int | None:
        version = self.both.current.states.get(name, (b"", 0))[1]
        return {"any": None, "right": version, "wrong": version + 1}[way]

    def make(
        self,
        teller: int,
        number: int,
        acks: tuple[tuple[bytes, bytes, int, bodies.Ranges], ...],
        topics: list[bytes],
        sets: tuple[tuple[bytes, bytes | None, int | None], ...],
        worker: Worker,
    ) -> Request:
        puts, blobs = [], []
        for topic in topics:
            self.counter += 1
            puts.append((topic, Message(b"made %d" % self.counter, (None, b"red", b"blue")[self.counter % 3])))
            blobs.append(self.both.pack(teller, number, [puts[-1][1].payload], [puts[-1][1].key]))
        sizes = tuple((topic, len(blob), 0, b"") for topic, blob in zip(topics, blobs, strict=True))
        return Request(bodies.Transact(teller, number, acks, sizes, sets), b"".join(blobs), tuple(puts), worker)

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 1000))
    def transact_again(self, which: int) -> None:
        """The same request, whatever became of it, has one answer."""
        self.send(self.requests[sorted(self.requests)[which % len(self.requests)]])

    @rule(teller=tellers, ahead=st.integers(-3, 2))
    def transact_something_else(self, teller: int, ahead: int) -> None:
        """A number that is taken, or not its turn yet."""
        number = len(self.both.current.transactions.get(teller, ())) + ahead
        if number > 0 and ahead != 1:
            other = ((b"other", b"contents", None),)
            self.send(Request(bodies.Transact(teller, number, (), (), other), b"", (), self.workers[0]))

    @rule(name=st.sampled_from(STATES))
    def ask_a_state(self, name: bytes) -> None:
        """What is on disk, whether the engine was told or not."""
        both = self.both
        reply = both.expect_at_once(both.ask(b"teller", Kind.STATE, bodies.AskState(name)), Kind.ACK)
        on_disk = both.closed if both.stored and both.closed else both.durable
        assert reply.body == bodies.StateIs(*on_disk.states.get(name, (None, 0)))

    # What must become of it.

    def send(self, request: Request) -> None:
        both, body = self.both, request.body
        full = both.disk_is_full()
        key = both.ask(b"teller %d" % body.publisher, Kind.TRANSACT, body, request.blob)
        had = both.current.transactions.setdefault(body.publisher, [])
        if body.number > len(had) + 1:
            refused = both.expect_at_once(key, Kind.REFUSED, Code.GAP).body
            assert isinstance(refused, bodies.Refused)
            assert refused.expected == len(had) + 1
        elif body.number <= len(had):
            self.answer_again(key, request, had[body.number - 1])
        else:
            kind, code = self.wrong(request, full)
            reply = both.answers.get(key)
            if code == Code.LEASE_LOST and reply is None and self.was_moved(request):
                code = Code.MOVED
            if code == Code.SHOW_HELD:
                both.expect_shown(key)
                return
            if kind == Kind.INVALID or code in NOT_FINAL:
                both.expect_at_once(key, kind, code)
                return
            had.append(Transaction(code) if code else self.do(request))
            self.expect_answer(key, request, had[-1])
        both.look()

    def was_moved(self, request: Request) -> bool:
        """Tell whether the engine, which may, says that the consumer is from before a seek."""
        answers = self.both.engine._state.transactors[request.body.publisher].kept
        return request.body.acks[0][2] <= self.both.moved_token and b"was moved" in answers[-1].body

    def wrong(self, request: Request, full: bool) -> tuple[int, int]:
        """Return how a transaction that is next is refused; zeros when it is done."""
        both, plain, body = self.both, self.both.current, request.body
        for _, name, token, acked in body.acks:
            if name == GROUP:
                if not plain.subscribed:
                    return Kind.REFUSED, Code.NOT_SUBSCRIBED
                wrong = both.wrong_token(token)
                if wrong[0] or (wrong := both.wrong_ack(token, acked) or wrong)[0]:
                    return wrong
        if (request.puts or body.sets) and any(self.is_acked(request, name, acked) for _, name, _, acked in body.acks):
            return Kind.REFUSED, Code.ALREADY_DONE
        for name, _, expect in body.sets:
            if expect not in (None, plain.states.get(name, (b"", 0))[1]):
                return Kind.REFUSED, Code.CONFLICT
        if any(topic == NOBODY for topic, _ in request.puts):
            return Kind.REFUSED, Code.NO_SUBSCRIBER
        takes_room = request.puts or any(value for _, value, _ in body.sets)
        return (Kind.REFUSED, Code.DISK_FULL) if full and takes_room else (0, 0)

    def is_acked(self, request: Request, name: bytes, ranges: bodies.Ranges) -> bool:
        """Tell whether something of this is acked already."""
        plain = self.both.current
        offsets = {offset for each in ranges for offset in range(*each)}
        if name == GROUP:
            return bool(plain.acked & offsets)
        if min(offsets) < plain.watched or plain.hidden & offsets:  # a replayed dead letter is the group's alone
            return True
        expired = any(plain.is_expired(offset, self.both.now_us) for offset in offsets)
        return expired and self.was_passed(request)

    def was_passed(self, request: Request) -> bool:
        """Tell whether the engine, which may, says that the watcher is past something that expired."""
        answers = self.both.engine._state.transactors[request.body.publisher].kept
        return b"acked already" in answers[-1].body

    def do(self, request: Request) -> Transaction:
        both, plain = self.both, self.both.current
        for _, name, _, acked in request.body.acks:
            if name == GROUP:
                both.take_ack(acked)
            else:
                plain.watched = max(plain.watched, acked[0][1])
        offsets = []
        for topic, message in request.puts:
            log = plain.log if topic == WORK else plain.out
            offsets.append(len(log))
            log.append(message)
        versions: list[int] = []
        for name, value, _ in request.body.sets:
            if value is None:
                plain.states.pop(name, None)
                versions.append(0)
            else:
                plain.version += 1
                versions.append(plain.version)
                plain.states[name] = (value, versions[-1])
        return Transaction(0, tuple(offsets), tuple(versions))

    def answer_again(self, key: Key, request: Request, transaction: Transaction) -> None:
        both, body = self.both, request.body
        known = self.requests.get((body.publisher, body.number))
        if known is not request:
            both.expect_at_once(key, Kind.INVALID, Code.CHECKSUM_DIFFERS)
        elif len(both.durable.transactions.get(body.publisher, ())) >= body.number:
            reply = both.heard(key)
            assert reply is not None, "what is on disk is answered at once"
            self.check_answer(reply, request, transaction)
        else:
            assert key not in both.answers, "answered before it was on disk"
            self.expect_answer(key, request, transaction)

    def expect_answer(self, key: Key, request: Request, transaction: Transaction) -> None:
        publisher, number = request.body.publisher, request.body.number
        self.both.expect(
            key,
            lambda reply: self.check_answer(reply, request, transaction),
            lambda durable: len(durable.transactions.get(publisher, ())) >= number,
        )

    def check_answer(self, reply: Reply, request: Request, transaction: Transaction) -> None:
        assert code_of(reply) == transaction.code, f"{transaction} was due, not {reply}"
        if not transaction.code:
            assert isinstance(reply.body, bodies.Transacted)
            assert (reply.body.offsets, reply.body.versions) == transaction[1:]
            for _, name, token, acked in request.body.acks:
                if name == GROUP and token == request.worker.token:
                    forget(request.worker, {offset for each in acked for offset in range(*each)})
