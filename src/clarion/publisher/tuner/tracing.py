"""What can be seen of a tuner at one moment; a list of these is a trace, from a real publisher or a simulated one."""

from __future__ import annotations

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
