"""Where a job's messages come from: a lake, or topics at the broker as they are now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.failures import asking
from clarion.cli.options import DEFAULT_TIMEOUT_S, read_name
from clarion.cli.pipeline.session import check_extra
from clarion.model.errors import PermanentError
from clarion.model.names import from_text, to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Topics = Annotated[
    list[bytes] | None,
    typer.Argument(parser=read_name, metavar="[TOPIC…]", help="Topics, or one pattern like 'alerts/#'."),
]
FromLake = Annotated[
    str | None, typer.Option("--lake", metavar="LAKE", help="Read from this lake instead of the broker.")
]


def names_of(topics: list[bytes] | None) -> list[str]:
    """Give topics in their text form."""
    return [to_text(topic) for topic in topics or ()]


def check_input(url: str, topics: list[str], lake: str | None) -> None:
    """Fail at once, before Spark is started for nothing, where there is nothing to read from."""
    check_extra()
    if lake is not None:
        from clarion.pipeline.lake.folder import LakeFolder
        from clarion.pipeline.lake.reading import find_files

        find_files(LakeFolder(lake), topics or None)
        return
    if not topics:
        raise PermanentError("which topics? Name them, or a lake with --lake")
    from clarion.pipeline.source.broker import find_topics

    with asking(url, DEFAULT_TIMEOUT_S) as admin:
        find_topics(admin, [from_text(topic) for topic in topics])


def check_place(lake: str) -> None:
    """Fail at once where a lake cannot lie."""
    from clarion.pipeline.lake.folder import LakeFolder

    LakeFolder(lake)


def check_output(path: Path | None, option: str) -> None:
    """Fail at once, before the work is done for nothing, where a file cannot be written."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise PermanentError(f"{path} cannot be written: is its folder there? Choose another for {option}")


def read_messages(
    spark: SparkSession, url: str, topics: list[str], lake: str | None, *, columns: str | None = None
) -> DataFrame:
    """Give the messages of topics: from a lake (all its topics, if none is named), or from the broker as it is now;
    there all columns are read unless told, while of a lake Spark reads those that it needs."""
    if lake is not None:
        from clarion.pipeline.lake import read_lake

        return read_lake(spark, lake, topics=topics or None)
    from clarion.pipeline.tables import read_topics

    return read_topics(spark, url, topics, **({} if columns is None else {"columns": columns}))


def has_topic(url: str, topic: str, lake: str | None) -> bool:
    """Tell whether there is a topic, in the lake or at the broker."""
    if lake is not None:
        from clarion.pipeline.lake.folder import LakeFolder

        return bool(LakeFolder(lake).files([topic]))
    from clarion.admin import Admin
    from clarion.model.errors import NoTopic

    with Admin(url) as admin:
        try:
            admin.describe_topic(from_text(topic))
        except NoTopic:
            return False
    return True


def check_broker(url: str) -> None:
    """Fail at once, before Spark is started for nothing, where no broker answers."""

    with asking(url, DEFAULT_TIMEOUT_S) as admin:
        admin.hello()
