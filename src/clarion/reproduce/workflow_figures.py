"""The figures of the elastic-workflows paper's experiments, by model and by simulation, and ours beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clarion.queueing import APPROXIMATIONS
from clarion.reproduce.approximation_grid import telling
from clarion.reproduce.figure_style import BOX_NOTE, Drawing, box, log_scale, saved, swatch
from clarion.reproduce.workflow_experiments import (
    AFFECTED,
    BEST_OF,
    BUDGET,
    BURST,
    HIGH,
    JOB_TYPES,
    MIDDLE,
    MIN_COST,
    MIN_TIME,
    NOBODY,
    NUMERICAL_BUDGET,
    ONES,
    TARGET_S,
    UP_AND_DOWN,
    Cell,
    Load,
    Rates,
    RealCell,
    Results,
    Run,
    predicted,
    swept_rates,
)
from clarion.reproduce.workflow_experiments import Path as Allocations

# Okabe and Ito's palette.
OURS, RANDOM, BEST, LAG, MIN_COST_COLOUR = "#0072B2", "#7f7f7f", "#D55E00", "#E69F00", "#009E73"
JOB_COLOURS = dict(zip(JOB_TYPES, ("#0072B2", "#D55E00", "#009E73"), strict=True))
APPROXIMATION_COLOURS = {"qna": "#E69F00", "whitt": "#0072B2"}
_MODEL_NOTE = "lines: the model; points: simulation, with 95 % confidence"
_REAL = {"marker": "*", "markersize": 11, "markeredgecolor": "#000000", "markeredgewidth": 0.6, "linestyle": "none"}
_SMOOTH_JOBS = 15


def draw_numerical(results: Results, path: Path) -> None:
    """Draw Fig. 4: WIP after each consumer, of MinTime and of Random."""
    with saved(path, 1, 2, size=(12, 4.6), width_ratios=(3, 2)) as (figure, axes):
        place, shares = axes[0]
        steps = range(NUMERICAL_BUDGET + 1)
        wips = [results.random_wip(HIGH, added) for added in steps]
        _random_band(place, wips)
        best = [min(predicted(HIGH, one[k]).wip for one in results.random_paths[HIGH][:BEST_OF]) for k in steps]
        place.plot(steps, best, color=BEST, linestyle="--", label=f"Random, best of {BEST_OF} runs after each")
        place.plot(steps, [predicted(HIGH, at).wip for at in results.numerical], color=OURS, label="MinTime")
        simulated = [(k, results.cells.get(Cell(HIGH, at))) for k, at in enumerate(results.numerical)]
        points = [(k, found.wip) for k, found in simulated if found is not None and found.stable]
        place.plot(*zip(*points, strict=True), "o", color=OURS, markersize=4, label="MinTime, simulated")
        place.set(xlabel="consumers added to one a task", ylabel="work in progress, task requests")
        place.set(
            ylim=(0, 30), xlim=(-0.3, NUMERICAL_BUDGET + 0.3), title="WIP; none is told where a task cannot keep up"
        )
        place.legend(fontsize=8)
        shares.bar(steps, [100 * float(np.mean(np.isfinite(wip))) for wip in wips], color=RANDOM, label="Random")
        first = next(k for k, at in enumerate(results.numerical) if predicted(HIGH, at).stable)
        shares.axvline(first, color=OURS, linestyle="--", label="MinTime, from here on")
        shares.set(
            xlabel="consumers added to one a task", ylabel="% of runs", title="every task keeps up", ylim=(0, 100)
        )
        shares.legend(fontsize=8)
        runs = len(results.random_paths[HIGH])
        figure.suptitle(f"Fig. 4: MinTime and {runs:,} runs of Random at {_told(HIGH)}")


def _random_band(place: Any, values: Sequence[Any]) -> None:
    """Draw Random's median and quartiles over runs; runs without a steady state are above every other."""
    low, middle, high = np.array([[_rank(run, share) for share in (0.25, 0.5, 0.75)] for run in values]).T
    steps = range(len(values))
    place.fill_between(steps, low, np.minimum(high, 1e6), color=RANDOM, alpha=0.25, label="Random, quartiles")
    place.plot(steps, middle, color=RANDOM, marker="_", label="Random, median run")


