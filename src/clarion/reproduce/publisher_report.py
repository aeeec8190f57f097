"""The report: the tuned-publisher paper's claims, judged by what the runs gave, and our figures beside a reference's.

Claims are in the paper's order, each above the function that judges it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from clarion.reproduce.claims import Seen, listed, percent, table, word
from clarion.reproduce.publisher_experiments import (
    BAND,
    BAND_LEAST,
    CONGESTED,
    EAGER,
    FIXED,
    INITIAL_SIZES,
    LITERAL,
    LOAD,
    LOADS_PER_S,
    PROFILES,
    RECHECK,
    SEVERAL,
    SLOW,
    SLOW_SIZES,
    STEPS,
    TRACE,
    TRACE_SIZES,
    TUNED,
    WINDOW_S,
    Cell,
    Compared,
    Hindsight,
    Results,
    Workload,
    compare,
    follows_load,
    hindsight,
    load_cell,
    mean_on_grid,
    settled_after_s,
)
from clarion.reproduce.publisher_figures import FIGURES

OFF = "tuning off"  # in the policy's place, where the claim is about fixed N
UNTUNED = (OFF,)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What we see of a claim for one profile and policy."""

    profile: str
    policy: str
    seen: str
    holds: bool
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of a paper with its verdicts; none are typed in, all are computed."""

    name: str
    figure: str
    claim: str
    judged_by: str
    verdicts: tuple[Verdict, ...] = ()

    def of(self, profile: str, policy: str) -> Verdict | None:
        """Return the verdict for a profile and policy, if there is one."""
        return next((one for one in self.verdicts if (one.profile, one.policy) == (profile, policy)), None)


Look = Callable[..., Seen]  # at results, for a profile and a policy; on a trace also at the workload


@dataclass(frozen=True, slots=True)
class Rule:
    """How a claim is judged: for each profile and each of these policies `look` returns what is seen."""

    claim: Claim
    policies: tuple[str, ...]
    look: Look

    def judge(self, results: Results, profiles: Sequence[str]) -> Claim:
        """Judge the claim by what the runs gave."""
        verdicts = [
            Verdict(profile, policy, *self.look(results, profile, policy))
            for profile in profiles
            for policy in self.policies
        ]
        return dataclasses.replace(self.claim, verdicts=tuple(verdicts))

    def on(self, work: Workload) -> Rule:
        """Return the rule for one trace."""
        name, claim = f"{self.claim.name}: {work.case}", f"{self.claim.claim} [{work.case}, {work.rate_per_s:.2g}/s]"
        return Rule(
            dataclasses.replace(self.claim, name=name, claim=claim), self.policies, partial(self.look, work=work)
        )


LOAD_RULES: list[Rule] = []
STEP_RULES: list[Rule] = []
SLOW_RULES: list[Rule] = []
TRACE_RULES: list[Rule] = []  # for a trace as it came
FASTER_RULES: list[Rule] = []  # for a trace at a higher rate
DEPLOYED_RULES: list[Rule] = []
SEVERAL_RULES: list[Rule] = []


def _judges(
    rules: list[Rule], name: str, figure: str, judged_by: str, policies: tuple[str, ...] = TUNED
) -> Callable[[Look], Look]:
    """Add the rule by which a function judges the claim that is the function's docstring."""

    def add(look: Look) -> Look:
        rules.append(Rule(Claim(name, figure, look.__doc__ or "", judged_by), policies, look))
        return look

    return add


def milliseconds(values: Iterable[float]) -> str:
    """Return response times: 315 / 403 / 448 ms."""
    return f"{listed(values, ',.0f')} ms"


_LOW, _MIDDLE, _SHOWN, _HIGH = LOADS_PER_S
_MUCH_SLOWER = 2.0
_NEAR_TEN = range(6, 16)
_SPREAD = 0.05
_FALLS = 0.98
_SLIGHT = 1.25
_NEAR_BEST_SIZE = 0.35
_NEAR_BEST = 1.10


def _best(results: Results, profile: str, load: float) -> tuple[int, float]:
    return results.best_fixed(LOAD, profile, f"{load:g}", results.extent.swept_sizes)


