"""The report of the workflows' bench: a table and a picture. `python -m bench.workflows.report FOLDER` redoes it."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator

from bench.machine import in_a_line
from bench.peers.report import markdown, number, ratio_text
from bench.workflows.systems import SYSTEMS, System
from clarion.reproduce.figure_style import COLOURS, saved

OURS = "clarion"
RATE, HALF, MOST = "tasks_per_s", "job_ms_p50", "job_ms_p99"
_COLUMNS = [(RATE, "tasks a second"), (HALF, "one job, p50, ms"), (MOST, "one job, p99, ms")]
_BAR = 0.66


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write workflows.md and workflows.png into a folder."""
    systems = [each for each in SYSTEMS if each.name in results["versions"] or each.name in results["missing"]]
    drawn = _draw(results, [each for each in systems if _values(results, each, RATE)], out / "workflows.png")
    (out / "workflows.md").write_text("\n\n".join(_text(results, systems, drawn)) + "\n")


def _values(results: dict[str, Any], system: System, figure: str) -> dict[int, float]:
    """Return what a system reached, by round."""
    return {
        one["round"]: one["figures"][figure]
        for one in results["runs"]
        if one["system"] == system.name and figure in one.get("figures", {})
    }


def _ratio(results: dict[str, Any], system: System, figure: str) -> float | None:
    """Return Clarion in ratio to a system, each round by itself: both met the same machine then."""
    ours = {
        one["round"]: one["figures"][figure]
        for one in results["runs"]
        if one["system"] == OURS and figure in one.get("figures", {})
    }
    theirs = _values(results, system, figure)
    shared = [ours[turn] / theirs[turn] for turn in ours.keys() & theirs.keys()]
    return statistics.median(shared) if shared else None


def _text(results: dict[str, Any], systems: list[System], drawn: bool) -> list[str]:
    often = "one round" if results["rounds"] == 1 else f"{results['rounds']} rounds"
    parts = [
        "# Chains of tasks, Clarion beside its peers",
        f"A job is a chain of four tasks that return what they are given, 100 bytes. Measured {often}, all systems in "
        "turn, everything on loopback. To do it again: `make bench-workflows`. Every result of every job is checked. "
        f"Tasks a second: jobs for about {results['seconds']:g} s (at least 300, at most 20,000), from the first that "
        "is asked for to the last result. One job: asked for and waited for, one after the other, nothing else to do. "
        "Figures are medians over the rounds, with the lowest and highest; ratios are Clarion's figure to that of the "
        "system, taken within a round, then their median: for the rate more is better, for the times less.",
    ]
    if results["note"]:
        parts.append(f"**{results['note']}**")
    parts.append(_table(results, systems))
    if drawn:
        parts.append("![tasks a second and the time of one job](workflows.png)")
    parts += ["## What the promises are", _promises(systems), "## Machine, versions, settings", _taking_part(results)]
    return parts


def _table(results: dict[str, Any], systems: list[System]) -> str:
    head = ["system"]
    for _, title in _COLUMNS:
        head += [title, "Clarion to it"]
    rows = []
    for system in systems:
        row = [f"**{system.title}**" if system.is_ours else system.title]
        for figure, _ in _COLUMNS:
            values = list(_values(results, system, figure).values())
            ratio = None if system.is_ours else _ratio(results, system, figure)
            row += [_spread(results, system, values), "" if ratio is None else ratio_text(ratio)]
        rows.append(row)
    return markdown(head, rows)


def _spread(results: dict[str, Any], system: System, values: list[float]) -> str:
    if not values:
        return "missing" if system.name in results["missing"] else "not measured"
    text = number(statistics.median(values))
    return text if len(values) == 1 else f"{text} ({number(min(values))} to {number(max(values))})"


def _promises(systems: list[System]) -> str:
    head = ["system", "a job that is taken", "each step is on disk before the next", "a killed worker repeats"]
    return markdown(
        head, [[each.title, each.ack_means, "yes" if each.fsyncs else "no", each.repeats] for each in systems]
    )


def _taking_part(results: dict[str, Any]) -> str:
    loads = [one["load"] for one in results["runs"]]
    lines = [f"* {in_a_line(results['machine'])}"]
    if loads:
        lines.append(
            f"* load of the machine: {results['load_before']:g} before, {min(loads):g} to {max(loads):g} after runs"
        )
    for system in SYSTEMS:
        if system.name in results["missing"]:
            lines.append(f"* **missing**: {system.title}: {results['missing'][system.name]}")
        elif system.name in results["versions"]:
            told = {"workers": system.workers} | system.settings | system.options
            settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told.items())
            lines.append(f"* {system.title}: {results['versions'][system.name]}; {settings}")
    for one in results["runs"]:
        if "failed" in one:
            lines.append(
                f"* **failed**: {one['system']}, round {one['round'] + 1}: {' '.join(one['failed'].split())[:200]}"
            )
    return "\n".join(lines)


def _draw(results: dict[str, Any], systems: list[System], path: Path) -> bool:
    """Draw the rate, and the time of one job, of all who have them; tell whether there was any."""
    if not systems:
        return False
    often = "one round" if results["rounds"] == 1 else f"medians of {results['rounds']} rounds"
    footer = f"{in_a_line(results['machine'])}; {often}" + (f"\n{results['note']}" if results["note"] else "")
    with saved(path, 1, 2, size=(9.6, 1.5 + 0.4 * len(systems)), footer=footer) as (figure, axes):
        for place, (name, title) in zip(
            axes.flat, [_COLUMNS[0], (HALF, "one job when idle, ms: p50, line to p99")], strict=True
        ):
            for row, system in enumerate(systems):
                values = list(_values(results, system, name).values())
                if not values:
                    continue
                colour = COLOURS["recheck"] if system.is_ours else COLOURS["fixed"]
                look = (
                    {"color": colour} if system.fsyncs else {"facecolor": "white", "edgecolor": colour, "hatch": "////"}
                )
                middle = statistics.median(values)
                place.barh(row, middle, _BAR, **look)
                tops = list(_values(results, system, MOST).values()) if name == HALF else values
                reach = [middle, statistics.median(tops)] if name == HALF else [min(values), max(values)]
                place.plot(reach, [row, row], color="black", linewidth=0.8)
                place.annotate(
                    number(middle), (max(reach), row), (5, 0), textcoords="offset points", va="center", fontsize=8
                )
            place.set_yticks(range(len(systems)), [each.title for each in systems])
            place.set_ylim(len(systems) - 0.4, -0.6)
            place.set_xlim(0, 1.25 * place.get_xlim()[1])
            place.grid(visible=False, axis="y")
            place.xaxis.set_major_locator(MaxNLocator(4))
            place.set_title(title)
        axes[0, 1].tick_params(labelleft=False)
        figure.suptitle(
            "A chain of four trivial tasks (hatched: on disk within a second, not before the next step)", fontsize=10
        )
    return True


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_report(json.loads((folder / "workflows.json").read_text()), folder)
