"""Transactions: acks, puts and named states, all or nothing, once for each number of a publisher."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from clarion.broker.engine.capacity import lacks_room
from clarion.broker.engine.clock import Now
from clarion.broker.engine.gets import Gets
from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES, MAX_RANGES, ROW_BYTES
from clarion.broker.engine.puts import Puts
from clarion.broker.engine.state import Group, State
from clarion.broker.engine.topics import ReplyTo, Subscription, Topic
from clarion.model.ids import RECEIPTS_KEPT
from clarion.model.names import is_pattern, to_text
from clarion.model.options import TRIM
from clarion.store.port import Answer, StateRow
from clarion.wire import bodies
from clarion.wire.batch import BadBatch, Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_GAP_RETRY_S = 0.02
_NOT_FINAL = frozenset({Code.SHOW_HELD, Code.TOPIC_FULL, Code.DISK_FULL, Code.BUSY})  # the number is not used up
_IN_MEMORY = 1000  # publishers whose numbers are at hand
_MAX_PARTS = 1000  # acks, puts and states each: it is decided in one go, and nobody else is heard meanwhile
_STATE_BYTES = 64  # that a state takes on disk beside its name and value, about

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(bodies.Transacted).decode


class _Refused(Exception):
    def __init__(self, kind: int, code: int, text: str) -> None:
        super().__init__(text)
        self.kind, self.code, self.text = kind, code, text


class _Put(NamedTuple):
    topic: bytes  # made, where it is not there, once nothing speaks against the whole
    batch: Batch
    ttl_ms: int
    due: bytes


class _Plan(NamedTuple):
    """A transaction that nothing speaks against."""

    acks: list[tuple[Topic, Subscription, int, bodies.Ranges]]
    puts: list[_Put]
    sets: tuple[tuple[bytes, bytes | None, int | None], ...]


class Transactor:
    """One publisher's transactions: the last number taken, and the answers a retry may ask for."""

    __slots__ = ("answers", "last_number", "pending")

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.answers: deque[Answer] = deque(answers, maxlen=RECEIPTS_KEPT)
        self.last_number = self.answers[-1].number if self.answers else 0
        self.pending: dict[int, list[ReplyTo]] = {}  # by number: taken, not yet committed

    def answer(self, number: int) -> Answer | None:
        return next((answer for answer in self.answers if answer.number == number), None)