def _fixed_ms(results: Results, profile: str, load: float, size: int) -> float:
    return results.mean_ms(load_cell(profile, load, FIXED, size))


@_judges(LOAD_RULES, "best-at-low-load", "Fig. 8", "the fixed N with the lowest mean response is 1", UNTUNED)
def _lowest_at_one(results: Results, profile: str, _policy: str) -> Seen:
    """Without tuning, at 1.75 requests/s the response time is lowest with N = 1."""
    size, _ = _best(results, profile, _LOW)
    means = [_fixed_ms(results, profile, _LOW, one) for one in (1, 10, 50)]
    text = f"best N is {size}; N = 1 / 10 / 50: {milliseconds(means)}"
    return Seen(text, size == 1, {"best_batch_size": size, "mean_ms": means})


@_judges(
    LOAD_RULES, "small-n-at-high-load", "Fig. 8",
    "N = 1 has more than twice the best mean response at 35/s and at 55/s", UNTUNED,
)  # fmt: skip
def _small_is_slow(results: Results, profile: str, _policy: str) -> Seen:
    """As the load grows, small N has high response times."""
    loads = (_MIDDLE, _SHOWN, _HIGH)
    ratios = [_fixed_ms(results, profile, load, 1) / _best(results, profile, load)[1] for load in loads]
    text = f"N = 1 at 17.5 / 35 / 55 per s: {listed(ratios, ',.1f')} x the best N"
    return Seen(text, min(ratios[1:]) > _MUCH_SLOWER, {"ratio_to_best": ratios})


@_judges(
    LOAD_RULES, "falls-then-rises", "Fig. 8",
    "the lowest mean response is at an N from 6 to 15, and below both ends of the sweep", UNTUNED,
)  # fmt: skip
def _falls_then_rises(results: Results, profile: str, _policy: str) -> Seen:
    """At 35 requests/s the response time falls with N, is lowest near 10, then rises."""
    size, lowest_ms = _best(results, profile, _SHOWN)
    ends = results.extent.swept_sizes[0], results.extent.swept_sizes[-1]
    ends_ms = [_fixed_ms(results, profile, _SHOWN, end) for end in ends]
    text = f"lowest at N = {size} ({lowest_ms:,.0f} ms); N = {ends[0]} / {ends[1]}: {milliseconds(ends_ms)}"
    values = {"best_batch_size": size, "best_ms": lowest_ms, "ends_ms": ends_ms}
    return Seen(text, lowest_ms < min(ends_ms) and size in _NEAR_TEN, values)


@_judges(
    LOAD_RULES, "same-for-any-start", "Fig. 9", "means for N = 1, 10, 50 differ by at most 5 % at every load"
)  # fmt: skip
def _same_for_any_start(results: Results, profile: str, policy: str) -> Seen:
    """With tuning the response time is the same whatever N is to begin with."""
    spreads = []
    for load in LOADS_PER_S:
        means = [results.mean_ms(load_cell(profile, load, policy, size)) for size in INITIAL_SIZES]
        spreads.append(max(means) / min(means) - 1)
    return Seen(f"differs by at most {100 * max(spreads):.1f} %", max(spreads) <= _SPREAD, {"spread_by_load": spreads})


@_judges(
    LOAD_RULES, "slight-increase", "Fig. 9",
    "no fall of more than 2 % from load to load, and at 55/s at most a quarter more than at 1.75/s",
)  # fmt: skip
def _slight_increase(results: Results, profile: str, policy: str) -> Seen:
    """With tuning the mean response time increases slightly with the load."""
    means = [results.mean_ms(load_cell(profile, load, policy)) for load in LOADS_PER_S]
    rises = all(after > _FALLS * before for before, after in pairwise(means))
    text = f"{milliseconds(means)}: {percent(means[-1] / means[0])}"
    return Seen(text, rises and means[-1] <= _SLIGHT * means[0], {"mean_ms": means})


