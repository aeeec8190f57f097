"""Patterns over topics that look like paths."""

from __future__ import annotations

import pytest

from clarion.model.names import is_good_pattern, is_pattern, matches


@pytest.mark.parametrize(
    ("pattern", "topic", "due"),
    [
        (b"alerts/*", b"alerts/fire", True),
        (b"alerts/*", b"alerts/fire/north", False),
        (b"alerts/*", b"alerts", False),
        (b"alerts/#", b"alerts", True),
        (b"alerts/#", b"alerts/fire/north", True),
        (b"alerts/#", b"alertsx/fire", False),
        (b"*/north", b"fire/north", True),
        (b"*/north", b"fire/south", False),
        (b"#", b"anything/at/all", True),
        (b"#", b"$dead/alerts", False),
        (b"*/alerts", b"$dead/alerts", False),
        (b"$dead/#", b"$dead/alerts", True),
        (b"alerts/*", b"alerts/", True),
    ],
)
def test_which_topics_a_pattern_stands_for(pattern: bytes, topic: bytes, due: bool) -> None:
    assert matches(pattern, topic) is due


def test_only_whole_parts_are_wild() -> None:
    assert is_pattern(b"alerts/*")
    assert is_pattern(b"#")
    assert not is_pattern(b"c#/alerts*")
    assert is_good_pattern(b"alerts/#")
    assert not is_good_pattern(b"alerts/#/north")
