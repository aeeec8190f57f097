"""The report: the elastic-workflows paper's claims, judged by the model, by simulation and by really running it.

Claims are in the paper's order, each above the function that judges it; ours follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from clarion.queueing import APPROXIMATIONS
from clarion.reproduce.approximation_grid import TELLING, Compared, errors_of, noise_of
from clarion.reproduce.claims import Seen, listed, percent, table, word
from clarion.reproduce.workflow_experiments import (
    AFFECTED,
    BEST_OF,
    BUDGET,
    BURST,
    HIGH,
    JOB_TYPES,
    LOW,
    MIDDLE,
    MIN_COST,
    MIN_TIME,
    NUMERICAL_BUDGET,
    ONES,
    TARGET_S,
    UP_AND_DOWN,
    Cell,
    Consumers,
    Load,
    Policy,
    RealCell,
    Results,
    Run,
    case_study,
    counts,
    named,
    predicted,
    swept_rates,
)
from clarion.reproduce.workflow_figures import FIGURES
from clarion.workflow.planner import minimise_time

MODEL, SIMULATED, REALLY = "model", "simulation", "really run"
PAPER_BURST: Consumers = (2, 2, 1, 4)
Look: TypeAlias = Callable[[Results], Iterator[tuple[str, Seen]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What we see of a claim, by the model, by simulation or by really running it."""

    by: str
    seen: str
    holds: bool
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence with its verdicts; none are typed in, all are computed."""

    name: str
    figure: str
    claim: str
    judged_by: str
    ours: bool
    verdicts: tuple[Verdict, ...] = ()


RULES: list[tuple[Claim, Look]] = []


def _judges(name: str, figure: str, judged_by: str, *, ours: bool = False) -> Callable[[Look], Look]:
    """Add the rule by which a function judges the claim that is the function's docstring."""

    def add(look: Look) -> Look:
        RULES.append((Claim(name, figure, look.__doc__ or "", judged_by, ours), look))
        return look

    return add


_MOST_ADDED = 40
_NOISE = 1.03  # by so much simulated means may differ without one being worse
_SLOWER = 1.25
_AFFECTED_SHARE = 0.15
_MOST_WITHIN = 0.9


@_judges(
    "min-time-wip", "Fig. 4",
    f"after every number of consumers with which every task keeps up, MinTime's WIP is at most that of Random's best of"
    f" {BEST_OF} runs; simulated: of each of its runs that was simulated, after {NUMERICAL_BUDGET}",
)  # fmt: skip
def _min_time_wip(results: Results) -> Iterator[tuple[str, Seen]]:
    """MinTime outperforms Random, and reduces the work in progress at a faster rate."""
    ours = [predicted(HIGH, at).wip for at in results.numerical]
    some = results.random_paths[HIGH][:BEST_OF]
    best = [min(predicted(HIGH, one[k]).wip for one in some) for k in range(len(ours))]
    first = next(k for k, wip in enumerate(ours) if wip < math.inf)
    keeps_up = [float(np.mean(np.isfinite(results.random_wip(HIGH, k)))) for k in (first, BUDGET, NUMERICAL_BUDGET)]
    text = (
        f"every task keeps up from {first} consumers on, with Random after {first} / {BUDGET} / {NUMERICAL_BUDGET} in"
        f" {listed((100 * share for share in keeps_up), '.0f')} % of runs; WIP from there"
        f" {listed(ours[first:], '.1f')}, Random's best {listed(best[first:], '.1f')}"
    )
    holds = all(one <= other * (1 + 1e-9) for one, other in zip(ours, best, strict=True))
    yield MODEL, Seen(text, holds, {"min_time": _finite(ours), "random_best": _finite(best), "keeps_up": keeps_up})
    last = results.cells[Cell(HIGH, results.numerical[-1])].wip
    paths = results.random_paths[HIGH][: results.extent.simulated_random_runs]
    others = [results.cells[Cell(HIGH, path[-1])].wip for path in paths if predicted(HIGH, path[-1]).stable]
    text = f"WIP {last:.2f} after {NUMERICAL_BUDGET}; Random in {len(paths)} runs, of which {len(others)} keep up: "
    text += f"{min(others):.2f} to {max(others):.2f}" if others else "none"
    values = {"min_time": last, "random": others}
    yield SIMULATED, Seen(text, all(last <= _NOISE * one for one in others), values)


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


