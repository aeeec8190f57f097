"""The report of `bench.growth`: tables, a picture, verdicts. `python -m bench.growth_report FOLDER` writes it again."""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.machine import in_a_line
from bench.peers.plots import short
from bench.peers.report import markdown, number
from clarion.reproduce.figure_style import COLOURS, saved

TOLERANCE = 1.5  # two points that differ by less than this factor are the same, on a machine that others use, too
LINEAR_EXPONENT = 0.8  # growth with at least this power of x is called linear, with less it is slower than that

Points = list[tuple[float, float]]


def keeps_up(points: Points) -> str:
    """Say of a rate that should be flat whether it is. What grows is no worse; what falls is named."""
    if len(points) < 2:
        return "one point alone says nothing"
    fall, best, at = _deepest_fall(points)
    if fall < 1 / TOLERANCE:
        return f"not flat: at {_count(at[0])} the rate is {fall:.2g} of that at {_count(best[0])}"
    lowest, highest = min(y for _, y in points), max(y for _, y in points)
    if highest <= TOLERANCE * lowest:
        return f"flat, within a factor of {highest / lowest:.2f}"
    (first, low), (last, high) = points[0], points[-1]
    return f"does not fall: at {_count(last)} it is {high / low:.3g} times that at {_count(first)}"


