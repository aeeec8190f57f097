"""Boxes of response times: Fig. 8 and 9 (load by N), Fig. 12 and 13 (traces)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clarion.sim.reproduce.cells import (
    DEPLOYED,
    FIXED,
    INITIAL_SIZES,
    LOAD,
    LOADS_PER_S,
    PROFILES,
    TRACE,
    TRACE_SIZES,
    TUNED,
    Cell,
    load_cell,
)
from clarion.sim.reproduce.figures.style import BOX_NOTE, COLOURS, box, log_scale, saved, swatch
from clarion.sim.reproduce.results import Results


def draw_untuned(results: Results, path: Path) -> None:
    """Draw Fig. 8: response by load and fixed N, on a logarithmic scale, for overloaded cells grow with the run."""
    sizes = results.extent.swept_sizes
    with saved(path, 2, 4, size=(14, 6.4), sharey="row") as (figure, axes):
        for row, profile in enumerate(PROFILES):
            for column, load in enumerate(LOADS_PER_S):
                place = axes[row, column]
                best, _ = results.best_fixed(LOAD, profile, f"{load:g}", sizes)
                for at, size in enumerate(sizes):
                    colour = COLOURS["eager"] if size == best else COLOURS[FIXED]
                    _box(results, place, load_cell(profile, load, FIXED, size), at, colour)
                log_scale(place)
                place.set_xticks(range(len(sizes)), [str(size) for size in sizes])
                place.set_title(f"{load:g} requests/s, {profile}")
                place.set_xlabel("N (fixed)")
            axes[row, 0].set_ylabel("response, ms")
        figure.suptitle(f"Fig. 8: response without tuning, by load and N (green: the best N; {BOX_NOTE})")


def draw_tuned(results: Results, path: Path) -> None:
    """Draw Fig. 9: response by load and initial N, with the best fixed N beside it."""
    with saved(path, 2, 4, size=(14, 6.4), sharey="row") as (figure, axes):
        for row, profile in enumerate(PROFILES):
            for column, load in enumerate(LOADS_PER_S):
                place = axes[row, column]
                ticks = _tuned_boxes(results, place, [load_cell(profile, load, *one) for one in _tuned()], 0)
                best, lowest_ms = results.best_fixed(LOAD, profile, f"{load:g}", results.extent.swept_sizes)
                place.axhline(lowest_ms, color=COLOURS[FIXED], linestyle="--", linewidth=1)
                place.text(
                    0.99, 0.97, f"dashed: best fixed N = {best}", transform=place.transAxes, ha="right", va="top",
                    fontsize=8, color="#555555",
                )  # fmt: skip
                place.set_xticks(*ticks)
                place.set_title(f"{load:g} requests/s, {profile}")
                place.set_xlabel("N to begin with")
            axes[row, 0].set(ylabel="response, ms", ylim=(0, None))
        _legend(figure, TUNED)
        figure.suptitle(f"Fig. 9: response with tuning, by load and initial N ({BOX_NOTE})")


def draw_traces(results: Results, path: Path, *, as_is: bool) -> None:
    """Draw Fig. 12 or 13: response on traces, without and with tuning, and as deployed."""
    cases = [work for work in results.workloads.values() if work.as_is == as_is]
    with saved(path, 2, len(cases), size=(max(10, 5 * len(cases) + 1), 6.6), sharey="row") as (figure, axes):
        for row, profile in enumerate(PROFILES):
            for column, work in enumerate(cases):
                place = axes[row, column]
                ticks = _trace_boxes(results, place, profile, work.case)
                log_scale(place)
                place.set_xticks(*ticks)
                place.set_title(f"{work.case} ({work.rate_per_s:.2g}/s), {profile}")
                place.set_xlabel("N, or N to begin with")
            axes[row, 0].set_ylabel("response, ms")
        _legend(figure, (FIXED, DEPLOYED, *TUNED))
        title = "Fig. 12: response on the traces as they are" if as_is else "Fig. 13: response on the traces, faster"
        figure.suptitle(f"{title} ({BOX_NOTE})")


def _tuned() -> list[tuple[str, int]]:
    return [(policy, size) for policy in TUNED for size in INITIAL_SIZES]


def _box(results: Results, place: Any, cell: Cell, at: float, colour: str) -> None:
    box(place, results.responses_ms(cell), results.mean_ms(cell), at, width=0.7, colour=colour)


def _tuned_boxes(results: Results, place: Any, cells: list[Cell], begin: float) -> tuple[list[float], list[str]]:
    """Draw the tuned cells, with a gap between policies; give where they are and what N each begins with."""
    at, places = begin, []
    for number, cell in enumerate(cells):
        if number and cells[number - 1].tuning != cell.tuning:
            at += 0.6
        _box(results, place, cell, at, COLOURS[cell.tuning])
        places.append(at)
        at += 1
    return places, [str(cell.batch_size) for cell in cells]


def _trace_boxes(results: Results, place: Any, profile: str, case: str) -> tuple[list[float], list[str]]:
    fixed = [Cell(TRACE, profile, case, FIXED, size, False) for size in TRACE_SIZES]
    best, _ = results.best_deployed(TRACE, profile, case)
    cells = [*fixed, Cell(TRACE, profile, case, DEPLOYED, best, False)]
    cells += [Cell(TRACE, profile, case, *one) for one in _tuned()]
    return _tuned_boxes(results, place, cells, 0)


_LABELS = {FIXED: "tuning off (fixed N)", DEPLOYED: "as deployed: T_poll 1000 ms, its best N"}


def _legend(figure: Any, names: tuple[str, ...]) -> None:
    handles = [swatch(COLOURS[name]) for name in names]
    labels = [_LABELS.get(name, name) for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(names), frameon=False)
