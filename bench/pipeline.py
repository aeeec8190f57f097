"""`python -m bench.pipeline`: Spark's source and sink in ratio to reading and writing the same rows as Parquet."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from bench.processes import BrokerProcess, running_broker
from clarion import Admin, Publisher
from clarion.pipeline import archive, start_session

CHUNK = 5000
Step = Callable[[], None]


def fill(url: str, rows: int, size: int) -> None:
    """Put the rows to be read: no two alike, or Parquet would keep each payload once."""
    dice = random.Random(1)
    with Admin(url) as admin:
        admin.configure_topic("bench", retention="keep")
    with Publisher(url) as publisher:
        for start in range(0, rows, CHUNK):
            publisher.put_many("bench", [dice.randbytes(size) for _ in range(start, min(start + CHUNK, rows))])


def rate(rows: int, step: Step) -> float:
    """Return rows a second of one step."""
    began_s = time.perf_counter()
    step()
    return rows / (time.perf_counter() - began_s)


def _scan(table: DataFrame) -> None:
    table.write.format("noop").mode("overwrite").save()


def _write_parquet(table: DataFrame, folder: Path) -> None:
    table.write.mode("overwrite").parquet(str(folder))


class Measurement:
    """The steps, each on the same rows."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, folder: Path, rows: int, size: int) -> None:
        self.spark, self.broker, self.folder, self.rows = spark, broker, folder, rows
        fill(broker.url, rows, size)
        _write_parquet(self.topic(), folder / "rows")
        self._archives = self._sinks = 0

    def topic(self, **options: Any) -> DataFrame:
        """Return the topic as a table."""
        reader = self.spark.read.format("clarion").option("url", self.broker.url).option("topic", "bench")
        return reader.options(**options).load()

    def parquet(self) -> DataFrame:
        """Return the same rows as Parquet."""
        return self.spark.read.parquet(str(self.folder / "rows"))

    def count(self) -> None:
        """Count the topic's rows; every column is read, since Spark prunes none."""
        assert self.topic().count() == self.rows

    def stream(self) -> None:
        """Stream the topic to nowhere."""
        reader = self.spark.readStream.format("clarion").option("url", self.broker.url).option("topic", "bench")
        table = reader.option("start", "earliest").load()
        writer = table.writeStream.format("noop").trigger(availableNow=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as checkpoint:
            writer.option("checkpointLocation", checkpoint).start().awaitTermination()

    def archive(self) -> None:
        """Archive the topic with the job."""
        self._archives += 1
        lake = self.folder / f"lake-{self._archives}"
        done = archive(self.spark, self.broker.url, ["bench"], str(lake), merge=False)
        assert done.rows == self.rows
        shutil.rmtree(lake)

    def sink(self) -> None:
        """Write the rows from Parquet to a topic."""
        self._sinks += 1
        writer = self.parquet().select("payload").write.format("clarion").mode("append")
        writer.option("url", self.broker.url).option("topic", f"sink-{self._sinks}").save()

    def clear_sink(self) -> None:
        """Return the disk back."""
        with Admin(self.broker.url) as admin:
            admin.delete_topic(f"sink-{self._sinks}")

    def round(self) -> dict[str, float]:
        """Measure every step once."""
        found = {
            "parquet scan": rate(self.rows, lambda: _scan(self.parquet())),
            "source scan": rate(self.rows, lambda: _scan(self.topic())),
            "source count": rate(self.rows, self.count),
            "source stream": rate(self.rows, self.stream),
            "parquet copy": rate(self.rows, lambda: _write_parquet(self.parquet(), self.folder / "copy")),
            "source archive": rate(self.rows, self.archive),
            "parquet write": rate(
                self.rows, lambda: _write_parquet(self.parquet().select("payload"), self.folder / "written")
            ),
            "sink write": rate(self.rows, self.sink),
        }
        self.clear_sink()
        return found


RATIOS = {
    "source scan": "parquet scan",
    "source count": "parquet scan",
    "source stream": "parquet scan",
    "source archive": "parquet copy",
    "sink write": "parquet write",
}


def measure(rows: int, size: int, rounds: int) -> dict[str, Any]:
    """Measure in turns after one round to warm up, so that a busy machine slows all alike."""
    spark = start_session(settings={"spark.driver.memory": "4g"})
    with running_broker() as broker, tempfile.TemporaryDirectory(prefix="clarion-bench-") as folder:
        measurement = Measurement(spark, broker, Path(folder), rows, size)
        measurement.round()
        found = [measurement.round() for _ in range(rounds)]
    spark.stop()
    return {
        "rows_per_s": {step: statistics.median(one[step] for one in found) for step in found[0]},
        "ratios": {
            step: [statistics.median(every), min(every), max(every)]
            for step, beside in RATIOS.items()
            for every in [[one[step] / one[beside] for one in found]]
        },
    }


def main() -> None:
    """Print what was measured."""
    asked = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    asked.add_argument("--rows", type=int, default=3_000_000)
    asked.add_argument("--size", type=int, default=100, help="bytes of a payload")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--json", action="store_true")
    told = asked.parse_args()
    measured = measure(told.rows, told.size, told.rounds)
    if told.json:
        print(json.dumps(measured))
        return
    print(f"{told.rows:,} rows of {told.size} B, {told.rounds} rounds, medians (lowest to highest)")
    for step, per_s in measured["rows_per_s"].items():
        line = f"{step:<16}{per_s:>12,.0f} rows/s"
        if step in RATIOS:
            middle, low, high = measured["ratios"][step]
            line += f"   {middle:.2f} ({low:.2f} to {high:.2f}) of the {RATIOS[step]}"
        print(line)


if __name__ == "__main__":
    main()
