"""OPML: lists of subscriptions as feed readers exchange them, read and written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from lxml import etree

from clarion.feeds.channels import BadUrl, normalise_url
from clarion.feeds.content import Unreadable, decoded, without_doctype
from clarion.model.errors import PermanentError

MOST_OPML_BYTES = 8 * 2**20
MOST_OPML_ENTRIES = 50_000
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class BadOpml(PermanentError):
    """This is no list of subscriptions in OPML; nothing was done."""


class OpmlEntry(NamedTuple):
    """A subscription in a list: the URL as it is written there, a title, and the folder, as `outer/inner`."""

    url: str
    title: str = ""
    folder: str = ""


def read_opml(data: bytes) -> list[OpmlEntry]:
    """Return the subscriptions of a list in its order, each URL once; BadOpml where it is no list.

    A feed's URL is taken before a page's. Whether a URL can be watched is for who subscribes to it to say.
    """
    if len(data) > MOST_OPML_BYTES:
        raise BadOpml(f"the list has {len(data)} bytes, and at most {MOST_OPML_BYTES} are read; nothing was done")
    try:
        text = without_doctype(decoded(data, "application/xml"))
    except Unreadable as error:
        raise BadOpml("the list declares entities, which can grow without bound: it was not read") from error
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, recover=True, huge_tree=False)
    try:
        root = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise BadOpml(f"the list is no XML: {error}; nothing was done") from error
    if root is None or etree.QName(root).localname.lower() != "opml":
        raise BadOpml("the list is no OPML: its root is not <opml>; nothing was done")
    entries = list(_entries(root))
    if len(entries) > MOST_OPML_ENTRIES:
        raise BadOpml(
            f"the list has {len(entries)} entries, and at most {MOST_OPML_ENTRIES} are read; nothing was done"
        )
    first: dict[str, OpmlEntry] = {}
    for entry in entries:
        first.setdefault(_same(entry.url), entry)
    return list(first.values())


def write_opml(entries: Iterable[OpmlEntry], title: str = "Clarion") -> bytes:
    """Return subscriptions as a list in OPML 2.0, in folders as they say."""
    root = etree.Element("opml", version="2.0")
    etree.SubElement(etree.SubElement(root, "head"), "title").text = _clean(title)
    folders = {"": etree.SubElement(root, "body")}
    for entry in entries:
        path = ""
        for name in filter(None, map(_clean, entry.folder.split("/"))):
            above, path = path, f"{path}/{name}"
            if path not in folders:
                folders[path] = etree.SubElement(folders[above], "outline", text=name, title=name)
        name, url = _clean(entry.title) or _clean(entry.url), _clean(entry.url)
        etree.SubElement(folders[path], "outline", type="rss", text=name, title=name, xmlUrl=url)
    return etree.tostring(root, xml_declaration=True, encoding="utf-8", pretty_print=True)


def _entries(root: Any) -> Iterable[OpmlEntry]:
    """Yield what the outlines of a tree subscribe to; those that only hold others are folders."""
    path: list[str] = []
    for event, element in etree.iterwalk(root, events=("start", "end"), tag="{*}outline"):
        said = {name.lower(): " ".join(value.split()) for name, value in element.attrib.items()}
        name = said.get("title") or said.get("text") or ""
        url = said.get("xmlurl") or said.get("htmlurl") or said.get("url") or ""
        if event == "end":
            path.pop()
            continue
        if url:
            yield OpmlEntry(url, "" if name == url else name, "/".join(filter(None, path)))
        path.append("" if url else "/".join(filter(None, (part.strip() for part in name.split("/")))))


def _same(url: str) -> str:
    try:
        return normalise_url(url)
    except BadUrl:
        return url


def _clean(text: str) -> str:
    """Return a text as an attribute may hold it: on one line, without what is not allowed in XML."""
    return " ".join(_NOT_IN_XML.sub("", text).split())
