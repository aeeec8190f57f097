"""Where a job's messages come from: a lake, or topics at the broker as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.failures import asking
from clarion.cli.options import DEFAULT_TIMEOUT_S, read_name
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


def read_messages(spark: SparkSession, url: str, topics: list[str], lake: str | None) -> DataFrame:
    """Give the messages of topics: from a lake (all its topics, if none is named), or from the broker as it is now."""
    if lake is not None:
        from clarion.pipeline.lake import read_lake

        return read_lake(spark, lake, topics=topics or None)
    if not topics:
        raise PermanentError("which topics? Name them, or a lake with --lake")
    from clarion.pipeline.tables import read_topics

    return read_topics(spark, url, topics)


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
    from clarion.admin import Admin

    with asking(url), Admin(url, timeout_s=DEFAULT_TIMEOUT_S) as admin:
        admin.hello()
