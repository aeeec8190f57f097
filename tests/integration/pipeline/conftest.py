"""One Spark session for all the tests of the pipeline, as starting one takes seconds; processes of their own for
drivers; and a topic of numbers for both."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.integration.broker_process import ROOT

from clarion import Admin, Publisher
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


def own_process(program: str, *words: str) -> dict[str, Any]:
    """Return what `subprocess` takes to run a module, in a world that is the same for everybody."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLARION_", "SPARK_"))}
    world = kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return {"args": [sys.executable, "-m", program, *words], "cwd": ROOT, "env": world}


def put_numbers(url: str, topic: str, count: int) -> None:
    """Put the numbers from 0 on, as text, on a topic that keeps them."""
    with Admin(url) as admin, Publisher(url) as publisher:
        admin.configure_topic(topic, retention="keep")
        publisher.put_many(topic, [b"%d" % number for number in range(count)])
        publisher.flush(60)
