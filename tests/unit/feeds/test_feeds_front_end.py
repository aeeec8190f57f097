"""What the front end says where something is not followed, or nobody polls."""

from __future__ import annotations

import pytest

from clarion.feeds.deltas import Change, Delta
from clarion.feeds.front_end import alike


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


def test_an_entry_without_words_is_told_in_words() -> None:
    delta = Delta(url="http://a/", version=2, kind="delta", form="feed", title="T", changes=(Change(kind="new"),))
    assert delta.readable() == "T: 1 new\n+ (neither title nor text)\nhttp://a/"
