"""`python -m bench.peers`: Clarion beside its peers, the same work for all, in rounds, on this machine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from bench.machine import describe
from bench.peers.measures import MEASURES, Scale, running
from bench.peers.report import write_report
from bench.peers.servers import Missing
from bench.peers.systems import SYSTEMS, System

ONCE = {"recovery"}  # so long that one round must do


def main() -> None:
    """Measure, and write tables and plots."""
    options = _parser().parse_args()
    chosen = [system for system in SYSTEMS if not options.systems or system.name in options.systems]
    measures = [name for name in MEASURES if not options.only or name in options.only]
    versions, missing = look_for(chosen)
    results: dict[str, Any] = {
        "machine": describe(), "rounds": 0, "versions": versions, "missing": missing, "runs": [],
    }  # fmt: skip
    present = [system for system in chosen if system.name in versions]
    try:
        for turn in range(options.rounds):
            results["rounds"] = turn + 1
            for name in measures:
                if turn == 0 or name not in ONCE:
                    _run_all(name, present, turn, options, results["runs"])
                    _write(results, options.out)
    except KeyboardInterrupt:
        say("stopped; the report has what was measured until now")
        _write(results, options.out)
        raise SystemExit(130) from None
    if options.json:
        print(json.dumps(results))
    else:
        print((options.out / "peers.md").read_text())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long a run lasts")
    parser.add_argument("--only", nargs="*", metavar="MEASURE", choices=list(MEASURES), help=", ".join(MEASURES))
    parser.add_argument("--systems", nargs="*", metavar="SYSTEM", choices=[system.name for system in SYSTEMS],
                        help=", ".join(system.name for system in SYSTEMS))  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the report (bench/results)")
    parser.add_argument("--json", action="store_true", help="print all figures instead of the table")
    return parser


def look_for(systems: list[System]) -> tuple[dict[str, str], dict[str, str]]:
    """Find out who can take part, and why others cannot."""
    versions, missing = {}, {}
    for system in systems:
        try:
            versions[system.name] = system.server.version()
        except (Missing, ImportError) as error:
            missing[system.name] = str(error)
            say(f"missing: {system.title}: {error}")
    return versions, missing


def _run_all(
    name: str, systems: list[System], turn: int, options: argparse.Namespace, runs: list[dict[str, Any]]
) -> None:
    """Have every system do one kind of work, each round in another order."""
    for system in Random(f"{name} {turn}").sample(systems, len(systems)):
        if not system.measures or name in system.measures:
            os.sync()  # what the one before left is not for this one to write
            say(f"round {turn + 1} of {options.rounds}: {name}: {system.title} …")
            runs.append(_run(system, name, turn, Scale(seconds=options.seconds)))


def _write(results: dict[str, Any], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "peers.json").write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, out)


def _run(system: System, measure: str, turn: int, scale: Scale) -> dict[str, Any]:
    begin = time.perf_counter()
    run: dict[str, Any] = {"system": system.name, "measure": measure, "round": turn}
    folder = Path(tempfile.mkdtemp(prefix="clarion-peers-"))
    try:
        with running(system, system.server(folder, system.settings), scale) as bench:
            run["figures"] = MEASURES[measure](bench)
    except Exception as error:  # noqa: BLE001 whatever it was, the other systems go on
        run["failed"] = str(error) if isinstance(error, Missing | RuntimeError) else repr(error)
        say(f"failed: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return run | {"taken_s": time.perf_counter() - begin}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
