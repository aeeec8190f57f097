"""The report of the peers' bench: tables in Markdown, and pictures. `python -m bench.peers.report FOLDER` redoes it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.figures import GOALS, OURS, OURS_SINGLE, Figure, Goal, Rounds, Spread, Verdict, judge
from bench.peers.plots import draw_latency, draw_rates
from bench.peers.systems import System

_SCALES = {"thousand/s": 1e-3, "MB": 1e-6}


@dataclass(frozen=True)
class Column:
    """A figure with its heading; with `against`, its ratio to the best peer stands beside it."""

    title: str
    figure: Figure
    unit: str
    against: str | None = "any"  # "any" peer, a peer that does "fsync", or none


@dataclass(frozen=True)
class Section:
    """A table with a row for each system."""

    title: str
    about: str
    columns: list[Column]


def _sized(measure: str) -> Section:
    return Section(
        f"Publish and consume, {measure}",
        "One publisher fills a topic, then one subscriber empties it and acks; then both at once.",
        [
            Column("publish", Figure(measure, "publish_per_s"), "thousand/s"),
            Column("consume", Figure(measure, "consume_per_s"), "thousand/s"),
            Column("both at once", Figure(measure, "both_per_s"), "thousand/s"),
        ],
    )


def _many(title: str, about: str, measure: str) -> Section:
    return Section(
        title,
        about,
        [
            Column("delivered in total", Figure(measure, "delivered_per_s"), "thousand/s"),
            Column("CPU for a million, clients included", Figure(measure, "cpu_s_per_million", True), "s"),
            Column("memory of the server", Figure(measure, "server_memory_bytes", True), "MB", None),
        ],
    )


def _paced(title: str, name: str) -> list[Column]:
    return [
        Column(f"{title}, p50", Figure("latency", f"{name}_ms_p50", True), "ms", "fsync"),
        Column(f"{title}, p99", Figure("latency", f"{name}_ms_p99", True), "ms", "fsync"),
    ]


SECTIONS = [
    *(_sized(measure) for measure in ("100 B", "1 KB", "20 KB")),
    _many("Fan-out to 10", "One publisher, ten subscribers at the same time; each gets every message of 100 B.",
          "fan-out 10"),
    _many("Fan-out to 100", "One publisher, a hundred subscribers at the same time; each gets every message of 100 B.",
          "fan-out 100"),
    Section("Latency",
            "One message of 100 B at a time on an idle system. Ratios are to the best peer whose ack, too, comes after "
            "fsync: a peer that does not wait for its disk may be below 1. Clarion and Redis (always) deliver what is "
            "on disk; RabbitMQ's classic queue delivers while it still writes, and acks when that is done.",
            [*_paced("put to ack", "put"), *_paced("put to delivery", "delivery")]),
    _many("Mixed load", "200 publishers on five topics each, 500 topics with a subscriber each, all with connections "
          "of their own but for Clarion's, whose clients on an event loop share one, 100 B.", "mixed"),
    Section("Costs",
            "CPU is that of server and clients together, for publishing a million messages and consuming them; "
            "memory is the server's after publishing; bytes written are what the kernel counts for the server's "
            "processes while publishing and consuming.",
            [Column("CPU for a million, 100 B", Figure("100 B", "cpu_s_per_million", True), "s"),
             Column("CPU for a million, 1 KB", Figure("1 KB", "cpu_s_per_million", True), "s"),
             Column("memory, 100 B", Figure("100 B", "server_memory_bytes", True), "MB", None),
             Column("written per byte of payload, 100 B", Figure("100 B", "written_per_payload_byte", True), "", None),
             Column("the same, 1 KB", Figure("1 KB", "written_per_payload_byte", True), "", None)]),
    Section("Recovery",
            "A million messages of 100 B acked, SIGKILL, start again: until a subscriber has the first message; then "
            "it must get all. A killed server loses no page that it gave to the kernel; a power cut would take from "
            "those that ack without fsync what this does not show.",
            [Column("until the first message", Figure("recovery", "first_message_s", True), "s")]),
]  # fmt: skip


def goals_table(rounds: Rounds) -> str:
    """Return a row for each goal: ours, the best peer's, the ratio, what was asked, and whether it holds."""
    return _goals([judge(rounds, goal) for goal in GOALS])


