"""Lines of standard input are messages, however they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli import put_commands
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
