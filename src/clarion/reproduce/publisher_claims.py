"""The claims of the tuned-publisher paper, each judged by what the runs gave, in the paper's order."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from clarion.reproduce.claims import UNTUNED, Claim, Rule, Seen, milliseconds, percent
from clarion.reproduce.publisher_experiments import (
    CONGESTED,
    FIXED,
    INITIAL_SIZES,
    LOAD,
    LOADS_PER_S,
    PROFILES,
    SEVERAL,
    SLOW,
    SLOW_SIZES,
    STEPS,
    TRACE,
    TRACE_SIZES,
    TUNED,
    Cell,
    Workload,
    load_cell,
)
from clarion.reproduce.publisher_results import (
    BAND,
    BAND_LEAST,
    WINDOW_S,
    Results,
    follows_load,
    mean_on_grid,
    settled_after_s,
)

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


def _lowest_at_one(results: Results, profile: str, _policy: str) -> Seen:
    size, _ = _best(results, profile, _LOW)
    means = [_fixed_ms(results, profile, _LOW, one) for one in (1, 10, 50)]
    text = f"best N is {size}; N = 1 / 10 / 50: {milliseconds(means)}"
    return Seen(text, size == 1, {"best_batch_size": size, "mean_ms": means})


def _small_is_slow(results: Results, profile: str, _policy: str) -> Seen:
    loads = (_MIDDLE, _SHOWN, _HIGH)
    ratios = [_fixed_ms(results, profile, load, 1) / _best(results, profile, load)[1] for load in loads]
    text = "N = 1 at 17.5 / 35 / 55 per s: " + " / ".join(f"{ratio:,.1f}" for ratio in ratios) + " x the best N"
    return Seen(text, min(ratios[1:]) > _MUCH_SLOWER, {"ratio_to_best": ratios})


def _falls_then_rises(results: Results, profile: str, _policy: str) -> Seen:
    size, lowest_ms = _best(results, profile, _SHOWN)
    ends = results.extent.swept_sizes[0], results.extent.swept_sizes[-1]
    ends_ms = [_fixed_ms(results, profile, _SHOWN, end) for end in ends]
    text = f"lowest at N = {size} ({lowest_ms:,.0f} ms); N = {ends[0]} / {ends[1]}: {milliseconds(ends_ms)}"
    values = {"best_batch_size": size, "best_ms": lowest_ms, "ends_ms": ends_ms}
    return Seen(text, lowest_ms < min(ends_ms) and size in _NEAR_TEN, values)


def _same_for_any_start(results: Results, profile: str, policy: str) -> Seen:
    spreads = []
    for load in LOADS_PER_S:
        means = [results.mean_ms(load_cell(profile, load, policy, size)) for size in INITIAL_SIZES]
        spreads.append(max(means) / min(means) - 1)
    return Seen(f"differs by at most {100 * max(spreads):.1f} %", max(spreads) <= _SPREAD, {"spread_by_load": spreads})


def _slight_increase(results: Results, profile: str, policy: str) -> Seen:
    means = [results.mean_ms(load_cell(profile, load, policy)) for load in LOADS_PER_S]
    rises = all(after > _FALLS * before for before, after in pairwise(means))
    text = f"{milliseconds(means)}: {percent(means[-1] / means[0])}"
    return Seen(text, rises and means[-1] <= _SLIGHT * means[0], {"mean_ms": means})


def _optimal(results: Results, profile: str, policy: str) -> Seen:
    cells = {load: load_cell(profile, load, policy) for load in LOADS_PER_S}
    ratios = [results.mean_ms(cell) / _best(results, profile, load)[1] for load, cell in cells.items()]
    text = "against the best fixed N: " + " / ".join(percent(ratio) for ratio in ratios)
    carried = not any(results.is_unstable(cell) for cell in cells.values())
    return Seen(text, carried and max(ratios) <= _NEAR_BEST, {"ratio_to_best": ratios, "load_is_carried": carried})


def _average_size(results: Results, profile: str, policy: str) -> Seen:
    size, best = results.batch_size_mean(load_cell(profile, _SHOWN, policy)), _best(results, profile, _SHOWN)[0]
    holds = abs(size / best - 1) <= _NEAR_BEST_SIZE
    return Seen(f"mean N {size:.1f}; the best fixed N is {best}", holds, {"mean": size, "best_batch_size": best})


def _rises_with_load(results: Results, profile: str, policy: str) -> Seen:
    sizes = [results.batch_size_mean(load_cell(profile, load, policy)) for load in LOADS_PER_S]
    text = "mean N " + " / ".join(f"{size:.1f}" for size in sizes)
    return Seen(text, all(before < after for before, after in pairwise(sizes)), {"batch_size_mean": sizes})


LOAD_RULES = (
    Rule(
        name="best-at-low-load",
        figure="Fig. 8",
        claim="Without tuning, at 1.75 requests/s the response time is lowest with N = 1.",
        judged_by="the fixed N with the lowest mean response is 1",
        policies=UNTUNED,
        look=_lowest_at_one,
    ),
    Rule(
        name="small-n-at-high-load",
        figure="Fig. 8",
        claim="As the load grows, small N has high response times.",
        judged_by="N = 1 has more than twice the best mean response at 35/s and at 55/s",
        policies=UNTUNED,
        look=_small_is_slow,
    ),
    Rule(
        name="falls-then-rises",
        figure="Fig. 8",
        claim="At 35 requests/s the response time falls with N, is lowest near 10, then rises.",
        judged_by="the lowest mean response is at an N from 6 to 15, and below both ends of the sweep",
        policies=UNTUNED,
        look=_falls_then_rises,
    ),
    Rule(
        name="same-for-any-start",
        figure="Fig. 9",
        claim="With tuning the response time is the same whatever N is to begin with.",
        judged_by="means for N = 1, 10, 50 differ by at most 5 % at every load",
        policies=TUNED,
        look=_same_for_any_start,
    ),
    Rule(
        name="slight-increase",
        figure="Fig. 9",
        claim="With tuning the mean response time increases slightly with the load.",
        judged_by="no fall of more than 2 % from load to load, and at 55/s at most a quarter more than at 1.75/s",
        policies=TUNED,
        look=_slight_increase,
    ),
    Rule(
        name="optimal",
        figure="Fig. 9",
        claim="The algorithm finds the N that optimises the latency.",
        judged_by="at every load the mean response is at most 10 % above the best fixed N's",
        policies=TUNED,
        look=_optimal,
    ),
    Rule(
        name="average-n",
        figure="Fig. 10",
        claim="At 35 requests/s the average N is close to the N that minimises the response time.",
        judged_by="the mean N over time is within 35 % of the best fixed N",
        policies=TUNED,
        look=_average_size,
    ),
    Rule(
        name="n-rises-with-load",
        figure="IV.B",
        claim="As the load increases N should increase.",
        judged_by="the mean N over time rises from each load to the next",
        policies=TUNED,
        look=_rises_with_load,
    ),
)


_SETTLES_WITHIN_S = 3.0


def _settling(results: Results, profile: str, policy: str) -> list[tuple[float, float]]:
    """Return how long N takes to settle in each step, and its level there."""
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


_MANY_DROPS = 0.05
_FAIR = 0.95
_LEAST_SHARE = 0.8


def _drops_untuned(results: Results, profile: str, _policy: str) -> Seen:
    shares = {size: results.dropped_share(Cell(SLOW, profile, "", FIXED, size, False)) for size in SLOW_SIZES}
    text = "dropped at N = " + ", ".join(f"{size}: {100 * share:.1f} %" for size, share in shares.items())
    least = min(share for size, share in shares.items() if size >= 5)
    return Seen(text, least > _MANY_DROPS, {"dropped_share": {str(size): share for size, share in shares.items()}})


def _loses_nothing(gated: bool, results: Results, profile: str, policy: str) -> Seen:
    cell = Cell(SLOW, profile, "", policy, gated=gated)
    dropped, share = results.dropped(cell), results.dropped_share(cell)
    offered = sum(outcome.offered for outcome in results.of(cell))
    text = f"{dropped:,} of {offered:,} dropped ({100 * share:.1f} %)"
    return Seen(text, dropped == 0, {"dropped": dropped, "offered": offered, "share": share})


def _fair(experiment: str, results: Results, profile: str, policy: str) -> Seen:
    values: dict[str, Any] = {}
    for publishers in results.extent.publishers:
        outcomes = results.of(Cell(experiment, profile, str(publishers), policy))
        values[str(publishers)] = {
            "jain_throughput": min(one.jain_throughput for one in outcomes),
            "jain_response": min(one.jain_response for one in outcomes),
            "least_share": min(one.least_share for one in outcomes),
        }
    throughput, response, share = (
        min(value[name] for value in values.values()) for name in ("jain_throughput", "jain_response", "least_share")
    )
    text = f"Jain's index {throughput:.3f} of throughput, {response:.3f} of response; least share {share:.2f}"
    return Seen(text, min(throughput, response) >= _FAIR and share >= _LEAST_SHARE, values)


SLOW_RULES = (
    Rule(
        name="untuned-drops",
        figure="V.B.3",
        claim="Without tuning a slow subscriber ties up the workers, and requests are dropped.",
        judged_by="fixed N of 5 and more, without the credit gate, drops more than 5 %",
        policies=UNTUNED,
        look=_drops_untuned,
    ),
    Rule(
        name="no-loss-as-written",
        figure="V.B.3",
        claim="With tuning (as the paper has it) a slow subscriber causes no losses.",
        judged_by="0 dropped, without our credit gate",
        policies=TUNED,
        look=partial(_loses_nothing, False),
    ),
    Rule(
        name="no-loss-gated",
        figure="ours",
        claim="With tuning and our credit gate a slow subscriber causes no losses.",
        judged_by="0 dropped, with the credit gate",
        policies=TUNED,
        look=partial(_loses_nothing, True),
    ),
)
SEVERAL_RULES = tuple(
    Rule(
        name=name,
        figure="VIII",
        claim=claim,
        judged_by=f"with any number of publishers and any seed, Jain's index is at least {_FAIR} and nobody has less"
        f" than {_LEAST_SHARE} of an even share",
        policies=TUNED,
        look=partial(_fair, experiment),
    )
    for name, experiment, claim in (
        ("fair", SEVERAL, "Several publishers on one broker are treated fairly."),
        ("fair-congested", CONGESTED, "Several publishers are treated fairly by a broker that cannot take it all."),
    )
)


_AS_GOOD = 1.10
_LOW_SIZES = (1, 3)
_VERY_SLOW = 3.0
_CORRELATED = 0.5
_SAMPLES = 100  # arrivals over which N and load are averaged, as in Fig. 3


def _low_is_best(work: Workload, results: Results, profile: str, _policy: str) -> Seen:
    size, _ = results.best_fixed(TRACE, profile, work.case, TRACE_SIZES)
    means = [results.mean_ms(Cell(TRACE, profile, work.case, FIXED, one, False)) for one in TRACE_SIZES]
    text = f"best N is {size}; N = {' / '.join(map(str, TRACE_SIZES))}: {milliseconds(means)}"
    return Seen(text, size in _LOW_SIZES, {"best_batch_size": size, "mean_ms": means})


def _one_is_slow(work: Workload, results: Results, profile: str, _policy: str) -> Seen:
    size, best_ms = results.best_fixed(TRACE, profile, work.case, TRACE_SIZES)
    ratio = results.mean_ms(Cell(TRACE, profile, work.case, FIXED, 1, False)) / best_ms
    return Seen(f"N = 1 takes {ratio:,.1f} x as long as N = {size}", ratio > _VERY_SLOW, {"ratio_to_best": ratio})


def _as_good(work: Workload, results: Results, profile: str, policy: str) -> Seen:
    best_ms = results.best_fixed(TRACE, profile, work.case, TRACE_SIZES)[1]
    cells = [Cell(TRACE, profile, work.case, policy, size) for size in INITIAL_SIZES]
    means = [results.mean_ms(cell) for cell in cells]
    spread, ratio, dropped = max(means) / min(means) - 1, max(means) / best_ms, sum(map(results.dropped, cells))
    text = f"{milliseconds(means)}; {percent(ratio)} against the best fixed N" + (
        f"; {dropped} dropped" * (dropped > 0)
    )
    values = {"mean_ms": means, "spread": spread, "ratio_to_best": ratio, "dropped": dropped}
    return Seen(text, spread <= _SPREAD and ratio <= _AS_GOOD and not dropped, values)


def _follows(work: Workload, results: Results, profile: str, policy: str) -> Seen:
    until_s = float(work.times_s[-1])
    traces = results.traces(Cell(TRACE, profile, work.case, policy))
    window_s = _SAMPLES / work.rate_per_s
    found = float(np.mean([follows_load(trace, work.times_s, until_s, window_s) for trace in traces]))
    return Seen(f"correlation {found:.2f}", found > _CORRELATED, {"correlation": found})


def _less_delay(results: Results, profile: str, policy: str) -> Seen:
    cells = {f"{load:g}/s": load_cell(profile, load, policy) for load in LOADS_PER_S}
    cells |= {case: Cell(TRACE, profile, case, policy) for case in results.workloads}
    ratios = {}
    for name, cell in cells.items():
        ratios[name] = results.mean_ms(cell) / results.best_deployed(cell.experiment, profile, cell.case)[1]
    low, high = min(ratios.values()), max(ratios.values())
    return Seen(f"{low:.2f} to {high:.2f} of its mean delay", high < 1, {"ratio_to_deployed": ratios})


def trace_rules(work: Workload) -> list[Rule[Results]]:
    """Return the rules for one trace: those for a low load where it is as it came, else those for a high one."""
    where = f"[{work.case}, {work.rate_per_s:.2g}/s]"
    as_good = Rule(
        name=f"trace-tuned: {work.case}",
        figure="Fig. 12" if work.as_is else "Fig. 13",
        claim=f"With tuning the performance is as good whatever N is to begin with. {where}",
        judged_by="means for N = 1, 10, 50 differ by at most 5 %, at most 10 % above the best fixed N's; none dropped",
        policies=TUNED,
        look=partial(_as_good, work),
    )
    if work.as_is:
        low = Rule(
            name=f"trace-low-n: {work.case}",
            figure="Fig. 12",
            claim=f"On the trace as it is, low N is best without tuning. {where}",
            judged_by="the best of N = 1, 3, 10, 50 is 1 or 3",
            policies=UNTUNED,
            look=partial(_low_is_best, work),
        )
        return [low, as_good]
    slow = Rule(
        name=f"trace-n1-slow: {work.case}",
        figure="Fig. 13",
        claim=f"On the faster trace N = 1 is very slow without tuning. {where}",
        judged_by="N = 1 takes more than three times as long as the best of N = 1, 3, 10, 50",
        policies=UNTUNED,
        look=partial(_one_is_slow, work),
    )
    follows = Rule(
        name=f"trace-follows: {work.case}",
        figure="Fig. 14",
        claim=f"The adaptation of N goes well with the changes of the load. {where}",
        judged_by=f"N and load, averaged over the time of {_SAMPLES} arrivals, have a correlation above {_CORRELATED}",
        policies=TUNED,
        look=partial(_follows, work),
    )
    return [slow, as_good, follows]


DEPLOYED_RULES = (
    Rule(
        name="less-than-deployed",
        figure="abstract, VI",
        claim="Tuned delays are lower than those of the deployed system (T_poll = 1000 ms, no tuning).",
        judged_by="lower mean response than T_poll = 1000 ms with its best N, at every load and on every trace",
        policies=TUNED,
        look=_less_delay,
    ),
)


def judge_all(results: Results) -> list[Claim]:
    """Judge every claim by what the runs gave."""
    traced = [rule for work in results.workloads.values() for rule in trace_rules(work)]
    rules = [*LOAD_RULES, *STEP_RULES, *SLOW_RULES, *traced, *DEPLOYED_RULES, *SEVERAL_RULES]
    return [rule.judge(results, PROFILES) for rule in rules]