def single_table(rounds: Rounds) -> str:
    """Return the same for Clarion called message by message; empty where that was not measured."""
    own = [goal for goal in GOALS if goal.figure.measure in ("100 B", "1 KB")]
    asked = any(rounds.spread(OURS_SINGLE, goal.figure) for goal in own)
    return _goals([judge(rounds, goal, OURS_SINGLE) for goal in own]) if asked else ""


def _goals(verdicts: list[Verdict]) -> str:
    head = ["measure", "Clarion", "best peer", "its median", "its ack means", "ratio (lowest to highest)", "asked",
            "aim", "holds", "ratio to the best peer that fsyncs"]  # fmt: skip
    return markdown(head, [_goal_row(verdict) for verdict in verdicts])


def _goal_row(verdict: Verdict) -> list[str]:
    goal, peer = verdict.goal, verdict.peer
    least = "at most" if goal.figure.lower_is_better else "at least"
    return [
        goal.title,
        _with_unit(verdict.ours, goal),
        (peer.title + (" (of those that fsync)" if goal.against_fsync else "")) if peer else "none measured",
        _with_unit(verdict.peers, goal),
        peer.ack_means if peer else "",
        f"**{ratio_text(verdict.ratio.median)}** ({ratio_text(verdict.ratio.lowest)} to "
        f"{ratio_text(verdict.ratio.highest)})" if verdict.ratio else "",
        f"{least} {goal.asked:g}x",
        f"{goal.aim:g}x",
        verdict.holds,
        f"{ratio_text(verdict.to_durable.median)} ({verdict.durable.title})"
        if verdict.durable and verdict.to_durable else "",
    ]  # fmt: skip


def _with_unit(spread: Spread | None, goal: Goal) -> str:
    return f"{number(scaled(spread.median, goal.unit))} {goal.unit}" if spread else "not measured"


def section_table(rounds: Rounds, section: Section) -> str:
    """Return a row for each system that was asked for this, those that are missing or failed as well."""
    columns = [column for column in section.columns if rounds.has(column.figure.measure)]
    best = {column.title: rounds.best_peer(column.figure, that_fsyncs=column.against == "fsync") for column in columns}
    head = ["system", "its ack means"]
    for column in columns:
        head.append(f"{column.title}, {column.unit}" if column.unit else column.title)
        head += ["to the best peer"] if column.against else []
    rows = []
    for system in rounds.systems:
        if not any(rounds.was_asked(system.name, column.figure.measure) for column in columns):
            continue
        row = [f"**{system.title}**" if system.name == OURS else system.title, system.ack_means]
        for column in columns:
            row += _cells(rounds, system, column, best[column.title])
        rows.append(row)
    return markdown(head, rows)


def _cells(rounds: Rounds, system: System, column: Column, best: System | None) -> list[str]:
    cells = [_cell(rounds, system, column)]
    if column.against:
        ratio = rounds.ratio(system.name, best.name, column.figure) if best else None
        cells.append("" if ratio is None else "best peer" if system == best else ratio_text(ratio.median))
    return cells


def _cell(rounds: Rounds, system: System, column: Column) -> str:
    if system.name in rounds.missing:
        return "missing"
    failed = len(rounds.failures(system.name, column.figure.measure))
    spread = rounds.spread(system.name, column.figure)
    if spread is None:
        return "failed" if failed else "not measured"
    text = number(scaled(spread.median, column.unit))
    if spread.lowest < spread.highest:
        text += f" ({number(scaled(spread.lowest, column.unit))} to {number(scaled(spread.highest, column.unit))})"
    return text + (f"; failed {failed} times" if failed else "")


def ratio_text(ratio: float) -> str:
    """Write a ratio: `12x`, `3.4x`, `0.56x`."""
    return f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def scaled(value: float, unit: str) -> float:
    """Return a value in its unit."""
    return value * _SCALES.get(unit, 1.0)


