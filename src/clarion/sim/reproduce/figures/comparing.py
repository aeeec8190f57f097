"""Policies side by side: losses under a slow subscriber, the deployed system, fairness, and beyond the document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clarion.sim.reproduce.beyond import hindsight
from clarion.sim.reproduce.cells import (
    CONGESTED,
    DEPLOYED,
    FIXED,
    LOAD,
    LOADS_PER_S,
    PROFILES,
    SEVERAL,
    SLOW,
    SLOW_SIZES,
    TUNED,
    Cell,
    load_cell,
)
from clarion.sim.reproduce.experiments import SEVERAL_FIXED_SIZE
from clarion.sim.reproduce.figures.style import COLOURS, saved
from clarion.sim.reproduce.results import Results

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
        axes[0, 0].set_ylabel("dropped, % of requests")
        figure.suptitle(
            "Slow subscriber (17.5 requests/s; reads 25/s, vacations of 4 s; broker room 50): requests dropped"
        )


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
        axes[0, 0].set_ylabel("mean response, ms")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.suptitle("Mean response by load, beside the deployed system")


def draw_fairness(results: Results, path: Path) -> None:
    """Draw each publisher's throughput as a share of an even one, and Jain's index."""
    titles = {SEVERAL: "broker with room", CONGESTED: "subscriber reads 70 % of the load"}
    with saved(path, 2, 2, size=(13, 6.4), sharey=True) as (figure, axes):
        for row, experiment in enumerate((SEVERAL, CONGESTED)):
            for column, profile in enumerate(PROFILES):
                _draw_shares(results, axes[row, column], experiment, profile)
                axes[row, column].set_title(f"{titles[experiment]}, {profile}")
                axes[-1, column].set_xlabel("policy, and number of publishers")
            axes[row, 0].set_ylabel("throughput / even share")
        figure.suptitle("Several publishers on one broker: each one's throughput (dots), and Jain's index (numbers)")


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
        axes[0, 0].set_ylabel("mean response / best fixed N's")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.suptitle("Beyond the document: tuned response in ratio to the best fixed N in hindsight (band: 5 %)")