@_judges("rises-with-rates", "Fig. 5", "the mean response of every job type rises from each rate to the next")
def _rises(results: Results) -> Iterator[tuple[str, Seen]]:
    """With one consumer a task the average response time increases with the arrival rates."""
    for by, responses in _by_rate(results).items():
        holds = all(before < after for values in responses.values() for before, after in pairwise(values))
        text = "; ".join(f"type {name[-1]}: {listed(values, '.0f')} s" for name, values in responses.items())
        yield by, Seen(text, holds, {"response_s": responses})


@_judges("type-3-least", "Fig. 5", "from the lowest to the highest rate, type 3's response rises by the fewest seconds")
def _type_3(results: Results) -> Iterator[tuple[str, Seen]]:
    """Job type 3 is less affected by the increase of the arrival rates than types 1 and 2."""
    for by, responses in _by_rate(results).items():
        rises = [values[-1] - values[0] for values in responses.values()]
        ratios = [values[-1] / values[0] for values in responses.values()]
        text = f"types 1 / 2 / 3: + {listed(rises, '.0f')} s, which is {listed(ratios, '.1f')} times as long"
        yield by, Seen(text, rises[2] == min(rises), {"rise_s": rises, "ratio": ratios})


def _by_rate(results: Results) -> dict[str, dict[str, list[float]]]:
    rates = swept_rates(results.extent)
    model = {name: [predicted(one, ONES).response_s_by_job[name] for one in rates] for name in JOB_TYPES}
    cells = [results.cells[Cell(one, ONES)] for one in rates]
    found = {MODEL: model, SIMULATED: {name: [one.response_s_by_job[name].mean for one in cells] for name in JOB_TYPES}}
    really = [one.means for cell, one in results.real_cells.items() if cell.consumers == ONES]
    if really:
        found[REALLY] = {name: [one.response_s_by_job[name] for one in really] for name in JOB_TYPES}
    return found


@_judges(
    "min-time-response", "Fig. 6a",
    f"after {BUDGET} consumers MinTime's response is lower than that of Random's best of {BEST_OF} runs, or the same",
)  # fmt: skip
def _min_time_response(results: Results) -> Iterator[tuple[str, Seen]]:
    """Within its budget MinTime achieves a lower average response time than Random."""
    ours, best = results.min_time[-1], results.best_random(MIDDLE, BUDGET)[BUDGET]
    middle = float(np.sort([predicted(MIDDLE, one[BUDGET]).response_s for one in results.random_paths[MIDDLE]])[
        len(results.random_paths[MIDDLE]) // 2
    ])  # fmt: skip
    modelled = [predicted(MIDDLE, at).response_s for at in (ours, best)]
    shown = f"{ours} and {best}: {listed(modelled, '.1f')} s"
    median = f"; Random's median run {'cannot keep up' if math.isinf(middle) else f'{middle:.1f} s'}"
    values: dict[str, Any] = {"consumers": [ours, best], "response_s": modelled}
    yield MODEL, Seen(shown + median, modelled[0] <= modelled[1] * (1 + 1e-9), values)
    if predicted(MIDDLE, best).stable:
        simulated = [results.cells[Cell(MIDDLE, at)].little_response_s for at in (ours, best)]
        text = f"{listed(simulated, '.1f')} s"
        yield SIMULATED, Seen(text, simulated[0] <= _NOISE * simulated[1], {"response_s": simulated})
    really = [results.real_cells.get(Cell(MIDDLE, at)) for at in (ours, best)]
    if really[0] is not None and really[1] is not None:
        means = [one.means.little_response_s for one in really if one is not None]
        text = f"{listed(means, '.1f')} s" + (", which is the same allocation, run once" if ours == best else "")
        yield REALLY, Seen(text, means[0] <= _NOISE * means[1], {"response_s": means})


