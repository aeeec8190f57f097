"""Transactions: gathered, packed, and on their way, one at a time, until the broker has said what became of them.

A transaction is never given up once it was sent. Whoever waits for it is told, after a while, that its outcome is not
known yet; the same request stays under way, with the same number, and the next transaction waits until it is answered.
So the answer that counts is the first, nothing overtakes, and nothing is done twice. A consumer that closes, dies or
loses its lease meanwhile does no harm: its messages are acked by the transaction, or go to others, who put anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from clarion.model.arguments import as_headers, whole
from clarion.model.errors import (
    ClarionError,
    InvalidRequest,
    LeaseLost,
    PermanentError,
    PublisherExpired,
    TimedOut,
    TooLarge,
)
from clarion.model.ids import next_stamp
from clarion.model.names import reply_address, to_bytes
from clarion.model.ranges import merged
from clarion.session.calls import Call
from clarion.session.exchange import Reply
from clarion.subscriber.acks import Range
from clarion.subscriber.consumer import Attachment
from clarion.subscriber.core_state import CoreState, SteppedCall, Steps
from clarion.subscriber.fetch_session import FetchedTopic
from clarion.wire import bodies
from clarion.wire.batch_builder import BatchBuilder, message_bytes
from clarion.wire.codes import Code, error_of
from clarion.wire.frames import Kind
from clarion.wire.messages import Message, MessageBatch, check_message
from clarion.wire.timestamps import Timestamp, due_us, ttl_ms

if TYPE_CHECKING:
    from clarion.subscriber.subscriber_core import SubscriberCore

_TextHeaders = Mapping[str, bytes | str]
_USES_NUMBER = frozenset({
    Code.LEASE_LOST, Code.CONFLICT, Code.NOT_SUBSCRIBED, Code.NO_SUBSCRIBER, Code.TOO_LARGE, Code.TAKEN_OVER,
    Code.ALREADY_DONE,
})  # fmt: skip
_IN_DOUBT = (
    "This transaction was sent more than once, and whether it was done cannot be told any more. Where it acks a"
    " message it is safe to do it again: what is acked already is refused"
)
_SHOWN_S = 0.01  # for what is held to be with the broker, before it is asked again


class State(NamedTuple):
    """A named state; version 0 and no value when it was never set, or removed."""

    value: bytes | None
    version: int


class Draft:
    """Gathers a transaction. Messages of one topic become one batch, delayed ones another."""

    def __init__(self) -> None:
        self._builders: list[BatchBuilder] = []
        self._open: dict[tuple[bytes, int, bool], int] = {}  # by topic and lifetime: the one that is not full
        self._places: list[tuple[int, int]] = []  # of each put: builder, place in it
        self._acks: dict[Attachment | FetchedTopic, list[Range]] = {}
        self._sets: list[tuple[bytes, bytes | None, int | None]] = []

    def __bool__(self) -> bool:
        return bool(self._builders or self._acks or self._sets)

    def put(
        self,
        topic: bytes,
        payload: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        ttl_ms: int,
        due_us: int | None,
    ) -> None:
        """Add a message."""
        alike = (topic, ttl_ms, due_us is not None)
        at = self._open.get(alike)
        if at is None or self._builders[at].count >= self._builders[at].most:
            at = self._open[alike] = len(self._builders)
            self._builders.append(BatchBuilder(topic, ttl_ms=ttl_ms, delayed=due_us is not None))
        packed = dict(headers) if headers else None
        place = self._builders[at].add(payload, key, packed, message_bytes(payload, key, packed), due_us or 0)
        self._places.append((at, place))

    def ack(self, attachment: Attachment | FetchedTopic, start: int, stop: int) -> None:
        """Add a range to be acked."""
        self._acks.setdefault(attachment, []).append((start, stop))

    def set(self, name: bytes, value: bytes | None, expect: int | None) -> None:
        """Add a named state."""
        if any(name == known for known, _, _ in self._sets):
            raise ValueError("a transaction sets each state once")
        self._sets.append((name, value, expect))

    def acks(self) -> list[tuple[Attachment | FetchedTopic, int, int]]:
        """Return what is to be acked."""
        return [(attachment, start, stop) for attachment, ranges in self._acks.items() for start, stop in ranges]

    def pack(
        self, identity: bodies.Registered, number: int, last_stamp: int, unix_s: float, max_bytes: int
    ) -> tuple[bodies.Transact, bytes, int]:
        """Return the request, the frame that goes with it, and the stamp of the last batch."""
        batches: list[bytearray] = []
        puts: list[tuple[bytes, int, int, bytes]] = []
        for builder in self._builders:
            last_stamp = next_stamp(last_stamp, unix_s)
            packed = builder.pack(broker=identity.broker, publisher=identity.publisher, stamp=last_stamp, number=number)
            batches.append(packed.data)
            puts.append((builder.topic, len(packed.data), builder.ttl_ms, packed.due))
        blob = b"".join(batches)
        if len(blob) > max_bytes:
            raise TooLarge(
                f"a transaction with {len(blob)} bytes to put is larger than this broker takes ({max_bytes});"
                " nothing of it was done"
            )
        acks = tuple((*attachment.who, tuple(merged(ranges))) for attachment, ranges in self._acks.items())
        return bodies.Transact(identity.publisher, number, acks, tuple(puts), tuple(self._sets)), blob, last_stamp

    def offsets_of(self, first_offsets: Sequence[int]) -> tuple[int, ...]:
        """Return the offset of each message put, in order; -1 for a delayed one, which has none yet."""
        firsts = [first_offsets[at] for at, _ in self._places]
        return tuple(-1 if first < 0 else first + place for first, (_, place) in zip(firsts, self._places, strict=True))


class Outcome:
    """What became of a transaction."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.sent = False
        self.done = False
        self.error: ClarionError | None = None
        self.refusal: ClarionError | None = None  # the broker's last "not now"
        self.may_be_done = False  # a copy of it was sent that no answer is known to
        self.offsets: tuple[int, ...] = ()
        self.versions: tuple[int, ...] = ()


