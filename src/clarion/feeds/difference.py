"""What changed between two versions of a channel, as people would say it: entries of a feed, or pieces of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import msgspec

from clarion.feeds.content import MOST_KNOWN, Item, Unreadable, Version, digest
from clarion.feeds.deltas import Change, Form
from clarion.feeds.page_text import what_counts

MOST_CHANGES = 100  # in a delta
MOST_CHANGED_BYTES = 256 * 1024  # of the texts in a delta
_ALIKE = 0.5  # share of words that two texts have in common, for one to be the other changed
_ALIKE_HERE = 0.3  # the same, in one place
_SHORT = 100  # characters of a text that may be all another in its place
_MOST_PAIRED = 200  # pieces of a text on each side that are compared with one another
_MOST_WORDY = 2000  # characters of a piece, whose words are compared
_FORMS: dict[Form, str] = {"feed": "a feed", "page": "a page", "lines": "a text", "bytes": "a file"}


class FormChanged(Unreadable):
    """A channel answered in another form than before, as a feed that gives a page: most often that is an error of its
    server, so the version before is kept. Where it persists, compare with `anew`."""


def difference(before: Version | None, after: Version, *, anew: bool = False) -> tuple[tuple[Change, ...], Version]:
    """Return what changed, and the version to keep. Without a version before, all of it is new.

    There may be no change though the hashes differ, as where an entry fell off the old end of a feed: then nobody need
    be told. FormChanged where the forms differ, unless `anew` says that they have for long: then that is the change.
    """
    if before is None:
        return tuple(_change("new", item) for item in after.items), after
    if before.form != after.form:
        was, now = (f"{_FORMS[version.form]}: {version.title}".rstrip(": ") for version in (before, after))
        if not anew:
            raise FormChanged(f"it was {was}, and answered with {now}; the version before is kept")
        return (Change(kind="changed", title=after.title, before=f"It was {was}", text=f"It is {now}"),), after
    if after.form == "feed":
        return _entries(before, after)
    if after.form == "bytes":
        if before.hash == after.hash:
            return (), after
        return (Change(kind="changed", before=before.items[0].text, text=after.items[0].text),), after
    return _pieces(before, after), after


def fitting(changes: Sequence[Change]) -> tuple[tuple[Change, ...], int]:
    """Return the first changes, as many as fit a delta, and how many are left out."""
    room = MOST_CHANGED_BYTES
    fit: list[Change] = []
    for change in changes[:MOST_CHANGES]:
        room -= len(msgspec.json.encode(change))
        if room < 0:
            break
        fit.append(change)
    return tuple(fit), len(changes) - len(fit)


def _change(kind: str, item: Item, was: Item | None = None) -> Change:
    gone = kind == "gone"
    return Change(
        kind=kind,  # type: ignore[arg-type]
        id=item.id,
        title=item.title,
        link=item.link,
        text="" if gone else item.text,
        before=item.text if gone else was.text if was else "",
        published=item.published,
    )


# Feeds.


def _entries(before: Version, after: Version) -> tuple[tuple[Change, ...], Version]:
    """Return what became of entries. One that comes back is not new again, and gone only once; one that is no longer
    listed is gone where older ones still are."""
    was = {item.id: item for item in before.items}
    past = {entry[:8]: entry[8:] for entry in before.known}
    now = {item.id for item in after.items}
    lost = [item for item in before.items if item.id not in now]
    unknown = [item for item in after.items if item.id not in was]
    renamed = _renamed(before, after, lost, unknown)
    changes: list[Change] = []
    for item in after.items:
        key = digest(item.id)
        earlier = was.get(item.id) or renamed.get(item.id)
        if earlier is not None:
            if earlier.mark != item.mark:
                changes.append(_change("changed", item, earlier))
        elif key not in past:
            changes.append(_change("new", item))
        elif past[key] != item.mark:
            changes.append(_change("changed", item))
    same = {item.id for item in renamed.values()}
    listed = [item.id in now or item.id in same for item in before.items]
    last = max((at for at, still in enumerate(listed) if still), default=-1)
    for item in before.items[: last + 1]:
        if item.id not in now and item.id not in same and digest(item.id) not in past:
            changes.append(_change("gone", item))
    left = {digest(item.id): item.mark for item in lost}
    known = [*(key + mark for key, mark in left.items()), *(one for one in before.known if one[:8] not in left)]
    return tuple(changes), msgspec.structs.replace(after, known=tuple(known[:MOST_KNOWN]))


def missed(newest: Version, older: Version) -> tuple[tuple[Change, ...], Version]:
    """Return what a version from before the newest had that nobody was told of, and the newest as it is to be kept:
    entries of a feed that came and went. Of anything else, the newest says all."""
    if newest.form != "feed" or older.form != "feed":
        return (), newest
    told = tuple(change for change in _entries(newest, older)[0] if change.kind == "new")
    marks = {item.id: item.mark for item in older.items}
    known = tuple(digest(change.id) + marks[change.id] for change in told)
    return told, msgspec.structs.replace(newest, known=(*known, *newest.known)[:MOST_KNOWN])


def _renamed(before: Version, after: Version, lost: list[Item], unknown: list[Item]) -> dict[str, Item]:
    """Return the entries that have another id, as after a site has moved, each with what it was: one that says the
    same, or else the one with its link, where no other has that."""
    by_mark = {item.mark: item for item in lost}
    links = Counter(item.link for item in before.items), Counter(item.link for item in after.items)
    by_link = {item.link: item for item in lost if item.link and links[0][item.link] == 1}
    found = {}
    for item in unknown:
        was = by_mark.get(item.mark) or (by_link.get(item.link) if links[1][item.link] == 1 else None)
        if was is not None:
            found[item.id] = was
    return found


# Pages and lines.


def _pieces(version_before: Version, version_after: Version) -> tuple[Change, ...]:
    """Return what became of pieces of a text. Those that only moved are no change, nor those that were around the main
    text, or are now; of the others, two that are alike or stand in the same place are one that changed."""
    before, after = version_before.items, version_after.items
    gone = _beyond(before, version_after)
    new = _beyond(after, version_before)
    pairs = _paired(before, gone, after, new)
    changes = []
    for at in new:
        was = pairs.get(at)
        changes.append(_change("new" if was is None else "changed", after[at], None if was is None else before[was]))
    taken = set(pairs.values())
    return (*changes, *(_change("gone", before[at]) for at in gone if at not in taken))


def _beyond(items: Sequence[Item], other: Version) -> list[int]:
    """Return the places of the items that another version has not, or not so often."""
    room = Counter(item.mark for item in other.items) + Counter(other.known)
    places = []
    for at, item in enumerate(items):
        if room[item.mark] > 0:
            room[item.mark] -= 1
        else:
            places.append(at)
    return places


def _paired(before: Sequence[Item], gone: list[int], after: Sequence[Item], new: list[int]) -> dict[int, int]:
    """Return for places of new pieces those of the pieces that they were. Two are one where they are alike; in the same
    gap between pieces that stayed, less is enough, and as many short ones as before are those, each in its place."""
    gone, new = gone[:_MOST_PAIRED], new[:_MOST_PAIRED]
    old = {at: (_words(before[at]), gap) for at, gap in _gaps(before, gone).items()}
    now = {at: (_words(after[at]), gap) for at, gap in _gaps(after, new).items()}
    found = []
    for is_at, (words, gap) in now.items():
        for was_at, (were, was_gap) in old.items():
            alike = 2 * (words & were).total() / max(1, words.total() + were.total())
            if alike >= (_ALIKE_HERE if gap == was_gap else _ALIKE):
                found.append((-alike - (gap == was_gap) / 4, abs(is_at - was_at), is_at, was_at))
    pairs: dict[int, int] = {}
    taken = set()
    for _, _, is_at, was_at in sorted(found):
        if is_at not in pairs and was_at not in taken:
            pairs[is_at] = was_at
            taken.add(was_at)
    alone = [at for at in gone if at not in taken and len(before[at].text) <= _SHORT]
    for gap, places in groupby(
        (at for at in new if at not in pairs and len(after[at].text) <= _SHORT), lambda at: now[at][1]
    ):
        there, were_there = list(places), [at for at in alone if old[at][1] == gap]
        if len(there) == len(were_there):
            pairs |= dict(zip(there, were_there, strict=True))
    return pairs


def _gaps(items: Sequence[Item], places: Sequence[int]) -> dict[int, tuple[bytes, int]]:
    """Return for each place the gap that it is in: the last piece before it that stayed, and which of those it is."""
    out = set(places)
    seen: Counter[bytes] = Counter()
    gap = (b"", 0)
    gaps = {}
    for at, item in enumerate(items):
        if at in out:
            gaps[at] = gap
        else:
            seen[item.mark] += 1
            gap = (item.mark, seen[item.mark])
    return gaps


def _words(item: Item) -> Counter[str]:
    return Counter(what_counts(item.text[:_MOST_WORDY]).lower().split())
