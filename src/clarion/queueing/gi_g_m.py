"""One station with m servers, general arrivals and general service times, known by their first two moments (GI/G/m).

`qna` takes M/M/m and scales what waits by the mean of both squared coefficients of variation (scv), as Equation 2 of
"Resource Management for Elastic Publish Subscribe Systems" without its stray factor: L = a + (ca2 + cs2)/2 (L_MMm - a).
`whitt` adds the correction phi of W. Whitt, "Approximations for the GI/G/m queue" (1993), equations 2.16 to 2.25. Both
are exact for M/M/m; qna is exact for M/G/1, too.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from clarion.queueing.erlang import erlang_b, erlang_c, queue_length_mmm

Approximation: TypeAlias = Literal["qna", "whitt"]
APPROXIMATIONS: tuple[Approximation, ...] = get_args(Approximation)
Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
_TINY = 1e-300  # in the place of a 0 that is divided by
_NOBODY = 1e-16  # of the load: so few waiting are none beside those in service, in double precision
_MOST_COLUMNS = 100_000


class WaitingTime(NamedTuple):
    """Mean and variance of the time that an arrival waits for a server."""

    mean: float
    variance: float


def queue_length(
    servers: int, load: float, arrival_scv: float, service_scv: float, approximation: Approximation = "qna"
) -> float:
    """Return how many wait on average; infinite where there is no steady state."""
    plain = queue_length_mmm(servers, load)
    if not plain or math.isinf(plain):
        return plain
    if approximation == "qna":
        return plain * (arrival_scv + service_scv) / 2
    return plain * float(_whitt(arrival_scv, service_scv, *_whitt_parts(np.float64(load), np.float64(servers))))


def waiting_time(
    servers: int, arrival_rate: float, service_rate: float, queue: float, service_scv: float
) -> WaitingTime:
    """Return the moments of the waiting time where `queue` wait on average.

    The mean is by Little's law. The variance is the one of "The Queueing Network Analyzer" (1983, equations 45 to 53),
    with Erlang C as the probability of waiting at all; exact for M/M/m.
    """
    load = arrival_rate / service_rate
    if math.isinf(queue):
        return WaitingTime(math.inf, math.inf)
    delayed = erlang_c(servers, load)
    if not queue or not delayed:
        return WaitingTime(0.0, 0.0)
    mean = queue / arrival_rate
    busy = load / servers
    third = 3 * service_scv * (1 + service_scv) if service_scv >= 1 else (2 * service_scv + 1) * (service_scv + 1)
    scv_of_delay = 2 * busy - 1 + 4 * (1 - busy) * third / (3 * (service_scv + 1) ** 2)
    return WaitingTime(mean, (scv_of_delay + 1 - delayed) * mean * (mean / delayed))


def gamma_p95(mean: float, variance: float) -> float:
    """Return the 95th percentile of the gamma distribution with these moments, by Wilson and Hilferty's cube: within
    3 % while variance is at most twice the squared mean."""
    if not mean or not variance or math.isinf(mean):
        return mean
    shape = mean * mean / variance
    return mean * max(0.0, 1 - 1 / (9 * shape) + 1.6448536269514722 / (3 * math.sqrt(shape))) ** 3


class StationTable:
    """How many are at each of several stations, for any servers and any scv of arrivals; columns are computed once.

    Column 0 is the least number of servers with a steady state, the next one more, and so on until hardly anybody
    waits: more servers than that are told as the last column.
    """

    def __init__(self, loads: Floats, service_scvs: Floats, approximation: Approximation) -> None:
        self.loads = loads
        self.service_scvs = service_scvs
        self.approximation = approximation
        self.least: Counts = np.floor(loads).astype(np.int64) + 1
        self._rows = np.arange(len(loads))
        self._blocked = np.array([erlang_b(int(m), a) for m, a in zip(self.least, loads, strict=True)])
        self._columns: list[tuple[Floats, ...]] = []
        self._tables: tuple[Floats, ...] = ()
        self._full = False
        self.grow(16)

    def grow(self, columns: int) -> None:
        """Have at least so many columns, or all that differ."""
        while len(self._columns) < columns and not self._full:
            servers = self.least + len(self._columns)
            if self._columns:
                offered = self.loads * self._blocked
                self._blocked = offered / (servers + offered)
            spare = servers - self.loads
            waits = servers * self._blocked / (spare + self.loads * self._blocked)
            queue = waits * self.loads / spare
            more = _whitt_parts(self.loads, servers.astype(np.float64)) if self.approximation == "whitt" else ()
            self._columns.append((queue, *more))
            self._full = bool(np.all(queue <= _NOBODY * self.loads)) or len(self._columns) >= _MOST_COLUMNS
        if not self._tables or self._tables[0].shape[1] < len(self._columns):
            self._tables = tuple(np.stack(part, axis=1) for part in zip(*self._columns, strict=True))

    def queues(self, servers: Counts, arrival_scvs: Floats) -> Floats:
        """Return how many wait at each station (the last axis); infinite where there is no steady state."""
        column = servers - self.least
        self._reach(int(column.max(initial=0)))
        found = self._at(np.maximum(column, 0), arrival_scvs)
        return found if column.min(initial=0) >= 0 else np.where(column < 0, math.inf, found)

    def queues_and_next(self, servers: Counts, arrival_scvs: Floats) -> tuple[Floats, Floats]:
        """Return how many wait at each station, and how many would with one more server there; all have a steady
        state."""
        column = servers - self.least
        self._reach(int(column.max()) + 1)
        now, then = self._at(np.stack([column, column + 1]), arrival_scvs)
        return now, then

    def _reach(self, column: int) -> None:
        if column >= len(self._columns) and not self._full:
            self.grow(max(column + 1, 2 * len(self._columns)))

    def _at(self, column: Counts, arrival_scvs: Floats) -> Floats:
        place = self._rows, np.minimum(column, len(self._columns) - 1)
        plain = self._tables[0][place]
        if self.approximation == "qna":
            return np.asarray(plain * (0.5 * (arrival_scvs + self.service_scvs)))
        return np.asarray(plain * _whitt(arrival_scvs, self.service_scvs, *(part[place] for part in self._tables[1:])))


def _whitt_parts(loads: Any, servers: Any) -> tuple[Any, Any, Any]:
    """Return phi_1 and phi_3, the corrections of M/D/m and D/M/m, and the logarithm of phi_4."""
    busy = np.maximum(loads / servers, _TINY)
    crowd = (servers - 1) * (np.sqrt(4 + 5 * servers) - 2) / (16 * servers)
    gamma = np.minimum(0.24, (1 - busy) * crowd / np.maximum(busy, 1e-30))
    phi_1, phi_3 = 1 + gamma, (1 - 4 * gamma) * np.exp(np.maximum(-2 * (1 - busy) / (3 * busy), -700))
    return phi_1, phi_3, np.log(np.minimum(1, (phi_1 + phi_3) / 2))


def _whitt(arrival_scvs: Any, service_scvs: Any, phi_1: Any, phi_3: Any, log_phi_4: Any) -> Any:
    """Return phi * (ca2 + cs2)/2: how many times as many wait as at M/M/m. It rises with both scv."""
    twice = arrival_scvs + service_scvs
    psi = np.exp(log_phi_4 * np.maximum(0, 2 - twice))
    higher = np.maximum(arrival_scvs, service_scvs) - service_scvs
    above = (4 * higher * phi_1 + service_scvs * psi) / np.maximum(4 * higher + service_scvs, _TINY)
    below = ((service_scvs - arrival_scvs) * phi_3 + (service_scvs + 3 * arrival_scvs) * psi) / np.maximum(
        2 * twice, _TINY
    )
    return 0.5 * twice * np.where(arrival_scvs >= service_scvs, above, below)
