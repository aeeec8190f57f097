"""The parts of the model in simulated time: a publisher with its workers and data store, the broker, the subscriber.

SimPy keeps the clock and the queue of events, and plain functions are called when their time has come: a function
costs a third of a SimPy process, and this model has a dozen of steps for each message.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from simpy.core import Environment
from simpy.events import Timeout

from clarion.publisher.tuner import Publish, Sample, make_tuner
from clarion.sim.parameters import Parameters

_BLOCK = 2048  # draws made at once: one at a time is ten times slower


class TimedEvent(Protocol):
    """What a function is called with."""

    @property
    def value(self) -> Any:
        """What was given to `call_after`."""


def call_after(env: Environment, delay_s: float, call: Callable[[TimedEvent], None], value: Any = None) -> None:
    """Call with an event that carries `value`, once the delay is over."""
    Timeout(env, delay_s, value).callbacks.append(call)


def exponential(dice: np.random.Generator, mean: float) -> Iterator[float]:
    """Draw exponential times for ever; 0 where the mean is."""
    if not mean:
        return repeat(0.0)
    return _blocks(lambda: dice.exponential(mean, _BLOCK))


def gamma(dice: np.random.Generator, mean: float, cv: float) -> Iterator[float]:
    """Draw gamma times with a mean and a coefficient of variation for ever."""
    if not mean or not cv:
        return repeat(mean)
    return _blocks(lambda: dice.gamma(cv**-2, mean * cv**2, _BLOCK))


def _blocks(draw: Callable[[], Any]) -> Iterator[float]:
    while True:
        yield from draw().tolist()


@dataclass(slots=True, eq=False)
class SimulatedMessage:
    """Which arrival of which publisher it is, and what its transfer was dealt."""

    publisher: SimulatedPublisher
    number: int
    half_rtt_s: float = 0.0
    transfer_began_s: float = 0.0
    limit: int = 0  # carried by its ACK


@dataclass(eq=False)
class Pool:
    """The workers that receiving and publishing share, and the bounded buffer before them.

    Each message is given a worker, at once or when one is free; whoever has a worker says when it is done. A free
    worker goes to receiving first, or to whoever asked first.
    """

    env: Environment
    _: KW_ONLY
    workers: int
    buffer: int
    receiving_first: bool
    on_receive: Callable[[SimulatedMessage], None]
    on_publish: Callable[[SimulatedMessage], None]

    def __post_init__(self) -> None:
        self.dropped = 0
        self.buffer_peak = 0  # the most that waited to be received at one time
        self.busy_s = 0.0  # summed over workers, until `_changed_s`
        self._free = self.workers
        self._to_receive: deque[tuple[int, SimulatedMessage]] = deque()
        self._to_publish: deque[tuple[int, SimulatedMessage]] = deque()
        self._asked = 0
        self._changed_s = 0.0

    def receive(self, message: SimulatedMessage) -> bool:
        """Take an arrival: a free worker, or room in the buffer, or False and it is dropped."""
        if self._free:
            self._take()
            self.on_receive(message)
        elif len(self._to_receive) < self.buffer:
            self._asked += 1
            self._to_receive.append((self._asked, message))
            self.buffer_peak = max(self.buffer_peak, len(self._to_receive))
        else:
            self.dropped += 1
            return False
        return True

    def publish(self, message: SimulatedMessage) -> None:
        """Have a worker publish a message that was read, as soon as one is free for it."""
        if self._free:
            self._take()
            self.on_publish(message)
        else:
            self._asked += 1
            self._to_publish.append((self._asked, message))

    def release(self) -> None:
        """Take a worker back, and hand it to the next in line."""
        to_receive, to_publish = self._to_receive, self._to_publish
        if to_receive and (self.receiving_first or not to_publish or to_receive[0][0] < to_publish[0][0]):
            self.on_receive(to_receive.popleft()[1])
        elif to_publish:
            self.on_publish(to_publish.popleft()[1])
        else:
            self._account()
            self._free += 1

    def utilisation(self) -> float:
        """Return the share of its workers' time that was used until now."""
        self._account()
        return self.busy_s / (self.workers * self.env.now) if self.env.now else 0.0

    def _take(self) -> None:
        self._account()
        self._free -= 1

    def _account(self) -> None:
        now_s = self.env.now
        self.busy_s += (self.workers - self._free) * (now_s - self._changed_s)
        self._changed_s = now_s


