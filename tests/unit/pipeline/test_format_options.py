"""Options of reading and writing are read, or refused by name."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from clarion.model.address import DEFAULT_URL
from clarion.model.errors import BadSettings, InvalidRequest
from clarion.pipeline.format_options import SinkOptions, SourceOptions
from clarion.pipeline.read_positions import EARLIEST, LATEST, Bounds, read_bounds
from clarion.pipeline.topic_table import NAMES


def test_a_topic_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLARION_URL", raising=False)
    options = SourceOptions.read({"topic": "alerts"})
    assert options == SourceOptions(DEFAULT_URL, (b"alerts",))
    assert (options.columns, options.timeout_s, options.fail_on_data_loss) == (NAMES, 60.0, True)
    monkeypatch.setenv("CLARION_URL", "tcp://there:1")
    assert SourceOptions.read({"topic": "alerts"}).url == "tcp://there:1"
    assert SourceOptions.read({"topic": "alerts", "url": "tcp://here:1"}).url == "tcp://here:1"


def test_all_options_are_read_in_any_case_and_travel_to_executors() -> None:
    options = SourceOptions.read({
        "URL": "tcp://h:1", "Topics": '["a,b", "c/*"]', "START": '{"a,b": 7}', "end": "latest", "maxrows": "5",
        "partitions": "3", "columns": "offset, payload", "cursor": "me", "failondataloss": "FALSE",
        "pushfilters": "true", "timeouts": "2.5",
    })  # fmt: skip
    wanted = SourceOptions(
        "tcp://h:1", (b"a,b", b"c/*"), Bounds(None, {b"a,b": 7}), Bounds(LATEST), 5, 3, ("offset", "payload"), b"me",
        False, True, 2.5,
    )  # fmt: skip
    assert options == wanted
    assert pickle.loads(pickle.dumps(options)) == wanted


def test_several_topics_are_a_list_each_once() -> None:
    assert SourceOptions.read({"topics": "a, b,b64:_w==,a"}).topics == (b"a", b"b", b"\xff")


def test_bounds_are_places_offsets_times_or_by_topic() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert read_bounds("start", " Earliest ") == Bounds(EARLIEST)
    assert read_bounds("start", "1200") == Bounds(1200)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00:00"):
        assert read_bounds("start", text) == Bounds(noon)
    by_topic = read_bounds("start", '{"a": 5, "b64:_w==": "2026-01-31T12:00Z", "c": "latest"}')
    assert [by_topic.of(topic, EARLIEST) for topic in (b"a", b"\xff", b"c", b"d")] == [5, noon, LATEST, EARLIEST]
    by_topic.check_named("start", [b"a", b"\xff", b"c"])
    with pytest.raises(InvalidRequest, match="option start: it names c, which is not among"):
        by_topic.check_named("start", [b"a", b"\xff"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give the option topic"),
        ({"topic": "a", "topics": "b"}, "not both"),
        ({"topic": ""}, "at least one character"),
        ({"topics": "a,,b"}, "at least one character"),
        ({"topics": "[]"}, "names no topic"),
        ({"topics": "[1]"}, "JSON list"),
        ({"topic": "a/#/b"}, "# stands at the end"),
        ({"topic": "b64:?"}, "not valid base64"),
        ({"topic": "a", "maxrow": "5"}, "no option maxrow for reading; there are url, topic, .*maxRows"),
        ({"topic": "a", "maxRows": "0"}, "maxRows: it is a number of 1 or more, not '0'"),
        ({"topic": "a", "partitions": "two"}, "partitions: it is a number"),
        ({"topic": "a", "timeoutS": "nan"}, "timeoutS: it is a number of seconds"),
        ({"topic": "a", "failOnDataLoss": "no"}, "failOnDataLoss: it is true or false"),
        ({"topic": "a", "columns": "offset,value"}, "columns: it names some of topic, offset"),
        ({"topic": "a", "columns": "offset,offset"}, "each once"),
        ({"topic": "a", "start": "yesterday"}, "option start: it is earliest, latest, an offset"),
        ({"topic": "a", "start": "-3"}, "option start"),
        ({"topic": "a", "end": "{"}, "option end: { is not a JSON object"),
        ({"topic": "a", "end": '{"a": -1}'}, "option end"),
        ({"topic": "a", "end": '{"b64:?": 1}'}, "option end: .* is not valid base64"),
        ({"topic": "a", "start": "0001-01-01T00:00:00+05:00"}, "option start: it is earliest, latest"),
        ({"topic": "a", "url": "localhost:5590"}, "'localhost:5590' is not an address to connect to"),
        ({"path": "alerts"}, r'\.option\("topic", \'alerts\'\)'),
        ({"topic": "a", "provider": "clarion", "owner": "x"}, "CREATE TEMPORARY VIEW"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises((InvalidRequest, BadSettings), match=said):
        SourceOptions.read(given)


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
