"""Versions: which follows which, and what of it is told."""

from __future__ import annotations

from clarion.feeds.broker_clock import BrokerClock
from clarion.feeds.channels import Rules
from clarion.feeds.content import Version, read_version
from clarion.feeds.versions import Found, Head, Step, is_old, next_step

URL = "http://a.example/f.xml"


def _feed(*titles: str) -> Version:
    items = "".join(f"<item><guid>{title}</guid><title>{title}</title></item>" for title in titles)
    body = f"<rss version='2.0'><channel><title>F</title>{items}</channel></rss>"
    return read_version(body.encode(), "application/rss+xml", URL, Rules())


def _found(content: Version, at_us: int, modified: str = "") -> Found:
    return Found(content, "", modified, 100, at_us, at_us + 10)


def _step(head: Head | None, before: Version | None, content: Version, at_us: int) -> Step:
    return next_step(head, before, _found(content, at_us), URL, "n1", settled=False)


def test_the_first_version_is_a_snapshot() -> None:
    step = _step(None, None, _feed("a", "b"), 1000)
    assert (step.head.version, step.delta.kind, step.told) == (1, "snapshot", True)
    assert [change.title for change in step.delta.changes] == ["a", "b"]


def test_the_next_version_is_what_changed() -> None:
    first = _step(None, None, _feed("a"), 1000)
    second = _step(first.head, first.content, _feed("b", "a"), 2000)
    assert (second.head.version, second.delta.kind) == (2, "delta")
    assert [(change.kind, change.title) for change in second.delta.changes] == [("new", "b")]
    assert second.head.recent == (first.head.hash,)
    assert second.head.first_at_us == first.head.first_at_us


def test_of_two_that_were_under_way_together_neither_takes_the_others_place() -> None:
    first = _step(None, None, _feed("a"), 1000)
    second = _step(first.head, first.content, _feed("c", "b", "a"), 2000)
    older = _step(second.head, second.content, _feed("b", "a"), 2005)
    assert older.late
    assert not older.told
    assert older.head == second.head


def test_an_entry_that_came_and_went_while_the_broker_was_away_is_told_once() -> None:
    first = _step(None, None, _feed("a"), 1000)
    second = _step(first.head, first.content, _feed("c", "a"), 3000)
    older = _step(second.head, second.content, _feed("b", "a"), 2000)
    assert older.told
    assert [(change.kind, change.title) for change in older.delta.changes] == [("new", "b")]
    assert older.head.version == 3
    assert older.head.hash == second.head.hash
    again = _step(older.head, older.content, _feed("b", "a"), 2500)
    assert not again.told
    after = _step(older.head, older.content, _feed("c", "b", "a"), 4000)
    assert [change.title for change in after.delta.changes if change.kind == "new"] == []


def test_a_version_in_which_nothing_counts_is_told_to_nobody() -> None:
    first = _step(None, None, _feed("c", "b", "a"), 1000)
    second = _step(first.head, first.content, _feed("c", "b"), 2000)  # the oldest fell off
    assert not second.told
    assert second.head.version == 1
    assert second.head.hash != first.head.hash


def test_a_server_that_lags_behind_is_not_believed_unless_it_says_that_it_was_modified_since() -> None:
    first = _step(None, None, _feed("a"), 1000)
    second = next_step(
        first.head,
        first.content,
        _found(_feed("b", "a"), 2000, "Tue, 03 Nov 2026 10:00:00 GMT"),
        URL,
        "n1",
        settled=False,
    )
    assert is_old(second.head, _found(_feed("a"), 3000))
    assert is_old(second.head, _found(_feed("a"), 3000, "Tue, 03 Nov 2026 09:00:00 GMT"))
    assert is_old(second.head, _found(_feed("a"), 3000, "no time at all"))
    assert not is_old(second.head, _found(_feed("a"), 3000, "Tue, 03 Nov 2026 11:00:00 GMT"))
    assert not is_old(second.head, _found(_feed("c"), 3000))


def test_versions_from_long_before_the_newest_are_known_as_old() -> None:
    step = _step(None, None, _feed("a"), 1000)
    for number, titles in enumerate((("b", "a"), ("c", "b", "a"), ("d", "c", "b", "a")), 2):
        step = _step(step.head, step.content, _feed(*titles), 1000 * number)
    for titles in (("a",), ("b", "a"), ("c", "b", "a")):
        assert is_old(step.head, _found(_feed(*titles), 9000))


def test_the_brokers_clock_is_known_as_well_as_the_quickest_heartbeat_tells() -> None:
    clock = BrokerClock()
    assert clock.at_the_latest_us(1e6) < 1e12 < clock.at_the_earliest_us(1e6)
    clock.on_sent(1, 100.0, 104.0)
    clock.on_committed(1, 1102.5)
    clock.on_sent(2, 110.0, 110.2)
    clock.on_committed(2, 1110.1)
    clock.on_committed(7, 0.0)  # nobody sent it
    assert abs(clock.now_s(120.0) - 1120.0) < 0.11
    assert clock.at_the_latest_us(120.0) <= 1_120_000_000 <= clock.at_the_earliest_us(120.0)


def test_when_a_clock_is_set_the_next_heartbeat_is_believed_and_no_earlier_one() -> None:
    clock = BrokerClock()
    for number, (began_s, acked_s, committed_s) in enumerate(
        [
            (100.0, 100.1, 1100.05),
            (5000.0, 5000.4, 1102.2),  # it was set ahead, and this took longer
        ]
    ):
        clock.on_sent(number, began_s, acked_s)
        clock.on_committed(number, committed_s)
    assert clock.now_s(5001.0) == 1103.0
    clock.on_sent(7, 5002.0, 102.0)  # set back while it was under way: this tells nothing
    clock.on_committed(7, 1104.0)
    assert clock.now_s(5003.0) == 1105.0
