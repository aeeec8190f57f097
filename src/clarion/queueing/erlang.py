"""Erlang's formulas for m servers with a load of a = arrival rate / service rate, by a recursion that cannot overflow.

Loads and servers are in the textbooks' sense: Poisson arrivals and, for Erlang C, exponential service times.
"""

from __future__ import annotations

import math


def erlang_b(servers: int, load: float) -> float:
    """Return the probability that all servers are busy where nobody waits: B(0) = 1, B(m) = aB(m-1) / (m + aB(m-1)).

    Each step has only positive terms, so that rounding errors add up and nothing cancels.
    """
    assert servers >= 0, "a number of servers"
    assert 0 <= load < math.inf, "a load"
    blocked = 1.0
    for count in range(1, servers + 1):
        offered = load * blocked
        blocked = offered / (count + offered)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Return the probability that an arrival waits, M/M/m; 1 where the load is too much for the servers."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return servers * blocked / ((servers - load) + load * blocked)


def queue_length_mmm(servers: int, load: float) -> float:
    """Return how many wait on average, M/M/m: L - a of the paper's Equation 1; infinite where there is no steady
    state."""
    if load >= servers:
        return math.inf
    return erlang_c(servers, load) * load / (servers - load)