@_judges(
    "quick-drop", "Fig. 6b", "after 3 consumers every job type is within 25 % of its response after 5"
)  # fmt: skip
def _quick_drop(results: Results) -> Iterator[tuple[str, Seen]]:
    """The average response time of each job type drops quickly after just a few consumers are added."""
    after, end = results.min_time[3], results.min_time[-1]
    model = [[predicted(MIDDLE, at).response_s_by_job[name] for name in JOB_TYPES] for at in (after, end)]
    cells = [results.cells[Cell(MIDDLE, at)] for at in (after, end)]
    simulated = [[one.response_s_by_job[name].mean for name in JOB_TYPES] for one in cells]
    found = {MODEL: model, SIMULATED: simulated}
    really = [results.real_cells.get(Cell(MIDDLE, at)) for at in (after, end)]
    if all(really):
        found[REALLY] = [[one.means.response_s_by_job[name] for name in JOB_TYPES] for one in really if one is not None]
    for by, (third, last) in found.items():
        text = f"types 1 / 2 / 3 after 3: {listed(third, '.0f')} s; after 5: {listed(last, '.0f')} s"
        holds = all(one <= _SLOWER * other for one, other in zip(third, last, strict=True))
        yield by, Seen(text, holds, {"after_3_s": third, "after_5_s": last})


@_judges(
    "min-cost-five",
    "Fig. 7",
    f"MinCost's plan adds 5 consumers; simulated and really run, jobs take at most {TARGET_S:g} s",
)
def _min_cost(results: Results) -> Iterator[tuple[str, Seen]]:
    """MinCost satisfies the constraint of 50 s with 5 additional consumers."""
    end = results.min_cost[-1]
    added, response_s = len(results.min_cost) - 1, predicted(HIGH, end).response_s
    text = f"{added} more, {end}: {response_s:.1f} s"
    yield MODEL, Seen(text, added == 5, {"added": added, "consumers": end, "response_s": response_s})
    cell = results.cells[Cell(HIGH, end)]
    text = f"{cell.response_s:.1f} s a job, {cell.little_response_s:.1f} s by work in progress"
    values = {"response_s": cell.response_s, "little_response_s": cell.little_response_s}
    yield SIMULATED, Seen(text, max(cell.response_s, cell.little_response_s) <= TARGET_S, values)
    really = results.real_cells.get(Cell(HIGH, end))
    if really is not None:
        means = really.means
        text = f"{means.response_s:.1f} s a job, {means.little_response_s:.1f} s by work in progress"
        values = {"response_s": means.response_s, "little_response_s": means.little_response_s}
        yield REALLY, Seen(text, max(means.response_s, means.little_response_s) <= TARGET_S, values)


@_judges(
    "random-struggles", "Fig. 7", f"of all runs of Random most need more than {NUMERICAL_BUDGET} consumers for 50 s"
)
def _random_struggles(results: Results) -> Iterator[tuple[str, Seen]]:
    """Random struggles to bring the response below 50 s even after 10 iterations."""
    needed = results.needed_by_random()
    share = float(np.mean(np.isinf(needed)))
    best = float(needed[:BEST_OF].min())
    text = f"{share:.0%} of runs are not there after {NUMERICAL_BUDGET}; the best of {BEST_OF} needs {best:g}"
    yield MODEL, Seen(text, share > 0.5, {"share": share, "best": best if math.isfinite(best) else None})


@_judges("burst-plan", "Fig. 8", f"the allocation in the burst is {PAPER_BURST}")
def _burst_plan(results: Results) -> Iterator[tuple[str, Seen]]:
    """In the burst the scheduler allocates m = (2, 2, 1, 4)."""
    ours = counts(minimise_time(case_study(HIGH), BUDGET).consumers)
    other = counts(minimise_time(case_study(HIGH, other_reading=True), BUDGET).consumers)
    busy = predicted(HIGH, PAPER_BURST).utilisation
    text = (
        f"{ours}; {PAPER_BURST} leaves C at a utilisation of {busy['C']:.2f}, which cannot keep up. Were the garbled"
        f" job types A→D, B→D and C→D, it would be {other}"
    )
    values = {"consumers": ours, "other_reading": other, "utilisation_of_paper": busy}
    yield MODEL, Seen(text, ours == PAPER_BURST, values)
    runs = results.of(MIN_TIME, BURST)
    same = sum(run.most == ours for run in runs)
    text = f"{ours} in {same} of {len(runs)} bursts, from rates measured in them; others too: {_others(runs, ours)}"
    found = [run.most for run in runs]
    yield SIMULATED, Seen(text, all(one == PAPER_BURST for one in found), {"consumers": found})
    if really := [run.most for run in results.real_runs]:
        yield (
            REALLY,
            Seen(", ".join(map(str, really)), all(one == PAPER_BURST for one in really), {"consumers": really}),
        )