def _rank(values: Any, share: float) -> float:
    """Return a quantile without interpolation: some values are infinite."""
    return float(np.sort(values)[round(share * (len(values) - 1))])


def draw_rates(results: Results, path: Path) -> None:
    """Draw Fig. 5: response by arrival rate with one consumer a task."""
    rates = swept_rates(results.extent)
    fine: list[Rates] = [(rate, rate + 0.5, rate) for rate in np.linspace(rates[0][0], rates[-1][0], 60).tolist()]
    with saved(path, size=(8, 4.8), footer=_real_note(results)) as (figure, axes):
        place = axes[0, 0]
        for name, colour in JOB_COLOURS.items():
            lines = [predicted(one, ONES).response_s_by_job[name] for one in fine]
            place.plot([one[0] for one in fine], lines, color=colour, label=name)
            found = [results.cells[Cell(one, ONES)].response_s_by_job[name] for one in rates]
            _points(place, [one[0] for one in rates], found, colour)
            really = [(one.cell.rates[0], one) for one in results.real_cells.values() if one.cell.consumers == ONES]
            _stars(place, [(at, one.means.response_s_by_job[name]) for at, one in really], colour)
        place.axvline((5.1 - 0.5) / 3, color="#555555", linestyle=":", label="D cannot keep up beyond")
        place.set(xlabel="arrivals a minute of types 1 and 3 (of type 2: 0.5 more)", ylabel="mean response, s")
        place.set_ylim(0, None)
        place.legend(fontsize=8)
        figure.suptitle(f"Fig. 5: response with one consumer a task ({_MODEL_NOTE})")


def _stars(place: Any, points: Sequence[tuple[float, float]], colour: str) -> None:
    """Draw what was really run."""
    if points:
        place.plot(*zip(*points, strict=True), color=colour, zorder=6, **_REAL)


def _real_note(results: Results) -> str | None:
    """Return what to write below a figure with real runs in it; None: there are none."""
    if not results.real_cells:
        return None
    jobs = min(one.counted for one in results.real_cells.values())
    return (
        f"stars: really run on one machine, a minute taking {results.seconds_per_minute:g} s, {jobs} jobs or a few more"
        " after the first ones"
    )


def _points(place: Any, at: Sequence[float], found: Sequence[Any], colour: str) -> None:
    means = [one.mean for one in found]
    errors = [one.half_width or 0.0 for one in found]
    place.errorbar(at, means, yerr=errors, fmt="o", color=colour, markersize=4, capsize=2)


def draw_min_time(results: Results, path: Path) -> None:
    """Draw Fig. 6: response after each consumer at the middle rates, of all jobs and by job type."""
    steps = range(BUDGET + 1)
    with saved(path, 1, 2, size=(12, 4.8), footer=_real_note(results)) as (figure, axes):
        every, by_type = axes[0]
        runs = results.random_paths[MIDDLE]
        _random_band(every, [np.array([predicted(MIDDLE, one[k]).response_s for one in runs]) for k in steps])
        best = results.best_random(MIDDLE, BUDGET)
        _allocations(results, every, MIDDLE, results.min_time, OURS, "MinTime")
        _allocations(results, every, MIDDLE, best[: BUDGET + 1], BEST, f"Random, best of {BEST_OF} runs")
        every.set(ylim=(0, 250), title="(a) all jobs: work in progress by arrivals", ylabel="mean response, s")
        every.legend(fontsize=8)
        for name, colour in JOB_COLOURS.items():
            lines = [predicted(MIDDLE, at).response_s_by_job[name] for at in results.min_time]
            by_type.plot(steps, lines, color=colour, label=name)
            cells = [
                (k, results.cells[Cell(MIDDLE, at)]) for k, at in enumerate(results.min_time) if _keeps_up(MIDDLE, at)
            ]
            _points(by_type, [k for k, _ in cells], [one.response_s_by_job[name] for _, one in cells], colour)
            really = _really(results, MIDDLE, results.min_time)
            _stars(by_type, [(k, one.means.response_s_by_job[name]) for k, one in really], colour)
        by_type.set(ylim=(0, 300), title="(b) MinTime, by job type", ylabel="mean response, s")
        by_type.legend(fontsize=8)
        for place in axes[0]:
            place.set(xlabel="consumers added to one a task", xlim=(-0.2, BUDGET + 0.2))
        note = "lines: the model; points: simulation, in (b) with 95 % confidence; none where a task cannot keep up"
        figure.suptitle(f"Fig. 6: MinTime at {_told(MIDDLE)}, budget {BUDGET}\n{note}")


