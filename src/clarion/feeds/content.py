"""What a web server answered, read into a version: the entries of a feed, the blocks of a page, lines, or bytes.

A version holds what may be told, and marks of what counts. Its hash is of the marks alone, so noise has the same hash,
on each node and in each process. Everything in it is bounded; so is the time that reading takes, by the size of what is
read. Nothing is fetched while reading, and XML that declares entities is refused before a parser sees it.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import struct
from calendar import timegm
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec

from clarion.feeds.channels import Rules
from clarion.feeds.deltas import Form
from clarion.feeds.page_text import NothingKept, page_blocks, plain_text, what_counts
from clarion.model.errors import PermanentError
from clarion.wire.batch import compress, decompress

MOST_BODY_BYTES = 8 * 2**20  # that are read; a larger body is compared by its bytes
MOST_FEED_CHARACTERS = 2 * 2**20  # of which the entries are read
MOST_FEED_TAGS = 40_000
MOST_ENTRIES = 1000  # of a feed: the newest
MOST_BLOCKS = 5000  # of a page or a file: the first; one mark stands for the others
MOST_TEXT_BYTES = 20_000  # of an entry or a block
MOST_VERSION_BYTES = 2**20  # of a version as it is packed
MOST_KNOWN = 2000  # entries or blocks that a version knows beside its own
_MOST_TITLE, _MOST_LINK, _MOST_ID = 500, 2000, 500  # bytes
_ROOM_FOR_TEXT = 600_000  # bytes in a version; what comes later has a mark, and no text
_ROOM = 900_000
_MOST_NOISY = 300_000  # characters of a body, among which noise is looked for: that takes time


class Unreadable(PermanentError):
    """What the web server answered cannot be a version of this channel; the version before is kept."""


class Item(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a feed, a block of a page, or a line."""

    id: str  # of an entry; none elsewhere
    title: str
    link: str
    text: str
    published: str
    at_s: int  # when an entry was published, as far as the feed says; else 0
    mark: bytes  # of what counts


class Version(msgspec.Struct, frozen=True, array_like=True):
    """A channel's content at a time; items of a feed are ordered newest first."""

    form: Form
    title: str
    items: tuple[Item, ...]
    left_out: int = 0  # entries beyond the bound
    known: tuple[bytes, ...] = ()  # what is not new: of a feed, ids and marks of entries that earlier versions had and
    # a later one had not; of a page, marks of the text around its main text

    @property
    def hash(self) -> str:
        """The hash of what counts: two versions of one hash do not differ for people. Order and title do not count."""
        marks = sorted(digest(item.id) + item.mark for item in self.items)
        return blake2b(self.form.encode() + b"".join(marks), digest_size=16).hexdigest()


def digest(text: str) -> bytes:
    """Return a mark of a text: 8 bytes."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def read_version(body: bytes, content_type: str, url: str, rules: Rules) -> Version:
    """Return what a body says, by what it is rather than what it is said to be; Unreadable where it says nothing."""
    if not body.strip():
        raise Unreadable(f"{url} answered with nothing; the version before is kept")
    kind = content_type.split(";", 1)[0].strip().lower()
    if len(body) > MOST_BODY_BYTES or not _is_text(body, kind):
        return _bytes_version(body, kind)
    text = decoded(body, content_type)
    if "json" in kind or text.lstrip()[:1] in ("{", "["):
        return _json_version(text, kind, url)
    root = root_name(text)
    if root in ("rss", "feed", "rdf"):
        return _feed_version(without_doctype(text), url)
    if root == "html" or "html" in kind:
        return _page_version(text, url, rules)
    if root:
        text = re.sub(r"(?:>\s*<[\w:/.-]+)+>", ">\n<…>", without_doctype(text))
    return _lines_version(text.splitlines())


# From bytes to text.

_CHARSETS = re.compile(
    r"utf-?(?:8|16|32)\w*|utf-(?:16|32)-[bl]e|iso8859-\d+|latin-?1|ascii|cp\d+|windows-\d+|koi8-\w+|mac-\w+|gb\w+|big5\w*"
    r"|shift_jis\w*|euc_\w+|iso2022_\w+|johab|hz|tis-620",
)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
_SAID = re.compile(rb"""(?:encoding|charset)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)
_TEXT_KINDS = ("text/", "xml", "json", "html", "javascript", "yaml", "csv", "rss", "atom", "opml")


