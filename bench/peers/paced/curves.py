"""The picture of latency against load: a column for each number of topics, p50 above, p99 below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.machine import in_a_line
from bench.peers.figures import Rounds
from bench.peers.paced.loads import CURVE_TOPICS, CURVES, TABLE
from bench.peers.paced.verdicts import Point, curve
from bench.peers.plots import short
from clarion.reproduce.figure_style import saved

# Okabe and Ito's palette; who acks after fsync is drawn solid.
_LOOKS: dict[str, dict[str, Any]] = {
    "clarion": {"color": "#0072B2", "linewidth": 2.6, "marker": "o", "zorder": 5},
    "nats": {"color": "#E69F00", "linestyle": "--", "marker": "s"},
    "nats-push": {"color": "#D55E00", "linestyle": "--", "marker": "D"},
    "redis-streams": {"color": "#009E73", "linestyle": "--", "marker": "^"},
    "redis-field": {"color": "#56B4E9", "linestyle": "--", "marker": "v"},
    "rabbitmq": {"color": "#7f7f7f", "marker": "P"},
}
_TOLD = {load.name for load in TABLE}
_LATE_MS = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_PER_S = (100, 1000, 10_000, 100_000)


def draw_curves(rounds: Rounds, path: Path) -> bool:
    """Draw p50 and p99 of every system; tell whether there was a curve, and not the table's points alone."""
    found = {
        (system.name, topics): points
        for system in rounds.systems
        for topics in CURVE_TOPICS
        if len(points := curve(rounds, system.name, topics)) > 1
    }
    if not found or not any(rounds.has(load.name) for load in CURVES if load.name not in _TOLD):
        return False
    often = "one round"
    if rounds.count > 1:
        often += f", the loads of the table: medians of {rounds.count}"
    footer = f"{in_a_line(rounds.machine)}; everything on loopback, {often}"
    with saved(path, 2, len(CURVE_TOPICS), size=(9.6, 7.0), footer=footer, sharex=True, sharey="row") as (figure, axes):
        for column, topics in enumerate(CURVE_TOPICS):
            for row, share in enumerate((50, 99)):
                place = axes[row][column]
                for system in rounds.systems:
                    if (system.name, topics) in found:
                        points = found[system.name, topics]
                        _draw_curve(place, points, share, system.title, _LOOKS[system.name])
                _set_axes(place)
                if row == 0:
                    place.set_title(f"{topics:,} topic{'s' * (topics > 1)}")
                else:
                    place.set_xlabel("messages a second")
                if column == 0:
                    place.set_ylabel(f"p{share}, ms")
        labelled = (place.get_legend_handles_labels() for place in axes.flat)
        handles = {label: handle for pair in labelled for handle, label in zip(*pair, strict=True)}
        legend = figure.legend(
            handles.values(), handles.keys(), loc="outside upper center", ncols=3, frameon=False, handlelength=3.5,
            title="Latency against load: 200 bytes from put to the application, two readers of all topics that ack\n"
            "(lower is better; solid: acked after fsync; a cross: no longer keeps up; bands: lowest to highest round)",
            title_fontsize=10,
        )  # fmt: skip
        legend.get_title().set_multialignment("center")
    return True


def _draw_curve(place: Any, points: list[Point], share: int, title: str, look: dict[str, Any]) -> None:
    spreads = [point.p50_ms if share == 50 else point.p99_ms for point in points]
    loads = [point.per_s for point in points]
    kept = [spread.median if point.kept_up else None for point, spread in zip(points, spreads, strict=True)]
    place.plot(loads, [spread.median for spread in spreads], **{"linewidth": 1.4, **look, "marker": ""})
    place.plot(loads, kept, **{**look, "linestyle": "", "markersize": 4.5})
    place.plot([], [], label=title, **{"linewidth": 1.4, "markersize": 4.5, **look})
    place.fill_between(
        loads, [spread.lowest for spread in spreads], [spread.highest for spread in spreads],
        color=look["color"], alpha=0.12, linewidth=0,
    )  # fmt: skip
    if not points[-1].kept_up:
        place.plot(
            loads[-1:], [spreads[-1].median], marker="x", markersize=8, markeredgewidth=2, color=look["color"], zorder=6
        )


def _set_axes(place: Any) -> None:
    place.set_xscale("log")
    place.set_yscale("log")
    place.xaxis.set_major_locator(FixedLocator(_PER_S))
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: short(value)))
    place.yaxis.set_major_locator(FixedLocator(_LATE_MS))
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,g}"))
    place.xaxis.set_minor_locator(NullLocator())
    place.yaxis.set_minor_locator(NullLocator())