def _others(runs: Sequence[Run], ours: Consumers) -> str:
    found = sorted({run.most for run in runs if run.most != ours})
    return ", ".join(map(str, found)) or "none"


@_judges(
    "back-to-level", "Fig. 8",
    "the last third of requests takes, in ratio to the mean of its type before the burst, at most 25 % longer",
)  # fmt: skip
def _back(results: Results) -> Iterator[tuple[str, Seen]]:
    """The average response time is brought back to the level before the burst."""
    plan = counts(minimise_time(case_study(HIGH), BUDGET).consumers)
    before, after = predicted(LOW, ONES).response_s_by_job, predicted(HIGH, plan).response_s_by_job
    ratios = [after[name] / before[name] for name in JOB_TYPES]
    text = f"types 1 / 2 / 3: {listed(ratios, '.2f')} times as long as before"
    yield MODEL, Seen(text, max(ratios) <= _SLOWER, {"ratio": ratios})
    runs = results.of(MIN_TIME, BURST)
    found = [run.afterwards for run in runs]
    text = f"{np.mean(found):.2f} times as long as before ({min(found):.2f} to {max(found):.2f} in {len(runs)} bursts)"
    yield SIMULATED, Seen(text, float(np.mean(found)) <= _SLOWER, {"ratio": found})
    if really := [run.afterwards for run in results.real_runs]:
        text = f"{listed(really, '.2f')} times as long as before"
        yield REALLY, Seen(text, max(really) <= _SLOWER, {"ratio": really})


@_judges(
    "few-affected", "Fig. 8",
    f"at most {_AFFECTED_SHARE:.0%} of all requests take more than {AFFECTED:g} times as long as their type did before;"
    " in every burst",
)  # fmt: skip
def _affected(results: Results) -> Iterator[tuple[str, Seen]]:
    """The burst affects only a small portion of requests, about 15 %."""
    runs = results.of(MIN_TIME, BURST)
    shares = [run.affected for run in runs]
    replanned = [_replanned_s(run) for run in runs]
    text = (
        f"{np.mean(shares):.1%} on average, {max(shares):.1%} at most in {len(runs)} bursts; consumers first change"
        f" {np.nanmedian(replanned):.0f} s after the burst began (median)"
    )
    values = {"share": shares, "replanned_after_s": replanned}
    yield SIMULATED, Seen(text, max(shares) <= _AFFECTED_SHARE, values)
    if really := results.real_runs:
        shares = [run.affected for run in really]
        text = f"{' / '.join(f'{share:.1%}' for share in shares)} of {len(really[0].jobs)} requests each; consumers"
        text += f" changed {listed((len(run.scaled) - 1 for run in really), 'd')} times"
        values = {"share": shares, "replanned_after_s": [_replanned_s(run) for run in really]}
        yield REALLY, Seen(text, max(shares) <= _AFFECTED_SHARE, values)


def _replanned_s(run: Run) -> float:
    """Return how long after the beginning of the burst consumers were first changed; NaN: never, or only before."""
    changed = (at_s - run.load.burst_s for at_s, _ in run.scaled if at_s > run.load.burst_s)
    return next(changed, math.nan)


@_judges(
    "equation-2", "Equation 2", "with the factor 5 more consumers do not do for 50 s, without it they do", ours=True
)  # fmt: skip
def _equation_2(_results: Results) -> Iterator[tuple[str, Seen]]:
    """Equation 2 multiplies what waits by the arrival rate; that factor is a slip, for without it the paper's own 5
    additional consumers follow."""
    right, literal = _least_added(literal=False), _least_added(literal=True)
    text = f"{right} more without the factor, {literal} with it (rates a minute, as the paper has them)"
    yield MODEL, Seen(text, right == 5 != literal, {"added": right, "added_literal": literal})


def _least_added(*, literal: bool) -> int:
    """Return how many consumers MinCost's target needs at least, of all allocations, by Equation 2 as it should be or
    as it stands."""
    for added in range(_MOST_ADDED):
        for more in product(range(added + 1), repeat=len(ONES) - 1):
            if sum(more) <= added:
                consumers = tuple(1 + count for count in (*more, added - sum(more)))
                if _equation_2_response_s(consumers, literal=literal) <= TARGET_S:
                    return added
    raise AssertionError(f"{_MOST_ADDED} consumers more do not do")


