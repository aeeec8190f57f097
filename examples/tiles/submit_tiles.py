"""Ask for tiles at a rate that rises and falls, wait for what comes of them, and compare it with the truth.

    python examples/tiles/submit_tiles.py            # three minutes; --quick: ten seconds

Images are made and stored before the load begins, and each is asked for many times: jobs carry references.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from synthetic_tiles import drift_of, make_field
from tiles import flow, written

from clarion.workflow import Jobs

LOAD = ((30, 2), (60, 8), (90, 2))  # seconds, tiles a second
QUICK = ((3, 2), (4, 6), (3, 2))
FIELDS, ROUNDS = 12, 4


class Known(NamedTuple):
    """A stored tile, and the truth of it."""

    payload: dict[str, str]
    cells: int
    drift: tuple[int, int]


def store_tiles(jobs: Jobs, fields: int, dice: np.random.Generator) -> list[Known]:
    """Make and store tiles: of each field an image to compare with, and one for each round."""
    found = []
    for number in range(fields):
        field = make_field(dice)
        reference = jobs.store(written(field.image(dice)))
        for turn in range(ROUNDS):
            drift = drift_of(dice)
            image = jobs.store(written(field.image(dice, drift)))
            payload = {"tile": f"field {number}, round {turn}", "image": image, "reference": reference}
            found.append(Known(payload, len(field.cells), drift))
    return found


def arrivals(load: tuple[tuple[float, float], ...], dice: np.random.Generator) -> Iterator[float]:
    """Yield when tiles come, in seconds from the beginning: at random, so many a second."""
    begin_s = 0.0
    for lasts_s, per_s in load:
        at_s = begin_s + float(dice.exponential(1 / per_s))
        while at_s < begin_s + lasts_s:
            yield at_s
            at_s += float(dice.exponential(1 / per_s))
        begin_s += lasts_s


def wrong(known: Known, result: dict[str, Any]) -> str:
    """Return what a report has wrong, in words; nothing where it is right."""
    truth = {"cells": known.cells, "drift": list(known.drift)}
    told = {name: result[name] for name in truth}
    return "" if told == truth else f"{known.payload['tile']}: {told}, and in truth {truth}"


def main() -> int:
    """Submit, wait, compare."""
    parser = argparse.ArgumentParser(description="Ask for tiles at a rate that rises and falls, and check the results.")
    parser.add_argument("--url", help="the broker; CLARION_URL, or the usual one")
    parser.add_argument("--quick", action="store_true", help="ten seconds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    dice = np.random.default_rng(given.seed)
    load = QUICK if given.quick else LOAD
    with Jobs(given.url, flow.name) as jobs:
        known = store_tiles(jobs, 3 if given.quick else FIELDS, dice)
        print(
            f"{len(known)} tiles are stored; load: {', '.join(f'{rate}/s for {s} s' for s, rate in load)}", flush=True
        )
        asked: list[tuple[str, Known]] = []
        begun_s = time.monotonic()
        for at_s in arrivals(load, dice):
            time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
            one = known[len(asked) % len(known)]
            asked.append((jobs.submit("tile", one.payload), one))
        print(
            f"{len(asked)} jobs were asked for in {time.monotonic() - begun_s:.0f} s; waiting for the rest", flush=True
        )
        results = jobs.results([job_id for job_id, _ in asked], wait_s=600)
    problems = [text for (_, one), result in zip(asked, results, strict=True) if (text := wrong(one, result))]
    for text in problems:
        print(f"wrong: {text}")
    print(f"{len(results)} reports, {sum(result['cells'] for result in results)} cells, {len(problems)} reports wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
