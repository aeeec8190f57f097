"""What publishers tell of themselves, kept for a while for who asks: in memory only, nothing of it is ever on disk."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec

from clarion.broker.engine.limits import MAX_NAME_BYTES
from clarion.broker.engine.state import Now, State
from clarion.broker.engine.topics import Waiter
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

REPORTS_KEPT = 1000  # the oldest go
REPORT_EXPIRY_S = 15.0
_INSTANCE_BYTES = 16
_MAX_POLICY = 64  # characters


class _Told(NamedTuple):
    report: bodies.Report
    at_s: float


class Reporting:
    """Keeps the latest report of each publisher on each topic, as long as they are fresh."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._told: OrderedDict[tuple[bytes, bytes], _Told] = OrderedDict()  # the oldest first

    def report(self, waiter: Waiter, body: bodies.Report, now: Now) -> None:
        """Take a report in the place of the one before."""
        problem = _problem(body)
        if problem is not None:
            self._state.refuse(waiter, Kind.INVALID, Code.MALFORMED, problem)
            return
        key = body.instance, body.topic
        self._told[key] = _Told(body, now.monotonic_s)
        self._told.move_to_end(key)
        self._forget_old(now.monotonic_s)
        self._state.say(waiter, Kind.ACK, bodies.Done())

    def publishers(self, now: Now) -> list[dict[str, Any]]:
        """Give the reports that are fresh, by topic; `age_s` says how old each is."""
        self._forget_old(now.monotonic_s)
        found = sorted(self._told.values(), key=lambda told: (told.report.topic, told.report.instance))
        return [{**msgspec.structs.asdict(report), "age_s": round(now.monotonic_s - at_s, 3)} for report, at_s in found]

    def _forget_old(self, now_s: float) -> None:
        while self._told:
            oldest = next(iter(self._told.values()))
            if len(self._told) <= REPORTS_KEPT and now_s - oldest.at_s <= REPORT_EXPIRY_S:
                return
            self._told.popitem(last=False)


def _problem(body: bodies.Report) -> str | None:
    """Say what is wrong with a report; None when nothing is."""
    if not 0 < len(body.topic) <= MAX_NAME_BYTES:
        return f"a topic's name has 1 to {MAX_NAME_BYTES} bytes"
    if len(body.instance) != _INSTANCE_BYTES:
        return f"a publisher's instance has {_INSTANCE_BYTES} bytes"
    if not 0 < len(body.policy) <= _MAX_POLICY:
        return f"the name of a policy has 1 to {_MAX_POLICY} characters"
    return None
