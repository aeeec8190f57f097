"""What a node remembers of a channel, and what follows from each answer."""

from __future__ import annotations

import random

import msgspec

from clarion.feeds.channels import Rules
from clarion.feeds.content import Version, read_version
from clarion.feeds.poll_schedule import Slot
from clarion.feeds.polled_channel import PolledChannel, Trouble
from clarion.feeds.versions import Found, Head, Outcome, is_late

SLOT = Slot(60.0, 10.0, 1, True)


def _channel() -> PolledChannel:
    return PolledChannel("feeds/http://a.example/", "http://a.example/", "a.example", Rules(), 1)


def _version(text: str) -> Version:
    return read_version(f"{text}\n".encode(), "text/plain", "http://a.example/", Rules())


def _found(text: str) -> Found:
    return Found(_version(text), f'"{text}"', "", len(text), 1, 2)


def _head(text: str, version: int = 1) -> Head:
    return Head(url="http://a.example/", version=version, hash=_version(text).hash, form="lines", etag=f'"{text}"')


def test_the_first_request_of_a_node_is_conditional_by_what_others_found() -> None:
    channel = _channel()
    channel.on_head(_head("one"))
    assert channel.etag == '"one"'
    assert not channel.on_found(_found("one"), "body")


def test_what_was_found_waits_for_the_broker_in_order() -> None:
    channel = _channel()
    assert channel.on_found(_found("one"), "b1")
    assert channel.on_found(_found("two"), "b2")
    assert not channel.on_found(_found("two"), "b3")
    assert [found.content.items[0].text for found in channel.found] == ["one", "two"]


def test_a_node_whose_broker_knows_something_else_asks_unconditionally() -> None:
    channel = _channel()
    channel.on_head(_head("one"))
    channel.on_found(_found("two"), "b2")
    channel.found.clear()  # it was committed, and then the broker's store went back
    channel.on_head(_head("one"))
    assert (channel.etag, channel.body_hash, channel.hash) == ("", "", "")


def test_an_old_version_counts_when_the_owner_has_seen_it_twice() -> None:
    channel = _channel()
    found = _found("old")
    assert not channel.is_settled(found, is_owner=True)
    channel.on_outcome(found, Outcome("old", _head("new")), is_owner=True)
    assert channel.etag == ""  # it is looked at once more
    assert channel.is_settled(found, is_owner=True)
    assert not channel.is_settled(found, is_owner=False)
    channel.on_outcome(_found("new"), Outcome("known", _head("new")), is_owner=True)
    assert not channel.is_settled(found, is_owner=True)


def test_a_page_in_the_place_of_a_feed_counts_when_it_stays() -> None:
    channel = _channel()
    found = _found("an error page")
    for _ in range(3):
        assert not channel.is_settled(found, is_owner=True)
        channel.on_other_form()
    assert channel.is_settled(found, is_owner=True)


def test_what_was_found_too_late_is_looked_at_again_at_once() -> None:
    channel = _channel()
    channel.polled_at_s = 100.0
    found = _found("one")
    channel.on_found(found, "b1")
    channel.on_outcome(found, Outcome("late", _head("two", 2)), is_owner=False)
    assert channel.due_s(SLOT, 100.5, 0.0) == 100.5
    assert channel.etag == ""


def test_a_channel_that_nobody_has_seen_is_polled_at_once_by_its_owner() -> None:
    channel = _channel()
    channel.on_head(None)
    assert channel.due_s(SLOT, 100.0, 0.5) == 100.5
    assert channel.due_s(SLOT._replace(is_owner=False), 100.0, 0.5) == 130.0
    channel.polled_at_s = 100.5
    assert channel.due_s(SLOT, 100.6, 0.5) == 130.0


def test_errors_are_answered_with_patience_and_jitter() -> None:
    channel = _channel()
    dice = random.Random(1)
    waits = []
    for _ in range(5):
        channel.on_failure(Trouble(kind="timeout", text="t", at_us=1), 1000.0, 60.0, None, dice)
        waits.append(channel.not_before_s - 1000.0)
    assert all(30.0 * 2**number <= wait <= 60.0 * 2**number for number, wait in enumerate(waits))
    assert channel.trouble is not None
    assert channel.trouble.failures == 5
    channel.on_failure(Trouble(kind="throttled", text="t", at_us=1), 1000.0, 60.0, 7200.0, dice)
    assert channel.not_before_s >= 1000.0 + 7200.0


