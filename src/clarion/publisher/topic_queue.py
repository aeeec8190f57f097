"""The way of one topic's messages to the broker: they gather, are ready, fly, and are answered."""

from __future__ import annotations

from collections import deque

from clarion.model.errors import ClarionError
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.tuner import Publish, Sample, Trace, Tuner
from clarion.wire import bodies


class Gathering:
    """The batches of one topic that still take messages. Delayed messages gather beside the others, so that mixing both
    makes no small batches."""

    __slots__ = ("delayed", "queue", "undelayed")

    def __init__(self, queue: TopicQueue | None = None) -> None:
        self.queue = queue  # that they gather for; None once its topic is let go of
        self.undelayed: OutgoingBatch | None = None
        self.delayed: OutgoingBatch | None = None

    def __bool__(self) -> bool:
        undelayed, delayed = self.undelayed, self.delayed
        return (undelayed is not None and undelayed.count > 0) or (delayed is not None and delayed.count > 0)

    @property
    def batches(self) -> list[OutgoingBatch]:
        """The batches that gather, but for one whose first message never came: a signal struck whoever put it."""
        return [batch for batch in (self.undelayed, self.delayed) if batch is not None and batch.count]

    @property
    def messages(self) -> int:
        """How many messages gather."""
        count = 0 if self.undelayed is None else self.undelayed.count
        return count if self.delayed is None else count + self.delayed.count

    def full_for(
        self, messages: int, size: int, batch_bytes: int, *, ttl_ms: int, delayed: bool
    ) -> OutgoingBatch | None:
        """Take out the batch that so much more would gather in, if it does not fit there."""
        batch = self.delayed if delayed else self.undelayed
        if batch is None or (batch.ttl_ms == ttl_ms and batch.builder.has_room(messages, size, batch_bytes)):
            return None
        self.remove(batch)
        return batch

    def batch_for(self, topic: bytes, most: int, *, ttl_ms: int, delayed: bool) -> OutgoingBatch:
        """Return the batch that more gathers in."""
        batch = self.delayed if delayed else self.undelayed
        if batch is None:
            batch = OutgoingBatch(topic, ttl_ms=ttl_ms, delayed=delayed, most=most)
            if delayed:
                self.delayed = batch
            else:
                self.undelayed = batch
        return batch

    def remove(self, batch: OutgoingBatch) -> bool:
        """Take out a batch; tell whether it was here."""
        if batch is self.undelayed:
            self.undelayed = None
        elif batch is self.delayed:
            self.delayed = None
        else:
            return False
        return True

    def take(self) -> list[OutgoingBatch]:
        """Take out all batches."""
        taken = self.batches
        self.undelayed = self.delayed = None
        return taken


# What most topics have most of the time, and nobody adds to: their own would take as much memory as all else.
_NONE_READY: deque[OutgoingBatch] = deque()
_NONE_FLYING: dict[int, OutgoingBatch] = {}


