"""The ledger of an outbox: what is put is on disk before it is numbered, numbered on disk before it is sent, and
removed after the broker has it.

Numbers are good with one store of one broker, for as long as that knows the publisher. When they are not any more, what
was surely never taken is numbered anew; what may have been is uncertain, and goes to quarantine.

No disk, thread or clock: whoever has the disk does one job (`next_job`) at a time and says what came of it (`done`).
"""

from __future__ import annotations

import weakref
from typing import Any

from clarion.model.errors import (
    ClarionError,
    InvalidRequest,
    LimitReached,
    OutboxFull,
    OutboxInDoubt,
)
from clarion.model.ids import RECEIPTS_KEPT, next_stamp
from clarion.model.names import to_text
from clarion.publisher.outbox.ledger_topics import (
    Found,
    Home,
    LedgerTopic,
    Load,
    Plan,
    Row,
    TopicPlan,
    apply_topic,
    plan_topic,
)
from clarion.publisher.outgoing_batch import OutgoingBatch, is_unread_reply
from clarion.publisher.publisher_core import PublisherCore
from clarion.publisher.topic_queue import TopicQueue
from clarion.session.exchange import Seen
from clarion.wire import bodies
from clarion.wire.codes import RETRIED, Code

COMMIT_BYTES = 4 * 2**20  # that one commit saves, about, so that none takes long
_RETRY_S = 0.25  # after which a full disk is tried again
_REGISTER_AGAIN_S = 5.0
_SURELY_OUT = RETRIED | {Code.PUBLISHER_EXPIRED, Code.NO_TOPIC}  # refusals of what was not taken
_WAY_OUT = (
    "`clarion outbox show {0}` shows them, `clarion outbox resend {0}` has them sent as new ones,"
    " `clarion outbox drop {0}` lets go of them"
)
Job = Plan | Load
Outcome = list[Row] | int | ClarionError


