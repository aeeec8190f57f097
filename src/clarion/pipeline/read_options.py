"""The options of reading, as `spark.read` and `spark.readStream` take them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from clarion.model.address import check_connect
from clarion.model.errors import InvalidRequest
from clarion.model.names import from_text, is_good_pattern, is_pattern, to_text
from clarion.pipeline.read_positions import Bounds, read_bounds
from clarion.pipeline.topic_table import NAMES, message_columns
from clarion.session.connection import broker_url

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KNOWN = (
    "url", "topic", "topics", "start", "end", "maxRows", "partitions", "columns", "cursor", "failOnDataLoss",
    "pushFilters", "timeoutS",
)  # fmt: skip
_PATHS = frozenset({"path", "paths"})  # of load(…), where it has an argument
_OF_TABLES = "provider"  # beside others, what a catalog adds
Value = TypeVar("Value")


@dataclass(frozen=True)
class SourceOptions:
    """What to read, from where, and how.

    | option | says |
    |---|---|
    | `url` | the broker; default: CLARION_URL, else the usual address |
    | `topic` | a name in text form, or a pattern: `alerts/*`, `alerts/#` |
    | `topics` | several, comma separated or a JSON list |
    | `start`, `end` | `earliest`, `latest`, an offset, an ISO time, or JSON by topic; a stream has no `end` |
    | `maxRows` | of a micro-batch, shared fairly by the topics |
    | `partitions` | how many; default: one a core |
    | `columns` | which to read, comma separated; Spark leaves none out by itself |
    | `cursor` | the subscription that follows a stream's checkpoint, so that retention waits for it |
    | `failOnDataLoss` | `false` goes on after a gap that retention left, or messages that expired; default `true` |
    | `pushFilters` | `true` reads only what a query's filters on topic, offset and time leave; default `false` |
    | `timeoutS` | for how long the broker may be away; default 60 |

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
        given = {name.lower(): str(value) for name, value in options.items()}
        _refuse_unknown(given)
        return cls(
            url=check_connect(broker_url(given.get("url") or None)),
            topics=_topics(given),
            start=_read(given, "start", lambda text: read_bounds("start", text)),
            end=_read(given, "end", lambda text: read_bounds("end", text)),
            max_rows=_read(given, "maxRows", lambda text: _count("maxRows", text)),
            partitions=_read(given, "partitions", lambda text: _count("partitions", text)),
            columns=_read(given, "columns", _columns) or NAMES,
            cursor=_read(given, "cursor", _cursor),
            fail_on_data_loss=_flag(given, "failOnDataLoss", usual=True),
            push_filters=_flag(given, "pushFilters", usual=False),
            timeout_s=_read(given, "timeoutS", _seconds) or 60.0,
        )

    def schema(self) -> StructType:
        """Give the columns that are read."""
        return message_columns(self.columns)

    def check_schema(self, schema: StructType) -> None:
        """Raise InvalidRequest where Spark was told of other columns."""
        if schema != self.schema():
            raise InvalidRequest(
                f"a topic has columns of its own, so that none can be given: {self.schema().simpleString()}."
                " Leave .schema(…) out; the option columns chooses some of them"
            )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    if _OF_TABLES in given:
        raise InvalidRequest(
            "a topic cannot be a table of the catalog: Spark would read it without its options."
            " CREATE TEMPORARY VIEW … USING clarion OPTIONS (…) works"
        )
    unknown = sorted(set(given) - {name.lower() for name in KNOWN} - _PATHS)
    if unknown:
        raise InvalidRequest(f"there is no option {', '.join(unknown)} for reading; there are {', '.join(KNOWN)}")
    path = given.get("path") or given.get("paths")
    if path:
        raise InvalidRequest(f'a topic is named by an option and not by load({path!r}): .option("topic", {path!r})')


def _read(given: Mapping[str, str], name: str, read: Callable[[str], Value]) -> Value | None:
    text = given.get(name.lower())
    return None if text is None else read(text)


def _topics(given: Mapping[str, str]) -> tuple[bytes, ...]:
    if ("topic" in given) == ("topics" in given):
        raise InvalidRequest("give the option topic, or the option topics, and not both")
    texts = [given["topic"]] if "topic" in given else _list(given["topics"])
    names = tuple(dict.fromkeys(_name("topic", text) for text in texts))
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


def _name(option: str, text: str) -> bytes:
    try:
        name = from_text(text)
    except ValueError as error:
        raise InvalidRequest(f"option {option}: {error}") from None
    if not name:
        raise InvalidRequest(f"option {option}: a name has at least one character")
    return name


def _cursor(text: str) -> bytes:
    return _name("cursor", text)


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
