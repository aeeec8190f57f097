"""The report of a paced run in Markdown. `python -m bench.peers.paced.pages FOLDER` writes it anew from paced.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.peers.figures import OURS, Figure, Rounds, Spread
from bench.peers.paced.curves import draw_curves
from bench.peers.paced.loads import (
    CURVE_TOPICS,
    ENTRANTS,
    FAST,
    GRACE_S,
    HUGE,
    MESSAGE_BYTES,
    TABLE,
    TRACKING,
    Load,
    takes_part,
)  # fmt: skip
from bench.peers.paced.verdicts import (
    ASKED,
    Asked,
    Verdict,
    curve,
    judge,
    saturation_per_s,
    those_who_keep_up,
)  # fmt: skip
from bench.peers.report import markdown, number, ratio_text, scaled, taking_part
from bench.peers.systems import System

READERS_ACK = {
    "clarion": "durable: an ack is on disk when it is answered; the next `get` acks what the last one gave",
    "nats": "each message acked by itself, in memory, written without fsync; not answered",
    "nats-push": "one ack for all before it, in memory, written without fsync; not answered",
    "redis-streams": "XACK of each id, fsync each second",
    "redis-field": "XACK of each id, fsync each second",
    "rabbitmq": "one ack for all before it; written when the queue next writes",
}
_COLUMNS = [
    ("delivered, %", "delivered", "%"), ("p50, ms", "p50_ms", ""), ("p99, ms", "p99_ms", ""),
    ("server CPU, of a core", "server_cpu", ""), ("a message, µs", "server_us", ""),
    ("publisher CPU", "publisher_cpu", ""), ("readers CPU", "readers_cpu", ""),
    ("memory of server, MB", "server_memory_bytes", "MB"), ("publisher, MB", "publisher_memory_bytes", "MB"),
    ("readers, MB", "readers_memory_bytes", "MB"),
]  # fmt: skip


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write paced.md and paced.png into a folder."""
    rounds = Rounds(results, ENTRANTS)
    drawn = draw_curves(rounds, out / "paced.png")
    (out / "paced.md").write_text("\n\n".join(_text(results, rounds, drawn)) + "\n")


def _text(results: dict[str, Any], rounds: Rounds, drawn: bool) -> list[str]:
    often = "one round" if rounds.count == 1 else f"{rounds.count} rounds (the row of 100,000 topics: one)"
    parts = [
        "# Many topics at an ordinary pace",
        f"One publisher puts so many messages of {MESSAGE_BYTES} bytes a second over so many topics, in turn; two "
        "readers, each a process of its own, read all of them and ack. Measured in one run of "
        f"{results['taken_s'] / 60:.0f} minutes, {often} of {results['seconds']:g} s for each row, the systems in turn "
        "within each, everything on loopback. To do it again: `make bench-paced`. Latency is from put to handed to the "
        f"application, without the first third; what comes more than {GRACE_S:g} s after the last put is due is not "
        "delivered. Of two readers the worse one counts. Figures are medians over the rounds, with the lowest and "
        "highest; ratios are taken within a round, then their median.",
        "## Where it must get",
        "Ratios are to the best peer that keeps up with the load: all of these peers' acks mean at least what those of "
        "NATS do. Server CPU is in ratio to NATS with pull consumers.",
        goals_table(rounds),
    ]
    if drawn:
        parts += [
            "## Latency against load",
            "A curve ends with the first load that its system does not keep up with (a cross).",
            "![p50 and p99 against messages a second for 1, 100 and 2000 topics](paced.png)",
            saturation_table(rounds),
        ]
    parts += ["## Machine, versions, and who is missing", taking_part(results, rounds), "## What an ack means"]
    parts.append(
        markdown(
            ["system", "the publisher's", "the readers'"],
            [[system.title, system.ack_means, READERS_ACK[system.name]] for system in rounds.systems],
        )
    )
    for load in (*TABLE, FAST, TRACKING, HUGE):
        if rounds.has(load.name):
            parts += [f"## {load.name[0].upper()}{load.name[1:]}", *_about(load), load_table(rounds, load)]
    return parts


