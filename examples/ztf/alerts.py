"""Put ZTF alerts on a topic: one real packet, varied, in the rhythm of a night.

    python examples/ztf/alerts.py --alerts 5000

Needs fastavro. Each message is an Avro file with its schema, as ZTF sends it; its key is the object, its header
`clarion-job` the filter (zg, zr, zi), and its header `at_us` when it came, in µs since 1970, in the night's own time.
"""

from __future__ import annotations

import argparse
import copy
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np

from clarion import Admin, Publisher, TimedOut
from clarion.sim.generated_traces import ZtfNights, ztf_trace

PACKET = Path(__file__).with_name("alert.avro")
FILTERS = {1: b"zg", 2: b"zr", 3: b"zi"}
CUTOUTS = ("cutoutScience", "cutoutTemplate", "cutoutDifference")
DUSK_US = 1_790_000_000_000_000


def read_packet(path: Path = PACKET) -> tuple[Any, dict[str, Any]]:
    """Return the schema and the record of an alert packet."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        record = next(iter(reader))
        assert isinstance(record, dict)
        return fastavro.parse_schema(reader.writer_schema), record


def vary(record: dict[str, Any], number: int, dice: np.random.Generator, *, cutouts: bool) -> dict[str, Any]:
    """Return another alert: of one of 5,000 objects, somewhere else, as bright as chance has it."""
    alert = {name: copy.copy(value) for name, value in record.items()}
    alert["candid"] = record["candid"] + number
    alert["objectId"] = f"ZTF26{int(dice.integers(5000)):07d}"
    alert["candidate"] |= {
        "candid": alert["candid"],
        "fid": int(dice.choice([1, 2, 3], p=[0.45, 0.45, 0.1])),
        "magpsf": float(dice.normal(19.0, 1.2)),
        "ra": float(dice.uniform(0, 360)),
        "dec": float(dice.uniform(-30, 90)),
    }
    if not cutouts:
        alert |= dict.fromkeys(CUTOUTS)
    return alert


def pack(schema: Any, alert: dict[str, Any]) -> bytes:
    """Write an alert as an Avro file of its own."""
    file = io.BytesIO()
    fastavro.writer(file, schema, [alert])
    return file.getvalue()


def alerts(count: int, seed: int, *, cutouts: bool) -> Iterator[tuple[bytes, bytes, dict[str, bytes]]]:
    """Yield payload, key and headers of each alert, in order of time."""
    dice = np.random.default_rng(seed)
    hours = 1.0
    while (times_s := ztf_trace(np.random.default_rng(seed), hours, ZtfNights())["time_s"]).size < count:
        hours *= 2
    schema, record = read_packet()
    for number, time_s in enumerate(times_s[:count]):
        alert = vary(record, number, dice, cutouts=cutouts)
        headers = {
            "clarion-job": FILTERS[alert["candidate"]["fid"]],
            "at_us": str(DUSK_US + int(time_s * 1e6)).encode(),
        }
        yield pack(schema, alert), alert["objectId"].encode(), headers


def main() -> None:
    """Put the alerts."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--alerts", type=int, default=5_000)
    asked.add_argument("--url", default=os.environ.get("CLARION_URL", "tcp://127.0.0.1:5590"))
    asked.add_argument("--topic", default="ztf/alerts")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--cutouts", action="store_true", help="with images: 66 KB an alert instead of 26 KB")
    told = asked.parse_args()
    try:
        with Admin(told.url) as admin:
            admin.configure_topic(told.topic, retention="keep")
    except TimedOut:
        raise SystemExit(f"no broker answers at {told.url}; `clarion up` starts one") from None
    with Publisher(told.url) as publisher:
        for payload, key, headers in alerts(told.alerts, told.seed, cutouts=told.cutouts):
            publisher.put(told.topic, payload, key=key, headers=headers)
    print(f"{told.alerts:,} alerts are on {told.topic}")


if __name__ == "__main__":
    main()
