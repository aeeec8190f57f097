"""`clarion outbox`: what people see of an outbox, and what they decide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clarion.cli.outbox_commands import outbox_app
from clarion.publisher.outbox.ledger_topics import Changes, LedgerRow, Row
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.wire.batch import encode_batch

runner = CliRunner()


@pytest.fixture
def outbox(tmp_path: Path) -> str:
    """An outbox in which a message waits and two were set aside."""
    file = OutboxFile(tmp_path / "outbox")
    rows = [
        Row(stamp, 1, count, 0, b"", encode_batch([b"x"] * count, broker=0, publisher=0, stamp=stamp, number=0))
        for stamp, count in ((1000, 2), (2000, 1))
    ]
    file.commit(Changes(rows=rows, last_stamp=2000, topics={1: LedgerRow(1, b"news", 5, 1, 1, 0)}))
    file.commit(Changes(quarantine_first=[(1, 1, "the broker forgot us")], topics={1: LedgerRow(1, b"news")}))
    file.close()
    return str(tmp_path / "outbox")


def test_show_tells_what_waits_and_what_was_set_aside_and_why(outbox: str) -> None:
    shown = runner.invoke(outbox_app, ["show", outbox])
    assert shown.exit_code == 0
    assert "news" in shown.output
    assert "the broker forgot us" in shown.output
    assert f"clarion outbox resend {outbox}" in shown.output
    told = json.loads(runner.invoke(outbox_app, ["show", outbox, "--json"]).output)
    assert [(row["topic"], row["messages"], row["batches_perhaps_sent"]) for row in told["waiting"]] == [("news", 1, 0)]
    assert [(row["topic"], row["messages"], row["reason"]) for row in told["aside"]] == [
        ("news", 2, "the broker forgot us")
    ]


@pytest.mark.parametrize("command", ["resend", "drop"])
def test_nothing_is_decided_without_a_yes(outbox: str, command: str) -> None:
    assert runner.invoke(outbox_app, [command, outbox]).exit_code == 2
    assert len(json.loads(runner.invoke(outbox_app, ["show", outbox, "--json"]).output)["aside"]) == 1


def test_resend_has_what_was_set_aside_wait_again(outbox: str) -> None:
    told = runner.invoke(outbox_app, ["resend", outbox, "--yes", "--json"])
    assert json.loads(told.output) == {"outbox": outbox, "resent": 2}
    shown = json.loads(runner.invoke(outbox_app, ["show", outbox, "--json"]).output)
    assert [(row["messages"], row["batches"]) for row in shown["waiting"]] == [(3, 2)]
    assert shown["aside"] == []
    assert "nothing was set aside" in runner.invoke(outbox_app, ["resend", outbox]).output


def test_drop_forgets_what_was_set_aside_and_nothing_else(outbox: str) -> None:
    assert "2 messages forgotten" in runner.invoke(outbox_app, ["drop", outbox, "--yes"]).output
    shown = json.loads(runner.invoke(outbox_app, ["show", outbox, "--json"]).output)
    assert [row["messages"] for row in shown["waiting"]] == [1]
    assert json.loads(runner.invoke(outbox_app, ["drop", outbox, "--json"]).output)["dropped"] == 0


def test_what_is_no_outbox_is_an_error_in_one_line(tmp_path: Path) -> None:
    for command in ("show", "resend", "drop"):
        told = runner.invoke(outbox_app, [command, str(tmp_path / "missing"), "--json"])
        assert told.exit_code == 1
        assert json.loads(told.stderr)["error"]["code"] == "OutboxUnusable"