def _keeps_up(rates: Rates, consumers: Any) -> bool:
    return predicted(rates, consumers).stable


def _allocations(results: Results, place: Any, rates: Rates, path: Allocations, colour: str, label: str) -> None:
    """Draw the response of all jobs after each consumer, by the model and simulated."""
    style = "--" if colour == BEST else "-"
    lines = [predicted(rates, at).response_s for at in path]
    place.plot(range(len(path)), lines, color=colour, linestyle=style, label=label)
    found = [(k, results.cells.get(Cell(rates, at))) for k, at in enumerate(path)]
    points = [(k, one.little_response_s) for k, one in found if one is not None and one.stable]
    if points:
        place.plot(*zip(*points, strict=True), "x" if colour == BEST else "o", color=colour, markersize=4)
    _stars(place, [(k, one.means.little_response_s) for k, one in _really(results, rates, path)], colour)


def _really(results: Results, rates: Rates, path: Allocations) -> list[tuple[int, RealCell]]:
    """Return what was really run of these allocations, each with its place among them."""
    found = [(k, results.real_cells.get(Cell(rates, at))) for k, at in enumerate(path)]
    return [(k, one) for k, one in found if one is not None]


def draw_min_cost(results: Results, path: Path) -> None:
    """Draw Fig. 7: response after each consumer at the high rates until it is short enough."""
    steps = range(NUMERICAL_BUDGET + 1)
    with saved(path, 1, 2, size=(12, 4.8), footer=_real_note(results), width_ratios=(3, 2)) as (figure, axes):
        place, needed = axes[0]
        runs = results.random_paths[HIGH]
        _random_band(place, [np.array([predicted(HIGH, one[k]).response_s for one in runs]) for k in steps])
        _allocations(results, place, HIGH, results.min_cost, OURS, "MinCost")
        best = results.best_random(HIGH, NUMERICAL_BUDGET)
        _allocations(results, place, HIGH, best, BEST, f"Random, best of {BEST_OF} runs (after {NUMERICAL_BUDGET})")
        place.axhline(TARGET_S, color="#000000", linestyle=":", label=f"wanted: {TARGET_S:g} s")
        place.set(ylim=(0, 250), xlim=(-0.3, NUMERICAL_BUDGET + 0.3))
        place.set(xlabel="consumers added to one a task", ylabel="mean response of all jobs, s")
        place.set(title="points: simulated; nothing is drawn where a task cannot keep up")
        place.legend(fontsize=8)
        took = results.needed_by_random()
        shown = [*range(len(results.min_cost) - 1, NUMERICAL_BUDGET + 1)]
        shares = [100 * float(np.mean(took == count)) for count in shown] + [100 * float(np.mean(np.isinf(took)))]
        needed.bar([*map(str, shown), "more"], shares, color=RANDOM)
        needed.set(xlabel=f"consumers that Random adds until {TARGET_S:g} s", ylabel="% of runs")
        needed.set(title=f"MinCost adds {len(results.min_cost) - 1}")
        figure.suptitle(f"Fig. 7: MinCost at {_told(HIGH)}, {TARGET_S:g} s wanted")


def draw_burst(results: Results, path: Path) -> None:
    """Draw Fig. 8: response of each request in the burst, and consumers over time."""
    worst = sorted(results.real_runs, key=lambda run: -run.affected)[:1]
    runs = [results.of(MIN_TIME, BURST)[0], *worst]
    size = (6.5 * len(runs) + 3, 6.4)
    footer = None
    if results.real_runs:
        footer = "right: really run on one machine, with handlers that sleep, a minute taking"
        footer += f" {results.seconds_per_minute:g} s"
    with saved(path, 2, len(runs), size=size, footer=footer, sharex=True, height_ratios=(3, 1)) as (figure, axes):
        for column, run in enumerate(runs):
            _draw_responses(axes[0, column], run)
            consumers = axes[1, column]
            _draw_consumers(consumers, run, OURS, "")
            consumers.axvline(run.load.burst_s / 60, color="#000000", linestyle=":")
            for at_s, has in run.scaled:
                consumers.annotate(
                    str(has), (at_s / 60, sum(has)), xytext=(2, 3), textcoords="offset points", fontsize=8
                )
            consumers.set(xlabel="minutes", ylabel="consumers (of A, B, C, D)", ylim=(0, 12), yticks=range(0, 13, 4))
            how = f"really run, worst of {len(results.real_runs)}" if run.really else f"simulated, seed {run.seed}"
            slow = f"{run.affected:.1%} of requests take over {AFFECTED:g} times as long as before"
            axes[0, column].set_title(f"{how}: {slow}")
        figure.suptitle(f"Fig. 8: a burst under MinTime with a budget of {BUDGET} (the real monitor and scheduler)")


