"""Acks: one request under way, the others join it; and what a caller may choose."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.unit.subscriber.talking import Ranges, Talk

from clarion.model.errors import (
    InvalidRequest,
    LimitReached,
    PermanentError,
)
from clarion.subscriber import consumer as consumer_module
from clarion.subscriber.subscriber_core import Extend, check_same_use, options_of, start_fields
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def acking(talk: Talk) -> Ranges:
    acked: Ranges = talk.pick(Kind.ACK).body.acked
    return acked


def ten_messages() -> Talk:
    talk = Talk()
    talk.one(Kind.GET).deliver(0, *(b"%d" % place for place in range(10)))
    return talk


def test_one_ack_is_under_way_and_the_others_join_meanwhile() -> None:
    talk = ten_messages()
    messages = talk.hand_out()
    messages[0].ack()
    first = talk.one(Kind.ACK)
    assert first.body.acked == ((0, 1),)
    for place in (2, 1, 9, 3, 5, 4):
        messages[place].ack()
    assert not talk.reading.acks_done()
    first.done()
    second = talk.one(Kind.ACK)
    assert second.body.acked == ((1, 6), (9, 10)), "in as few ranges as they need, oldest first"
    second.done()
    assert talk.reading.acks_done()


def test_what_was_handed_out_is_acked_when_told_to() -> None:
    talk = ten_messages()
    talk.reading.ack_handed()
    assert talk.asked == []
    for part in (talk.reading.take(2)[0], talk.reading.take(1)[0]):
        talk.mark_handed(part)
    talk.reading.ack_handed()
    assert acking(talk) == ((0, 3),)
    talk.reading.ack_handed()
    assert talk.asked == []


def test_acks_refused_by_a_full_disk_are_sent_again_with_those_made_since() -> None:
    talk = ten_messages()
    messages = talk.hand_out()
    messages[0].ack()
    talk.one(Kind.ACK).refuse(Code.DISK_FULL, retry_after_s=0.2)
    messages[1].ack()
    assert talk.asked == []
    assert talk.reading.on_time(talk.now_s) == talk.now_s + 0.2
    assert not talk.reading.acks_done()
    talk.now_s += 0.2
    assert talk.reading.on_time(talk.now_s) is None
    assert acking(talk) == ((0, 2),)
    talk.reading.raise_error()


def test_acks_refused_for_good_fail_the_reading() -> None:
    talk = ten_messages()
    talk.hand_out()[1].ack()
    talk.one(Kind.ACK).refuse(Code.LIMIT)
    with pytest.raises(LimitReached):
        talk.reading.raise_ack_error()


def test_a_request_carries_a_bounded_number_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_ACK_RANGES_AT_ONCE", 2)
    talk = ten_messages()
    messages = talk.hand_out()
    messages[9].ack()
    for place in (6, 4, 2, 0):
        messages[place].ack()
    talk.one(Kind.ACK).done()
    (first,) = talk.asked
    assert acking(talk) == ((0, 1), (2, 3))
    first.done()
    assert acking(talk) == ((4, 5), (6, 7))


def test_nothing_can_be_given_back_to_a_subscription_of_ones_own() -> None:
    talk = ten_messages()
    message = talk.hand_out()[0]
    with pytest.raises(PermanentError, match="not shared"):
        message.nack()
    assert talk.asked == []
    talk.run(Extend(message.part.lease, 0, 1)).end()
    assert talk.asked == [], "there is no lease"


# Choices.


def test_a_start_is_new_earliest_an_offset_or_a_time() -> None:
    assert start_fields("new") == ("new", 0)
    assert start_fields("earliest") == ("earliest", 0)
    assert start_fields(5) == ("offset", 5)
    assert start_fields(datetime(2020, 1, 1, tzinfo=UTC)) == ("time", 1_577_836_800_000_000)
    for wrong in ("latest", None, 1.5):
        with pytest.raises(ValueError, match="start is"):
            start_fields(wrong)


def test_a_subscription_that_is_there_must_be_used_as_it_is() -> None:
    alone, shared = options_of(False, None, 15.0, 5, None), options_of(True, None, 15.0, 5, None)
    by_key, other_lease = options_of(True, "key", 15.0, 5, None), options_of(True, None, 60.0, 0, 86_400)
    check_same_use(b"news", b"reader", shared, other_lease)
    for asked, found in ((alone, shared), (shared, alone), (shared, by_key), (by_key, shared)):
        with pytest.raises(InvalidRequest, match="reader subscribes to news already"):
            check_same_use(b"news", b"reader", asked, found)
    with pytest.raises(InvalidRequest, match="order"):
        options_of(False, "key", 15.0, 5, None)
