"""A subscriber's core whose requests are kept, to be answered by the test."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from clarion.model.options import SubscriptionOptions
from clarion.session.calls import Call
from clarion.session.exchange import Reply, Send
from clarion.subscriber.core_state import FetchSettings, SteppedCall
from clarion.subscriber.subscriber_core import Extend, Flush, Get, SubscriberCore, Topics
from clarion.subscriber.subscriber_transactions import Draft, Outcome, Transaction
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.frames import Buffer, Kind
from clarion.wire.messages import Message, MessageBatch

T = TypeVar("T")
Ranges = tuple[tuple[int, int], ...]
LEASE_S = 15.0
BROKER, PUBLISHER = 11, 22
COUNT = 100  # the broker's, when the client began


class Asked(NamedTuple):
    """A request that waits for its answer."""

    world: World
    kind: Kind
    body: Any
    tag: Any
    blobs: Sequence[Buffer]

    def answer(self, kind: Kind, body: bodies.Body, *blobs: bytes, times_sent: int = 1) -> None:
        world = self.world
        world.core.on_reply(self.tag, Reply(kind, msgspec.msgpack.encode(body), blobs, times_sent), world.now_s)
        world.collect()

    def done(self) -> None:
        self.answer(Kind.ACK, bodies.Done())

    def refuse(
        self,
        code: int,
        retry_after_s: float = 0.0,
        kind: Kind = Kind.REFUSED,
        gone: tuple[int, int] | None = None,
        times_sent: int = 1,
        expected: int = 0,
    ) -> None:
        self.answer(kind, bodies.Refused(code, "because", retry_after_s, expected, gone), times_sent=times_sent)

    def deliver(self, first: int, *payloads: bytes, end: int | None = None) -> None:
        """Answer a get with one batch that begins at `first`."""
        end = first + len(payloads) if end is None else end
        self.answer(Kind.MESSAGES, bodies.Delivery(((first, 5),), end), packed(*payloads))

    def lend(self, *offsets: int, attempt: int = 1, waiting: int = 0) -> None:
        """Answer a take with single messages, whose payloads are their offsets, out of one batch."""
        first, last = min(offsets), max(offsets)
        batch = packed(*(b"%d" % offset for offset in range(first, last + 1)))
        lent = tuple((offset, offset + 1, attempt) for offset in offsets)
        self.answer(Kind.MESSAGES, bodies.Lent(((first, 5),), lent, waiting), batch)

    def nothing(self) -> None:
        self.answer(Kind.NO_MESSAGES, bodies.NoMessages(0))


class Nonces:
    """Bytes that tell how many were made before."""

    def __init__(self) -> None:
        self._made = 0

    def __iter__(self) -> Nonces:
        return self

    def __next__(self) -> bytes:
        self._made += 1
        return b"nonce %d" % self._made


class Timed:
    """A part of the core whose methods are told the time, and whose requests are collected after each."""

    def __init__(self, world: World, part: Any) -> None:
        self._world = world
        self._part = part

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        if not callable(found):
            return found

        def timed(*given: Any, **named: Any) -> Any:
            wanted = signature(found)
            known = {"now_s": self._world.now_s, "unix_s": self._world.unix_s(), "holder": self._world}
            given_already = wanted.bind_partial(*given, **named).arguments
            named.update({n: known[n] for n in wanted.parameters if n in known and n not in given_already})
            try:
                got = found(*given, **named)
            finally:
                self._world.collect()
            for part in got if isinstance(got, list) else [got.part] if isinstance(got, Message) else []:
                part.holder = self._world
            return got

        return timed


class World:
    """Clock, wire and client around the core under test."""

    def __init__(self, settings: FetchSettings | None = None, *, auto_ack: bool = True) -> None:
        self.now_s = 100.0
        self.asked: list[Asked] = []
        self.make_core(settings or FetchSettings(), auto_ack=auto_ack)

    def make_core(self, settings: FetchSettings, *, auto_ack: bool) -> None:
        core = SubscriberCore(b"reader", "tcp://here", 10.0, settings, auto_ack=auto_ack, seed=b"seed")
        core.state.requests.nonces = Nonces()
        core.count.note(COUNT)
        self.core = core
        self.reader: Any = Timed(self, core)
        self.transacting: Any = Timed(self, core.transactions)

    def unix_s(self) -> float:
        return 1_700_000_000.0 + self.now_s

    def collect(self) -> None:
        """Take what the core wants sent."""
        for instruction in self.core.take_instructions():
            if isinstance(instruction, Send):
                self.asked.append(Asked(self, instruction.kind, instruction.body, instruction.tag, instruction.blobs))

    def run(self, call: Call | None) -> Walk[Any]:
        assert call is not None
        return Walk(self, call)

    # What messages and transactions need of the client.

    def check_usable(self) -> None:
        pass

    def ack_offsets(self, attachment: Any, start: int, stop: int) -> None:
        attachment.consumer.ack(attachment, start, stop, self.now_s)
        self.collect()

    def nack_offsets(self, attachment: Any, start: int, stop: int, delay_s: float, reason: str) -> None:
        attachment.consumer.nack(attachment, start, stop, delay_s, reason)
        self.collect()

    def extend_offsets(self, attachment: Any, start: int, stop: int) -> Walk[None]:
        return self.run(Extend(attachment, start, stop))

    def lend_to_transaction(self, draft: Draft, part: MessageBatch) -> None:
        part.attachment.consumer.lend_to_transaction(part.attachment, part.offsets.start, part.offsets.stop)
        draft.ack(part.attachment, part.offsets.start, part.offsets.stop)

    def abandon(self, outcome: Outcome) -> None:
        self.core.transactions.abandon(outcome)
        self.collect()

    # What was asked.

    def take_asked(self) -> list[Asked]:
        asked, self.asked = self.asked, []
        return asked

    def one(self, kind: Kind) -> Asked:
        """Take the one request there is."""
        (asked,) = self.take_asked()
        assert asked.kind == kind, asked
        return asked

    def pick(self, kind: Kind) -> Asked:
        """Take the one request of a kind, and leave the others."""
        (asked,) = [asked for asked in self.asked if asked.kind == kind]
        self.asked.remove(asked)
        return asked


class Walk(Generic[T]):
    """A call being waited for."""

    def __init__(self, world: World, call: Call) -> None:
        self._world = world
        self._call = call
        world.core.begin(call, world.now_s, world.unix_s())
        world.collect()
        if call.error is not None:
            raise call.error

    @property
    def until_s(self) -> float:
        return self._call.until_s  # type: ignore[attr-defined, no-any-return]

    def go_on(self) -> bool:
        """Have the call look at the time; says whether it has ended."""
        core, now_s = self._world.core, self._world.now_s
        if isinstance(self._call, SteppedCall):
            core._go_on(self._call, now_s)
        else:
            core.state.requests.on_time(now_s, 0.0)
        self._world.collect()
        if self._call.error is not None:
            raise self._call.error
        return self._call.done

    def cancel(self) -> None:
        """Stop where it is."""
        self._world.core.cancel(self._call, self._world.now_s)
        self._world.collect()

    def end(self) -> T:
        """Go on, and expect it to end."""
        assert self.go_on(), "it still waits"
        result: T = self._call.outcome()
        return result


class Talk(World):
    """One reading, attached to a subscription that is shared or not."""

    def __init__(
        self,
        *,
        attached: bool = True,
        shared: bool = False,
        acked: Ranges = (),
        prefetch: bool = True,
        max_unacked: int = 10,
        heartbeats: bool = True,
        at_most_once: bool = False,
    ) -> None:
        super().__init__(FetchSettings(1000, prefetch, max_unacked, heartbeats, at_most_once))
        self.shared = shared
        self.reading: Any = Timed(self, self.core.of(b"news"))
        if attached:
            self.reading.want(0.0, 5)
            self.attach(acked=acked)

    def attach(self, acked: Ranges = (), token: int = 7) -> None:
        asked = self.one(Kind.ATTACH)
        options = SubscriptionOptions(shared=self.shared, lease_s=LEASE_S)
        asked.answer(Kind.ACK, bodies.Attached(token, 0, acked, options))

    def hand_out(self, most: int = 99) -> list[Message]:
        return [message for part in self.reading.take(most) for message in part]

    def mark_handed(self, part: MessageBatch) -> None:
        """Have it acked by the next call, as a subscriber does with ack="auto"."""
        self.reading.hand_out(part.attachment, part.offsets.start, part.offsets.stop)

    def lent(self, *offsets: int, waiting: int = 0) -> list[Message]:
        """Have messages lent by the take under way, and handed out."""
        self.pick(Kind.TAKE).lend(*offsets, waiting=waiting)
        return self.hand_out()


def welcome(version: int, max_batch_bytes: int = 10_000) -> bodies.Welcome:
    return bodies.Welcome(version, BROKER, b"", 0, max_batch_bytes, 1, 1, count=COUNT)


def packed(*payloads: bytes) -> bytes:
    return bytes(encode_batch(payloads, broker=1, publisher=2, stamp=3, number=1))


def payloads_of(parts: list[MessageBatch]) -> list[bytes]:
    return [payload for part in parts for payload in part.payloads()]


# A subscriber without its thread, whose requests are answered by the test.


SHARED = SubscriptionOptions(shared=True)


class Reads(World):
    """A subscriber without its thread."""

    def __init__(
        self, *, ack: Literal["auto", "explicit"] = "auto", at_most_once: bool = False, shared: bool = False
    ) -> None:
        super().__init__(FetchSettings(1000, True, 10, True, at_most_once), auto_ack=ack == "auto")
        self.options = SubscriptionOptions(shared=shared)

    def get(self, most: int = 10, wait_s: float = 0.0, *, opened: bool = False) -> Walk[list[MessageBatch]]:
        return self.run(Get(b"news", most, wait_s, opened=opened, holder=self))

    def attach(self, token: int = 7) -> None:
        self.one(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(token, 0, (), self.options))

    def got(self, *offsets: int) -> list[MessageBatch]:
        """Get the first messages, attaching for them."""
        walk = self.get()
        self.attach()
        bring(self.take_asked()[0], *offsets)
        return walk.end()


def bring(asked: Asked, *offsets: int) -> None:
    if asked.kind == Kind.TAKE:
        asked.lend(*offsets)
    else:
        asked.deliver(offsets[0], *(b"%d" % offset for offset in offsets))


# A subscriber to a pattern, and the broker's side of the talk.


PATTERN = b"alerts/*"


class Watch(World):
    """A subscriber to a pattern."""

    def __init__(self, *, shared: bool = False, fetch_bytes: int = 100_000) -> None:
        super().__init__(FetchSettings(fetch_bytes))
        self.options = SubscriptionOptions(shared=shared)
        self.tokens: dict[bytes, int] = {}
        self.version = 0

    def make_core(self, settings: FetchSettings, *, auto_ack: bool) -> None:
        super().make_core(settings, auto_ack=auto_ack)
        self.core.state.welcome = welcome(1)  # it knows no fetch sessions

    def get(self, most: int = 10, wait_s: float = 0.0) -> Walk[list[MessageBatch]]:
        return self.run(Get(PATTERN, most, wait_s, holder=self))

    def match(self, *topics: bytes, pattern: bytes = PATTERN) -> None:
        """Answer who asks which topics there are, as the broker does: everybody, once it has to answer one."""
        asking = [asked for asked in self.asked if asked.kind == Kind.MATCHES and asked.body.pattern == pattern]
        assert asking
        self.version += 1
        for asked in asking:
            self.asked.remove(asked)
            asked.answer(Kind.ACK, bodies.Matched(self.version, topics))

    def attach_all(self) -> None:
        attaching = [asked for asked in self.asked if asked.kind == Kind.ATTACH]
        for asked in attaching:
            self.asked.remove(asked)
            self.tokens[asked.body.topic] = len(self.tokens) + 1
            asked.answer(Kind.ACK, bodies.Attached(len(self.tokens), 0, (), self.options))

    def fetches(self) -> dict[bytes, Asked]:
        """Take the gets and takes that are under way, by topic."""
        found = {asked.body.topic: asked for asked in self.asked if asked.kind in (Kind.GET, Kind.TAKE)}
        self.asked = [asked for asked in self.asked if asked.kind not in (Kind.GET, Kind.TAKE)]
        return found

    def begin(self, *topics: bytes, most: int = 10, wait_s: float = 0.0) -> Walk[list[MessageBatch]]:
        """Begin to get, up to the point where every topic was asked."""
        walk = self.get(most, wait_s)
        self.match(*topics)
        walk.go_on()
        self.attach_all()
        return walk


# A subscriber to a pattern that is read in one session.


A, B = 1, 2  # numbers of topics
NAMES = {A: b"alerts/a", B: b"alerts/b"}
TOKEN = COUNT + 1


class Together(World):
    """A subscriber to a pattern, at a broker that knows fetch sessions."""

    def __init__(self, settings: FetchSettings | None = None, *, auto_ack: bool = True) -> None:
        super().__init__(settings, auto_ack=auto_ack)
        self.serial = 0

    def make_core(self, settings: FetchSettings, *, auto_ack: bool) -> None:
        super().make_core(settings, auto_ack=auto_ack)
        self.core.state.welcome = welcome(2)

    def get(self, most: int = 10, wait_s: float = 0.0, topics: Topics = PATTERN) -> Walk[list[MessageBatch]]:
        return self.run(Get(topics, most, wait_s, opened=True, holder=self))

    def begin(self, token: int = TOKEN) -> bodies.BeginFetch:
        """Answer who begins a session."""
        asked = self.pick(Kind.BEGIN_FETCH)
        asked.answer(Kind.ACK, bodies.FetchBegun(token, count=token))
        body: bodies.BeginFetch = asked.body
        return body

    def bring(self, *batches: tuple[int, int, bytes], asked: Asked | None = None, **told: Any) -> None:
        """Answer the fetch under way with batches: number of the topic, first offset, packed."""
        self.serial += 1
        rows = tuple((number, first, 5, len(data)) for number, first, data in batches)
        body = bodies.Fetched(self.serial, rows, **told)
        (asked or self.pick(Kind.FETCH)).answer(Kind.MESSAGES, body, b"".join(data for _, _, data in batches))

    def fetched(self, *batches: tuple[int, int, bytes], **told: Any) -> list[MessageBatch]:
        """Get what a fetch brings."""
        walk = self.get()
        self.bring(*batches, **told)
        return walk.end()

    def first(self, *batches: tuple[int, int, bytes], **told: Any) -> list[MessageBatch]:
        """Begin, and get what the first fetch brings of topics A and B."""
        walk = self.get()
        self.begin()
        self.bring(*batches, **{"topics": topics(A, B), **told})
        return walk.end()

    def acks(self) -> bodies.Acks:
        """Take the acks under way in a request of their own, and say that they are durable."""
        asked = self.pick(Kind.ACK_MANY)
        asked.answer(Kind.ACK, bodies.AcksDone())
        acks: bodies.Acks = asked.body.acks
        return acks

    def carried(self, *, is_durable: bool = True) -> bodies.Acks:
        """Answer the fetch under way with nothing, and say whether the acks that it brought are durable."""
        assert not [asked for asked in self.asked if asked.kind == Kind.ACK_MANY], "they are said twice"
        asked = self.pick(Kind.FETCH)
        asked.answer(Kind.NO_MESSAGES, bodies.NoMessages(0, is_durable))
        acks: bodies.Acks = asked.body.acks
        return acks

    def pass_time(self, seconds: float = 0.0) -> float | None:
        """Have done what is due by the clock."""
        self.now_s += seconds
        wanted_s = self.core.on_time(self.now_s, 0.0)
        self.collect()
        return wanted_s

    def flush_acks(self) -> bodies.Acks:
        """Return what a flush finds that is not known to be durable."""
        flush = self.run(Flush(None))
        if flush.go_on():
            return ()
        acks = self.acks()
        flush.end()
        return acks


def topics(*numbers: int, token: int = 7, cursor: int = 0) -> tuple[tuple[int, bytes, int, int], ...]:
    return tuple((number, NAMES.get(number, b"alerts/%d" % number), token, cursor) for number in numbers)


# Transactions beside a reading, whose requests are answered by the test.


class Business(Talk):
    """A reading with messages 0 to 4 handed out, and transactions beside it."""

    def __init__(self, *, shared: bool = True) -> None:
        super().__init__(shared=shared)
        if shared:
            self.messages = self.lent(0, 1, 2, 3, 4)
        else:
            self.one(Kind.GET).deliver(0, *(b"%d" % place for place in range(5)))
            self.messages = self.hand_out()

    def begin(self) -> Transaction:
        return Transaction(self)

    def commit(self, transaction: Transaction) -> Walk[None]:
        return self.run(transaction._commit() or Flush(None))

    def register(self, publisher: int = PUBLISHER, max_batch_bytes: int = 10_000) -> None:
        """Answer what is asked before the first transaction."""
        for kind, body in (
            (Kind.HELLO, welcome(1, max_batch_bytes)),
            (Kind.REGISTER, bodies.Registered(BROKER, publisher)),
        ):
            for asked in [asked for asked in self.asked if asked.kind == kind]:
                self.asked.remove(asked)
                asked.answer(Kind.ACK, body)

    def send(self, transaction: Transaction) -> tuple[Walk[None], Asked]:
        """Commit it; give the request that is under way."""
        walk = self.commit(transaction)
        if not self.asked or self.asked[0].kind != Kind.TRANSACT:
            self.register()
            walk.go_on()
        return walk, self.one(Kind.TRANSACT)


def batches_of(asked: Asked) -> list[Batch]:
    found, at = [], 0
    for _, size, _, _ in asked.body.puts:
        found.append(Batch.parse(bytes(asked.blobs[0])[at : at + size]))
        at += size
    assert at == len(asked.blobs[0])
    return found


def answer(asked: Asked, *offsets: int, versions: tuple[int, ...] = ()) -> None:
    asked.answer(Kind.ACK, bodies.Transacted(0, "", offsets, versions, 5))


def fail_in(transaction: Transaction, message: Message) -> None:
    with transaction as tx:
        tx.put("a", b"x")
        tx.ack(message)
        raise ZeroDivisionError