def _equation_2_response_s(consumers: Consumers, *, literal: bool) -> float:
    found, flow = predicted(HIGH, consumers), case_study(HIGH)
    if not found.stable:
        return math.inf
    wip = 0.0
    for task, count in named(consumers).items():
        load = found.utilisation[task] * count
        per_min = 60 * load * (flow.tasks[task].rate_per_s or 0.0)
        wip += load + found.queue[task] * (per_min if literal else 1)
    return 60 * wip / sum(HIGH)


@_judges(
    "real-as-simulated", "V", "of ten steady states, in nine at least the mean response of what was really run is"
    " within the range of 95 % of simulated runs of the same arrivals", ours=True,
)  # fmt: skip
def _real_as_simulated(results: Results) -> Iterator[tuple[str, Seen]]:
    """The real system does what the simulator says of it."""
    if results.real_cells:
        cells = [(one.means.response_s, *one.range_s()) for one in results.real_cells.values()]
        within = sum(low <= mean <= high for mean, low, high in cells)
        text = f"{within} of {len(cells)} steady states are within"
        yield REALLY, Seen(text, within >= _MOST_WITHIN * len(cells), {"mean_low_high_s": cells})


@_judges("whitt-nearer", "IV.B", "its median error of L_q over the grid is smaller than qna's", ours=True)
def _whitt_nearer(results: Results) -> Iterator[tuple[str, Seen]]:
    """Whitt's correction of 1993 is nearer to simulation than Equation 2."""
    medians = {name: errors_of(results.grid, name).median for name in APPROXIMATIONS}
    text = "; ".join(f"{name} is off by {median:.0%}" for name, median in medians.items()) + " (median)"
    yield SIMULATED, Seen(text, medians["whitt"] < medians["qna"], {"median_error": medians})


_AT_EQUAL_COST = "at the same mean number of consumers its mean response is at most 3 % above the lag rule's"


@_judges("lag-rule-burst", "beyond", _AT_EQUAL_COST, ours=True)
def _lag_rule_burst(results: Results) -> Iterator[tuple[str, Seen]]:
    """In the burst, jobs take no longer by plan than by KEDA's lag rule at equal cost."""
    return _beside_lags(results, BURST)


@_judges("lag-rule-up-and-down", "beyond", _AT_EQUAL_COST, ours=True)
def _lag_rule_up_and_down(results: Results) -> Iterator[tuple[str, Seen]]:
    """When the load goes up and down again, jobs take no longer by plan than by KEDA's lag rule at equal cost."""
    return _beside_lags(results, UP_AND_DOWN)


def _beside_lags(results: Results, load: Load) -> Iterator[tuple[str, Seen]]:
    lags = _lags(results, load)
    for policy in (MIN_TIME, MIN_COST):
        runs = results.of(policy, load)
        cost, response_s = _cost(runs), _response(runs)
        same_s = _at_cost(lags, cost)
        text = (
            f"{policy.name}: {response_s:.1f} s with {cost:.2f} consumers on average; the lag rule with as many"
            f" {same_s:.1f} s ({percent(response_s / same_s)} for ours), its target chosen for that"
        )
        values = {"response_s": response_s, "cost": cost, "lag_response_s": same_s}
        yield SIMULATED, Seen(text, response_s <= _NOISE * same_s, values)


@_judges(
    "lag-rule-target", "beyond",
    f"with 10 messages a consumer, the default of KEDA's scaler for Kafka, jobs take longer than {TARGET_S:g} s on"
    f" average in both loads, and with MinCost for {TARGET_S:g} s they do not", ours=True,
)  # fmt: skip
def _lag_rule_target(results: Results) -> Iterator[tuple[str, Seen]]:
    """The lag rule's target says nothing about the response: that must be tried out, where a plan is asked for it."""
    default = Policy("lag", 10.0)
    ours, lags = (
        [_response(results.of(policy, load)) for load in (BURST, UP_AND_DOWN)] for policy in (MIN_COST, default)
    )
    text = f"burst / up and down: {listed(lags, '.0f')} s with 10 a consumer, {listed(ours, '.0f')} s with MinCost"
    values = {"lag_response_s": lags, "response_s": ours}
    yield SIMULATED, Seen(text, min(lags) > TARGET_S >= max(ours), values)


