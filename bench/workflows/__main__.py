"""`python -m bench.workflows`: chains of four trivial tasks by Clarion, Celery and DBOS, in rounds, on this machine."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from bench.machine import describe
from bench.peers.servers import Missing
from bench.workflows.report import write_report
from bench.workflows.systems import SYSTEMS, System, run

IDLE_JOBS = 200


def main() -> None:
    """Measure, and write tables and a picture."""
    options = _parser().parse_args()
    chosen = [system for system in SYSTEMS if not options.systems or system.name in options.systems]
    results: dict[str, Any] = {
        "machine": describe(), "load_before": round(os.getloadavg()[0], 2), "note": options.note, "rounds": 0,
        "seconds": options.seconds, "versions": {}, "missing": {}, "runs": [],
    }  # fmt: skip
    for system in chosen:
        try:
            results["versions"][system.name] = system.version()
        except Missing as error:
            results["missing"][system.name] = str(error)
            _say(f"missing: {system.title}: {error}")
    present = [system for system in chosen if system.name in results["versions"]]
    try:
        for turn in range(options.rounds):
            results["rounds"] = turn + 1
            for system in Random(f"workflows {turn}").sample(present, len(present)):
                os.sync()  # what the one before left is not for this one to write
                _say(f"round {turn + 1} of {options.rounds}: {system.title} …")
                results["runs"].append(_run(system, turn, options))
                _write(results, options.out)
    except KeyboardInterrupt:
        _say("stopped; the report has what was measured until now")
        raise SystemExit(130) from None
    print(json.dumps(results) if options.json else (options.out / "workflows.md").read_text())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.workflows", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="about how long a burst of jobs lasts (10)")
    parser.add_argument("--idle-jobs", type=int, default=IDLE_JOBS, help="jobs asked for one after the other (200)")
    parser.add_argument("--systems", nargs="*", metavar="SYSTEM", choices=[system.name for system in SYSTEMS],
                        help=", ".join(system.name for system in SYSTEMS))  # fmt: skip
    parser.add_argument("--note", default="", help="what a reader of the report must know of this run")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the report (bench/results)")
    parser.add_argument("--json", action="store_true", help="print all figures instead of the report")
    return parser


def _run(system: System, turn: int, options: argparse.Namespace) -> dict[str, Any]:
    begin_s = time.perf_counter()
    found: dict[str, Any] = {"system": system.name, "round": turn}
    try:
        found["figures"] = run(system, idle_jobs=options.idle_jobs, seconds=options.seconds)
    except (Missing, RuntimeError, OSError, subprocess.SubprocessError, ValueError) as error:  # the others go on
        found["failed"] = str(error)
        _say(f"failed: {error}")
    load = round(os.getloadavg()[0], 2)
    return found | {"taken_s": time.perf_counter() - begin_s, "load": load}


def _write(results: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "workflows.json").write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, out)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