@_judges(LOAD_RULES, "optimal", "Fig. 9", "at every load the mean response is at most 10 % above the best fixed N's")
def _optimal(results: Results, profile: str, policy: str) -> Seen:
    """The algorithm finds the N that optimises the latency."""
    cells = {load: load_cell(profile, load, policy) for load in LOADS_PER_S}
    ratios = [results.mean_ms(cell) / _best(results, profile, load)[1] for load, cell in cells.items()]
    text = "against the best fixed N: " + " / ".join(percent(ratio) for ratio in ratios)
    carried = not any(results.is_unstable(cell) for cell in cells.values())
    return Seen(text, carried and max(ratios) <= _NEAR_BEST, {"ratio_to_best": ratios, "load_is_carried": carried})


@_judges(LOAD_RULES, "average-n", "Fig. 10", "the mean N over time is within 35 % of the best fixed N")
def _average_size(results: Results, profile: str, policy: str) -> Seen:
    """At 35 requests/s the average N is close to the N that minimises the response time."""
    size, best = results.batch_size_mean(load_cell(profile, _SHOWN, policy)), _best(results, profile, _SHOWN)[0]
    holds = abs(size / best - 1) <= _NEAR_BEST_SIZE
    return Seen(f"mean N {size:.1f}; the best fixed N is {best}", holds, {"mean": size, "best_batch_size": best})


@_judges(LOAD_RULES, "n-rises-with-load", "IV.B", "the mean N over time rises from each load to the next")
def _rises_with_load(results: Results, profile: str, policy: str) -> Seen:
    """As the load increases N should increase."""
    sizes = [results.batch_size_mean(load_cell(profile, load, policy)) for load in LOADS_PER_S]
    rises = all(before < after for before, after in pairwise(sizes))
    return Seen(f"mean N {listed(sizes, '.1f')}", rises, {"batch_size_mean": sizes})


_SETTLES_WITHIN_S = 3.0


def _settling(results: Results, profile: str, policy: str) -> list[tuple[float, float]]:
    """Return how long N takes to settle in each step, and its level there."""
    steps = results.extent.steps
    grid_s, sizes = mean_on_grid(results.traces(Cell(STEPS, profile, "", policy)), steps[-1].end_s)
    return [settled_after_s(grid_s, sizes, step.start_s, step.end_s) for step in steps]


@_judges(
    STEP_RULES, "adapts-quickly", "Fig. 11",
    f"N, averaged over seeds and the last {WINDOW_S:g} s, comes within {100 * BAND:.0f} % (or {BAND_LEAST:g}) of its"
    f" level within {_SETTLES_WITHIN_S:g} s of each step of Table II",
)  # fmt: skip
def _quickly(results: Results, profile: str, policy: str) -> Seen:
    """N adapts quickly to steps in the load."""
    took_s = [after_s for after_s, _ in _settling(results, profile, policy)[1:]]
    text = f"settled after {listed(took_s, '.1f')} s"
    return Seen(text, max(took_s) <= _SETTLES_WITHIN_S, {"settled_after_s": took_s})


@_judges(
    STEP_RULES, "follows-steps", "Fig. 11",
    "of any two steps of Table II, the one with the higher load has the higher mean N",
)  # fmt: skip
def _with_the_load(results: Results, profile: str, policy: str) -> Seen:
    """The average N goes with the load of each step."""
    levels = [level for _, level in _settling(results, profile, policy)]
    loads = [step.load_per_s for step in results.extent.steps]
    pairs = [(one, other) for one in zip(loads, levels, strict=True) for other in zip(loads, levels, strict=True)]
    rises = all(level < higher for (load, level), (more, higher) in pairs if load < more)
    return Seen(f"mean N of the steps {listed(levels, '.1f')}", rises, {"loads_per_s": loads, "levels": levels})


_MANY_DROPS = 0.05
_FAIR = 0.95
_LEAST_SHARE = 0.8


