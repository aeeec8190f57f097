"""A publisher of many topics in simulated time: the real core, before a broker of which only the costs are modelled.

The broker works on one request after the other, a part of its time for the request and one for each batch in it, and
commits what it has worked on together: while one commit is under way the next gathers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, NamedTuple

import msgspec
import numpy as np

from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.publisher_core import PublisherCore
from clarion.session.exchange import Reply, Send
from clarion.sim.parameters import MOST_MESSAGES
from clarion.wire import bodies
from clarion.wire.frames import PROTOCOL_VERSION, Kind

MOST_TOPICS = 1_000_000
_PAYLOAD = bytes(200)
_CREDIT = 1 << 60


@dataclass(frozen=True, slots=True)
class TopicsModel:
    """What a run is made of. The costs are about those of a broker on a small machine."""

    topics: int = 1
    load_per_s: float = 5000.0  # of all topics together, at random
    seconds: float = 20.0
    tuning: str = "auto"
    in_flight: int = 20
    version: int = PROTOCOL_VERSION  # 1: a broker that takes one batch a request
    rtt_s: float = 0.0003
    request_s: float = 0.00006  # that the broker works for a request,
    batch_s: float = 0.00002  # and for each batch in it
    commit_s: float = 0.001
    slow_from_s: float = inf  # while it is slow, a commit takes so long
    slow_until_s: float = inf
    slow_commit_s: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.topics <= MOST_TOPICS:
            raise ValueError(f"topics are 1 to {MOST_TOPICS:,}, not {self.topics:,}")
        if not (0 < self.load_per_s < inf and 0 < self.seconds < inf):
            raise ValueError("a load is above 0, and so are the seconds of a run")
        if self.slow_until_s < self.slow_from_s:
            raise ValueError(
                f"a time that is slow ends after it begins, not from {self.slow_from_s:g} to {self.slow_until_s:g}"
            )
        if self.seconds <= self.slow_from_s < inf:
            raise ValueError(f"nothing is slow from {self.slow_from_s:g} s on in a run of {self.seconds:g} s")
        if self.load_per_s * self.seconds > MOST_MESSAGES:
            raise ValueError(f"a run has at most {MOST_MESSAGES:,} messages: lower the load, or make it shorter")


@dataclass(frozen=True, slots=True)
class TopicsOutcome:
    """What came of a run; times are from put to ack, of messages put after the first second, and outside of the time
    that the broker is slow."""

    topics: int
    messages: int
    unanswered: int
    requests: int
    batches: int
    batches_per_request: float
    messages_per_batch: float
    p50_ms: float
    p99_ms: float
    poll_interval_ms: float  # T_poll at the end
    broker_busy: float  # of its time, without the disk
    broker_us: float  # of its time for each message
    recovered_s: float | None  # after the broker was slow: when half of what is put is answered as soon as before

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers."""
        return asdict(self)


class _Event(NamedTuple):
    at_s: float
    order: int
    what: str
    value: Any


