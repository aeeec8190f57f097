"""Staged puts: batches that are stored and seen by nobody until their (writer, epoch) is committed, all at once."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import Any

from clarion.broker.engine.capacity import add_delayed
from clarion.broker.engine.clock import Now
from clarion.broker.engine.delays import expires_at_us
from clarion.broker.engine.limits import FULL_RETRY_S, MAX_NAME_BYTES, ROW_BYTES
from clarion.broker.engine.puts import Puts
from clarion.broker.engine.state import Group, State
from clarion.broker.engine.topics import ReplyTo, Topic
from clarion.model.names import to_text
from clarion.store.port import StagedBatch, StagedRow, WriterRow
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Buffer, Kind

_BIGGEST = 1 << 62  # of an epoch or a place
_ROWS_IN_MEMORY = 100_000
_STALE_AT_ONCE = 1000

_Key = tuple[bytes, int]  # writer and epoch, or part and place
_Epoch = dict[_Key, StagedRow]


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

    def committed(self, group: Group) -> None:
        """The group is on disk; with the topics it deleted went what was staged for them."""
        if group.changes.gone_topics:
            self.forget_all()

    # Requests.

    def stage(self, reply_to: ReplyTo, body: bodies.Stage, blob: Buffer, now: Now) -> None:
        """Store a batch for later, once for each place; answered when it is on disk."""
        state = self._state
        if not self._is_good(reply_to, body.writer, body.epoch):
            return
        if len(body.part) > MAX_NAME_BYTES or not 0 <= body.place < _BIGGEST:
            text = f"a part has at most {MAX_NAME_BYTES} bytes, and a place is 0 or more"
            state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
            return
        batch = self._puts.read_batch(reply_to, blob, now)
        if batch is None:
            return
        if body.epoch <= self._last_epoch(body.writer):
            state.reply_when_durable(reply_to, Kind.ACK, bodies.Staged(already=True))
            return
        if body.as_of and state.find_topic(body.topic, now.monotonic_s) is None:
            text = (
                f"there is no topic {to_text(body.topic)} here; it may have been deleted, with what was staged for it"
            )
            state.refuse(reply_to, Kind.REFUSED, Code.NO_TOPIC, text)
            return
        topic = self._puts.topic_to_put(reply_to, body.topic, now)
        if topic is None:
            return
        epoch = self._staged(body.writer, body.epoch)
        known = epoch.get((body.part, body.place))
        if known is None:
            if self._was_dropped(reply_to, topic, body) or not self._has_room(reply_to, topic, batch):
                return
            self._keep(epoch, topic, body, batch, now)
        elif (known.topic, known.checksum) != (topic.number, batch.checksum):
            text = f"place {body.place} of part {to_text(body.part)} was staged before with other contents"
            state.refuse(reply_to, Kind.INVALID, Code.CHECKSUM_DIFFERS, text)
            return
        state.reply_when_durable(reply_to, Kind.ACK, bodies.Staged(already=False))

    def commit(self, reply_to: ReplyTo, body: bodies.CommitStaged, now: Now) -> None:
        """Show what was staged in an epoch, and drop what is not wanted of it; once, and answered when on disk."""
        state = self._state
        if not self._is_good(reply_to, body.writer, body.epoch):
            return
        last = self._writer(body.writer)
        if last is not None and body.epoch <= last.epoch:
            messages = last.messages if body.epoch == last.epoch else 0
            done = bodies.StagedCommitted(body.epoch, messages, already=True)
            state.reply_when_durable(reply_to, Kind.ACK, done)
            return
        if last is None and self._writers >= state.limits.max_writers:
            text = f"this broker knows {self._writers} writers of staged batches, as many as it may (max_writers)"
            state.refuse(reply_to, Kind.REFUSED, Code.LIMIT, text)
            return
        rows = self._staged(body.writer, body.epoch)
        if last is None and not rows and not state.has_room_for_row():
            text = "the broker's disk is full but for its reserve; no writer was noted, and nothing was done"
            state.refuse(reply_to, Kind.REFUSED, Code.DISK_FULL, text, retry_after_s=FULL_RETRY_S)
            return
        parts = None if body.parts is None else set(body.parts)
        found = sum(
            row.count
            for (part, _), row in rows.items()
            if (body.drop or parts is None or part in parts)
            and state.find_topic_by_number(row.topic, now.monotonic_s) is not None
        )
        if not body.drop and body.messages not in (-1, found):
            text = (
                f"{found} messages are staged of the {body.messages} to be committed: the others expired, or never came"
            )
            state.refuse(reply_to, Kind.REFUSED, Code.GONE, text)
            return
        messages = 0
        unwanted = []
        for place in sorted(rows):
            wanted = not body.drop and (parts is None or place[0] in parts)
            if wanted and self._show(rows[place], now):
                messages += rows[place].count
            else:
                unwanted.append(rows[place])
        self._drop(unwanted, now)
        self._forget_epoch((body.writer, body.epoch))
        if not body.drop:
            self._note(body.writer, now, epoch=body.epoch, messages=messages)
            state.counters["epochs_committed"] += 1
        elif unwanted:
            self._note(body.writer, now, dropped=state.draw())
        done = bodies.StagedCommitted(body.epoch, found if body.drop else messages, already=False)
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

    # Decisions.

    def _is_good(self, reply_to: ReplyTo, writer: bytes, epoch: int) -> bool:
        good = 0 < len(writer) <= MAX_NAME_BYTES and 0 <= epoch < _BIGGEST
        if not good:
            text = f"a writer's name has 1 to {MAX_NAME_BYTES} bytes, and an epoch is 0 or more"
            self._state.refuse(reply_to, Kind.INVALID, Code.MALFORMED, text)
        return good

    def _has_room(self, reply_to: ReplyTo, topic: Topic, batch: Batch) -> bool:
        if max(len(batch.raw), batch.plain_bytes) > self._puts.max_batch_bytes(topic):
            text = f"a batch for {to_text(topic.name)} has at most {self._puts.max_batch_bytes(topic)} bytes"
            self._state.refuse(reply_to, Kind.REFUSED, Code.TOO_LARGE, text)
            return False
        # What is staged itself does not count: an epoch that is larger than the topic's bound could never be committed.
        return self._puts.has_room(reply_to, topic, len(batch.raw), count_delayed=False)

    def _was_dropped(self, reply_to: ReplyTo, topic: Topic, body: bodies.Stage) -> bool:
        """Refuse a batch that may have been staged before, and dropped since, alone or with its topic."""
        if not body.as_of:
            return False
        row = self._writer(body.writer)
        if max(topic.number, row.dropped if row else 0) <= body.as_of <= self._state.count:
            return False
        what = f"something that {to_text(body.writer)} staged was dropped since, or {to_text(topic.name)} made anew"
        self._state.refuse_stale(reply_to, what)
        return True

    def _last_epoch(self, writer: bytes) -> int:
        row = self._writer(writer)
        return -1 if row is None else row.epoch

    def _writer(self, writer: bytes) -> WriterRow | None:
        """Return the last epoch that a writer committed, on disk or on its way there."""
        in_flight, opened = self._state.groups()
        for group in (opened, in_flight):
            if group is not None and writer in group.changes.writers:
                return group.changes.writers[writer]
        return self._state.store.writer(writer)

    def _staged(self, writer: bytes, epoch: int) -> _Epoch:
        """Return what is staged in an epoch, on disk or on its way there."""
        key = (writer, epoch)
        rows = self._epochs.get(key)
        if rows is None:
            groups = [group for group in self._state.groups() if group]
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

    # Doing.

    def _keep(self, epoch: _Epoch, topic: Topic, body: bodies.Stage, batch: Batch, now: Now) -> None:
        state = self._state
        size = len(batch.raw)
        row = StagedRow(
            state.next_staged, topic.number, body.writer, body.epoch, body.part, body.place,
            batch.count, size, batch.checksum, now.unix_us,
        )  # fmt: skip
        state.next_staged += 1
        state.free_bytes -= size
        state.open.changes.staged.append(StagedBatch(row, batch.raw))
        state.open.bytes += size
        epoch[body.part, body.place] = row
        self._rows += 1
        add_delayed(state, topic, size)
        state.counters["messages_staged"] += batch.count

    def _note(self, writer: bytes, now: Now, **changes: Any) -> None:
        """Note what a writer committed, or that something of it was dropped; that is never forgotten."""
        row = self._writer(writer)
        if row is None:
            self._writers += 1
            self._state.free_bytes -= ROW_BYTES
        row = row or WriterRow(writer, -1, 0, now.unix_us)
        self._state.open.changes.writers[writer] = row._replace(seen_at_us=now.unix_us, **changes)

    def _show(self, row: StagedRow, now: Now) -> bool:
        """Have a staged batch appear on its topic; return whether that is there."""
        state = self._state
        topic = state.find_topic_by_number(row.topic, now.monotonic_s)
        if topic is None:
            return False
        expiry_us = expires_at_us(topic, row.ttl_ms, max(topic.last_commit_us, now.unix_us))
        state.release(topic, row, now, expires_at_us=expiry_us)
        add_delayed(state, topic, -row.size)
        state.read_topics.add(topic)  # with no subscription, or beyond its bounds, it may go at once
        return True

    def _drop(self, rows: list[StagedRow], now: Now) -> None:
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
                add_delayed(self._state, topic, -sum(row.size for row in rows if row.topic == number))
