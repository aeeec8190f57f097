"""An open network of stations through which several classes of jobs go, by parametric decomposition.

Each station is taken for itself; what ties them together is the scv of arrivals. Equations are those of Appendix A of
"Resource Management for Elastic Publish Subscribe Systems":

* merge (3, 4): rates at a station add up; its scv is the mean of its classes', weighted by rate;
* follow-through (5): what departs is between what arrives and what is served, the more so the busier the servers;
* split (6): of a departing stream, each class takes its share, and the rest of it is as random as it came.

A fork gives each following station the whole stream of the class, and a join is one arrival for each job, with the mean
of its branches' scv. All three are linear in the scv, and of all coefficients only those of (5) depend on the servers.
So a network is two arrays: arrival scv = outside + mixing @ departure scv. It may have cycles of classes that go
opposite ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from clarion.queueing.gi_g_m import Approximation, Counts, Floats, StationTable


class JobClass(NamedTuple):
    """Jobs that go the same way: how often they come, and their stations, each after those it waits for."""

    rate: float
    scv: float
    route: Sequence[tuple[int, Sequence[int]]]  # a station, and the stations before it; none is a start


class Network:
    """Stations and the classes of jobs that go through them."""

    def __init__(
        self,
        service_rates: Sequence[float],
        service_scvs: Sequence[float],
        classes: Sequence[JobClass],
        approximation: Approximation = "qna",
    ) -> None:
        count = len(service_rates)
        self.arrival_rates: Floats = np.zeros(count)  # lambda_j of (3)
        for one in classes:
            for station, _ in one.route:
                self.arrival_rates[station] += one.rate
        self.total_rate = sum(one.rate for one in classes)
        self.loads: Floats = self.arrival_rates / np.array(service_rates)
        self.service_scvs: Floats = np.array(service_scvs, dtype=np.float64)
        self.table = StationTable(self.loads, self.service_scvs, approximation)
        self._outside: Floats = np.zeros(count)
        self._mixing: Floats = np.zeros((count, count))
        for one in classes:
            self._add_class(one)

    def _add_class(self, one: JobClass) -> None:
        """Add what this class brings to each station: merge (4) of split (6), written as a constant and a weight for
        the departures of each station."""
        count = len(self.loads)
        departing: dict[int, Floats] = {}
        for station, before in one.route:
            if not one.rate:
                continue
            if before:
                arriving = sum((departing[each] for each in before[1:]), departing[before[0]]) / len(before)
            else:
                arriving = np.zeros(count + 1)
                arriving[count] = one.scv
            share = one.rate / self.arrival_rates[station]
            self._mixing[station] += share * arriving[:count]
            self._outside[station] += share * arriving[count]
            leaving = (1 - share) ** 2 * arriving
            leaving[count] += (1 - share) * share
            leaving[station] += share
            departing[station] = leaving

    def departure_parts(self, servers: Counts) -> tuple[Floats, Floats]:
        """Return x and y of departure scv = x + y * arrival scv (5). Where there is no steady state servers are always
        busy; rates further on are told as if they could keep up."""
        busy = np.minimum(self.loads / servers, 1) ** 2
        return busy * (1 + (self.service_scvs - 1) / np.sqrt(servers)), 1 - busy

    def arrival_scvs(self, servers: Counts) -> Floats:
        """Return the scv of arrivals at each station (the last axis)."""
        if servers.ndim == 1:
            return self.follow(servers).scvs
        constant, factor = self.departure_parts(servers)
        matrix = np.eye(len(self.loads)) - self._mixing * factor[..., None, :]
        right = self._outside + constant @ self._mixing.T
        return np.asarray(np.linalg.solve(matrix, right[..., None])[..., 0])

    def queues(self, servers: Counts) -> Floats:
        """Return how many wait at each station."""
        return self.table.queues(servers, self.arrival_scvs(servers))

    def lengths(self, servers: Counts) -> Floats:
        """Return L: how many are at each station, waiting or served."""
        return self.loads + self.queues(servers)

    def least_arrival_scvs(self, most: Floats) -> Floats:
        """Return a bound from below of the scv of arrivals at each station, for any servers that have a steady state
        and are at most so many; infinitely many are, too.

        Departures (5) rise with arrivals, so that bounds of arrivals give bounds of departures, which give better
        bounds of arrivals. With u = m^-1/2 the departure scv is ca2 + a^2 ((1 - ca2) u^4 + (cs2 - 1) u^5), least at one
        end of what m can be, or where its derivative is 0.
        """
        ends = 1 / np.sqrt(most), 1 / np.sqrt(self.table.least)
        bound = np.zeros(len(self.loads))
        for _ in range(60):
            turn = 0.8 * (1 - bound) / np.where(self.service_scvs == 1, 1.0, 1 - self.service_scvs)
            points = (*ends, np.clip(turn, *ends))
            changes = [(1 - bound) * u**4 + (self.service_scvs - 1) * u**5 for u in points]
            departing = bound + self.loads**2 * np.minimum.reduce(changes)
            better = self._outside + (self._mixing * np.maximum(departing, 0)).sum(axis=1)
            if np.allclose(better, bound, rtol=1e-12, atol=0):
                break
            bound = better
        return bound

    def follow(self, servers: Counts) -> Flow:
        """Return the scv of arrivals as they change while servers are added one by one."""
        return Flow(self, servers, self._outside, self._mixing)


class Flow:
    """The scv of arrivals at each station, kept while servers are added.

    A change of one station's departures changes one column of the system of equations, for which nothing needs to be
    solved again (Sherman and Morrison). It is built the same way, from stations whose departures do not depend on what
    arrives: large systems are slow to solve where others use the machine, too.
    """

    def __init__(self, network: Network, servers: Counts, outside: Floats, mixing: Floats) -> None:
        self._network = network
        self.servers = servers.copy()
        constant, factor = network.departure_parts(servers)
        self.scvs: Floats = outside + (mixing * constant).sum(axis=1)
        self._spread = mixing.copy()  # what arrives anywhere for one more of what departs, and comes around again
        self._room = np.empty_like(mixing)
        for station, passed in enumerate(factor.tolist()):
            self._change(station, 0.0, passed)

    def add(self, station: int) -> None:
        """Add a server."""
        load, scv = float(self._network.loads[station]), float(self._network.service_scvs[station]) - 1
        servers = float(self.servers[station])
        before, after = min(load / servers, 1.0) ** 2, min(load / (servers + 1), 1.0) ** 2
        self.servers[station] += 1
        self._change(
            station, after * (1 + scv / (servers + 1) ** 0.5) - before * (1 + scv / servers**0.5), before - after
        )

    def _change(self, station: int, constant: float, factor: float) -> None:
        """Change x and y of what departs from a station by so much."""
        column = self._spread[:, station] / (1 - factor * float(self._spread[station, station]))
        self.scvs += column * (constant + factor * float(self.scvs[station]))
        np.multiply((factor * column)[:, None], self._spread[station], out=self._room)
        self._spread += self._room
