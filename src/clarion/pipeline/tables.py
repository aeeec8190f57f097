"""Topics as tables, in one call."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession


def read_topics(spark: SparkSession, url: str, topics: Sequence[str], **options: str | int | float | bool) -> DataFrame:
    """Give what topics (names in their text form, or patterns) hold now, with any options of the source."""
    return spark.read.format("clarion").options(url=url, topics=json.dumps(list(topics)), **options).load()
