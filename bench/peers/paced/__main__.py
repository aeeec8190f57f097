"""`python -m bench.peers.paced`: many topics at an ordinary pace, Clarion beside its peers, on this machine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from bench.machine import describe
from bench.peers.__main__ import look_for, say
from bench.peers.measures import Figures
from bench.peers.paced.loads import ENTRANTS, LONG, ONCE, ROWS, Load, sessions_of, takes_part
from bench.peers.paced.pages import write_report
from bench.peers.paced.sessions import do_loads
from bench.peers.paced.soak import soak
from bench.peers.paced.verdicts import keeps_up, why_behind
from bench.peers.servers import Missing
from bench.peers.systems import System


def main() -> None:
    """Measure, and write the report."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that servers end, too
    wanted = options.systems or (["clarion"] if options.soak is not None else None)
    chosen = [system for system in ENTRANTS if wanted is None or system.name in wanted]
    versions, missing = look_for(chosen)
    present = [system for system in chosen if system.name in versions]
    options.out.mkdir(parents=True, exist_ok=True)
    if options.soak is not None:
        for system in present:
            with _folders() as folders:
                print(soak(system, folders, options))
        return
    rows = options.rows or [row for row in ROWS if options.rounds > 1 or row not in LONG]
    results: dict[str, Any] = {
        "machine": describe(), "rounds": 0, "seconds": options.seconds, "taken_s": 0.0, "versions": versions,
        "missing": missing, "runs": [],
    }  # fmt: skip
    begin_s = time.monotonic()
    try:
        for turn in range(options.rounds):
            results["rounds"] = turn + 1
            for loads in sessions_of([row for row in rows if turn == 0 or row not in ONCE]):
                for system in Random(f"{loads[0].name} {turn}").sample(present, len(present)):
                    _run(system, [load for load in loads if takes_part(system, load)], turn, options, results["runs"])
                results["taken_s"] = time.monotonic() - begin_s
                _write(results, options.out)
    except KeyboardInterrupt:
        say("stopped; the report has what was measured until now")
        _write(results, options.out)
        raise SystemExit(130) from None
    print(json.dumps(results) if options.json else (options.out / "paced.md").read_text())


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, not {text}")
    return int(text)


def _above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"a number above 0, not {text}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.paced", description=__doc__)
    parser.add_argument(
        "--rounds", type=_at_least_one, default=3, help=f"with one, {' and '.join(LONG)} only if --rows has them"
    )
    parser.add_argument("--seconds", type=_above_zero, default=3.0, help="how long a row of the table is put")
    parser.add_argument("--rows", nargs="*", metavar="ROW", choices=ROWS, help=", ".join(ROWS))
    parser.add_argument("--systems", nargs="*", metavar="SYSTEM", choices=[system.name for system in ENTRANTS],
                        help=", ".join(system.name for system in ENTRANTS))  # fmt: skip
    parser.add_argument("--soak", type=_above_zero, metavar="MINUTES", help="instead: so long at 0.8 of saturation, "
                        "looking for what grows (of Clarion, unless --systems says otherwise)")  # fmt: skip
    parser.add_argument("--topics", type=_at_least_one, default=2000, help="of the soak alone")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder of the report (bench/results)")
    parser.add_argument("--json", action="store_true", help="print all figures instead of the report")
    return parser


def _run(system: System, loads: list[Load], turn: int, options: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Have a system do loads that belong together."""
    if not loads:
        return
    os.sync()  # what the one before left is not for this one to write
    with _folders() as folders:
        for load, found, taken_s in do_loads(system, folders, loads, options.seconds):
            run: dict[str, Any] = {"system": system.name, "measure": load.name, "round": turn, "taken_s": taken_s}
            if isinstance(found, Exception):
                run["failed"] = str(found) if isinstance(found, Missing | RuntimeError) else repr(found)
            else:
                run["figures"] = found
            runs.append(run)
            say(f"round {turn + 1} of {options.rounds}: {load.name}: {system.title}: {_in_a_line(load, found)}")


def _in_a_line(load: Load, found: Figures | Exception) -> str:
    if isinstance(found, Exception):
        return f"failed: {found}"
    if not load.per_s:
        return f"{found['per_s']:,.0f}/s to each, server {found['server_cpu']:.2f} of a core"
    behind = "" if keeps_up(found) else f", falls behind: {why_behind(found)}"
    return (
        f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f}, server {found['server_cpu']:.2f} of a core{behind}"
    )


@contextmanager
def _folders() -> Iterator[Iterator[Path]]:
    """Return folders for servers, as many as are asked for; all are removed afterwards."""
    made: list[Path] = []

    def make() -> Iterator[Path]:
        while True:
            made.append(Path(tempfile.mkdtemp(prefix="clarion-paced-")))
            yield made[-1]

    try:
        yield make()
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def _write(results: dict[str, Any], out: Path) -> None:
    (out / "paced.json").write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, out)


if __name__ == "__main__":
    main()
