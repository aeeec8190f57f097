"""The text of pages that counts: rules about parts of a page, the main part, and noise."""

from __future__ import annotations

import pytest

from clarion.feeds.channels import Rules
from clarion.feeds.page_text import BadRules, NothingKept, check_rules, page_blocks, what_counts

PAGE = """<html><head><title>Shop</title></head><body><div id=top>Hello</div>
<div class="price main">12 EUR</div><ul><li>one</li><li>two <b>bold</b></li></ul>
<div class=old>was 15 EUR</div></body></html>"""


def texts(*keep: str, leave_out: tuple[str, ...] = ()) -> list[str]:
    return [block.text for block in page_blocks(PAGE, "https://a.example/", Rules(keep=keep, leave_out=leave_out))[1]]


def test_a_rule_keeps_parts_of_a_page_by_css_or_xpath() -> None:
    assert texts(".price") == texts("//div[contains(@class, 'price')]") == ["12 EUR"]
    assert texts("li", ".price") == ["12 EUR", "one", "two bold"], "in the order of the page"
    assert texts("ul", "li") == ["one", "two bold"], "nothing twice"


def test_a_rule_leaves_parts_of_a_page_out() -> None:
    assert texts(leave_out=("//ul", ".old", "#top")) == ["12 EUR"]
    assert texts("ul", leave_out=("li:first-child", "b")) == ["two"]


def test_the_text_after_a_part_that_is_left_out_stays() -> None:
    page = "<html><body><p>one <i>two</i> three</p></body></html>"
    assert page_blocks(page, "", Rules(leave_out=("i",)))[1][0].text == "one three"


def test_a_page_without_the_parts_to_keep_is_told() -> None:
    with pytest.raises(NothingKept, match="#nowhere"):
        texts("#nowhere")


@pytest.mark.parametrize(
    "rule",
    [
        "",
        " ",
        "div[",
        "p::before::x",
        "//div[",
        "//div[foo()]",
        "count(//p)",
        "(//p)[$x]",
        "x" * 301,
        "/a/b:c",
        "//p[re:test(., 'a')]",
    ],
)
def test_a_rule_that_is_no_selector_is_refused(rule: str) -> None:
    with pytest.raises(BadRules):
        check_rules(Rules(keep=(rule,)))


@pytest.mark.parametrize(
    "rule",
    [
        "//*[count(//*) > 1]",
        "//*[..//p]",
        "//*/following::*",
        "//p/following-sibling::p",
        "p:not(p ~ p)",
        "//*/preceding::p",
        "//a[b[c[d]]]",
        "//a//b//c",
        "//p[id('x')]",
    ],
)
def test_a_rule_that_may_take_too_long_is_refused(rule: str) -> None:
    with pytest.raises(BadRules):
        check_rules(Rules(leave_out=(rule,)))


@pytest.mark.parametrize(
    "rule", ["#a > .b", "tr:nth-child(2) td", "a[href^='/x']", "//div[@id='a']/p[2]", "(//table)[1]//td", "h2 + p"]
)
def test_rules_as_people_write_them_are_taken(rule: str) -> None:
    check_rules(Rules(keep=(rule,)))


def test_siblings_in_css_are_those_of_css() -> None:
    within = "<div><p>e</p><h2>f</h2><ul>g</ul><p>h</p></div>"
    page = f"<html><body><p>a</p><h2>b</h2><p>c</p><p class=x>d</p>{within}</body></html>"

    def kept(rule: str) -> str:
        return "".join(block.text for block in page_blocks(page, "", Rules(keep=(rule,)))[1])

    assert kept("h2 + p") == "c"
    assert kept("h2 ~ p") == "cdh"
    assert kept("h2 + p + p") == "d"
    assert kept("h2 + .x ~ p, div > h2 ~ p") == "h"
    assert kept("div > h2 + *") == "g"
    assert kept("div p:last-child, body > h2") == "bh"
    assert kept("p:not(.x)") == "aceh"


@pytest.mark.parametrize("rule", ["div div div p", "p ~ p ~ p", "p + p + p", "* * * *"])
def test_css_is_followed_on_a_page_of_many_levels_and_siblings(rule: str) -> None:
    assert page_blocks(_levels(100), "", Rules(keep=(rule,)))[1]