@_judges(
    SLOW_RULES, "untuned-drops", "V.B.3", "fixed N of 5 and more, without the credit gate, drops more than 5 %", UNTUNED
)  # fmt: skip
def _drops_untuned(results: Results, profile: str, _policy: str) -> Seen:
    """Without tuning a slow subscriber ties up the workers, and requests are dropped."""
    shares = {size: results.dropped_share(Cell(SLOW, profile, "", FIXED, size, False)) for size in SLOW_SIZES}
    text = "dropped at N = " + ", ".join(f"{size}: {100 * share:.1f} %" for size, share in shares.items())
    least = min(share for size, share in shares.items() if size >= 5)
    return Seen(text, least > _MANY_DROPS, {"dropped_share": {str(size): share for size, share in shares.items()}})


@_judges(SLOW_RULES, "no-loss-as-written", "V.B.3", "0 dropped, without our credit gate")
def _no_loss_as_written(results: Results, profile: str, policy: str) -> Seen:
    """With tuning (as the paper has it) a slow subscriber causes no losses."""
    return _losses(results, Cell(SLOW, profile, "", policy, gated=False))


@_judges(SLOW_RULES, "no-loss-gated", "ours", "0 dropped, with the credit gate")
def _no_loss_gated(results: Results, profile: str, policy: str) -> Seen:
    """With tuning and our credit gate a slow subscriber causes no losses."""
    return _losses(results, Cell(SLOW, profile, "", policy, gated=True))


def _losses(results: Results, cell: Cell) -> Seen:
    dropped, share = results.dropped(cell), results.dropped_share(cell)
    offered = sum(outcome.offered for outcome in results.of(cell))
    text = f"{dropped:,} of {offered:,} dropped ({100 * share:.1f} %)"
    return Seen(text, dropped == 0, {"dropped": dropped, "offered": offered, "share": share})


_AS_GOOD = 1.10
_LOW_SIZES = (1, 3)
_VERY_SLOW = 3.0
_CORRELATED = 0.5
_SAMPLES = 100  # arrivals over which N and load are averaged, as in Fig. 3
_AS_GOOD_MEANS = "means for N = 1, 10, 50 differ by at most 5 %, at most 10 % above the best fixed N's; none dropped"


@_judges(TRACE_RULES, "trace-low-n", "Fig. 12", "the best of N = 1, 3, 10, 50 is 1 or 3", UNTUNED)
def _low_is_best(results: Results, profile: str, _policy: str, work: Workload) -> Seen:
    """On the trace as it is, low N is best without tuning."""
    size, _ = results.best_fixed(TRACE, profile, work.case, TRACE_SIZES)
    means = [results.mean_ms(Cell(TRACE, profile, work.case, FIXED, one, False)) for one in TRACE_SIZES]
    text = f"best N is {size}; N = {listed(TRACE_SIZES, '')}: {milliseconds(means)}"
    return Seen(text, size in _LOW_SIZES, {"best_batch_size": size, "mean_ms": means})


@_judges(
    FASTER_RULES, "trace-n1-slow", "Fig. 13",
    "N = 1 takes more than three times as long as the best of N = 1, 3, 10, 50", UNTUNED,
)  # fmt: skip
def _one_is_slow(results: Results, profile: str, _policy: str, work: Workload) -> Seen:
    """On the faster trace N = 1 is very slow without tuning."""
    size, best_ms = results.best_fixed(TRACE, profile, work.case, TRACE_SIZES)
    ratio = results.mean_ms(Cell(TRACE, profile, work.case, FIXED, 1, False)) / best_ms
    return Seen(f"N = 1 takes {ratio:,.1f} x as long as N = {size}", ratio > _VERY_SLOW, {"ratio_to_best": ratio})


@_judges(TRACE_RULES, "trace-tuned", "Fig. 12", _AS_GOOD_MEANS)
@_judges(FASTER_RULES, "trace-tuned", "Fig. 13", _AS_GOOD_MEANS)
def _as_good(results: Results, profile: str, policy: str, work: Workload) -> Seen:
    """With tuning the performance is as good whatever N is to begin with."""
    best_ms = results.best_fixed(TRACE, profile, work.case, TRACE_SIZES)[1]
    cells = [Cell(TRACE, profile, work.case, policy, size) for size in INITIAL_SIZES]
    means = [results.mean_ms(cell) for cell in cells]
    spread, ratio, dropped = max(means) / min(means) - 1, max(means) / best_ms, sum(map(results.dropped, cells))
    lost = f"; {dropped} dropped" if dropped else ""
    text = f"{milliseconds(means)}; {percent(ratio)} against the best fixed N{lost}"
    values = {"mean_ms": means, "spread": spread, "ratio_to_best": ratio, "dropped": dropped}
    return Seen(text, spread <= _SPREAD and ratio <= _AS_GOOD and not dropped, values)


