"""Deliveries: what samples of cursors tell, and their payloads."""

from __future__ import annotations

import json

from clarion.pipeline.jobs.deliveries import Cursor, CursorWatch, Delivery, encode


def test_the_payload_of_a_delivery_is_a_json_object_of_its_fields() -> None:
    assert json.loads(encode(Delivery("alerts", "b64:_wA=", 3, 9, 1_700_000_000_000_000))) == {
        "topic": "alerts",
        "subscription": "b64:_wA=",
        "first_offset": 3,
        "end_offset": 9,
        "at_us": 1_700_000_000_000_000,
    }


def test_a_cursor_that_moved_was_acked_by_then_and_one_first_seen_tells_from_where_on() -> None:
    watch = CursorWatch()
    assert watch.sample([Cursor("t", 1, "a", 10), Cursor("t", 1, "b", 0)], 1000) == [
        Delivery("t", "a", 10, 10, 1000),
        Delivery("t", "b", 0, 0, 1000),
    ]
    assert watch.sample([Cursor("t", 1, "a", 10), Cursor("t", 1, "b", 4)], 2000) == [Delivery("t", "b", 0, 4, 2000)]
    assert watch.sample([Cursor("t", 1, "a", 15), Cursor("t", 1, "b", 4)], 3000) == [Delivery("t", "a", 10, 15, 3000)]


def test_what_is_read_again_after_a_seek_back_is_delivered_once() -> None:
    watch = CursorWatch()
    watch.sample([Cursor("t", 1, "a", 0)], 0)
    watch.sample([Cursor("t", 1, "a", 10)], 1)
    assert watch.sample([Cursor("t", 1, "a", 3)], 2) == []
    assert watch.sample([Cursor("t", 1, "a", 8)], 3) == []
    assert watch.sample([Cursor("t", 1, "a", 12)], 4) == [Delivery("t", "a", 10, 12, 4)]


def test_a_topic_made_anew_under_the_same_name_is_another() -> None:
    watch = CursorWatch()
    watch.sample([Cursor("t", 1, "a", 100)], 0)
    assert watch.sample([Cursor("t", 2, "a", 0)], 1) == [Delivery("t", "a", 0, 0, 1)]
    assert watch.sample([Cursor("t", 2, "a", 5)], 2) == [Delivery("t", "a", 0, 5, 2)]


def test_a_subscription_not_seen_for_a_while_goes_on_where_it_was() -> None:
    watch = CursorWatch()
    watch.sample([Cursor("t", 1, "a", 5)], 0)
    watch.sample([], 1)
    assert watch.sample([Cursor("t", 1, "a", 7)], 2) == [Delivery("t", "a", 5, 7, 2)]
