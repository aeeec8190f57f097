"""What a web server answered, read into a version: forms, charsets, entries, bounds, and hostile bodies."""

from __future__ import annotations

import json

import pytest

from clarion.feeds import content
from clarion.feeds.channels import Rules
from clarion.feeds.content import (
    MOST_BLOCKS,
    MOST_ENTRIES,
    MOST_TEXT_BYTES,
    MOST_VERSION_BYTES,
    Unreadable,
    Version,
    pack_version,
    read_version,
    unpack_version,
)

URL = "https://site.example/path/feed"
BOMB = b"""<?xml version="1.0"?><!DOCTYPE rss [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>
<rss version="2.0"><channel><title>&b;</title></channel></rss>"""


def read(body: str | bytes, kind: str = "", rules: Rules = Rules()) -> Version:  # noqa: B008
    return read_version(body if isinstance(body, bytes) else body.encode(), kind, URL, rules)


def rss(*items: str) -> str:
    listed = "".join(f"<item>{item}</item>" for item in items)
    return f'<rss version="2.0"><channel><title>T</title>{listed}</channel></rss>'


def page(body: str) -> str:
    return f"<html><head><title>A page</title></head><body>{body}</body></html>"


@pytest.mark.parametrize(
    ("body", "kind", "form"),
    [
        (rss("<title>a</title>"), "text/html", "feed"),
        ("<feed xmlns='http://www.w3.org/2005/Atom'><title>a</title></feed>", "text/plain", "feed"),
        ('{"version": "https://jsonfeed.org/version/1", "items": []}', "application/json", "feed"),
        (page("<p>a</p>"), "application/rss+xml", "page"),
        ("<!doctype html><p>a", "", "page"),
        ("<p>a<p>b", "text/html", "page"),
        ('{"a": 1}', "application/json", "lines"),
        ("<urlset><url>a</url></urlset>", "text/xml", "lines"),
        ("a,b\n1,2\n", "text/csv", "lines"),
        ("plain", "", "lines"),
        (b"\x89PNG\r\n\x1a\n\0\0", "image/png", "bytes"),
        (b"%PDF-1.4 text", "application/pdf", "bytes"),
    ],
)
def test_a_body_is_what_it_says_and_not_what_its_header_says(body: str | bytes, kind: str, form: str) -> None:
    assert read(body, kind).form == form


@pytest.mark.parametrize("body", ["", " \n ", page(""), page("<script>f()</script><div id=root></div>")])
def test_an_answer_without_text_is_no_version(body: str) -> None:
    with pytest.raises(Unreadable, match="the version before is kept"):
        read(body, "text/html")


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "windows-1252", "iso-8859-15"])
def test_text_is_read_whatever_charset_a_page_is_in(charset: str) -> None:
    body = page("<p>Käse für 3 €</p>").encode(charset)
    assert read(body, f"text/html; charset={charset}").items[0].text == "Käse für 3 €"


@pytest.mark.parametrize("said", ["utf-8", "nonsense", "zlib", "rot13", "punycode", "utf-16", "unicode_escape"])
def test_a_wrong_charset_is_no_reason_to_fail(said: str) -> None:
    assert read(page("<p>Käse</p>").encode("cp1252"), f"text/html; charset={said}").items[0].text == "Käse"


@pytest.mark.parametrize("charset", ["utf-8", "utf-16"])
def test_xml_that_declares_entities_is_not_read(charset: str) -> None:
    with pytest.raises(Unreadable, match="entities"):
        read(BOMB.decode().encode(charset), "application/xml")


def test_an_article_about_entities_is_read() -> None:
    version = read(rss("<title>x</title><description><![CDATA[Write <!ENTITY a 'b'> never.]]></description>"))
    assert len(version.items) == 1


def test_an_external_document_type_is_left_alone() -> None:
    version = read('<?xml version="1.0"?><!DOCTYPE rss SYSTEM "file:///etc/passwd">' + rss("<title>a</title>"))
    assert [item.title for item in version.items] == ["a"]


def test_an_entry_has_its_link_made_absolute_and_its_markup_taken_out() -> None:
    (item,) = read(
        rss("<title>A &amp;amp; B</title><link>../a</link><description>&lt;p&gt;x &lt;b&gt;y&lt;/b&gt;</description>")
    ).items
    assert (item.title, item.link, item.text) == ("A & B", "https://site.example/a", "x y")


