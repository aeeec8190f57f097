"""A lane: the way of one topic's messages to the broker, from gathering to the answer."""

from __future__ import annotations

from collections import deque

from clarion.model.errors import ClarionError
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.tuner import Publish, Sample, Tuner
from clarion.wire import bodies


class Lane:
    """Sheaves of one topic: gathering, ready, flying; the numbers and credit that they have there; and the tuner that
    says when they leave.

    Delayed messages gather beside the others, so that mixing both makes no small batches. Neither keeps the other
    waiting: when the window opens, both become ready.
    """

    __slots__ = (
        "_polled_s", "_publishing", "astray", "credit", "credit_until_s", "delayed", "flying", "flying_messages",
        "gathering", "identity", "next_number", "ready", "ready_messages", "refusal", "reported", "resend_at_s",
        "sent", "stored", "topic", "topic_number", "tuner",
    )  # fmt: skip

    def __init__(self, topic: bytes, tuner: Tuner) -> None:
        self.topic = topic
        self.tuner = tuner
        self._publishing = 0  # messages that the publish under way still has to send
        self._polled_s = 0.0  # when it began
        self.gathering: OutgoingBatch | None = None
        self.delayed: OutgoingBatch | None = None  # gathering, too
        self.ready: deque[OutgoingBatch] = deque()  # waiting for the window
        self.ready_messages = 0
        self.flying: dict[int, OutgoingBatch] = {}  # by number, in order: sent, not yet answered for good
        self.identity: bodies.Registered | None = None
        self.topic_number: int | None = None  # which topic of this name it is; None: the broker has to be asked
        self.resend_at_s: float | None = None
        self.refusal: ClarionError | None = None  # the broker's last "not now", until it takes something of this topic
        self.stored = 0  # messages confirmed
        self.reported = -1  # of them, when somebody was last told
        self.start_over()

    def start_over(self) -> None:
        """Number what is in flight from 1 on: the broker has nothing from this lane, or nothing any more."""
        self.astray = False  # the topic was deleted; what is in flight has numbers of it
        flying = list(self.flying.values())
        self.flying.clear()
        for number, sheaf in enumerate(flying, 1):
            sheaf.renumber(number)
            self.flying[number] = sheaf
        self.next_number = len(flying) + 1
        self.sent = self.flying_messages = sum(sheaf.count for sheaf in flying)  # messages; sent are all there were
        self.credit = 0
        self.credit_until_s = 0.0

    def idle(self) -> bool:
        """Whether there is nothing to send and nothing under way."""
        return not self.flying and not self.unsent()

    def is_unopened(self) -> bool:
        """Whether something waits for the number of its topic."""
        return self.topic_number is None and not self.idle()

    def open(self, topic_number: int) -> None:
        """Take the number of the topic: batches may be sent there, the first of them as number 1."""
        self.topic_number = topic_number

    def unsent(self) -> bool:
        """Whether something waits to be sent for the first time."""
        return bool(self.ready or self.gathering or self.delayed)

    def sheaf_for(self, messages: int, size: int, batch_bytes: int, *, ttl_ms: int, delayed: bool) -> OutgoingBatch:
        """Give the sheaf that so much more gathers in; what it does not fit into becomes ready."""
        sheaf = self.delayed if delayed else self.gathering
        if sheaf is not None and (sheaf.ttl_ms != ttl_ms or not sheaf.builder.has_room(messages, size, batch_bytes)):
            self._make_ready(sheaf)
            sheaf = None
        if sheaf is None:
            sheaf = OutgoingBatch(self.topic, ttl_ms=ttl_ms, delayed=delayed, most=self.tuner.gathers)
            if delayed:
                self.delayed = sheaf
            else:
                self.gathering = sheaf
        return sheaf

    def next_up(self) -> OutgoingBatch:
        """Give the sheaf that leaves next."""
        sheaf = self.ready[0] if self.ready else self.gathering or self.delayed
        assert sheaf is not None
        return sheaf

    def take_next(self) -> OutgoingBatch:
        """Give the sheaf that leaves now."""
        if not self.ready:
            for sheaf in (self.gathering, self.delayed):
                if sheaf is not None:
                    self._make_ready(sheaf)
            self.gathering = self.delayed = None
        taken = self.ready.popleft()
        self.ready_messages -= taken.count
        return taken

    def _make_ready(self, sheaf: OutgoingBatch) -> None:
        self.ready.append(sheaf)
        self.ready_messages += sheaf.count

    def waiting(self) -> list[OutgoingBatch]:
        """Give the sheaves that were never sent."""
        return [*self.ready, *(sheaf for sheaf in (self.gathering, self.delayed) if sheaf is not None)]

    def drop(self, sheaf: OutgoingBatch) -> None:
        """Take out a sheaf that was never sent."""
        if sheaf is self.gathering:
            self.gathering = None
        elif sheaf is self.delayed:
            self.delayed = None
        else:
            self.ready.remove(sheaf)
            self.ready_messages -= sheaf.count
        if not self.unsent():
            self._publishing = 0

    def pending(self) -> int:
        """Give how many messages wait to be sent for the first time."""
        gathering = sum(sheaf.count for sheaf in (self.gathering, self.delayed) if sheaf is not None)
        return self.ready_messages + gathering

    def held_until_s(self, now_s: float) -> float | None:
        """Give when the tuner is to be asked again; None where the next sheaf leaves now."""
        if self._publishing:
            return None
        pending = self.pending()
        due_s = self.tuner.poll_due_s(self.flying_messages, pending)
        if due_s > now_s:
            return due_s
        decision = self.tuner.on_poll(pending=pending, now_s=now_s, credit=self.credit_left(now_s))
        if not isinstance(decision, Publish):
            return decision.until_s
        self._publishing = decision.messages
        self._polled_s = now_s
        return None

    def credit_left(self, now_s: float) -> int:
        """Give how many messages the broker would take now; the next batch at least, while nothing is under way."""
        left = max(0, self.credit - self.sent) if now_s < self.credit_until_s else 0
        return left if self.flying or not self.unsent() else max(left, self.next_up().count)

    def left(self, messages: int, now_s: float) -> None:
        """Note so many messages of the publish under way as gone: sent, or not to be sent at all."""
        self._publishing = max(0, self._publishing - messages) if self.unsent() else 0
        if not self._publishing:
            self.tuner.on_published(took_s=now_s - self._polled_s, now_s=now_s)

    def fly(self, sheaf: OutgoingBatch, now_s: float) -> None:
        """Note a sheaf, sealed with the next number, as sent."""
        assert sheaf.number == self.next_number
        sheaf.sent_s = now_s
        self.flying[sheaf.number] = sheaf
        self.flying_messages += sheaf.count
        self.next_number += 1
        self.sent += sheaf.count

    def land(self, sheaf: OutgoingBatch, now_s: float) -> None:
        """Note a sheaf as answered for good."""
        self.tuner.on_transferred(took_s=now_s - sheaf.sent_s, in_transfer=self.flying_messages)
        del self.flying[sheaf.number]
        self.flying_messages -= sheaf.count
        self.refusal = None

    def unreported(self) -> int:
        """Give how much there is to tell of: what was stored since the last time, and what waits."""
        return self.stored - self.reported + self.flying_messages + self.pending()

    def tuning(self, now_s: float) -> Sample:
        """Give what can be seen of the tuner now."""
        return self.tuner.sample(now_s, self.pending(), 0)._replace(credit=self.credit_left(now_s))

    def crash(self) -> list[OutgoingBatch]:
        """Give up what is in flight: give it, and forget its numbers."""
        flying = list(self.flying.values())
        self.flying.clear()
        self.start_over()
        self.resend_at_s = None
        self.refusal = None
        return flying

    def newest(self) -> list[OutgoingBatch]:
        """Give sheaves that, once done, leave none before them undone."""
        gathering = [sheaf for sheaf in (self.gathering, self.delayed) if sheaf is not None]
        if gathering:
            return gathering
        if self.ready:
            return [self.ready[-1]]
        return [next(reversed(self.flying.values()))] if self.flying else []