class Ledger:
    """A source of batches (see `BatchSource`) that are on disk, and survive their process."""

    def __init__(self, found: Found, name: str, memory_bytes: int) -> None:
        self.name = name
        self._found: Found | None = found
        self._memory_bytes = memory_bytes  # of saved batches in memory
        self._home = found.home
        self._here: Home | None = None  # who answers
        self.settled = False  # the numbers on disk belong to who answers
        self._last_stamp = self._found_until = found.last_stamp
        self.stored_bytes = found.stored_bytes
        self.stored_messages = sum(found_topic.messages for found_topic in found.topics)  # without those in quarantine
        self.quarantined_messages = found.quarantined_messages
        self._untold_uncertain = 0  # messages that went to quarantine, and nobody was told of yet
        self.topics: dict[TopicQueue, LedgerTopic] = {}
        self.loaded_bytes = 0
        # Those that nobody asks about are let go of while their row waits on disk.
        self._live: weakref.WeakValueDictionary[int, OutgoingBatch] = weakref.WeakValueDictionary()
        self._dirty: dict[LedgerTopic, None] = {}  # topics that a commit may have something to do for
        self._hungry: dict[LedgerTopic, None] = {}  # topics with rows that are only on disk
        self._job: Job | None = None
        self._load_next = False  # a commit was just made: somebody may read before the next one
        self._loading: LedgerTopic | None = None
        self._save_again_s = self._commit_again_s = 0.0  # while the disk is full
        self.disk_error: OutboxFull | None = None
        self._gone_topics: list[int] = []
        self._forgets: set[int] = set()
        self._old_publishers = {found_topic.row.publisher for found_topic in found.topics if found_topic.row.publisher}
        self._retiring = False
        self.retired = False
        self._last_number = 0

    def open(self, core: PublisherCore, now_s: float) -> None:
        """Have a publisher, made with this ledger, go on with what was found on disk; before it greets."""
        found, self._found = self._found, None
        assert found is not None
        self.core = core
        # Rows that are numbered and not removed are those that a crash has us send again: the broker must know them.
        self.window = min(RECEIPTS_KEPT, 2 * core.in_flight + 8)
        if found.home is not None:
            core.last_seen = Seen(found.home.store_uuid, found.home.timeline, found.start, found.sequence)
            core.last_seen.is_of_before = True
        for found_topic in found.topics:
            queue = core.new_queue(found_topic.row.topic, now_s)
            topic = LedgerTopic.found(found_topic, queue, found.home.broker if found.home else 0)
            self._last_number = max(self._last_number, topic.number)
            self.topics[queue] = topic
            if topic.last is not None:
                self._live[topic.last.stamp] = topic.last
                self._hungry[topic] = None
        core.greet()
        if found.max_batch_bytes:
            core.know_limit(found.max_batch_bytes)

    # What is put.

    def _topic(self, queue: TopicQueue) -> LedgerTopic:
        topic = self.topics.get(queue)
        if topic is None:
            self._last_number += 1
            topic = self.topics[queue] = LedgerTopic(queue, self._last_number)
        return topic

    def on_added(self, queue: TopicQueue, full: OutgoingBatch | None) -> None:
        """Have what is put saved by the next commit."""
        topic = self._topic(queue)
        if full is not None:
            topic.full.append(full)
        self._dirty[topic] = None

    def newest(self, queue: TopicQueue) -> list[OutgoingBatch]:
        """Return batches that, once done, leave none before them undone."""
        return self._topic(queue).newest()

    def unsaved(self) -> list[OutgoingBatch]:
        """Return the batches that are not on disk yet."""
        return [batch for topic in self.topics.values() for batch in topic.unsaved()]

    def left_behind(self) -> tuple[int, int]:
        """Return how many messages are on disk and not confirmed, and how many are only in memory."""
        done = sum(batch.count for topic in self.topics.values() for batch in topic.numbered if batch.done)
        return self.stored_messages - done, sum(batch.count for batch in self.unsaved())

    def unconfirmed(self) -> int:
        """Return how many messages were accepted, by this publisher or those before, and not confirmed."""
        return sum(self.left_behind())

    # What the disk does.

    def next_job(self, now_s: float, unix_s: float) -> Job | None:
        """Return what the disk is to do now, if anything; one job at a time. Saving goes before reading, but one read
        may come between two commits."""
        if self._job is not None or self.core.broken is not None:
            return None
        job: Job | None = self._next_load() if self._load_next else None
        job = job or self._next_plan(now_s, unix_s) or self._next_load()
        self._load_next = isinstance(job, Plan)
        self._job = job
        return job

    def _next_plan(self, now_s: float, unix_s: float) -> Plan | None:
        if self.disk_error is not None and now_s < self._commit_again_s:
            return None
        plan = Plan()
        self._plan_settling(plan)
        identity = self.core.identity if self.settled else None
        saves = self.disk_error is None or now_s >= self._save_again_s  # what was sent may make room; it needs none
        size = 0
        for topic in list(self._dirty):
            del self._dirty[topic]
            if saves:
                size += self._seal(topic, COMMIT_BYTES - size, unix_s)
            plan_topic(plan, topic, identity=identity, window=self.window, fits=self._fits, saves=saves)
            if topic.unsaved():
                self._dirty[topic] = None
        changes = plan.changes
        changes.gone_topics = self._gone_topics
        if changes and (self.settled or changes.home is not None):
            changes.start, changes.sequence = self.core.last_seen.start, self.core.last_seen.sequence
        if not changes and not self._forgets:
            return self._plan_retiring(plan)
        plan.forgets = self._forgets
        self._gone_topics, self._forgets = [], set()
        return plan

    def _plan_settling(self, plan: Plan) -> None:
        """Have the numbers belong to who answers, once none is left that belongs to somebody else."""
        if self.settled or self._here is None:
            return
        numbered = [topic for topic in self.topics.values() if topic.has_numbers()]
        if self._home == self._here or all(topic.trouble is not None and topic.is_answered() for topic in numbered):
            for topic in numbered:
                self._dirty[topic] = None
            plan.changes.home = self._here
            plan.changes.max_batch_bytes = self.core.max_batch_bytes

    def _plan_retiring(self, plan: Plan) -> Plan | None:
        topics = self.topics.values()
        if not self._retiring or self.retired or not all(topic.is_empty() for topic in topics):
            return None
        plan.retires = True
        plan.changes.gone_topics = [topic.number for topic in topics if topic.is_on_disk]
        return plan

    def _seal(self, topic: LedgerTopic, most_bytes: int, unix_s: float) -> int:
        """Pack what gathered for a topic, about so much of it; return how much that is."""
        size = 0
        while size < most_bytes and (batch := topic.take_unsealed()) is not None:
            self._last_stamp = next_stamp(self._last_stamp, unix_s)
            try:
                packed = batch.seal(
                    broker=0, publisher=0, stamp=self._last_stamp, number=0, compressed=self.core.compressed
                )
            except (TypeError, ValueError, OverflowError) as error:  # something in it is not bytes; the rest goes on
                self.core.fail(batch, InvalidRequest(f"these messages cannot be packed, and were not saved: {error}"))
                continue
            size += len(packed)
            topic.sealed.append(batch)
            topic.last = batch
            self._live[batch.stamp] = batch
        return size

    def _next_load(self) -> Load | None:
        if not self.settled:
            return None
        for topic in list(self._hungry):
            if not topic.on_disk:
                del self._hungry[topic]
            elif not topic.unnumbered and topic.trouble is None and self._fits(topic, 0, 1):
                del self._hungry[topic]
                self._loading = topic
                return Load(topic.number, topic.loaded_until, self.window, max(1, self._memory_bytes // 4))
        return None

    def done(self, job: Job, outcome: Outcome, now_s: float) -> None:
        """Take in what came of a job: rows, how many messages went to quarantine, or why it was not done."""
        assert job is self._job
        self._job = None
        if self.core.broken is not None:
            return
        if isinstance(outcome, OutboxFull):
            self._not_done(job, outcome, now_s)
        elif isinstance(outcome, ClarionError):
            self.core.on_broken(outcome, now_s)
        elif isinstance(job, Load):
            assert isinstance(outcome, list)
            self._loaded(job, outcome)
        else:
            assert isinstance(outcome, int)
            self._committed(job, outcome)

    def _not_done(self, job: Job, error: OutboxFull, now_s: float) -> None:
        self.disk_error = error
        self._save_again_s = now_s + _RETRY_S
        if not isinstance(job, Plan) or not job.changes.rows:
            self._commit_again_s = now_s + _RETRY_S
        if self._loading is not None:
            self._hungry[self._loading] = None
        if isinstance(job, Plan):
            self._gone_topics += [] if job.retires else job.changes.gone_topics
            self._forgets |= job.forgets
            for part in job.topics:
                self._dirty[part.topic] = None

    def _loaded(self, load: Load, rows: list[Row]) -> None:
        topic, self._loading = self._loading, None
        assert topic is not None
        assert topic.number == load.topic
        assert rows, "rows that were saved are gone"
        for row in rows:
            batch = self._live.get(row.stamp)
            if batch is None:
                batch = OutgoingBatch(topic.queue.topic)
                batch.is_found = row.stamp <= self._found_until
                self._live[row.stamp] = batch
            batch.fill(bytearray(row.packed), row.due, count=row.messages, ttl_ms=row.ttl_ms, stamp=row.stamp)
            batch.saved = True
            topic.on_disk -= 1
            topic.unread_found -= batch.is_found
            topic.loaded_until = row.stamp
            topic.loaded_bytes += batch.size
            self.loaded_bytes += batch.size
            if topic.unread_numbered:
                topic.unread_numbered -= 1
                batch.uncertain = True  # whoever died may have sent it
                topic.add_number(batch)
            else:
                topic.unnumbered.append(batch)
        self._look_at(topic)

    def _committed(self, plan: Plan, quarantined_messages: int) -> None:
        changes = plan.changes
        self._save_again_s = 0.0  # what was removed may have made room
        if self.disk_error is not None and (changes.rows or not self.unsaved()):
            self.disk_error = None
        if changes.home is not None:
            self._home = changes.home
            self.settled = self._here == self._home
            self._look_at_all()
        if plan.retires:
            self.retired, self._retiring = True, False
            self.wind_down()  # whoever puts something now has it saved, but not under numbers that are let go
            for topic in self.topics.values():
                topic.is_on_disk = False
        for part in plan.topics:
            self._apply(part)
        if quarantined_messages:
            self.quarantined_messages += quarantined_messages
            self.stored_messages -= quarantined_messages
            self._note_uncertain(quarantined_messages)
        self.core.forget(plan.forgets)

    def _apply(self, part: TopicPlan) -> None:
        topic = part.topic
        for batch in part.saved:
            self.core.buffered_bytes -= batch.memory_bytes
        for batch in part.gone:
            self.stored_bytes -= 0 if batch.quarantine is not None else batch.size
        before = topic.loaded_bytes
        apply_topic(part, self._fits)
        self.loaded_bytes += topic.loaded_bytes - before
        self.stored_bytes += sum(batch.size for batch in part.saved)
        self.stored_messages += sum(batch.count for batch in part.saved) - sum(batch.count for batch in part.gone)
        for batch in part.gone:
            refusal = batch.refusal
            if refusal is not None:
                self.core.fail(batch, refusal)
        if part.trouble is not None:
            self._tell_uncertain(part, part.trouble)
        self._look_at(topic)

    def _tell_uncertain(self, part: TopicPlan, trouble: ClarionError) -> None:
        topic = part.topic
        error = trouble
        if not isinstance(trouble, LimitReached):
            error = OutboxInDoubt(
                f"whether the broker has this message on {to_text(topic.queue.topic)} cannot be told any more"
                f" ({trouble}); it is kept aside in {self.name} and not sent; {_WAY_OUT.format(self.name)}"
            )
        for batch in part.uncertain:
            self._unload(topic, batch)
            self.core.end(batch, error=error)
        last_found = topic.last_found
        if last_found is not None and not (last_found.done or last_found.packed or topic.unread_found):
            self.core.end(last_found, error=error)  # in quarantine without having been read; somebody may wait for it

    def _has_numbers(self, topic: LedgerTopic) -> bool:
        """Whether rows of a topic are numbered on disk, or just now are being."""
        parts = self._job.topics if isinstance(self._job, Plan) else []
        return topic.has_numbers() or any(part.topic is topic and part.numbered for part in parts)

    def _look_at(self, topic: LedgerTopic) -> None:
        """Have a topic looked at again by all who may have something to do for it."""
        self._dirty[topic] = None
        if topic.on_disk:
            self._hungry[topic] = None
        self.core.look_at(topic.queue)

    def _look_at_all(self) -> None:
        for topic in self.topics.values():
            self._look_at(topic)

    def _unload(self, topic: LedgerTopic, batch: OutgoingBatch) -> None:
        topic.loaded_bytes -= batch.size
        self.loaded_bytes -= batch.size

    def _fits(self, topic: LedgerTopic, added: int, size: int) -> bool:
        """Whether so much more of a topic may be in memory: each may have something there, none all of it."""
        most = self._memory_bytes
        if not topic.loaded_bytes + added:
            return self.loaded_bytes < 2 * most
        return self.loaded_bytes + added + size <= most and topic.loaded_bytes + added + size <= most * 3 // 4

    # What leaves.

    def needs_identity(self) -> bool:
        """Whether to register though nothing is to be sent: what is saved can be numbered then."""
        return self.settled and self.core.identity is None

    def is_unopened(self, queue: TopicQueue) -> bool:
        """Whether something waits for the number of its topic."""
        return self._topic(queue).is_unopened()

    def is_idle(self, queue: TopicQueue) -> bool:
        """Whether a topic may be let go of."""
        topic = self._topic(queue)
        return topic.is_empty() and topic.trouble is None

    def seal_next(self, queue: TopicQueue, unix_s: float) -> OutgoingBatch:
        """Take out the next batch, which has its number since it was saved."""
        batch = queue.take_next()
        queue.next_number = batch.number
        return batch

    def due_s(self, now_s: float) -> float | None:
        """Return when a full disk is tried again."""
        again_s = max(self._save_again_s, self._commit_again_s)
        return again_s if self.disk_error is not None and again_s > now_s else None

    # What the broker says.

    def on_skew(self, stamp: int, correction: int) -> None:
        """What is stamped before it is on disk may wait for long: the broker's clock is not that of its stamps."""

    def on_welcome(self, welcome: bodies.Welcome) -> None:
        """Numbers belong to one store. Before another one is sent anything, what it may not have goes to quarantine."""
        self._here = Home(welcome.broker, welcome.store_uuid, welcome.timeline)
        if self._home == self._here:
            self._forgets |= self._old_publishers - self.core.identities()
        else:
            self.core.identity = None
            for topic in self.topics.values():
                if self._has_numbers(topic):
                    self._trouble(topic, InvalidRequest("this is another broker, or another store of it"))
                else:
                    topic.start_anew()
        self._old_publishers = set()

    def on_register_answered(self) -> None:
        """What is saved can be numbered now, if there is an identity, and it is still the same broker that answers."""
        identity = self.core.identity
        if identity is not None and self._home is not None and identity.broker != self._home.broker:
            self.core.identity = None  # somebody else answers than a moment ago
            self._greet_again()
        self._look_at_all()

    def on_answered(self, queue: TopicQueue) -> None:
        """What is saved can be numbered now, or removed."""
        self._dirty[self._topic(queue)] = None

    def on_open_refused(self, queue: TopicQueue, error: ClarionError) -> None:
        """Nothing can be put on a topic: have what waits for it removed."""
        topic = self._topic(queue)
        topic.refuse(error)
        for batch in topic.numbered:
            batch.quarantine = self._why_quarantine(batch, error)
        self._look_at(topic)

    def on_misfit(self, queue: TopicQueue, batch: OutgoingBatch, code: int, error: ClarionError) -> None:
        """The numbers of a topic do not fit the broker's any more. Whether the batch was taken cannot be told, unless
        the refusal says so."""
        batch.refused = True
        batch.uncertain |= code not in _SURELY_OUT
        if code != Code.NO_TOPIC:  # in the topic that has the name next, its numbers begin with 1
            self._leave_identity(queue.identity)
        self._trouble(self._topic(queue), error)

    def _leave_identity(self, identity: bodies.Registered | None) -> None:
        """Number nothing more as this publisher, which the broker does not know any more, or not as we do."""
        if self.core.identity == identity:
            self.core.identity = None
        for topic in self.topics.values():
            if topic.queue.identity == identity and not self._has_numbers(topic):
                topic.start_anew()

    def _trouble(self, topic: LedgerTopic, error: ClarionError) -> None:
        """The topic's numbers do not fit the broker's any more: nothing is sent until it is numbered anew."""
        topic.trouble = topic.trouble or error
        topic.queue.astray = True
        self._dirty[topic] = None
        self._greet_again()

    def _greet_again(self) -> None:
        """Ask who is there before anything more is numbered or sent."""
        if self.settled:
            self.settled = False
            self._here = None
            self.core.greet_again()

    def on_lost(self, error: ClarionError) -> None:
        """Ask who is there: what was numbered for another store, or another timeline, is uncertain then."""
        self._greet_again()

    # What ends.

    def give_up(self, error: ClarionError, now_s: float) -> None:
        """Tell everybody who waits; what is saved stays in the outbox."""
        core = self.core
        if core.broken is None:  # it cannot register now: that may change
            core.refusal = error
            for queue in core.queues.values():
                queue.refusal = error
            core.register_at_s = now_s + _REGISTER_AGAIN_S
            return
        kept = type(error)(
            f"{error} (what was saved is kept in {self.name}: opening it again sends it, where it can be read)"
        )
        for topic in self.topics.values():
            for batch in topic.take_unsaved():
                core.buffered_bytes -= batch.memory_bytes
                core.end_failed(batch, error)
        for batch in list(self._live.values()):
            if not batch.done:
                core.end_failed(batch, kept)

    def let_go(self, queues: list[TopicQueue], publishers: set[int]) -> None:
        """The numbers of topics go with them, first on disk and then at the broker."""
        for queue in queues:
            topic = self.topics.pop(queue, None)
            if topic is not None:
                self._gone_topics += [topic.number] if topic.is_on_disk else []
                self._dirty.pop(topic, None)
        self._forgets |= publishers

    def on_ended(self, batch: OutgoingBatch, error: ClarionError | None = None) -> ClarionError | None:
        """Let go of a batch's place in memory; return the error as those who wait for the batch are told it. What is
        refused for good may be kept in quarantine."""
        if batch.saved:
            self._unload(self.topics[self.core.queues[batch.topic]], batch)
        else:
            self.core.buffered_bytes -= batch.memory_bytes
        if error is None:
            return None
        batch.quarantine = self._why_quarantine(batch, error)
        if batch.quarantine is None:
            return error
        self.quarantined_messages += batch.count
        return type(error)(f"{error}; it is kept aside in {self.name}")

    def _why_quarantine(self, batch: OutgoingBatch, error: ClarionError) -> str | None:
        """Return why a batch that is refused for good is kept: where nobody has a receipt that could say so."""
        return str(error) if batch.is_found and not is_unread_reply(batch, error) else None

    def _note_uncertain(self, messages: int) -> None:
        """Have the next who asks told of messages that went to quarantine."""
        failures = self.core.failures
        count = self._untold_uncertain = messages + (0 if failures.first is None else self._untold_uncertain)
        failures.first = OutboxInDoubt(
            f"{count} message{'s' if count > 1 else ''} that the broker may have, or may not,"
            f" {'are' if count > 1 else 'is'} kept aside in"
            f" {self.name} and not sent; {_WAY_OUT.format(self.name)}"
        )

    def retire(self) -> None:
        """Have everything removed, names and numbers too, once nothing is left."""
        self._retiring = True

    def wind_down(self) -> None:
        """Number, send and read nothing more; what is not saved still is, and what was sent still goes."""
        self.settled = False
        self._here = None

    @property
    def is_at_rest(self) -> bool:
        """Whether the disk has nothing to do."""
        return self._job is None

    def stats(self) -> dict[str, Any]:
        """Return what can be seen of the outbox."""
        topics = self.topics.values()
        return {
            "outbox": self.name,
            "outbox_bytes": self.stored_bytes,
            "outbox_batches": sum(len(topic.numbered) + len(topic.unnumbered) + topic.on_disk for topic in topics),
            "outbox_aside": self.quarantined_messages,
            "outbox_error": self.disk_error,
        }
