"""Messages that are put now and appear later: kept beside their topic, and moved onto it when they are due."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict

from clarion.broker.engine.answers import Refused
from clarion.broker.engine.clock import Now
from clarion.broker.engine.state import Delayed, DelaysReleased, State
from clarion.broker.engine.topic_log import UNREAD, count_unread
from clarion.broker.engine.topics import Topic
from clarion.model.errors import StoreUnavailable
from clarion.store.port import StagedRow
from clarion.wire.batch import BadBatch, Batch, slice_batch
from clarion.wire.codes import Code

LONGEST_TTL_MS = 1 << 50
_LATEST_US = 1 << 62
_BATCHES_A_ROUND = 256
_COPIED_BYTES_A_ROUND = 8 * 2**20
_ROUND_EVERY_S = 0.005  # at most: messages that are due one soon after the other share a commit
_AGAIN_S = 1.0  # after a round that could not move anything
_CUT_KEPT = 8  # batches that will be cut again soon
_CUT_KEPT_BYTES = 4 * 2**20  # of each, at most


def read_due(batch: Batch, due: bytes, now_us: int) -> tuple[int, ...]:
    """Return when each message of a batch appears; nothing when all may appear now; refuse what cannot be.

    A compressed batch that will be cut is opened here, so that what is wrong with it is told to who put it.
    """
    if not due:
        return ()
    if len(due) != 8 * batch.count:
        text = f"`due` has 8 bytes for each of {batch.count} messages, not {len(due)} bytes"
        raise Refused(Code.MALFORMED, text)
    times_us = struct.unpack(f"<{batch.count}Q", due)
    if times_us[-1] >= _LATEST_US or times_us != tuple(sorted(times_us)):
        raise Refused(Code.MALFORMED, "the times in `due` are unix microseconds that never go back")
    if times_us[-1] <= now_us:
        return ()
    if times_us[0] != times_us[-1]:
        try:
            batch.open()
        except BadBatch as error:
            raise Refused(Code.MALFORMED, str(error)) from error
    return times_us


def expires_at_us(topic: Topic, ttl_ms: int, now: Now) -> int:
    """Return when a batch expires that is committed now: after its own time to live, or the topic's; 0 is never."""
    if ttl_ms <= 0 and not topic.settings.ttl_s:
        return 0
    ttl_us = (
        1000 * min(ttl_ms, LONGEST_TTL_MS)
        if ttl_ms > 0
        else min(int(topic.settings.ttl_s * 1e6), 1000 * LONGEST_TTL_MS)
    )
    return max(topic.last_commit_us, now.unix_us) + ttl_us if ttl_us else 0


class Delays:
    """Holds delayed batches, and releases their messages in rounds, one to a commit."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.forget_all()

    def forget_all(self) -> None:
        """Start from what is in the store."""
        self._is_moving = False  # a round is on its way to the disk
        self._next_due_us = self._state.store.first_due_us()
        self._not_before_s = 0.0
        self._seen = Now(0.0, 0)
        self._damaged: set[int] = set()
        self._cut_before: OrderedDict[int, Batch] = OrderedDict()  # by number, the latest at the end

    def hold(self, topic: Topic, batch: Batch, times_us: tuple[int, ...], ttl_ms: int, now: Now) -> None:
        """Keep a batch whose messages appear later."""
        state = self._state
        row = StagedRow(
            state.next_staged, topic.number, b"", 0, b"", 0, batch.count, len(batch.raw), batch.checksum, now.unix_us,
            min(max(0, ttl_ms), LONGEST_TTL_MS), max(1, times_us[0]), 0, struct.pack(f"<{batch.count}Q", *times_us),
        )  # fmt: skip
        state.stage(topic, row, batch.raw)
        state.open.on_durable.append(Delayed(row.due_us, topic, (batch.broker << 32 | batch.publisher, batch.stamp)))
        state.counters["messages_delayed"] += batch.count

    def on_delayed(self, effect: Delayed, now: Now) -> None:
        """Take in that what is held back is on disk, and will be due."""
        if self._next_due_us is None or effect.due_us < self._next_due_us:
            self._next_due_us = effect.due_us

    def on_released(self, effect: DelaysReleased, now: Now) -> None:
        """Take in that what a round released is on disk: the next one may begin."""
        self._is_moving = False
        self._next_due_us = self._state.store.first_due_us()

    def next_deadline_s(self) -> float | None:
        """Return when `tick` has something to do."""
        if self._is_moving or self._next_due_us is None:
            return None
        due_s = self._seen.monotonic_s + (self._next_due_us - self._seen.unix_us) / 1e6
        return max(due_s, self._not_before_s)

    def tick(self, now: Now) -> None:
        """Have messages appear that are due, as many as fit one round."""
        self._seen = now
        if self._is_moving or self._next_due_us is None:
            return
        if now.monotonic_s < self._not_before_s or now.unix_us < self._next_due_us:
            return
        rows = self._state.store.due(now.unix_us, _BATCHES_A_ROUND + len(self._damaged))
        numbers = {row.topic for row in rows}
        topics = {number: self._state.find_topic_by_number(number, now.monotonic_s) for number in numbers}
        copied = moved = 0
        for row in rows:
            topic = topics[row.topic]
            if topic is None or row.number in self._damaged:
                continue
            size = self._release(topic, row, now)
            moved += size is not None
            copied += size or 0
            if copied > _COPIED_BYTES_A_ROUND:
                break
        self._not_before_s = now.monotonic_s + (_ROUND_EVERY_S if moved else _AGAIN_S)
        if moved:
            self._is_moving = True
            self._state.open.on_durable.append(DelaysReleased())
        else:
            self._next_due_us = self._state.store.first_due_us()

    def _release(self, topic: Topic, row: StagedRow, now: Now) -> int | None:
        """Move what is due of a batch onto its topic; return the bytes copied for it, None when it has to wait."""
        state = self._state
        times_us = memoryview(row.due).cast("Q")
        stop = bisect_right(times_us, now.unix_us)
        expiry_us = expires_at_us(topic, row.ttl_ms, now)
        if stop == row.count and not row.released:
            state.release(topic, row, now, expires_at_us=expiry_us)
            size = 0
        else:
            part = self._cut(row, stop)
            if part is None or not state.has_room(len(part)):
                return None
            size = len(part)
            state.append(topic, part, stop - row.released, now, expires_at_us=expiry_us)
            if stop == row.count:
                self._cut_before.pop(row.number, None)
                state.open.changes.gone_staged.add(row.number)
            else:
                state.open.changes.staged_progress[row.number] = (stop, times_us[stop])
        if stop == row.count:
            state.add_delayed(topic, -row.size)
        state.read_topics.add(topic)  # with no subscription, or beyond its bounds, it may go at once
        state.counters["messages_released"] += stop - row.released
        return size

    def _cut(self, row: StagedRow, stop: int) -> bytearray | None:
        """Return the messages of a batch that are due and not on the topic yet; None when it cannot be read."""
        try:
            batch = self._cut_before.pop(row.number, None)
            if batch is None:
                staged = self._state.store.staged_batch(row.number)
                batch = None if staged is None else Batch(bytes(staged.data))
            if batch is not None:
                if batch.plain_bytes <= _CUT_KEPT_BYTES:
                    self._cut_before[row.number] = batch
                if len(self._cut_before) > _CUT_KEPT:
                    self._cut_before.popitem(last=False)
                return slice_batch(batch, row.released, stop)
        except UNREAD as error:
            count_unread(self._state, error)
            if isinstance(error, StoreUnavailable):
                return None
        self._damaged.add(row.number)
        return None