def _lags(results: Results, load: Load) -> dict[Policy, list[Run]]:
    return {policy: runs for (policy, name), runs in results.runs.items() if policy.kind == "lag" and name == load.name}


def _cost(runs: Sequence[Run]) -> float:
    return float(np.mean([run.consumers_mean for run in runs]))


def _response(runs: Sequence[Run]) -> float:
    return float(np.mean([run.response_s for run in runs]))


def _at_cost(lags: dict[Policy, list[Run]], cost: float) -> float:
    """Return the lag rule's response at a cost, between the targets whose costs are on both sides of it."""
    points = sorted((_cost(runs), _response(runs)) for runs in lags.values())
    return float(np.interp(cost, [at for at, _ in points], [response_s for _, response_s in points]))


REPORT, NUMBERS = "report.md", "report.json"


class Report(msgspec.Struct, frozen=True):
    """Everything that was found, as numbers and verdicts."""

    extent: str
    really_run: bool
    claims: list[Claim]
    approximations: dict[str, dict[str, Any]]
    policies: list[dict[str, Any]]
    steady_states: list[dict[str, Any]]  # that were really run

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, with what holds counted."""
        return {**msgspec.to_builtins(self), "holds": self.counts()}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many verdicts on the paper's claims there are by each means, and how many of them hold."""
        verdicts = [verdict for claim in self.claims if not claim.ours for verdict in claim.verdicts]
        means = dict.fromkeys(verdict.by for verdict in verdicts)
        return {
            by: {
                "holds": sum(one.holds for one in verdicts if one.by == by),
                "judged": sum(one.by == by for one in verdicts),
            }
            for by in means
        }


def make_report(results: Results) -> Report:
    """Judge everything."""
    claims = []
    for claim, look in RULES:
        verdicts = tuple(Verdict(by, *seen) for by, seen in look(results))
        if verdicts:
            about = _one_line(claim.claim)
            claims.append(Claim(claim.name, claim.figure, about, claim.judged_by, claim.ours, verdicts))
    errors: dict[str, dict[str, Any]] = {
        name: {group: errors_of(some, name)._asdict() for group, some in _groups(results.grid).items() if some}
        for name in APPROXIMATIONS
    }
    policies = [_policy_row(results, policy, load) for load in (BURST, UP_AND_DOWN) for policy in _policies(results)]
    really = [_real_row(one) for one in results.real_cells.values()]
    return Report(results.extent.name, bool(results.real_runs), claims, errors, policies, really)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _groups(grid: Sequence[Compared]) -> dict[str, list[Compared]]:
    found = {"all": list(grid)}
    for servers in dict.fromkeys(one.queue.servers for one in grid):
        found[f"{servers} server{'s' if servers > 1 else ''}"] = [one for one in grid if one.queue.servers == servers]
    for busy in dict.fromkeys(one.queue.utilisation for one in grid):
        found[f"utilisation {busy:g}"] = [one for one in grid if one.queue.utilisation == busy]
    found["both scvs at most 1"] = [one for one in grid if max(one.queue.ca2, one.queue.cs2) <= 1]
    found["ca2 above 1"] = [one for one in grid if one.queue.ca2 > 1]
    found["cs2 above 1"] = [one for one in grid if one.queue.cs2 > 1]
    return found


def _policies(results: Results) -> list[Policy]:
    return list(dict.fromkeys(policy for policy, _ in results.runs))


def _policy_row(results: Results, policy: Policy, load: Load) -> dict[str, Any]:
    runs = results.of(policy, load)
    responses = np.concatenate([[job.response_s for job in run.jobs] for run in runs])
    return {
        "load": load.name,
        "policy": policy.name,
        "consumers_mean": _cost(runs),
        "consumers_most": max(sum(run.most) for run in runs),
        "changes": float(np.mean([len(run.scaled) - 1 for run in runs])),
        "response_s": _response(runs),
        "response_p95_s": float(np.percentile(responses, 95)),
        "affected": float(np.mean([run.affected for run in runs])),
    }


def _real_row(one: RealCell) -> dict[str, Any]:
    low_s, high_s = one.range_s()
    return {
        "rates_per_min": one.cell.rates,
        "consumers": one.cell.consumers,
        "utilisation": max(predicted(*one.cell).utilisation.values()),
        "jobs": one.counted,
        "response_s": one.means.response_s,
        "simulated_s": float(np.mean([each.response_s for each in one.same_arrivals])),
        "simulated_range_s": [low_s, high_s],
        "little_response_s": one.means.little_response_s,
        "little_response_model_s": predicted(*one.cell).response_s,
        "service_added_ms": None if one.added is None else one.added.service_ms,
        "between_tasks_ms": None if one.added is None else one.added.between_ms,
        "idle_ms": None if one.added is None else one.added.idle_ms,
    }


