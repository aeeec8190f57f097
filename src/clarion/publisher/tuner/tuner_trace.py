"""What can be seen of a tuner at one moment; a list of these is a trace, from a real publisher or a simulated one."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Mapping, Sequence
from io import StringIO
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
    at_s, batch_size, poll_interval_s, load_per_s, capacity_per_s, credit, pending, published = values
    return Sample(
        float(at_s), int(batch_size), float(poll_interval_s), float(load_per_s), float(capacity_per_s),
        int(credit), int(pending), int(published),
    )  # fmt: skip
