"""One Spark session for all the tests of the pipeline: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from clarion.pipeline.spark_session import start_session

_QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def jvms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have JVMs start quickly, and keep temporary files where they go with the tests: who is killed leaves them."""
    os.environ["JDK_JAVA_OPTIONS"] = f"{_QUICK_TO_START} -Djava.io.tmpdir={tmp_path_factory.mktemp('jvm')}"
    yield
    del os.environ["JDK_JAVA_OPTIONS"]


@pytest.fixture(scope="session")
def spark(jvms: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on this machine, with two cores."""
    session = start_session(
        "local[2]",
        name="clarion tests",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield session
    session.stop()