@dataclass(eq=False)
class DataStore:
    """One server that writes messages one by one and reads them in batches; waiting writes come before waiting reads.

    A read has a fixed cost and one for each message; nothing that has begun is interrupted.
    """

    env: Environment
    _: KW_ONLY
    write_times_s: Iterator[float]
    read_fixed_s: float
    read_each_s: float
    on_written: Callable[[SimulatedMessage], None]
    on_read: Callable[[Sequence[SimulatedMessage]], None]

    def __post_init__(self) -> None:
        self.busy_s = 0.0
        self._to_write: deque[SimulatedMessage] = deque()
        self._to_read: deque[Sequence[SimulatedMessage]] = deque()
        self._busy = False

    def write(self, message: SimulatedMessage) -> None:
        """Write a message when those before it are written; `on_written` tells."""
        self._to_write.append(message)
        if not self._busy:
            self._begin()

    def read(self, batch: Sequence[SimulatedMessage]) -> None:
        """Read a batch when nothing is left to write; `on_read` tells."""
        self._to_read.append(batch)
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        self._busy = True
        if self._to_write:
            took_s = next(self.write_times_s)
            call_after(self.env, took_s, self._written, self._to_write.popleft())
        else:
            batch = self._to_read.popleft()
            took_s = self.read_fixed_s + self.read_each_s * len(batch)
            call_after(self.env, took_s, self._has_read, batch)
        self.busy_s += took_s

    def _go_on(self) -> None:
        self._busy = False
        if self._to_write or self._to_read:
            self._begin()

    def _written(self, event: TimedEvent) -> None:
        self._go_on()
        self.on_written(event.value)

    def _has_read(self, event: TimedEvent) -> None:
        self._go_on()
        self.on_read(event.value)


class PublishingSide:
    """The publishing side (MPT in "the tuned publisher") polls when the real tuner says, and does what it answers.

    It decides nothing itself: it counts what is pending, in transfer and allowed, and keeps the tuner's time.

    Where a free worker goes to receiving first and publishing heeds the broker's credit, as when tuned, receiving is
    never starved, whatever comes. While a request waits for a worker publishing is given none, so of all reads only
    the one under way, or else one more, is in the way. Receiving thus stands still for no longer than one transfer and
    one read, then goes on as fast as pool and store can: the buffer overflows only where more requests come meanwhile
    than it holds. A read of `eager` is of at most `workers` messages; one of `literal` and `recheck` of at most N,
    which grows only while a publish takes less than T_poll.
    """

    def __init__(self, env: Environment, parameters: Parameters, share: int, trace: list[Sample]) -> None:
        self.tuner = make_tuner(parameters.tuning, parameters.tuner_settings, env.now)
        self._trace = trace if parameters.keep_trace else None
        self.store: DataStore | None = None
        self.pending: deque[SimulatedMessage] = deque()
        self.batches = 0
        self.publishing = 0  # messages with a worker that publishes them
        self.in_transfer = 0  # those of them that are on their way, or whose ACK is
        self.limit = share if parameters.heeds_credit else None  # messages the broker takes in all; None: not counted
        self.means = TimeMeans(parameters.warm_up_s)
        self.taken = 0  # messages taken from the store to be published
        self._env = env
        self._unassigned = 0
        self._polled_s = 0.0
        self._read_until_s = 0.0
        self._busy = False  # from a poll that publishes to its last assignment
        self._alarm = 0  # only the newest alarm counts
        self._alarm_s = -1.0
        self._heeds_arrivals = parameters.polls_on_arrival or not self.tuner.polls_when_idle
        self._plan()

    def add(self, message: SimulatedMessage) -> None:
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

    def acked(self, message: SimulatedMessage) -> None:
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

    def _poll(self, event: TimedEvent) -> None:
        if event.value != self._alarm:
            return
        self._alarm_s = -1.0
        now_s = self._env.now
        credit = None if self.limit is None else self.limit - self.taken
        self.means.note(now_s, self.tuner.batch_size, self.tuner.poll_interval_s)
        decision = self.tuner.on_poll(pending=len(self.pending), now_s=now_s, credit=credit)
        count = decision.messages if isinstance(decision, Publish) else 0
        if self._trace is not None:
            self._trace.append(self.tuner.sample(now_s, len(self.pending), count))
        if not count:
            self._plan()
            return
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
        """Return the means of N and T_poll until now."""
        self.note(now_s, -1, -1.0)
        counted_s = now_s - self._from_s
        return self._batch_size_sum / counted_s, self._poll_interval_sum / counted_s


