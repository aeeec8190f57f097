"""The data pipeline on Spark: `format("clarion")` to read and write topics as tables, and the jobs.

Needs PySpark (the extra `spark`) and Java 17 or newer. Names are looked up when first used: every Python worker of an
executor imports this package, and needs only the source or the sink of it.

`datasource` is what Spark knows. It takes its `format_options`, reads by `spark_source` and `read_positions`, and
writes by `spark_sink` and `packed_rows`; `topic_table` has the columns. `spark_session` runs Spark, and follows it.
`lake` and `jobs` are built on these.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.pipeline.datasource import ClarionDataSource, register
    from clarion.pipeline.jobs.archive import Archived, archive
    from clarion.pipeline.spark_session import NoJava, Progress, find_java, follow, ship, start_session

_WHERE = {
    "datasource": ("ClarionDataSource", "register"),
    "jobs.archive": ("Archived", "archive"),
    "spark_session": ("NoJava", "Progress", "find_java", "follow", "ship", "start_session"),
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
    for module, names in _WHERE.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