def _deepest_fall(points: Points) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Return the lowest share that a point has of the best one before it, with both."""
    best = points[0]
    found = (math.inf, points[0], points[0])
    for point in points[1:]:
        found = min(found, (point[1] / best[1], best, point))
        best = max(best, point, key=lambda each: each[1])
    return found


def stays(points: Points) -> str:
    """Say of a cost, where less is better, whether it stays, or how it grows."""
    if len(points) < 2:
        return "one point alone says nothing"
    (first_x, first), (last_x, last) = points[0], points[-1]
    highest, lowest = max(y for _, y in points), min(y for _, y in points)
    if highest <= TOLERANCE * lowest:
        return f"flat, within a factor of {highest / lowest:.2f}"
    if last <= TOLERANCE * first:
        return f"does not grow, but differs by a factor of {highest / lowest:.2f}"
    exponent = math.log(last / first) / math.log(last_x / first_x)
    kind = "linear" if exponent >= LINEAR_EXPONENT else "slower than linear"
    return f"grows {last / first:.3g} times while what is counted grows {last_x / first_x:,.0f} times: {kind}"


@dataclass(frozen=True)
class Line:
    """seconds = fixed + slope * x, and the point that is farthest from it."""

    fixed: float
    slope: float
    farthest_x: float
    farthest_ratio: float  # what was seen there, in ratio to the line

    @property
    def fits(self) -> bool:
        """Return whether all points are near the line."""
        return 1 / TOLERANCE <= self.farthest_ratio <= TOLERANCE

    def verdict(self, x_of_farthest: str) -> str:
        """Say whether that is a line."""
        if self.fits:
            return "linear: all points are within a factor of 1.5 of that line"
        return f"not linear: {x_of_farthest} takes {self.farthest_ratio:.2g} times of that line"


def line_through(points: Points) -> Line:
    """Fit a line so that relative errors are least: points span decades. Neither part is below 0."""
    x, y = np.array(points, dtype=float).T
    rows = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    fixed, slope = np.linalg.lstsq(rows, np.ones_like(y), rcond=None)[0]
    if fixed < 0:
        fixed, slope = 0.0, float(np.sum(x / y) / np.sum((x / y) ** 2))
    elif slope < 0:
        fixed, slope = float(np.sum(1 / y) / np.sum(1 / y**2)), 0.0
    ratios = y / (fixed + slope * x)
    place = int(np.argmax(np.abs(np.log(ratios))))
    return Line(float(fixed), float(slope), float(x[place]), float(ratios[place]))


def _count(value: float) -> str:
    return f"{value:,.0f}"


AUTO = 0  # the batch size that stands for the tuner's own
TITLES = {
    "size": ("Size of a message", "bytes a message",
             "One publisher puts lists of messages, then one subscriber reads them in batches."),
    "batch": ("Size of a batch", "messages a batch",
              "100 B, batches of a fixed size and those that the tuner chooses (auto)."),
    "subscribers": ("Subscribers", "subscribers",
                    "100 B, one publisher, all subscribers at the same time, each with a connection of its own; each "
                    "gets every message. The rate is that of all together."),
    "topics": ("Topics", "topics",
               "100 B, one publisher puts 10 messages on each topic in turn; one subscriber reads the topics by name, "
               "a hundred at a time, and then what is put after that by a pattern. A batch belongs to one topic: with "
               "many topics it holds 10 messages and with one it holds thousands."),
    "stored": ("Stored messages", "stored messages",
               "10 B in one topic that keeps all of them. At each depth the broker is killed (SIGKILL) and started, "
               "then put to and read at both ends, and as a whole. Some files are made ahead, which is most of what "
               "few messages take on the disk."),
}  # fmt: skip
PANELS = [
    ("size", "message size, bytes", "messages/s", {"put_per_s": "put_many", "get_per_s": "get_batches"}),
    ("size", "message size, bytes", "MB/s", {"put_megabytes_per_s": "put_many", "get_megabytes_per_s": "get_batches"}),
    ("batch", "batch size, messages", "messages/s", {"put_per_s": "put_many"}),
    ("subscribers", "subscribers", "delivered/s", {"delivered_per_s": "all together"}),
    ("topics", "topics", "messages/s",
     {"put_per_s": "put_many", "get_per_s": "get_batches by name", "get_by_pattern_per_s": "by pattern"}),
    ("stored", "stored messages of 10 B", "messages/s",
     {"put_per_s": "put_many", "get_newest_per_s": "get_batches, newest", "get_oldest_per_s": "oldest"}),
    ("stored", "stored messages of 10 B", "seconds to restart", {"ready_s": "until ready"}),
    ("stored", "stored messages of 10 B", "MB", {"memory_megabytes": "memory", "disk_megabytes": "disk"}),
]  # fmt: skip
SMALL_BATCHES_FROM = 1000  # topics, from which on nearly all batches are single portions
_LINES = [COLOURS["recheck"], COLOURS["literal"], COLOURS["eager"]]
Medians = dict[int, dict[str, float]]


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write growth.md and growth.png into a folder."""
    medians = {curve: medians_of(points) for curve, points in results["points"].items() if points}
    parts = [
        "# How Clarion's speed grows",
        "Clarion alone, everything on loopback, acks after fsync, medians of "
        f"{results['rounds']} rounds (10,000 topics and more, stored messages: one). Every reader checks that all "
        "that was acked came, once and in order. To do it again: `python -m bench.growth`."
        + (" **A quick run: short, and not far.**" if results["quick"] else ""),
        "Machine: "
        + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in results["machine"].items())
        + ".",
        "![all curves](growth.png)",
        *(f"**Not measured**: {note}." for note in results["notes"]),
    ]
    for curve, found in medians.items():
        title, unit, about = TITLES[curve]
        verdicts = [f"* {line}" for line in verdicts_of(curve, found)]
        parts += [f"## {title}", about, "\n".join(verdicts), _table(unit, found)]
    (out / "growth.md").write_text("\n\n".join(parts) + "\n")
    draw(medians, out / "growth.png", in_a_line(results["machine"]))


def medians_of(points: list[dict[str, Any]]) -> Medians:
    """Return the median of each figure by x, in the order of x; what was chosen by the tuner is last."""
    by_x: dict[int, list[dict[str, float]]] = {}
    for point in points:
        by_x.setdefault(point["x"], []).append(point["figures"])
    return {
        x: {name: statistics.median([figures[name] for figures in by_x[x]]) for name in by_x[x][0]}
        for x in sorted(by_x, key=lambda x: math.inf if x == AUTO else x)
    }


def _table(unit: str, found: Medians) -> str:
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    rows = [
        ["auto" if x == AUTO else f"{x:,}", *(number(figures[name]) if name in figures else "" for name in names)]
        for x, figures in found.items()
    ]
    return markdown([unit, *(name.replace("_", " ").replace(" per s", "/s") for name in names)], rows)


def points_of(found: Medians, name: str) -> Points:
    """Return one figure over x, without what the tuner chose."""
    return [(float(x), figures[name]) for x, figures in found.items() if name in figures and x != AUTO]


