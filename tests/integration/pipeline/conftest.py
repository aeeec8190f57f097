"""One Spark session for all the tests of the pipeline: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from clarion.pipeline.session import start_session

FAST_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on this machine, with two cores."""
    session = start_session(
        "local[2]",
        name="clarion tests",
        settings={
            "spark.driver.extraJavaOptions": FAST_TO_START,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()
