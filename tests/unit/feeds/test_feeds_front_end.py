"""What the front end says where something is not followed, or nobody polls."""

from __future__ import annotations

import pytest

from clarion.feeds.deltas import Change, Delta
from clarion.feeds.front_end import alike, living
from clarion.feeds.ring_view import Beat, RingView


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a.example/news", "; what is followed of that host: http://a.example/news.xml, http://a.example/x"),
        ("https://A.example/x", "; what is followed of that host: http://a.example/x, http://a.example/news.xml"),
        ("http://a.exam/", ""),
    ],
)
def test_who_asks_for_a_page_hears_what_of_its_host_is_followed(url: str, said: str) -> None:
    assert alike(url, ["http://b.example/news", "http://a.example/x", "http://a.example/news.xml"]) == said


def test_nodes_that_all_fell_silent_together_are_not_said_to_live() -> None:
    view = RingView()
    for number, name in enumerate(("n1", "n2", "n1", "n2")):
        beat = Beat(node=name, incarnation="a", number=number, beat_s=2.0, base=16, poll_interval_s=60.0, scheme="lite")
        view.on_message(beat, (100 + number) * 1_000_000)
    assert list(living(view, 105.0)) == ["n1", "n2"]
    assert list(living(view, 90.0)) == ["n1", "n2"]  # a clock that is late
    assert not living(view, 200.0)


def test_an_entry_without_words_is_told_in_words() -> None:
    delta = Delta(url="http://a/", version=2, kind="delta", form="feed", title="T", changes=(Change(kind="new"),))
    assert delta.readable() == "T: 1 new\n+ (neither title nor text)\nhttp://a/"