def verdicts_of(curve: str, found: Medians) -> list[str]:
    """Say what a curve shows: flat or linear where it should be, and where it is not."""
    if curve == "size":
        return [_of_size(what, points_of(found, f"{what}_per_s")) for what in ("put", "get")]
    if curve == "batch":
        return _of_batch(found)
    rates = {name: keeps_up(points_of(found, name)) for name in _names(found) if name.endswith("_per_s")}
    costs = {name: stays(points_of(found, name)) for name in _names(found) if name.endswith(("_s", "megabytes"))}
    said = {**{name: text for name, text in costs.items() if name not in rates}, **rates}
    if curve == "topics":
        for name in ("put_per_s", "get_per_s"):
            said[f"{name}, from {SMALL_BATCHES_FROM:,} topics on"] = keeps_up(
                [point for point in points_of(found, name) if point[0] >= SMALL_BATCHES_FROM]
            )
    return [f"{name.replace('_per_s', '').replace('_', ' ')}: {text}." for name, text in said.items()]


def _names(found: Medians) -> list[str]:
    return list(next(iter(found.values())))


def _of_size(what: str, points: Points) -> str:
    if len(points) < 3:
        return f"{what}: too few points"
    line = line_through([(x, 1 / rate) for x, rate in points])
    return (
        f"{what}: a message costs {1e6 * line.fixed:.2g} µs and {1e9 * line.slope:.2g} ns a byte; "
        f"{line.verdict(f'a message of {line.farthest_x:,.0f} bytes')}."
    )


def _of_batch(found: Medians) -> list[str]:
    points = points_of(found, "put_per_s")
    said = []
    if len(points) > 2:
        line = line_through([(1 / x, 1 / rate) for x, rate in points])
        said.append(
            f"put: a batch costs {1e6 * line.slope:,.0f} µs and a message in it {1e6 * line.fixed:.2g} µs more; "
            f"{line.verdict(f'a message in a batch of {1 / line.farthest_x:,.0f}')}."
        )
    if points and AUTO in found:
        size, best = max(points, key=lambda point: point[1])
        ratio = found[AUTO]["put_per_s"] / best
        said.append(f"auto reaches {ratio:.2f} of the best fixed size ({size:,.0f}).")
    return said


def draw(medians: dict[str, Medians], path: Path, footer: str) -> None:
    """Draw small multiples, one for each panel that has points."""
    panels = [panel for panel in PANELS if panel[0] in medians]
    if not panels:
        return
    rows = math.ceil(len(panels) / 3)
    with saved(path, rows, 3, size=(9.6, 0.6 + 2.6 * rows), footer=footer) as (figure, axes):
        figure.suptitle("How Clarion grows: one machine, acks after fsync, 100 B unless said otherwise", fontsize=11)
        places = list(axes.flat)
        for place, (curve, label, unit, names) in zip(places, panels, strict=False):
            _draw_panel(place, medians[curve], names)
            place.set(title=TITLES[curve][0], ylabel=unit, xlabel=label)
        for place in places[len(panels) :]:
            place.set_axis_off()


def _draw_panel(place: Any, found: Medians, names: dict[str, str]) -> None:
    place.set(xscale="log", yscale="log")
    values = []
    for (name, label), colour in zip(names.items(), _LINES, strict=False):
        points = points_of(found, name)
        place.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=label)
        values += [y for _, y in points]
    if AUTO in found:
        place.axhline(found[AUTO]["put_per_s"], color="black", linestyle="--", linewidth=1, label="auto")
    place.set_ylim(min(values) / 2.5, max(values) * 2.5)
    place.xaxis.set_major_locator(LogLocator(numticks=5))
    place.yaxis.set_major_locator(LogLocator(subs=(1.0,) if max(values) > 30 * min(values) else (1.0, 3.0)))
    for axis in (place.xaxis, place.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _place: _tick(value)))
        axis.set_minor_locator(NullLocator())
    if len(names) > 1 or AUTO in found:
        place.legend(fontsize=8, frameon=False)


def _tick(value: float) -> str:
    return short(value) if value >= 1 else f"{value:g}"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_report(json.loads((folder / "growth.json").read_text()), folder)
