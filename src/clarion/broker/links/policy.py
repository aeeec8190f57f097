"""What may cross a link, and from whom; and what brokers may be called."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from clarion.broker.engine.limits import MAX_NAME_BYTES
from clarion.model.address import check_connect
from clarion.model.errors import BadSettings
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.model.names import RESERVED, from_text, is_good_pattern, is_pattern, matches
from clarion.wire.batch import HEADER_BYTES, owner_of
from clarion.wire.link_bodies import LinkData, LinkPart

ALL_TOPICS = (b"#",)
ANY_ORIGIN = "*"
MAX_NAME_CHARACTERS = 64
_ID_DIGITS = 8
MOST = 1 << 61  # of a position, or a time: sums of two are stored


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """One link: where the other broker listens (empty: it is the one that calls), its name, and what may cross."""

    url: str = ""
    name: str = ""  # empty: whichever is there
    topics_in: tuple[bytes, ...] = ALL_TOPICS  # or patterns
    topics_out: tuple[bytes, ...] = ALL_TOPICS
    origins: tuple[str, ...] = (ANY_ORIGIN,)  # names or ids of brokers whose messages may come in this way

    def accepts(self, broker: int, name: str) -> bool:
        """Return whether messages of a broker may come in this way."""
        return not {ANY_ORIGIN, name, f"{broker:08x}"}.isdisjoint(self.origins)


def why_no_name(name: str) -> str:
    """Return why a broker cannot be called this; "" where it can."""
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        return f"a broker's name has 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}"
    if not name.isprintable() or any(character in " ,/" for character in name):
        return f"a broker's name has printable characters, and no space, comma or slash; {name!r} has others"
    if name == ANY_ORIGIN:
        return f"{ANY_ORIGIN} stands for every broker, and is no name of one"
    if len(name) == _ID_DIGITS and set(name) <= set("0123456789abcdef"):
        return f"{name} looks like the id of a broker; add a letter beyond f"
    return ""


def read_links(value: Any) -> tuple[LinkSettings, ...]:
    """Read links as settings have them: addresses with commas, or a list of addresses, tables and LinkSettings."""
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",") if each.strip()]
    if not isinstance(value, (list, tuple)):
        raise BadSettings(f"links are addresses, or tables [[links]], not {value!r}")
    found = tuple(_checked(_read_link(each)) for each in value)
    urls = [each.url for each in found if each.url]
    for url in urls:
        if urls.count(url) > 1:
            raise BadSettings(f"links has {url} more than once; one link to a broker is enough")
    return found


def add_links(known: Iterable[LinkSettings], more: Iterable[LinkSettings]) -> tuple[LinkSettings, ...]:
    """Return links and those that are added to them; where an address is among both, what may cross is as before."""
    known = tuple(known)
    urls = {each.url for each in known if each.url}
    return known + tuple(each for each in more if each.url not in urls)


def _read_link(value: Any) -> LinkSettings:
    if isinstance(value, LinkSettings):
        return value
    if isinstance(value, str):
        value = {"url": value}
    if not isinstance(value, dict):
        raise BadSettings(f"a link is an address or a table, not {value!r}")
    known = [field.name for field in fields(LinkSettings)]
    if unknown := sorted(set(value) - set(known)):
        close = difflib.get_close_matches(unknown[0].lower(), known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
        raise BadSettings(f"a link has no setting {unknown[0]!r}; {hint}")
    found: dict[str, Any] = {}
    for name, its in value.items():
        if name in ("url", "name"):
            if not isinstance(its, str):
                raise BadSettings(f"the {name} of a link is a text, not {its!r}")
            found[name] = its
        elif not isinstance(its, list) or not all(isinstance(each, str) for each in its):
            raise BadSettings(f"{name} of a link is a list of texts, not {its!r}")
        else:
            found[name] = tuple(its) if name == "origins" else read_topics(its, f"{name} of a link")
    return LinkSettings(**found)


def _checked(link: LinkSettings) -> LinkSettings:
    if not link.url and not link.name:
        raise BadSettings("a link needs a url to call, or the name of the broker that calls")
    if link.url:
        try:
            check_connect(link.url)
        except BadSettings as error:
            raise BadSettings(f"links: {error}") from None
    if "" in link.origins:
        raise BadSettings(f"links: an origin is the name or id of a broker, or {ANY_ORIGIN}; none is empty")
    for name in (link.name, *link.origins):
        is_id = name in link.origins and len(name) == _ID_DIGITS and name.isalnum()
        if name not in ("", ANY_ORIGIN) and not is_id and (why := why_no_name(name)):
            raise BadSettings(f"links: {why}")
    return link


def read_topics(texts: Iterable[str], what: str) -> tuple[bytes, ...]:
    """Read the names of topics and patterns; one that can be none is BadSettings."""
    found = []
    for text in texts:
        try:
            name = from_text(text)
        except ValueError as error:
            raise BadSettings(f"{what}: {error}") from None
        if not name:
            raise BadSettings(f"{what}: the name of a topic has at least one byte")
        if not is_good_pattern(name):
            raise BadSettings(f"{what}: in {text!r} the # is not at the end, where alone it stands for others")
        found.append(name)
    return tuple(found)


def is_among(topic: bytes, patterns: Iterable[bytes]) -> bool:
    """Return whether a topic is one of those."""
    return any(pattern == topic or matches(pattern, topic) for pattern in patterns)


def are_sound(data: LinkData, blob: memoryview, source: int) -> bool:
    """Return whether what is said of batches can be, and each of them was put at the broker that sends them."""
    at = 0
    for topic, name, first_offset, count, size, ttl_ms in data.batches:
        if not (0 < topic < MOST and 0 <= first_offset < MOST and 0 < count <= MAX_BATCH_MESSAGES):
            return False
        if not 0 <= ttl_ms < MOST // 1000 or not 0 < len(name) <= MAX_NAME_BYTES:
            return False
        if is_pattern(name) or name.startswith(RESERVED):
            return False
        if size and (not HEADER_BYTES <= size <= len(blob) - at or owner_of(blob[at : at + size])[0] != source):
            return False
        at += size
    places = range(len(data.batches))
    return at == len(blob) and all(
        place in places and 0 <= since <= data.batches[place][2] and 0 <= gone < MOST
        for part in data.parts
        for place, since, _, gone in part.batches
    )


def count_without(data: LinkData) -> int:
    """Return how many messages there are of which the bytes were taken out."""
    return sum(batch[3] for batch in data.batches if not batch[4])


def without_bytes(
    data: LinkData, blob: memoryview, is_refused: Callable[[bytes, int], bool], by: int
) -> tuple[LinkData, bytes]:
    """Return what is left of batches where some, by topic and size, may not cross: whom they are for is told that they
    were there, and by whose policy they do not come."""
    batches, blobs, refused, at = [], [], set(), 0
    for place, batch in enumerate(data.batches):
        topic, name, first_offset, count, size, ttl_ms = batch
        if size and is_refused(name, size):
            refused.add(place)
            batch = (topic, name, first_offset, count, 0, ttl_ms)
        else:
            blobs.append(blob[at : at + size])
        batches.append(batch)
        at += size
    parts = tuple(
        LinkPart(
            part.to, part.session, part.batches,
            part.refused + tuple((n, by) for n, each in enumerate(part.batches) if each[0] in refused),
        )
        for part in data.parts
    )  # fmt: skip
    return LinkData(tuple(batches), parts), b"".join(blobs)


def part_for(data: LinkData, blob: memoryview, to: Iterable[int]) -> tuple[LinkData, bytes]:
    """Return of batches what is for some brokers."""
    wanted = set(to)
    parts = [part for part in data.parts if part.to in wanted]
    needed = {each[0] for part in parts for each in part.batches}
    places: dict[int, int] = {}
    batches: list[tuple[int, bytes, int, int, int, int]] = []
    blobs: list[memoryview] = []
    at = 0
    for place, batch in enumerate(data.batches):
        if place in needed:
            places[place] = len(batches)
            batches.append(batch)
            blobs.append(blob[at : at + batch[4]])
        at += batch[4]
    moved = tuple(
        LinkPart(part.to, part.session, tuple((places[each[0]], *each[1:]) for each in part.batches), part.refused)
        for part in parts
    )
    return LinkData(tuple(batches), moved), b"".join(blobs)
