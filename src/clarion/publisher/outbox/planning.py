"""What the next commit does for each lane: rows saved, numbered, removed or set aside; and what follows from it.

A plan only reads the lanes. They change when it is on disk (`apply`); if it does not get there, it never was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from clarion.model.errors import ClarionError
from clarion.publisher.outbox.lanes import KeptLane
from clarion.publisher.outbox.outbox_rows import Changes
from clarion.publisher.outbox.sheaves import DurableBatch
from clarion.wire import bodies

KEPT_MAX = 1024  # batches of a lane that wait for a number in memory: small ones take more there than they hold
Fits = Callable[[KeptLane, int, int], bool]  # whether, so many bytes of a lane having been added, so many more may be


@dataclass(slots=True)
class LanePlan:
    """One lane's part in a commit."""

    lane: KeptLane
    saved: list[DurableBatch] = field(default_factory=list)
    gone: list[DurableBatch] = field(default_factory=list)
    numbered: list[DurableBatch] = field(default_factory=list)
    trouble: ClarionError | None = None  # what was numbered goes aside, but for those that surely never arrived
    doubted: list[DurableBatch] = field(default_factory=list)
    freed: list[DurableBatch] = field(default_factory=list)  # numbered no more, to be numbered anew


@dataclass(slots=True)
class Plan:
    """A commit: its changes, and whose they are."""

    changes: Changes = field(default_factory=Changes)
    lanes: list[LanePlan] = field(default_factory=list)
    retires: bool = False  # afterwards nothing is left
    forgets: set[int] = field(default_factory=set)  # publishers that no lane uses then


def plan_lane(
    plan: Plan,
    lane: KeptLane,
    *,
    identity: bodies.Registered | None,
    window: int,
    fits: Fits,
    saves: bool,
) -> None:
    """Add what there is to do for a lane. It is numbered only where there is an `identity` to do it with."""
    part = LanePlan(lane, saved=list(lane.sealed) if saves else [])
    changes = plan.changes
    if lane.trouble is not None:
        if lane.is_answered():
            _plan_trouble(changes, part, lane.trouble)
    else:
        part.gone = lane.done_first()
        if lane.identity is None:
            lane.identity = identity
        numbers = lane.identity is not None and lane.topic_number is not None
        if identity is not None and numbers and not lane.unread_numbered:
            part.numbered = _next_numbered(part, window - len(lane.numbered) + len(part.gone), fits)
    if not (part.saved or part.gone or part.numbered or part.trouble):
        return
    plan.lanes.append(part)
    changes.rows.extend(sheaf.to_row(lane.number) for sheaf in part.saved)
    if part.saved:
        changes.last_stamp = max(changes.last_stamp, part.saved[-1].stamp)
    for sheaf in part.gone:
        if sheaf.aside is None:
            changes.gone.append(sheaf.stamp)
        else:
            changes.aside.append((sheaf.stamp, sheaf.aside))
    if part.trouble is not None:
        changes.lanes[lane.number] = lane.to_row(0, 0, 0)._replace(
            publisher=0, first_number=1, numbered=0, stored=0, topic_number=0
        )
    elif part.gone or part.numbered or not lane.is_on_disk:
        changes.lanes[lane.number] = lane.to_row(len(part.gone), _stored(part.gone), len(part.numbered))


def _plan_trouble(changes: Changes, part: LanePlan, trouble: ClarionError) -> None:
    lane = part.lane
    part.trouble = trouble
    in_doubt = lane.doubtful()
    for place, sheaf in enumerate(lane.numbered):
        kind = part.gone if sheaf.done else part.doubted if place < in_doubt else part.freed
        kind.append(sheaf)
    rows = len(part.doubted) + lane.unread_numbered
    assert not (lane.unread_numbered and part.freed), "rows found numbered come before those numbered since"
    if rows:
        changes.aside_first.append((lane.number, rows, str(trouble)))


def _next_numbered(part: LanePlan, most: int, fits: Fits) -> list[DurableBatch]:
    lane = part.lane
    chosen = [sheaf for sheaf, _ in zip(lane.kept, range(most), strict=False)]
    if len(chosen) < len(lane.kept) or lane.on_disk:
        return chosen
    size = 0
    for sheaf in part.saved:  # saved and numbered by one commit
        assert sheaf.packed is not None
        if len(chosen) >= most or not fits(lane, size, len(sheaf.packed)):
            break
        size += len(sheaf.packed)
        chosen.append(sheaf)
    return chosen


def _stored(gone: list[DurableBatch]) -> int:
    return sum(sheaf.count for sheaf in gone if sheaf.error is None and sheaf.refusal is None)


def apply_lane(part: LanePlan, fits: Fits) -> None:
    """Have a lane be as the commit left it on disk."""
    lane = part.lane
    lane.is_on_disk = True
    if part.trouble is not None:
        _apply_trouble(part)
    else:
        for sheaf in part.gone:
            _take_first(lane.numbered, sheaf)
        lane.first_number += len(part.gone)
        lane.stored_before += _stored(part.gone)
    numbered = set(part.numbered)
    while lane.kept and lane.kept[0] in numbered:
        lane.add_number(lane.kept.popleft())
    for sheaf in part.saved:
        _take_first(lane.sealed, sheaf)
        sheaf.saved = True
        sheaf.count_packed()
        if sheaf in numbered or (not lane.on_disk and len(lane.kept) < KEPT_MAX and fits(lane, 0, sheaf.size)):
            lane.loaded_bytes += sheaf.size
            lane.loaded_until = sheaf.stamp
            if sheaf in numbered:
                lane.add_number(sheaf)
            else:
                lane.kept.append(sheaf)
        else:
            sheaf.packed = None
            lane.on_disk += 1


def _take_first(sheaves: deque[DurableBatch], expected: DurableBatch) -> None:
    first = sheaves.popleft()
    assert first is expected, "a plan's lane changed before it was on disk"


def _apply_trouble(part: LanePlan) -> None:
    lane = part.lane
    lane.numbered.clear()
    lane.ready.clear()
    lane.ready_messages = 0
    lane.kept.extendleft(reversed(part.freed))
    for sheaf in part.freed:
        sheaf.answered = sheaf.surely_out = sheaf.refused = False
        sheaf.was_sent = False
    if lane.unread_numbered:
        lane.on_disk -= lane.unread_numbered
        lane.unread_found -= lane.unread_numbered
        lane.unread_numbered = 0
    lane.start_anew()
    lane.trouble = None