class Commit(SteppedCall):
    """Somebody waits for the outcome of a transaction, and has it sent `first`, or did so before."""

    def __init__(self, outcome: Outcome, timeout_s: float | None = None, *, first: bool = True) -> None:
        self.of = outcome
        self._timeout_s = timeout_s
        self._first = first

    def steps(self, core: SubscriberCore, now_s: float, unix_s: float) -> Steps:
        """Send it, if that is still to be done, and wait for the answer."""
        deadline_s = now_s + (core.state.timeout_s if self._timeout_s is None else self._timeout_s)
        return core.transactions.committing(self.of, deadline_s, now_s, unix_s if self._first else None)


class Forgetting:
    """A publisher that is to be forgotten, and whether the broker has."""

    left = False


class Transactions:
    """One subscriber's transactions."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._last_stamp = 0
        self._registering = False
        self._register_error: ClarionError | None = None
        self._identity: bodies.Registered | None = None
        self._number = 0
        self._current: Outcome | None = None
        self._unix_s = 0.0  # when the current one was committed
        self._request: tuple[bodies.Transact, bytes] | None = None
        self._again_at_s: float | None = None
        self.committed = 0

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._current is not None

    def committing(self, outcome: Outcome, deadline_s: float, now_s: float, unix_s: float | None) -> Steps:
        """Send a transaction, unless that was done before (no `unix_s`), and wait for the answer; raises where it was
        refused, and then nothing of it was done."""
        if unix_s is not None:
            try:
                while self._current is not None:
                    if now_s >= deadline_s:
                        raise TimedOut("an earlier transaction is not answered yet; nothing of this one was done")
                    now_s = yield deadline_s
                self._current, self._unix_s, self._register_error = outcome, unix_s, None
                self._register(now_s)
                while self._identity is None and self._register_error is None:
                    if now_s >= deadline_s:
                        raise TimedOut(
                            f"{self._state.url} did not answer in time; nothing of this transaction was done"
                        )
                    now_s = yield deadline_s
                if self._register_error is not None:
                    raise self._register_error
                for attachment, _, _ in outcome.draft.acks():
                    attachment.check()
                self._pack(outcome.draft)
            except BaseException:
                self.abandon(outcome)
                raise
            outcome.sent = True
            self._send()
        while not outcome.done:
            if now_s >= deadline_s:
                raise _unknown(self._state.url, outcome)
            now_s = yield deadline_s
        if outcome.error is not None:
            raise outcome.error.again()

    def abandon(self, outcome: Outcome) -> None:
        """It is not sent after all: its messages are whose they were. What was sent stays under way."""
        if outcome.sent or outcome.done:
            return
        if self._current is outcome:
            self._current = None
        outcome.error = PermanentError("this transaction was not sent; nothing of it was done")
        outcome.done = True
        self._end_leases(outcome.draft, False)

    # Who transacts.

    def _register(self, now_s: float) -> None:
        if self._identity is None and not self._registering:
            self._registering = True
            self._state.greet(self, now_s)

    def on_greeted(self, error: ClarionError | None, now_s: float) -> None:
        """Register, as of what the broker counts."""
        if error is None:
            body = bodies.Register(next(self._state.requests.nonces), self._state.requests.count.known or 0)
            self._state.send(self, body, Kind.REGISTER, body)
        else:
            self._registering = False
            self._register_error = error

    def on_reply(self, about: Any, reply: Reply, now_s: float) -> None:
        """Take in what the broker answered."""
        if isinstance(about, bodies.Transact):
            self._on_transacted(about, reply, now_s)
        elif isinstance(about, Forgetting):
            about.left = True
        else:
            self._on_registered(reply, now_s)

    def _on_registered(self, reply: Reply, now_s: float) -> None:
        refusal = reply.refusal()
        if refusal is not None and refusal.code == Code.STALE:  # an id that an earlier copy got is nobody's
            self._state.requests.count.start_over(refusal)
            self.on_greeted(None, now_s)
            return
        self._registering = False
        again_s = reply.again_after_s()
        try:
            self._identity = reply.read(bodies.Registered)
            self._number = 0
            if self._request is not None:  # a new id for a transaction that its old one was too old for
                assert self._current is not None
                self._pack(self._current.draft)
                self._send()
        except ClarionError as error:
            if again_s is not None:
                self._again_at_s = now_s + again_s
            elif self._request is not None:
                self._end(error)
            else:
                self._register_error = error

    # On the way.

    def _pack(self, draft: Draft) -> None:
        assert self._identity is not None
        assert self._state.welcome is not None
        max_bytes = self._state.welcome.max_batch_bytes
        try:
            body, blob, self._last_stamp = draft.pack(
                self._identity, self._number + 1, self._last_stamp, self._unix_s, max_bytes
            )
        except (TypeError, OverflowError) as error:
            raise InvalidRequest(f"this transaction cannot be packed, and was not sent: {error}") from error
        self._request = body, blob
        self._number += 1

    def _send(self) -> None:
        assert self._request is not None
        body, blob = self._request
        self._state.send(self, body, Kind.TRANSACT, body, (blob,))

    def _on_transacted(self, body: bodies.Transact, reply: Reply, now_s: float) -> None:
        outcome = self._current
        if outcome is None or self._request is None or self._request[0] is not body:
            return
        refusal = reply.refusal()
        again_s = reply.again_after_s()
        outcome.may_be_done = outcome.may_be_done or reply.times_sent > 1
        if refusal is None:
            self._take_answer(outcome, reply)
        elif refusal.code == Code.SHOW_HELD:
            for attachment, _, _ in outcome.draft.acks():
                if attachment.error is None:
                    attachment.show(refusal.expected, now_s)
            self._again_at_s = now_s + _SHOWN_S
        elif again_s is not None and refusal.code != Code.GAP:
            outcome.refusal = reply.error()
            self._again_at_s = now_s + again_s
        elif refusal.code == Code.PUBLISHER_EXPIRED:
            self._identity = None
            if outcome.may_be_done:
                self._end(PublisherExpired(f"{refusal.text}. {_IN_DOUBT}"))
            else:  # it was refused each time it was sent, and is sent as what it was not: a new publisher's
                self._register(now_s)
        else:
            used = refusal.code in _USES_NUMBER and reply.kind != Kind.INVALID  # what was not understood uses none up
            self._end(error_of(refusal.code, refusal.text), keeps_id=used)

    def _take_answer(self, outcome: Outcome, reply: Reply) -> None:
        try:
            transacted = reply.read(bodies.Transacted)
        except ClarionError as error:
            self._end(error)
            return
        if transacted.code:
            self._end(error_of(transacted.code, transacted.text), keeps_id=transacted.code in _USES_NUMBER)
            return
        outcome.offsets = outcome.draft.offsets_of(transacted.offsets)
        outcome.versions = transacted.versions
        self.committed += 1
        self._end(None, keeps_id=True)

    def _end(self, error: ClarionError | None, *, keeps_id: bool = False) -> None:
        """It is known what became of it. An id whose next number is in doubt is not used again."""
        outcome = self._current
        assert outcome is not None
        self._current = self._request = self._again_at_s = None
        outcome.error = error
        outcome.done = True
        self._end_leases(outcome.draft, error is None)
        for attachment, _, _ in outcome.draft.acks() if isinstance(error, LeaseLost) else ():
            if attachment.error is None and attachment.consumer.lent is not None:
                attachment.consumer.lose(str(error))  # begin anew, so that nothing is in doubt
        if not keeps_id and self._identity is not None:
            self._state.send(None, None, Kind.FORGET, bodies.Forget(self._identity.publisher))
            self._identity = None

    def _end_leases(self, draft: Draft, done: bool) -> None:
        for attachment, start, stop in draft.acks():
            if attachment.error is None and attachment.consumer.lent is not None:
                attachment.consumer.lent.end_transaction(start, stop, done)

    def on_time(self, now_s: float) -> float | None:
        """Send again what was refused for a time that is over; return when to come back."""
        if self._again_at_s is None:
            return None
        if now_s < self._again_at_s:
            return self._again_at_s
        self._again_at_s = None
        if self._identity is None:
            self._register(now_s)
        elif self._request is not None:
            self._send()
        return None

    def on_lost(self) -> None:
        """The publisher's id was of a store that is not there any more."""
        self._identity = None

    def forget(self) -> Forgetting | None:
        """Have the broker forget the publisher, unless it may still have something to answer."""
        if self._identity is None or self._current is not None:
            return None
        forgetting = Forgetting()
        self._state.send(self, forgetting, Kind.FORGET, bodies.Forget(self._identity.publisher))
        return forgetting


