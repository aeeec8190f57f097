"""A session of somebody who never heard of `register`: `python -m tests.integration.pipeline.unregistered URL`.

It writes a table to a topic, reads it back, and prints as JSON what it found, and what it was told when it asked for
what there is not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession


def told(act: Callable[[], object]) -> str:
    """Return what Spark says when this fails."""
    try:
        act()
    except PySparkException as error:
        return str(error)
    return "nothing"


def run(url: str) -> dict[str, Any]:
    """Write, read, and go wrong."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()

    def topic(name: str, **options: str) -> DataFrame:
        return session.read.format("clarion").options(url=url, topic=name, **options).load()

    numbers = session.range(100).selectExpr("CAST(id AS STRING) AS payload")
    numbers.write.format("clarion").options(url=url, topic="found").mode("append").save()
    strange = numbers.selectExpr("payload", "1 AS colour")
    found = {
        "rows": topic("found").count(),
        "filtered": topic("found", pushFilters="true").where("offset >= 90").count(),
        "no topic": told(topic("missing").count),
        "no option": told(lambda: topic("found", colour="red")),
        "no column": told(strange.write.format("clarion").options(url=url, topic="found").mode("append").save),
    }
    session.stop()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(*sys.argv[1:])) + "\n")
