"""The help teaches: every command says what it does and shows how."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from clarion import __version__
from clarion.cli.main import app

_COMMANDS = [
    *("up", "config", "stats", "demo", "put", "get", "subscribe", "unsubscribe", "request", "browse"),
    *("topics", "topics list", "topics describe", "topics create", "topics configure", "topics purge", "topics delete"),
    *("subscriptions", "subscriptions list", "subscriptions seek", "subscriptions delete"),
    *("publish", "outbox", "outbox show", "outbox resend", "outbox drop"),
    *("simulate", "simulate publisher", "simulate trace", "simulate plot-trace", "reproduce", "reproduce publisher"),
    *("dead", "dead list", "dead replay", "dead drop", "state", "state get"),
]


def _help(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0
    return result.output


def test_the_help_lists_commands_and_exit_codes() -> None:
    text = _help()
    for command in {command.split()[0] for command in _COMMANDS}:
        assert f"│ {command} " in text
    assert "Exit codes" in text
    assert "130" in text


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_an_example_that_can_be_copied(command: str) -> None:
    text = _help(*command.split())
    assert "Example" in text
    assert f"   clarion {command.removesuffix(' list')}" in text


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"clarion {__version__}\n")
