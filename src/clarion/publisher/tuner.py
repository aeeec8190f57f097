"""The publisher's control algorithm: facts and time in, decisions out. Its settings, its policies, what can be seen.

The real publisher and the simulator run these very lines.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from io import StringIO
from math import ceil, inf
from typing import Literal, NamedTuple

from clarion.model.ids import MAX_BATCH_MESSAGES


@dataclass(frozen=True, slots=True)
class TunerSettings:
    """What a tuner is told before it begins. The defaults are those of the tuned publisher's Table I."""

    batch_size: int = 1  # N to begin with; for ever where nothing tunes it
    batch_size_min: int = 1  # N_min
    batch_size_max: int = MAX_BATCH_MESSAGES  # what no estimate of the capacity (N_max) lifts it above
    poll_min_s: float = 0.050  # T_poll_min; T_poll where nothing tunes it
    poll_max_s: float = 0.200  # T_poll_max
    wait_s: float | None = None  # T; None: T_poll_max
    poll_factor: float = 1.2  # beta
    load_gain: float = 0.5  # alpha
    capacity_gain: float = 0.75  # gamma
    publishes_in_transfer: int = 20  # which "eager" spreads over the time of a transfer
    workers: int | None = None  # that take messages one by one to the broker; None: they travel packed, in one transfer
    takes_all: bool = False  # whether a full poll takes all that is pending and not N, where messages travel packed
    polls_on_arrival: bool = False  # whether a poll is due as soon as N are pending, not only when T_poll is over

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, default = getattr(self, setting.name), setting.default
            is_whole = isinstance(default, int)
            if value is not default and not isinstance(value, int if is_whole else (int, float)):
                raise TypeError(f"{setting.name} is a {'whole ' if is_whole else ''}number, not {value!r}")
        if not 1 <= self.batch_size_min <= self.batch_size <= self.batch_size_max:
            raise ValueError(
                "batch sizes are at least 1, in the order batch_size_min, batch_size, batch_size_max; not"
                f" {self.batch_size_min}, {self.batch_size}, {self.batch_size_max}"
            )
        if not 0 < self.poll_min_s <= self.poll_max_s < inf:
            raise ValueError(f"0 < poll_min_s <= poll_max_s < inf, not {self.poll_min_s:g} and {self.poll_max_s:g}")
        if self.wait_s is not None and not 0 <= self.wait_s < inf:
            raise ValueError(f"wait_s is from 0 on and finite, not {self.wait_s:g}")
        if not (0 <= self.load_gain < 1 and 0 <= self.capacity_gain < 1):
            raise ValueError(f"gains are from 0 to below 1, not {self.load_gain:g} and {self.capacity_gain:g}")
        if not 0 < self.poll_factor < inf or self.publishes_in_transfer < 1:
            raise ValueError("poll_factor is above 0 and finite, publishes_in_transfer at least 1")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"there is at least one worker, not {self.workers}")

    @property
    def longest_wait_s(self) -> float:
        """T: how long messages wait for others at most, from the end of the last publish."""
        return self.poll_max_s if self.wait_s is None else self.wait_s


PAPER = TunerSettings()

# On a LAN a transfer takes a millisecond or so, and a poll nothing: the tuned publisher's 50 ms would be felt by every
# message that is not alone. So T_poll begins at 1 ms, and enough pending messages are an event, not something to be
# polled for. A batch costs one transfer whatever is in it, so a publish takes all there is; only "fixed" ends it at N.
LAN = TunerSettings(poll_min_s=0.001, takes_all=True, polls_on_arrival=True)

_PUBLISHES_MIN = 2  # of many topics: one is with the broker while the next is on its way
_LAG_UNNOTICED_S = 0.25  # of readers who keep up, but for a stall now and then
_LAG_SHARE = 0.5  # of what they are behind beyond that, which a publish of many topics may gather for
_BATCHES_UNNOTICED_PER_S = 2000  # by readers: fewer need not be made of them
_RECENT_FACTOR = 2.0  # of the longer of the last two transfers, which the estimate does not exceed


class Publish(NamedTuple):
    """Read this many pending messages, the oldest first, and hand them to workers."""

    messages: int


class Wait(NamedTuple):
    """Publish nothing; poll again at this time, or (see `Tuner.polls_when_idle`) when something is pending."""

    until_s: float


