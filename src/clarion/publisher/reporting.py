"""What a publisher tells the broker of its tuners now and then, so that `clarion stats` can show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest

from clarion.publisher.lanes import Lane
from clarion.session.exchange import Reply
from clarion.wire import bodies
from clarion.wire.codes import RETRIED
from clarion.wire.frames import Kind

EVERY_S = 2.0
_LANES = 8  # that are told of at a time: those with the most messages since the last time


class Reporting:
    """Reports on the lanes that are in use. At most `_LANES` reports are under way; a broker that does not know what
    they are is not asked again."""

    def __init__(self, ask: Callable[..., None], instance: bytes, policy: str) -> None:
        self._ask = ask
        self._instance = instance
        self._policy = policy
        self._next_s = 0.0
        self._under_way = 0
        self._understood = True

    def turn(self, lanes: Iterable[Lane], drops: int, now_s: float) -> None:
        """Report, if it is time to."""
        if now_s < self._next_s or self._under_way or not self._understood:
            return
        self._next_s = now_s + EVERY_S
        for lane in nlargest(_LANES, (lane for lane in lanes if lane.unreported()), key=Lane.unreported):
            self._under_way += 1
            self._ask(Kind.REPORT, self._report(lane, drops, now_s), self._on_reply)
            lane.reported = lane.stored

    def _report(self, lane: Lane, drops: int, now_s: float) -> bodies.Report:
        seen = lane.tuning(now_s)
        return bodies.Report(
            lane.topic,
            self._instance,
            self._policy,
            seen.batch_size,
            seen.poll_interval_s,
            seen.load_per_s,
            seen.capacity_per_s,
            seen.credit,
            seen.pending,
            lane.flying_messages,
            drops,
            lane.stored,
        )

    def _on_reply(self, reply: Reply) -> None:
        self._under_way -= 1
        refusal = reply.refusal()
        if refusal is not None and refusal.code not in RETRIED:
            self._understood = False
