"""Discovery of feeds and hubs."""

from __future__ import annotations

import pytest

from clarion.feeds.channels import Rules
from clarion.feeds.content import read_version
from clarion.feeds.discovery import (
    ATOM,
    JSON,
    RSS,
    FoundFeed,
    feed_type,
    find_feeds,
    find_hubs,
    joined,
    read_link_headers,
)

PAGE = "https://example.org/news/today.html"


def page(head: str, body: str = "") -> bytes:
    return f"<!doctype html><html><head>{head}</head><body>{body}</body></html>".encode()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'<?xml version="1.0"?><rss version="2.0"><channel/></rss>', RSS),
        (b'\xef\xbb\xbf  <!-- a <rss> --><feed xmlns="http://www.w3.org/2005/Atom"/>', ATOM),
        (b'<rdf:RDF xmlns="http://purl.org/rss/1.0/"/>', RSS),
        (b'<!DOCTYPE rss [<!ENTITY nbsp "&#160;">]><rss/>', RSS),
        ('\ufeff<?xml version="1.0" encoding="utf-16"?><feed/>'.encode("utf-16-le"), ATOM),
        (b'{"title": "x", "version": "https:\\/\\/jsonfeed.org\\/version\\/1.1"}', JSON),
        (b'{"version": "1"}', ""),
        (b"<!doctype html><html><body>&lt;rss&gt;</body></html>", ""),
        (b"plain <rss>", ""),
        (b"", ""),
        (b"<?a?>" * 2000, ""),
        (b"<!--" * 2000, ""),
    ],
)
def test_what_is_itself_a_feed_is_known_by_its_start(body: bytes, found: str) -> None:
    assert feed_type(body) == found


_RSS = "<rss version='2.0'><channel><title>t</title><item><guid>1</guid></item></channel></rss>"


@pytest.mark.parametrize(
    ("body", "is_feed"),
    [
        (f"<!--{'x' * 9000}-->{_RSS}".encode(), True),
        (f"<?xml version='1.0'?>{_RSS}".encode("utf-16-le"), True),
        (f"\ufeff{_RSS}".encode("utf-32"), True),
        (
            b"<a-b:feed xmlns:a-b='http://www.w3.org/2005/Atom'><a-b:entry><a-b:id>1</a-b:id></a-b:entry></a-b:feed>",
            True,
        ),
        (f"<!DOCTYPE html>{_RSS}<p>text".encode(), False),
    ],
)
def test_what_is_taken_for_a_feed_is_read_as_one(body: bytes, is_feed: bool) -> None:
    assert (feed_type(body) != "") == is_feed
    assert (read_version(body, "", PAGE, Rules()).form == "feed") == is_feed


def test_a_feed_offers_itself() -> None:
    assert find_feeds(b"<rss/>", "text/html", PAGE) == [FoundFeed(PAGE, "", RSS)]


def test_a_page_offers_its_alternates_rss_and_atom_first_and_each_once() -> None:
    head = """
        <link rel="alternate" type="application/feed+json" href="/feed.json">
        <link rel="ALTERNATE home" type="application/rss+xml; charset=utf-8" href="../all.xml" title="All
            of it">
        <link rel="alternate" type="application/atom+xml" href="//other.example/a?b=1&amp;c=2">
        <link rel="alternate" type="application/rss+xml" href="/all.xml" title="Again">
        <link rel="alternate" type="text/html" hreflang="de" href="/de/">
        <link rel="alternate" type="application/rss+xml" href="javascript:alert(1)">
        <link rel="stylesheet" href="/style.css">"""
    assert find_feeds(page(head, "<a href='/rss'>RSS</a>"), "text/html", PAGE) == [
        FoundFeed("https://example.org/all.xml", "All of it", RSS),
        FoundFeed("https://other.example/a?b=1&c=2", "", ATOM),
        FoundFeed("https://example.org/feed.json", "", JSON),
    ]


def test_the_base_of_a_page_counts() -> None:
    head = "<base href='https://cdn.example/x/'><link rel=alternate type=application/rss+xml href=feed>"
    assert [found.url for found in find_feeds(page(head), "text/html", PAGE)] == ["https://cdn.example/x/feed"]


def test_without_alternates_links_that_look_like_feeds_are_offered() -> None:
    body = """<a href="/about">About</a> <a href="/blog/feed/"><b>Our</b> feed</a> <a href="/index.xml?x=1">XML</a>
        <a href="/feedback">Feedback</a> <a href="mailto:rss@example.org">rss</a> <a href="http://[/rss">bad</a>"""
    assert find_feeds(page("", body), "text/html", PAGE) == [
        FoundFeed("https://example.org/blog/feed/", "Our feed", ""),
        FoundFeed("https://example.org/index.xml?x=1", "XML", ""),
    ]


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "text/html; charset=no-such", "text/html", ""])
def test_charsets_known_or_not_do_no_harm(content_type: str) -> None:
    head = "<meta charset=utf-8><link rel=alternate type=application/rss+xml href=/f title='caf\u00e9'>"
    assert find_feeds(page(head), content_type, PAGE)[0].title == "caf\u00e9"


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"<" * 100_000, b"<div>" * 100_000, b"\xff\xfe<"])
def test_garbage_offers_nothing(body: bytes) -> None:
    assert find_feeds(body, "text/html", PAGE) == []
    assert find_hubs(body, "text/html", PAGE) == ((), "")


def test_a_feed_names_its_hubs_and_itself_and_its_entries_do_not() -> None:
    atom = b"""<feed xmlns="http://www.w3.org/2005/Atom"><link rel="hub" href="https://hub.example/"/>
        <link rel="self" href="/feed"/><link rel="hub" href="ftp://hub.example/"/>
        <entry><link rel="hub" href="https://evil.example/"/></entry></feed>"""
    assert find_hubs(atom, "", PAGE) == (("https://hub.example/",), "https://example.org/feed")
    rss = b"""<rss xmlns:a="http://www.w3.org/2005/Atom"><channel><link>http://x</link>
        <a:link rel="hub" href="https://hub.example/"/><item>"""
    assert find_hubs(rss, "", PAGE) == (("https://hub.example/",), "")


def test_a_page_names_its_hubs() -> None:
    assert find_hubs(page("<link rel='hub self' href=/here>"), "text/html", PAGE) == (
        ("https://example.org/here",),
        "https://example.org/here",
    )


def test_a_feed_with_entities_of_its_own_names_nothing() -> None:
    bomb = b'<!DOCTYPE feed [<!ENTITY e "https://hub.example/">]><feed><link rel="hub" href="&e;"/></feed>'
    assert find_hubs(bomb, "", PAGE) == ((), "")


def test_link_headers_are_read_however_they_are_split() -> None:
    values = ['<https://hub.example/a,b>; rel="hub", </f>; title="x; y"; rel=self', "<b>;REL='x'", "<http://[>;rel=hub"]
    assert read_link_headers(values, PAGE) == [
        ("hub", "https://hub.example/a,b"),
        ("self", "https://example.org/f"),
        ("'x'", "https://example.org/news/b"),
    ]
    assert read_link_headers(["<" * 8000, ";rel=" * 1000, "<a" * 4000], PAGE) == []


@pytest.mark.parametrize(
    "target", ["http://[", "http://:x[]::1@", "http://[%00::0%zz]", "mailto:a@b.example", "http://a:x/"]
)
def test_what_means_no_url_on_a_page_is_left_out(target: str) -> None:
    assert joined(PAGE, target) == ""
