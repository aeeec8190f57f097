"""Politeness: how long to wait after errors, how hosts that throttle are spared, and what their headers ask for."""

from __future__ import annotations

import math
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol

import msgspec

_LONGEST_S = 86_400.0  # that anybody is waited for
_DOUBLINGS_MOST = 6
_JITTER = 0.1  # of what a server asks for
LONGEST_WAIT_S = _LONGEST_S * (1 + _JITTER)  # after an error


class Dice(Protocol):
    """A source of chance, as `random.Random`."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""


def read_retry_after_s(text: str, now_s: float) -> float | None:
    """Return how many seconds a Retry-After asks for, as a number of seconds or a time; None where it says neither."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        time = parsedate_to_datetime(text)
        return max(0.0, (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() - now_s)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


def read_max_age_s(cache_control: str, age: str = "") -> float | None:
    """Return for how long a response is fresh by its Cache-Control, less the age it has, and at most a day; None where
    it does not say."""
    for part in cache_control.lower().split(","):
        name, _, value = part.strip().partition("=")
        value = value.strip('" ')
        if name in ("no-cache", "no-store"):
            return 0.0
        if name == "max-age" and value.isascii() and value.isdecimal():
            old = float(age[:9]) if age.isascii() and age.isdecimal() else 0.0
            return min(max(0.0, float(value[:9]) - old), _LONGEST_S)
    return None


def backoff_s(failures: int, interval_s: float, retry_after_s: float | None, dice: Dice) -> float:
    """Return how long to wait after so many failures in a row: the interval, doubled with each but the first, at most
    64 times or a day, of which chance takes up to a half; and never before Retry-After (at most a day)."""
    if failures <= 0:
        return interval_s
    longest_s = max(interval_s, min(math.ldexp(interval_s, min(failures - 1, _DOUBLINGS_MOST)), _LONGEST_S))
    asked_s = min(retry_after_s or 0.0, _LONGEST_S)
    return max(longest_s * (1.0 - dice.random() / 2.0), asked_s * (1.0 + dice.random() * _JITTER))


def throttles(kind: str, worked_before: bool) -> bool:
    """Return whether a failure to fetch means that its host wants fewer requests.

    A 403 means so only where the same resource could be had before; otherwise it is just not for us, and one such URL
    must not slow a whole host down.
    """
    return kind == "throttled" or (kind == "forbidden" and worked_before)


class Throttled(msgspec.Struct, frozen=True, kw_only=True, tag="throttled"):
    """What is known of a host that throttles, as nodes tell each other: no poll until `until_s`, and slower ones until
    `calm_s`, in the broker's time. Of two, the later times hold, so their order does not matter."""

    host: str
    until_s: float
    calm_s: float


class HostThrottle:
    """Which hosts throttle. Each time one does, intervals to it double (at most 64 times); for every `half_life_s`
    without they halve again, so all nodes that heard the same notices are equally slow, and no success need be told."""

    def __init__(self, *, wait_s: float = 60.0, half_life_s: float = 3600.0, hosts_most: int = 10_000) -> None:
        self._wait_s = wait_s  # where the host does not say how long
        self._half_life_s = half_life_s
        self._hosts_most = hosts_most
        self._known: dict[str, Throttled] = {}

    def on_throttled(self, host: str, now_s: float, retry_after_s: float | None = None) -> Throttled:
        """Note that a host throttles, and return what the other nodes are to be told.

        Answers to requests that were on their way when it began do not slow it further.
        """
        known = self._known.get(host, Throttled(host=host, until_s=0.0, calm_s=0.0))
        calm_s = known.calm_s
        if now_s >= known.until_s:
            calm_s = min(max(calm_s, now_s) + self._half_life_s, now_s + _DOUBLINGS_MOST * self._half_life_s)
        wait_s = min(self._wait_s if retry_after_s is None else retry_after_s, _LONGEST_S)
        return self.learn(Throttled(host=host, until_s=now_s + wait_s, calm_s=calm_s), now_s)

    def learn(self, notice: Throttled, now_s: float) -> Throttled:
        """Take over what another node tells, and return what is known now; nobody makes a host wait longer than a
        node would have by itself."""
        known = self._known.pop(notice.host, Throttled(host=notice.host, until_s=0.0, calm_s=0.0))
        merged = Throttled(
            host=notice.host,
            until_s=max(known.until_s, min(notice.until_s, now_s + _LONGEST_S)),
            calm_s=max(known.calm_s, min(notice.calm_s, now_s + _DOUBLINGS_MOST * self._half_life_s)),
        )
        self._known[notice.host] = merged
        if len(self._known) > self._hosts_most:
            self._known = {host: told for host, told in self._known.items() if max(told.until_s, told.calm_s) > now_s}
            while len(self._known) > self._hosts_most:
                self._known.pop(next(iter(self._known)))
        return merged

    def until_s(self, host: str) -> float:
        """Return the time before which a host is not to be asked; 0 where it may be asked at once."""
        known = self._known.get(host)
        return known.until_s if known else 0.0

    def stretch(self, host: str, now_s: float) -> float:
        """Return the factor by which intervals to a host are longer now, from 1 to 64."""
        known = self._known.get(host)
        if known is None:
            return 1.0
        doublings = (known.calm_s - now_s) / self._half_life_s
        return math.exp2(min(max(doublings, 0.0), _DOUBLINGS_MOST))
