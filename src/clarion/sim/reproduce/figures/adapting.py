"""N and load over time: Fig. 3, 10, 11 and 14."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clarion.sim.reproduce.cells import LOAD, OVER_TIME, PROFILES, STEPS, TRACE, TUNED, Cell, load_cell
from clarion.sim.reproduce.experiments import OVER_TIME_LOAD_PER_S
from clarion.sim.reproduce.figures.style import COLOURS, LOAD_COLOUR, MEAN_COLOUR, saved
from clarion.sim.reproduce.results import Results
from clarion.sim.reproduce.settling import GRID_S, on_grid, trailing_mean
from clarion.sim.traces import rate_over_time

_SHOWN_S = 40.0
_AVERAGED = 5  # samples of N, as the caption of the document's Fig. 11
_PARTS = 120  # of a trace, over which Fig. 14 averages


def draw_rates(results: Results, path: Path) -> None:
    """Draw Fig. 3: the traces' request rates, averaged over 100 arrivals."""
    cases = [work for work in results.workloads.values() if work.as_is]
    with saved(path, len(cases), size=(10, 2.8 * len(cases))) as (figure, axes):
        for place, work in zip(axes[:, 0], cases, strict=True):
            middle_s, rate = rate_over_time(work.times_s)
            place.step(middle_s / 60, rate, where="mid", color=LOAD_COLOUR, linewidth=1)
            place.axhline(work.rate_per_s, color=MEAN_COLOUR, linestyle="--", linewidth=1)
            place.set_title(f"{work.case}: {work.times_s.size:,} requests, mean {work.rate_per_s:.2f}/s (dashed)")
            place.set(ylabel="requests/s", ylim=(0, None), xlim=(0, work.times_s[-1] / 60))
        axes[-1, 0].set_xlabel("minutes")
        figure.suptitle("Fig. 3: request rate of the traces, averaged over 100 requests")


def draw_over_time(results: Results, path: Path) -> None:
    """Draw Fig. 10: N at 35 requests/s, its mean, and the best fixed N."""
    case = f"{OVER_TIME_LOAD_PER_S:g}"
    with saved(path, 2, 3, size=(13, 5.6), sharey="row", sharex=True) as (figure, axes):
        for row, profile in enumerate(PROFILES):
            best, _ = results.best_fixed(LOAD, profile, case, results.extent.swept_sizes)
            for column, policy in enumerate(TUNED):
                place = axes[row, column]
                (trace,) = results.traces(Cell(OVER_TIME, profile, case, policy))
                mean = results.batch_size_mean(load_cell(profile, OVER_TIME_LOAD_PER_S, policy))
                polled_s = [sample.at_s for sample in trace]
                sizes = [sample.batch_size for sample in trace]
                place.step(polled_s, sizes, where="post", color=COLOURS[policy], linewidth=0.9)
                place.axhline(mean, color=MEAN_COLOUR, linewidth=1.6, label=f"mean N {mean:.1f}")
                place.axhline(best, color="#555555", linestyle=":", linewidth=1.4, label=f"best fixed N {best}")
                place.set(title=f"{policy}, {profile}", xlim=(0, _SHOWN_S))
                place.legend(loc="upper right", fontsize=8, framealpha=0.9)
            axes[row, 0].set(ylabel="N, messages", ylim=(0, None))
        for place in axes[-1]:
            place.set_xlabel("seconds")
        figure.suptitle(f"Fig. 10: N over time at {case} requests/s, as polls leave it (mean: as polls find it)")


def draw_steps(results: Results, path: Path) -> None:
    """Draw Fig. 11: N under the steps of Table II."""
    steps = results.extent.steps
    with saved(path, 2, 3, size=(13, 5.8), sharey="row", sharex=True) as (figure, axes):
        for row, profile in enumerate(PROFILES):
            for column, policy in enumerate(TUNED):
                place = axes[row, column]
                trace = results.traces(Cell(STEPS, profile, "", policy))[0]
                averaged = trailing_mean(np.array([one.batch_size for one in trace], dtype=np.float64), _AVERAGED)
                place.plot([one.at_s for one in trace], averaged, color=COLOURS[policy], linewidth=0.5)
                _draw_load(
                    place, [step.start_s for step in steps] + [steps[-1].end_s],
                    [step.load_per_s for step in steps] + [steps[-1].load_per_s], last=column == len(TUNED) - 1,
                )  # fmt: skip
                place.set(title=f"{policy}, {profile}", xlim=(0, steps[-1].end_s))
            axes[row, 0].set(ylabel=f"N, averaged over {_AVERAGED} polls", ylim=(0, None))
        for place in axes[-1]:
            place.set_xlabel("seconds")
        figure.suptitle("Fig. 11: N under the steps of Table II (red: load)")


def draw_followed(results: Results, path: Path) -> None:
    """Draw Fig. 14: N and load on the faster traces."""
    cases = [work for work in results.workloads.values() if not work.as_is]
    with saved(path, len(cases), 2, size=(13, 2.9 * len(cases) + 0.6)) as (figure, axes):
        for row, work in enumerate(cases):
            until_s = float(work.times_s[-1])
            edges_s = np.linspace(0.0, until_s, _PARTS + 1)
            counts, _ = np.histogram(work.times_s, bins=edges_s)
            for column, profile in enumerate(PROFILES):
                place = axes[row, column]
                for policy in TUNED:
                    trace = results.traces(Cell(TRACE, profile, work.case, policy))[0]
                    grid_s, sizes = on_grid(trace, until_s, min(GRID_S, until_s / _PARTS / 5))
                    sums, _ = np.histogram(grid_s, bins=edges_s, weights=sizes)
                    held, _ = np.histogram(grid_s, bins=edges_s)
                    place.plot(edges_s[:-1], sums / held, color=COLOURS[policy], linewidth=1.2, label=policy)
                rate = counts / (edges_s[1] - edges_s[0])
                _draw_load(place, edges_s[:-1].tolist(), rate.tolist(), last=True, alpha=0.55)
                place.set(title=f"{work.case}, {profile}", xlim=(0, until_s), ylim=(0, None), ylabel="N, messages")
        for place in axes[-1]:
            place.set_xlabel("seconds")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.suptitle("Fig. 14: N (left scale) and load (red, right scale) on the faster traces")


def _draw_load(place: Any, times_s: list[float], loads: list[float], *, last: bool, alpha: float = 0.9) -> None:
    beside = place.twinx()
    beside.step(times_s, loads, where="post", color=LOAD_COLOUR, linewidth=1.2, alpha=alpha)
    beside.set_ylim(0, 1.15 * max(loads))
    beside.spines["right"].set_visible(last)
    if last:
        beside.set_ylabel("load, requests/s", color=LOAD_COLOUR)
        beside.tick_params(axis="y", colors=LOAD_COLOUR)
    else:
        beside.set_yticks([])
