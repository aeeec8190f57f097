"""What can be seen of a tuner at one moment; a list of these is a trace, from a real publisher or a simulated one."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


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


class Trace:
    """The last so many samples of a publisher, by topic."""

    def __init__(self, samples: int) -> None:
        self._samples: deque[tuple[bytes, Sample]] = deque(maxlen=samples)

    def add(self, topic: bytes, sample: Sample) -> None:
        """Keep a sample; the oldest goes for it."""
        self._samples.append((topic, sample))

    def of(self, topic: bytes) -> list[Sample]:
        """Give the samples of a topic, the oldest first."""
        return [sample for found, sample in self._samples if found == topic]