class _Run:
    def __init__(self, model: TopicsModel, seed: int) -> None:
        self.model = model
        self.core = PublisherCore(
            "", seed.to_bytes(8, "little"), in_flight=model.in_flight, batch_bytes=2**20, tuning=model.tuning
        )
        self.core.last_seen.version = model.version
        self.now_s = 0.0
        self._events: list[_Event] = []
        self._order = 0
        self._free_s = 0.0  # when the broker has worked on all that came
        self._to_commit: deque[Send] = deque()
        self._committing = False
        self._wanted_s = inf
        self.requests = self.batches = 0
        self.busy_s = 0.0
        dice = np.random.default_rng(seed)
        count = int(dice.poisson(model.load_per_s * model.seconds))
        self.put_s = np.sort(dice.random(count) * model.seconds).tolist()
        self.topics = dice.integers(0, model.topics, count).tolist()
        self.batch_of: list[OutgoingBatch] = []
        self.answered_s: dict[int, float] = {}  # by the stamp of the batch

    def _after(self, delay_s: float, what: str, value: Any) -> None:
        self._order += 1
        heappush(self._events, _Event(self.now_s + delay_s, self._order, what, value))

    def run(self) -> None:
        """Put all messages, and take in what is answered until a while after the last."""
        names = [b"t/%d" % number for number in range(self.model.topics)]
        place, count = 0, len(self.put_s)
        end_s = self.model.seconds + 1.0
        while True:
            event_s = self._events[0].at_s if self._events else inf
            put_s = self.put_s[place] if place < count else inf
            next_s = min(event_s, put_s, max(self._wanted_s, self.now_s))
            self.now_s = min(next_s, end_s)
            if next_s > end_s:
                return
            if put_s <= self.now_s:
                batch, _, _ = self.core.add(names[self.topics[place]], _PAYLOAD, None, None, now_s=self.now_s)
                self.batch_of.append(batch)
                place += 1
                if self.core.holds_until_s > self.now_s:
                    continue
            elif event_s <= self.now_s:
                event = heappop(self._events)
                self._handle(event.what, event.value)
            self._turn()

    def _turn(self) -> None:
        wanted_s = self.core.on_time(self.now_s, 1_700_000_000.0 + self.now_s)
        self._wanted_s = inf if wanted_s is None else wanted_s
        for instruction in self.core.take_instructions():
            if isinstance(instruction, Send):
                self._after(self.model.rtt_s / 2, "came", instruction)

    def _handle(self, what: str, value: Any) -> None:
        if what == "came":
            self._work(value)
        elif what == "worked":
            self._to_commit.append(value)
            self._commit()
        elif what == "committed":
            self._committing = False
            for send in value:
                self._after(self.model.rtt_s / 2, "answered", send)
            self._commit()
        else:
            self._answer(value)

    def _work(self, send: Send) -> None:
        if send.kind not in (Kind.PUT, Kind.PUT_MANY):
            self._after(self.model.rtt_s / 2, "answered", send)
            return
        batches = len(send.tag.parts)
        took_s = self.model.request_s + batches * self.model.batch_s
        self.requests += 1
        self.batches += batches
        self.busy_s += took_s
        self._free_s = max(self._free_s, self.now_s) + took_s
        self._after(self._free_s - self.now_s, "worked", send)

    def _commit(self) -> None:
        if self._committing or not self._to_commit:
            return
        model = self.model
        is_slow = model.slow_from_s <= self.now_s < model.slow_until_s
        self._committing = True
        self._after(model.slow_commit_s if is_slow else model.commit_s, "committed", list(self._to_commit))
        self._to_commit.clear()

    def _answer(self, send: Send) -> None:
        body: bodies.Body = bodies.Done()
        if send.kind == Kind.REGISTER:
            body = bodies.Registered(1, 1)
        elif send.kind == Kind.OPEN:
            assert isinstance(send.body, bodies.Open)
            body = bodies.Opened(tuple((number, 0, "") for number in range(1, len(send.body.topics) + 1)))
        elif send.kind in (Kind.PUT, Kind.PUT_MANY):
            parts = send.tag.parts
            self.answered_s.update((batch.stamp, self.now_s) for _, batch in parts)
            count = len(parts)
            body = bodies.PutDone(parts[0][1].number, 0, 0, _CREDIT, inf)
            if send.kind == Kind.PUT_MANY:
                body = bodies.PutsDone((0,) * count, (0,) * count, (_CREDIT,) * count, inf)
        self.core.on_reply(send.tag, Reply(Kind.ACK, msgspec.msgpack.encode(body)), self.now_s)


def simulate_topics(model: TopicsModel, *, seed: int) -> TopicsOutcome:
    """Run the model once; the same model and seed give the same outcome."""
    run = _Run(model, seed)
    run.run()
    put_s = np.array(run.put_s)
    end_s = np.array([run.answered_s.get(batch.stamp, np.nan) if batch.done else np.nan for batch in run.batch_of])
    took_s = np.where(np.isnan(end_s), run.now_s, end_s) - put_s[: len(end_s)]
    calm = (put_s < model.slow_from_s - 0.1) | (put_s > model.slow_until_s + model.slow_commit_s)
    counted = took_s[(put_s >= min(1.0, model.seconds / 4)) & calm]
    p50_s, p99_s = np.percentile(counted, [50, 99]) if len(counted) else (np.nan, np.nan)
    seen = next(iter(run.core.seen(run.now_s).values()))
    return TopicsOutcome(
        topics=model.topics,
        messages=len(put_s),
        unanswered=int(np.isnan(end_s).sum()),
        requests=run.requests,
        batches=run.batches,
        batches_per_request=run.batches / max(1, run.requests),
        messages_per_batch=run.core.messages_stored / max(1, run.core.batches_stored),
        p50_ms=float(1000 * p50_s),
        p99_ms=float(1000 * p99_s),
        poll_interval_ms=1000 * seen.poll_interval_s,
        broker_busy=run.busy_s / run.now_s,
        broker_us=1e6 * run.busy_s / max(1, len(put_s)),
        recovered_s=_recovered_s(model, put_s, took_s),
    )


def _recovered_s(model: TopicsModel, put_s: Any, took_s: Any) -> float | None:
    """Return how long after the broker was slow it takes until the median of 0.1 s is at most twice that of before."""
    before = took_s[(put_s > min(1.0, model.slow_from_s / 2)) & (put_s < model.slow_from_s - 0.1)]
    if model.slow_until_s >= model.seconds or not len(before):
        return None
    for begin_s in np.arange(model.slow_until_s, model.seconds, 0.1):
        some = took_s[(put_s >= begin_s) & (put_s < begin_s + 0.1)]
        if len(some) and np.median(some) <= 2 * np.median(before):
            return float(begin_s - model.slow_until_s)
    return None