@_judges(
    FASTER_RULES, "trace-follows", "Fig. 14",
    f"N and load, averaged over the time of {_SAMPLES} arrivals, have a correlation above {_CORRELATED}",
)  # fmt: skip
def _follows(results: Results, profile: str, policy: str, work: Workload) -> Seen:
    """The adaptation of N goes well with the changes of the load."""
    until_s = float(work.times_s[-1])
    traces = results.traces(Cell(TRACE, profile, work.case, policy))
    window_s = _SAMPLES / work.rate_per_s
    found = float(np.mean([follows_load(trace, work.times_s, until_s, window_s) for trace in traces]))
    return Seen(f"correlation {found:.2f}", found > _CORRELATED, {"correlation": found})


@_judges(
    DEPLOYED_RULES, "less-than-deployed", "abstract, VI",
    "lower mean response than T_poll = 1000 ms with its best N, at every load and on every trace",
)  # fmt: skip
def _less_delay(results: Results, profile: str, policy: str) -> Seen:
    """Tuned delays are lower than those of the deployed system (T_poll = 1000 ms, no tuning)."""
    cells = {f"{load:g}/s": load_cell(profile, load, policy) for load in LOADS_PER_S}
    cells |= {case: Cell(TRACE, profile, case, policy) for case in results.workloads}
    ratios = {}
    for name, cell in cells.items():
        ratios[name] = results.mean_ms(cell) / results.best_deployed(cell.experiment, profile, cell.case)[1]
    low, high = min(ratios.values()), max(ratios.values())
    return Seen(f"{low:.2f} to {high:.2f} of its mean delay", high < 1, {"ratio_to_deployed": ratios})


_FAIRLY = (
    f"with any number of publishers and any seed, Jain's index is at least {_FAIR} and nobody has less than"
    f" {_LEAST_SHARE} of an even share"
)


@_judges(SEVERAL_RULES, "fair", "VIII", _FAIRLY)
def _fair(results: Results, profile: str, policy: str) -> Seen:
    """Several publishers on one broker are treated fairly."""
    return _fairness(SEVERAL, results, profile, policy)


@_judges(SEVERAL_RULES, "fair-congested", "VIII", _FAIRLY)
def _fair_congested(results: Results, profile: str, policy: str) -> Seen:
    """Several publishers are treated fairly by a broker that cannot take it all."""
    return _fairness(CONGESTED, results, profile, policy)


def _fairness(experiment: str, results: Results, profile: str, policy: str) -> Seen:
    measures = ("jain_throughput", "jain_response", "least_share")
    values: dict[str, Any] = {}
    for publishers in results.extent.publishers:
        outcomes = results.of(Cell(experiment, profile, str(publishers), policy))
        values[str(publishers)] = {name: min(getattr(one, name) for one in outcomes) for name in measures}
    throughput, response, share = (min(value[name] for value in values.values()) for name in measures)
    text = f"Jain's index {throughput:.3f} of throughput, {response:.3f} of response; least share {share:.2f}"
    return Seen(text, min(throughput, response) >= _FAIR and share >= _LEAST_SHARE, values)


def judge_all(results: Results) -> list[Claim]:
    """Judge every claim by what the runs gave; on a trace those for a low load where it is as it came, else others."""
    works = results.workloads.values()
    traced = [rule.on(work) for work in works for rule in (TRACE_RULES if work.as_is else FASTER_RULES)]
    rules = [*LOAD_RULES, *STEP_RULES, *SLOW_RULES, *traced, *DEPLOYED_RULES, *SEVERAL_RULES]
    return [rule.judge(results, PROFILES) for rule in rules]


