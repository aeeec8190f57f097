"""Claims on steps in the load (Fig. 11, Table II)."""

from __future__ import annotations

from clarion.sim.reproduce.cells import STEPS, TUNED, Cell
from clarion.sim.reproduce.claims.claim import Rule, Seen
from clarion.sim.reproduce.results import Results
from clarion.sim.reproduce.settling import BAND, BAND_LEAST, WINDOW_S, mean_on_grid, settled_after_s

_SETTLES_WITHIN_S = 3.0


def _settling(results: Results, profile: str, policy: str) -> list[tuple[float, float]]:
    """Give how long N takes to settle in each step, and its level there."""
    steps = results.extent.steps
    grid_s, sizes = mean_on_grid(results.traces(Cell(STEPS, profile, "", policy)), steps[-1].end_s)
    return [settled_after_s(grid_s, sizes, step.start_s, step.end_s) for step in steps]


def _quickly(results: Results, profile: str, policy: str) -> Seen:
    took_s = [after_s for after_s, _ in _settling(results, profile, policy)[1:]]
    text = "settled after " + " / ".join(f"{one:.1f}" for one in took_s) + " s"
    return Seen(text, max(took_s) <= _SETTLES_WITHIN_S, {"settled_after_s": took_s})


def _with_the_load(results: Results, profile: str, policy: str) -> Seen:
    levels = [level for _, level in _settling(results, profile, policy)]
    loads = [step.load_per_s for step in results.extent.steps]
    pairs = [(one, other) for one in zip(loads, levels, strict=True) for other in zip(loads, levels, strict=True)]
    rises = all(level < higher for (load, level), (more, higher) in pairs if load < more)
    text = "mean N of the steps " + " / ".join(f"{level:.1f}" for level in levels)
    return Seen(text, rises, {"loads_per_s": loads, "levels": levels})


STEP_RULES = (
    Rule(
        name="adapts-quickly",
        figure="Fig. 11",
        claim="N adapts quickly to steps in the load.",
        judged_by=f"N, averaged over seeds and the last {WINDOW_S:g} s, comes within {100 * BAND:.0f} %"
        f" (or {BAND_LEAST:g}) of its level within {_SETTLES_WITHIN_S:g} s of each step of Table II",
        policies=TUNED,
        look=_quickly,
    ),
    Rule(
        name="follows-steps",
        figure="Fig. 11",
        claim="The average N goes with the load of each step.",
        judged_by="of any two steps of Table II, the one with the higher load has the higher mean N",
        policies=TUNED,
        look=_with_the_load,
    ),
)
