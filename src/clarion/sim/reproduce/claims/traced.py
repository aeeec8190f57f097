"""Claims on traces (Fig. 12 to 14), and on the deployed system."""

from __future__ import annotations

from functools import partial

import numpy as np

from clarion.sim.reproduce.cells import (
    FIXED,
    INITIAL_SIZES,
    LOADS_PER_S,
    TRACE,
    TRACE_SIZES,
    TUNED,
    Cell,
    load_cell,
)
from clarion.sim.reproduce.claims.claim import UNTUNED, Rule, Seen, milliseconds, percent
from clarion.sim.reproduce.results import Results
from clarion.sim.reproduce.settling import follows_load
from clarion.sim.reproduce.workloads import Workload

_SPREAD = 0.05
_AS_GOOD = 1.10
_LOW_SIZES = (1, 3)
_VERY_SLOW = 3.0
_CORRELATED = 0.5
_SAMPLES = 100  # arrivals over which N and load are averaged, as in the document's Fig. 3


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


def trace_rules(work: Workload) -> list[Rule]:
    """Give the rules for one trace: those for a low load where it is as it came, else those for a high one."""
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