def test_an_entry_is_known_by_its_id_or_else_its_link_or_else_its_title() -> None:
    items = read(rss("<guid isPermaLink='false'>g</guid><link>/a</link>", "<link>/b</link>", "<title>c</title>")).items
    assert [item.id for item in items] == ["g", "//site.example/b", "c"]


def test_entries_that_share_an_id_are_told_apart() -> None:
    shared = "<guid isPermaLink='false'>g</guid>"
    assert len(read(rss(f"{shared}<link>/a</link>", f"{shared}<link>/b</link>")).items) == 2
    assert len(read(rss(f"{shared}<title>a</title>", f"{shared}<title>b</title>")).items) == 2
    assert len(read(rss(f"{shared}<title>a</title>", f"{shared}<title>a</title>")).items) == 1


def test_entries_are_newest_first_where_all_have_a_date() -> None:
    items = [f"<title>{day}</title><pubDate>0{day} Nov 2026 08:00:00 GMT</pubDate>" for day in (1, 3, 2)]
    assert [item.title for item in read(rss(*items)).items] == ["3", "2", "1"]
    assert [item.title for item in read(rss(*items, "<title>4</title>")).items] == ["1", "3", "2", "4"]


def test_the_order_of_entries_and_stamps_do_not_change_the_hash() -> None:
    one = "<guid>1</guid><title>One</title><pubDate>Mon, 02 Nov 2026 08:00:00 GMT</pubDate>"
    two = "<guid>2</guid><title>Two</title>"
    assert read(rss(one, two)).hash == read(rss(two, one.replace("08:00", "09:00"))).hash
    assert read(rss(one, two)).hash != read(rss(one)).hash


def test_a_hash_is_the_same_in_every_process() -> None:
    assert read(rss("<guid>1</guid><title>One</title>")).hash == "9f2acbfdb3c7e8ba5dcc9044f9cc44a1"
    assert read(page("<p>One</p><p>Two</p>"), "text/html").hash == "18d6d72651b44058a3205524aaa94724"


def test_the_keys_of_json_may_be_in_any_order() -> None:
    assert read('{"a": 1, "b": [2, 3]}').hash == read('{"b":[2,3],\n"a":1}').hash


def test_a_feed_has_at_most_so_many_entries_and_the_newest_are_kept() -> None:
    count = MOST_ENTRIES + 50
    version = read(
        rss(
            *(
                f"<guid>{at}</guid><pubDate>{2000 + at // 365}-01-01T00:00:{at % 60:02d}Z</pubDate>"
                for at in range(count)
            )
        )
    )
    assert (len(version.items), version.left_out) == (MOST_ENTRIES, 50)
    assert version.items[0].at_s == max(item.at_s for item in version.items)


def test_a_feed_too_large_to_read_is_read_up_to_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MOST_FEED_CHARACTERS", 20_000)
    version = read(rss(*(f"<guid>{at}</guid><title>{'x' * 400}</title>" for at in range(100))))
    assert 30 < len(version.items) < 50
    assert {len(item.title) for item in version.items} == {400}
    with pytest.raises(Unreadable, match="without an entry"):
        read(rss("<title>" + "x" * 30_000))


def test_what_follows_the_last_line_that_is_kept_counts_all_the_same() -> None:
    lines = [f"line {at}" for at in range(MOST_BLOCKS + 2000)]
    version, other = read("\n".join(lines)), read("\n".join([*lines[:-1], "another"]))
    assert len(version.items) == MOST_BLOCKS + 1
    assert version.hash != other.hash


@pytest.mark.parametrize("form", ["feed", "page", "lines"])
def test_a_version_takes_a_bounded_room_and_is_unpacked_as_it_was(form: str) -> None:
    texts = [json.dumps([at * 10**15 + more**5 for more in range(1500)]) for at in range(60)]
    if form == "feed":
        body = rss(*(f"<guid>{at}</guid><description>{text}</description>" for at, text in enumerate(texts)))
    else:
        body = page("".join(f"<p>{text}</p>" for text in texts)) if form == "page" else "\n".join(texts)
    version = read(body, "text/html" if form == "page" else "")
    assert version.form == form
    assert max(len(item.text.encode()) for item in version.items) <= MOST_TEXT_BYTES
    packed = pack_version(version)
    assert len(packed) <= MOST_VERSION_BYTES
    assert unpack_version(packed) == version