def _draw_responses(place: Any, run: Run) -> None:
    for name, colour in JOB_COLOURS.items():
        some = [job for job in run.jobs if job.job == name]
        at = [job.arrived_s / 60 for job in some]
        place.plot(at, [job.response_s for job in some], ".", color=colour, markersize=4, label=name)
        place.axhline(run.level_s[name], color=colour, linestyle="--", linewidth=0.8)
    at_s, smooth = _smoothed(run)
    place.plot(at_s / 60, smooth, color="#000000", linewidth=1.2, label=f"mean of {_SMOOTH_JOBS} jobs")
    place.axvline(run.load.burst_s / 60, color="#000000", linestyle=":", label="the burst begins")
    place.set(ylabel="response, s (by time of arrival; dashed: mean before)", ylim=(0, None))
    place.legend(fontsize=8)


def _smoothed(run: Run) -> tuple[Any, Any]:
    """Return the mean response of each job with its neighbours in the order of arrival."""
    weights = np.ones(_SMOOTH_JOBS) / _SMOOTH_JOBS
    at_s, responses = (np.array([getattr(job, name) for job in run.jobs]) for name in ("arrived_s", "response_s"))
    return np.convolve(at_s, weights, "valid"), np.convolve(responses, weights, "valid")


def _draw_consumers(place: Any, run: Run, colour: str, label: str) -> None:
    at = [at_s / 60 for at_s, _ in run.scaled] + [run.seconds / 60]
    totals = [sum(consumers) for _, consumers in run.scaled]
    place.step(at, [*totals, totals[-1]], where="post", color=colour, label=label)


def draw_lag_rule(results: Results, path: Path) -> None:
    """Draw ours beside the lag rule: response by cost, and over time at the nearest cost."""
    with saved(path, 2, 2, size=(13, 8)) as (figure, axes):
        for column, load in enumerate((BURST, UP_AND_DOWN)):
            _draw_frontier(results, axes[0, column], load)
        ours = results.of(MIN_TIME, UP_AND_DOWN)[0]
        policy = nearest_lag(results, UP_AND_DOWN, results.of(MIN_TIME, UP_AND_DOWN))
        cheap = results.of(MIN_COST, UP_AND_DOWN)[0]
        lag = next(run for run in results.of(policy, UP_AND_DOWN) if run.seed == ours.seed)
        for run, colour in ((ours, OURS), (cheap, MIN_COST_COLOUR), (lag, LAG)):
            _draw_consumers(axes[1, 0], run, colour, f"{run.policy.name}: {run.consumers_mean:.1f} on average")
            at_s, smooth = _smoothed(run)
            axes[1, 1].plot(
                at_s / 60, smooth, color=colour, label=f"{run.policy.name}: {run.response_s:.0f} s on average"
            )
        axes[1, 0].set(xlabel="minutes", ylabel="consumers of all tasks", title=f"{UP_AND_DOWN.name}, seed {ours.seed}")
        title = f"mean response of {_SMOOTH_JOBS} successive jobs, seed {ours.seed}"
        axes[1, 1].set(xlabel="minutes", ylabel="response, s", title=title)
        for place in axes[1]:
            place.set_ylim(0, None)
            place.legend(fontsize=8)
        seeds = len(results.of(MIN_TIME, BURST))
        figure.suptitle(f"Scaling by plan and by queue length (KEDA's lag rule, polled every 30 s), {seeds} seeds")


