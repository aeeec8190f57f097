"""The options of writing, as `df.write` and `df.writeStream` take them, and the columns that are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from clarion.model.address import DEFAULT_URL, check_connect
from clarion.model.errors import InvalidRequest
from clarion.model.names import from_text, is_pattern, to_text
from clarion.pipeline.packed_rows import PAYLOAD_NAMES
from clarion.session.connection import broker_url

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_KNOWN = ("url", "topic", "compression", "timeoutS", "batchBytes", "writer", "epoch")
# What Spark itself hands on, beside what was meant for the sink.
_SPARKS = ("checkpointlocation", "path", "queryname")
_MOST_EPOCH = 1 << 62
_MOST_WRITER_BYTES = 900  # of the 1024 a writer's name may have


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
        said = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in _KNOWN}
        unknown = sorted(name for name in said if name not in known and name not in _SPARKS)
        if unknown:
            raise InvalidRequest(f"there is no option {', '.join(unknown)} of writing; there are {', '.join(_KNOWN)}")
        if ("writer" in said) != ("epoch" in said):
            raise InvalidRequest("the options writer and epoch go together: they make a write idempotent")
        return cls(
            url=check_connect(broker_url(said.get("url") or None)),
            topic=_read_topic_name(said["topic"]) if "topic" in said else None,
            compression=_read_compression(said.get("compression", "none")),
            timeout_s=_read_number("timeoutS", said.get("timeouts", "60"), 0.001, 86_400),
            batch_bytes=int(_read_number("batchBytes", said.get("batchbytes", str(2**20)), 1, 2**30)),
            writer=_read_writer(said["writer"]) if "writer" in said else None,
            epoch=int(_read_number("epoch", said["epoch"], 0, _MOST_EPOCH - 1)) if "epoch" in said else None,
            checkpoint=said.get("checkpointlocation"),
        )


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


def _read_topic_name(text: str) -> str:
    read_topic(text)
    return text


def _read_compression(text: str) -> Literal["zstd"] | None:
    if text.lower() == "zstd":
        return "zstd"
    if text.lower() == "none":
        return None
    raise InvalidRequest(f"compression is zstd or none, not {text!r}")


def _read_writer(text: str) -> str:
    if not 0 < len(text.encode()) <= _MOST_WRITER_BYTES:
        raise InvalidRequest(f"a writer's name has 1 to {_MOST_WRITER_BYTES} bytes, not {len(text.encode())}")
    return text


def _read_number(name: str, text: str, least: float, most: float) -> float:
    try:
        number: float = float(text) if name == "timeoutS" else int(text)
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise InvalidRequest(f"{name} is a number from {least:g} to {most:g}, not {text!r}")
    return number


LEFT_OUT = ("offset", "time", "publisher", "id")
_TAKEN = (
    "payload (binary or string; also called value), key (binary or string), headers (map of string to binary or"
    f" string) and topic (string); {', '.join(LEFT_OUT)} are left out"
)
_TEXTS = ("string", "char", "varchar")
_BYTES = ("binary", *_TEXTS)


def check_columns(schema: StructType, *, has_topic: bool) -> None:
    """Raise InvalidRequest unless rows of these columns can be written; `has_topic`: an option names a topic."""
    types: dict[str, DataType] = {}
    for field in schema.fields:
        name = field.name.lower()
        if name in types:
            raise InvalidRequest(f"there are two columns {field.name}; a message has one")
        if name not in (*PAYLOAD_NAMES, "key", "headers", "topic", *LEFT_OUT):
            raise InvalidRequest(f"column {field.name} is no part of a message. Written are: {_TAKEN}. Drop the others")
        types[name] = field.dataType
    found = [name for name in PAYLOAD_NAMES if name in types]
    if len(found) != 1:
        what = "both payload and value are" if found else "neither payload nor value is"
        raise InvalidRequest(f"{what} among the columns ({', '.join(types)}); a message has one payload")
    for name in (*found, "key"):
        if name in types and types[name].typeName() not in _BYTES:
            raise InvalidRequest(f"column {name} is {types[name].simpleString()}; {name} is binary or string: cast it")
    if "topic" in types and types["topic"].typeName() not in _TEXTS:
        raise InvalidRequest(f"column topic is {types['topic'].simpleString()}; the name of a topic is a string")
    if "topic" not in types and not has_topic:
        raise InvalidRequest("where do the rows go? Set the option topic, or give a column topic")
    if "headers" in types:
        _check_headers(types["headers"])


def _check_headers(found: DataType) -> None:
    kinds = (getattr(found, "keyType", None), getattr(found, "valueType", None))
    names = [None if kind is None else kind.typeName() for kind in kinds]
    if names[0] not in _TEXTS or names[1] not in _BYTES:
        raise InvalidRequest(
            f"column headers is {found.simpleString()}; it is map<string,binary> or map<string,string>"
        )
