"""Formulas of queueing theory: Erlang C, the GI/G/m queue, and networks of them by decomposition. Numbers only.

`Network` predicts for given servers at each station; `minimise_length` and `minimise_cost` choose the servers.
"""

from clarion.queueing.allocation import Allocation, Costs, Step, minimise_cost, minimise_length
from clarion.queueing.erlang import erlang_b, erlang_c
from clarion.queueing.gi_g_m import APPROXIMATIONS, Approximation, queue_length, waiting_time
from clarion.queueing.network import JobClass, Network

__all__ = [
    "APPROXIMATIONS",
    "Allocation",
    "Approximation",
    "Costs",
    "JobClass",
    "Network",
    "Step",
    "erlang_b",
    "erlang_c",
    "minimise_cost",
    "minimise_length",
    "queue_length",
    "waiting_time",
]