REPORT, CLAIMS = "report.md", "claims.json"


class Report(msgspec.Struct, frozen=True):
    """Everything that the runs say, as numbers and verdicts."""

    extent: str
    runs: int
    traces: list[dict[str, Any]]
    claims: list[Claim]
    reference: list[Compared]
    beyond: list[Hindsight]

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, with what holds counted by policy."""
        return {**msgspec.to_builtins(self), "holds": self.counts()}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many verdicts there are by policy, and how many of them hold."""
        verdicts = [verdict for claim in self.claims for verdict in claim.verdicts]
        return {
            policy: {
                "holds": sum(one.holds for one in verdicts if one.policy == policy),
                "judged": sum(one.policy == policy for one in verdicts),
            }
            for policy in (OFF, *TUNED)
        }


def make_report(results: Results) -> Report:
    """Judge everything."""
    traces = [
        {"trace": work.case, "arrivals": int(work.times_s.size), "mean_rate_per_s": work.rate_per_s,
         "given": work.given}
        for work in results.workloads.values()
    ]  # fmt: skip
    return Report(results.extent.name, results.runs, traces, judge_all(results), compare(results), hindsight(results))


def write_report(report: Report, results: Results, folder: Path) -> None:
    """Write report.md and claims.json into a folder."""
    (folder / CLAIMS).write_bytes(msgspec.json.format(msgspec.json.encode(report.to_dict()), indent=1))
    (folder / REPORT).write_text("\n\n".join(_parts(report, results)) + "\n\n", encoding="utf-8")


def _parts(report: Report, results: Results) -> Iterator[str]:
    """Return the report's headings, paragraphs and tables, between which there are empty lines."""
    yield "# The tuned publisher: the paper's experiments, run again"
    about = f"A {report.extent} reproduction: {report.runs:,} runs of the model, which runs the real publisher's tuner."
    if report.extent != "full":
        about += (
            "\nRuns are short and few here, so that single figures are rough: the full reproduction is what counts."
        )
    if not any(trace["given"] for trace in report.traces):
        about += "\nNo trace file was given: the traces are the generated lookup service's alone."
    yield about
    yield from _claims(report)
    yield from _plainly(report)
    yield from _reference(report)
    yield from _beyond(report)
    yield from _deployed(results)
    yield "## Figures"
    yield from (f"![{figure.shows}]({figure.file})" for figure in FIGURES)


def _claims(report: Report) -> Iterator[str]:
    yield "## The paper's claims"
    told = [f"{policy} {one['holds']} of {one['judged']}" for policy, one in report.counts().items()]
    yield (
        f"Of the verdicts below, in both profiles, these hold: {', '.join(told)}.\n"
        "What we see is of the literal algorithm, or of fixed N where the claim is about tuning switched off."
    )
    rows = []
    for claim in report.claims:
        for number, profile in enumerate(PROFILES):
            main = claim.of(profile, LITERAL) or claim.of(profile, OFF)
            assert main is not None
            # What both profiles share is told once.
            shared = [claim.figure, claim.claim, claim.judged_by] if number == 0 else ["", "", ""]
            beside = [_beside(claim.of(profile, policy)) for policy in (RECHECK, EAGER)]
            rows.append([*shared, profile, main.seen, word(main.holds), *beside])
    yield table("| | the paper's claim | judged by | profile | what we see | holds? | recheck | eager |", rows)


def _beside(verdict: Verdict | None) -> str:
    return "" if verdict is None else f"{word(verdict.holds)}: {verdict.seen}"


def _plainly(report: Report) -> Iterator[str]:
    yield "## What does not hold for the algorithm as it is written"
    failed = [(claim, verdict) for claim in report.claims for verdict in claim.verdicts if not verdict.holds]
    lines = []
    for claim, verdict in failed:
        if verdict.policy not in (LITERAL, OFF):
            continue
        others = [claim.of(verdict.profile, policy) for policy in (RECHECK, EAGER)]
        told = "; ".join(f"{one.policy} {'holds' if one.holds else 'does not'}: {one.seen}" for one in others if one)
        beside = f" Beside it: {told}." if told else ""
        lines.append(f"* {claim.figure}, {verdict.profile}: {claim.claim} We see: {verdict.seen}.{beside}")
    yield "\n".join(lines) or "Everything holds."


