"""Run the workflow under a load that rises and falls, and draw its consumers and response over time.

    python examples/tiles/load_picture.py --out docs/pictures/workflow.png

Really runs `clarion workflow run`, on a broker of its own, and `submit_tiles.py` beside it; reads `clarion workflow
status` each second and the task events at the end. What was read is kept beside the picture's name with --keep, and
drawn again with --from. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from bench.machine import describe, in_a_line  # noqa: E402
from submit_tiles import LOAD, QUICK  # noqa: E402

from clarion import Admin  # noqa: E402
from clarion.model import task_events  # noqa: E402
from clarion.model.task_events import TASK_EVENTS_TOPIC, JobEnded  # noqa: E402
from clarion.reproduce.figure_style import saved  # noqa: E402

COLOURS = {"align": "#0072B2", "segment": "#D55E00", "focus": "#009E73", "count": "#CC79A7", "report": "#7f7f7f"}
STEERING = ["--window", "20s", "--cool-down", "5s", "--settle", "30s"]
OBSERVED = {"linewidth": 1, "linestyle": ":"}
RESPONSE_S, BUDGET = 1.5, 10
BIN_S = 5
BUSY = 1.0  # processes that are ready to run: above, the picture says so
CLARION = [sys.executable, "-m", "clarion"]


def measure(url: str, *, quick: bool) -> dict[str, Any]:
    """Run it all; return what was seen."""
    samples: list[dict[str, Any]] = []
    environment = {**os.environ, "CLARION_URL": url}
    goal = ["--response", f"{RESPONSE_S:g}s", "--budget", str(BUDGET), *STEERING]
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        run = [*CLARION, "workflow", "run", str(HERE / "tiles.py"), "--data", f"{folder}/data", "--json", *goal]
        with subprocess.Popen(run, env=environment, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            if not running.stdout.readline():
                sys.exit("the workflow did not start")
            watch = [*CLARION, "workflow", "status", "tiles", "--watch", "--json"]
            watching = None
            try:
                watching = subprocess.Popen(watch, env=environment, stdout=subprocess.PIPE, text=True)
                threading.Thread(target=_collect, args=(watching.stdout, samples), daemon=True).start()
                submit = [sys.executable, str(HERE / "submit_tiles.py"), *(["--quick"] if quick else [])]
                subprocess.run(submit, env=environment, check=True)
                ended = _ended(url)
            finally:
                if watching is not None:
                    watching.terminate()
                    watching.wait()
                running.terminate()
    return {
        "machine": in_a_line(describe()), "command": f"clarion workflow run tiles.py {' '.join(goal)}",
        "load": QUICK if quick else LOAD, "jobs": ended, "response_s": RESPONSE_S, "busy": busy,
        "samples": [{name: one[name] for name in ("at_us", "requested", "observed", "why")} for one in samples],
    }  # fmt: skip


def _collect(lines: IO[str] | None, samples: list[dict[str, Any]]) -> None:
    for line in lines or ():
        samples.append(json.loads(line))


def _ended(url: str) -> list[tuple[int, int]]:
    """Return when each job was asked for, and when it was done, from the task events."""
    with Admin(url) as admin:
        first = admin.describe_topic(TASK_EVENTS_TOPIC).first_offset
        events = [task_events.decode(message.payload) for message in admin.browse(TASK_EVENTS_TOPIC, first)]
    return [(one.submitted_at_us, one.at_us) for one in events if isinstance(one, JobEnded) and one.outcome == "done"]


def draw(seen: dict[str, Any], out: Path) -> None:
    """Draw what was seen: the load, consumers by task, and how long each job took."""
    begun_us = min(submitted for submitted, _ in seen["jobs"])
    submitted_s, ended_s = (np.array(times) / 1e6 - begun_us / 1e6 for times in zip(*sorted(seen["jobs"]), strict=True))
    last_s = max(float(ended_s.max()), sum(lasts_s for lasts_s, _ in seen["load"]))
    note = "One run. Segment sleeps 0.4 s, align and focus 0.2 s, for a device that each consumer would have."
    if seen["busy"] > BUSY:
        note += (
            f"\nOther work kept the machine busy: {seen['busy']:.0f} processes ready to run, on average, as it began."
        )
    sizes = {"size": (9, 7.6), "sharex": True, "height_ratios": [1, 2, 2]}
    with saved(out, 3, footer=f"{note}\n{seen['machine']}", **sizes) as (figure, axes):
        figure.suptitle(f"Tiles through align, segment, count and report\n{seen['command']}", fontsize=10)
        load, consumers, response = axes[:, 0]
        bins_s = np.arange(0, last_s + BIN_S, BIN_S)
        load.stairs(np.histogram(submitted_s, bins_s)[0] / BIN_S, bins_s, color="black", label="asked for")
        load.stairs(np.histogram(ended_s, bins_s)[0] / BIN_S, bins_s, color="#56B4E9", linestyle="--", label="done")
        load.set_ylabel(f"tiles a second\n(over {BIN_S} s)")
        _draw_consumers(consumers, [one for one in seen["samples"] if one["at_us"] > begun_us - 2e6], begun_us)
        took_s = ended_s - submitted_s
        response.plot(submitted_s, took_s, ".", markersize=3, color="#999999", label="one tile")
        within = [took_s[(submitted_s >= begin_s) & (submitted_s < begin_s + BIN_S)] for begin_s in bins_s[:-1]]
        means = [one.mean() if len(one) else np.nan for one in within]
        response.plot(bins_s[:-1] + BIN_S / 2, means, color="black", label=f"mean of those asked for in {BIN_S} s")
        goal_s = seen["response_s"]
        response.axhline(goal_s, color="#E69F00", linestyle="--", label=f"the mean asked for: {goal_s:g} s")
        response.set_ylabel("response, s\n(at when the tile was asked for)")
        response.set_xlabel("time, s")
        response.set_xlim(-2, last_s)
        for place in (load, response):
            place.set_ylim(0)
            place.legend(loc="upper right", fontsize=8)


def _draw_consumers(place: Any, samples: list[dict[str, Any]], begun_us: int) -> None:
    at_s = [(one["at_us"] - begun_us) / 1e6 for one in samples]
    for number, (task, colour) in enumerate(COLOURS.items()):
        apart = 0.06 * (2 - number)  # so that lines of one height are all seen
        for what, look in (("requested", {"linewidth": 1.8, "label": task}), ("observed", OBSERVED)):
            counts = [one[what].get(task, 0) + apart for one in samples]
            place.step(at_s, counts, where="post", color=colour, **look)
    place.plot([], [], color="black", **OBSERVED, label="living (else: requested)")
    place.set_ylabel("consumers of a task\n(processes)")
    place.yaxis.get_major_locator().set_params(integer=True)
    place.set_ylim(0, 1.2 * place.get_ylim()[1])
    place.legend(loc="upper center", ncols=len(COLOURS) + 1, fontsize=8)


def main() -> None:
    """Measure, or read what was measured, and draw."""
    parser = argparse.ArgumentParser(description="Draw consumers and response under a load that rises and falls.")
    parser.add_argument("--out", type=Path, required=True, help="the picture: .png")
    parser.add_argument("--url", default="tcp://127.0.0.1:5599", help="where a broker is started; nobody listens there")
    parser.add_argument("--quick", action="store_true", help="ten seconds of load")
    parser.add_argument("--keep", type=Path, help="write what was seen: .json")
    parser.add_argument("--from", dest="source", type=Path, help="draw what was seen before")
    given = parser.parse_args()
    seen = json.loads(given.source.read_text()) if given.source else measure(given.url, quick=given.quick)
    if given.keep:
        given.keep.write_text(json.dumps(seen))
    draw(seen, given.out)


if __name__ == "__main__":
    main()
