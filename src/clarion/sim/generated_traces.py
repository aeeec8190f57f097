"""Generated traces, with the shape of the systems that motivated the tuned publisher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REGISTER, RENEW, DELETE = "register", "renew", "delete"
_HOUR_S = 3600.0

_Event = tuple[float, str, str]  # time, kind, record


@dataclass(frozen=True, slots=True)
class LookupService:
    """What the generated hosts of a lookup service are like; its own trace (Fig. 3 of the tuned publisher) is not open.

    Hosts hold some records each, on leases of two hours that they renew before the end; a host speaks for all its
    records at once. Hosts restart, alone or a whole site at a time, and register everything again; they take records
    out of service, and some vanish, so that their leases run out. That gives a low mean rate, about
    hosts * records_a_host / renewed_after_s, with bursts.
    """

    hosts: int = 360
    records_a_host: float = 10.0  # mean; each host has at least one
    lease_s: float = 2 * _HOUR_S
    renewed_at: tuple[float, float] = (0.65, 0.95)  # of the lease; drawn anew each time, which spreads the hosts
    gap_s: float = 0.05  # mean time between two requests of a host that speaks for all its records
    hosts_a_site: int = 8
    site_restarts_every_s: float = 24 * _HOUR_S  # mean, of each site: all its hosts within seconds
    host_restarts_every_s: float = 36 * _HOUR_S  # mean, of each host
    drops_record: float = 0.01  # share of renewals in which a record is deleted and another registered instead
    vanishes: float = 0.01  # share of renewals at which a host is gone instead, until its next restart
    pruned_every_s: float = 60.0  # the service deletes records whose lease is over this often

    def __post_init__(self) -> None:
        low, high = self.renewed_at
        if not 0 < low <= high < 1 or self.hosts < 1 or self.records_a_host < 1:
            raise ValueError("hosts and records_a_host are at least 1, 0 < renewed_at[0] <= renewed_at[1] < 1")


def lookup_service_trace(
    dice: np.random.Generator, hours: float, shape: LookupService | None = None
) -> dict[str, NDArray[Any]]:
    """Return `time_s`, `kind` and `record` of the requests of so many hours, in order of time.

    It begins in the middle of the service's life: records registered before are renewed within their lease.
    """
    shape = shape or LookupService()
    until_s = hours * _HOUR_S
    restarts = _restarts(dice, until_s, shape)
    events: list[_Event] = []
    for number in range(shape.hosts):
        events += _Host(dice, shape, f"host-{number}", until_s).live(restarts[number])
    events = sorted(event for event in events if event[0] < until_s)
    return {
        "time_s": np.array([at_s for at_s, _, _ in events], dtype=np.float64),
        "kind": np.array([kind for _, kind, _ in events], dtype=np.str_),
        "record": np.array([record for _, _, record in events], dtype=np.str_),
    }


def _restarts(dice: np.random.Generator, until_s: float, shape: LookupService) -> list[list[float]]:
    """Return when each host restarts: by itself, and with its site."""
    restarts = [_poisson(dice, until_s, shape.host_restarts_every_s) for _ in range(shape.hosts)]
    for first in range(0, shape.hosts, shape.hosts_a_site):
        for at_s in _poisson(dice, until_s, shape.site_restarts_every_s):
            for host in range(first, min(first + shape.hosts_a_site, shape.hosts)):
                restarts[host].append(at_s + float(dice.exponential(5.0)))
    return [sorted(times) for times in restarts]


def _poisson(dice: np.random.Generator, until_s: float, every_s: float) -> list[float]:
    return [float(at_s) for at_s in dice.uniform(0.0, until_s, dice.poisson(until_s / every_s))]


class _Host:
    """One host with its records, over the length of the trace."""

    def __init__(self, dice: np.random.Generator, shape: LookupService, name: str, until_s: float) -> None:
        self._dice, self._shape, self._name, self._until_s = dice, shape, name, until_s
        self._made = 0
        count = int(dice.geometric(1.0 / shape.records_a_host))
        self._leased: dict[str, float] = {}  # record: when it was last registered or renewed
        for _ in range(count):
            self._leased[self._new_record()] = 0.0
        self._size = count
        self._events: list[_Event] = []

    def live(self, restarts: list[float]) -> list[_Event]:
        """Return all the requests of this host."""
        low, high = self._shape.renewed_at
        # The trace begins at a random moment between two renewals of this host.
        interval_s = float(self._dice.uniform(low, high)) * self._shape.lease_s
        next_s = float(self._dice.uniform(0.0, interval_s))
        self._leased = dict.fromkeys(self._leased, next_s - interval_s)
        for restart_s in [*restarts, self._until_s]:
            next_s = self._renew_until(restart_s, next_s)
            if restart_s < self._until_s:
                self._prune(restart_s)
                next_s = self._speak(restart_s, restarting=True)
        self._prune(self._until_s)
        return self._events

    def _renew_until(self, until_s: float, next_s: float) -> float:
        while next_s < until_s:
            if self._dice.random() < self._shape.vanishes:
                return float("inf")  # gone; a restart brings it back
            next_s = self._speak(next_s, restarting=False)
        return next_s

    def _speak(self, at_s: float, *, restarting: bool) -> float:
        """Register or renew every record, one request after the other; return when to renew next."""
        began_s = at_s
        if restarting:
            while len(self._leased) < self._size:
                self._leased[self._new_record()] = at_s
        for record in list(self._leased):
            if not restarting and self._dice.random() < self._shape.drops_record:
                self._events.append((at_s, DELETE, record))
                del self._leased[record]
                record = self._new_record()
                at_s += float(self._dice.exponential(self._shape.gap_s))
                self._events.append((at_s, REGISTER, record))
            else:
                self._events.append((at_s, REGISTER if restarting else RENEW, record))
            self._leased[record] = at_s
            at_s += float(self._dice.exponential(self._shape.gap_s))
        return max(at_s, began_s + float(self._dice.uniform(*self._shape.renewed_at)) * self._shape.lease_s)

    def _prune(self, now_s: float) -> None:
        """Let the service delete what nobody renewed."""
        every_s = self._shape.pruned_every_s
        for record, renewed_s in list(self._leased.items()):
            pruned_s = every_s * np.ceil((renewed_s + self._shape.lease_s) / every_s)
            if pruned_s < now_s:
                self._events.append((float(pruned_s), DELETE, record))
                del self._leased[record]

    def _new_record(self) -> str:
        self._made += 1
        return f"{self._name}/{self._made}"


_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True)
class ZtfNights:
    """What the generated nights of ZTF are like: an exposure every 45 s, each with about 1000 alerts within seconds."""

    exposure_every_s: float = 45.0
    alerts_an_exposure: float = 1000.0  # mean
    alerts_cv: float = 0.5  # transients are not spread evenly over the sky
    alike: float = 0.9  # correlation of one exposure's alerts with the next: neighbouring fields
    spread_s: float = 5.0  # the alerts of an exposure come within about this time
    bytes_min: int = 20_000
    bytes_max: int = 70_000
    night_hours: float = 9.0  # of every 24

    def __post_init__(self) -> None:
        if self.alerts_cv <= 0 or not 0 <= self.alike < 1 or not 0 < self.bytes_min <= self.bytes_max:
            raise ValueError("alerts_cv is above 0, alike from 0 to below 1, 0 < bytes_min <= bytes_max")


def ztf_trace(dice: np.random.Generator, hours: float, shape: ZtfNights | None = None) -> dict[str, NDArray[Any]]:
    """Return `time_s` and `bytes` of the alerts of so many hours from dusk, in order of time."""
    shape = shape or ZtfNights()
    exposures_s = np.arange(0.0, hours * _HOUR_S, shape.exposure_every_s)
    exposures_s = exposures_s[exposures_s % _DAY_S < shape.night_hours * _HOUR_S]
    counts = dice.poisson(_expected_alerts(dice, exposures_s.size, shape))
    # Chips of the camera are worked on in parallel: most alerts come in the middle of the burst.
    delays_s = shape.spread_s * dice.beta(2.0, 3.0, counts.sum())
    times_s = np.repeat(exposures_s, counts) + delays_s
    sizes = shape.bytes_min + (shape.bytes_max - shape.bytes_min) * dice.beta(2.0, 2.0, counts.sum())
    order = np.argsort(times_s, kind="stable")
    kept = times_s[order] < hours * _HOUR_S
    return {"time_s": times_s[order][kept], "bytes": np.rint(sizes[order][kept]).astype(np.int64)}


def _expected_alerts(dice: np.random.Generator, exposures: int, shape: ZtfNights) -> NDArray[np.float64]:
    """Return the mean number of alerts of each exposure: lognormal, each like the one before it."""
    sigma = np.sqrt(np.log1p(shape.alerts_cv**2))
    steps = dice.standard_normal(exposures)
    log = np.empty(exposures)
    level = 0.0
    for place in range(exposures):
        level = steps[place] if place == 0 else shape.alike * level + np.sqrt(1 - shape.alike**2) * steps[place]
        log[place] = level
    return np.asarray(shape.alerts_an_exposure * np.exp(sigma * log - sigma**2 / 2))
