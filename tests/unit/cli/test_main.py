"""The help lists everything with examples, and what cannot be meant is told before anybody is asked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from clarion import __version__
from clarion.cli.main import app

_COMMANDS = [
    *("up", "config", "stats", "demo", "put", "get", "subscribe", "unsubscribe", "request", "browse"),
    *("topics", "topics list", "topics describe", "topics create", "topics configure", "topics purge", "topics delete"),
    *("subscriptions", "subscriptions list", "subscriptions seek", "subscriptions delete"),
    *("publish", "outbox", "outbox show", "outbox resend", "outbox drop"),
    *("simulate", "simulate publisher", "simulate trace", "simulate plot-trace", "reproduce", "reproduce publisher"),
    *("links", "links list", "links forget"),
    *("plan", "dead", "dead list", "dead replay", "dead drop", "state", "state get"),
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


def _all_commands(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """Return all commands and groups, as they are typed."""
    yield words
    for name, each in getattr(command, "commands", {}).items():
        yield from _all_commands(each, *words, name)


@pytest.mark.parametrize(
    "words", [pytest.param(words, id=" ".join(words)) for words in _all_commands(get_command(app))]
)
def test_no_help_has_lost_what_is_in_brackets(words: tuple[str, ...]) -> None:
    assert not re.search(r"(?<![\w.])\[\]", _help(*words)), "Rich takes [name] for markup: escape it"


def test_the_help_of_up_names_the_tables_of_links() -> None:
    assert "a table [[links]]" in _help("up")


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"clarion {__version__}\n")


@pytest.mark.parametrize(
    "words",
    [
        ["archive", "a", "--to", "lake"],
        ["compact", "lake"],
        ["replay", "lake"],
        ["rates", "a"],
        ["rates", "--lake", "lake"],
        ["latency", "a"],
    ],
)
@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch, words: list[str], missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = CliRunner().invoke(app, ["pipeline", *words])
    assert done.exit_code == 1
    assert 'pip install "clarion[spark]"' in done.stderr


def test_the_command_line_starts_without_any_extra() -> None:
    extras = "aiohttp apprise feedparser kubernetes lxml matplotlib numpy pyarrow pyspark simpy slixmpp yaml yarl"
    code = f"import sys; sys.modules.update(dict.fromkeys('{extras}'.split())); import clarion.cli.main"
    subprocess.run([sys.executable, "-c", code], check=True)


_NOWHERE = ("--url", "ipc:///nowhere/at/all", "--timeout", "0.05")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "configure", "orders"),
        ("topics", "create", "orders", "--max-age", "soon"),
        ("topics", "create", "orders", "--max-size", "big"),
        ("topics", "create", "orders", "--retention", "forever"),
        ("topics", "purge", "orders", "--below", "-1"),
        ("topics", "--sort", "colour"),
        ("subscriptions", "seek", "orders", "billing"),
        ("subscriptions", "seek", "orders", "billing", "--to", "yesterday"),
        ("subscribe", "orders", "--as", "billing", "--order", "key"),
        ("subscribe", "orders", "--as", "billing", "--lease", "30s"),
        ("subscribe", "orders", "--as", "billing", "--shared", "--order", "time"),
        ("browse", "orders", "--from", "new"),
        ("browse", "orders", "--from", "5", "--last", "5"),
        ("put", "orders", "x", "--deliver-at", "soon"),
        ("put", "orders", "x", "--ttl", "-1"),
        ("request", "orders", "x", "--wait", "long"),
        ("request", "orders", "x", "--json", "--no-newline"),
        ("dead", "drop", "orders", "--offset", "-1"),
        ("get", "orders", "--as", "billing", "--nack", "broken"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anybody_is_asked(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*arguments, *_NOWHERE])
    assert result.exit_code == 2
