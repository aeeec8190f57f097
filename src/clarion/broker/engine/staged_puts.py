"""Staged puts: batches that are stored and seen by nobody until their (writer, epoch) is committed, all at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from clarion.broker.engine.answers import Refused, ReplyTo, disk_full
from clarion.broker.engine.capacity import NOT_TAKEN, check_room
from clarion.broker.engine.clock import Now
from clarion.broker.engine.delays import expires_at_us
from clarion.broker.engine.limits import MAX_NAME_BYTES, ROW_BYTES
from clarion.broker.engine.puts import PutPlan, Puts, too_large
from clarion.broker.engine.state import State
from clarion.broker.engine.topic_log import trim
from clarion.broker.engine.topics import Topic
from clarion.model.names import to_text
from clarion.store.port import PublisherRow, StagedRow, WriterRow
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_BIGGEST = 1 << 62  # of an epoch or a place
_ROWS_IN_MEMORY = 100_000
_STALE_AT_ONCE = 1000

_Key = tuple[bytes, int]  # writer and epoch, or part and place
_Epoch = dict[_Key, StagedRow]


class _Stage(NamedTuple):
    body: bodies.Stage
    seen: PublisherRow | None
    put: PutPlan | None  # None: there is nothing to do
    already: bool = False


class _Commit(NamedTuple):
    body: bodies.CommitStaged
    messages: int  # that are shown or dropped; of an epoch that is committed, those that were
    wanted: Sequence[StagedRow] = ()  # as far as their topics are there
    others: Sequence[StagedRow] = ()
    already: bool = False


class StagedPuts:
    """Keeps staged batches, once each, and shows or drops them by epoch."""

    def __init__(self, state: State, puts: Puts) -> None:
        self._state = state
        self._puts = puts
        self.forget_all()

    def forget_all(self) -> None:
        """Start from what is in the store."""
        self._epochs: OrderedDict[_Key, _Epoch] = OrderedDict()  # what is staged, of those asked for last
        self._rows = 0  # in memory
        self._writers = self._state.store.writer_count()

    # STAGE.

    def check_stage(self, body: bodies.Stage, blob: Buffer, now: Now) -> _Stage:
        """Refuse a batch that cannot be staged; one whose epoch is committed, or that is staged, need not be."""
        _check_names(body.writer, body.epoch)
        if len(body.part) > MAX_NAME_BYTES or not 0 <= body.place < _BIGGEST:
            text = f"a part has at most {MAX_NAME_BYTES} bytes, and a place is 0 or more"
            raise Refused(Code.MALFORMED, text)
        batch = self._puts.parse(blob)
        return self._puts.plan_for(batch.publisher, self._plan_stage, body, batch, now)

    def _plan_stage(self, body: bodies.Stage, batch: Batch, seen: PublisherRow | None, now: Now) -> _Stage:
        state = self._state
        last = self._writer(body.writer)
        if last is not None and body.epoch <= last.epoch:
            return _Stage(body, seen, None, already=True)
        if body.as_of and state.find_topic(body.topic, now.monotonic_s) is None:
            text = (
                f"there is no topic {to_text(body.topic)} here; it may have been deleted, with what was staged for it"
            )
            raise Refused(Code.NO_TOPIC, text)
        topic = self._puts.find_topic(body.topic, now)
        known = self._staged(body.writer, body.epoch).get((body.part, body.place))
        if known is not None:
            if topic is None or (known.topic, known.checksum) != (topic.number, batch.checksum):
                text = f"place {body.place} of part {to_text(body.part)} was staged before with other contents"
                raise Refused(Code.CHECKSUM_DIFFERS, text)
            return _Stage(body, seen, None)
        if topic is None:
            self._puts.check_new_topic()
        elif body.as_of and not max(topic.number, last.dropped if last else 0) <= body.as_of <= state.count:
            what = f"something that {to_text(body.writer)} staged was dropped since, or {to_text(topic.name)} made anew"
            raise state.stale(what)  # it may have been staged before, and dropped alone or with its topic
        most = self._puts.max_batch_bytes(topic)
        if max(len(batch.raw), batch.plain_bytes) > most:
            raise Refused(Code.TOO_LARGE, too_large(body.topic, most))
        if topic is None:
            if not state.has_room(len(batch.raw) + ROW_BYTES):
                raise disk_full(NOT_TAKEN)
            return _Stage(body, seen, PutPlan(body.topic, None, batch, 0, ()))
        # What is staged itself does not count: an epoch that is larger than the topic's bound could never be committed.
        below = check_room(state, topic, len(batch.raw), count_delayed=False)
        return _Stage(body, seen, PutPlan(body.topic, topic, batch, 0, (), below))

    def stage(self, reply_to: ReplyTo, plan: _Stage, now: Now) -> None:
        """Store a batch for later, once for each place; answered when it is on disk."""
        state, (body, seen, put, already) = self._state, plan
        state.note_publisher(seen)
        if put is not None:
            topic = put.topic or self._puts.make_topic(put.name, now)
            if put.trim_below:
                trim(state, topic, put.trim_below)
            self._keep(topic, body, put.batch, now)
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Staged(already=already))

    # COMMIT_STAGED.

    def check_commit(self, body: bodies.CommitStaged, now: Now) -> _Commit:
        """Refuse to commit an epoch of which something is missing, or for which there is no room."""
        state = self._state
        _check_names(body.writer, body.epoch)
        last = self._writer(body.writer)
        if last is not None and body.epoch <= last.epoch:
            messages = last.messages if body.epoch == last.epoch else 0
            return _Commit(body, messages, already=True)
        rows = self._staged(body.writer, body.epoch)
        if last is None:
            state.check_limit("max_writers", self._writers + 1, "writers of staged batches", "knows")
            if not rows:
                state.check_row("no writer was noted, and nothing was done")
        parts = None if body.drop or body.parts is None else set(body.parts)
        wanted: list[StagedRow] = []
        others: list[StagedRow] = []
        for (part, _), row in sorted(rows.items()):
            is_there = state.find_topic_by_number(row.topic, now.monotonic_s) is not None
            (wanted if is_there and (parts is None or part in parts) else others).append(row)
        found = sum(row.count for row in wanted)
        if not body.drop and body.messages not in (-1, found):
            text = (
                f"{found} messages are staged of the {body.messages} to be committed: the others expired, or never came"
            )
            raise Refused(Code.GONE, text)
        return _Commit(body, found, wanted, others)

    def commit(self, reply_to: ReplyTo, plan: _Commit, now: Now) -> None:
        """Show what was staged in an epoch, and drop what is not wanted of it; once, and answered when on disk."""
        state, (body, messages, wanted, others, already) = self._state, plan
        if not already:
            if body.drop:
                wanted, others = (), [*wanted, *others]
            for row in wanted:
                self._show(row, now)
            self._drop(others, now)
            self._forget_epoch((body.writer, body.epoch))
            if not body.drop:
                self._note(body.writer, now, epoch=body.epoch, messages=messages)
                state.counters["epochs_committed"] += 1
            elif others:
                self._note(body.writer, now, dropped=state.draw())
        done = bodies.StagedCommitted(body.epoch, messages, already=already)
        state.reply_when_durable(reply_to, Kind.ACK, done)

    # On the clock.

    def expire(self, now: Now) -> None:
        """Drop epochs that nobody staged more of, or committed, for so long that their writers are taken for gone."""
        state = self._state
        before_us = now.silent_before_us(state.limits.staged_expiry_s)
        stale = state.store.stale_staged(before_us, _STALE_AT_ONCE)
        for writer, number in {(row.writer, row.epoch) for row in stale}:
            rows = self._staged(writer, number)
            if all(row.staged_at_us < before_us for row in rows.values()):
                self._drop(list(rows.values()), now)
                self._note(writer, now, dropped=state.draw())
                state.counters["staged_expired"] += sum(row.count for row in rows.values())
                self._forget_epoch((writer, number))

    # What there is.

    def _writer(self, writer: bytes) -> WriterRow | None:
        """Return the last epoch that a writer committed, on disk or on its way there."""
        for group in reversed(self._state.groups()):
            if writer in group.changes.writers:
                return group.changes.writers[writer]
        return self._state.store.writer(writer)

    def _staged(self, writer: bytes, epoch: int) -> _Epoch:
        """Return what is staged in an epoch, on disk or on its way there."""
        key = (writer, epoch)
        rows = self._epochs.get(key)
        if rows is None:
            groups = self._state.groups()
            coming = (row for group in groups for row, _ in group.changes.staged)
            leaving = {number for group in groups for number in group.changes.gone_staged}
            leaving |= {release.staged for group in groups for release in group.changes.releases}
            rows = {
                (row.part, row.place): row
                for row in chain(self._state.store.staged(writer, epoch), coming)
                if (row.writer, row.epoch) == key and row.number not in leaving
            }
            self._epochs[key] = rows
            self._rows += len(rows)
        self._epochs.move_to_end(key)
        while len(self._epochs) > 1 and self._rows + len(self._epochs) > _ROWS_IN_MEMORY:
            self._forget_epoch(next(iter(self._epochs)))
        return rows

    def _forget_epoch(self, key: _Key) -> None:
        self._rows -= len(self._epochs.pop(key))

    # What changes it.

    def _keep(self, topic: Topic, body: bodies.Stage, batch: Batch, now: Now) -> None:
        state = self._state
        row = StagedRow(
            state.next_staged, topic.number, body.writer, body.epoch, body.part, body.place,
            batch.count, len(batch.raw), batch.checksum, now.unix_us,
        )  # fmt: skip
        state.stage(topic, row, batch.raw)
        self._staged(body.writer, body.epoch)[body.part, body.place] = row
        self._rows += 1
        state.counters["messages_staged"] += batch.count

    def _note(self, writer: bytes, now: Now, **changes: Any) -> None:
        """Note what a writer committed, or that something of it was dropped; that is never forgotten."""
        row = self._writer(writer)
        if row is None:
            self._writers += 1
            self._state.free_bytes -= ROW_BYTES
        row = row or WriterRow(writer, -1, 0, now.unix_us)
        self._state.open.changes.writers[writer] = row._replace(seen_at_us=now.unix_us, **changes)

    def _show(self, row: StagedRow, now: Now) -> None:
        """Have a staged batch appear on its topic."""
        state = self._state
        topic = state.find_topic_by_number(row.topic, now.monotonic_s)
        assert topic is not None, "it was there a moment ago"
        expiry_us = expires_at_us(topic, row.ttl_ms, now)
        state.release(topic, row, now, expires_at_us=expiry_us)
        state.add_delayed(topic, -row.size)
        state.read_topics.add(topic)  # with no subscription, or beyond its bounds, it may go at once

    def _drop(self, rows: Sequence[StagedRow], now: Now) -> None:
        """Forget staged batches, some of which were perhaps never written."""
        if not rows:
            return
        changes = self._state.open.changes
        numbers = {row.number for row in rows}
        written = numbers - {staged.row.number for staged in changes.staged}
        if len(written) < len(numbers):
            changes.staged[:] = [staged for staged in changes.staged if staged.row.number not in numbers]
        changes.gone_staged |= written
        for number in {row.topic for row in rows}:
            topic = self._state.find_topic_by_number(number, now.monotonic_s)
            if topic is not None:
                self._state.add_delayed(topic, -sum(row.size for row in rows if row.topic == number))


def _check_names(writer: bytes, epoch: int) -> None:
    if not 0 < len(writer) <= MAX_NAME_BYTES or not 0 <= epoch < _BIGGEST:
        text = f"a writer's name has 1 to {MAX_NAME_BYTES} bytes, and an epoch is 0 or more"
        raise Refused(Code.MALFORMED, text)