def write_report(report: Report, results: Results, folder: Path) -> None:
    """Write report.md and report.json into a folder."""
    (folder / NUMBERS).write_bytes(msgspec.json.format(msgspec.json.encode(report.to_dict()), indent=1))
    (folder / REPORT).write_text("\n\n".join(_parts(report, results)) + "\n", encoding="utf-8")


def _parts(report: Report, results: Results) -> Iterator[str]:
    """Return the report's headings, paragraphs and tables, between which there are empty lines."""
    yield "# Elastic workflows: the paper's experiments, run again"
    extent = results.extent
    about = (
        "The paper is *Resource Management for Elastic Publish Subscribe Systems: A Performance Modeling-based"
        f" Approach*. A {report.extent} reproduction: {extent.random_runs:,} runs of Random by the model,"
        f" {len(results.cells)} steady states simulated with {extent.jobs * extent.replications:,} jobs each, and"
        f" {extent.bursts} seeds of each load that changes. The simulator runs the real monitor, planner and scheduler."
    )
    if report.extent != "full":
        about += (
            "\nRuns are short and few here, so that single figures are rough: the full reproduction is what counts."
        )
    if not report.really_run:
        about += "\nNothing was really run this time: verdicts are the model's and the simulator's."
    yield about
    yield "## The paper's claims"
    told = [f"{by} {one['holds']} of {one['judged']}" for by, one in report.counts().items()]
    yield f"Of the verdicts below these hold: {', '.join(told)}."
    head = "| | claim | judged by | | what we see | holds? |"
    yield table(head, _claim_rows(claim for claim in report.claims if not claim.ours))
    yield "## Where the paper had to be read"
    yield _readings()
    yield table(head, _claim_rows(claim for claim in report.claims if claim.ours))
    if report.steady_states:
        yield "## What was really run"
        yield from _steady_states(report, results)
    yield "## How far the approximations are off"
    yield from _approximations(report, results)
    yield "## Beside scaling on queue length alone"
    yield from _beside_lag_rule(report)
    yield "## Figures"
    yield from (f"![{figure.shows}]({figure.file})" for figure in FIGURES)


def _claim_rows(claims: Iterator[Claim]) -> Iterator[Sequence[str]]:
    for claim in claims:
        for number, verdict in enumerate(claim.verdicts):
            shared = [claim.figure, claim.claim, claim.judged_by] if not number else ["", "", ""]
            yield [*shared, verdict.by, verdict.seen, word(verdict.holds)]


def _readings() -> str:
    return "\n".join(
        [
            "* The figure of the job types is garbled. We take A → {B, C} → D, A → C → D and C → D: they fit the text.",
            "* At (3.0, 3.5, 3.0) one consumer a task cannot keep up, nor can any allocation until A, C and D have two:"
            " WIP has no value there, and we draw none. Consumers first go where most is lacking.",
            "* A budget counts consumers beyond one a task. Algorithm 2 goes on while WIP is above its target.",
            "* Overall response is WIP by arrivals (Little), which counts parallel branches one by one; a job type's is"
            " along its path, at a join that of the slower branch, which is a bound from below.",
            "* The burst begins for all job types at once, after 20 % of all requests. Were each type to change its"
            " rate after 20 requests of its own, the bursts of the types would hardly overlap.",
            f'* "Affected" is ours to define: more than {AFFECTED:g} times the mean of the type before the burst.',
            f"* Random's best is of {BEST_OF} runs; the paper does not say of how many.",
        ]
    )