def number(value: float) -> str:
    """Write a number with three digits that count, and all those before the point."""
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3g}"
    )


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """Write a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


REASON_CHARACTERS = 200
_PATH = re.compile(r"(?<![\w/])/(?:[\w.+-]+/)+")
_MACHINE = {
    "processor": "processor", "cores": "cores", "memory_gb": "GB of memory", "kernel": "kernel",
    "file_system": "file system", "python": "Python",
    "fsync_ms_p50": "ms for a bare append of 200 bytes with fsync (p50)",
}  # fmt: skip


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write peers.md, peers.png and latency.png into a folder."""
    rounds = Rounds(results)
    pictures = []
    if draw_rates(rounds, out / "peers.png"):
        pictures.append("![rates of all systems](peers.png)")
    if draw_latency(rounds, out / "latency.png"):
        pictures.append("![latency of all systems](latency.png)")
    (out / "peers.md").write_text("\n\n".join([*_text(results, rounds, pictures)]) + "\n")


def _text(results: dict[str, Any], rounds: Rounds, pictures: list[str]) -> list[str]:
    """Return the report's paragraphs."""
    minutes = sum(run["taken_s"] for run in results["runs"]) / 60
    often = "one round" if results["rounds"] == 1 else f"{results['rounds']} rounds"
    parts = [
        "# Clarion beside its peers",
        f"Measured in one run of {minutes:.0f} minutes, all systems in turn, {often} (recovery: one), "
        "everything on loopback. To do it again: `make bench-peers`. Every run checks that what was acked "
        "arrived, once and in order. Each peer is used through the fastest client that a Python user has. Figures are "
        "medians over the rounds, with the lowest and highest; ratios are taken within a round, then their median.",
        "## Where it must get",
        "Clarion stands for `put_many` and `get_batches` with the settings a user gets. Ratios are to the best peer of "
        "any durability; for the two latencies to the best peer whose ack comes after fsync, as ours does. For rates "
        "more is better, for times and CPU less. A row whose client was replaced in part is shown below, and is not "
        "the peer that ratios are to: a user does not have it.",
        goals_table(rounds),
    ]
    if single := single_table(rounds):
        parts += [
            "The same with `put` and `get`, an object for each message (nothing was asked for these; the bounds are "
            "those from above):",
            single,
        ]
    parts += [*pictures, "## Machine, versions, and who is missing", taking_part(results, rounds)]
    for section in SECTIONS:
        if any(rounds.has(column.figure.measure) for column in section.columns):
            parts += [f"## {section.title}", section.about, section_table(rounds, section)]
    return parts


def taking_part(results: dict[str, Any], rounds: Rounds) -> str:
    """Tell the machine, the versions, who is missing and what failed."""
    lines = [f"* {_MACHINE.get(name, name.replace('_', ' '))}: {value}" for name, value in results["machine"].items()]
    lines += [""]
    for system in rounds.systems:
        if system.name in rounds.missing:
            lines.append(f"* **missing**: {system.title}: {_short(rounds.missing[system.name])}")
        else:
            lines.append(f"* {system.title}: {results['versions'][system.name]}; its ack means: {system.ack_means}")
    failed = [run for run in results["runs"] if "failed" in run]
    titles = {system.name: system.title for system in rounds.systems}
    lines += ["", *(
        f"* **failed**: {titles.get(run['system'], run['system'])}, {run['measure']}, round {run['round'] + 1}: "
        f"{_short(run['failed'])}" for run in failed
    )]  # fmt: skip
    if not failed:
        lines.append("No run failed.")
    return "\n".join(lines)


def _short(reason: str) -> str:
    """Return the beginning of a reason on one line, without the folders of this machine."""
    text = _PATH.sub("…/", " ".join(reason.split()))
    return text if len(text) <= REASON_CHARACTERS else text[:REASON_CHARACTERS] + " …"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_report(json.loads((folder / "peers.json").read_text()), folder)
