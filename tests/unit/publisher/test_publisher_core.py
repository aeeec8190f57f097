"""What leaves when, what is sent again, and what fails."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.publisher.talking import TOPIC, Talk, numbers, payloads

from clarion.model.errors import (
    DiskFull,
    InvalidRequest,
    LimitReached,
    NoSubscriber,
    PublisherExpired,
    TooLarge,
    VersionMismatch,
)
from clarion.publisher import outgoing_batch
from clarion.session.exchange import Wake
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_nothing_leaves_before_the_publisher_has_an_id() -> None:
    talk = Talk(registered=False)
    talk.add(b"one", b"two")
    assert [asked.kind for asked in talk.pump()] == [Kind.REGISTER]
    assert talk.pump() == [], "it asks once"


def test_who_waits_for_a_batch_is_woken_once_when_it_is_done() -> None:
    talk = Talk()
    (batch,) = talk.add(b"one")
    (asked,) = talk.pump()
    talk.woken.clear()
    talk.store(asked, first_offset=9)
    talk.store(asked, first_offset=10)
    talk.pump()
    assert (talk.woken, batch.done, batch.first_offset) == ([Wake(batch)], True, 9)


def test_what_gathered_leaves_as_one_batch_and_is_numbered_from_one() -> None:
    talk = Talk(registered=False)
    batches = talk.add(b"one", b"two")
    talk.turn(0)
    talk.register(7)
    (asked,) = talk.pump()
    batch = asked.batch
    assert (batch.payloads(), batch.number, batch.publisher) == ([b"one", b"two"], 1, 7)
    talk.store(asked, first_offset=5)
    assert batches[0] is batches[1]
    assert (batches[0].done, batches[0].first_offset, batches[0].error) == (True, 5, None)
    assert talk.core.buffered_bytes == 0


def test_a_message_that_a_signal_kept_from_its_batch_is_waited_for_by_nobody() -> None:
    talk = Talk()
    builder = talk.core._gathering(TOPIC, 1, 10, 0, 0.0, delayed=False).builder  # and then whoever put it was struck
    assert builder.count == 0
    assert talk.core.unfinished() == []
    assert talk.pump() == []
    assert not talk.core.wants_turn()
    talk.add(b"the next")
    assert payloads(talk.pump()) == [[b"the next"]]


def test_numbers_have_no_gaps_and_stamps_strictly_increase() -> None:
    talk = Talk()
    asked = talk.add_and_pump(b"a", b"b", b"c")
    assert numbers(asked) == [2, 3, 4]
    stamps = [item.batch.stamp for item in asked]
    assert stamps == sorted(set(stamps))


def test_no_more_than_the_window_is_under_way_and_meanwhile_the_next_batch_gathers() -> None:
    talk = Talk(in_flight=2)
    asked = talk.add_and_pump(b"a", b"b", b"c", b"d")
    assert payloads(asked) == [[b"a"], [b"b"]]
    talk.store(asked[0])
    assert payloads(talk.pump()) == [[b"c", b"d"]]


def test_credit_holds_back_all_but_one_batch() -> None:
    talk = Talk(in_flight=8)
    (first,) = talk.add_and_pump(b"a")
    talk.store(first, credit=0)
    queue = talk.core.queues[TOPIC]
    queue.credit = queue.sent + 2
    asked = talk.add_and_pump(b"b", b"c", b"d", b"e")
    assert payloads(asked) == [[b"b"], [b"c"]]
    talk.store(asked[0], credit=0)
    assert talk.pump() == [], "one is under way, and there is no credit for more"
    talk.store(asked[1], credit=0)
    assert payloads(talk.pump()) == [[b"d", b"e"]], "one batch may always be under way"


def test_credit_expires() -> None:
    talk = Talk(in_flight=8)
    (first,) = talk.add_and_pump(b"a")
    talk.store(first, credit=1 << 40, credit_s=5.0)
    assert payloads(talk.add_and_pump(b"b", b"c")) == [[b"b"], [b"c"]]
    talk.now_s += 5.0
    assert talk.add_and_pump(b"d") == []


def test_after_a_full_disk_only_what_was_refused_is_sent_again_in_order() -> None:
    talk = Talk()
    asked = talk.add_and_pump(b"a", b"b", b"c")
    talk.store(asked[0], credit=1 << 40)
    asked[1].refuse(Code.DISK_FULL, retry_after_s=0.2)
    asked[2].refuse(Code.GAP, expected=3)
    assert talk.pump() == []
    assert talk.turn() == pytest.approx(talk.now_s + 0.2)
    assert isinstance(talk.core.stats()["refusal"], DiskFull)
    talk.now_s += 0.2
    again = talk.pump()
    assert [item.blobs for item in again] == [asked[1].blobs, asked[2].blobs], "the very same bytes"
    assert talk.pump() == []
    talk.store(again[0], credit=1 << 40)
    talk.store(again[1], credit=1 << 40)
    assert talk.core.buffered_bytes == 0
    assert talk.core.stats()["refusal"] is None


def test_what_is_still_under_way_is_not_sent_again_with_what_was_refused() -> None:
    talk = Talk()
    asked = talk.add_and_pump(b"a", b"b")
    asked[0].refuse(Code.DISK_FULL, retry_after_s=0.2)
    talk.now_s += 0.2
    assert payloads(talk.pump()) == [[b"a"]]


def test_nothing_new_overtakes_what_waits_to_be_sent_again() -> None:
    talk = Talk()
    (asked,) = talk.add_and_pump(b"a")
    asked.refuse(Code.TOPIC_FULL, retry_after_s=1.0)
    assert talk.add_and_pump(b"b") == []
    talk.now_s += 1.0
    assert payloads(talk.pump()) == [[b"a"], [b"b"]]


@pytest.mark.parametrize(("code", "error"), [(Code.NO_SUBSCRIBER, NoSubscriber), (Code.TOO_LARGE, TooLarge)])
def test_a_refusal_that_used_its_number_fails_that_batch_alone(code: Code, error: type[Exception]) -> None:
    talk = Talk()
    (outgoing,) = talk.add(b"a")
    (asked,) = talk.pump()
    (later,) = talk.add_and_pump(b"b")
    asked.refuse(code, kind=Kind.NO_SUBSCRIBER if code == Code.NO_SUBSCRIBER else Kind.REFUSED)
    assert isinstance(outgoing.error, error)
    talk.store(later)
    assert numbers(talk.add_and_pump(b"c")) == [4], "numbering goes on"


def test_an_expired_publisher_fails_what_is_under_way_and_starts_over_as_a_new_one() -> None:
    talk = Talk()
    batches = talk.add(b"a")
    asked = talk.pump()
    batches += talk.add(b"b")
    asked += talk.pump()
    talk.add(b"c")
    for item in asked:
        item.refuse(Code.PUBLISHER_EXPIRED)
    assert [type(outgoing.error) for outgoing in batches] == [PublisherExpired, PublisherExpired]
    talk.turn()
    talk.register(2)
    (again,) = talk.pump()
    assert (again.batch.publisher, again.batch.number, again.batch.payloads()) == (2, 1, [b"c"])


def test_an_expired_publisher_with_nothing_to_send_does_not_register_again() -> None:
    talk = Talk()
    (asked,) = talk.add_and_pump(b"a")
    asked.refuse(Code.PUBLISHER_EXPIRED)
    assert talk.pump() == []
    assert talk.core.identities() == set()


def test_topics_fail_alone_and_each_goes_over_to_the_new_id() -> None:
    talk = Talk()
    (first,) = talk.add_and_pump(b"a")
    talk.add(b"b", topic=b"other")
    (other,) = talk.pump()
    first.refuse(Code.PUBLISHER_EXPIRED)
    talk.add(b"c")
    talk.turn()
    talk.register(2)
    (mine,) = talk.pump()
    talk.store(other)
    assert (mine.batch.publisher, other.batch.publisher) == (2, 1)
    assert talk.core.identities() == {1, 2}


def test_a_broker_that_lost_what_it_confirmed_fails_the_topic_instead_of_asking_for_ever() -> None:
    talk = Talk()
    talk.store(talk.add_and_pump(b"a")[0])
    (outgoing,) = talk.add(b"b")
    (asked,) = talk.pump()
    asked.refuse(Code.GAP, expected=2)
    assert isinstance(outgoing.error, InvalidRequest)


def test_an_answer_that_comes_twice_changes_nothing() -> None:
    talk = Talk()
    (asked,) = talk.add_and_pump(b"a")
    talk.store(asked)
    stored = talk.core.messages_stored
    talk.store(asked)
    asked.refuse(Code.PUBLISHER_EXPIRED)
    assert (talk.core.messages_stored, talk.core.identities()) == (stored, {1})


def test_registering_is_tried_again_after_a_full_disk() -> None:
    talk = Talk(registered=False)
    talk.add(b"a")
    (asked,) = talk.pump()
    asked.refuse(Code.DISK_FULL, retry_after_s=0.5)
    assert talk.turn() == pytest.approx(talk.now_s + 0.5)
    assert talk.take() == []
    talk.now_s += 0.5
    talk.turn()
    talk.register(1)
    assert payloads(talk.pump()) == [[b"a"]]


def test_a_broker_that_gives_no_id_fails_everything_and_is_not_asked_for_ever() -> None:
    talk = Talk(registered=False)
    batches = talk.add(b"a")
    (asked,) = talk.pump()
    asked.refuse(Code.LIMIT)
    assert isinstance(batches[0].error, LimitReached)
    assert talk.pump() == []
    assert talk.core.buffered_bytes == 0
    talk.add(b"b")
    assert [item.kind for item in talk.pump()] == [Kind.REGISTER], "a new message is a new try"


def test_a_broker_of_another_version_fails_everything() -> None:
    talk = Talk(registered=False)
    talk.greet()
    (hello,) = talk.take()
    (outgoing,) = talk.add(b"a")
    hello.refuse(Code.VERSION, kind=Kind.INVALID)
    assert isinstance(outgoing.error, VersionMismatch)
    assert isinstance(talk.core.broken, VersionMismatch)


def welcome(talk: Talk, max_batch_bytes: int) -> None:
    talk.greet()
    (hello,) = talk.take()
    hello.answer(Kind.ACK, bodies.Welcome(1, 1, bytes(16), 1, max_batch_bytes, 64, 1 << 20))


def test_a_message_no_batch_can_hold_is_too_large_and_not_queued() -> None:
    talk = Talk()
    welcome(talk, 1000)
    for payload, key, headers in (
        (bytes(1000), None, None),
        (b"", bytes(1000), None),
        (b"", None, {"name": bytes(1000)}),
        (b"", None, {"ä" * 450: b""}),
    ):
        with pytest.raises(TooLarge):
            talk.put(TOPIC, payload, key, headers)
    with pytest.raises(TooLarge):
        talk.put_all(TOPIC, [bytes(600)] * 2, None)
    assert talk.core.buffered_bytes == 0
    assert talk.pump() == []


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 100])
def test_batches_stay_within_what_the_broker_takes(size: int, keys: bool) -> None:
    talk = Talk(in_flight=64)
    welcome(talk, 2000)
    messages: list[bytes] = [bytes([place % 256]) * size for place in range(300)]
    some_keys: list[bytes | None] | None = [b"key"] * 300 if keys else None
    start = 0
    while start < len(messages):
        stop = talk.core.chunk_end(TOPIC, messages, some_keys, start)
        talk.put_all(TOPIC, messages[start:stop], some_keys and some_keys[start:stop])
        start = stop
    asked = talk.pump()
    assert len(asked) > 1
    assert all(len(item.blobs[0]) <= 2000 for item in asked)
    assert [payload for some in payloads(asked) for payload in some] == messages


def test_a_chunk_has_at_least_one_message_and_at_most_what_fits() -> None:
    talk = Talk(batch_bytes=1000)
    end = talk.core.chunk_end
    assert end(TOPIC, [bytes(5000), b"x"], None, 0) == 1
    assert end(TOPIC, [b"x"] * 10, None, 3) == 10
    assert 1 <= end(TOPIC, [bytes(100)] * 100, None, 0) <= 10
    assert end(TOPIC, [b""] * 100_000, None, 0) <= 65_536
    assert end(TOPIC, [b"x"], [bytes(5000)], 0) == 1


def test_what_cannot_be_packed_fails_alone() -> None:
    talk = Talk()
    wrong: Any = ["text"]
    outgoing, _, _ = talk.put_all(TOPIC, wrong, None)
    assert talk.pump() == []
    assert isinstance(outgoing.error, InvalidRequest)
    assert numbers(talk.add_and_pump(b"a")) == [2], "and uses no number"
    with pytest.raises(UnicodeEncodeError):
        talk.put(TOPIC, b"", None, {"\ud800": b""})


def test_what_failed_unobserved_is_told_once_with_how_much_it_was() -> None:
    talk = Talk()
    for asked in talk.add_and_pump(b"a", b"b"):
        asked.refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    error = talk.core.take_error()
    assert isinstance(error, NoSubscriber)
    assert "2 messages not stored" in str(error)
    assert talk.core.take_error() is None


def test_what_failed_and_was_observed_is_not_told_again() -> None:
    talk = Talk()
    (outgoing,) = talk.add(b"a")
    talk.pump()[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    with pytest.raises(NoSubscriber):
        outgoing.raise_error()
    assert talk.core.take_error() is None


def test_failures_that_nobody_asks_for_are_counted_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_batch, "_UNOBSERVED_MAX", 3)
    talk = Talk()
    for _ in range(10):
        talk.add_and_pump(b"a")[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    assert len(talk.core.failures._unobserved) == 3
    assert "10 messages not stored" in str(talk.core.take_error())


def test_failures_beyond_the_bound_are_told_though_the_others_were_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing_batch, "_UNOBSERVED_MAX", 1)
    talk = Talk()
    first = talk.add(b"a")
    talk.pump()[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    second = talk.add(b"b")
    talk.pump()[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    assert second[0].done
    first[0].observed = True
    assert "1 message not stored" in str(talk.core.take_error())
    assert talk.core.take_error() is None


def test_the_newest_unfinished_sheaf_of_each_lane_is_last_to_be_done() -> None:
    talk = Talk()
    talk.add_and_pump(b"a")
    (flying,) = talk.core.unfinished()
    (gathering,) = talk.add(b"b")
    assert flying is not gathering
    assert talk.core.unfinished() == [gathering]


@pytest.mark.parametrize(
    "more",
    [
        lambda _number: {},
        lambda number: {"key": b"key %d" % number},
        lambda number: {"headers": {"name": b"value %d" % number, f"name {number}": b""}},
        lambda number: {"ttl_ms": 1 + number},
        lambda number: {"due_us": 2**50 + number},
        lambda number: {"topic": b"topic %d" % number},
    ],
    ids=["plain", "keys", "headers", "ttl", "due", "topics"],
)
def test_what_gathers_takes_no_more_memory_than_is_counted(more: Callable[[int], dict[str, Any]]) -> None:
    talk = Talk()
    talk.put(TOPIC, b"", None, None)
    tracemalloc.start()
    try:
        before_bytes, counted_bytes = tracemalloc.get_traced_memory()[0], talk.core.memory_bytes
        for number in range(3000):
            given = {"topic": TOPIC, "payload": b"payload %d" % number, "key": None, "headers": None, **more(number)}
            talk.put(**given)
        taken_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    counted_bytes = talk.core.memory_bytes - counted_bytes
    assert taken_bytes < 1.25 * counted_bytes
    assert counted_bytes < 3 * taken_bytes, "nor is room left unused without need"