class Sample(NamedTuple):
    """A tuner after a poll."""

    at_s: float
    batch_size: int  # N
    poll_interval_s: float  # T_poll
    load_per_s: float  # lambda_est
    capacity_per_s: float  # eta_est; 0 while nothing was transferred
    credit: int  # messages the broker would take; -1: no bound is known
    pending: int  # before this poll
    published: int  # by this poll


class Tuner(ABC):
    """Decides when to publish and how much (the MPT of the tuned publisher, Fig. 5 and 7).

    Whoever drives it polls when `poll_due_s` says, does what `on_poll` answers, and tells `on_published` when all of a
    publish has been handed to workers, and `on_transferred` whenever the broker has confirmed some of it.
    """

    polls_when_idle = True  # whether a poll with nothing pending means something to it
    of_connection = False  # whether one decides for all topics of a publisher; else each has its own

    def __init__(self, settings: TunerSettings, now_s: float) -> None:
        self.settings = settings
        self.batch_size = settings.batch_size  # N
        self.poll_interval_s = settings.poll_min_s  # T_poll
        self.load_per_s = 0.0  # lambda_est
        self.capacity_per_s = 0.0  # eta_est; 0: nothing was transferred yet
        self.credit = -1  # as told by the last poll; -1: no bound is known
        self.pending = 0  # at the last poll, less what it published
        self.topics = 1  # that were pending then
        self.readers_lag_s = 0.0  # of the quickest of any topic, as told with the last publish of many topics
        self._polled_s = now_s
        self._sampled_s = now_s
        self._arrived = 0  # since then
        self._next_poll_s = now_s
        self._waits_since_s = now_s  # T counts from here
        self._idle_since_s: float | None = None
        self._lacked_credit = False  # the last poll would have published; a poll at once would not, either

    @property
    def batch_size_max(self) -> int:
        """N_max: the capacity estimate, messages a second used as a count, as the tuned publisher writes it."""
        settings = self.settings
        if not self.capacity_per_s:
            return settings.batch_size_max
        return max(settings.batch_size_min, min(settings.batch_size_max, int(self.capacity_per_s)))

    @property
    def gathers(self) -> int:
        """How many messages gather for one batch, where messages travel packed: as many as fit, since a batch costs
        one transfer whatever is in it. N then is how many it takes for a batch to leave."""
        return self.settings.batch_size_max

    def poll_due_s(self, in_transfer: int, pending: int = 0, publishes: int = 0) -> float:
        """Return when to poll next, with so many messages in transfer and pending, and so many publishes not answered
        yet; a moment that has passed means at once, `inf` that an answer has to come first."""
        if self.settings.polls_on_arrival and pending >= self.batch_size and not self._lacked_credit:
            return self._polled_s
        return self._next_poll_s

    def on_poll(self, *, pending: int, now_s: float, credit: int | None = None, topics: int = 1) -> Publish | Wait:
        """Decide whether this poll publishes, and how much. `credit` is how many messages the broker would take;
        None where nobody counts them. What is pending is of so many `topics`."""
        self._catch_up(now_s)
        self.topics = topics
        self._estimate_load(pending, now_s)
        self.credit = -1 if credit is None else max(0, credit)
        self._polled_s = now_s
        if not pending and self._expired(now_s):
            self._waits_since_s = now_s  # T over an empty store begins again
        wanted = min(self._choose(pending, now_s), pending)
        self._next_poll_s = now_s + self.poll_interval_s
        count = wanted if credit is None else min(wanted, self.credit)
        self._lacked_credit = wanted > count == 0
        self.pending = pending - count
        return Publish(count) if count else Wait(self._next_poll_s)

    def on_published(self, *, took_s: float, now_s: float, read_s: float = 0.0) -> None:
        """Take in that all of the last publish has been handed to workers, `took_s` (T_mpt) after its poll; the first
        `read_s` of that went by reading the store."""
        self._waits_since_s = now_s
        self._adapt(took_s)

    def on_transferred(self, *, took_s: float, in_transfer: int) -> None:
        """Take in that a transfer took s_i = `took_s` while n_i = `in_transfer` messages were under way (Eq. 2)."""
        if took_s <= 0 or in_transfer <= 0:
            return
        gain = self.settings.capacity_gain
        capacity = in_transfer / took_s
        self.capacity_per_s = gain * self.capacity_per_s + (1 - gain) * capacity if self.capacity_per_s else capacity

    def on_idle(self, now_s: float) -> None:
        """Take in that nothing is pending, and that nobody polls until something is."""
        if self._idle_since_s is None:
            self._idle_since_s = now_s

    def sample(self, now_s: float, pending: int, published: int) -> Sample:
        """Return what can be seen now; right after `on_poll`, of what was pending then and published by it."""
        return Sample(
            now_s, self.batch_size, self.poll_interval_s, self.load_per_s, self.capacity_per_s, self.credit,
            pending, published,
        )  # fmt: skip

    @abstractmethod
    def _choose(self, pending: int, now_s: float) -> int:
        """Return how many messages this poll should publish, at most what is pending."""

    @abstractmethod
    def _adapt(self, took_s: float) -> None:
        """Tune after a publish that took so long."""

    def _all(self, pending: int) -> int:
        """Return what a publish takes that takes all: no more than there are workers. More would only wait for them,
        while its read keeps those waiting who write to the store."""
        workers = self.settings.workers
        return pending if workers is None else min(pending, workers)

    def _after_idle(self, missed_polls: int) -> None:  # noqa: B027
        """Make up for polls that found nothing, because nobody made them."""

    def _expired(self, now_s: float) -> bool:
        """Whether T is over."""
        return now_s - self._waits_since_s >= self.settings.longest_wait_s - 1e-9

    def _estimate_load(self, pending: int, now_s: float) -> None:
        """Eq. 1, with the messages that came since the last sample. Polls closer than T_poll_min share one, and so does
        a silence with the message that ends it."""
        self._arrived += max(0, pending - self.pending)
        elapsed_s = now_s - self._sampled_s
        if elapsed_s < self.settings.poll_min_s - 1e-9:
            return
        gain = self.settings.load_gain
        self.load_per_s = gain * self.load_per_s + (1 - gain) * self._arrived / elapsed_s
        self._sampled_s = now_s
        self._arrived = 0

    def _catch_up(self, now_s: float) -> None:
        if self._idle_since_s is None:
            return
        intervals = (now_s - self._idle_since_s) / self.poll_interval_s
        missed = max(0, ceil(intervals - 1e-6) - 1)  # before this one
        self._idle_since_s = None
        if missed:
            self._after_idle(missed)
            self._waits_since_s = now_s


