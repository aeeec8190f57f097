"""Claims on load and N (Fig. 8 to 10)."""

from __future__ import annotations

from itertools import pairwise

from clarion.sim.reproduce.cells import FIXED, INITIAL_SIZES, LOAD, LOADS_PER_S, TUNED, load_cell
from clarion.sim.reproduce.claims.claim import UNTUNED, Rule, Seen, milliseconds, percent
from clarion.sim.reproduce.results import Results

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