class TopicQueue:
    """Batches of one topic: gathering, ready, flying; the numbers and credit that they have there; and the tuner that
    says when they leave. When the window opens, all that gathers becomes ready.

    With an outbox nothing leaves from where it gathers: batches come ready, from disk.
    """

    __slots__ = (
        "_polled_s", "astray", "credit", "credit_until_s", "flying", "flying_messages", "gathering", "identity",
        "leaving", "next_number", "publishing", "ready", "ready_messages", "refusal", "reported", "resend_at_s", "sent",
        "stored", "topic", "topic_number", "tuner",
    )  # fmt: skip

    def __init__(self, topic: bytes, tuner: Tuner) -> None:
        self.topic = topic
        self.tuner = tuner  # its own, or that of all topics
        self.publishing = 0  # messages that the publish under way still has to send
        self._polled_s = 0.0  # when it began
        self.gathering = Gathering(self)  # what is put
        self.leaving = self.gathering  # what may leave as it is; with an outbox another one, and nothing
        self.ready = _NONE_READY  # waiting for the window
        self.ready_messages = 0
        self.flying = _NONE_FLYING  # by number, in order: sent, not yet answered for good
        self.identity: bodies.Registered | None = None
        self.topic_number: int | None = None  # which topic of this name it is; None: the broker has to be asked
        self.resend_at_s: float | None = None
        self.refusal: ClarionError | None = None  # the broker's last "not now", until it takes something of this topic
        self.stored = 0  # messages confirmed
        self.reported = -1  # of them, when somebody was last told
        self.start_over()

    def start_over(self) -> None:
        """Number what is in flight from 1 on: the broker has nothing from this queue, or nothing any more."""
        self.astray = False  # the topic was deleted; what is in flight has numbers of it
        flying = list(self.flying.values())
        for number, batch in enumerate(flying, 1):
            batch.renumber(number)
        self.flying = {batch.number: batch for batch in flying} if flying else _NONE_FLYING
        self.next_number = len(flying) + 1
        self.sent = self.flying_messages = sum(batch.count for batch in flying)  # messages; sent are all there were
        self.credit = 0
        self.credit_until_s = 0.0

    def idle(self) -> bool:
        """Whether there is nothing to send and nothing under way."""
        return not self.flying and not self.unsent()

    def unsent(self) -> bool:
        """Whether something waits to be sent for the first time."""
        return bool(self.ready or self.leaving)

    def next_up(self) -> OutgoingBatch:
        """Return the batch that leaves next."""
        return self.ready[0] if self.ready else self.leaving.batches[0]

    def take_next(self) -> OutgoingBatch:
        """Take out the batch that leaves now."""
        leaving = self.leaving
        if not self.ready:
            if leaving.delayed is None and (only := leaving.undelayed) is not None:
                leaving.undelayed = None
                return only
            for batch in leaving.take():
                self.make_ready(batch)
        taken = self.ready.popleft()
        self.ready_messages -= taken.count
        if not self.ready:
            self.ready = _NONE_READY
        return taken

    def make_ready(self, batch: OutgoingBatch) -> None:
        """Have a batch leave when the window opens."""
        if not self.ready:
            self.ready = deque()
        self.ready.append(batch)
        self.ready_messages += batch.count

    def take_ready(self) -> list[OutgoingBatch]:
        """Take out the batches that wait for the window."""
        ready, self.ready = list(self.ready), _NONE_READY
        self.ready_messages = self.publishing = 0
        return ready

    def take_waiting(self) -> list[OutgoingBatch]:
        """Take out the batches that were never sent."""
        return [*self.take_ready(), *self.leaving.take()]

    def drop(self, batch: OutgoingBatch) -> None:
        """Take out a batch that was never sent."""
        if not self.leaving.remove(batch):
            self.ready.remove(batch)
            self.ready_messages -= batch.count
        if not self.unsent():
            self.publishing = 0

    def pending(self) -> int:
        """Return how many messages wait to be sent for the first time."""
        return self.ready_messages + self.leaving.messages

    def held_until_s(self, now_s: float, trace: Trace | None) -> float | None:
        """Return when its own tuner is to be asked again; None where the next batch leaves now."""
        if self.publishing:
            return None
        pending = self.pending()
        due_s = self.tuner.poll_due_s(self.flying_messages, pending)
        if due_s > now_s:
            return due_s
        decision = self.tuner.on_poll(pending=pending, now_s=now_s, credit=self.credit_left(now_s))
        if trace is not None:
            published = decision.messages if isinstance(decision, Publish) else 0
            trace.add(self.topic, self.tuner.sample(now_s, pending, published))
        if not isinstance(decision, Publish):
            return decision.until_s
        self.publish(decision.messages, now_s)
        return None

    def part(self, window: int, now_s: float) -> tuple[int, int]:
        """Return how many messages are pending, and for how many there is credit; 0 where the next batch may not leave
        now."""
        leaving = self.leaving
        if self.flying or self.ready or leaving.delayed is not None:
            if not self.unsent() or not self.may_send(window, now_s):
                return 0, 0
            return self.pending(), self.credit_left(now_s)
        pending = 0 if leaving.undelayed is None else len(leaving.undelayed.builder.payloads)
        credit = self.credit - self.sent if now_s < self.credit_until_s else 0
        return pending, credit if credit > pending else pending  # one batch may always be under way

    def publish(self, messages: int, now_s: float) -> None:
        """Have so many messages leave, as the window lets them go."""
        self.publishing = messages
        self._polled_s = now_s

    def credit_left(self, now_s: float) -> int:
        """Return how many messages the broker would take now: the next batch at least, while nothing is under way."""
        left = max(0, self.credit - self.sent) if now_s < self.credit_until_s else 0
        return left if self.flying or not self.unsent() else max(left, self.next_up().count)

    def may_send(self, window: int, now_s: float) -> bool:
        """Whether the next batch may leave, with a window of so many batches and the credit there is."""
        if not self.flying:
            return True  # one batch may always be under way
        if len(self.flying) >= window:
            return False
        return now_s < self.credit_until_s and self.sent + self.next_up().count <= self.credit

    def left(self, messages: int, now_s: float) -> float | None:
        """Note so many messages of the publish under way as gone: sent, or not to be sent at all. Return how long it
        took, once it is over."""
        left = self.publishing - messages
        self.publishing = left if left > 0 and self.unsent() else 0
        return None if self.publishing else now_s - self._polled_s

    def fly(self, batch: OutgoingBatch, now_s: float) -> None:
        """Note a batch, sealed with the next number, as sent."""
        number, count = batch.number, batch.messages
        assert number == self.next_number
        batch.sent_s = now_s
        if self.flying:
            self.flying[number] = batch
        else:
            self.flying = {number: batch}
        self.flying_messages += count
        self.next_number = number + 1
        self.sent += count

    def land(self, batch: OutgoingBatch) -> None:
        """Note a batch as answered for good."""
        if len(self.flying) == 1:
            self.flying = _NONE_FLYING
        else:
            del self.flying[batch.number]
        self.flying_messages -= batch.messages
        self.refusal = None

    def unreported(self) -> int:
        """Return how much there is to tell of: what was stored since the last time, and what waits."""
        return self.stored - self.reported + self.flying_messages + self.pending()

    def tuning(self, now_s: float) -> Sample:
        """Return what can be seen of the tuner now."""
        return self.tuner.sample(now_s, self.pending(), 0)._replace(credit=self.credit_left(now_s))

    def crash(self) -> list[OutgoingBatch]:
        """Give up what is in flight: return it, and forget its numbers."""
        flying = list(self.flying.values())
        self.flying = _NONE_FLYING
        self.start_over()
        self.resend_at_s = None
        self.refusal = None
        return flying
