"""The rule that people scale by today: consumers in proportion to the length of each queue, as KEDA has it.

KEDA hands the lag to Kubernetes' horizontal autoscaler, which wants lag / (target lag of one consumer), rounded up,
leaves it at that within 10 % of the target, and goes down to the most that it wanted within the last 300 s.
The lag counts what is not acknowledged: what waits, and what consumers are at work on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from clarion.sim.workflow_simulation import Snapshot

POLL_S = 30.0  # KEDA's pollingInterval
STABILISATION_S = 300.0  # the autoscaler's, for going down
TOLERANCE = 0.1
MOST = 100  # KEDA's maxReplicaCount


class LagRule:
    """One task knows nothing of the others, nor of rates: only how many messages it has."""

    def __init__(self, target: float, *, most: int = MOST, stabilisation_s: float = STABILISATION_S) -> None:
        self.target = target  # messages for each consumer
        self._most = most
        self._stabilisation_s = stabilisation_s
        self._wanted: dict[str, deque[tuple[float, int]]] = {}  # by task: when, and how many

    def decide(self, now_s: float, snapshot: Snapshot) -> Mapping[str, int]:
        """Return consumers for every task, between one and the most."""
        return {task: self._consumers(task, now_s, snapshot) for task in snapshot.consumers}

    def _consumers(self, task: str, now_s: float, snapshot: Snapshot) -> int:
        lag, has = snapshot.queue[task] + snapshot.busy[task], snapshot.consumers[task]
        near = abs(lag / (self.target * has) - 1) <= TOLERANCE
        wants = has if near else min(self._most, max(1, math.ceil(lag / self.target)))
        recent = self._wanted.setdefault(task, deque())
        recent.append((now_s, wants))
        while recent[0][0] <= now_s - self._stabilisation_s:
            recent.popleft()
        return max(wants, min(has, max(count for _, count in recent)))