def test_a_channel_that_nobody_has_seen_is_tried_again_soon() -> None:
    channel = _channel()
    channel.on_failure(Trouble(kind="timeout", text="t", at_us=1), 1000.0, 1800.0, None, random.Random(1))
    assert channel.not_before_s <= 1060.0
    channel.on_head(_head("one"))
    channel.on_failure(Trouble(kind="timeout", text="t", at_us=1), 1000.0, 1800.0, None, random.Random(1))
    assert channel.not_before_s >= 1900.0


def test_people_are_told_of_trouble_ever_more_rarely() -> None:
    channel = _channel()
    told = []
    for number in range(1, 40):
        channel.on_failure(Trouble(kind="timeout", text="t", at_us=1), 0.0, 1.0, None, random.Random(1))
        if channel.is_to_be_told():
            told.append(number)
    assert told == [2, 4, 8, 16, 32]


def test_other_rules_have_everything_looked_at_anew() -> None:
    channel = _channel()
    channel.on_head(_head("one"))
    channel.on_record(channel.url, Rules(), 5)
    assert channel.etag
    channel.on_record(channel.url, Rules(keep=("main",)), 5)
    assert not channel.etag
    assert channel.watched.subscribers == 5
    assert msgspec.json.encode(channel.rules)


def test_a_new_owner_makes_up_for_the_moment_that_a_failed_one_may_have_missed() -> None:
    channel = _channel()
    channel.on_head(_head("one"))
    assert channel.due_s(SLOT, 75.0, 0.0, silent_s=8.0) == 75.0  # the moment was at 70
    assert channel.due_s(SLOT, 79.0, 0.0, silent_s=8.0) == 130.0  # longer ago: the other lived then
    assert channel.due_s(SLOT._replace(is_owner=False), 75.0, 0.0, silent_s=8.0) == 130.0
    channel.polled_at_s = 70.1
    assert channel.due_s(SLOT, 75.0, 0.0, silent_s=8.0) == 130.0  # it was there itself
    channel.polled_at_s = 10.0  # it was the owner before, and then another
    assert channel.due_s(SLOT, 75.0, 0.0, silent_s=8.0) == 75.0


def test_what_was_asked_for_after_a_version_was_known_is_not_too_late_for_it_again() -> None:
    channel = _channel()
    ahead = msgspec.structs.replace(_head("one"), seen_until_us=10**15)  # by a node whose clock was set wrong
    channel.on_found(_found("two"), "b2")
    channel.on_outcome(channel.found.popleft(), Outcome("late", ahead), is_owner=True)
    channel.on_found(_found("under way"), "b3")
    assert channel.found.popleft().began_us < ahead.seen_until_us
    channel.soon = False  # the next request begins
    channel.on_found(_found("two"), "b2")
    assert not is_late(ahead, channel.found[0])
    channel.on_outcome(channel.found.popleft(), Outcome("made", _head("two", 2)), is_owner=True)
    channel.on_found(_found("three"), "b3")
    assert channel.found[0].began_us == 1


def test_a_clock_that_was_ahead_for_a_moment_keeps_no_channel_from_being_polled() -> None:
    channel = _channel()
    channel.on_head(_head("one"))
    month_s = 30 * 86_400.0
    channel.polled_at_s = 1000.0 + month_s
    assert channel.due_s(SLOT, 1000.0, 0.0) == 1030.0
    channel.on_failure(Trouble(kind="timeout", text="", at_us=0), 1000.0 + month_s, 60.0, None, random.Random(1))
    assert channel.due_s(SLOT, 1000.0, 0.0) == 1030.0
    channel.on_failure(Trouble(kind="timeout", text="", at_us=0), 1000.0, 60.0, 86_400.0, random.Random(1))
    assert channel.due_s(SLOT, 1000.0, 0.0) > 1000.0 + 86_400.0
