"""Options and columns of a write: what is taken, and what is refused in words that help."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VarcharType,
)

from clarion.model.address import DEFAULT_URL
from clarion.model.errors import InvalidRequest
from clarion.pipeline.write_options import SinkOptions, check_columns


def test_names_of_options_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLARION_URL", raising=False)
    said = {
        "URL": "tcp://there:1", "topic": "b64:AP8=", "Compression": "ZSTD", "timeouts": "2.5", "batchBytes": "5000",
        "writer": "w", "EPOCH": "7", "checkpointlocation": "/c", "queryName": "q", "path": "/p",
    }  # fmt: skip
    found = SinkOptions.read(said)
    assert found == SinkOptions("tcp://there:1", "b64:AP8=", "zstd", 2.5, 5000, writer="w", epoch=7, checkpoint="/c")
    assert SinkOptions.read({}) == SinkOptions(DEFAULT_URL)
    assert SinkOptions.read({"compression": "none"}).compression is None


def test_the_address_comes_from_the_environment_where_no_option_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLARION_URL", "tcp://elsewhere:2")
    assert SinkOptions.read({}).url == "tcp://elsewhere:2"
    assert SinkOptions.read({"url": "tcp://there:1"}).url == "tcp://there:1"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"maxRows": "3"}, "no option maxrows .*batchBytes"),
        ({"topic": ""}, "at least one byte"),
        ({"topic": "alerts/#"}, "stands for many"),
        ({"topic": "b64:%"}, "not valid base64"),
        ({"compression": "lz4"}, "zstd or none, not 'lz4'"),
        ({"timeoutS": "soon"}, "timeoutS is a number .* not 'soon'"),
        ({"timeoutS": "nan"}, "timeoutS is a number"),
        ({"batchBytes": "0"}, "batchBytes is a number from 1 "),
        ({"batchBytes": "1.5"}, "batchBytes is a number"),
        ({"writer": "w"}, "go together"),
        ({"epoch": "1"}, "go together"),
        ({"writer": "w", "epoch": "-1"}, "epoch is a number from 0 "),
        ({"writer": "", "epoch": "1"}, "1 to 900 bytes, not 0"),
        ({"writer": "w" * 901, "epoch": "1"}, "1 to 900 bytes, not 901"),
    ],
)
def test_what_no_write_can_do_is_refused_and_said(said: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        SinkOptions.read(said)


BYTES, TEXT, WHOLE, SHORT = BinaryType(), StringType(), LongType(), IntegerType()


def table(**columns: DataType) -> StructType:
    found = StructType()
    for name, kind in columns.items():
        found = found.add(name, kind)
    return found


@pytest.mark.parametrize(
    "schema",
    [
        table(payload=BYTES),
        table(value=TEXT),
        table(Payload=VarcharType(10), KEY=TEXT, headers=MapType(TEXT, TEXT)),
        table(
            topic=TEXT, offset=WHOLE, time=TimestampType(), publisher=WHOLE, id=BYTES, key=BYTES,
            headers=MapType(TEXT, BYTES), payload=BYTES,
        ),
    ],
)  # fmt: skip
def test_what_was_read_can_be_written_and_strings_too(schema: StructType) -> None:
    check_columns(schema, has_topic=True)


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (table(payload=BYTES, price=DoubleType()), "column price is no part of a message"),
        (table(key=BYTES), "neither payload nor value"),
        (table(payload=BYTES, value=BYTES), "both payload and value"),
        (table(payload=BYTES, Payload=BYTES), "two columns Payload"),
        (table(payload=WHOLE), "column payload is bigint; .*cast it"),
        (table(payload=BYTES, key=SHORT), "column key is int"),
        (table(payload=BYTES, topic=BYTES), "column topic is binary; .* string"),
        (table(payload=BYTES, headers=TEXT), "column headers is string; it is map"),
        (table(payload=BYTES, headers=MapType(TEXT, SHORT)), "headers is map<string,int>"),
        (table(payload=BYTES, headers=MapType(BYTES, BYTES)), "headers is map<binary,binary>"),
    ],
)
def test_a_column_that_is_no_part_of_a_message_is_refused_by_name(schema: StructType, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        check_columns(schema, has_topic=True)


def test_rows_need_to_know_where_they_go() -> None:
    with pytest.raises(InvalidRequest, match="option topic, or give a column topic"):
        check_columns(table(payload=BYTES), has_topic=False)
    check_columns(table(payload=BYTES, topic=TEXT), has_topic=False)
