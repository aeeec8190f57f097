"""The data pipeline on Spark: `format("clarion")` to read and write topics as tables, and the jobs.

Needs PySpark (the extra `spark`) and Java 17 or newer. Names are looked up when first used: every Python worker of an
executor imports this package, and needs only the source or the sink of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clarion.pipeline.datasource import ClarionDataSource
    from clarion.pipeline.java import NoJava, find_java
    from clarion.pipeline.jobs.archive import Archived, archive
    from clarion.pipeline.progress import Progress, follow
    from clarion.pipeline.registering import register
    from clarion.pipeline.session import start_session
    from clarion.pipeline.shipping import ship

_WHERE = {
    "ClarionDataSource": "datasource",
    "NoJava": "java",
    "find_java": "java",
    "Archived": "jobs.archive",
    "archive": "jobs.archive",
    "Progress": "progress",
    "follow": "progress",
    "register": "registering",
    "start_session": "session",
    "ship": "shipping",
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
