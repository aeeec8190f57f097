"""The publishing side (the document's MPT): polls when the real tuner says, and does what it answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from simpy.core import Environment

from clarion.publisher.tuner import Publish, Sample, TunerSettings, make_tuner
from clarion.sim.publisher.datastore import DataStore
from clarion.sim.publisher.message import Message
from clarion.sim.publisher.timing import Happened, call_after


class PublishingSide:
    """Decides nothing itself: it counts what is pending, in transfer and allowed, and keeps the tuner's time.

    Where a free worker goes to receiving first and publishing heeds the broker's credit, as when tuned, receiving is
    never starved, whatever comes. While a request waits for a worker publishing is given none, so of all reads only
    the one under way, or else one more, is in the way. Receiving thus stands still for no longer than one transfer and
    one read, then goes on as fast as pool and store can: the buffer overflows only where more requests come meanwhile
    than it holds. A read of `eager` is of at most `workers` messages; one of `literal` and `recheck` of at most N,
    which grows only while a publish takes less than T_poll.
    """

    def __init__(
        self,
        env: Environment,
        *,
        policy: str,
        settings: TunerSettings,
        credit: int | None,
        count_from_s: float,
        on_sample: Callable[[Sample], None] | None,
    ) -> None:
        self.tuner = make_tuner(policy, settings, env.now, on_sample)
        self.store: DataStore | None = None
        self.pending: deque[Message] = deque()
        self.batches = 0
        self.publishing = 0  # messages with a worker that publishes them
        self.in_transfer = 0  # those of them that are on their way, or whose ACK is
        self.limit = credit  # messages the broker takes in all; None: not counted
        self.means = TimeMeans(count_from_s)
        self.taken = 0  # messages taken from the store to be published
        self._env = env
        self._unassigned = 0
        self._polled_s = 0.0
        self._read_until_s = 0.0
        self._busy = False  # from a poll that publishes to its last assignment
        self._alarm = 0  # only the newest alarm counts
        self._alarm_s = -1.0
        self._heeds_arrivals = settings.polls_on_arrival or not self.tuner.polls_when_idle
        self._plan()

    def add(self, message: Message) -> None:
        """A message was written to the store."""
        self.pending.append(message)
        if self._heeds_arrivals and not self._busy:
            self._plan()

    def has_read(self) -> None:
        """The store has read the batch."""
        self._read_until_s = self._env.now

    def assigned(self) -> None:
        """A message of the batch that was read got its worker."""
        self.publishing += 1
        self._unassigned -= 1
        if not self._unassigned:
            now_s = self._env.now
            self._busy = False
            read_s = self._read_until_s - self._polled_s
            self.tuner.on_published(took_s=now_s - self._polled_s, now_s=now_s, read_s=read_s)
            self._plan()

    def acked(self, message: Message) -> None:
        """The broker has a message, and said how many it takes in all."""
        self.tuner.on_transferred(took_s=self._env.now - message.transfer_began_s, in_transfer=self.in_transfer)
        self.in_transfer -= 1
        self.publishing -= 1
        self.allow(message.limit)
        if not self.publishing and self.pending and not self._busy:
            self._plan()

    def allow(self, limit: int) -> None:
        """Take in an absolute limit; those that were overtaken say nothing new."""
        if self.limit is None or limit <= self.limit:
            return
        had_none = self.limit <= self.taken
        self.limit = limit
        if had_none and self.pending and not self._busy:
            self._plan()

    def _plan(self) -> None:
        """Set the alarm for the next poll. Who does not poll for nothing waits for a message, and for credit."""
        now_s = self._env.now
        if not self.tuner.polls_when_idle:
            if not self.pending:
                self.tuner.on_idle(now_s)
                return
            if self.limit is not None and self.limit <= self.taken:
                return
        due_s = max(now_s, self.tuner.poll_due_s(self.publishing, len(self.pending)))
        if due_s == self._alarm_s:
            return
        self._alarm += 1
        self._alarm_s = due_s
        call_after(self._env, due_s - now_s, self._poll, self._alarm)

    def _poll(self, event: Happened) -> None:
        if event.value != self._alarm:
            return
        self._alarm_s = -1.0
        now_s = self._env.now
        credit = None if self.limit is None else self.limit - self.taken
        self.means.note(now_s, self.tuner.batch_size, self.tuner.poll_interval_s)
        decision = self.tuner.on_poll(pending=len(self.pending), now_s=now_s, credit=credit)
        if not isinstance(decision, Publish):
            self._plan()
            return
        count = decision.messages
        self.batches += 1
        self._busy = True
        self._polled_s = now_s
        self.taken += count
        self._unassigned = count
        assert self.store is not None
        self.store.read([self.pending.popleft() for _ in range(count)])


class TimeMeans:
    """The means of N and T_poll as polls find them, weighted by the time to the next poll."""

    def __init__(self, count_from_s: float) -> None:
        self._from_s = count_from_s
        self._noted_s = 0.0
        self._batch_size = 0
        self._poll_interval_s = 0.0
        self._batch_size_sum = 0.0
        self._poll_interval_sum = 0.0

    def note(self, now_s: float, batch_size: int, poll_interval_s: float) -> None:
        """Take in what a poll found; it holds from now on."""
        held_s = now_s - max(self._noted_s, self._from_s)
        if held_s > 0:
            self._batch_size_sum += held_s * self._batch_size
            self._poll_interval_sum += held_s * self._poll_interval_s
        self._noted_s = now_s
        self._batch_size = batch_size
        self._poll_interval_s = poll_interval_s

    def of(self, now_s: float) -> tuple[float, float]:
        """Give the means of N and T_poll until now."""
        self.note(now_s, -1, -1.0)
        counted_s = now_s - self._from_s
        return self._batch_size_sum / counted_s, self._poll_interval_sum / counted_s