def decoded(body: bytes, content_type: str) -> str:
    """Return the text of a body. Its BOM is believed first, then that it is good UTF-8, then what its header and itself
    say; what no charset reads is replaced."""
    for bom, charset in _BOMS:
        if body.startswith(bom):
            return body.decode(charset, "replace").removeprefix("\ufeff")
    if body[:4] in (b"<\0?\0", b"<\0!\0", b"<\0h\0", b"<\0r\0"):
        return body.decode("utf-16-le", "replace")
    if body[:4] in (b"\0<\0?", b"\0<\0!", b"\0<\0h", b"\0<\0r"):
        return body.decode("utf-16-be", "replace")
    said = [*_SAID.findall(content_type.encode("ascii", "replace"))[:1], *_SAID.findall(body[:2048])[:1]]
    for charset in ("utf-8", *map(_charset, said), "cp1252"):
        try:
            if charset:
                return body.decode(charset)
        except (UnicodeDecodeError, ValueError):
            continue
    return body.decode(next(filter(None, map(_charset, said)), "cp1252"), "replace")


def _charset(said: bytes) -> str:
    """Return Python's name of a charset, or nothing where it is none of a text on the web."""
    try:
        name = codecs.lookup(said.decode()).name
    except (LookupError, ValueError):
        return ""
    if name in ("iso8859-1", "ascii"):
        return "cp1252"  # as browsers read it
    return name if _CHARSETS.fullmatch(name) and not name.startswith(("utf-16", "utf-32")) else ""


def _is_text(body: bytes, kind: str) -> bool:
    if any(body.startswith(bom) for bom, _ in _BOMS) or body[:2] in (b"<\0", b"\0<"):
        return True
    if b"\0" in body[:4096] and body.lstrip()[:1] != b"<":
        return False
    if any(known in kind for known in _TEXT_KINDS):
        return True
    return not kind.startswith(("image/", "audio/", "video/", "font/")) and _looks_like_text(body)


def _looks_like_text(body: bytes) -> bool:
    odd = sum(1 for byte in body[:4096] if byte < 32 and byte not in b"\t\n\r\f\x1b")
    return odd == 0 and not body.startswith((b"%PDF", b"PK\x03\x04", b"\x1f\x8b"))


# XML before a parser sees it.

_PROLOG = re.compile(r"\s*(?:<\?.*?\?>|<!--.*?-->)", re.DOTALL)
_DOCTYPE = re.compile(r"\s*<!DOCTYPE\b", re.IGNORECASE)
_ROOT = re.compile(r"\s*<(?:[\w.-]+:)?(\w+)")


def without_doctype(text: str) -> str:
    """Return XML without its declaration and document type; Unreadable where that declares entities."""
    start = _after_prolog(text)
    if not _DOCTYPE.match(text, start):
        return text[start:]
    quote, inside = "", 0
    for end in range(start, min(len(text), start + 100_000)):
        sign = text[end]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign == "[":
            inside += 1
        elif sign == "]":
            inside -= 1
        elif sign == ">" and inside <= 0:
            break
    else:
        raise Unreadable("its document type has no end; the version before is kept")
    if re.search(r"<!ENTITY|%\w+;", text[start:end], re.IGNORECASE):
        raise Unreadable("it declares entities, which can grow without bound: it was not read; the one before is kept")
    return text[_after_prolog(text, end + 1) :]


