"""Discovery: which feeds a page offers, which hubs a resource names, and whether a body is itself a feed.

Bodies come from anywhere: they are read by parsers that fetch nothing and expand nothing, and only so far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from lxml import etree
from yarl import URL

from clarion.feeds.content import decoded, root_name
from clarion.feeds.page_text import parse_page

RSS, ATOM, JSON = "application/rss+xml", "application/atom+xml", "application/feed+json"
_TYPES = {RSS: RSS, ATOM: ATOM, JSON: JSON, "application/rdf+xml": RSS, "application/json": JSON, "text/xml": ""}
_ROOTS = {"rss": RSS, "rdf": RSS, "feed": ATOM}
_PAGE_MOST = 2 << 20  # characters of a page that are looked at
_HEAD_MOST = 1 << 16  # bytes that tell what a body is, and in which a feed names its hubs
_FOUND_MOST = 50
_TITLE_MOST = 200
_JSON_FEED = re.compile(r"\s*\{.*?\"version\"\s*:\s*\"https?:\\?/\\?/jsonfeed\.org\\?/version\\?/", re.DOTALL)
_ENTITY = re.compile(rb"<\x00?!\x00?E\x00?N")  # also in UTF-16
_LIKE_A_FEED = re.compile(r"(?:^|/)(?:feeds?|rss2?|atom)(?:/|$)|\.(?:rss|atom|rdf)$|(?:rss|atom|feed|index)\.xml$")
_HUB = re.compile(rb"\brel\s*=\s*[\"']?[^\"'<>]{0,99}\bhub\b", re.IGNORECASE)
_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_REL = re.compile(r";\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,\"]+))", re.IGNORECASE)


class FoundFeed(NamedTuple):
    """A feed that a page offers."""

    url: str
    title: str
    type: str  # its media type, or nothing where the page does not say


def feed_type(body: bytes) -> str:
    """Return the media type of a body that is itself a feed, and an empty text where it is none."""
    start = decoded(body[:_HEAD_MOST], "")
    return JSON if _JSON_FEED.match(start) else _ROOTS.get(root_name(start), "")


def find_feeds(body: bytes, content_type: str, url: str) -> list[FoundFeed]:
    """Return the feeds that a page offers, RSS and Atom first; a feed offers itself.

    What it offers are its `link rel=alternate` elements, and only without any, links that look like feeds.
    """
    if itself := feed_type(body):
        return [FoundFeed(url, "", itself)]
    tree = _page(body, content_type)
    if tree is None:
        return []
    base = _base(tree, url)
    first: dict[str, FoundFeed] = {}
    for found in list(_offered(tree, base)) or _guessed(tree, base):
        first.setdefault(found.url, found)
    return sorted(first.values(), key=lambda found: found.type == JSON)[:_FOUND_MOST]


def find_hubs(body: bytes, content_type: str, url: str) -> tuple[tuple[str, ...], str]:
    """Return the hubs that a feed or page names (WebSub), and the URL by which they know it, or an empty text."""
    links: list[tuple[str, str]] = []
    if not _HUB.search(body, 0, _PAGE_MOST):  # as nearly always: it need not be parsed
        return (), ""
    if feed_type(body) in (RSS, ATOM):
        links = list(_feed_links(body))
    elif (tree := _page(body, content_type)) is not None:
        links = [(link.get("rel") or "", link.get("href") or "") for link in tree.iter("link")]
        url = _base(tree, url)
    named = [(word, joined(url, target)) for rel, target in links for word in rel.lower().split() if target]
    hubs = dict.fromkeys(target for rel, target in named if rel == "hub" and target)
    return tuple(hubs)[:_FOUND_MOST], next((target for rel, target in named if rel == "self"), "")


def read_link_headers(values: Iterable[str], url: str) -> list[tuple[str, str]]:
    """Return the links of Link headers (RFC 8288) as pairs of a relation and an absolute URL, in their order."""
    found = []
    for value in values:
        for target, parameters in _LINK.findall(value):
            absolute = joined(url, target)
            if absolute and (rel := _REL.search(parameters)):
                found += [(word, absolute) for word in (rel[1] or rel[2] or "").lower().split()]
    return found


def joined(base: str, target: str) -> str:
    """Return the absolute http or https URL that `target` means on `base`, and an empty text where it means none."""
    try:
        url = URL(str(URL(base).join(URL(target.strip()))))
        return str(url) if url.scheme in ("http", "https") and url.raw_host and url.port else ""
    except (ValueError, IndexError):
        return ""


def _page(body: bytes, content_type: str) -> Any:
    return parse_page(decoded(body, content_type)[:_PAGE_MOST])


def _base(tree: etree._Element, url: str) -> str:
    named = next((element.get("href") for element in tree.iter("base") if element.get("href")), None)
    return (joined(url, named) if named else "") or url


def _offered(tree: etree._Element, base: str) -> Iterator[FoundFeed]:
    for link in tree.iter("link"):
        words = (link.get("rel") or "").lower().split()
        media_type = (link.get("type") or "").partition(";")[0].strip().lower()
        if "alternate" in words and "stylesheet" not in words and media_type in _TYPES:
            target = joined(base, link.get("href") or "")
            if target and link.get("href"):
                yield FoundFeed(target, _title(link.get("title") or ""), _TYPES[media_type])


def _guessed(tree: etree._Element, base: str) -> Iterator[FoundFeed]:
    for link in tree.iter("a"):
        target = joined(base, link.get("href") or "")
        if target and _LIKE_A_FEED.search(URL(target).path.lower()):
            yield FoundFeed(target, _title(link.get("title") or "".join(str(text) for text in link.itertext())), "")


def _title(text: str) -> str:
    return " ".join(text[: 4 * _TITLE_MOST].split())[:_TITLE_MOST]


def _feed_links(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield the links of a feed itself, not of its entries, with their relations."""
    head = body[:_HEAD_MOST]
    if _ENTITY.search(head):
        return
    parser = etree.XMLPullParser(
        events=("start",), resolve_entities=False, no_network=True, huge_tree=False, load_dtd=False, recover=True
    )
    try:
        parser.feed(head)
    except (etree.LxmlError, ValueError):
        return
    for _, element in parser.read_events():
        if not isinstance(element, etree._Element) or (parent := element.getparent()) is None:
            continue
        if _local(element) == "link" and _local(parent) in ("feed", "channel"):
            yield element.get("rel") or "", element.get("href") or ""


def _local(element: etree._Element) -> str:
    return str(element.tag).rpartition("}")[2].lower()
