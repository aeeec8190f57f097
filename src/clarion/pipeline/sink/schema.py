"""Which columns are written: payload, key, headers and topic; those that only a broker can give are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clarion.model.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

PAYLOAD_NAMES = ("payload", "value")
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