def _draw_frontier(results: Results, place: Any, load: Load) -> None:
    lags = [
        (policy, runs) for (policy, name), runs in results.runs.items() if policy.kind == "lag" and name == load.name
    ]
    points = [(_cost(runs), _response(runs)) for _, runs in lags]
    place.plot(*zip(*points, strict=True), "o-", color=LAG, label="lag rule, by messages for each consumer")
    for (policy, _), at in zip(lags, points, strict=True):
        place.annotate(f"{policy.goal:g}", at, textcoords="offset points", xytext=(5, 5), fontsize=8)
    for policy, colour in ((MIN_TIME, OURS), (MIN_COST, MIN_COST_COLOUR)):
        runs = results.of(policy, load)
        place.plot([_cost(runs)], [_response(runs)], "D", color=colour, label=policy.name)
    place.set(
        xlabel="consumers, mean over time",
        ylabel="mean response, s (logarithmic)",
        title=f"{load.name}: response by cost",
    )
    log_scale(place)
    place.set_ylim(25, 400)
    alone = _response(results.of(NOBODY, load))
    place.text(0.98, 0.6, f"one consumer a task: {alone:,.0f} s", transform=place.transAxes, ha="right", fontsize=8)
    place.legend(fontsize=8)


def _cost(runs: Sequence[Run]) -> float:
    return float(np.mean([run.consumers_mean for run in runs]))


def _response(runs: Sequence[Run]) -> float:
    return float(np.mean([run.response_s for run in runs]))


def nearest_lag(results: Results, load: Load, runs: Sequence[Run]) -> Any:
    """Return the lag rule whose cost is nearest to that of these runs."""
    lags = {
        policy: found for (policy, name), found in results.runs.items() if policy.kind == "lag" and name == load.name
    }
    return min(lags, key=lambda policy: abs(_cost(lags[policy]) - _cost(runs)))


def draw_approximations(results: Results, path: Path) -> None:
    """Draw by how much each approximation of L_q is off, by utilisation and servers."""
    grid = results.extent.grid
    with saved(path, 1, len(grid.servers), size=(3.2 * len(grid.servers) + 1, 4.4), sharey=True) as (figure, axes):
        for place, servers in zip(axes[0], grid.servers, strict=True):
            for at, busy in enumerate(grid.utilisations):
                some = [
                    one for one in telling(results.grid)
                    if one.queue.servers == servers and one.queue.utilisation == busy
                ]  # fmt: skip
                for side, name in enumerate(APPROXIMATIONS):
                    errors = np.array([100 * one.error(name) for one in some])
                    mean = float(errors.mean()) if errors.size else 0.0
                    box(place, errors, mean, at + 0.4 * side - 0.2, width=0.35, colour=APPROXIMATION_COLOURS[name])
            place.axhline(0, color="#000000", linewidth=0.8)
            place.set_xticks(range(len(grid.utilisations)), [f"{busy:g}" for busy in grid.utilisations])
            place.set(title=f"{servers} server{'s' if servers > 1 else ''}", xlabel="utilisation")
        axes[0, 0].set_ylabel("L_q is told too high (+) or too low (-) by, %")
        axes[0, -1].legend(
            [swatch(APPROXIMATION_COLOURS[name]) for name in APPROXIMATIONS], list(APPROXIMATIONS), fontsize=8
        )
        figure.suptitle(
            f"Approximations of the GI/G/m queue against simulation, over scvs of {_range(grid.scvs)}\n{BOX_NOTE}"
        )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):g} to {max(values):g}"


def _told(rates: Rates) -> str:
    return f"({', '.join(f'{rate:.1f}' for rate in rates)}) jobs a minute"


FIGURES: tuple[Drawing[Results], ...] = (
    Drawing("fig4-numerical.png", "Fig. 4: work in progress of MinTime and Random", draw_numerical),
    Drawing("fig5-rates.png", "Fig. 5: response by arrival rate", draw_rates),
    Drawing("fig6-min-time.png", "Fig. 6: response of MinTime and Random", draw_min_time),
    Drawing("fig7-min-cost.png", "Fig. 7: response of MinCost and Random", draw_min_cost),
    Drawing("fig8-burst.png", "Fig. 8: a burst", draw_burst),
    Drawing("lag-rule.png", "Scaling by plan and by queue length", draw_lag_rule),
    Drawing("approximations.png", "Approximations of a queue against simulation", draw_approximations),
)