def test_an_xpath_is_not_followed_on_a_page_of_too_many_levels() -> None:
    with pytest.raises(NothingKept, match="too deep"):
        page_blocks(_levels(100), "", Rules(keep=("//div//p",)))
    assert page_blocks(_levels(10), "", Rules(keep=("//div//p",)))[1]


def _levels(count: int) -> str:
    return f"<html><body>{('<div>' * count + '<p>a</p>' * 9 + '</div>' * count) * 40}</body></html>"


def test_there_are_at_most_twenty_rules() -> None:
    with pytest.raises(BadRules, match="20"):
        check_rules(Rules(keep=("p",) * 21))


def test_a_block_has_the_heading_above_it_and_its_first_link() -> None:
    page = "<html><body><h2>Jobs</h2><ul><li><a href='/1'>Baker</a> in <a href='/2'>Celle</a></li></ul></body></html>"
    assert page_blocks(page, "https://a.example/x", Rules())[1][1][:3] == (
        "Baker in Celle",
        "Jobs",
        "https://a.example/1",
    )


def test_what_is_hidden_is_no_text() -> None:
    hidden = "<p hidden>a</p><p style='display: none'>b</p><script>c</script><p aria-hidden=true>d</p>"
    page = f"<html><body><p>seen</p>{hidden}</body></html>"
    assert [block.text for block in page_blocks(page, "", Rules())[1]] == ["seen"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Posted 5 minutes ago by Ann", "Posted 2 hours ago by Ann"),
        ("Updated: 17 Nov 2026, 10:15 UTC", "Updated: 18 Nov 2026, 09:00 UTC"),
        ("1,204 views | 3 comments", "1.3k views | 12 comments"),
        ("Comments (3)", "Comments (4)"),
        ("It\u2019s \u201cnew\u201d \u2013 at last", 'It\'s "new" - at  last'),
        ("Request ID: 8f14e45fceea", "Request ID: c9f0f895fb98"),
        ("vor 5 Minuten", "vor einer Stunde"),
        ("© 2025 Acme", "© 2019-2026 Acme"),
        ("Page generated in 0.21 seconds", "Page generated in 0.4 seconds"),
    ],
)
def test_noise_does_not_count(one: str, other: str) -> None:
    assert what_counts(one) == what_counts(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Deadline: 3 December 2026", "Deadline: 17 December 2026"),
        ("Open 9:00 - 17:00", "Open 9:00 - 16:00"),
        ("Price: 12 EUR", "Price: 13 EUR"),
        ("€", "£"),
        ("Version 2.4.0", "Version 2.4.1"),
        ("12,345 votes", "12,346 votes"),
        ("Bake for 45 minutes", "Bake for 55 minutes"),
        ("Rovers 28 points", "Rovers 31 points"),
    ],
)
def test_dates_times_and_numbers_of_the_text_count(one: str, other: str) -> None:
    assert what_counts(one) != what_counts(other)


def test_in_a_file_numbers_count_unless_a_label_says_what_they_are_of() -> None:
    assert what_counts("5 comments", line=True) != what_counts("6 comments", line=True)
    assert what_counts('"generated_at": "2026-11-17T10:00:00Z"', line=True) == what_counts(
        '"generated_at": "2026-11-18T10:00:00Z"', line=True
    )


def test_text_between_many_parts_that_are_taken_off_stays_in_its_order() -> None:
    page = "<html><body><p>start" + "".join(f"<input>{number} " for number in range(20_000)) + "</p><p>end</p>"
    _, (first, second) = page_blocks(page, "", Rules())
    assert first.text.split() == ["start0", *map(str, range(1, 20_000))]
    assert second.text == "end"
    _, (ruled, _) = page_blocks("<body><p>a<i>b</i>c<b>d</b><i>e</i>f<i>g</i>h</p>z", "", Rules(leave_out=("i",)))
    assert ruled.text == "acdfh"


def test_a_page_that_is_one_advertisement_around_another_is_read() -> None:
    page = "<html><body>" + "<div class='ad'>" * 200 + "<p>words</p>" * 3000
    assert len(page_blocks(page, "", Rules())[1]) == 3000