def _steady_states(report: Report, results: Results) -> Iterator[str]:
    a_minute_s = results.seconds_per_minute
    runs = len(next(iter(results.real_cells.values())).same_arrivals)
    yield (
        "A broker, the control plane and a process for each consumer, on one machine; handlers sleep for times drawn"
        f" from gamma distributions, and a minute takes {a_minute_s:g} s. Times are told in the case study's time."
        " Steady states have fixed consumers; the first fifth of the jobs is left out. So few jobs scatter: beside each"
        f" stands what the simulator says of the same arrivals ({runs} runs with other service times: the mean, and the"
        " range of 95 % of them). The model knows no arrivals, only rates."
    )
    rows = [
        [
            f"({listed(row['rates_per_min'], 'g')})", str(tuple(row["consumers"])), f"{row['utilisation']:.2f}",
            str(row["jobs"]), f"{row['response_s']:.1f}", f"{row['simulated_s']:.1f}",
            listed(row["simulated_range_s"], ".0f"), f"{row['little_response_s']:.1f}",
            f"{row['little_response_model_s']:.1f}",
        ]
        for row in report.steady_states
    ]  # fmt: skip
    yield table(
        "| arrivals a minute | consumers | busiest | jobs | response, s | simulated | range | by WIP, s | model |", rows
    )
    told = [row for row in report.steady_states if row["service_added_ms"] is not None]
    if told:
        names = ("service_added_ms", "between_tasks_ms", "idle_ms")
        service_ms, between_ms, idle_ms = (float(np.median([row[name] for row in told])) for name in names)
        longer = 60 / a_minute_s / 1000
        yield (
            f"What the real system adds (median): {service_ms:.1f} ms to a task, from its beginning to its end,"
            f" against how long its handler was to sleep; {between_ms:.1f} ms to a job before, between and after its"
            f" tasks; {idle_ms:.1f} ms to a consumer between a task and the next that waits for it. At {a_minute_s:g} s"
            f" a minute that counts as {service_ms * longer:.2f} s, {between_ms * longer:.2f} s and"
            f" {idle_ms * longer:.2f} s."
        )


def _approximations(report: Report, results: Results) -> Iterator[str]:
    grid = results.extent.grid
    yield (
        "L_q of a GI/G/m queue with gamma distributed times, by each approximation and by simulation"
        f" ({grid.customers * grid.runs:,} customers a queue), over utilisations {listed(grid.utilisations, 'g')},"
        f" servers {listed(grid.servers, 'g')} and scvs of arrivals and service of {listed(grid.scvs, 'g')}, all pairs."
        f" Relative errors are of queues with at least {TELLING:g} waiting; the simulation's own confidence interval is"
        f" ± {noise_of(results.grid):.1%} (median). Errors of L, those in service included, are errors of the response."
    )
    rows = []
    for group, one in report.approximations["qna"].items():
        cells = [group, str(one["queues"])]
        for name in APPROXIMATIONS:
            found = report.approximations[name][group]
            cells.append(f"{found['median']:.0%} / {found['p90']:.0%} / {found['worst']:.0%}")
            cells.append(f"{found['median_of_all']:.1%} / {found['p90_of_all']:.1%}")
        rows.append(cells)
    heads = [f"{name}: L_q, median / 90 % / worst | {name}: L, median / 90 %" for name in APPROXIMATIONS]
    yield table(f"| | queues | {' | '.join(heads)} |", rows)


def _beside_lag_rule(report: Report) -> Iterator[str]:
    yield (
        "The lag rule is KEDA's: every 30 s each task gets its messages (waiting or at work) by a target, rounded up,"
        " and goes down to the most it wanted within 300 s. Cost is consumers, averaged over the run. A new consumer is"
        ' at work after 5 s. "Up and down" is half an hour at (0.5, 1.0, 0.5), one at (3.0, 3.5, 3.0) and one at the'
        " lower rates again."
    )
    for load in (BURST, UP_AND_DOWN):
        rows = [
            [
                row["policy"], f"{row['consumers_mean']:.2f}", str(row["consumers_most"]), f"{row['changes']:.1f}",
                f"{row['response_s']:.1f}", f"{row['response_p95_s']:.0f}", f"{row['affected']:.1%}",
            ]
            for row in report.policies
            if row["load"] == load.name
        ]  # fmt: skip
        head = f"| {load.name} | consumers, mean | most | changes | response, s | 95 % | affected |"
        yield table(head, rows)


def summary_rows(claims: Sequence[Claim]) -> Iterator[tuple[str, ...]]:
    """Return claims for a screen: figure, claim, and verdicts in one word each."""
    for claim in claims:
        words = (f"{one.by}: {'yes' if one.holds else 'no'}" for one in claim.verdicts)
        yield claim.figure, claim.claim, ", ".join(words)
