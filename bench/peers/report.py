"""The report of the peers' bench: tables in Markdown, and pictures. `python -m bench.peers.report FOLDER` redoes it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.peers.figures import Rounds
from bench.peers.plots import draw_latency, draw_rates
from bench.peers.systems import SYSTEMS
from bench.peers.tables import SECTIONS, goals_table, section_table, single_table

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
    """Give the report's paragraphs."""
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
    parts += [*pictures, "## Machine, versions, and who is missing", _taking_part(results, rounds)]
    for section in SECTIONS:
        if any(rounds.has(column.figure.measure) for column in section.columns):
            parts += [f"## {section.title}", section.about, section_table(rounds, section)]
    return parts


def _taking_part(results: dict[str, Any], rounds: Rounds) -> str:
    lines = [f"* {_MACHINE.get(name, name.replace('_', ' '))}: {value}" for name, value in results["machine"].items()]
    lines += [""]
    for system in rounds.systems:
        if system.name in rounds.missing:
            lines.append(f"* **missing**: {system.title}: {_short(rounds.missing[system.name])}")
        else:
            lines.append(f"* {system.title}: {results['versions'][system.name]}; its ack means: {system.ack_means}")
    failed = [run for run in results["runs"] if "failed" in run]
    titles = {system.name: system.title for system in SYSTEMS}
    lines += ["", *(
        f"* **failed**: {titles.get(run['system'], run['system'])}, {run['measure']}, round {run['round'] + 1}: "
        f"{_short(run['failed'])}" for run in failed
    )]  # fmt: skip
    if not failed:
        lines.append("No run failed.")
    return "\n".join(lines)


def _short(reason: str) -> str:
    """Give the beginning of a reason on one line, without the folders of this machine."""
    text = _PATH.sub("…/", " ".join(reason.split()))
    return text if len(text) <= REASON_CHARACTERS else text[:REASON_CHARACTERS] + " …"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_report(json.loads((folder / "peers.json").read_text()), folder)
