"""A streaming query that notes what it read: `python -m tests.integration.pipeline.noting_query JSON`.

Each micro-batch becomes a file of its own, written over when it is repeated: so what is in all of them together is what
the source gave, each batch as it was recorded. It may be killed, JVM and all, after a batch is noted and before Spark
has recorded it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from clarion.pipeline import follow, start_session


def note_all(spark: SparkSession, order: dict[str, Any], *, fails_at: int = -1, dies_at: int = -1) -> None:
    """Read what there is now; fail, or die, in one micro-batch."""
    folder = Path(order["notes"])
    folder.mkdir(exist_ok=True)

    def note(batch: DataFrame, number: int) -> None:
        rows = [[row.topic, row.offset, row.payload.hex()] for row in batch.collect()]
        (folder / f"{number}.json").write_text(json.dumps(rows))
        if number == dies_at:
            os.killpg(os.getpid(), signal.SIGKILL)
        if number == fails_at:
            raise RuntimeError("this batch is noted, and fails")

    source = spark.readStream.format("clarion").options(**order["options"]).load()
    query = source.writeStream.foreachBatch(note).option("checkpointLocation", order["checkpoint"])
    follow(query.trigger(availableNow=True).start())


def read_notes(folder: Path) -> list[list[tuple[str, int, bytes]]]:
    """Return what each micro-batch held."""
    files = sorted(folder.glob("*.json"), key=lambda file: int(file.stem))
    return [
        [(topic, offset, bytes.fromhex(payload)) for topic, offset, payload in json.loads(file.read_text())]
        for file in files
    ]


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    note_all(start_session("local[2]", settings=asked["settings"]), asked, dies_at=asked["dies_at"])
