"""`python -m bench.growth`: Clarion's speed against what grows, with tables, verdicts and a picture."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.growth.curves import QUICK, Extent, Figures, with_batch_size, with_size, with_subscribers, with_topics
from bench.growth.report import write_report
from bench.growth.stored import with_stored
from bench.peers.machine import describe

ONCE_FROM_TOPICS = 10_000  # such a point takes so long that one round must do
CURVES: dict[str, Callable[[Extent, int], Figures]] = {
    "size": with_size,
    "batch": with_batch_size,
    "subscribers": with_subscribers,
    "topics": with_topics,
}


def main() -> None:
    """Measure, and write growth.json, growth.md and growth.png."""
    options = _parser().parse_args()
    extent = QUICK if options.quick else Extent()
    extent = replace(extent, rounds=options.rounds or extent.rounds, stored=options.stored or extent.stored)
    chosen = options.only.split(",") if options.only else [*CURVES, "stored"]
    if unknown := set(chosen) - CURVES.keys() - {"stored"}:
        raise SystemExit(f"no such curve: {', '.join(sorted(unknown))}")
    begin = time.monotonic()
    results: dict[str, Any] = {
        "machine": describe(), "quick": options.quick, "rounds": extent.rounds, "notes": [],
        "points": {curve: [] for curve in chosen},
    }  # fmt: skip
    for turn in range(extent.rounds):
        for curve in chosen:
            results["points"][curve] += _round(curve, extent, turn) if curve in CURVES else []
    if "stored" in chosen:
        found, results["notes"] = with_stored(extent, _say)
        results["points"]["stored"] = [{"x": x, "round": 0, "figures": figures} for x, figures in found.items()]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, options.out)
    _say(f"took {time.monotonic() - begin:.0f} s")
    print((options.out / "growth.md").read_text())


def _round(curve: str, extent: Extent, turn: int) -> list[dict[str, Any]]:
    along = {
        "size": extent.sizes, "batch": extent.batch_sizes, "subscribers": extent.subscribers, "topics": extent.topics,
    }[curve]  # fmt: skip
    points = []
    for x in along:
        if curve == "topics" and x >= ONCE_FROM_TOPICS and turn:
            continue
        _say(f"round {turn + 1} of {extent.rounds}: {curve} {f'{x:,}' if x else 'auto'} …")
        points.append({"x": x, "round": turn, "figures": CURVES[curve](extent, x)})
    return points


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the report (bench/results)")
    parser.add_argument("--only", metavar="CURVES", help=f"with commas between: {','.join([*CURVES, 'stored'])}")
    parser.add_argument("--quick", action="store_true", help="less of everything, in less than a minute")
    parser.add_argument("--rounds", type=int, help="how often each point is measured")
    parser.add_argument("--stored", type=int, nargs="*", metavar="MESSAGES", help="depths, rising")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
