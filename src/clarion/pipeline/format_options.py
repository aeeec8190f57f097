"""The options of `format("clarion")`: of reading, as `spark.read` and `spark.readStream` take them, and of writing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import msgspec

from clarion.model.address import DEFAULT_URL, check_connect
from clarion.model.errors import InvalidRequest
from clarion.model.names import from_text, is_good_pattern, is_pattern, to_text
from clarion.pipeline.read_positions import Bounds, read_bounds, read_name
from clarion.pipeline.topic_table import NAMES, message_columns
from clarion.session.connection import broker_url

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_FOR_READING = (
    "url", "topic", "topics", "start", "end", "maxRows", "partitions", "columns", "cursor", "failOnDataLoss",
    "pushFilters", "timeoutS",
)  # fmt: skip
_PATHS = ("path", "paths")  # of load(…), where it has an argument
_OF_TABLES = "provider"  # beside others, what a catalog adds
_FOR_WRITING = ("url", "topic", "compression", "timeoutS", "batchBytes", "writer", "epoch")
# What Spark itself hands on, beside what was meant for the sink.
_SPARKS = ("checkpointlocation", "path", "queryname")
_MOST_EPOCH = 1 << 62
_MOST_WRITER_BYTES = 900  # of the 1024 a writer's name may have
Value = TypeVar("Value")


@dataclass(frozen=True)
class SourceOptions:
    """What to read, from where, and how; `docs/pipeline.md` has the options in a table.

    Spark (4.3) plans a read of a Python source once for each `load()`: a DataFrame has the range of its first use, and
    what comes later is seen by another `load()`. With `pushFilters`, what the filters of one query left is likewise
    all that the next query on the same DataFrame gets, and each side of a union or a join of it with itself. So that is
    for a DataFrame that one query uses, once, and not the default; it also needs the session's setting
    `spark.sql.python.filterPushdown.enabled`, which `clarion.pipeline.register` turns on.
    """

    url: str
    topics: tuple[bytes, ...]  # names and patterns
    start: Bounds | None = None  # None: earliest in batch, latest in a stream
    end: Bounds | None = None
    max_rows: int | None = None
    partitions: int | None = None
    columns: tuple[str, ...] = NAMES
    cursor: bytes | None = None
    fail_on_data_loss: bool = True
    push_filters: bool = False
    timeout_s: float = 60.0

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read options whose names are in any case; InvalidRequest, or BadSettings of an
        address, where one is not known or makes no sense."""
        given = _by_lower_name(options)
        _refuse_tables_and_paths(given)
        return cls(
            url=_url(given),
            topics=_topics(given),
            start=_read(given, "start", lambda text: read_bounds("start", text)),
            end=_read(given, "end", lambda text: read_bounds("end", text)),
            max_rows=_read(given, "maxRows", lambda text: _count("maxRows", text)),
            partitions=_read(given, "partitions", lambda text: _count("partitions", text)),
            columns=_read(given, "columns", _columns) or NAMES,
            cursor=_read(given, "cursor", lambda text: read_name("cursor", text)),
            fail_on_data_loss=_flag(given, "failOnDataLoss", usual=True),
            push_filters=_flag(given, "pushFilters", usual=False),
            timeout_s=_read(given, "timeoutS", _seconds) or 60.0,
        )

    def schema(self) -> StructType:
        """Return the columns that are read."""
        return message_columns(self.columns)

    def check_schema(self, schema: StructType) -> None:
        """Raise InvalidRequest where Spark was told of other columns."""
        if schema != self.schema():
            raise InvalidRequest(
                f"a topic has columns of its own, so that none can be given: {self.schema().simpleString()}."
                " Leave .schema(…) out; the option columns chooses some of them"
            )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where and how rows are written. Names of options are as in Spark: in any case.

    `topic` takes all rows; without it, a column `topic` says where each one goes.
    `timeoutS` is how long the broker may be away.
    `writer` and `epoch` make the write of a table idempotent, as inside `foreachBatch` with the batch's id: epochs of a
    writer only grow, and the same one again, or an earlier one, writes nothing.
    """

    url: str = DEFAULT_URL
    topic: str | None = None
    compression: Literal["zstd"] | None = None
    timeout_s: float = 60.0
    batch_bytes: int = 2**20
    writer: str | None = None
    epoch: int | None = None
    checkpoint: str | None = None  # of a streaming query, where Spark tells it

    @classmethod
    def read(cls, options: Mapping[str, str]) -> Self:
        """Read what Spark hands on; raise InvalidRequest, or BadSettings of an address, for what is not known, or
        cannot be."""
        said = _by_lower_name(options)
        _refuse_unknown(said, "of writing", _FOR_WRITING, _SPARKS)
        if ("writer" in said) != ("epoch" in said):
            raise InvalidRequest("the options writer and epoch go together: they make a write idempotent")
        if "topic" in said:
            read_topic(said["topic"])
        return cls(
            url=_url(said),
            topic=said.get("topic"),
            compression=_compression(said.get("compression", "none")),
            timeout_s=_number("timeoutS", said.get("timeouts", "60"), 0.001, 86_400),
            batch_bytes=int(_number("batchBytes", said.get("batchbytes", str(2**20)), 1, 2**30)),
            writer=_read(said, "writer", _writer),
            epoch=_read(said, "epoch", lambda text: int(_number("epoch", text, 0, _MOST_EPOCH - 1))),
            checkpoint=said.get("checkpointlocation"),
        )


def given_options(**options: object) -> dict[str, str]:
    """Return options as Spark takes them, without those that are None."""
    return {name: str(value) for name, value in options.items() if value is not None}


def read_topic(text: str) -> bytes:
    """Read the name of the topic that rows are put on, in its text form."""
    try:
        topic = from_text(text)
    except ValueError as error:
        raise InvalidRequest(f"the topic's name cannot be read: {error}") from None
    if not topic:
        raise InvalidRequest("a topic's name has at least one byte")
    if is_pattern(topic):
        raise InvalidRequest(f"{to_text(topic)} stands for many topics; a row is put on one")
    return topic


def _refuse_tables_and_paths(given: Mapping[str, str]) -> None:
    if _OF_TABLES in given:
        raise InvalidRequest(
            "a topic cannot be a table of the catalog: Spark would read it without its options."
            " CREATE TEMPORARY VIEW … USING clarion OPTIONS (…) works"
        )
    _refuse_unknown(given, "for reading", _FOR_READING, _PATHS)
    path = given.get("path") or given.get("paths")
    if path:
        raise InvalidRequest(f'a topic is named by an option and not by load({path!r}): .option("topic", {path!r})')


def _by_lower_name(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in options.items()}


def _refuse_unknown(given: Mapping[str, str], doing: str, known: Sequence[str], besides: Sequence[str]) -> None:
    unknown = sorted(set(given) - {name.lower() for name in known} - set(besides))
    if unknown:
        raise InvalidRequest(f"there is no option {', '.join(unknown)} {doing}; there are {', '.join(known)}")


def _url(given: Mapping[str, str]) -> str:
    return check_connect(broker_url(given.get("url") or None))


def _read(given: Mapping[str, str], name: str, read: Callable[[str], Value]) -> Value | None:
    text = given.get(name.lower())
    return None if text is None else read(text)


def _topics(given: Mapping[str, str]) -> tuple[bytes, ...]:
    if ("topic" in given) == ("topics" in given):
        raise InvalidRequest("give the option topic, or the option topics, and not both")
    texts = [given["topic"]] if "topic" in given else _list(given["topics"])
    names = tuple(dict.fromkeys(read_name("topic", text) for text in texts))
    for name in names:
        if is_pattern(name) and not is_good_pattern(name):
            raise InvalidRequest(f"option topic: in a pattern # stands at the end alone, unlike in {to_text(name)}")
    return names


def _list(text: str) -> list[str]:
    if text.lstrip().startswith("["):
        try:
            found = msgspec.json.decode(text.encode(), type=list[str])
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidRequest(f"option topics: {text} is not a JSON list of names: {error}") from None
    else:
        found = [name.strip() for name in text.split(",")]
    if not found:
        raise InvalidRequest("option topics: it names no topic")
    return found


def _columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in NAMES]
    if unknown or len(set(names)) < len(names):
        raise InvalidRequest(f"option columns: it names some of {', '.join(NAMES)}, each once, unlike {text!r}")
    return names


def _count(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InvalidRequest(f"option {option}: it is a number of 1 or more, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequest(f"option timeoutS: it is a number of seconds, more than 0, not {text!r}")
    return seconds


def _flag(given: Mapping[str, str], option: str, *, usual: bool) -> bool:
    text = given.get(option.lower(), str(usual))
    if text.lower() not in ("true", "false"):
        raise InvalidRequest(f"option {option}: it is true or false, not {text!r}")
    return text.lower() == "true"


def _compression(text: str) -> Literal["zstd"] | None:
    if text.lower() == "zstd":
        return "zstd"
    if text.lower() == "none":
        return None
    raise InvalidRequest(f"compression is zstd or none, not {text!r}")


def _writer(text: str) -> str:
    if not 0 < len(text.encode()) <= _MOST_WRITER_BYTES:
        raise InvalidRequest(f"a writer's name has 1 to {_MOST_WRITER_BYTES} bytes, not {len(text.encode())}")
    return text


def _number(name: str, text: str, least: float, most: float) -> float:
    try:
        number: float = float(text) if name == "timeoutS" else int(text)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise InvalidRequest(f"{name} is a number from {least:g} to {most:g}, not {text!r}")
    return number