def _about(load: Load) -> list[str]:
    if load.subscribers:
        return [
            "Publishers over all topics and subscribers of one topic each, all of them clients of their own, in two "
            "processes for the publishers and two for the subscribers. Each has a connection, but for Clarion's, whose "
            "clients on an event loop share one by themselves. For this NATS has a stream for each topic."
        ]
    if not load.per_s:
        return ["The publisher does not pause. Delivered a second is up to the last arrival, at the slower reader."]
    return []


def goals_table(rounds: Rounds) -> str:
    """Return a row for each thing that is asked: ours, the best peer's, the ratio, and whether it holds."""
    head = ["load", "Clarion", "best peer", "its median", "ratio (lowest to highest)", "must", "aim", "holds",
            "to NATS, pull", "to NATS, push"]  # fmt: skip
    return markdown(head, [_goal_row(judge(rounds, asked)) for asked in ASKED if rounds.has(asked.load.name)])


def _goal_row(verdict: Verdict) -> list[str]:
    asked, ratio = verdict.asked, verdict.ratio
    sign = "at least" if asked.more_is_better else "at most"
    unit = f" {asked.unit}" if asked.absolute else "x"
    return [
        asked.title,
        _with_unit(verdict.ours, asked),
        verdict.peer.title if verdict.peer else "none keeps up",
        _with_unit(verdict.peers, asked),
        f"**{ratio_text(ratio.median)}** ({ratio_text(ratio.lowest)} to {ratio_text(ratio.highest)})" if ratio else "",
        f"{sign} {asked.must:,g}{unit}",
        f"{asked.aim:,g}{unit}",
        verdict.holds,
        *(ratio_text(each.median) if each else "" for each in verdict.to_nats),
    ]


def _with_unit(spread: Spread | None, asked: Asked) -> str:
    return f"{number(spread.median)} {asked.unit}" if spread else "not measured"


def load_table(rounds: Rounds, load: Load) -> str:
    """Return a row for each system with all that was seen of a load."""
    columns = [*_COLUMNS]
    if not load.per_s:
        columns[:3] = [("delivered to each, a second", "per_s", "")]
    rows = [
        [f"**{system.title}**" if system.name == OURS else system.title]
        + [_cell(rounds, system, load, name, unit) for _, name, unit in columns]
        for system in rounds.systems
        if takes_part(system, load)
    ]
    return markdown(["system", *(title for title, _, _ in columns)], rows)


def _cell(rounds: Rounds, system: System, load: Load, name: str, unit: str) -> str:
    if system.name in rounds.missing:
        return "missing"
    failed = len(rounds.failures(system.name, load.name))
    spread = rounds.spread(system.name, Figure(load.name, name))
    if spread is None:
        return "failed" if failed else "not measured"
    scale = 100.0 if unit == "%" else scaled(1.0, unit)
    write = _share if unit == "%" else number
    text = write(scale * spread.median)
    if write(scale * spread.lowest) != write(scale * spread.highest):
        text += f" ({write(scale * spread.lowest)} to {write(scale * spread.highest)})"
    if name in ("delivered", "p50_ms") and load.per_s and system.name not in those_who_keep_up(rounds, load):
        text += ", falls behind"
    return text + (f"; failed {failed} times" if failed and name == "delivered" else "")


def _share(percent: float) -> str:
    """Write a share so that only everything is 100."""
    return "100" if percent >= 100 else f"{min(percent, 99.9):.1f}"


def saturation_table(rounds: Rounds) -> str:
    """Return the highest load of the curves that each system keeps up with."""
    rows = []
    for system in rounds.systems:
        points = [curve(rounds, system.name, topics) for topics in CURVE_TOPICS]
        if any(points):
            rows.append([system.title, *(f"{saturation_per_s(each):,}" if each else "" for each in points)])
    head = ["keeps up with, messages a second", *(f"{topics:,} topic{'s' * (topics > 1)}" for topics in CURVE_TOPICS)]
    return markdown(head, rows)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_report(json.loads((folder / "paced.json").read_text()), folder)
