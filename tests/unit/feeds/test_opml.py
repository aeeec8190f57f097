"""Lists of subscriptions in OPML: folders, repeats, what readers write, and what is refused."""

from __future__ import annotations

import pytest

from clarion.feeds.opml import BadOpml, OpmlEntry, read_opml, write_opml

ENTRIES = [
    OpmlEntry("https://a.example/feed", "A & B", "News/Local"),
    OpmlEntry("https://b.example/feed", "", "News"),
    OpmlEntry("https://c.example/?a=1&b=2", 'He said "no"', ""),
]


def opml(body: str) -> bytes:
    return f'<?xml version="1.0"?><opml version="1.0"><head/><body>{body}</body></opml>'.encode()


def test_what_is_written_is_read_again() -> None:
    assert read_opml(write_opml(ENTRIES)) == ENTRIES
    assert read_opml(write_opml([])) == []


def test_outlines_within_outlines_are_folders() -> None:
    body = '<outline text="A"><outline title="B"><outline text="t" xmlUrl="http://x/"/></outline></outline><outline xmlUrl="http://y/"/>'
    assert read_opml(opml(body)) == [OpmlEntry("http://x/", "t", "A/B"), OpmlEntry("http://y/")]


def test_a_subscription_that_is_in_two_folders_is_one() -> None:
    body = '<outline text="A"><outline xmlUrl="http://x/f"/></outline><outline text="B"><outline xmlUrl="HTTP://X/f"/></outline>'
    assert read_opml(opml(body)) == [OpmlEntry("http://x/f", "", "A")]


def test_the_feed_is_taken_before_the_page_and_the_page_where_there_is_none() -> None:
    body = '<outline xmlUrl="http://x/f" htmlUrl="http://x/"/><outline text="p" htmlUrl="http://y/"/><outline xmlurl="http://z/"/>'
    assert [entry.url for entry in read_opml(opml(body))] == ["http://x/f", "http://y/", "http://z/"]


def test_a_list_that_is_not_quite_xml_is_read() -> None:
    assert read_opml(opml('<outline text="Q&A" xmlUrl="http://x/?a=1&b=2">'))[0].url.startswith("http://x/")


def test_a_list_in_another_charset_is_read() -> None:
    data = (
        opml('<outline text="Käse" xmlUrl="http://x/"/>')
        .decode()
        .replace("?>", ' encoding="iso-8859-1"?>')
        .encode("latin-1")
    )
    assert read_opml(data) == [OpmlEntry("http://x/", "Käse")]


def test_what_xml_may_not_hold_is_not_written() -> None:
    assert read_opml(write_opml([OpmlEntry("http://x/", "a\0b\x1bc\ud800", "\x01")])) == [OpmlEntry("http://x/", "abc")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"<html></html>",
        b"\0\xff\xfe",
        b"<!DOCTYPE opml [<!ENTITY a 'b'>]><opml><body>&a;</body></opml>",
        b" " * (8 * 2**20 + 1),
    ],
)
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(BadOpml):
        read_opml(data)
