"""Standard input becomes lines, whatever pieces it comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli import put_commands
from clarion.cli.broker_clients import explained
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


def _explained(error: errors.ClarionError, **stats: object) -> errors.ClarionError:
    found: dict[str, object] = {"messages_stored": 0, "connected": True, "refusal": None, **stats}
    return explained(error, found, "tcp://here", b"my topic")


def test_nobody_subscribing_says_what_to_run() -> None:
    told = _explained(errors.NoSubscriber("x"))
    assert isinstance(told, errors.NoSubscriber)
    assert "clarion subscribe 'my topic' --as NAME" in str(told)


def test_no_broker_and_a_slow_one_and_a_full_one_are_told_apart() -> None:
    assert isinstance(_explained(errors.TimedOut("x"), connected=False), errors.Unreachable)
    assert isinstance(_explained(errors.BufferFull("x"), connected=False), errors.Unreachable)
    assert type(_explained(errors.TimedOut("x"))) is errors.TimedOut
    full = _explained(errors.TimedOut("x"), refusal=errors.TopicFull("the topic is full"), messages_stored=3)
    assert type(full) is errors.TopicFull
    assert "the topic is full" in str(full)
    assert "3 messages confirmed" in str(full)