def _after_prolog(text: str, start: int = 0) -> int:
    if start == 0 and text.startswith("\ufeff"):
        start = 1
    while found := _PROLOG.match(text, start):
        start = found.end()
    return start


def root_name(text: str) -> str:
    """Return the name of the root of XML or HTML in lower case, `html` for what starts as pages do, or nothing."""
    start = _after_prolog(text)
    if doctype := _DOCTYPE.match(text, start):
        named = re.match(r"\s*([\w:]+)", text[doctype.end() : doctype.end() + 100])
        name = named[1].lower() if named else ""
        if name == "html":
            return "html"
        return "rdf" if name == "rdf:rdf" else name
    found = _ROOT.match(text, start)
    name = found[1].lower() if found else ""
    return "html" if name in ("html", "head", "body", "title", "div", "p") else name


# Feeds.


def _feed_version(text: str, url: str) -> Version:
    import feedparser

    text = _start_of_feed(text, url)
    try:
        found = feedparser.parse(
            io.BytesIO(text.encode("utf-8", "replace")),
            response_headers={"content-type": "application/xml; charset=utf-8", "content-location": url},
            sanitize_html=False,  # all markup is taken out of what is kept
            resolve_relative_uris=False,
        )
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, AssertionError) as error:
        raise Unreadable(f"{url} has a feed that cannot be read ({error!r}); the version before is kept") from error
    if not found.version and not found.entries:
        raise Unreadable(f"{url} has XML that is no feed; the version before is kept")
    dated = [(_published_s(entry), entry) for entry in found.entries]
    if all(at_s for at_s, _ in dated):
        dated.sort(key=lambda one: -one[0])
    items = [_entry(entry, at_s) for at_s, entry in dated[:MOST_ENTRIES]]
    return _of_entries(_line(_value(found.feed.get("title_detail"))), items, url, len(dated) - len(items))


def _published_s(found: Any) -> int:
    stamp = found.get("published_parsed" if "published" in found else "updated_parsed")
    try:
        return timegm(stamp) if stamp else 0
    except (ValueError, OverflowError):
        return 0


def _start_of_feed(text: str, url: str) -> str:
    """Return a feed up to the last entry that ends within what is read of one: reading takes time for each tag."""
    tag = next(islice(re.finditer("<", text), MOST_FEED_TAGS, None), None)
    most = min(MOST_FEED_CHARACTERS, tag.start() if tag else len(text))
    if len(text) <= most:
        return text
    name = max(("</item>", "</entry>"), key=lambda name: text.rfind(name, 0, most))
    end = text.rfind(name, 0, most) + len(name)
    if end < len(name):
        raise Unreadable(f"{url} is a feed without an entry in its first {most} characters; the one before is kept")
    return text[:end] + text[text.rfind(name) + len(name) :][:1000]


def _value(detail: Any) -> str:
    """Return the text of an element of a feed as feedparser tells it."""
    value = str((detail or {}).get("value") or "")
    return value if (detail or {}).get("type") == "text/plain" else plain_text(value)


def _entry(found: Any, at_s: int) -> Item:
    contents = [*found.get("content", ()), found.get("summary_detail")]
    return Item(
        id=str(found.get("id") or ""),
        title=_line(_value(found.get("title_detail"))),
        link=str(found.get("link") or ""),
        text=max(map(_value, contents), key=len, default=""),
        published=str(found.get("published" if "published" in found else "updated") or ""),
        at_s=at_s,
        mark=b"",
    )


def _json_feed_entry(found: dict[str, Any]) -> Item:
    def text(name: str) -> str:
        value = found.get(name)
        return str(value) if isinstance(value, str | int | float) else ""

    return Item(
        id=text("id"),
        title=_line(text("title")),
        link=text("url") or text("external_url"),
        text=plain_text(text("content_html")) or text("content_text") or text("summary"),
        published=text("date_published"),
        at_s=0,
        mark=b"",
    )