class LiteralTuner(Tuner):
    """AIMD on N: halved by a poll that finds too little, moved by one after a publish."""

    rechecks = False

    def __init__(self, settings: TunerSettings, now_s: float) -> None:
        super().__init__(settings, now_s)
        self._interval_in_force_s = self.poll_interval_s
        self._moves = False  # whether the publish under way moves N when it is over

    def on_transferred(self, *, took_s: float, in_transfer: int) -> None:
        super().on_transferred(took_s=took_s, in_transfer=in_transfer)
        self.batch_size = min(self.batch_size, self.batch_size_max)

    def _choose(self, pending: int, now_s: float) -> int:
        self._interval_in_force_s = self.poll_interval_s
        self._moves = pending >= self.batch_size
        if self._moves:
            return max(self.batch_size, self._all(pending)) if self.settings.takes_all else self.batch_size
        self.batch_size = max(self.settings.batch_size_min, self.batch_size // 2)
        if self.rechecks and pending >= self.batch_size:
            return pending
        return pending if self._expired(now_s) else 0

    def _adapt(self, took_s: float) -> None:
        settings = self.settings
        self.poll_interval_s = max(min(settings.poll_factor * took_s, settings.poll_max_s), settings.poll_min_s)
        if self._moves:
            step = 1 if took_s < self._interval_in_force_s else -1
            self.batch_size = max(settings.batch_size_min, min(self.batch_size + step, self.batch_size_max))

    def _after_idle(self, missed_polls: int) -> None:
        self.batch_size = max(self.settings.batch_size_min, self.batch_size >> min(missed_polls, 31))


class RecheckTuner(LiteralTuner):
    """As `LiteralTuner`, but what is pending after halving leaves at once if it is enough for the new N."""

    rechecks = True


class EagerTuner(Tuner):
    """Publishes all that is pending, at most once each T_poll while anything is in transfer.

    Nobody has to know what a read costs: while one is under way the next batch gathers, so batches grow with the load
    and with the cost. T_poll spreads the publishes that may be in transfer evenly over the time a transfer takes, and
    is not shorter than beta times the last read: what came during a read is written only after it, and would miss a
    poll at its very end by a moment, and so wait for another whole read. Where each message needs a worker, a publish
    takes no more than there are workers, and the next follows at once while as many are pending.

    A publish of many topics is a batch for each, and costs as many times as much. So the batches that may be in
    transfer are shared by the topics: the more there are, the fewer publishes are spread over a transfer, two at least,
    and no more than those are ever unanswered. Then it is the broker that says when the next one leaves: it gathers
    until the broker is done with one, whatever that takes just now. Readers, too, have to take each batch: where even
    the quickest of each topic is behind, publishes of many topics gather for a part of that time, if there are
    thousands of batches a second otherwise.
    """

    polls_when_idle = False
    of_connection = True

    def __init__(self, settings: TunerSettings, now_s: float) -> None:
        super().__init__(settings, now_s)
        self.transfer_s = 0.0  # s_est
        self._took_s = 0.0  # by the last transfer
        self._read_s = 0.0  # what the last publish took to read the store
        self._paused_until_s = now_s  # for those who write to it
        self.publishes_max = settings.publishes_in_transfer

    @property
    def batch_size_max(self) -> int:
        """What fits into a batch: an estimate of the capacity in use is no reason to hold back a burst."""
        return self.settings.batch_size_max

    def poll_due_s(self, in_transfer: int, pending: int = 0, publishes: int = 0) -> float:
        """A lone message on an idle publisher leaves at once, and so does as much as one publish takes."""
        if publishes >= self.publishes_max:
            return inf
        workers = self.settings.workers
        if workers is not None and pending >= workers and not self._lacked_credit:
            return self._polled_s
        if in_transfer or self._lacked_credit or self._gather_s:
            return max(self._next_poll_s, self._paused_until_s)
        return self._paused_until_s

    def on_published(self, *, took_s: float, now_s: float, read_s: float = 0.0) -> None:
        super().on_published(took_s=took_s, now_s=now_s, read_s=read_s)
        self._read_s = read_s
        pause_s = min((self.settings.poll_factor - 1) * read_s, self.settings.poll_max_s)  # beyond the read
        self._paused_until_s = self._polled_s + read_s + pause_s
        self._set_poll_interval()

    def on_transferred(self, *, took_s: float, in_transfer: int) -> None:
        super().on_transferred(took_s=took_s, in_transfer=in_transfer)
        gain = self.settings.capacity_gain
        estimate_s = gain * self.transfer_s + (1 - gain) * took_s if self.transfer_s else took_s
        # Two quick transfers say that what slowed the others is over: the mean alone would need dozens to forget it.
        self.transfer_s = min(estimate_s, _RECENT_FACTOR * max(took_s, self._took_s))
        self._took_s = took_s
        self._set_poll_interval()

    @property
    def _gather_s(self) -> float:
        """How long messages of many topics gather for the sake of readers who are behind."""
        if self.topics == 1:
            return 0.0
        wanted_s = max(0.0, _LAG_SHARE * (self.readers_lag_s - _LAG_UNNOTICED_S))
        return min(wanted_s, self.topics / _BATCHES_UNNOTICED_PER_S)

    def _set_poll_interval(self) -> None:
        settings = self.settings
        most = settings.publishes_in_transfer
        # So many, of as many topics as the last, are spread over a transfer, and may be unanswered.
        self.publishes_max = max(most // self.topics, min(most, _PUBLISHES_MIN))
        wanted_s = max(self.transfer_s / self.publishes_max, settings.poll_factor * self._read_s, self._gather_s)
        self.poll_interval_s = max(min(wanted_s, settings.poll_max_s), settings.poll_min_s)

    def _choose(self, pending: int, now_s: float) -> int:
        self._set_poll_interval()
        wanted = self._all(pending)
        taken = wanted if self.credit < 0 else min(wanted, self.credit)
        if taken:  # N is what leaves, not what waits for credit
            self.batch_size = max(self.settings.batch_size_min, min(taken, self.batch_size_max))
        return wanted

    def _adapt(self, took_s: float) -> None:
        """The next publish gathers while this one is under way: there is nothing else to set."""


class FixedTuner(Tuner):
    """Publishes N when N are pending, or after T whatever is."""

    @property
    def gathers(self) -> int:
        """N, and no more."""
        return self.batch_size

    def poll_due_s(self, in_transfer: int, pending: int = 0, publishes: int = 0) -> float:
        """Where enough pending messages are an event, there is nothing to look for before T is over."""
        if self.settings.polls_on_arrival and 0 < pending < self.batch_size and self._idle_since_s is None:
            return max(self._next_poll_s, self._waits_since_s + self.settings.longest_wait_s)
        return super().poll_due_s(in_transfer, pending)

    def _choose(self, pending: int, now_s: float) -> int:
        if pending >= self.batch_size:
            return self.batch_size
        return pending if self._expired(now_s) else 0

    def _adapt(self, took_s: float) -> None:
        """Nothing changes."""


Tuning = Literal["auto", "eager", "recheck", "literal", "fixed"]
POLICIES: dict[str, type[Tuner]] = {
    "fixed": FixedTuner,
    "literal": LiteralTuner,
    "recheck": RecheckTuner,
    "eager": EagerTuner,
}
DEFAULT = "eager"  # what "auto" means


def make_tuner(policy: str, settings: TunerSettings, now_s: float) -> Tuner:
    """Make the tuner of a policy: one of `POLICIES`, or "auto" for the best of them."""
    chosen = POLICIES.get(DEFAULT if policy == "auto" else policy) if isinstance(policy, str) else None
    if chosen is None:
        raise ValueError(f'tuning is "auto" or one of {", ".join(POLICIES)}; not {policy!r}')
    return chosen(settings, now_s)


def with_batch_size(settings: TunerSettings, batch_size: int | None) -> TunerSettings:
    """Return the settings with another N to begin with, or as they are."""
    if not isinstance(settings, TunerSettings):
        raise TypeError(f"tuner is TunerSettings, not {type(settings).__name__}")
    return settings if batch_size is None else replace(settings, batch_size=batch_size)


class Trace:
    """The last so many samples of a publisher, by topic."""

    def __init__(self, samples: int) -> None:
        if samples < 0:
            raise ValueError(f"trace_samples is from 0 on, not {samples}")
        self._samples: deque[tuple[bytes, Sample]] = deque(maxlen=samples)

    def add(self, topic: bytes, sample: Sample) -> None:
        """Keep a sample; the oldest goes for it."""
        self._samples.append((topic, sample))

    def of(self, topic: bytes) -> list[Sample]:
        """Return the samples of a topic, the oldest first."""
        return [sample for found, sample in self._samples if found == topic]


_COLUMNS = ("publisher", *Sample._fields)


def trace_to_csv(traces: Mapping[str, Sequence[Sample]]) -> str:
    """Return traces by the name of who made them (a topic, a publisher) as CSV: what `clarion simulate publisher
    --trace-out` writes, and `clarion simulate plot-trace` draws."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for name, samples in traces.items():
        writer.writerows([name, *sample] for sample in samples)
    return text.getvalue()


def trace_from_csv(text: str) -> dict[str, list[Sample]]:
    """Read what `trace_to_csv` gave; ValueError, with the line, where it did not."""
    rows = csv.reader(StringIO(text), strict=True)
    found: dict[str, list[Sample]] = {}
    try:
        if tuple(next(rows, ())) != _COLUMNS:
            raise ValueError(f"line 1: the columns of a tuner's trace are {', '.join(_COLUMNS)}")
        for row in rows:
            try:
                name, *values = row
                found.setdefault(name, []).append(_read_sample(values))
            except ValueError as error:
                raise ValueError(f"line {rows.line_num}: this is no sample of a tuner: {error}") from None
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num}: this is not CSV: {error}") from None
    return found


def _read_sample(values: Sequence[str]) -> Sample:
    kinds = (float, int, float, float, float, int, int, int)
    return Sample(*(kind(value) for kind, value in zip(kinds, values, strict=True)))