DROPPED = -1.0  # in `read_s`: turned away, with the buffer full


class SimulatedPublisher:
    """Walks each message from its arrival to the broker, and keeps when the subscriber read it."""

    def __init__(
        self,
        env: Environment,
        parameters: Parameters,
        number: int,
        broker: SimulatedBroker,
        seed: np.random.SeedSequence,
    ) -> None:
        dice = [np.random.default_rng(child) for child in seed.spawn(5)]
        arrivals = parameters.arrivals.share(number, parameters.publishers)
        self.number = number
        self.arrived_s: list[float] = arrivals.times_s(dice[0], parameters.duration_s).tolist()
        self.read_s = [math.nan] * len(self.arrived_s)  # NaN: not yet
        self.trace: list[Sample] = []
        self._env = env
        self._broker = broker
        self._next = 0
        self._receive_times_s = exponential(dice[1], parameters.receive_s)
        self._publish_times_s = exponential(dice[2], parameters.publish_s)
        self._round_trips_s = gamma(dice[3], parameters.rtt_s, parameters.rtt_cv)
        first = parameters.tuned if parameters.receiving_first is None else parameters.receiving_first
        self.pool = Pool(
            env, workers=parameters.workers, buffer=parameters.buffer, receiving_first=first,
            on_receive=self._receive, on_publish=self._publish,
        )  # fmt: skip
        self.side = PublishingSide(env, parameters, broker.share, self.trace)
        self.store = DataStore(
            env, write_times_s=exponential(dice[4], parameters.write_s), read_fixed_s=parameters.read_fixed_s,
            read_each_s=parameters.read_each_s, on_written=self._written, on_read=self._has_read,
        )  # fmt: skip
        self.side.store = self.store
        self._await_arrival()

    def half_rtt_s(self) -> float:
        """Draw the time of one way."""
        return next(self._round_trips_s) / 2

    def was_read(self, message: SimulatedMessage) -> None:
        """The subscriber has read a message."""
        self.read_s[message.number] = self._env.now

    def allow(self, event: TimedEvent) -> None:
        """A window update came."""
        self.side.allow(event.value)

    def _await_arrival(self) -> None:
        if self._next < len(self.arrived_s):
            call_after(self._env, max(0.0, self.arrived_s[self._next] - self._env.now), self._arrive)

    def _arrive(self, _event: TimedEvent) -> None:
        number = self._next
        self._next += 1
        if not self.pool.receive(SimulatedMessage(self, number)):
            self.read_s[number] = DROPPED
        self._await_arrival()

    def _receive(self, message: SimulatedMessage) -> None:
        call_after(self._env, next(self._receive_times_s), self._received, message)

    def _received(self, event: TimedEvent) -> None:
        self.store.write(event.value)

    def _written(self, message: SimulatedMessage) -> None:
        self.side.add(message)
        self.pool.release()

    def _has_read(self, batch: Sequence[SimulatedMessage]) -> None:
        self.side.has_read()
        for message in batch:
            self.pool.publish(message)

    def _publish(self, message: SimulatedMessage) -> None:
        call_after(self._env, next(self._publish_times_s), self._transfer, message)
        self.side.assigned()

    def _transfer(self, event: TimedEvent) -> None:
        message: SimulatedMessage = event.value
        message.half_rtt_s = self.half_rtt_s()
        message.transfer_began_s = self._env.now
        self.side.in_transfer += 1
        call_after(self._env, message.half_rtt_s, self._broker.arrive, message)

    def acked(self, event: TimedEvent) -> None:
        """The ACK of a message came: its worker is free."""
        self.side.acked(event.value)
        self.pool.release()


