"""How many servers each station of a network gets: greedily, then searched exactly where that is within reach.

Both algorithms are of "Resource Management for Elastic Publish Subscribe Systems": MinTime (least work in progress
within a budget) and MinCost (least cost that keeps work in progress within a bound). Each adds, again and again, the
server that takes away the most for its cost. Where times are exponential and costs even, that is the optimum; elsewhere
it need not be, so every answer is held against a bound:

* The scv of arrivals at a station depends on all servers, but is not below `Network.least_arrival_scvs`. With those,
  the length of a station depends on its own servers only, and is too short at worst.
* Such a sum is bounded by Lagrange's multiplier: what is limited gets a price, and each station chooses for itself.

The same prices say which choices of a station cannot be part of anything better than what was found. Where the others
are few enough to try all of them, the best is the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clarion.queueing.gi_g_m import Counts, Floats
from clarion.queueing.network import Network

_SAME = 1e-11  # relative: less is rounding
_NO_GAIN = 1e-13  # relative: a server that saves less saves nothing
_MOST_TRIED = 20_000
_MOST_WORK = 2e7  # of the systems of equations solved at once, each the cube of its stations
_OPTIONS = 64  # of servers at a station, beyond what the greedy chose, that are looked at
_ROUNDS = 50


class Step(NamedTuple):
    """One server more: where, how many there are then, and how many jobs are then at each station."""

    station: int
    servers: int
    lengths: Floats


class Allocation(NamedTuple):
    """Servers of each station, how one gets there from one each, and how much better it could be at most."""

    servers: Counts
    steps: list[Step]
    gap: float  # share of what was minimised that a better answer could save, at most
    exact: bool  # nothing better exists


class Costs:
    """What servers cost beyond the first of a station: the cost of the 2nd, 3rd, …, of which the last repeats."""

    def __init__(self, marginal: Sequence[Sequence[float]]) -> None:
        width = max(len(one) for one in marginal)
        self._marginal: Floats = np.array([[*one, *[one[-1]] * (width - len(one))] for one in marginal], np.float64)
        self._sums: Floats = np.concatenate([np.zeros((len(marginal), 1)), np.cumsum(self._marginal, axis=1)], axis=1)
        self._rows = np.arange(len(marginal))

    def of(self, servers: Counts) -> Floats:
        """Return the cost at each station (the last axis)."""
        width = self._marginal.shape[1]
        known = np.minimum(servers - 1, width)
        return np.asarray(self._sums[self._rows, known] + (servers - 1 - known) * self._marginal[:, -1])

    def total(self, servers: Counts) -> Floats:
        """Return the cost of all stations."""
        return np.asarray(self.of(servers).sum(axis=-1))

    def next(self, station: int, servers: int) -> float:
        """Return the cost of one more at a station that has so many."""
        return float(self._marginal[station, min(servers, self._marginal.shape[1]) - 1])


class _Goal(NamedTuple):
    """What is asked for: least weighted length at a cost of at most `limit`, or least cost at such a length."""

    network: Network
    costs: Costs
    weights: Floats
    limit: float
    is_time: bool

    def judge(self, servers: Counts) -> tuple[Floats, Floats, NDArray[np.bool]]:
        """Return for each row what is minimised, what decides between equals, and whether it is within the limit."""
        length = self.network.lengths(servers) @ self.weights
        cost = self.costs.total(servers)
        aim, bounded = (length, cost) if self.is_time else (cost, length)
        return aim, bounded, bounded <= self.limit + _SAME * abs(self.limit)

    def best(self, servers: Counts) -> Counts:
        """Return the best row."""
        aim, other, ok = self.judge(servers)
        aim = np.where(ok, aim, math.inf)
        tied = np.flatnonzero(aim <= aim.min() * (1 + _SAME))
        return np.asarray(servers[tied[np.argmin(other[tied])]])

    def affordable(self) -> int:
        """Return how many rows may be judged in one search."""
        return int(min(_MOST_TRIED, _MOST_WORK / len(self.weights) ** 3))


def minimise_length(network: Network, weights: Floats, costs: Costs, budget: float) -> Allocation:
    """Return the servers with the least weighted length that cost at most `budget` beyond one each (MinTime).

    The budget gives every station a steady state: `costs.total(network.table.least)` is within it.
    """
    goal = _Goal(network, costs, weights, budget, is_time=True)
    servers, steps = _climb(goal, network.table.least)
    return _proven(goal, servers, steps)


def minimise_cost(network: Network, costs: Costs, length: float) -> Allocation | None:
    """Return the least costly servers with at most `length` in the network (MinCost); None where no number of servers
    does that."""
    goal = _Goal(network, costs, np.ones(len(network.loads)), length, is_time=False)
    servers, steps = _climb(goal, network.table.least)
    if not goal.judge(servers)[2]:
        return None
    return _proven(goal, servers, steps)


def _climb(goal: _Goal, start: Counts, most: Counts | None = None) -> tuple[Counts, list[Step]]:
    """Add servers greedily from `start`, the scv of arrivals told anew after each; up to `most` where that is given."""
    network, costs, weights = goal.network, goal.costs, goal.weights
    flow = network.follow(start)
    price = np.array([costs.next(station, int(count)) for station, count in enumerate(start)])
    spent = float(costs.total(start))
    is_budget = goal.is_time and most is None
    room = goal.limit + _SAME * abs(goal.limit)
    steps: list[Step] = []
    while True:
        queues, fewer = network.table.queues_and_next(flow.servers, flow.scvs)
        lengths = network.loads + queues
        if steps:
            steps[-1] = steps[-1]._replace(lengths=lengths)
        weighted = float(lengths @ weights)
        if most is None and not goal.is_time and weighted <= goal.limit:
            break
        gain = (queues - fewer) * weights
        worth = gain / price
        if is_budget:
            worth[price > room - spent] = -math.inf
        if most is not None:
            worth[flow.servers >= most] = -math.inf
        station = int(worth.argmax())
        if worth[station] == -math.inf or (most is None and gain[station] <= _NO_GAIN * weighted):
            break
        spent += float(price[station])
        flow.add(station)
        count = int(flow.servers[station])
        price[station] = costs.next(station, count)
        steps.append(Step(station, count, lengths))  # which are told in the next round
    return flow.servers, steps


def _proven(goal: _Goal, found: Counts, steps: list[Step]) -> Allocation:
    """Hold an answer against a bound; search for a better one where there may be one."""
    bound = _Bound(goal, found)
    aim = float(goal.judge(found)[0])
    exact = aim - bound.value <= _SAME * aim
    best = found
    if not exact:
        rows = bound.within_reach(aim)
        exact = rows is not None
        best = goal.best(np.vstack([rows, found])) if rows is not None else _improved(goal, found)
    if not np.array_equal(best, found):
        _, steps = _climb(goal, goal.network.table.least, best)
        aim = float(goal.judge(best)[0])
    gap = 0.0 if exact or not aim else max(0.0, 1 - bound.value / aim)
    return Allocation(best, steps, gap, exact)


class _Bound:
    """What no answer can be below, and which choices of a station may be part of a better answer.

    Options of a station are numbers of servers, from the least on. The last one stands for all that are more: as dear
    as the first of them, as short as with infinitely many.
    """

    def __init__(self, goal: _Goal, found: Counts) -> None:
        network, table = goal.network, goal.network.table
        self._goal = goal
        count = _OPTIONS + int((found - table.least).max())
        options = table.least + np.arange(count)[:, None]  # by option and station
        costs = goal.costs.of(options)
        money = goal.limit if goal.is_time else float(goal.costs.total(found))  # nothing better costs more
        can_be_paid = costs - costs[0] <= money * (1 + _SAME) - costs[0].sum()
        most = np.where(can_be_paid[-1], math.inf, table.least + can_be_paid.sum(axis=0) - 1)
        queues = table.queues(options, network.least_arrival_scvs(most))
        queues[-1] = 0.0
        lengths = (network.loads + queues) * goal.weights
        self._aims, self._bounded = (lengths, costs) if goal.is_time else (costs, lengths)
        self._aims = np.where(can_be_paid, self._aims, math.inf)
        self.value, self._price = self._best_price()

    def _best_price(self) -> tuple[float, float]:
        """Return the highest bound, and the price for which it holds; it is concave in the price."""
        best = (float(self._aims.min(axis=0).sum()), 0.0)
        low, high = 0.0, math.inf
        price = 1.0
        for _ in range(120):
            value, excess = self._bound_at(price)
            best = max(best, (value, price))
            if excess > 0:
                low, price = price, (2 * price if math.isinf(high) else (price + high) / 2)
            else:
                high, price = price, (low + price) / 2
            if not math.isinf(high) and high - low <= 1e-13 * high:
                break
        return best

    def _bound_at(self, price: float) -> tuple[float, float]:
        priced = self._aims + price * self._bounded
        chosen = priced.argmin(axis=0), np.arange(priced.shape[1])
        used = float(self._bounded[chosen].sum())
        return float(priced[chosen].sum()) - price * self._goal.limit, used - self._goal.limit

    def within_reach(self, aim: float) -> Counts | None:
        """Return everything that could be better than `aim`; None where it is too much to try."""
        priced = self._aims + self._price * self._bounded
        excess = priced - priced.min(axis=0)  # what a choice adds to the bound
        slack = aim - self.value + _SAME * aim
        limit = self._goal.limit + _SAME * abs(self._goal.limit)
        least_left = np.append(np.cumsum(self._bounded.min(axis=0)[::-1])[::-1], 0.0)
        rows = np.zeros((1, 0), np.int64)
        added, used = np.zeros(1), np.zeros(1)
        for station, least in enumerate(self._goal.network.table.least):
            more = added[:, None] + excess[:, station]
            spent = used[:, None] + self._bounded[:, station]
            row, option = np.nonzero((more <= slack) & (spent + least_left[station + 1] <= limit))
            if len(row) > self._goal.affordable() or (option == len(excess) - 1).any():
                return None
            rows = np.column_stack([rows[row], least + option])
            added, used = more[row, option], spent[row, option]
        return rows


def _improved(goal: _Goal, servers: Counts) -> Counts:
    """Move, add or take away single servers for as long as that is better and not too much to try."""
    count = len(servers)
    if (count + 1) ** 2 > goal.affordable():
        return servers
    one = np.vstack([np.zeros((1, count), np.int64), np.eye(count, dtype=np.int64)])
    changes = (one[:, None, :] - one[None, :, :]).reshape(-1, count)  # the first changes nothing
    for _ in range(_ROUNDS):
        around = servers + changes
        better = goal.best(around[(around >= goal.network.table.least).all(axis=1)])
        if np.array_equal(better, servers) or not _is_better(goal, better, servers):
            break
        servers = better
    return servers


def _is_better(goal: _Goal, one: Counts, other: Counts) -> bool:
    aims, seconds, _ = goal.judge(np.vstack([one, other]))
    if abs(aims[0] - aims[1]) > _SAME * abs(aims[1]):
        return bool(aims[0] < aims[1])
    return bool(seconds[0] < seconds[1] * (1 - _SAME))
