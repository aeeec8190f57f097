"""Promises of the difference engine for any versions and any bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.feeds.channels import Rules
from clarion.feeds.content import Item, Unreadable, Version, digest, pack_version, read_version, unpack_version
from clarion.feeds.difference import difference
from clarion.feeds.opml import BadOpml, OpmlEntry, read_opml, write_opml
from clarion.feeds.page_text import BadRules, check_rules

entries = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=10, unique_by=lambda entry: entry[0]
)  # an id and which text it has


def feed(listed: list[tuple[int, int]]) -> Version:
    return Version(
        "feed",
        "",
        tuple(Item(f"id {at}", f"{at} {text}", "", "", "", 0, digest(f"{at} {text}")) for at, text in listed),
    )


def pieces(texts: list[str]) -> Version:
    return Version("page", "", tuple(Item("", "", "", text, "", 0, digest(text)) for text in texts))


@given(st.lists(entries, min_size=1, max_size=6))
def test_of_any_run_of_feeds_an_entry_is_new_once_and_gone_once_and_what_is_told_leads_to_what_is_listed(
    run: list[list[tuple[int, int]]],
) -> None:
    kept: Version | None = None
    ever: set[str] = set()
    gone_ever: set[str] = set()
    for listed in run:
        version = feed(listed)
        changes, after = difference(kept, version)
        told = {kind: {change.id for change in changes if change.kind == kind} for kind in ("new", "changed", "gone")}
        now = {item.id: item.mark for item in version.items}
        before = {item.id: item.mark for item in kept.items} if kept else {}
        assert len(changes) == sum(map(len, told.values())), "one change an entry"
        assert told["new"] == set(now) - ever
        assert told["changed"] >= {name for name in now if before.get(name, now[name]) != now[name]}
        assert told["gone"] <= set(before) - set(now) - gone_ever
        assert after.items == version.items
        assert after.hash == version.hash
        assert difference(after, version)[0] == ()
        ever |= set(now)
        gone_ever |= told["gone"]
        kept = unpack_version(pack_version(after))
        assert kept == after


@given(
    st.lists(st.sampled_from(["a b c", "a b d", "x y", "z", "a"]), max_size=8),
    st.lists(st.sampled_from(["a b c", "a b d", "x y", "q"]), max_size=8),
)
def test_what_is_told_of_pieces_makes_one_text_of_the_other(before: list[str], after: list[str]) -> None:
    changes, kept = difference(pieces(before), pieces(after))
    found = sorted(before)
    for change in changes:
        if change.before:
            found.remove(change.before)
        if change.text:
            found.append(change.text)
    assert sorted(found) == sorted(after)
    assert difference(kept, pieces(after))[0] == ()
    assert (pieces(before).hash == pieces(after).hash) == (not changes)


# fmt: off
fragments = st.sampled_from([
    "<rss version='2.0'><channel>", "<item>", "</item>", "<title>", "</title>", "<guid>g</guid>",
    "<link>http://[</link>", "<pubDate>Mon, 99 Foo 20261 25:61:99</pubDate>",
    "<feed xmlns='http://www.w3.org/2005/Atom'>", "<entry>", "<id>", "<![CDATA[", "]]>", "<!--", "-->",
    "<!DOCTYPE rss [", "<!ENTITY a 'b'>", "]>", "&a;", "&#0;", "&#xD800;", "&#99999999;", "<html>", "<body>",
    "<p class='ad'>", "<table><tr><td>", "<base href='//['>", "<a href='http://['>", "<h1>", "text",
    "5 minutes ago", "\ufffe", "\0", "é", "{", '"version": "https://jsonfeed.org/version/1", "items": [', "}", "]",
    "\n", "<content type='xhtml'><div>", "<xml:base='x'>",
])
# fmt: on
kinds = st.sampled_from(
    [
        "",
        "text/html",
        "application/xml",
        "application/json",
        "text/plain",
        "text/html; charset=utf-16",
        "image/png",
        "x;charset=idna",
    ]
)
bodies = st.one_of(
    st.binary(max_size=200),
    st.lists(fragments, max_size=12).map(lambda parts: "".join(parts).encode("utf-8", "replace")),
    st.lists(fragments, max_size=12).map(lambda parts: "".join(parts).encode("utf-16", "replace")),
)


@settings(max_examples=300)
@given(bodies, kinds)
def test_any_bytes_are_a_version_or_refused(body: bytes, kind: str) -> None:
    try:
        version = read_version(body, kind, "https://a.example/x", Rules())
    except Unreadable:
        return
    assert difference(version, version)[0] == ()
    assert unpack_version(pack_version(version)) == version
    assert version == read_version(body, kind, "https://a.example/x", Rules())


@given(st.binary(max_size=100))
def test_any_bytes_are_unpacked_or_refused(packed: bytes) -> None:
    try:
        unpack_version(packed)
    except Unreadable:
        return


@given(st.text(max_size=30) | st.text("/*[]()@.:='a1 >#$", max_size=20))
def test_any_text_is_a_rule_or_refused(rule: str) -> None:
    try:
        check_rules(Rules(keep=(rule,)))
    except BadRules:
        return


names = st.text(max_size=10).map(lambda text: " ".join(text.split()))


@given(
    st.lists(
        st.tuples(st.integers(0, 99), names, st.lists(st.sampled_from("ab"), max_size=3)),
        max_size=8,
        unique_by=lambda one: one[0],
    )
)
def test_any_list_of_subscriptions_is_read_as_it_was_written(listed: list[tuple[int, str, list[str]]]) -> None:
    written = [OpmlEntry(f"http://x.example/{at}", title, "/".join(folder)) for at, title, folder in listed]
    read = read_opml(write_opml(written))
    assert {(entry.url, entry.folder) for entry in read} == {(entry.url, entry.folder) for entry in written}
    assert write_opml(read_opml(write_opml(read))) == write_opml(read)


@given(bodies)
def test_any_bytes_are_a_list_of_subscriptions_or_refused(data: bytes) -> None:
    try:
        read_opml(data)
    except BadOpml:
        return
