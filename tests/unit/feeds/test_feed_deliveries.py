"""Who has something unread, how often it is tried, what people write, and how deltas read."""

from __future__ import annotations

import random

import pytest

from clarion.feeds.chat import ChatSettings, Command, Rates, read_command
from clarion.feeds.deltas import Change, Delta, readable_together
from clarion.feeds.feed_deliveries import retry_after_s, unread_by_recipient
from clarion.feeds.notify import composed
from clarion.model.errors import BadSettings
from clarion.wire.bodies import TopicRow


def _row(topic: str, next_offset: int, *subscriptions: tuple[bytes, int]) -> TopicRow:
    held = tuple((name, cursor, 0) for name, cursor in subscriptions)
    return TopicRow(topic.encode(), "keep", 0, next_offset, 0, held)


def test_a_look_tells_what_each_recipient_follows_and_where_something_is_unread() -> None:
    rows = [
        _row("feeds/http://a/", 5, (b"chat/bot@x/ann@x", 5), (b"chat/bot@x/ben@x", 3), (b"reader", 0)),
        _row("feeds/http://b/", 1, (b"chat/bot@x/ann@x", 0), (b"chat/bot@x/\xff", 0), (b"chat/other@x/ann@x", 0)),
    ]
    assert unread_by_recipient(rows, b"chat/bot@x/") == {
        "ann@x": {b"feeds/http://a/": False, b"feeds/http://b/": True},
        "ben@x": {b"feeds/http://a/": True},
    }


def test_retries_come_later_and_later_up_to_an_hour() -> None:
    dice = random.Random(1)
    waits_s = [retry_after_s(attempt, 5.0, dice) for attempt in (1, 2, 3, 4, 8, 10**6)]
    for wait_s, least_s in zip(waits_s, (5, 20, 80, 320, 3600, 3600), strict=True):
        assert least_s <= wait_s <= 1.2 * least_s


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("subscribe https://example.org/", Command("subscribe", "https://example.org/")),
        ("  SUB\n<https://example.org/>  please", Command("subscribe", "https://example.org/")),
        ("/follow example.org/feed", Command("subscribe", "https://example.org/feed")),
        ("https://example.org/a", Command("subscribe", "https://example.org/a")),
        ("Unsubscribe: https://example.org/", Command("unsubscribe", "https://example.org/")),
        ("unsub", Command("unsubscribe")),
        ("List", Command("list")),
        ("help!", Command("help")),
        ("?", Command("help")),
        ("", Command("unknown")),
        ("what is https://example.org/ about", Command("unknown", "what")),
        ("help me with this long thing", Command("unknown", "help")),
    ],
)
def test_commands_are_read_however_they_are_written(text: str, command: Command) -> None:
    assert read_command(text) == command


def test_who_writes_too_much_is_told_once_and_then_left_alone_for_a_while() -> None:
    rates = Rates(3)
    assert [rates.take("ann", 0.1 * place) for place in range(6)] == ["yes", "yes", "yes", "told", "no", "no"]
    assert rates.take("ben", 0.6) == "yes"
    assert rates.take("ann", 60.0) == "yes"


def test_an_account_is_a_bare_address_and_strangers_are_those_that_nobody_named() -> None:
    settings = ChatSettings(jid="corona@example.org/x", password="", allow=("example.org", "ann@example.net"))
    assert settings.account == "corona@example.org"
    told = [
        settings.allows(who) for who in ("ben@example.org", "ann@example.net", "ben@example.net", "example.org@evil")
    ]
    assert told == [True, True, False, False]
    with pytest.raises(BadSettings, match="no account"):
        ChatSettings(jid="example.org", password="")


def _delta(version: int, title: str, url: str = "http://a/") -> Delta:
    return Delta(
        url=url, version=version, kind="delta", form="feed", title="A page", changes=(Change(kind="new", title=title),)
    )


def test_deltas_together_are_bounded_and_those_without_room_are_counted() -> None:
    deltas = [_delta(version, "x" * 100) for version in range(1, 10)]
    text = readable_together(deltas, 500)
    assert len(text) <= 500
    assert text.endswith("\n\n… and 6 more")
    assert len(readable_together([_delta(1, "x" * 299)], 100)) <= 100
    assert readable_together(deltas[:1], 500) == deltas[0].readable()


def test_what_changed_in_a_page_is_shown_in_its_place() -> None:
    changes = tuple(
        Change(kind="changed", title="Prices", before=before, text=after)
        for before, after in (("Apples cost 3 euros", "Apples cost 5 euros"), ("a b", "a b c"), ("a b c", "a c"))
    )
    delta = Delta(url="http://a/", version=2, kind="delta", form="page", title="Prices", changes=changes)
    assert delta.readable().splitlines()[1:-1] == ["~ Apples cost [3 → 5] euros", "~ a b [+ c]", "~ a [- b] c"]


def test_nothing_in_a_delta_steers_a_screen_or_breaks_a_stream() -> None:
    changes = (
        Change(kind="changed", before="was\x1b[2J", text="is \u202enow\ud800"),
        Change(kind="gone", before="old"),
    )
    title = "A\x00 page\n\n+ forged"
    delta = Delta(url="http://a/", version=1, kind="delta", form="page", title=title, changes=changes)
    assert delta.readable().splitlines() == [
        "A page + forged: 1 changed, 1 gone", "~ [was [2J → is now]", "- old", "http://a/",
    ]  # fmt: skip


def test_a_notification_tells_the_attempt_and_calls_nobody() -> None:
    title, text = composed([_delta(1, "@everyone look"), _delta(1, "other", "http://b/")], 3, 4096)
    assert title == "2 updates of 2 channels"
    assert "@everyone" not in text
    assert text.endswith("(attempt 3: some of this may have come before)")
    assert composed([_delta(1, "x")], 1, 4096)[0] == "A page: 1 new"
