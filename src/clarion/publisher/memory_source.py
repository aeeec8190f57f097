"""Where the batches of a publisher without an outbox come from: they wait in memory, and are sealed when they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clarion.model.errors import ClarionError, InvalidRequest, NoTopic, TooLarge
from clarion.model.ids import next_stamp
from clarion.model.names import to_text
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.topic_queue import Gathering, TopicQueue
from clarion.wire import bodies
from clarion.wire.batch_builder import HEADER_BYTES
from clarion.wire.codes import Code

if TYPE_CHECKING:
    from clarion.publisher.publisher_core import PublisherCore


class MemorySource:
    """A source of batches (see `BatchSource`) that loses what it has with its process."""

    def __init__(self) -> None:
        self.core: PublisherCore
        self._last_stamp = 0

    # What is put.

    def gathering(self, queue: TopicQueue) -> Gathering:
        """Return where messages of a topic gather."""
        return queue.gathering

    def take_full(self, queue: TopicQueue, batch: OutgoingBatch) -> None:
        """Have a batch leave that is full."""
        queue.make_ready(batch)

    def on_added(self, queue: TopicQueue) -> None:
        """There is nothing to do until the batch leaves."""

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

    # What leaves.

    def is_ready(self, queue: TopicQueue) -> bool:
        """Whether batches of a topic may leave, as far as the source is concerned."""
        return True

    def needs_identity(self) -> bool:
        """Whether to register though nothing is to be sent."""
        return False

    def opens(self) -> bool:
        """Whether the broker may be asked for the numbers of topics."""
        return True

    def is_unopened(self, queue: TopicQueue) -> bool:
        """Whether something waits for the number of its topic."""
        return queue.topic_number is None and not queue.idle()

    def is_idle(self, queue: TopicQueue) -> bool:
        """Whether a topic may be let go of."""
        return queue.idle()

    def seal_next(self, queue: TopicQueue, unix_s: float) -> OutgoingBatch:
        """Take out the next batch, with its number; one that cannot be packed is refused, and done."""
        if queue.identity is None:
            queue.identity = self.core.identity
        assert queue.identity is not None
        batch = queue.take_next()
        self._last_stamp = next_stamp(self._last_stamp, unix_s)
        try:
            batch.seal(
                broker=queue.identity.broker,
                publisher=queue.identity.publisher,
                stamp=self._last_stamp,
                number=queue.next_number,
                compressed=self.core.compressed,
            )
        except (TypeError, ValueError, OverflowError) as error:  # something in it is not bytes; the rest goes on
            self.core.fail(batch, InvalidRequest(f"these messages cannot be packed, and were not sent: {error}"))
        return batch

    def on_sent(self, batch: OutgoingBatch) -> None:
        """The batch itself knows all that there is to know."""

    def due_s(self, now_s: float) -> float | None:
        """Return when the source wants a turn."""
        return None

    # What the broker says.

    def on_welcome(self, welcome: bodies.Welcome) -> None:
        """Give up what gathered before the broker told how much it takes, where that is too much."""
        most = self.core.max_batch_bytes
        for queue in self.core.queues.values():
            for batch in [*queue.ready, *queue.gathering.batches]:
                if batch.size + HEADER_BYTES > most:
                    queue.drop(batch)
                    self.core.fail(batch, TooLarge(f"this broker takes batches of at most {most} bytes"))

    def on_registered(self) -> None:
        """The next batch is sealed with the identity."""

    def on_opened(self, queue: TopicQueue) -> None:
        """The next batch is sent with the number."""

    def on_open_refused(self, queue: TopicQueue, error: ClarionError) -> None:
        """Give up what waits for a topic that nothing can be put on; what is put there next is a new try."""
        for batch in queue.crash():  # what was sent to a topic of that name which was deleted, and not taken there
            self.core.fail(batch, error)
        for batch in queue.take_waiting():
            self.core.fail(batch, error)

    def on_answer(self, queue: TopicQueue, batch: OutgoingBatch, refusal: bodies.Refused | None) -> None:
        """The batch itself knows all that there is to know."""

    def on_misfit(self, queue: TopicQueue, batch: OutgoingBatch, code: int, error: ClarionError) -> None:
        """The numbers of a topic do not fit the broker's any more."""
        if code == Code.NO_TOPIC:
            batch.refused = queue.astray = True
        else:
            self.fail_queue(queue, error)

    def after_answer(self, queue: TopicQueue) -> None:
        """Start over once no request for a topic that was deleted is under way any more."""
        if queue.astray and all(flying.refused for flying in queue.flying.values()):
            self._start_over(queue)

    def _start_over(self, queue: TopicQueue) -> None:
        """The topic was deleted: what it surely never had goes to the one that has the name next, numbered from 1."""
        for batch in [batch for batch in queue.flying.values() if batch.uncertain]:
            del queue.flying[batch.number]
            text = f"{to_text(queue.topic)} was deleted while this was on its way; whether it was stored there before"
            self.core.fail(batch, NoTopic(f"{text} cannot be told. It is not on a topic of that name made since"))
        queue.start_over()
        self.core.reopen(queue)

    def on_lost(self, error: ClarionError) -> None:
        """The store is not the one that was spoken with: fail what was sent and not answered, and start over there."""
        for queue in self.core.queues.values():
            self.fail_queue(queue, error)
        self.core.identity = None

    # What ends.

    def fail_queue(self, queue: TopicQueue, error: ClarionError) -> None:
        """Give up what is in flight of a topic whose numbers do not fit the broker's, and start over as a new one."""
        for batch in queue.crash():
            self.core.fail(batch, error)
        if self.core.identity is queue.identity:
            self.core.identity = None
        queue.identity = None
        self.core.reopen(queue)

    def give_up(self, error: ClarionError, now_s: float) -> None:
        """Fail everything that waits."""
        for queue in self.core.queues.values():
            self.fail_queue(queue, error)
            for batch in queue.take_waiting():
                self.core.fail(batch, error)

    def let_go(self, queues: list[TopicQueue], publishers: set[int]) -> None:
        """Have the broker forget publishers that no topic uses any more."""
        self.core.forget(publishers)

    def release(self, batch: OutgoingBatch) -> None:
        """Let go of a batch's place in memory."""
        self.core.buffered_bytes -= batch.memory_bytes

    def error_of(self, batch: OutgoingBatch, error: ClarionError) -> ClarionError:
        """Return what those who wait for a batch are told that is refused for good."""
        return error

    def take_error(self) -> ClarionError | None:
        """Return what nobody was told of yet, beside batches that failed."""
        return None

    def stats(self) -> dict[str, Any]:
        """Return what can be seen of the source."""
        return {}