def _of_entries(title: str, entries: Iterable[Item], url: str, left_out: int) -> Version:
    """Return a version of entries as they were found, newest first: each with its identity, within the bounds."""
    found = []
    noisy = _MOST_NOISY
    for entry in entries:
        found.append(_settled(entry, url, noisy))
        noisy = max(0, noisy - len(entry.text))
    links: dict[str, list[str]] = {}
    for entry in found:
        links.setdefault(entry.id, []).append(entry.link)
    items: dict[str, Item] = {}
    for entry in found:
        if len(shared := links[entry.id]) > 1:  # an id that entries share: their links tell them apart, or their titles
            entry = msgspec.structs.replace(
                entry, id=_name(f"{entry.id} {entry.link if len(set(shared)) == len(shared) else entry.title}")
            )
        items.setdefault(entry.id, entry)
    version = _bounded("feed", title, list(items.values()))
    return msgspec.structs.replace(version, left_out=version.left_out + left_out)


def _settled(entry: Item, url: str, noisy: int) -> Item:
    """Return an entry with an absolute link, an id and the mark of its title, link and text."""
    try:
        link = urljoin(url, entry.link.strip()) if entry.link.strip() else ""
        counted = _link_that_counts(link)
    except ValueError:
        link = counted = ""
    lines = [entry.title, *entry.text.split("\n")]
    parts = [part for line in lines if (part := what_counts(line, noisy=noisy))]
    name = entry.id.strip() or counted or entry.title or digest(entry.text).hex()
    return msgspec.structs.replace(
        entry,
        id=_name(name),
        link=link if len(link.encode()) <= _MOST_LINK else "",
        text=entry.text if entry.text != entry.title else "",
        mark=digest("\n".join([counted, *parts])),
    )


def _name(text: str) -> str:
    """Return an id that is not too long: itself, or a mark of it."""
    return text if len(text.encode("utf-8", "replace")) <= _MOST_ID else digest(text).hex()


_SESSION = re.compile(
    r"(?:utm_\w+|fbclid|gclid|mc_[ce]id|phpsessid|jsessionid|sid|session_?id|s?token|csrf\w*|ref|_ga|igshid|cmpid"
    r"|at_\w+|mtm_\w+|pk_\w+)=[^&]*",
    re.IGNORECASE,
)


def _link_that_counts(link: str) -> str:
    """Return a link as it is compared: without scheme, tracking and session."""
    parts = urlsplit(link)
    query = "&".join(part for part in parts.query.split("&") if not _SESSION.fullmatch(part))
    path = re.sub(r";jsessionid=[^/?;]*", "", parts.path, flags=re.IGNORECASE)
    return urlunsplit(("", parts.netloc.lower().removeprefix("www."), path.rstrip("/"), query, ""))


# Pages, lines and bytes.


def _page_version(text: str, url: str, rules: Rules) -> Version:
    try:
        title, blocks = page_blocks(text, url, rules)
    except NothingKept as error:
        raise Unreadable(f"{url}: {error}; the version before is kept, and other rules may help") from error
    items: list[Item] = []
    around: list[Item] = []
    noisy = _MOST_NOISY
    for block in blocks:
        counted = what_counts(block.text, noisy=noisy)
        noisy = max(0, noisy - len(block.text))
        if counted:
            heading = "" if block.heading == block.text else block.heading
            item = Item("", heading, block.link, block.text, "", 0, digest(counted))
            (around if block.around else items).append(item)
    if not items:
        raise Unreadable(f"{url} is a page without text, made by scripts perhaps; the version before is kept")
    known = tuple(item.mark for item in around[:MOST_KNOWN])
    return msgspec.structs.replace(_bounded("page", title, items), known=known)


