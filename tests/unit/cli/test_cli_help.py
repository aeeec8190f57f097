"""The help teaches: every command says what it does and shows how."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from clarion import __version__
from clarion.cli.main import app

_COMMANDS = ["up", "config", "put", "get", "subscribe", "unsubscribe", "topics", "topics create", "stats", "demo"]


def _help(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0
    return result.output


def test_the_help_lists_commands_and_exit_codes() -> None:
    text = _help()
    for command in ("up", "put", "get", "subscribe", "unsubscribe", "topics", "stats", "config", "demo"):
        assert f"│ {command} " in text
    assert "Exit codes" in text
    assert "130" in text


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_command_has_an_example_that_can_be_copied(command: str) -> None:
    text = _help(*command.split())
    assert "Example" in text
    assert f"   clarion {command}" in text


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"clarion {__version__}\n")
