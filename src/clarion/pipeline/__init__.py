"""The data pipeline on Spark: `format("clarion")` to read and write topics as tables, and the jobs.

Needs PySpark (the extra `spark`) and Java 17 or newer. Names are looked up when first used: every Python worker of an
executor imports this package, and needs only the source or the sink of it.

`datasource` is what Spark knows. It takes its `format_options`, reads by `spark_source` and
`read_positions`, and writes by `spark_sink` and `packed_rows`; `topic_table` has the columns. `spark_session` and
`spark_queries` run and follow Spark, `java` finds what it runs on. `lake` and `jobs` are built on these.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.pipeline.datasource import ClarionDataSource, register
    from clarion.pipeline.java import NoJava, find_java
    from clarion.pipeline.jobs.archive import Archived, archive
    from clarion.pipeline.spark_queries import Progress, follow
    from clarion.pipeline.spark_session import ship, start_session

_WHERE = {
    "ClarionDataSource": "datasource",
    "NoJava": "java",
    "find_java": "java",
    "Archived": "jobs.archive",
    "archive": "jobs.archive",
    "Progress": "spark_queries",
    "follow": "spark_queries",
    "register": "datasource",
    "start_session": "spark_session",
    "ship": "spark_session",
}

__all__ = [
    "Archived",
    "ClarionDataSource",
    "NoJava",
    "Progress",
    "archive",
    "find_java",
    "follow",
    "register",
    "ship",
    "start_session",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