def _json_version(text: str, kind: str, url: str) -> Version:
    try:
        value = json.loads(text)
        if isinstance(value, dict) and "jsonfeed.org" in str(value.get("version")) and "items" in value:
            entries = [_json_feed_entry(found) for found in value["items"][:MOST_ENTRIES] if isinstance(found, dict)]
            return _of_entries(_line(str(value.get("title") or "")), entries, url, 0)
        pretty = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):
        if "html" in kind:
            return _page_version(text, url, Rules())
        return _lines_version(text.splitlines())
    lines = (line.strip().rstrip(",") for line in pretty.split("\n"))
    return _lines_version([line for line in lines if line.strip("[]{} ")])


def _lines_version(lines: list[str]) -> Version:
    found = [
        Item("", "", "", line, "", 0, digest(counted))
        for line in map(str.strip, lines[:MOST_BLOCKS])
        if (counted := what_counts(line, line=True))
    ]
    if rest := lines[MOST_BLOCKS:]:
        found.append(_rest(len(rest), _hash("\n".join(rest).encode("utf-8", "replace"))))
    return _bounded("lines", "", found)


def _bytes_version(body: bytes, kind: str) -> Version:
    text = f"{len(body)} bytes of {kind or 'an unknown type'}"
    return Version("bytes", "", (Item("", "", "", text, "", 0, blake2b(body, digest_size=16).digest()),))


def _bounded(form: Literal["feed", "page", "lines"], title: str, found: list[Item]) -> Version:
    """Return a version within its bounds. Text gives way first, then what comes last."""
    items: list[Item] = []
    room = _ROOM
    for item in found[: MOST_ENTRIES if form == "feed" else MOST_BLOCKS + 1]:
        item = msgspec.structs.replace(
            item,
            title=_cut(item.title, _MOST_TITLE),
            text=_cut(item.text, MOST_TEXT_BYTES),
            published=_cut(item.published, 100),
        )
        if room < _ROOM - _ROOM_FOR_TEXT:
            item = msgspec.structs.replace(item, text="")
        room -= 40 + sum(len(text.encode()) for text in (item.id, item.title, item.link, item.text, item.published))
        if room < 0:
            break
        items.append(item)
    more = found[len(items) :]
    if more and form != "feed":
        items.append(_rest(len(more), _hash(b"".join(sorted(item.mark for item in more)))))
    return Version(form, _cut(title, _MOST_TITLE), tuple(items), len(more))


def _rest(count: int, mark: bytes) -> Item:
    """Return what stands for all that is beyond the bound: that it changed is told, and not how."""
    return Item("", "", "", f"… and {count} more, of which the text is not kept", "", 0, mark)


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=8).digest()


def _line(text: str) -> str:
    return " ".join(text.split())


def _cut(text: str, most: int) -> str:
    """Return the start of a text that has at most so many bytes, valid in UTF-8."""
    if len(text) * 4 <= most and text.isascii():
        return text
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "…"


# As it is kept.

_versions = msgspec.msgpack.Decoder(Version)
_SIZE = struct.Struct("<I")  # of what is compressed; 0 where it is not


def pack_version(version: Version) -> bytes:
    """Return a version as it is kept: at most MOST_VERSION_BYTES."""
    plain = msgspec.msgpack.encode(version)
    frame = compress(plain)
    packed = _SIZE.pack(0) + plain if frame is None else _SIZE.pack(len(plain)) + frame
    assert len(packed) <= MOST_VERSION_BYTES, len(packed)
    return packed


def unpack_version(packed: bytes) -> Version:
    """Return the version that was packed; Unreadable where this is none."""
    try:
        (size,) = _SIZE.unpack_from(packed)
        if size > MOST_VERSION_BYTES:
            raise ValueError(f"{size} bytes are more than a version has")
        return _versions.decode(decompress(packed[_SIZE.size :], size) if size else packed[_SIZE.size :])
    except (ValueError, struct.error, msgspec.DecodeError) as error:
        raise Unreadable(f"what is kept of this channel is no version: {error}; subscribe to it anew") from error