class SimulatedBroker:
    """Takes messages while there is room; others wait, and so do the workers that sent them.

    An ACK carries an absolute limit: what was read of its publisher's messages, and that publisher's share of the
    room. Publishers that heed it never meet a full broker, since the shares do not exceed the room.
    """

    def __init__(self, env: Environment, *, room: int, publishers: int) -> None:
        self.share = max(1, room // publishers)
        self.queue: deque[SimulatedMessage] = deque()  # not yet begun to be read
        self.on_first: Callable[[], None] | None = None  # called when a message enters an empty queue
        self._env = env
        self._room = room
        self._held = 0  # in the queue or being read
        self._waiting: deque[SimulatedMessage] = deque()
        self._windows = [_Window(self.share) for _ in range(publishers)]

    def arrive(self, event: TimedEvent) -> None:
        """A message has come over the network."""
        if self._held < self._room:
            self._take(event.value)
        else:
            self._waiting.append(event.value)

    def was_read(self, message: SimulatedMessage) -> None:
        """The subscriber has read a message: there is room for another."""
        publisher = message.publisher
        publisher.was_read(message)
        self._held -= 1
        window = self._windows[publisher.number]
        window.read += 1
        if self._waiting:
            self._take(self._waiting.popleft())
        limit = window.read + self.share
        # A publisher without messages under way gets no ACK, and would not learn of new room. It is told while the
        # window it knows of is small, in steps that are worth a packet.
        if 2 * (window.told - window.taken) < self.share and 4 * (limit - window.told) >= self.share:
            window.told = limit
            call_after(self._env, publisher.half_rtt_s(), publisher.allow, limit)

    def _take(self, message: SimulatedMessage) -> None:
        window = self._windows[message.publisher.number]
        window.taken += 1
        window.told = max(window.told, window.read + self.share)
        message.limit = window.told
        self._held += 1
        self.queue.append(message)
        call_after(self._env, message.half_rtt_s, message.publisher.acked, message)
        if len(self.queue) == 1 and self.on_first is not None:
            self.on_first()


@dataclass(slots=True, eq=False)
class _Window:
    """What one publisher may send, and what became of what it sent."""

    told: int  # the limit it was last told
    read: int = 0
    taken: int = 0


class SimulatedSubscriber:
    """On return from a vacation reads all that is there at that instant, one after the other; then leaves again.

    Vacations have no memory, so those that would end before an empty queue need not be played: from the arrival of the
    first message on, the one under way lasts as long as a new one would.
    """

    def __init__(
        self, env: Environment, broker: SimulatedBroker, *, read_times_s: Iterator[float], vacations_s: Iterator[float]
    ) -> None:
        self._env = env
        self._broker = broker
        self._read_times_s = read_times_s
        self._vacations_s = vacations_s
        self._inside: deque[SimulatedMessage] = deque()  # within the gate
        self._away = True
        broker.on_first = self._has_work

    def _has_work(self) -> None:
        if self._away:
            call_after(self._env, next(self._vacations_s), self._return)

    def _return(self, _event: TimedEvent) -> None:
        self._away = False
        self._inside.extend(self._broker.queue)
        self._broker.queue.clear()
        call_after(self._env, next(self._read_times_s), self._read)

    def _read(self, _event: TimedEvent) -> None:
        message = self._inside.popleft()
        if self._inside:
            call_after(self._env, next(self._read_times_s), self._read)
        else:
            self._away = True
            if self._broker.queue:
                self._has_work()
        self._broker.was_read(message)