class Transactions:
    """Takes transactions in order, once each, and answers retries with the first answer."""

    def __init__(self, state: State, puts: Puts, gets: Gets) -> None:
        self._state = state
        self._puts = puts
        self._gets = gets
        self.forget_all()

    def forget_all(self) -> None:
        """Start from what is in the store."""
        self._transactors: dict[int, Transactor] = {}
        self._last_version = self._state.store.last_version()

    def transact(self, reply_to: ReplyTo, body: bodies.Transact, blob: Buffer, now: Now) -> None:
        """Do all of it, or none; the answer waits for the disk, and is the same when asked again."""
        state = self._state
        if not self._puts.publisher_known(reply_to, body.publisher, now):
            return
        transactor = self._transactor(body.publisher)
        checksum = xxh3_64_intdigest(blob, seed=xxh3_64_intdigest(_encode(body)))
        if body.number <= transactor.last_number:
            self._answer_again(reply_to, transactor, body.number, checksum)
            return
        expected = transactor.last_number + 1
        if body.number > expected:
            text = f"transaction {body.number} overtook transaction {expected}"
            state.refuse(reply_to, Kind.REFUSED, Code.GAP, text, expected=expected, retry_after_s=_GAP_RETRY_S)
            return
        try:
            transacted = self._do(self._plan(body, blob, now), now)
        except _Refused as refused:
            if refused.code in _NOT_FINAL or refused.kind == Kind.INVALID:
                retry_s = FULL_RETRY_S if refused.code in _NOT_FINAL else 0.0
                state.refuse(reply_to, refused.kind, refused.code, refused.text, retry_after_s=retry_s)
                return
            transacted = bodies.Transacted(refused.code, refused.text)
        answer = Answer(body.publisher, body.number, checksum, _encode(transacted))
        transactor.last_number = body.number
        transactor.answers.append(answer)
        transactor.pending[body.number] = [reply_to]
        state.open.transactions.append((body.publisher, body.number, transacted, transactor.pending[body.number]))
        state.open.changes.answers.append(answer)
        state.counters["transactions"] += 1

    def _transactor(self, publisher: int) -> Transactor:
        """Return a publisher's numbers, read again where they were not needed for long."""
        found = self._transactors.pop(publisher, None) or Transactor(self._state.store.answers(publisher))
        self._transactors[publisher] = found
        if len(self._transactors) > _IN_MEMORY:
            coldest = next(iter(self._transactors))
            if not self._transactors[coldest].pending:
                del self._transactors[coldest]
        return found

    def committed(self, group: Group) -> None:
        """The group is on disk: answer those whose transactions are in it."""
        for publisher, number, transacted, reply_tos in group.transactions:
            transactor = self._transactors.get(publisher)
            if transactor is not None:
                transactor.pending.pop(number, None)
            for reply_to in reply_tos:
                self._say(reply_to, transacted)

    def failed(self, group: Group, code: Code, text: str) -> None:
        """Nothing of a group was kept: tell those who wait for it to try again."""
        for _, _, _, reply_tos in group.transactions:
            for reply_to in reply_tos:
                self._state.refuse(reply_to, Kind.REFUSED, code, text, retry_after_s=FULL_RETRY_S)

    def drop_publisher(self, publisher: int) -> None:
        """Forget a publisher's numbers."""
        self._transactors.pop(publisher, None)

    def _answer_again(self, reply_to: ReplyTo, transactor: Transactor, number: int, checksum: int) -> None:
        state = self._state
        answer = transactor.answer(number)
        if answer is None:
            text = f"transaction {number} is older than the last {len(transactor.answers)} answers kept"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        elif answer.checksum != checksum:
            text = f"transaction {number} came before with other contents"
            state.refuse(reply_to, Kind.INVALID, Code.CHECKSUM_DIFFERS, text)
        elif number in transactor.pending:
            transactor.pending[number].append(reply_to)
        else:
            self._say(reply_to, _decode(answer.body))

    def _say(self, reply_to: ReplyTo, transacted: bodies.Transacted) -> None:
        if transacted.code:
            self._state.refuse(reply_to, Kind.REFUSED, transacted.code, transacted.text)
        else:
            self._state.reply(reply_to, Kind.ACK, transacted)

    # Looking before leaping.

    def _plan(self, body: bodies.Transact, blob: Buffer, now: Now) -> _Plan:
        if max(len(body.acks), len(body.puts), len(body.sets)) > _MAX_PARTS:
            raise _Refused(Kind.INVALID, Code.TOO_LARGE, f"a transaction has at most {_MAX_PARTS} parts of each kind")
        if sum(len(ack[3]) for ack in body.acks) > MAX_RANGES:
            raise _Refused(Kind.INVALID, Code.TOO_LARGE, f"a transaction acks at most {MAX_RANGES} ranges")
        acks = [self._plan_ack(*ack, now) for ack in body.acks]
        if body.puts or body.sets:
            self._check_news(acks)
        self._check_sets(body)
        return _Plan(acks, self._plan_puts(body, self._parse(body, blob), now), body.sets)

    def _plan_puts(self, body: bodies.Transact, batches: list[Batch], now: Now) -> list[_Put]:
        state = self._state
        puts: list[_Put] = []
        sizes: dict[Topic, int] = {}
        new: set[bytes] = set()
        for (name, _, ttl_ms, due), batch in zip(body.puts, batches, strict=True):
            topic = state.find_topic(name, now.monotonic_s)
            if topic is not None and topic.deleted:
                raise _Refused(Kind.REFUSED, Code.BUSY, f"{to_text(name)} is just being deleted; try again")
            refusal = self._puts.wrong_put(name, topic, batch, due)
            if refusal is not None:
                raise _Refused(*refusal)
            puts.append(_Put(name, batch, ttl_ms, due))
            if topic is None:
                new.add(name)
            else:
                sizes[topic] = sizes.get(topic, 0) + len(batch.raw)
        if new and state.topic_count + len(new) > state.limits.max_topics:
            raise _Refused(Kind.REFUSED, Code.LIMIT, state.no_more_topics())
        states = [(name, value) for name, value, _ in body.sets if value is not None]
        size = sum(len(name) + len(value) + _STATE_BYTES for name, value in states) + len(new) * ROW_BYTES
        self._check_room(sizes, size + sum(len(batch.raw) for batch in batches))
        return puts

    def _check_room(self, sizes: dict[Topic, int], size: int) -> None:
        if size and not self._state.has_room(size):
            text = "the broker's disk is full but for its reserve; nothing of the transaction was done"
            raise _Refused(Kind.REFUSED, Code.DISK_FULL, text)
        for topic, size in sorted(sizes.items(), key=_trims):  # what a topic lets go of is gone: the others first
            refusal = lacks_room(self._state, topic, size)
            if refusal is not None:
                raise _Refused(Kind.REFUSED, *refusal)

    def _plan_ack(
        self, name: bytes, subscriber: bytes, token: int, acked: bodies.Ranges, now: Now
    ) -> tuple[Topic, Subscription, int, bodies.Ranges]:
        topic = self._state.find_topic(name, now.monotonic_s)
        subscription = topic.subscriptions.get(subscriber) if topic else None
        if topic is None or subscription is None:
            text = f"{to_text(subscriber)} does not subscribe to {to_text(name)}"
            raise _Refused(Kind.REFUSED, Code.NOT_SUBSCRIBED, text)
        refusal = self._gets.wrong_ack(topic, subscription, token, acked, now)
        if refusal is not None:
            raise _Refused(*refusal)
        return topic, subscription, token, acked

    def _check_news(self, acks: list[tuple[Topic, Subscription, int, bodies.Ranges]]) -> None:
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
                    raise _Refused(Kind.REFUSED, Code.ALREADY_DONE, text)

    def _check_sets(self, body: bodies.Transact) -> None:
        limits = self._state.limits
        names = [name for name, _, _ in body.sets]
        if len(set(names)) < len(names):
            raise _Refused(Kind.INVALID, Code.MALFORMED, "a transaction sets each state once")
        made = 0
        for name, value, expect in body.sets:
            if not 0 < len(name) <= MAX_NAME_BYTES or len(value or b"") > limits.max_state_bytes:
                text = f"a state's name has 1 to {MAX_NAME_BYTES} bytes, its value up to {limits.max_state_bytes}"
                raise _Refused(Kind.INVALID, Code.TOO_LARGE, text)
            row = self.state_of(name)
            version = row.version if row else 0
            if row is None and value is not None:
                made += 1
            if expect is not None and expect != version:
                text = f"state {to_text(name)} has version {version}, not {expect}; nothing was done"
                raise _Refused(Kind.REFUSED, Code.CONFLICT, text)
        if made and self._state.store.state_count() + made > limits.max_states:
            text = f"this broker keeps {limits.max_states} named states, as many as it may (max_states)"
            raise _Refused(Kind.REFUSED, Code.LIMIT, text)

    def _parse(self, body: bodies.Transact, blob: Buffer) -> list[Batch]:
        view, at, found = memoryview(blob), 0, []
        for name, size, _, _ in body.puts:
            if not 0 < len(name) <= MAX_NAME_BYTES or is_pattern(name):
                text = f"a topic's name has 1 to {MAX_NAME_BYTES} bytes, and is no pattern"
                raise _Refused(Kind.INVALID, Code.MALFORMED, text)
            try:
                batch = Batch.parse(view[at : at + size])
                batch.check_offsets()
            except BadBatch as error:
                raise _Refused(Kind.INVALID, Code.MALFORMED, str(error)) from error
            if (batch.broker, batch.publisher) != (self._state.identity.broker, body.publisher):
                text = "a transaction's batches are of the publisher that makes it, for this broker"
                raise _Refused(Kind.INVALID, Code.MALFORMED, text)
            found.append(batch)
            at += size
        if at != len(view):
            raise _Refused(Kind.INVALID, Code.MALFORMED, "the batches do not fill their frame")
        return found

    def state_of(self, name: bytes) -> StateRow | None:
        """Return a named state as it will be when everything taken so far is on disk."""
        in_flight, opened = self._state.groups()
        for group in (opened, in_flight):
            if group is not None:
                if name in group.changes.states:
                    return group.changes.states[name]
                if name in group.changes.gone_states:
                    return None
        return self._state.store.state(name)

    # Doing it.

    def _do(self, plan: _Plan, now: Now) -> bodies.Transacted:
        for ack in plan.acks:
            self._gets.take_ack(*ack)
        offsets = tuple(self._put(put, now) for put in plan.puts)
        versions = tuple(self._set(name, value) for name, value, _ in plan.sets)
        return bodies.Transacted(0, "", offsets, versions, now.unix_us)

    def _put(self, put: _Put, now: Now) -> int:
        topic = self._state.make_topic(put.topic, self._state.limits.default_retention, now)
        assert topic is not None
        return self._puts.take_unnumbered(topic, put.batch, put.ttl_ms, put.due, now)

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


def _trims(part: tuple[Topic, int]) -> bool:
    return part[0].settings.at_bound == TRIM
