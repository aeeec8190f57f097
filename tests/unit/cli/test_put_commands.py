"""Lines of standard input are messages, however they come; `clarion publish` says what is wrong with its options."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from clarion.cli import put_commands
from clarion.cli.main import app
from clarion.cli.put_commands import split_lines
from clarion.model import errors


def _lines(*chunks: bytes) -> list[bytes]:
    return [line for lines, _ in split_lines(iter(chunks)) for line in lines]


def test_lines_lose_their_newline_and_the_last_needs_none() -> None:
    assert _lines(b"a\nb\n") == [b"a", b"b"]
    assert _lines(b"a\nb") == [b"a", b"b"]
    assert _lines(b"\n\r\n") == [b"", b"\r"]
    assert _lines() == []


@given(st.lists(st.sampled_from([b"a", b"\n", b"bc\nd", b"\n\n"])))
def test_pieces_do_not_matter(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert _lines(*chunks) == expected


def test_a_line_without_end_is_refused_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_commands, "MAX_LINE_BYTES", 10)
    with pytest.raises(errors.TooLarge, match="more than 10 bytes"):
        _lines(*[b"xxxx"] * 3)


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
