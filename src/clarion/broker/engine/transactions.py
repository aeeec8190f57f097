"""Transactions: acks, puts and named states, all or nothing, once for each number of a publisher."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.broker.engine.answers import Refused, ReplyTo, check_topic_name, disk_full
from clarion.broker.engine.capacity import check_room
from clarion.broker.engine.clock import Now
from clarion.broker.engine.delays import read_due
from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES, MAX_RANGES, ROW_BYTES
from clarion.broker.engine.puts import NO_PATTERN, PutPlan, Puts
from clarion.broker.engine.state import State, TransactionTaken
from clarion.broker.engine.subscriptions import AckPlan, Subscriptions, find_unless_deleted
from clarion.broker.engine.topic_log import trim
from clarion.broker.engine.topics import Topic, Transactor
from clarion.model.names import to_text
from clarion.store.port import Answer, PublisherRow, StateRow
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_NOT_FINAL = frozenset({Code.SHOW_HELD, Code.TOPIC_FULL, Code.DISK_FULL, Code.BUSY})  # the number is not used up
_IN_MEMORY = 1000  # publishers whose numbers are at hand
_MAX_PARTS = 1000  # acks, puts and states each: it is decided in one go, and nobody else is heard meanwhile
_STATE_BYTES = 64  # that a state takes on disk beside its name and value, about

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(bodies.Transacted).decode

_Sets = tuple[tuple[bytes, bytes | None, int | None], ...]


class _Parts(NamedTuple):
    """All of a transaction that nothing speaks against."""

    acks: list[AckPlan]
    puts: list[PutPlan]
    trims: list[tuple[Topic, int]]
    sets: _Sets
    states_made: int  # less those that are removed


class _Transaction(NamedTuple):
    body: bodies.Transact
    numbers: Transactor
    checksum: int
    seen: PublisherRow | None
    outcome: _Parts | Refused | Answer  # it is to be done, to be remembered as refused, or was done before


class Transactions:
    """Takes transactions in order, once each, and answers retries with the first answer."""

    def __init__(self, state: State, subscriptions: Subscriptions, puts: Puts) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._puts = puts
        self.forget_all()

    def forget_all(self) -> None:
        """Start from what is in the store."""
        self._last_version = self._state.store.last_version()
        self._state_count = self._state.store.state_count()  # counted once: that takes long where there are many

    def check_transact(self, body: bodies.Transact, blob: Buffer, now: Now) -> _Transaction:
        """Refuse a transaction that is not its turn, cannot be understood, or cannot be done now; one that is refused
        for good uses its number up."""
        return self._puts.plan_for(body.publisher, self._plan, body, blob, now)

    def _plan(self, body: bodies.Transact, blob: Buffer, seen: PublisherRow | None, now: Now) -> _Transaction:
        numbers = self._numbers(body.publisher)
        checksum = xxh3_64_intdigest(blob, seed=xxh3_64_intdigest(_encode(body)))
        outcome: _Parts | Refused | Answer
        if body.number != numbers.last_number + 1:
            outcome = numbers.find(body.number, checksum, "transaction", "answers")
            transacted = _decode(outcome.body)
            if transacted.code and body.number <= numbers.durable_number:
                raise _refusal(transacted)
        else:
            try:
                outcome = self._plan_parts(body, blob, now)
            except Refused as refused:
                if refused.kind == Kind.INVALID:
                    raise
                if refused.code in _NOT_FINAL:
                    refused.retry_after_s = FULL_RETRY_S
                    raise
                outcome = refused
        return _Transaction(body, numbers, checksum, seen, outcome)

    def _numbers(self, publisher: int) -> Transactor:
        """Return a publisher's numbers, read again where they were not needed for long."""
        transactors = self._state.transactors
        found = transactors.pop(publisher, None) or Transactor(self._state.store.answers(publisher))
        transactors[publisher] = found
        if len(transactors) > _IN_MEMORY:
            coldest = next(iter(transactors))
            if transactors[coldest].durable_number == transactors[coldest].last_number:
                del transactors[coldest]
        return found

    def transact(self, reply_to: ReplyTo, plan: _Transaction, now: Now) -> None:
        """Do all of it, or none; the answer waits for the disk, and is the same when asked again."""
        state, (body, numbers, checksum, seen, outcome) = self._state, plan
        state.note_publisher(seen)
        if isinstance(outcome, Answer):
            transacted = _decode(outcome.body)
            if body.number <= numbers.durable_number:
                self._answer(reply_to, transacted)
            else:
                in_flight = state.in_flight
                group = in_flight if in_flight is not None and outcome in in_flight.changes.answers else state.open
                group.on_durable.append(TransactionTaken(numbers, body.number, transacted, reply_to))
            return
        if isinstance(outcome, Refused):
            transacted = bodies.Transacted(outcome.code, outcome.text)
        else:
            transacted = self._do(outcome, now)
        answer = Answer(body.publisher, body.number, checksum, _encode(transacted))
        numbers.keep(answer)
        state.open.changes.answers.append(answer)
        state.open.on_durable.append(TransactionTaken(numbers, body.number, transacted, reply_to))
        state.counters["transactions"] += 1

    def on_transaction_taken(self, effect: TransactionTaken, now: Now) -> None:
        """Tell a publisher what became of its transaction, which is on disk."""
        numbers, number, transacted, reply_to = effect
        numbers.durable_number = max(numbers.durable_number, number)
        self._answer(reply_to, transacted)

    def _answer(self, reply_to: ReplyTo, transacted: bodies.Transacted) -> None:
        if transacted.code:
            self._state.refuse(reply_to, _refusal(transacted))
        else:
            self._state.reply(reply_to, Kind.ACK, transacted)

    # The parts.

    def _plan_parts(self, body: bodies.Transact, blob: Buffer, now: Now) -> _Parts:
        if max(len(body.acks), len(body.puts), len(body.sets)) > _MAX_PARTS:
            text = f"a transaction has at most {_MAX_PARTS} parts of each kind"
            raise Refused(Code.TOO_LARGE, text, kind=Kind.INVALID)
        if sum(len(ack[3]) for ack in body.acks) > MAX_RANGES:
            raise Refused(Code.TOO_LARGE, f"a transaction acks at most {MAX_RANGES} ranges", kind=Kind.INVALID)
        acks = [self._subscriptions.check_ack(bodies.Ack(*ack), now) for ack in body.acks]
        if body.puts or body.sets:
            self._check_news(acks)
        states_made = self._check_sets(body)
        puts, trims = self._plan_puts(body, self._parse(body, blob), now)
        return _Parts(acks, puts, trims, body.sets, states_made)

    def _plan_puts(
        self, body: bodies.Transact, batches: list[Batch], now: Now
    ) -> tuple[list[PutPlan], list[tuple[Topic, int]]]:
        state = self._state
        puts: list[PutPlan] = []
        sizes: dict[Topic, int] = {}
        new: set[bytes] = set()
        for (name, _, ttl_ms, due), batch in zip(body.puts, batches, strict=True):
            topic = find_unless_deleted(state, name, now)
            read_due(batch, due, now_us=0)
            times_us = read_due(batch, due, now.unix_us)
            self._puts.check_batch(name, topic, batch)
            puts.append(PutPlan(name, topic, batch, ttl_ms, times_us))
            if topic is None:
                new.add(name)
            else:
                sizes[topic] = sizes.get(topic, 0) + len(batch.raw)
        if new:
            state.check_new_topics(len(new))
        states = [(name, value) for name, value, _ in body.sets if value is not None]
        size = sum(len(name) + len(value) + _STATE_BYTES for name, value in states) + len(new) * ROW_BYTES
        size += sum(len(batch.raw) for batch in batches)
        if size and not state.has_room(size):
            raise disk_full("nothing of the transaction was done")
        trims = [(topic, check_room(state, topic, size)) for topic, size in sizes.items()]
        return puts, trims

    def _check_news(self, acks: list[AckPlan]) -> None:
        """Refuse what acks something again and does more: an earlier attempt, unknown by its number, did that."""
        for topic, subscription, _, acked in acks:
            for start, stop in acked:
                for low, high in subscription.acked.within(start, stop):
                    offsets = f"offset {low} is" if high == low + 1 else f"offsets {low} to {high - 1} are"
                    text = (
                        f"{offsets} acked already by {to_text(subscription.name)} on {to_text(topic.name)}, and nothing"
                        " of this transaction was done: most likely an earlier attempt did all of it, and its answer"
                        " was lost; or the message expired or was purged meanwhile. Go on with the next message"
                    )
                    raise Refused(Code.ALREADY_DONE, text)

    def _check_sets(self, body: bodies.Transact) -> int:
        """Return how many states more there will be."""
        limits = self._state.limits
        names = [name for name, _, _ in body.sets]
        if len(set(names)) < len(names):
            raise Refused(Code.MALFORMED, "a transaction sets each state once")
        made = 0
        for name, value, expect in body.sets:
            if not 0 < len(name) <= MAX_NAME_BYTES or len(value or b"") > limits.max_state_bytes:
                text = f"a state's name has 1 to {MAX_NAME_BYTES} bytes, its value up to {limits.max_state_bytes}"
                raise Refused(Code.TOO_LARGE, text, kind=Kind.INVALID)
            row = self.state_of(name)
            version = row.version if row else 0
            made += (value is not None) - (row is not None)
            if expect is not None and expect != version:
                text = f"state {to_text(name)} has version {version}, not {expect}; nothing was done"
                raise Refused(Code.CONFLICT, text)
        if made > 0:
            self._state.check_limit("max_states", self._state_count + made, "named states", "keeps")
        return made

    def _parse(self, body: bodies.Transact, blob: Buffer) -> list[Batch]:
        view, at, found = memoryview(blob), 0, []
        for name, size, _, _ in body.puts:
            check_topic_name(name, NO_PATTERN)
            batch = self._puts.parse(view[at : at + size])
            if batch.publisher != body.publisher:
                text = "a transaction's batches are of the publisher that makes it, for this broker"
                raise Refused(Code.MALFORMED, text)
            found.append(batch)
            at += size
        if at != len(view):
            raise Refused(Code.MALFORMED, "the batches do not fill their frame")
        return found

    def state_of(self, name: bytes) -> StateRow | None:
        """Return a named state as it will be when everything taken so far is on disk."""
        for group in reversed(self._state.groups()):
            if name in group.changes.states:
                return group.changes.states[name]
            if name in group.changes.gone_states:
                return None
        return self._state.store.state(name)

    # Doing it.

    def _do(self, parts: _Parts, now: Now) -> bodies.Transacted:
        for ack in parts.acks:
            self._subscriptions.take_ack(ack, now)
        for topic, below in parts.trims:
            if below:
                trim(self._state, topic, below)
        offsets = tuple(
            self._puts.store(put.topic or self._puts.make_topic(put.name, now), put, now) for put in parts.puts
        )
        versions = tuple(self._set(name, value) for name, value, _ in parts.sets)
        self._state_count += parts.states_made
        return bodies.Transacted(0, "", offsets, versions, now.unix_us)

    def _set(self, name: bytes, value: bytes | None) -> int:
        changes = self._state.open.changes
        if value is None:
            changes.states.pop(name, None)
            changes.gone_states.add(name)
            return 0
        self._last_version += 1  # of all states, so that one that was removed and set again never has an old one
        changes.gone_states.discard(name)
        self._state.free_bytes -= len(name) + len(value) + _STATE_BYTES
        changes.states[name] = StateRow(name, value, self._last_version)
        return self._last_version


def _refusal(transacted: bodies.Transacted) -> Refused:
    """Return how to refuse a transaction whose kept answer says that it was refused for good."""
    return Refused(Code(transacted.code), transacted.text, kind=Kind.REFUSED)
