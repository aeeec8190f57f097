"""The publisher that tunes itself, against fixed batch sizes, with a broker 70 ms away: `python -m bench.tuning`.

Response is from put to the read by the subscriber, for Poisson arrivals, the same for all variants at the same time.
At full speed every variant has the machine to itself, one after the other, in turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.far_proxy import far
from bench.processes import running_broker
from clarion import Publisher, Subscriber

DELAY_S = 0.070
LOADS = (1.75, 17.5, 35.0, 55.0)
VARIANTS: dict[str, dict[str, Any]] = {
    "auto": {},
    "recheck": {"tuning": "recheck"},
    "literal": {"tuning": "literal"},
    "fixed 1": {"tuning": "fixed", "batch_size": 1},
    "fixed 10": {"tuning": "fixed", "batch_size": 10},
    "fixed 50": {"tuning": "fixed", "batch_size": 50},
}
SWEEP = (10, 30, 100, 300, 1000, 2000, 4000, 8000)
_STAMP = struct.Struct("<d")


def response_times(seconds: float) -> dict[str, dict[str, float]]:
    """Return the mean response in ms by load and variant."""
    found: dict[str, dict[str, float]] = {}
    with running_broker() as broker, far(broker.url, DELAY_S) as url:
        for load in LOADS:
            lasts_s = max(seconds, 60 / load)
            trials = [_Trial(url, broker.url, f"{load} {name}", VARIANTS[name], load, lasts_s) for name in VARIANTS]
            for trial in trials:
                trial.start()
            for trial in trials:
                trial.join()
            found[f"{load:g}/s"] = dict(zip(VARIANTS, (trial.mean_ms() for trial in trials), strict=True))
            print(f"{load:g}/s: {_row(found[f'{load:g}/s'])}", file=sys.stderr, flush=True)
    return found


def _row(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.1f}" for name, value in values.items())


class _Trial(threading.Thread):
    """One publisher far away, its topic, and a subscriber beside the broker."""

    def __init__(
        self, far_url: str, near_url: str, topic: str, settings: dict[str, Any], load: float, lasts_s: float
    ) -> None:
        super().__init__()
        self._topic = topic
        self._load = load
        self._lasts_s = lasts_s
        self._reader = Subscriber(near_url, name="reader")
        self._reader.subscribe(topic)
        self._publisher = Publisher(far_url, **settings)
        self._publisher.put(topic, _STAMP.pack(0.0)).result(30)  # connected and registered
        self._responses_ms: list[float] = []

    def run(self) -> None:
        dice = random.Random(self._load)  # the same arrivals for all variants
        begin_s = time.monotonic()
        due_s, put = 0.0, 1
        reading = threading.Thread(target=self._read)
        reading.start()
        while (due_s := due_s + dice.expovariate(self._load)) < self._lasts_s:
            time.sleep(max(0.0, begin_s + due_s - time.monotonic()))
            self._publisher.put(self._topic, _STAMP.pack(time.monotonic()))
            put += 1
        self._expected = put
        self._publisher.close()
        reading.join()
        self._reader.close()

    _expected = 1 << 62

    def _read(self) -> None:
        got = 0
        while got < self._expected:
            for message in self._reader.get(self._topic, max_messages=1000, wait_s=1.0):
                (stamp_s,) = _STAMP.unpack(message.payload)
                if stamp_s:
                    self._responses_ms.append(1000 * (time.monotonic() - stamp_s))
                got += 1

    def mean_ms(self) -> float:
        """Return the mean response."""
        return statistics.fmean(self._responses_ms)


def full_speed(count: int, rounds: int, delay_s: float) -> dict[str, list[float]]:
    """Return messages a second of 100 B, put one by one with no think time, by batch size and for the tuned one."""
    variants: dict[str, dict[str, Any]] = {"auto": {}}
    variants |= {f"fixed {size}": {"tuning": "fixed", "batch_size": size} for size in SWEEP}
    found: dict[str, list[float]] = {name: [] for name in variants}
    payloads = [bytes(100)] * count
    with running_broker() as broker, far(broker.url, delay_s) as url, Subscriber(broker.url, name="reader") as reader:
        for turn in range(rounds):
            for name, settings in variants.items():
                topic = f"{name} {turn}"
                reader.subscribe(topic)
                share = payloads if settings.get("batch_size", 1000) >= 1000 else payloads[: count // 10]
                with Publisher(url, **settings) as publisher:
                    publisher.put(topic, b"first").result(30)
                    begin = time.perf_counter()
                    for payload in share:
                        publisher.put(topic, payload)
                    publisher.flush()
                    found[name].append(len(share) / (time.perf_counter() - begin))
                reader.unsubscribe(topic)
            print(f"round {turn + 1}: {_row({n: v[-1] for n, v in found.items()})}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure both, and print the ratios to the best fixed batch size."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning", description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals at each load")
    parser.add_argument("--count", type=int, default=1_000_000, help="messages at full speed")
    parser.add_argument("--rounds", type=int, default=3, help="at full speed")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    options = parser.parse_args()
    responses = response_times(options.seconds)
    print("mean response in ms, and auto in ratio to the best fixed batch size")
    for load, means in responses.items():
        best = min(value for name, value in means.items() if name.startswith("fixed"))
        print(f"  {load:>8}: {_row(means)}: {means['auto'] / best:.3f}")
    speeds = {}
    for delay_s in (DELAY_S, 0.0):
        rates = speeds[f"{delay_s * 1000:g} ms"] = full_speed(options.count, options.rounds, delay_s)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        best = max(value for name, value in medians.items() if name.startswith("fixed"))
        print(f"full speed, {delay_s * 1000:g} ms away, messages a second: {_row(medians)}")
        print(f"  auto in ratio to the best fixed batch size: {medians['auto'] / best:.3f}")
    if options.json:
        options.json.write_text(json.dumps({"responses_ms": responses, "full_speed_per_s": speeds}, indent=1))


if __name__ == "__main__":
    main()
