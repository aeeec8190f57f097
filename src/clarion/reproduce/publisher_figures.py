"""The figures of the tuned publisher's experiments, and the figure of what one tuner did poll by poll."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from matplotlib.ticker import FuncFormatter

from clarion.publisher.tuner import Sample
from clarion.reproduce.figure_style import (
    BOX_NOTE,
    COLOURS,
    LOAD_COLOUR,
    MEAN_COLOUR,
    Drawing,
    box,
    log_scale,
    saved,
    swatch,
)
from clarion.reproduce.publisher_experiments import (
    CONGESTED,
    DEPLOYED,
    FIXED,
    GRID_S,
    INITIAL_SIZES,
    LOAD,
    LOADS_PER_S,
    OVER_TIME,
    OVER_TIME_LOAD_PER_S,
    PROFILES,
    SEVERAL,
    SEVERAL_FIXED_SIZE,
    SLOW,
    SLOW_SIZES,
    STEPS,
    TRACE,
    TRACE_SIZES,
    TUNED,
    Cell,
    Results,
    hindsight,
    load_cell,
    on_grid,
    trailing_mean,
)
from clarion.sim.traces import rate_over_time

Column = TypeVar("Column")


def draw_untuned(results: Results, path: Path) -> None:
    """Draw Fig. 8: response by load and fixed N, on a logarithmic scale, for overloaded cells grow with the run."""
    sizes = results.extent.swept_sizes
    with saved(path, 2, 4, size=(14, 6.4), sharey="row") as (figure, axes):
        for place, profile, load in _places(axes, LOADS_PER_S):
            best, _ = results.best_fixed(LOAD, profile, f"{load:g}", sizes)
            for at, size in enumerate(sizes):
                colour = COLOURS["eager"] if size == best else COLOURS[FIXED]
                _box(results, place, load_cell(profile, load, FIXED, size), at, colour)
            log_scale(place)
            place.set_xticks(range(len(sizes)), [str(size) for size in sizes])
            place.set(title=f"{load:g} requests/s, {profile}", xlabel="N (fixed)")
        title = f"Fig. 8: response without tuning, by load and N (green: the best N; {BOX_NOTE})"
        _label(figure, axes, title, ylabel="response, ms")


def draw_tuned(results: Results, path: Path) -> None:
    """Draw Fig. 9: response by load and initial N, with the best fixed N beside it."""
    with saved(path, 2, 4, size=(14, 6.4), sharey="row") as (figure, axes):
        for place, profile, load in _places(axes, LOADS_PER_S):
            _boxes(results, place, [load_cell(profile, load, *one) for one in _tuned()])
            best, lowest_ms = results.best_fixed(LOAD, profile, f"{load:g}", results.extent.swept_sizes)
            place.axhline(lowest_ms, color=COLOURS[FIXED], linestyle="--", linewidth=1)
            place.text(
                0.99, 0.97, f"dashed: best fixed N = {best}", transform=place.transAxes, ha="right", va="top",
                fontsize=8, color="#555555",
            )  # fmt: skip
            place.set(title=f"{load:g} requests/s, {profile}", xlabel="N to begin with")
        _legend(figure, TUNED)
        title = f"Fig. 9: response with tuning, by load and initial N ({BOX_NOTE})"
        _label(figure, axes, title, ylabel="response, ms", ylim=(0, None))


def draw_traces(results: Results, path: Path, *, as_is: bool) -> None:
    """Draw Fig. 12 or 13: response on traces, without and with tuning, and as deployed."""
    cases = [work for work in results.workloads.values() if work.as_is == as_is]
    with saved(path, 2, len(cases), size=(max(10, 5 * len(cases) + 1), 6.6), sharey="row") as (figure, axes):
        for place, profile, work in _places(axes, cases):
            best, _ = results.best_deployed(TRACE, profile, work.case)
            cells = [Cell(TRACE, profile, work.case, FIXED, size, False) for size in TRACE_SIZES]
            cells += [Cell(TRACE, profile, work.case, DEPLOYED, best, False)]
            cells += [Cell(TRACE, profile, work.case, *one) for one in _tuned()]
            _boxes(results, place, cells)
            log_scale(place)
            place.set(title=f"{work.case} ({work.rate_per_s:.2g}/s), {profile}", xlabel="N, or N to begin with")
        _legend(figure, (FIXED, DEPLOYED, *TUNED))
        title = "Fig. 12: response on the traces as they are" if as_is else "Fig. 13: response on the traces, faster"
        _label(figure, axes, f"{title} ({BOX_NOTE})", ylabel="response, ms")


def _places(axes: Any, columns: Sequence[Column]) -> Iterator[tuple[Any, str, Column]]:
    """Return each place of a figure with its profile and what its column is of: a row for each profile."""
    for row, profile in enumerate(PROFILES):
        for column, one in enumerate(columns):
            yield axes[row, column], profile, one


def _label(figure: Any, axes: Any, title: str, *, below: str = "", **first: Any) -> None:
    """Set the title of a figure, what the places of a row share at its first, and what is below the last row."""
    for row in axes:
        row[0].set(**first)
    for place in axes[-1] if below else ():
        place.set_xlabel(below)
    figure.suptitle(title)


def _tuned() -> list[tuple[str, int]]:
    return [(policy, size) for policy in TUNED for size in INITIAL_SIZES]


def _box(results: Results, place: Any, cell: Cell, at: float, colour: str) -> None:
    box(place, results.responses_ms(cell), results.mean_ms(cell), at, width=0.7, colour=colour)


def _boxes(results: Results, place: Any, cells: list[Cell]) -> None:
    """Draw cells, each with the N that it begins with, and a gap between policies."""
    at, places = 0.0, []
    for number, cell in enumerate(cells):
        if number and cells[number - 1].tuning != cell.tuning:
            at += 0.6
        _box(results, place, cell, at, COLOURS[cell.tuning])
        places.append(at)
        at += 1
    place.set_xticks(places, [str(cell.batch_size) for cell in cells])


_LABELS = {FIXED: "tuning off (fixed N)", DEPLOYED: "as deployed: T_poll 1000 ms, its best N"}


def _legend(figure: Any, names: tuple[str, ...]) -> None:
    handles = [swatch(COLOURS[name]) for name in names]
    labels = [_LABELS.get(name, name) for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False)


def _legend_of(figure: Any, place: Any) -> None:
    """Put the legend of one place below the figure, for all."""
    handles, labels = place.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)


_SHOWN_S = 40.0
_AVERAGED = 5  # samples of N, as the caption of its Fig. 11 says
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
        _label(figure, axes, "Fig. 3: request rate of the traces, averaged over 100 requests", below="minutes")


def draw_over_time(results: Results, path: Path) -> None:
    """Draw Fig. 10: N at 35 requests/s, its mean, and the best fixed N."""
    case = f"{OVER_TIME_LOAD_PER_S:g}"
    with saved(path, 2, 3, size=(13, 5.6), sharey="row", sharex=True) as (figure, axes):
        for place, profile, policy in _places(axes, TUNED):
            best, _ = results.best_fixed(LOAD, profile, case, results.extent.swept_sizes)
            (trace,) = results.traces(Cell(OVER_TIME, profile, case, policy))
            mean = results.batch_size_mean(load_cell(profile, OVER_TIME_LOAD_PER_S, policy))
            polled_s = [sample.at_s for sample in trace]
            sizes = [sample.batch_size for sample in trace]
            place.step(polled_s, sizes, where="post", color=COLOURS[policy], linewidth=0.9)
            place.axhline(mean, color=MEAN_COLOUR, linewidth=1.6, label=f"mean N {mean:.1f}")
            place.axhline(best, color="#555555", linestyle=":", linewidth=1.4, label=f"best fixed N {best}")
            place.set(title=f"{policy}, {profile}", xlim=(0, _SHOWN_S))
            place.legend(loc="upper right", fontsize=8, framealpha=0.9)
        title = f"Fig. 10: N over time at {case} requests/s, as polls leave it (mean: as polls find it)"
        _label(figure, axes, title, below="seconds", ylabel="N, messages", ylim=(0, None))


def draw_steps(results: Results, path: Path) -> None:
    """Draw Fig. 11: N under the steps of Table II."""
    steps = results.extent.steps
    times_s = [step.start_s for step in steps] + [steps[-1].end_s]
    loads = [step.load_per_s for step in steps] + [steps[-1].load_per_s]
    with saved(path, 2, 3, size=(13, 5.8), sharey="row", sharex=True) as (figure, axes):
        for place, profile, policy in _places(axes, TUNED):
            trace = results.traces(Cell(STEPS, profile, "", policy))[0]
            averaged = trailing_mean(np.array([one.batch_size for one in trace], dtype=np.float64), _AVERAGED)
            place.plot([one.at_s for one in trace], averaged, color=COLOURS[policy], linewidth=0.5)
            _draw_load(place, times_s, loads, last=policy == TUNED[-1])
            place.set(title=f"{policy}, {profile}", xlim=(0, steps[-1].end_s))
        title, averaging = "Fig. 11: N under the steps of Table II (red: load)", f"N, averaged over {_AVERAGED} polls"
        _label(figure, axes, title, below="seconds", ylabel=averaging, ylim=(0, None))


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
        _legend_of(figure, axes[0, 0])
        title = "Fig. 14: N (left scale) and load (red, right scale) on the faster traces"
        _label(figure, axes, title, below="seconds")


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


_MARKERS = {"literal": "o", "recheck": "s", "eager": "^", FIXED: "x", DEPLOYED: "v"}


def draw_slow(results: Results, path: Path) -> None:
    """Draw the losses under a slow subscriber."""
    with saved(path, 1, 2, size=(12, 4), sharey=True) as (figure, axes):
        for place, profile in zip(axes[0], PROFILES, strict=True):
            bars = [(f"N={size}", Cell(SLOW, profile, "", FIXED, size, False)) for size in SLOW_SIZES]
            bars += [(policy, Cell(SLOW, profile, "", policy, gated=False)) for policy in TUNED]
            bars += [(f"{policy}\n+ gate", Cell(SLOW, profile, "", policy, gated=True)) for policy in TUNED]
            for at, (_, cell) in enumerate(bars):
                share = 100 * results.dropped_share(cell)
                place.bar(at, share, color=COLOURS[cell.tuning], alpha=0.75, width=0.75)
                place.text(at, share + 0.3, f"{share:.1f}" if share else "0", ha="center", fontsize=8)
            place.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize=8)
            place.set_title(profile)
        title = "Slow subscriber (17.5 requests/s; reads 25/s, vacations of 4 s; broker room 50): requests dropped"
        _label(figure, axes, title, ylabel="dropped, % of requests")


def draw_deployed(results: Results, path: Path) -> None:
    """Draw the mean response by load: as deployed, with the best fixed N, and tuned."""
    with saved(path, 1, 2, size=(11, 4), sharey=True) as (figure, axes):
        for place, profile in zip(axes[0], PROFILES, strict=True):
            cases = [f"{load:g}" for load in LOADS_PER_S]
            sizes = results.extent.swept_sizes
            lines = {
                DEPLOYED: [results.best_deployed(LOAD, profile, case)[1] for case in cases],
                FIXED: [results.best_fixed(LOAD, profile, case, sizes)[1] for case in cases],
            }
            for policy in TUNED:
                lines[policy] = [results.mean_ms(load_cell(profile, load, policy)) for load in LOADS_PER_S]
            names = {DEPLOYED: "as deployed (T_poll 1000 ms, its best N)", FIXED: "best fixed N, in hindsight"}
            for name, means in lines.items():
                place.plot(
                    range(len(cases)), means, marker=_MARKERS[name], color=COLOURS[name],
                    linestyle="--" if name == FIXED else "-", label=names.get(name, name),
                )  # fmt: skip
            place.set_xticks(range(len(cases)), cases)
            place.set(title=profile, xlabel="requests/s", ylim=(0, None))
        _legend_of(figure, axes[0, 0])
        _label(figure, axes, "Mean response by load, beside the deployed system", ylabel="mean response, ms")


def draw_fairness(results: Results, path: Path) -> None:
    """Draw each publisher's throughput as a share of an even one, and Jain's index."""
    titles = {SEVERAL: "broker with room", CONGESTED: "subscriber reads 70 % of the load"}
    with saved(path, 2, 2, size=(13, 6.4), sharey=True) as (figure, axes):
        for row, experiment in enumerate((SEVERAL, CONGESTED)):
            for column, profile in enumerate(PROFILES):
                _draw_shares(results, axes[row, column], experiment, profile)
                axes[row, column].set_title(f"{titles[experiment]}, {profile}")
        title = "Several publishers on one broker: each one's throughput (dots), and Jain's index (numbers)"
        _label(figure, axes, title, below="policy, and number of publishers", ylabel="throughput / even share")


def _draw_shares(results: Results, place: Any, experiment: str, profile: str) -> None:
    at, ticks, labels = 0.0, [], []
    for publishers in results.extent.publishers:
        for policy in (FIXED, *TUNED):
            cell = Cell(experiment, profile, str(publishers), policy)
            if policy == FIXED:
                cell = cell._replace(batch_size=SEVERAL_FIXED_SIZE, gated=False)
            outcomes = results.of(cell)
            rates = np.array([[one.delivered_per_s for one in outcome.publishers] for outcome in outcomes])
            shares = (rates / rates.mean(axis=1, keepdims=True)).ravel()
            spread = at + np.linspace(-0.25, 0.25, shares.size)
            place.plot(spread, shares, ".", color=COLOURS[policy], markersize=4)
            index = min(one.jain_throughput for one in outcomes)
            place.text(at, 1.24, f"{index:.3f}", ha="center", fontsize=7.5, color=COLOURS[policy])
            ticks.append(at)
            labels.append(f"{policy}\n{publishers}")
            at += 1
        at += 0.8
    place.axhline(1, color="black", linewidth=0.8, linestyle="--")
    place.set_xticks(ticks, labels, fontsize=7.5)
    place.set_ylim(0.6, 1.35)


def draw_beyond(results: Results, path: Path) -> None:
    """Draw tuned response in ratio to the best fixed N, which is known only in hindsight."""
    with saved(path, 1, 2, size=(11, 4), sharey=True) as (figure, axes):
        for place, profile in zip(axes[0], PROFILES, strict=True):
            rows = [row for row in hindsight(results) if row.profile == profile]
            place.axhspan(0.95, 1.05, color=COLOURS[FIXED], alpha=0.2, linewidth=0)
            place.axhline(1, color="black", linewidth=0.8, linestyle="--")
            for policy in TUNED:
                ratios = [row.ratio(policy) for row in rows]
                place.plot(range(len(rows)), ratios, marker=_MARKERS[policy], color=COLOURS[policy], label=policy)
            fine = [row.fine_ms / row.best_ms for row in rows if row.fine_ms is not None]
            place.plot(range(len(fine)), fine, "x--", color=COLOURS[FIXED], label="best fixed N at T_poll 5 ms")
            place.set_xticks(range(len(rows)), [f"{row.case}\nN={row.best_size}" for row in rows], fontsize=8)
            place.set(title=profile, xlabel="requests/s, and the best fixed N there")
        _legend_of(figure, axes[0, 0])
        title = "Beyond the paper: tuned response in ratio to the best fixed N in hindsight (band: 5 %)"
        _label(figure, axes, title, ylabel="mean response / best fixed N's")


_LINES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#7f7f7f")  # one for each publisher
_UNKNOWN = -1  # a credit of which nothing is known


class _Panel(NamedTuple):
    label: str
    value: Callable[[Sample], float]
    beside: tuple[str, Callable[[Sample], float]] | None = None  # a second, dotted line, and what it is


_PANELS = (
    _Panel("N, messages", lambda sample: sample.batch_size),
    _Panel("T_poll, ms", lambda sample: 1000 * sample.poll_interval_s),
    _Panel(
        "messages/s\n(load; dotted: capacity)", lambda sample: sample.load_per_s,
        ("capacity", lambda sample: sample.capacity_per_s or np.nan),
    ),
    _Panel(
        "messages\n(pending; dotted: published)", lambda sample: sample.pending,
        ("published", lambda sample: sample.published),
    ),
    _Panel("credit, messages", lambda sample: np.nan if sample.credit == _UNKNOWN else sample.credit),
)  # fmt: skip


def draw_trace(traces: Mapping[str, Sequence[Sample]], path: Path) -> None:
    """Draw N, T_poll, the estimates, what was pending and the credit over time, from the first poll on; a colour for
    each trace. With one trace, its mean N is drawn too, weighted by the time to the next poll."""
    began_s = min(trace[0].at_s for trace in traces.values() if trace)
    with saved(path, len(_PANELS), size=(11, 1.9 * len(_PANELS) + 1), sharex=True, footer="") as (figure, axes):
        for place, panel in zip(axes[:, 0], _PANELS, strict=True):
            for number, trace in enumerate(traces.values()):
                _draw_line(place, panel, trace, began_s, _LINES[number % len(_LINES)], alone=len(traces) == 1)
            place.set(ylabel=panel.label, ylim=(0, None))
            place.margins(x=0)
            place.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,g}"))
        axes[-1, 0].set_xlabel("seconds from the first poll")
        if len(traces) > 1:
            figure.legend(axes[0, 0].get_lines(), list(traces), loc="outside lower center", ncols=8, frameon=False)
        else:
            (trace,) = traces.values()
            mean = mean_batch_size(trace)
            axes[0, 0].axhline(mean, color=MEAN_COLOUR, linestyle="--", linewidth=1, label=f"mean N {mean:.1f}")
            axes[0, 0].legend(loc="upper right", fontsize=8, framealpha=0.9)
        polls = sum(len(trace) for trace in traces.values())
        figure.suptitle(f"What the tuner did in {polls:,} polls")


def mean_batch_size(trace: Sequence[Sample]) -> float:
    """Return the mean N as polls leave it, weighted by the time to the next poll."""
    sizes = np.array([sample.batch_size for sample in trace], dtype=np.float64)
    held_s = np.diff([sample.at_s for sample in trace])
    return float(np.average(sizes[:-1], weights=held_s)) if held_s.sum() > 0 else float(sizes.mean())


def _draw_line(place: Any, panel: _Panel, trace: Sequence[Sample], began_s: float, colour: str, *, alone: bool) -> None:
    polled_s = [sample.at_s - began_s for sample in trace]
    place.step(polled_s, [panel.value(sample) for sample in trace], where="post", color=colour, linewidth=0.9)
    if panel.beside is not None:
        second = {"capacity": COLOURS["fixed"], "published": LOAD_COLOUR}[panel.beside[0]] if alone else colour
        values = [panel.beside[1](sample) for sample in trace]
        place.step(polled_s, values, where="post", color=second, linestyle=":", linewidth=0.9)


FIGURES: tuple[Drawing[Results], ...] = (
    Drawing("fig03-request-rate.png", "Fig. 3: request rate of the traces", draw_rates),
    Drawing("fig08-untuned.png", "Fig. 8: response without tuning, by load and N", draw_untuned),
    Drawing("fig09-tuned.png", "Fig. 9: response with tuning, by load and initial N", draw_tuned),
    Drawing("fig10-n-over-time.png", "Fig. 10: N over time at 35 requests/s", draw_over_time),
    Drawing("fig11-steps.png", "Fig. 11: N under the steps of Table II", draw_steps),
    Drawing("slow-subscriber.png", "V.B.3: requests dropped under a slow subscriber", draw_slow),
    Drawing("fig12-trace.png", "Fig. 12: response on the traces as they are", partial(draw_traces, as_is=True)),
    Drawing("fig13-trace-faster.png", "Fig. 13: response on the traces, faster", partial(draw_traces, as_is=False)),
    Drawing("fig14-adaptation.png", "Fig. 14: N and load on the faster traces", draw_followed),
    Drawing("deployed.png", "Mean response beside the deployed system (T_poll = 1000 ms)", draw_deployed),
    Drawing("fairness.png", "Several publishers on one broker", draw_fairness),
    Drawing("beyond.png", "Beyond the paper: in ratio to the best fixed N in hindsight", draw_beyond),
)
