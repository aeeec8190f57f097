"""What is done on disk: everything that gathers is saved, numbered and removed by one commit after the other.

No disk, thread or clock: the client around it performs one job (`next_job`) at a time and says what came of it.
"""

from __future__ import annotations

import weakref
from typing import Any

from clarion.model.errors import ClarionError, InvalidRequest, LimitReached, OutboxFull
from clarion.model.ids import RECEIPTS_KEPT, next_stamp
from clarion.publisher.lanes import Lane
from clarion.publisher.outbox.doubts import KeptFailures, doubtful_error
from clarion.publisher.outbox.lanes import KeptLane
from clarion.publisher.outbox.outbox_rows import Found, Home, Load, Row
from clarion.publisher.outbox.planning import LanePlan, Plan, apply_lane, plan_lane
from clarion.publisher.outbox.sheaves import DurableBatch
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.sending import Sending
from clarion.session.exchange import Seen
from clarion.wire import bodies
from clarion.wire.frames import Kind

COMMIT_BYTES = 4 * 2**20  # that one commit saves, about, so that none takes long
_RETRY_S = 0.25  # after which a full disk is tried again
Job = Plan | Load


class Saving(Sending):
    """The disk's side of a publisher with an outbox."""

    def __init__(self, *args: Any, found: Found, name: str, memory_bytes: int, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._name = name
        self._memory_bytes = memory_bytes  # of saved batches in memory
        # Rows that are numbered and not removed are those that a crash has us send again: the broker must know them.
        self.window = min(RECEIPTS_KEPT, 2 * self._in_flight + 8)
        self._home = found.home
        if found.home is not None:
            self.last_seen = Seen(found.home.store_uuid, found.home.timeline, found.start, found.sequence)
            self.last_seen.is_of_before = True
        self._here: Home | None = None  # who answers
        self._settled = False  # the numbers on disk belong to who answers
        self._last_stamp = self._found_until = found.last_stamp
        self.kept_bytes = found.kept_bytes
        self.kept_messages = sum(lane.messages for lane in found.lanes)  # without those set aside
        self.aside_messages = found.aside_messages
        self.doubts = KeptFailures(name)
        self.failures = self.doubts
        self.loaded_bytes = 0
        self._live: weakref.WeakValueDictionary[int, DurableBatch] = weakref.WeakValueDictionary()
        self._dirty: dict[KeptLane, None] = {}  # lanes that a commit may have something to do for
        self._hungry: dict[KeptLane, None] = {}  # lanes with rows that are only on disk
        self._job: Job | None = None
        self._load_next = False  # a commit was just made: somebody may read before the next one
        self._loading: KeptLane | None = None
        self._save_again_s = self._commit_again_s = 0.0  # while the disk is full
        self.disk_error: OutboxFull | None = None
        self._gone_lanes: list[int] = []
        self._forgets: set[int] = set()
        self._retiring = False
        self.retired = False
        self._last_lane = 0
        for lane in found.lanes:
            self._take_over(
                KeptLane.found(lane, self._new_tuner(lane.row.topic), found.home.broker if found.home else 0)
            )

    def _take_over(self, lane: KeptLane) -> None:
        self._last_lane = max(self._last_lane, lane.number)
        self.lanes[lane.topic] = lane
        if lane.last is not None:
            self._live[lane.last.stamp] = lane.last
            self._hungry[lane] = None

    def next_job(self, now_s: float) -> Job | None:
        """Give what the disk is to do now, or None; one job at a time. Saving goes before reading, but one read may
        come between two commits."""
        if self._job is not None or self.broken is not None:
            return None
        job: Job | None = self._next_load() if self._load_next else None
        job = job or self._next_plan(now_s) or self._next_load()
        self._load_next = isinstance(job, Plan)
        self._job = job
        return job

    def _next_plan(self, now_s: float) -> Plan | None:
        if self.disk_error is not None and now_s < self._commit_again_s:
            return None
        plan = Plan()
        self._plan_settling(plan)
        identity = self._identity if self._settled else None
        saves = self.disk_error is None or now_s >= self._save_again_s  # what was sent may make room; it needs none
        size = 0
        for lane in list(self._dirty):
            del self._dirty[lane]
            if saves:
                size += self._seal(lane, COMMIT_BYTES - size)
            plan_lane(plan, lane, identity=identity, window=self.window, fits=self._fits, saves=saves)
            if lane.unsaved():
                self._dirty[lane] = None
        plan.changes.gone_lanes = self._gone_lanes
        if plan.changes and (self._settled or plan.changes.home is not None):
            plan.changes.start, plan.changes.sequence = self.last_seen.start, self.last_seen.sequence
        if not plan.changes and not self._forgets:
            return self._plan_retiring(plan)
        plan.forgets = self._forgets
        self._gone_lanes, self._forgets = [], set()
        return plan

    def _plan_settling(self, plan: Plan) -> None:
        """Have the numbers belong to who answers, once none is left that belongs to somebody else."""
        if self._settled or self._here is None:
            return
        numbered = [lane for lane in self._kept_lanes() if lane.has_numbers()]
        if self._home == self._here or all(lane.trouble is not None and lane.is_answered() for lane in numbered):
            for lane in numbered:
                self._dirty[lane] = None
            plan.changes.home = self._here
            plan.changes.max_batch_bytes = self.max_batch_bytes

    def _plan_retiring(self, plan: Plan) -> Plan | None:
        lanes = self._kept_lanes()
        if not self._retiring or self.retired or not all(lane.is_empty() for lane in lanes):
            return None
        plan.retires = True
        plan.changes.gone_lanes = [lane.number for lane in lanes if lane.is_on_disk]
        return plan

    def _seal(self, lane: KeptLane, most_bytes: int) -> int:
        """Pack what gathered in a lane, about so much of it; give how much that is."""
        size = 0
        while size < most_bytes and (sheaf := lane.take_unsealed()) is not None:
            self._last_stamp = next_stamp(self._last_stamp, self._unix_s())
            try:
                packed = sheaf.seal(
                    broker=0, publisher=0, stamp=self._last_stamp, number=0, compressed=self._compressed
                )
            except (TypeError, ValueError, OverflowError) as error:  # something in it is not bytes; the rest goes on
                self._fail(sheaf, InvalidRequest(f"these messages cannot be packed, and were not saved: {error}"))
                self._on_change()
                continue
            size += len(packed)
            lane.sealed.append(sheaf)
            lane.last = sheaf
            self._live[sheaf.stamp] = sheaf
        return size

    def _next_load(self) -> Load | None:
        if not self._settled:
            return None
        for lane in list(self._hungry):
            if not lane.on_disk:
                del self._hungry[lane]
            elif not lane.kept and lane.trouble is None and self._fits(lane, 0, 1):
                del self._hungry[lane]
                self._loading = lane
                return Load(lane.number, lane.loaded_until, self.window, max(1, self._memory_bytes // 4))
        return None

    def done(self, job: Job, outcome: list[Row] | int | ClarionError, now_s: float) -> None:
        """Take in what came of a job: rows, how many messages were set aside, or why it was not done."""
        assert job is self._job
        self._job = None
        if self.broken is not None:
            return
        if isinstance(outcome, OutboxFull):
            self._not_done(job, outcome, now_s)
        elif isinstance(outcome, ClarionError):
            self.broken = outcome
            self.give_up(outcome)
        elif isinstance(job, Load):
            assert isinstance(outcome, list)
            self._loaded(job, outcome)
        else:
            assert isinstance(outcome, int)
            self._committed(job, outcome)
        self._on_change()

    def _not_done(self, job: Job, error: OutboxFull, now_s: float) -> None:
        self.disk_error = error
        self._save_again_s = now_s + _RETRY_S
        if not isinstance(job, Plan) or not job.changes.rows:
            self._commit_again_s = now_s + _RETRY_S
        if self._loading is not None:
            self._hungry[self._loading] = None
        if isinstance(job, Plan):
            self._gone_lanes += [] if job.retires else job.changes.gone_lanes
            self._forgets |= job.forgets
            for part in job.lanes:
                self._dirty[part.lane] = None

    def _loaded(self, load: Load, rows: list[Row]) -> None:
        lane, self._loading = self._loading, None
        assert lane is not None
        assert lane.number == load.lane
        assert rows, "rows that were saved are gone"
        for row in rows:
            sheaf = self._live.get(row.stamp)
            if sheaf is None:
                sheaf = DurableBatch(lane.topic)
                sheaf.is_found = row.stamp <= self._found_until
                self._live[row.stamp] = sheaf
            sheaf.refill(row)
            lane.on_disk -= 1
            lane.unread_found -= sheaf.is_found
            lane.loaded_until = row.stamp
            lane.loaded_bytes += sheaf.size
            self.loaded_bytes += sheaf.size
            if lane.unread_numbered:
                lane.unread_numbered -= 1
                sheaf.uncertain = True  # whoever died may have sent it
                lane.add_number(sheaf)
            else:
                lane.kept.append(sheaf)
        self._look_at(lane)

    def _committed(self, plan: Plan, aside_messages: int) -> None:
        changes = plan.changes
        self._save_again_s = 0.0  # what was removed may have made room
        if self.disk_error is not None and (changes.rows or not self.unsaved()):
            self.disk_error = None
        if changes.home is not None:
            self._home = changes.home
            self._settled = self._here == self._home
            for lane in self._kept_lanes():
                self._look_at(lane)
        if plan.retires:
            self.retired, self._retiring = True, False
            self.wind_down()  # whoever puts something now has it saved, but not under numbers that are let go
            for lane in self._kept_lanes():
                lane.is_on_disk = False
        for part in plan.lanes:
            self._apply(part)
        if aside_messages:
            self.aside_messages += aside_messages
            self.kept_messages -= aside_messages
            self.doubts.doubt(aside_messages)
        for publisher in plan.forgets:
            self._ask(Kind.FORGET, bodies.Forget(publisher), lambda _reply: None)

    def _apply(self, part: LanePlan) -> None:
        lane = part.lane
        for sheaf in part.saved:
            self.buffered_bytes -= sheaf.memory_bytes
        for sheaf in part.gone:
            self.kept_bytes -= 0 if sheaf.aside is not None else sheaf.size
        before = lane.loaded_bytes
        apply_lane(part, self._fits)
        self.loaded_bytes += lane.loaded_bytes - before
        self.kept_bytes += sum(sheaf.size for sheaf in part.saved)
        self.kept_messages += sum(sheaf.count for sheaf in part.saved) - sum(sheaf.count for sheaf in part.gone)
        for sheaf in part.gone:
            if sheaf.refusal is not None:
                self._fail(sheaf, sheaf.refusal)
        if part.trouble is not None:
            self._tell_doubted(part, part.trouble)
        self._look_at(lane)

    def _tell_doubted(self, part: LanePlan, trouble: ClarionError) -> None:
        lane = part.lane
        error = trouble if isinstance(trouble, LimitReached) else doubtful_error(self._name, lane.topic, trouble)
        for sheaf in part.doubted:
            self._unload(lane, sheaf)
            sheaf.end(error=error)
        last_found = lane.last_found
        if last_found is not None and not (last_found.done or last_found.packed or lane.unread_found):
            last_found.end(error=error)  # set aside without having been read; somebody may wait for it

    def _has_numbers(self, lane: KeptLane) -> bool:
        """Whether rows of a lane are numbered on disk, or just now are being."""
        parts = self._job.lanes if isinstance(self._job, Plan) else []
        return lane.has_numbers() or any(part.lane is lane and part.numbered for part in parts)

    def _look_at(self, lane: KeptLane) -> None:
        """Have a lane looked at again by all who may have something to do for it."""
        self._busy[lane] = None
        self._dirty[lane] = None
        if lane.is_unopened():
            self._unopened[lane] = None
        if lane.on_disk:
            self._hungry[lane] = None

    def retire(self) -> None:
        """Have everything removed, names and numbers too, once nothing is left."""
        self._retiring = True

    def wind_down(self) -> None:
        """Number, send and read nothing more; what is not saved still is, and what was sent still goes."""
        self._settled = False
        self._here = None

    @property
    def is_at_rest(self) -> bool:
        """Whether the disk has nothing to do."""
        return self._job is None

    def left_behind(self) -> tuple[int, int]:
        """Give how many messages are on disk and not confirmed, and how many are only in memory."""
        done = sum(sheaf.count for lane in self._kept_lanes() for sheaf in lane.numbered if sheaf.done)
        return self.kept_messages - done, sum(sheaf.count for sheaf in self.unsaved())

    def unconfirmed(self) -> int:
        """Return how many messages were accepted, by this publisher or those before, and not confirmed."""
        return sum(self.left_behind())

    def _make_lane(self, topic: bytes) -> Lane:
        self._last_lane += 1
        return KeptLane(topic, self._new_tuner(topic), self._last_lane)

    def _gathering(self, topic: bytes, messages: int, size: int, ttl_ms: int, *, delayed: bool) -> OutgoingBatch:
        sheaf = super()._gathering(topic, messages, size, ttl_ms, delayed=delayed)
        lane = self.lanes[topic]
        assert isinstance(lane, KeptLane)
        self._dirty[lane] = None
        return sheaf

    def _let_go_of_idle_lanes(self) -> None:
        """Their numbers go with them, first on disk and then at the broker."""
        before = self.identities()
        idle = [lane for lane in self._kept_lanes() if lane.is_empty() and lane.trouble is None]
        self._gone_lanes += [lane.number for lane in idle if lane.is_on_disk]
        for lane in idle:
            del self.lanes[lane.topic]
            self._dirty.pop(lane, None)
        self._lanes_bound = max(self._lanes_bound, 2 * len(self.lanes))
        self._identity = None
        self._forgets |= before - self.identities()

    def _release(self, sheaf: OutgoingBatch) -> None:
        """Let go of a sheaf's place in memory."""
        assert isinstance(sheaf, DurableBatch)
        lane = self.lanes[sheaf.topic]
        assert isinstance(lane, KeptLane)
        if sheaf.saved:
            self._unload(lane, sheaf)
        else:
            self.buffered_bytes -= sheaf.memory_bytes

    def _unload(self, lane: KeptLane, sheaf: DurableBatch) -> None:
        lane.loaded_bytes -= sheaf.size
        self.loaded_bytes -= sheaf.size

    def _fits(self, lane: KeptLane, added: int, size: int) -> bool:
        """Whether so much more of a lane may be in memory: each may have something there, none all of it."""
        most = self._memory_bytes
        if not lane.loaded_bytes + added:
            return self.loaded_bytes < 2 * most
        return self.loaded_bytes + added + size <= most and lane.loaded_bytes + added + size <= most * 3 // 4

    def _kept_lanes(self) -> list[KeptLane]:
        return [lane for lane in self.lanes.values() if isinstance(lane, KeptLane)]

    def unsaved(self) -> list[OutgoingBatch]:
        """Give the sheaves that are not on disk yet."""
        return [sheaf for lane in self._kept_lanes() for sheaf in lane.unsaved()]

    def stats(self) -> dict[str, Any]:
        """Give what can be seen of the sending and of the outbox."""
        lanes = self._kept_lanes()
        return {
            **super().stats(),
            "outbox": self._name,
            "outbox_bytes": self.kept_bytes,
            "outbox_batches": sum(len(lane.numbered) + len(lane.kept) + lane.on_disk for lane in lanes),
            "outbox_aside": self.aside_messages,
            "outbox_error": self.disk_error,
        }
