"""One Spark session for all the tests of the pipeline: starting one takes seconds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from clarion.pipeline.session import start_session

FAST_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session", autouse=True)
def jvm_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have every JVM keep its temporary files where they go with the tests: those that are killed leave them."""
    os.environ["JDK_JAVA_OPTIONS"] = f"-Djava.io.tmpdir={tmp_path_factory.mktemp('jvm')}"
    yield
    del os.environ["JDK_JAVA_OPTIONS"]


@pytest.fixture(scope="session")
def spark(jvm_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
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