def _unknown(url: str, outcome: Outcome) -> ClarionError:
    unknown = "the outcome of this transaction is not known yet; it stays under way, and result() waits for it"
    if outcome.refusal is not None:
        return type(outcome.refusal)(f"{unknown}. The broker's last word: {outcome.refusal}")
    return TimedOut(f"{url} did not answer in time: {unknown}")


class TransactionClient(Protocol):
    """What works behind the subscriber that transactions are made with."""

    def check_usable(self) -> None:
        """Raise where it is closed or broken."""

    def lend_to_transaction(self, draft: Draft, part: MessageBatch) -> None:
        """Have a transaction decide about messages."""

    def abandon(self, outcome: Outcome) -> None:
        """A transaction is not committed."""

    def run(self, call: Call) -> Any:
        """Wait for a call; of an asyncio client, what is to be awaited."""


class _Gathering:
    """What is the same for threads and asyncio: all but committing."""

    def __init__(self, client: TransactionClient, *, keeper: object = None) -> None:
        self._client = client
        self._keeper = keeper  # the subscriber, which lives as long as its transactions do
        self._draft = Draft()
        self._outcome = Outcome(self._draft)
        self._ended = False

    def put(
        self,
        topic: bytes | str,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: _TextHeaders | None = None,
        *,
        ttl_s: float | None = None,
        deliver_at: Timestamp | None = None,
    ) -> None:
        """Have a message put, as Publisher.put does."""
        self._check_open()
        self._draft.put(
            to_bytes(topic, "topic"),
            to_bytes(payload, "payload"),
            None if key is None else to_bytes(key, "key"),
            as_headers(headers),
            ttl_ms(ttl_s),
            None if deliver_at is None else due_us(deliver_at),
        )

    def ack(self, message: Message | MessageBatch) -> None:
        """Have messages acked. From now on nothing else acks them: where the transaction is not committed, ack or nack
        them, or give them to another one. Raises LeaseLost where they were taken away."""
        self._check_open()
        part = message.alone() if isinstance(message, Message) else message
        if not isinstance(part, MessageBatch):
            raise TypeError(f"a transaction acks a Message or a MessageBatch at a time, not {type(message).__name__}")
        part.check_holder()
        self._client.lend_to_transaction(self._draft, part)

    def set(self, name: bytes | str, value: bytes | str | None, *, expect: int | None = None) -> None:
        """Have a named state set, or with None removed; only where it has the version `expect` (0: where it is not
        there), if that is given. Otherwise the commit raises VersionConflict."""
        self._check_open()
        version = None if expect is None else whole(expect, "expect")
        self._draft.set(to_bytes(name, "name"), None if value is None else to_bytes(value, "value"), version)

    def reply(
        self,
        message: Message,
        payload: bytes | str,
        key: bytes | str | None = None,
        headers: _TextHeaders | None = None,
    ) -> None:
        """Have a reply put to a message that is a request; PermanentError where it is none."""
        check_message(message)
        topic, needed = reply_address(message.headers)
        self.put(topic, payload, key, {**(as_headers(headers) or {}), **needed})

    @property
    def sent(self) -> bool:
        """Whether it was sent: where it was not, and its block was left, nothing of it was or will be done."""
        return self._outcome.sent

    @property
    def offsets(self) -> tuple[int, ...]:
        """Once committed: the offset of each message put, in order; -1 for a delayed one."""
        return self._outcome.offsets

    @property
    def versions(self) -> tuple[int, ...]:
        """Once committed: the version of each state set, in order; 0 for a removed one."""
        return self._outcome.versions

    def _check_open(self) -> None:
        self._client.check_usable()
        if self._ended:
            raise PermanentError("this transaction is over; begin another one")

    def _commit(self) -> Commit | None:
        self._check_open()
        self._ended = True
        return Commit(self._outcome) if self._draft else None

    def _abandon(self) -> None:
        self._ended = True
        try:
            self._client.abandon(self._outcome)
        except ClarionError:  # the client is closed, and holds nothing any more
            pass

    def _wait(self, timeout_s: float | None) -> Commit | None:
        self._client.check_usable()
        if not self._ended:
            raise PermanentError("this transaction is not committed: leave its block first")
        return Commit(self._outcome, timeout_s, first=False) if self._draft else None


class Transaction(_Gathering):
    """Use it as `with subscriber.transaction() as tx`. Left normally it is committed, and raises where that was
    refused: then nothing of it was done. Left by an exception, nothing is done.

    Where the broker does not answer in time it raises TimedOut (or its last "not now", as TopicFull): the outcome is
    not known yet, the transaction stays under way, and the next one waits for it. `result` waits again.
    """

    def result(self, timeout_s: float | None = None) -> Transaction:
        """Wait for the outcome, and raise it where nothing was done."""
        if (call := self._wait(timeout_s)) is not None:
            self._client.run(call)
        return self

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
            return
        try:
            if (call := self._commit()) is not None:
                self._client.run(call)
        except BaseException:
            self._abandon()
            raise


class AsyncTransaction(_Gathering):
    """As Transaction: `async with subscriber.transaction() as tx`."""

    async def result(self, timeout_s: float | None = None) -> AsyncTransaction:
        """Wait for the outcome, and raise it where nothing was done."""
        if (call := self._wait(timeout_s)) is not None:
            await self._client.run(call)
        return self

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abandon()
            return
        try:
            if (call := self._commit()) is not None:
                await self._client.run(call)
        except BaseException:
            self._abandon()
            raise
