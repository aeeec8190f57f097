"""`clarion publish` says what is wrong with its options."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app


def test_without_the_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiohttp" or name.startswith("clarion.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = CliRunner().invoke(app, ["publish", "--from-http"])
    assert result.exit_code == 1
    assert 'pip install "clarion[web]"' in result.output


@pytest.mark.parametrize(
    ("wrong", "code", "told"),
    [
        ([], 2, "--from-http"),
        (["--from-http", "--listen", "8080"], 1, "HOST:PORT"),
        (["--from-http", "--listen", "a..b:0"], 1, "cannot listen at a..b:0"),
        (["--from-http", "--tuning", "best"], 1, "recheck"),
    ],
)
def test_a_command_that_cannot_work_says_why(wrong: list[str], code: int, told: str) -> None:
    result = CliRunner().invoke(app, ["publish", *wrong], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code
    assert told in result.output


def test_the_command_has_an_example_that_can_be_copied() -> None:
    result = CliRunner().invoke(app, ["publish", "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert "   clarion publish --from-http" in result.output
    assert "curl -d 'hello'" in result.output
