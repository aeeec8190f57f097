"""Where a publisher has its batches from, and where those go that are answered: memory, without an outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from clarion.model.errors import ClarionError, InvalidRequest, NoTopic, TooLarge
from clarion.model.names import to_text
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.topic_queue import TopicQueue
from clarion.tracking.skew import SkewAdjustment
from clarion.wire import bodies
from clarion.wire.batch_builder import HEADER_BYTES
from clarion.wire.codes import Code

if TYPE_CHECKING:
    from clarion.publisher.publisher_core import PublisherCore


class BatchSource(Protocol):
    """Where batches come from, and where those go that are answered: memory, or the ledger of an outbox. `core` is set
    before anything else is asked."""

    core: PublisherCore
    settled: bool  # whether it is known who answers, so that topics may be opened and batches may leave

    def on_added(self, queue: TopicQueue, full: OutgoingBatch | None) -> None: ...
    def newest(self, queue: TopicQueue) -> list[OutgoingBatch]: ...
    def unconfirmed(self) -> int: ...
    def is_idle(self, queue: TopicQueue) -> bool: ...
    def let_go(self, queues: list[TopicQueue], publishers: set[int]) -> None: ...
    def is_unopened(self, queue: TopicQueue) -> bool: ...
    def needs_identity(self) -> bool: ...
    def seal_next(self, queue: TopicQueue, unix_s: float) -> OutgoingBatch: ...
    def on_welcome(self, welcome: bodies.Welcome) -> None: ...
    def on_skew(self, stamp: int, correction: int) -> None: ...
    def on_register_answered(self) -> None: ...
    def on_answered(self, queue: TopicQueue) -> None: ...
    def on_open_refused(self, queue: TopicQueue, error: ClarionError) -> None: ...
    def on_misfit(self, queue: TopicQueue, batch: OutgoingBatch, code: int, error: ClarionError) -> None: ...
    def on_lost(self, error: ClarionError) -> None: ...
    def on_ended(self, batch: OutgoingBatch, error: ClarionError | None = None) -> ClarionError | None: ...
    def give_up(self, error: ClarionError, now_s: float) -> None: ...


class MemorySource:
    """A source of batches that wait in memory, are sealed when they leave, and are lost with their process."""

    settled = True

    def __init__(self) -> None:
        self.core: PublisherCore
        self._clock = SkewAdjustment()
        self._stamped_unix_s = 0.0  # when that was

    def on_added(self, queue: TopicQueue, full: OutgoingBatch | None) -> None:
        """Something was put; have what gathered before it leave, if that is full."""
        if full is not None:
            queue.make_ready(full)

    def newest(self, queue: TopicQueue) -> list[OutgoingBatch]:
        """Return batches that, once done, leave none before them undone."""
        if queue.gathering:
            return queue.gathering.batches
        if queue.ready:
            return [queue.ready[-1]]
        return [next(reversed(queue.flying.values()))] if queue.flying else []

    def unconfirmed(self) -> int:
        """Return how many messages were accepted, and neither confirmed nor refused."""
        return sum(queue.pending() + queue.flying_messages for queue in self.core.queues.values())

    def is_idle(self, queue: TopicQueue) -> bool:
        """Whether a topic may be let go of."""
        return queue.idle()

    def let_go(self, queues: list[TopicQueue], publishers: set[int]) -> None:
        """Topics were let go of, with their numbers: have the broker forget publishers that none uses any more."""
        self.core.forget(publishers)

    def is_unopened(self, queue: TopicQueue) -> bool:
        """Whether something waits for the number of its topic."""
        return queue.topic_number is None and not queue.idle()

    def needs_identity(self) -> bool:
        """Nothing is numbered before it leaves."""
        return False

    def seal_next(self, queue: TopicQueue, unix_s: float) -> OutgoingBatch:
        """Take out the next batch, with its number; one that cannot be packed is refused, and done."""
        core, identity = self.core, queue.identity
        if identity is None:
            identity = queue.identity = core.identity
        assert identity is not None
        batch = queue.take_next()
        if unix_s == self._stamped_unix_s:
            self._clock.last += 1  # ahead of the time already
        else:
            self._clock.next_stamp(unix_s)
            self._stamped_unix_s = unix_s
        stamp = self._clock.last
        try:
            batch.seal(
                broker=identity.broker,
                publisher=identity.publisher,
                stamp=stamp,
                number=queue.next_number,
                compressed=core.compressed,
            )
            core.buffered_bytes += batch.count_sent()
        except (TypeError, ValueError, OverflowError) as error:  # something in it is not bytes; the rest goes on
            self.core.fail(batch, InvalidRequest(f"these messages cannot be packed, and were not sent: {error}"))
        return batch

    def on_welcome(self, welcome: bodies.Welcome) -> None:
        """Give up what gathered before the broker told how much it takes, where that is too much."""
        most = self.core.max_batch_bytes
        for queue in self.core.queues.values():
            for batch in [*queue.ready, *queue.gathering.batches]:
                if batch.size + HEADER_BYTES > most:
                    queue.drop(batch)
                    self.core.fail(batch, TooLarge(f"this broker takes batches of at most {most} bytes"))

    def on_skew(self, stamp: int, correction: int) -> None:
        """The clock is off the broker's: correct what is added to it."""
        self._clock.corrected(stamp, correction, self._stamped_unix_s)

    def on_register_answered(self) -> None:
        """The next batch is sealed with the identity, if there is one."""

    def on_answered(self, queue: TopicQueue) -> None:
        """A topic has its number, or a batch of it was answered. Start over once no request for one that was deleted is
        under way any more: what the topic surely never had goes to the one that has the name next, from 1 on."""
        if not queue.astray or not all(flying.refused for flying in queue.flying.values()):
            return
        for batch in [batch for batch in queue.flying.values() if batch.uncertain]:
            del queue.flying[batch.number]
            text = f"{to_text(queue.topic)} was deleted while this was on its way; whether it was stored there before"
            self.core.fail(batch, NoTopic(f"{text} cannot be told. It is not on a topic of that name made since"))
        queue.start_over()
        self.core.reopen(queue)

    def on_open_refused(self, queue: TopicQueue, error: ClarionError) -> None:
        """Give up what waits for the topic, and what was sent to one of that name which was deleted, and not taken
        there; what is put there next is a new try."""
        for batch in [*queue.crash(), *queue.take_waiting()]:
            self.core.fail(batch, error)

    def on_misfit(self, queue: TopicQueue, batch: OutgoingBatch, code: int, error: ClarionError) -> None:
        """The numbers of a topic do not fit the broker's any more, as the answer to a batch says."""
        if code == Code.NO_TOPIC:
            batch.refused = queue.astray = True
        else:
            self._fail_flying(queue, error)

    def on_lost(self, error: ClarionError) -> None:
        """Fail what was sent and not answered, and start over with the store that is there now."""
        for queue in self.core.queues.values():
            self._fail_flying(queue, error)
        self.core.identity = None

    def _fail_flying(self, queue: TopicQueue, error: ClarionError) -> None:
        """Give up what is in flight of a topic whose numbers do not fit the broker's, and start over as a new one."""
        for batch in queue.crash():
            self.core.fail(batch, error)
        if self.core.identity is queue.identity:
            self.core.identity = None
        queue.identity = None
        self.core.reopen(queue)

    def on_ended(self, batch: OutgoingBatch, error: ClarionError | None = None) -> ClarionError | None:
        """Let go of a batch's place in memory; return the error as those who wait for the batch are told it."""
        self.core.buffered_bytes -= batch.memory_bytes
        return error

    def give_up(self, error: ClarionError, now_s: float) -> None:
        """Fail everything that waits."""
        for queue in self.core.queues.values():
            self._fail_flying(queue, error)
            for batch in queue.take_waiting():
                self.core.fail(batch, error)
