"""`clarion up`, `config` and `stats`: settings are told and read, failures end the process, counters are shown."""

from __future__ import annotations

import io
import logging
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
import typer
from rich.console import Console

import clarion.broker
from clarion.admin import PublisherReport
from clarion.broker.settings import BrokerSettings, load_settings
from clarion.cli.broker_commands import (
    as_plain,
    describe_settings,
    is_counter,
    rates,
    read_settings,
    serve,
    stats_tables,
    to_toml,
    toml_value,
)
from clarion.cli.output import print_json
from clarion.model.errors import BadSettings, StoreFailed


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.getswitchinterval()
    root.handlers.clear()
    handlers = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, _end),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),  # it may be ignored here
    }
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    root.handlers[:], root.level = before[:2]
    logging.captureWarnings(False)
    sys.setswitchinterval(before[2])


def _end(number: int, _frame: object) -> NoReturn:
    raise AssertionError(f"signal {number} would have ended the process, or not have been heard at all")


class _FailingBroker:
    error: Exception

    def __init__(self, settings: BrokerSettings) -> None:
        pass

    def handle_signals(self) -> None:
        pass

    def run(self, on_ready: Callable[[list[str]], None]) -> None:
        on_ready(["tcp://127.0.0.1:1"])
        raise self.error


@pytest.mark.parametrize(("error", "code"), [(StoreFailed("the disk failed"), 8), (KeyError("a mistake"), 1)])
def test_a_failure_while_running_is_logged_and_ends_the_process(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_FailingBroker, "error", error, raising=False)
    monkeypatch.setattr(clarion.broker, "Broker", _FailingBroker)
    with pytest.raises(typer.Exit) as ended:
        serve(BrokerSettings(), as_json=True)
    assert ended.value.exit_code == code
    out, err = capsys.readouterr()
    assert msgspec.json.decode(out)["event"] == "ready"
    last = msgspec.json.decode(err.splitlines()[-1])
    assert last["level"] == "critical"
    assert str(error).strip("'") in last["message"] + last.get("exception", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_store_is_opened_is_heard(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opening(_: BrokerSettings) -> NoReturn:
        signal.raise_signal(number)
        raise AssertionError("it was not")

    monkeypatch.setattr(clarion.broker, "Broker", opening)
    serve(BrokerSettings(), as_json=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "stopped before it was ready" in msgspec.json.decode(err)["message"]


def test_every_setting_is_told_with_a_meaning() -> None:
    rows = describe_settings(BrokerSettings(), {})
    assert [row.name for row in rows] == list(BrokerSettings.__dataclass_fields__)
    assert all(row.meaning and row.value == row.default and row.source == "default" for row in rows)


def test_where_a_value_comes_from_is_told() -> None:
    environment = {"CLARION_MAX_TOPICS": "7"}
    settings = load_settings(environment=environment, flags={"credit_s": 3.0})
    sources = {row.name: row.source for row in describe_settings(settings, environment)}
    assert sources["max_topics"] == "environment"
    assert sources["credit_s"] == "file"
    assert sources["data"] == "default"


def test_the_toml_gives_the_same_settings_back(tmp_path: Path) -> None:
    odd = tmp_path / 'a "quoted" \\ folder\x7f\t'
    settings = load_settings(environment={}, flags={"data": odd, "max_topics": 7, "credit_s": 0.5})
    file = tmp_path / "clarion.toml"
    file.write_text(to_toml(describe_settings(settings, {})))
    assert load_settings(file=file, environment={}, flags={}) == settings


def test_defaults_are_commented_out_and_are_valid_when_they_are_not() -> None:
    text = to_toml(describe_settings(BrokerSettings(), {}))
    assert tomllib.loads(text) == {}
    lines = [line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert set(tomllib.loads("\n".join(lines))) == set(BrokerSettings.__dataclass_fields__)


def test_texts_and_numbers_are_written_as_toml() -> None:
    for value in ("", "é\n", 5, 0.25, 1e300):
        assert tomllib.loads(f"it = {toml_value(value)}")["it"] == value


def test_settings_are_pairs_of_known_names() -> None:
    assert read_settings(["max_topics=5", "listen=tcp://*:1"]) == {"max_topics": "5", "listen": "tcp://*:1"}
    with pytest.raises(typer.BadParameter, match="name=value"):
        read_settings(["max_topics"])
    with pytest.raises(BadSettings, match="did you mean max_topics"):
        read_settings(["max_topic=5"])
    with pytest.raises(BadSettings, match="clarion config"):
        read_settings(["zzz=5"])


def a_report(**changes: Any) -> PublisherReport:
    values = {
        "topic": b"orders", "instance": bytes(range(16)), "policy": "recheck", "batch_size": 1200,
        "poll_interval_s": 0.0604, "load_per_s": 35.04, "capacity_per_s": 141.5, "credit": 2000, "pending": 3,
        "in_transfer": 14, "drops": 17, "stored": 900, "age_s": 1.5, **changes,
    }  # fmt: skip
    return msgspec.convert(values, PublisherReport)


def shown(values: dict[str, Any]) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=200).print(stats_tables(values))
    return screen.getvalue().splitlines()


def test_publishers_have_a_table_of_their_own() -> None:
    lines = shown({"commits": 5, "topics": 1, "publishers": [a_report()]})
    heading, row = (line.split() for line in lines[-2:])
    assert heading == ["publishers", "topic", "tuning", "N", "T_poll", "load/s", "capacity/s", "credit", "pending",
                       "drops"]  # fmt: skip
    assert row == ["00010203", "orders", "recheck", "1,200", "60.4", "ms", "35.0", "141.5", "2,000", "3", "17"]


def test_what_is_not_known_is_left_empty_and_names_are_not_markup() -> None:
    row = shown({"publishers": [a_report(topic=b"[red]", capacity_per_s=0, credit=-1)]})[-1]
    assert row.split() == ["00010203", "[red]", "recheck", "1,200", "60.4", "ms", "35.0", "3", "17"]


@pytest.mark.parametrize("values", [{"commits": 5}, {"commits": 5, "publishers": []}])
def test_without_publishers_nothing_is_said_of_them(values: dict[str, Any]) -> None:
    assert not any("publishers" in line for line in shown(values))


def test_json_has_all_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(as_plain({"commits": 5, "publishers": [a_report(topic=b"\xff")]}))
    told = msgspec.json.decode(capsys.readouterr().out)
    assert told["commits"] == 5
    assert told["publishers"] == [
        {
            **msgspec.structs.asdict(a_report()),
            "topic": "b64:_w==",
            "instance": "000102030405060708090a0b0c0d0e0f",
        }
    ]


def test_publishers_are_no_counter() -> None:
    assert not is_counter("publishers", [a_report()])


def test_only_counters_have_rates_and_a_restart_has_none() -> None:
    before = {"commits": 5, "topics": 1, "used_bytes": 10, "bytes_stored": 0, "broker": "00ff", "acks": 9}
    now = {"commits": 15, "topics": 9, "used_bytes": 90, "bytes_stored": 40, "broker": "00ff", "acks": 2}
    assert rates(before, now, 2.0) == {"commits": 5.0, "bytes_stored": 20.0}
    assert not is_counter("broker", "00ff")
