"""Clients of all kinds: what each could ask next, of every kind of request there is, going by what it was answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.property.twin_brokers import LEASE_S, OneBroker, Told

from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind, pack_frames

TOPICS = (b"a", b"b/c")
PATTERN = b"b/*"
ALONE, SHARED, OF_PATTERN = b"alone", b"shared", b"of pattern"
PLACES = (*[(topic, name) for topic in TOPICS for name in (ALONE, SHARED)], (PATTERN, OF_PATTERN))
PEERS = (b"peer 1", b"peer 2")
_WRITER, _STATE = b"writer", b"state"
_ATTEMPTS = dict(zip(TOPICS, (1, 3), strict=True))
_EVERYTHING = 1 << 20

Numbered = tuple[object, ...]


@dataclass
class Draft:
    """A request to be made; one that is numbered is known by that, and is made once."""

    kind: Kind
    body: bodies.Body
    blob: bytes | None = None
    known_by: tuple[Numbered, ...] = ()  # several, where it has several parts


@dataclass
class Sent:
    """A request, and what became of its first copy."""

    peer: bytes
    kind: Kind
    body: bodies.Body
    frames: list[Buffer]
    request_id: int
    state: str = "lost"  # or "open", "refused" for now, "done" and answered, or "stored" and not answered
    answer: Told | None = None
    in_flight: bool = False


@dataclass
class Consumer:
    """Who attached to a subscription."""

    topic: bytes
    name: bytes
    token: int
    take: int = 1  # the number of its next
    releases: int = 0
    asked_by: int = 1  # the start of the broker that asked what it holds; 1 is none
    held: dict[int, int] = field(default_factory=dict)  # attempts by offset

    def spans(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((offset, offset + 1, attempt) for offset, attempt in sorted(self.held.items()))


@dataclass
class Session:
    """Who reads many topics together."""

    body: bodies.BeginFetch
    token: int
    number: int = 0  # of its last fetch
    got: int = 0  # the last answer
    tokens: dict[int, int] = field(default_factory=dict)  # by number of the topic


class Clients:
    """Everybody who asks. Decisions are made by dice, and by what the broker knows or told."""

    def __init__(self, broker: OneBroker) -> None:
        self._broker = broker
        self._serial = self._requests = 0
        self._counts: list[int] = []
        self._numbered: dict[Numbered, Sent] = {}
        self.aim: tuple[bytes, bytes] | None = None  # the topic and the name that all requests are for
        self.publishers: list[int] = []
        self.consumers: list[Consumer] = []
        self.sessions: list[Session] = []
        self.makers: dict[Kind, Callable[[Random], Draft | None]] = {
            Kind.HELLO: self._hello,
            Kind.REGISTER: lambda dice: Draft(Kind.REGISTER, bodies.Register(self._nonce(), self._as_of(dice))),
            Kind.FORGET: lambda dice: Draft(Kind.FORGET, bodies.Forget(dice.choice(self.publishers or [1]))),
            Kind.OPEN: lambda dice: Draft(Kind.OPEN, bodies.Open((self._topic(dice),))),
            Kind.PUT: self._put,
            Kind.PUT_MANY: self._put_many,
            Kind.TRANSACT: self._transact,
            Kind.STAGE: self._stage,
            Kind.COMMIT_STAGED: self._commit_staged,
            Kind.SUBSCRIBE: self._subscribe,
            Kind.UNSUBSCRIBE: self._unsubscribe,
            Kind.ATTACH: self._attach,
            Kind.GET: self._get,
            Kind.ACK: self._ack,
            Kind.BEGIN_FETCH: self._begin_fetch,
            Kind.FETCH: self._fetch,
            Kind.ACK_MANY: self._ack_many,
            Kind.TAKE: self._take,
            Kind.RENEW: self._renew,
            Kind.RETURN: self._return,
            Kind.DETACH: self._detach,
            Kind.CONFIGURE: self._configure,
            Kind.SEEK: self._seek,
            Kind.PURGE: self._purge,
            Kind.DELETE: self._delete,
            Kind.DEAD: self._dead,
            Kind.TOPICS: lambda _: Draft(Kind.TOPICS, bodies.ListTopics()),
            Kind.STATS: lambda _: Draft(Kind.STATS, bodies.AskStats()),
            Kind.STATE: lambda _: Draft(Kind.STATE, bodies.AskState(_STATE)),
            Kind.DESCRIBE: lambda dice: Draft(Kind.DESCRIBE, bodies.Describe(self._topic(dice))),
            Kind.DESCRIBE_MANY: lambda _: Draft(Kind.DESCRIBE_MANY, bodies.DescribeMany((*TOPICS, b"none"))),
            Kind.READ: lambda dice: Draft(Kind.READ, bodies.Read(self._topic(dice), 0, 100, _EVERYTHING)),
            Kind.MATCHES: lambda _: Draft(Kind.MATCHES, bodies.Matches(PATTERN, OF_PATTERN)),
            Kind.FIND_OFFSET: lambda dice: Draft(Kind.FIND_OFFSET, bodies.FindOffset(self._topic(dice), 0)),
            Kind.REPORT: self._report,
        }

    def ask(self, kind: Kind, dice: Random) -> Sent | None:
        """Return the next request of a kind, or one that was made before and has to be done first; None where there is
        nothing to ask so."""
        draft = self.makers[kind](dice)
        if draft is None:
            return None
        for known_by in draft.known_by:
            if known_by in self._numbered:
                return self._numbered[known_by]
        self._requests += 1
        blobs = () if draft.blob is None else (draft.blob,)
        frames = pack_frames(kind, self._requests, draft.body, blobs)
        sent = Sent(dice.choice(PEERS), kind, draft.body, frames, self._requests)
        self._numbered |= dict.fromkeys(draft.known_by, sent)
        return sent

    def hear(self, sent: Sent, told: Told) -> None:
        """Take in the first answer to a request."""
        refusal, body = told.refusal, sent.body
        if isinstance(body, bodies.Register) and refusal is None:
            self.publishers.append(told.read(bodies.Registered).publisher)
        if isinstance(body, bodies.Attach) and refusal is None:
            self.consumers.append(Consumer(body.topic, body.name, told.read(bodies.Attached).token))
        if isinstance(body, bodies.BeginFetch) and refusal is None:
            self._hear_begun(body, told.read(bodies.FetchBegun))
        if isinstance(body, bodies.Fetch) and told.kind == Kind.MESSAGES:
            self._hear_fetched(body, told.read(bodies.Fetched))
        consumer = self._consumer_of(body)
        if consumer is None:
            return
        if refusal is not None:
            consumer.asked_by = refusal.expected if refusal.code == Code.SHOW_HELD else consumer.asked_by
        elif isinstance(body, bodies.Take) and told.kind == Kind.MESSAGES:
            consumer.take += body.number == consumer.take
            for start, stop, attempt in told.read(bodies.Lent).lent:
                consumer.held |= dict.fromkeys(range(start, stop), attempt)
        elif isinstance(body, bodies.Ack | bodies.Return):
            ranges = body.acked if isinstance(body, bodies.Ack) else body.returned
            for start, stop, *_ in ranges:
                for offset in [offset for offset in consumer.held if start <= offset < stop]:
                    del consumer.held[offset]

    def _hear_begun(self, body: bodies.BeginFetch, begun: bodies.FetchBegun) -> None:
        known = next((each for each in self.sessions if each.body.nonce == body.nonce), None)
        if known is None and not begun.shared:
            self.sessions.append(Session(body, begun.token))
        elif known is not None:
            assert known.token == begun.token or body.topics[0] in TOPICS, "the same nonce has the same token"
            known.token, known.got = begun.token, 0  # that of topics is another where one of them was sought

    def _hear_fetched(self, body: bodies.Fetch, fetched: bodies.Fetched) -> None:
        for session in self.sessions:
            if session.token == body.token and session.number == body.number:
                session.got = max(session.got, fetched.serial)
                session.tokens |= {number: token for number, _, token, _ in fetched.topics}

    def _consumer_of(self, body: bodies.Body) -> Consumer | None:
        token = getattr(body, "token", None)
        return next((each for each in self.consumers if each.token == token), None) if token else None

    # What there is.

    def _nonce(self) -> bytes:
        self._serial += 1
        return b"nonce %10d" % self._serial

    def _as_of(self, dice: Random) -> int:
        """Return the count as of which somebody decides: the one now, or now and then an older one."""
        self._counts.append(int(self._broker.engine._state.durable_count))
        return self._counts[-1] if dice.random() < 0.8 else dice.choice(self._counts[-8:])

    def _number_of(self, topic: bytes) -> int:
        row = self._broker.store.topic(topic)
        return row.number if row else 0

    def _batch(self, publisher: int, number: int, count: int) -> bytes:
        payloads = []
        for _ in range(count):
            self._serial += 1
            payloads.append(b"message %d" % self._serial)
        return bytes(encode_batch(payloads, broker=1, publisher=publisher, stamp=self._serial, number=number))

    def _consumer(self, dice: Random, *names: bytes, holding: bool = False) -> Consumer | None:
        """Return somebody who attached; mostly one that the broker knows."""
        found = [each for each in self.consumers if each.name in names and (each.held or not holding)]
        found = [each for each in found if (each.topic, each.name) == self.aim] or found
        known = [each for each in found if self._is_known(each)] if dice.random() < 0.85 else []
        return dice.choice((known or found)[-3 if self.aim is None else -1 :]) if found else None

    def _is_known(self, consumer: Consumer) -> bool:
        topic = self._broker.engine._state.topics.get(consumer.topic)
        subscription = topic.subscriptions.get(consumer.name) if topic else None
        if subscription is None or subscription.leases is None:
            return subscription is not None and subscription.token == consumer.token
        return consumer.token in subscription.leases.consumers or consumer.token in subscription.leases.awaited

    def _topic(self, dice: Random) -> bytes:
        return self.aim[0] if self.aim is not None and self.aim[0] in TOPICS else dice.choice(TOPICS)

    def _subscription(self, dice: Random, *, there: bool = True, patterns: bool = False) -> tuple[bytes, bytes]:
        """Return a topic and a name, mostly such that are there, or are not; now and then a pattern."""
        if self.aim is not None and (patterns or self.aim[0] in TOPICS):
            return self.aim
        if patterns and dice.random() < 0.15:
            return PATTERN, OF_PATTERN
        every = [(topic, name) for topic in TOPICS for name in (ALONE, SHARED)]
        rows = [(topic, self._broker.store.subscriptions(self._number_of(topic))) for topic in TOPICS]
        known = {(topic, row.name) for topic, found in rows for row in found}
        wanted = [each for each in every if (each in known) is there] if dice.random() < 0.85 else every
        return dice.choice(wanted or every)

    # Requests.

    def _hello(self, dice: Random) -> Draft:
        if dice.random() < 0.7:
            return Draft(Kind.HELLO, bodies.Hello(1, 1, "client"))
        identity = self._broker.store.identity  # of one that has seen more than this store ever had
        body = bodies.Hello(1, 1, "client", identity.store_uuid, identity.timeline, b"another start", 1 << 40)
        return Draft(Kind.HELLO, body)

    def _last_number(self, publisher: int, topic: bytes, topic_number: int) -> int:
        loaded = self._broker.engine._state.topics.get(topic)
        writer = loaded.writers.get(publisher) if loaded else None
        receipts = self._broker.store.receipts(publisher, topic_number)
        return writer.last_number if writer else receipts[-1].number if receipts else 0

    def _put_many(self, dice: Random) -> Draft | None:
        """Put one or two batches on each of several topics."""
        topics = [(topic, number) for topic in TOPICS if (number := self._number_of(topic))]
        if not self.publishers or not topics:
            return None
        publisher = dice.choice(self.publishers[-2:])
        parts: list[tuple[int, bytes]] = []
        known_by: list[Numbered] = []
        for topic, topic_number in dice.sample(topics, dice.randint(1, len(topics))):
            last = self._last_number(publisher, topic, topic_number)
            for number in range(last + 1, last + 1 + dice.choice((1, 1, 2))):
                parts.append((topic_number, self._batch(publisher, number, dice.choice((1, 3)))))
                known_by.append(("put", publisher, topic_number, number))
        body = bodies.PutMany(tuple((number, len(packed), 0) for number, packed in parts))
        return Draft(Kind.PUT_MANY, body, b"".join(packed for _, packed in parts), tuple(known_by))

    def _put(self, dice: Random) -> Draft | None:
        topic = self._topic(dice)
        topic_number = self._number_of(topic)
        if not self.publishers or not topic_number:
            return None
        publisher = dice.choice(self.publishers[-2:])
        last = self._last_number(publisher, topic, topic_number)
        count = dice.choice((1, 1, 3))
        due = b""
        if dice.random() < 0.1:
            due = b"".join(self._soon_us(dice).to_bytes(8, "little") for _ in range(1))
            count = 1
        body = bodies.Put(topic, 0, due, topic_number)
        return Draft(
            Kind.PUT, body, self._batch(publisher, last + 1, count), (("put", publisher, topic_number, last + 1),)
        )

    def _soon_us(self, dice: Random) -> int:
        return int(self._broker.engine._seen.unix_us) + dice.choice((100_000, 2_000_000))

    def _transact(self, dice: Random) -> Draft | None:
        if not self.publishers:
            return None
        publisher = dice.choice(self.publishers[-2:])
        last = self._broker.engine._transactions._numbers(publisher).last_number
        acks: list[tuple[bytes, bytes, int, bodies.Ranges]] = []
        consumer = self._consumer(dice, ALONE, SHARED)
        if consumer is not None and dice.random() < 0.8:
            offsets = self._ackable(dice, consumer)
            acks = [(consumer.topic, consumer.name, consumer.token, offsets)] if offsets else []
        batch = self._batch(publisher, 0, 1)
        sets = ((_STATE, b"value %d" % self._serial, None),) if dice.random() < 0.5 else ()
        body = bodies.Transact(publisher, last + 1, tuple(acks), ((self._topic(dice), len(batch), 0, b""),), sets)
        return Draft(Kind.TRANSACT, body, batch, (("transact", publisher, last + 1),))

    def _epoch(self, dice: Random) -> int:
        row = self._broker.store.writer(_WRITER)
        return max(0, (row.epoch if row else -1) + dice.choice((0, 1, 1, 1)))

    def _stage(self, dice: Random) -> Draft | None:
        if not self.publishers:
            return None
        place = dice.randrange(3)
        body = bodies.Stage(self._topic(dice), _WRITER, self._epoch(dice), b"part", place, self._as_of(dice))
        return Draft(Kind.STAGE, body, self._batch(dice.choice(self.publishers[-2:]), place + 1, 1))

    def _commit_staged(self, dice: Random) -> Draft:
        drop = dice.random() < 0.4
        body = bodies.CommitStaged(_WRITER, self._epoch(dice), drop=drop, nonce=self._nonce(), as_of=self._as_of(dice))
        return Draft(Kind.COMMIT_STAGED, body)

    def _subscribe(self, dice: Random) -> Draft:
        topic, name = self._subscription(dice, there=False, patterns=True)
        options = SubscriptionOptions()
        if name == SHARED:
            options = SubscriptionOptions(shared=True, lease_s=LEASE_S, max_attempts=_ATTEMPTS[topic])
        start = dice.choice(("new", "earliest"))
        return Draft(Kind.SUBSCRIBE, bodies.Subscribe(topic, name, start, 0, options, self._nonce(), self._as_of(dice)))

    def _unsubscribe(self, dice: Random) -> Draft:
        topic, name = self._subscription(dice, patterns=True)
        return Draft(Kind.UNSUBSCRIBE, bodies.Unsubscribe(topic, name, self._nonce(), self._as_of(dice)))

    def _attach(self, dice: Random) -> Draft:
        topic, name = self._subscription(dice)
        return Draft(Kind.ATTACH, bodies.Attach(topic, name, self._nonce(), 3, self._as_of(dice)))

    def _get(self, dice: Random) -> Draft | None:
        consumer = self._consumer(dice, ALONE)
        if consumer is None:
            return None
        body = bodies.Get(consumer.topic, consumer.name, consumer.token, 0, dice.choice((1, 10)), _EVERYTHING, 0)
        return Draft(Kind.GET, body)

    def _begin_fetch(self, dice: Random) -> Draft:
        known = self._broker.engine._state.sessions
        lost = [
            each for each in self.sessions[-3:] if not any(s.token == each.token for s in known.get(each.body.name, ()))
        ]
        if lost and dice.random() < 0.5:  # the broker knows no more of it
            return Draft(Kind.BEGIN_FETCH, dice.choice(lost).body)
        topics, name = dice.choice(
            (((PATTERN,), OF_PATTERN), ((PATTERN,), OF_PATTERN), (TOPICS, ALONE), (TOPICS[:1], ALONE))
        )
        return Draft(Kind.BEGIN_FETCH, bodies.BeginFetch(topics, name, self._nonce(), self._as_of(dice)))

    def _fetch(self, dice: Random) -> Draft | None:
        if not self.sessions:
            return None
        session = dice.choice(self.sessions[-2:])
        session.number += 1
        body = bodies.Fetch(
            session.body.name, session.token, session.number, dice.choice((1, 10)), _EVERYTHING, dice.choice((0, 300)),
            session.got,
        )  # fmt: skip
        return Draft(Kind.FETCH, body)

    def _ack_many(self, dice: Random) -> Draft | None:
        """Ack something of every topic of a session, or of whoever attached to topics alone."""
        name = dice.choice((ALONE, OF_PATTERN))
        tokens = {
            number: token for each in self.sessions if each.body.name == name for number, token in each.tokens.items()
        }
        if dice.random() < 0.5:
            tokens |= {self._number_of(each.topic): each.token for each in self.consumers if each.name == name}
        acks: list[tuple[int, int, int, int]] = []
        for number, token in sorted(tokens.items()):
            topic = self._broker.engine._state.numbered.get(number)
            subscription = topic.subscriptions.get(name) if topic else None
            if topic is not None and subscription is not None and subscription.acked.cursor < topic.visible_end:
                start = subscription.acked.cursor
                acks.append((number, token, start, dice.randint(start + 1, topic.visible_end)))
        return Draft(Kind.ACK_MANY, bodies.AckMany(name, tuple(acks), dice.random() < 0.5)) if acks else None

    def _ackable(self, dice: Random, consumer: Consumer) -> bodies.Ranges:
        if consumer.name == SHARED:
            held = sorted(consumer.held)[: dice.choice((1, 3))]
            return tuple((offset, offset + 1) for offset in held)
        topic = self._broker.engine._state.topics.get(consumer.topic)
        subscription = topic.subscriptions.get(consumer.name) if topic else None
        if topic is None or subscription is None or subscription.acked.cursor >= topic.visible_end:
            return ()
        start = subscription.acked.cursor
        return ((start, dice.randint(start + 1, topic.visible_end)),)

    def _ack(self, dice: Random) -> Draft | None:
        consumer = self._consumer(dice, ALONE) if dice.random() < 0.5 else self._consumer(dice, SHARED, holding=True)
        offsets = self._ackable(dice, consumer) if consumer is not None else ()
        if consumer is None or not offsets:
            return None
        return Draft(Kind.ACK, bodies.Ack(consumer.topic, consumer.name, consumer.token, offsets))

    def _take(self, dice: Random) -> Draft | None:
        consumer = self._consumer(dice, SHARED)
        if consumer is None:
            return None
        wait_ms = dice.choice((0, 300))
        body = bodies.Take(
            consumer.topic, consumer.name, consumer.token, consumer.take, dice.choice((1, 3)), _EVERYTHING, wait_ms
        )
        return Draft(Kind.TAKE, body)

    def _renew(self, dice: Random) -> Draft | None:
        asked = [each for each in self.consumers if each.asked_by > 1 and self._is_known(each)]
        consumer = dice.choice(asked) if asked else self._consumer(dice, SHARED)
        if consumer is None:
            return None
        body = bodies.Renew(
            consumer.topic, consumer.name, consumer.token, consumer.spans(), consumer.asked_by, consumer.take - 1,
            consumer.releases,
        )  # fmt: skip
        return Draft(Kind.RENEW, body)

    def _return(self, dice: Random) -> Draft | None:
        consumer = self._consumer(dice, SHARED, holding=True)
        if consumer is None:
            return None
        counted = dice.random() < 0.5
        consumer.releases += not counted
        returned = consumer.spans()[: dice.choice((1, 3))]
        body = bodies.Return(
            consumer.topic, consumer.name, consumer.token, returned, counted, dice.choice((0, 0, 100)), "tried",
            0 if counted else consumer.releases,
        )  # fmt: skip
        return Draft(Kind.RETURN, body)

    def _detach(self, dice: Random) -> Draft | None:
        consumer = self._consumer(dice, ALONE, SHARED, SHARED)
        if consumer is None or dice.random() < 0.5:
            return None
        untouched = tuple((offset, offset + 1) for offset in list(consumer.held)[:1])
        return Draft(Kind.DETACH, bodies.Detach(consumer.topic, consumer.name, consumer.token, untouched))

    def _configure(self, dice: Random) -> Draft:
        self._serial += 1
        changes = {"max_batch_bytes": 10_000 + self._serial, "max_subscriptions": dice.choice((0, 0, 0, 1))}
        retention = dice.choice(("", "keep", "until-read"))
        body = bodies.Configure(self._topic(dice), retention, changes, self._nonce(), self._as_of(dice))
        return Draft(Kind.CONFIGURE, body)

    def _seek(self, dice: Random) -> Draft:
        topic, name = self._subscription(dice)
        start = dice.choice(("new", "earliest"))
        return Draft(Kind.SEEK, bodies.Seek(topic, name, start, 0, self._nonce(), self._as_of(dice)))

    def _purge(self, dice: Random) -> Draft:
        topic = self._topic(dice)
        number = dice.choice((0, self._number_of(topic)))
        below = dice.choice((-1, -1, 2))
        return Draft(Kind.PURGE, bodies.Purge(topic, below, number, self._nonce(), self._as_of(dice)))

    def _delete(self, dice: Random) -> Draft:
        topic = self._topic(dice)
        number = dice.choice((0, self._number_of(topic)))
        return Draft(Kind.DELETE, bodies.Delete(topic, number, self._nonce(), self._as_of(dice)))

    def _dead(self, dice: Random) -> Draft:
        action = dice.choice(("replay", "drop"))
        return Draft(Kind.DEAD, bodies.Dead(self._topic(dice), action, (), self._nonce(), self._as_of(dice)))

    def _report(self, dice: Random) -> Draft:
        self._serial += 1
        body = bodies.Report(self._topic(dice), bytes(16), "fixed", self._serial, 1.0, 1.0, 1.0, -1, 0, 0)
        return Draft(Kind.REPORT, body)
