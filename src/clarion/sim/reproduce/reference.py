"""The independent reference model's figures, and how near ours are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from clarion.sim.reproduce.cells import FIXED, HEAVY, LIGHT, LITERAL, RECHECK, load_cell
from clarion.sim.reproduce.results import Results

RESPONSE_WITHIN, BATCH_SIZE_WITHIN = 0.10, 0.15


class Row(NamedTuple):
    """The reference for one profile and load; None: unstable."""

    profile: str
    load_per_s: float
    fixed_ms: dict[int, float | None]  # by N
    literal_ms: float
    literal_batch_size: float
    recheck_ms: float


REFERENCE = (
    Row(HEAVY, 1.75, {1: 278, 10: 350, 50: 350}, 368, 1.3, 315),
    Row(HEAVY, 17.5, {1: None, 10: 401, 50: 403}, 491, 4.3, 403),
    Row(HEAVY, 35.0, {1: None, 10: 392, 50: 429}, 528, 7.7, 448),
    Row(HEAVY, 55.0, {1: None, 10: 489, 50: 595}, 581, 12.0, 489),
    Row(LIGHT, 1.75, {1: 155, 3: 235, 50: 236}, 161, 1.1, 155),
    Row(LIGHT, 17.5, {1: 313, 3: 210, 50: 264}, 205, 2.0, 170),
    Row(LIGHT, 35.0, {1: None, 3: 198, 50: 278}, 221, 3.2, 184),
    Row(LIGHT, 55.0, {1: None, 3: 278, 50: 331}, 234, 4.6, 196),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of the reference beside ours."""

    profile: str
    load_per_s: float
    what: str  # the policy, or "literal N"
    reference: float | None  # None: unstable
    ours: float
    unstable: bool
    holds: bool


def compare(results: Results) -> list[Compared]:
    """Put ours beside every figure of the reference."""
    return [compared for row in REFERENCE for compared in _compare_row(results, row)]


def _compare_row(results: Results, row: Row) -> list[Compared]:
    literal = load_cell(row.profile, row.load_per_s, LITERAL)
    recheck = load_cell(row.profile, row.load_per_s, RECHECK)
    found = []
    for size, reference_ms in row.fixed_ms.items():
        cell = load_cell(row.profile, row.load_per_s, FIXED, size)
        unstable = results.is_unstable(cell)
        ours = results.mean_ms(cell)
        holds = unstable if reference_ms is None else _near(ours, reference_ms, RESPONSE_WITHIN)
        found.append(Compared(row.profile, row.load_per_s, f"fixed N={size}", reference_ms, ours, unstable, holds))
    for what, ours, reference, within in (
        ("literal", results.mean_ms(literal), row.literal_ms, RESPONSE_WITHIN),
        ("literal, mean N", results.batch_size_mean(literal), row.literal_batch_size, BATCH_SIZE_WITHIN),
        ("recheck", results.mean_ms(recheck), row.recheck_ms, RESPONSE_WITHIN),
    ):
        holds = _near(ours, reference, within)
        found.append(Compared(row.profile, row.load_per_s, what, reference, ours, False, holds))
    return found


def _near(ours: float, reference: float, within: float) -> bool:
    return abs(ours / reference - 1) <= within