@pytest.mark.parametrize(
    "packed", [b"", b"\0\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x09\0\0\0abc", b"\0\0\0\0\x93\x01\x02\x03"]
)
def test_what_is_no_version_is_not_unpacked(packed: bytes) -> None:
    with pytest.raises(Unreadable):
        unpack_version(packed)


HOSTILE = {
    "a hundred thousand levels": page("<div>" * 100_000 + "x"),
    "levels of a table": page("<table><tr><td>" * 20_000),
    "levels of a feed": '<rss version="2.0"><channel><item>' + "<a>" * 3000,
    "levels of JSON": "[" * 200_000,
    "many small blocks": page("<p>a b</p>" * 30_000),
    "many advertisements": page("<div class=ad><i hidden>x" * 10_000),
    "numbers that may be counters": page("<p>" + "1 1, 1." * 20_000),
    "an endless comment": "<!--" * 100_000,
    "an endless declaration": "<?xml " * 100_000,
    "an endless document type": "<!DOCTYPE rss [" + "<!ELEMENT a ANY>" * 20_000,
    "a feed of signs": rss("<title>" + "&" * 50_000),
    "ids that are all one": rss(*["<guid>g</guid>"] * 3000),
    "a number without end": "9" * 100_000,
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_body_is_read_or_refused(body: str) -> None:
    try:
        version = read(body, "text/html")
    except Unreadable:
        return
    assert unpack_version(pack_version(version)) == version


@pytest.mark.parametrize("cut", [b"<item><title>tw", b"<item><guid>2</guid><title>two</title>", b"<item "])
def test_a_feed_that_ends_within_an_entry_is_no_version(cut: bytes) -> None:
    start = b"<rss version='2.0'><channel><title>T</title><item><guid>1</guid><title>one</title></item>"
    with pytest.raises(Unreadable, match="ends within an entry"):
        read_version(start + cut, "application/rss+xml", "http://a.example/", Rules())
    for whole in (start, start + b"</channel></rss>", start + b"<!-- <item> --></channel></rss>"):
        assert read_version(whole, "application/rss+xml", "http://a.example/", Rules()).form == "feed"


def test_json_that_is_deep_takes_no_more_room_than_it_has() -> None:
    found = content._json_version("[" * 500 + "1," * 1000 + "1" + "]" * 500, "application/json", "http://a.example/")
    assert [item.text for item in found.items] == ["1"] * 1001


def test_half_a_character_in_the_id_of_a_json_feed_leaves_it_a_feed() -> None:
    feed = '{"version":"https://jsonfeed.org/version/1","items":[{"id":"\\ud800","url":"http://a.example/\\udfff"}]}'
    found = read_version(feed.encode(), "application/json", "http://a.example/", Rules())
    assert found.form == "feed"
    assert unpack_version(pack_version(found)) == found


def test_rules_that_somebody_else_kept_and_nobody_can_follow_are_told() -> None:
    with pytest.raises(Unreadable, match="no CSS selector"):
        read_version(b"<html><body><p>a</p>", "text/html", "http://a.example/", Rules(keep=("p[",)))


@pytest.mark.parametrize("tag", ["<p {}>", "<p x='>' {}>", "<p a'b {}>", '<p {}="', '<p x="<" {}'])
def test_a_tag_of_countless_attributes_is_not_read(tag: str) -> None:
    names = " ".join(f"a{number}" for number in range(6000))
    with pytest.raises(Unreadable):
        read_version(f"<html><body>{tag.format(names)}".encode(), "text/html", URL, Rules())
    with pytest.raises(Unreadable, match="a tag without end"):
        read_version(f"<rss><channel><item>{tag.format(names)}</item>".encode(), "text/xml", URL, Rules())
    assert read_version(f"<html><body><p title='{names}'>{names}".encode(), "text/html", URL, Rules()).items
