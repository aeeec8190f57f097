"""`clarion stats` shows what publishers told of themselves, beside the broker's counters."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from clarion.admin import PublisherReport
from clarion.cli.broker_commands import as_plain, is_counter, stats_tables
from clarion.cli.output import print_json


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
