"""What changed between two versions, as people would say it: entries, pieces of text, forms, and bounds."""

from __future__ import annotations

import pytest

from clarion.feeds.channels import Rules
from clarion.feeds.content import MOST_KNOWN, Item, Unreadable, Version, pack_version, read_version
from clarion.feeds.deltas import Change
from clarion.feeds.difference import MOST_CHANGED_BYTES, MOST_CHANGES, FormChanged, difference, fitting


def read(body: str, kind: str = "") -> Version:
    return read_version(body.encode(), kind, "https://a.example/", Rules())


def feed(*names: str) -> Version:
    """Return a feed of entries, each written as its id or as `id=text`."""
    items = [name.partition("=") for name in names]
    listed = "".join(f"<item><guid>{name}</guid><title>Entry {name} {text}</title></item>" for name, _, text in items)
    return read(f'<rss version="2.0"><channel><title>News</title>{listed}</channel></rss>')


def page(*blocks: str) -> Version:
    body = "".join(f"<p>{block}</p>" for block in blocks)
    return read(f"<html><head><title>Page</title></head><body>{body}</body></html>", "text/html")


def told(before: Version | None, after: Version) -> list[str]:
    marks = {"new": "+", "changed": "~", "gone": "-"}
    return [
        marks[change.kind] + (change.id.rsplit("/", 1)[-1] if change.id else change.text or change.before)
        for change in difference(before, after)[0]
    ]


def told_in_turn(*versions: Version) -> list[list[str]]:
    """Return what is told of each version but the first, when each is compared with what was kept of those before."""
    kept, all_told = versions[0], []
    for version in versions[1:]:
        all_told.append(told(kept, version))
        _, kept = difference(kept, version)
    return all_told


def test_a_first_version_is_all_new() -> None:
    assert told(None, feed("2", "1")) == ["+2", "+1"]


def test_entries_are_new_changed_or_gone() -> None:
    assert told(feed("3", "2", "1"), feed("4", "3=edited", "1")) == ["+4", "~3", "-2"]


def test_a_changed_entry_has_what_it_was() -> None:
    one = read('<rss version="2.0"><channel><item><guid>1</guid><description>one</description></item></channel></rss>')
    two = read('<rss version="2.0"><channel><item><guid>1</guid><description>two</description></item></channel></rss>')
    (change,) = difference(one, two)[0]
    assert (change.kind, change.before, change.text) == ("changed", "one", "two")


def test_an_entry_that_falls_off_the_old_end_is_not_gone() -> None:
    assert told(feed("3", "2", "1"), feed("4", "3", "2")) == ["+4"]
    assert told(feed("3", "2", "1"), feed("9", "8", "7")) == ["+9", "+8", "+7"]
    assert told(feed("3", "2", "1"), feed()) == []


def test_an_entry_that_comes_back_is_not_new_again_and_gone_only_once() -> None:
    both, one = feed("3", "2", "1"), feed("3", "1")
    assert told_in_turn(both, one, both, one, both) == [["-2"], [], [], []]


def test_an_old_entry_that_comes_back_with_another_text_is_changed() -> None:
    assert told_in_turn(feed("2", "1"), feed("3", "2"), feed("1=bumped", "3", "2")) == [["+3"], ["~1"]]


def test_entries_in_another_order_are_no_change() -> None:
    before, after = feed("3", "2", "1"), feed("1", "3", "2")
    assert told(before, after) == []
    assert before.hash == after.hash


def test_entries_whose_ids_alone_are_others_are_no_change() -> None:
    def moved(prefix: str) -> Version:
        items = "".join(
            f"<item><guid>{prefix}{at}</guid><title>T{at}</title><link>http://b.example/{at}</link></item>"
            for at in range(3)
        )
        return read(f'<rss version="2.0"><channel>{items}</channel></rss>')

    assert told_in_turn(moved("a"), moved("b"), moved("a")) == [[], []]


def test_what_a_feed_remembers_is_bounded() -> None:
    kept = feed("0")
    for turn in range(4):
        items = (Item(f"{turn}-{at}", "", "", "", "", 0, b"12345678") for at in range(900))
        _, kept = difference(kept, Version("feed", "", tuple(items)))
    assert len(kept.known) == MOST_KNOWN
    assert len(pack_version(kept)) < 100_000


def test_the_version_to_keep_has_the_hash_of_the_one_that_was_read() -> None:
    before, after = feed("3", "2", "1"), feed("4", "2")
    assert difference(before, after)[1].hash == after.hash


def test_pieces_of_a_page_are_new_changed_or_gone() -> None:
    before = page("The first piece of text", "The second piece of text", "Something else entirely")
    after = page("The first piece of text", "The second bit of text", "A new one about the weather in May")
    assert told(before, after) == ["~The second bit of text", "~A new one about the weather in May"]
    assert told(page("one", "two"), page("one", "two", "three")) == ["+three"]
    assert told(page("one", "two", "three"), page("one", "three")) == ["-two"]


def test_pieces_that_moved_are_no_change() -> None:
    assert told(page("one", "two", "three"), page("three", "one", "two")) == []


def test_a_piece_that_is_there_once_more_is_new() -> None:
    assert told(page("one", "two"), page("one", "two", "one")) == ["+one"]


def test_text_that_was_around_the_main_text_and_is_in_it_now_is_no_change() -> None:
    before = page("one", "two")
    after = page("one", "two", "Imprint", "Contact")
    around = Version(before.form, before.title, before.items, 0, tuple(item.mark for item in after.items[2:]))
    assert told(around, after) == []
    assert told(after, around) == []


def test_a_feed_that_answers_with_a_page_is_kept_as_it_was() -> None:
    with pytest.raises(FormChanged, match="the version before is kept") as raised:
        difference(feed("1"), page("502 Bad gateway"))
    assert isinstance(raised.value, Unreadable)


def test_another_form_that_persists_is_one_change() -> None:
    (change,), kept = difference(feed("1"), page("We have moved"), anew=True)
    assert change == Change(kind="changed", title="Page", before="It was a feed: News", text="It is a page: Page")
    assert kept.form == "page"


def test_a_file_changes_as_a_whole() -> None:
    one = read_version(b"%PDF\0a", "application/pdf", "", Rules())
    two = read_version(b"%PDF\0bc", "application/pdf", "", Rules())
    (change,) = difference(one, two)[0]
    assert (change.before, change.text) == ("6 bytes of application/pdf", "7 bytes of application/pdf")
    assert difference(one, one)[0] == ()


def test_a_page_that_is_another_altogether_is_compared_in_bounded_time() -> None:
    before = page(*(f"{at} was here" for at in range(4000)))
    after = page(*(f"{at} is there" for at in range(4000)))
    changes, _ = difference(before, after)
    assert len(changes) <= 8000


def test_a_delta_has_so_many_changes_and_bytes_and_tells_what_is_left_out() -> None:
    small = [Change(kind="new", text="x")] * 150
    assert (len(fitting(small)[0]), fitting(small)[1]) == (MOST_CHANGES, 50)
    large = [Change(kind="new", text="x" * 20_000)] * 50
    fit, left_out = fitting(large)
    assert sum(len(change.text) for change in fit) <= MOST_CHANGED_BYTES
    assert len(fit) + left_out == 50
    assert fitting([]) == ((), 0)
