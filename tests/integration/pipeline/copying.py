"""A driver of its own: `python -m tests.integration.pipeline.copying JSON` streams one topic into another.

It prints a line when its query runs, and another with the number of rows when it is done.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql.functions import col

from clarion.pipeline import follow, start_session


def copy_topic(order: dict[str, Any]) -> int:
    """Copy what is there now, by micro-batches; return the rows."""
    spark = start_session(order["master"], settings=order.get("settings", {}))
    source = spark.readStream.format("clarion").options(
        url=order["url"], topic=order["from"], start="earliest", maxRows=str(order["max_rows"]), partitions="2"
    )
    sink = source.load().select(col("payload"), col("key"), col("headers")).writeStream.format("clarion")
    query = (
        sink.options(url=order["url"], topic=order["to"], checkpointLocation=order["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    sys.stdout.write("running\n")
    sys.stdout.flush()
    done = follow(query)
    spark.stop()
    return done.rows


if __name__ == "__main__":
    sys.stdout.write(f"{copy_topic(json.loads(sys.argv[1]))}\n")