def _reference(report: Report) -> Iterator[str]:
    held = sum(one.holds for one in report.reference)
    yield "## Beside the independent reference model"
    yield (
        f"{held} of {len(report.reference)} figures are within 10 % (mean N: 15 %), or unstable where the reference is."
        " Reference → ours; response in ms."
    )
    for profile in PROFILES:
        ours = [one for one in report.reference if one.profile == profile]
        names = dict.fromkeys(one.what for one in ours)
        loads = dict.fromkeys(one.load_per_s for one in ours)
        rows = [[f"{load:g}", *(_compared(one) for one in ours if one.load_per_s == load)] for load in loads]
        yield table(f"| {profile}, requests/s | {' | '.join(names)} |", rows)


def _compared(one: Compared) -> str:
    digits = 1 if "N" in one.what and "=" not in one.what else 0
    reference = "unstable" if one.reference is None else f"{one.reference:,.{digits}f}"
    ours = "unstable" if one.unstable else f"{one.ours:,.{digits}f}"
    return f"{reference} → {ours}{'' if one.holds else ' **(off)**'}"


def _beyond(report: Report) -> Iterator[str]:
    yield "## Beyond the paper: against the best fixed N in hindsight"
    yield "Mean response in ms, and in ratio to the fixed N that turned out best for that load."
    yield (
        "The paper's T_poll is 50 ms at least. That delays a fixed N, but not `eager`, which polls when something\n"
        "is pending; so the best fixed N with polls every 5 ms is shown too, as what N alone can do."
    )
    rows = []
    for row in report.beyond:
        cells = [f"{row.tuned_ms[policy]:,.0f} ({row.ratio(policy):.2f})" for policy in TUNED]
        fine = "" if row.fine_ms is None else f"{row.fine_ms:,.0f} ({row.fine_ms / row.best_ms:.2f})"
        rows.append([row.profile, row.case, f"N = {row.best_size}: {row.best_ms:,.0f}", fine, *cells])
    yield table(f"| profile | requests/s | best fixed N | best fixed N, T_poll 5 ms | {' | '.join(TUNED)} |", rows)
    best = [row for row in report.beyond if row.tuned_ms[EAGER] < row.tuned_ms[RECHECK]]
    within = [row for row in report.beyond if row.ratio(EAGER) <= 1.05]
    finer = [row.tuned_ms[EAGER] <= row.fine_ms for row in report.beyond if row.fine_ms is not None]
    yield (
        f"`eager` is below `recheck` in {len(best)} of {len(report.beyond)} rows, and within 5 % of the best fixed N or"
        f" below it in {len(within)}. It is at or below the best fixed N with polls every 5 ms in {sum(finer)} of"
        f" {len(finer)} rows."
    )


def _deployed(results: Results) -> Iterator[str]:
    yield "## Beside the deployed system (T_poll = 1000 ms, no tuning)"
    loads = [f"{load:g}" for load in LOADS_PER_S]
    rows = []
    for profile in PROFILES:
        best = [results.best_deployed(LOAD, profile, load) for load in loads]
        rows.append([profile, *(f"{mean_ms:,.0f} (N = {size})" for size, mean_ms in best)])
    yield table(f"| mean response, ms, with its best N | {' | '.join(f'{load}/s' for load in loads)} |", rows)


def summary_rows(claims: Sequence[Claim]) -> Iterator[tuple[str, ...]]:
    """Return claims for a screen: figure, claim, and for each profile the verdicts in one word each."""
    for claim in claims:
        words = []
        for profile in PROFILES:
            verdicts = [one for one in claim.verdicts if one.profile == profile]
            words.append(" ".join("yes" if one.holds else "no" for one in verdicts))
        policies = " ".join(one.policy for one in claim.verdicts if one.profile == PROFILES[0])
        yield claim.figure, claim.claim, policies, *words
