"""The real engine, checked against a model of delayed and staged batches."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.property.checked_engine import CheckedEngine, Key, code_of, done
from tests.property.delay_model import Delayed, DelayModel, Staged

from clarion.broker.engine import Limits, Reply
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

ALL = 1 << 40
PUTTER = 1
AGAIN_S = 1.0  # after which what could not be released must be tried again
EXPIRE_EVERY_S = 60.0


class CheckedDelays(CheckedEngine[DelayModel]):
    """Requests about what is not seen yet, sent to the engine and followed in the model."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits, DelayModel())
        self.expire_at_s = 0.0  # when the engine looks next for what is staged for too long

    # The disk.

    @property
    def on_disk(self) -> DelayModel:
        return self.closed if self.stored and self.closed else self.durable

    def disk_is_full(self) -> bool:
        return self.engine._state.free_bytes < 1 << 30

    def when_durable(self) -> Callable[[DelayModel], bool]:
        """Return the test that everything so far is on disk."""
        clock = self.current.clock
        return lambda durable: durable.clock >= clock

    def take_group(self) -> bool:
        found = super().take_group()
        if self.closed is not None:
            self.closed.forget_deleted(self.closed.deleting)
        return found

    def on_committed(self) -> None:
        self.current.forget_deleted(self.durable.deleting)
        self.current.deleting -= self.durable.deleting
        self.durable.deleting.clear()

    def on_forgotten(self, *, told: bool) -> None:
        self.current.deleting.clear()
        self.durable.deleting.clear()
        if not told:
            self.expire_at_s = 0.0

    def check_store(self, plain: DelayModel) -> None:
        """What is stored for later is there, once, and what is on the topics is what was to appear."""
        assert {row.topic.name for row in self.store.topics(b"", ALL)} == set(plain.logs)
        for name, log in plain.logs.items():
            row = self.store.topic(name)
            assert row is not None
            stored = []
            for each in self.store.batches(row.number, 0, ALL, ALL):
                batch = Batch.parse(bytes(each.data))
                stored += [(payload, each.expires_at_us) for payload in batch.payloads()]
            gone = len(log) - len(stored)
            assert (row.next_offset, stored) == (len(log), log[gone:])
            assert all(0 < each.expires_at_us <= self.now_us for each in log[:gone]), "kept for ever, and gone"
            waiting = sum(len(each.payloads) - each.released for each in plain.delayed if each.topic == name)
            for epoch in plain.staged.values():
                waiting += sum(len(each.payloads) for each in epoch.values() if each.topic == name)
            assert self.store.staged_totals(row.number)[0] == waiting
            receipts = [receipt.checksum for receipt in self.store.receipts(PUTTER, row.number)]
            assert receipts == [Batch.parse(packed).checksum for packed in plain.taken[name]]
        for key, rows in plain.staged.items():
            assert [(row.part, row.place) for row in self.store.staged(*key)] == sorted(rows)
        found = {name: self.store.writer(name) for name in plain.writers}
        assert {name: row and (row.epoch, row.messages) for name, row in found.items()} == plain.writers

    # Putting.

    def is_busy(self, key: Key, topic: bytes) -> bool:
        """Check that who comes to a topic that is being deleted is asked to come again."""
        if topic in self.current.deleting:
            self.expect_at_once(key, Kind.REFUSED, Code.BUSY)
        return topic in self.current.deleting

    def is_full(self, key: Key) -> bool:
        reply = self.answers.get(key)
        if reply is None or code_of(reply) != Code.DISK_FULL:
            return False
        assert self.disk_is_full()
        self.heard(key)
        return True

    def put(
        self, topic: bytes, payloads: tuple[bytes, ...], packed: bytes, due_us: tuple[int, ...], ttl_ms: int
    ) -> None:
        """Put the next batch of the topic, or one that was put before."""
        plain, number = self.current, Batch.parse(packed).number
        due = struct.pack(f"<{len(due_us)}Q", *due_us)
        key = self.ask(b"putter", Kind.PUT, bodies.Put(topic, ttl_ms, due), packed)
        if self.is_busy(key, topic):
            return
        plain.make(topic)
        born = plain.born[topic]
        taken = plain.taken[topic]
        if number <= len(taken):
            self._expect_put(key, topic, born, number)
        elif number > len(taken) + 1:
            self.expect_at_once(key, Kind.REFUSED, Code.GAP)
        elif not self.is_full(key):
            plain.clock += 1
            taken.append(packed)
            first = -1
            if due_us and due_us[-1] > self.now_us:
                plain.last_delayed += 1
                plain.delayed.append(Delayed(plain.last_delayed, topic, payloads, due_us, 1000 * ttl_ms))
            else:
                first = plain.show(topic, payloads, self.now_us + 1000 * ttl_ms if ttl_ms else 0)
            self._expect_put(key, topic, born, number, first)

    def _expect_put(self, key: Key, topic: bytes, born: int, number: int, first: int | None = None) -> None:
        def check(reply: Reply) -> None:
            assert isinstance(reply.body, bodies.PutDone), f"not put: {reply}"
            assert reply.body.number == number
            assert first is None or reply.body.first_offset == first

        def is_durable(durable: DelayModel) -> bool:
            return durable.born.get(topic) != born or len(durable.taken[topic]) >= number

        reply = self.answers.get(key)
        if reply is not None and is_durable(self.durable):  # an old receipt is given at once
            check(self.answers.pop(key))
        else:
            self.expect(key, check, is_durable)

    def delete(self, topic: bytes) -> None:
        key = self.ask(b"boss", Kind.DELETE, bodies.Delete(topic))
        if topic not in self.current.logs and topic not in self.current.deleting:
            self.expect_at_once(key, Kind.REFUSED, Code.NO_TOPIC)
            return
        if topic in self.current.logs:
            self.current.delete(topic)
        self.expect(key, done, self.when_durable())

    # Staging.

    def stage(
        self,
        topic: bytes,
        writer: bytes,
        epoch: int,
        place: tuple[bytes, int],
        payloads: tuple[bytes, ...],
        packed: bytes,
    ) -> None:
        plain = self.current
        key = self.ask(b"putter", Kind.STAGE, bodies.Stage(topic, writer, epoch, *place), packed)
        if epoch <= plain.writers.get(writer, (-1, 0))[0]:
            self._expect_staged(key, already=True)
            return
        if self.is_busy(key, topic):
            return
        plain.make(topic)
        rows = plain.staged.get((writer, epoch), {})
        known = rows.get(place)
        if known is None:
            if self.is_full(key):
                return
            plain.clock += 1
            plain.staged.setdefault((writer, epoch), {})[place] = Staged(
                topic, plain.born[topic], payloads, packed, self.now_us
            )
        elif (known.topic, known.packed) != (topic, packed):
            self.expect_at_once(key, Kind.INVALID, Code.CHECKSUM_DIFFERS)
            return
        self._expect_staged(key, already=False)

    def _expect_staged(self, key: Key, *, already: bool) -> None:
        def check(reply: Reply) -> None:
            assert reply.body == bodies.Staged(already), f"not staged: {reply}"

        self.expect(key, check, self.when_durable())

    def commit_staged(
        self, writer: bytes, epoch: int, parts: tuple[bytes, ...] | None, drop: bool, messages: int = -1
    ) -> None:
        plain = self.current
        body = bodies.CommitStaged(writer, epoch, parts, drop, messages)
        key = self.ask(b"committer", Kind.COMMIT_STAGED, body)
        last, before = plain.writers.get(writer, (-1, 0))
        if epoch <= last:
            due = bodies.StagedCommitted(epoch, before if epoch == last else 0, already=True)
        else:
            found = plain.count_staged(writer, epoch, None if drop else parts)
            if not drop and messages not in (-1, found):
                self.expect_at_once(key, Kind.REFUSED, Code.GONE)
                return
            if drop:
                plain.drop_staged(writer, epoch)
            else:
                plain.commit_staged(writer, epoch, parts)
            due = bodies.StagedCommitted(epoch, found, already=False)

        def check(reply: Reply) -> None:
            assert reply.body == due, f"{due} was due, not {reply}"

        self.expect(key, check, self.when_durable())

    # The clock.

    def tick(self, seconds: float) -> None:
        self.pass_time(seconds)
        on_disk, full = self.on_disk, self.disk_is_full()
        ends = {name: topic.next_offset for name, topic in self.engine._state.topics.items()}
        self.engine.tick(self.now)
        self.hear()
        grown = {
            name: topic.next_offset - ends.get(name, len(self.current.logs.get(name, ())))
            for name, topic in self.engine._state.topics.items()
        }
        if any(grown.values()):
            self._release(on_disk, full)
        if self.now_s >= self.expire_at_s:
            self.expire_at_s = self.now_s + EXPIRE_EVERY_S
            self._drop_stale(on_disk)

    def _release(self, on_disk: DelayModel, full: bool) -> None:
        """Of what is on disk and due all appears, what is due first before the rest; when is the engine's to choose."""
        due = [each for each in self.current.delayed if each in on_disk.delayed and each.is_due(self.now_us)]
        for each in sorted(due, key=lambda each: (each.due_us[each.released], each.number)):
            whole = each.due_us[-1] <= self.now_us and not each.released
            if whole or not full:
                self.current.release(each, self.now_us)

    def _drop_stale(self, on_disk: DelayModel) -> None:
        before_us = self.now_us - int(self.limits.staged_expiry_s * 1e6)
        for key, rows in list(self.current.staged.items()):
            known = any(row.staged_at_us < before_us for row in on_disk.staged.get(key, {}).values())
            if known and rows and all(row.staged_at_us < before_us for row in rows.values()):
                self.current.drop_staged(*key)

    # Looking.

    def browse(self, topic: bytes) -> None:
        """Whoever looks sees what is on disk and was shown, in order, but for what expired; and nothing of the rest."""
        if topic not in self.current.logs or topic not in self.durable.logs:
            return
        log, position, seen = self.durable.logs[topic], 0, {}
        while position < len(log):
            key = self.ask(b"looker", Kind.READ, bodies.Read(topic, position, 3, ALL))
            reply = self.heard(key)
            assert reply is not None
            if isinstance(reply.body, bodies.Refused):
                assert reply.body.code == Code.GONE
                assert reply.body.gone is not None
                start, stop = reply.body.gone
                assert start == position < stop <= len(log)
                assert all(0 < each.expires_at_us <= self.now_us for each in log[start:stop]), "gone, and not expired"
                position = stop
                continue
            assert isinstance(reply.body, bodies.Delivery), f"nothing to see at {position}: {reply}"
            assert reply.body.end == len(log), "seen before it was on disk, or not yet"
            before = position
            for (first, _), blob in zip(reply.body.batches, reply.blobs, strict=True):
                for place, payload in enumerate(Batch.parse(bytes(blob)).payloads(), first):
                    seen[place] = payload
                    position = max(position, place + 1)
            for start, stop in reply.body.skip:
                assert all(0 < each.expires_at_us <= self.now_us for each in log[start:stop]), (
                    "skipped, and not expired"
                )
                seen |= {place: log[place].payload for place in range(start, stop)}
                position = max(position, stop)
            assert position > before
        for place, each in enumerate(log):
            expired = 0 < each.expires_at_us <= self.now_us
            assert seen.get(place) == each.payload or (expired and place not in seen)
