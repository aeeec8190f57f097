"""The report: a table and a verdict for each curve, and a picture. `python -m bench.growth.report FOLDER` redoes it."""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.growth.curves import AUTO
from bench.growth.verdicts import Points, keeps_up, line_through, stays
from bench.peers.machine import in_a_line
from bench.peers.plots import short
from bench.peers.tables import markdown, number
from clarion.reproduce.figure_style import COLOURS, saved

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
    """Give the median of each figure by x, in the order of x; what was chosen by the tuner is last."""
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
    """Give one figure over x, without what the tuner chose."""
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
