"""The topics of a fetch session: they move, end, begin again, cannot be read, or are not in memory."""

from __future__ import annotations

from typing import NoReturn

import pytest
from tests.unit.broker.asker import body_of
from tests.unit.broker.fetch_reader import FetchReader
from tests.unit.broker.many_askers import FEEDS, A, B, ManyAsker, hear, three_feeds

from clarion.model.errors import StoredDataCorrupt, StoreUnavailable
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


@pytest.fixture
def asker() -> ManyAsker:
    return three_feeds(messages=2)


@pytest.fixture
def reader(asker: ManyAsker) -> FetchReader:
    return asker.reader_of_all()


# Topics and subscriptions that move, end and begin.


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize(("start", "expected"), [("earliest", [b"0", b"1"]), ("new", [])])
def test_a_seek_begins_the_topic_anew_elsewhere(
    asker: ManyAsker, reader: FetchReader, start: str, expected: list[bytes], *, is_waiting: bool
) -> None:
    key = asker.send_fetch(reader, wait_ms=60_000) if is_waiting else None
    asker.ask(Kind.SEEK, bodies.Seek(A, b"reader", start))
    asker.settle()
    if key in asker.replies:
        hear(reader, asker.replies[key])
    elif expected:
        assert not is_waiting, "who waits is woken by it"
    asker.fetch_all(reader)
    asker.put_on(*asker.numbers, payload=b"2")
    asker.fetch_all(reader)
    assert reader.of(A) == [b"0", b"1", *expected, b"2"]
    assert (reader.of(B), reader.voided) == ([b"0", b"1", b"2"], 1)
    assert not asker.ack_all(reader).refused


def test_a_seek_is_told_again_where_that_was_lost(asker: ManyAsker, reader: FetchReader) -> None:
    asker.ask(Kind.SEEK, bodies.Seek(A, b"reader", "offset", 1))
    asker.lose(reader)
    asker.lose(reader)
    assert [heard.payload for heard in asker.fetch_all(reader)] == [b"1"]


def test_an_unsubscribed_topic_is_left_and_told_until_that_arrives(asker: ManyAsker, reader: FetchReader) -> None:
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(A, b"reader"))
    assert asker.lose(reader).left
    asker.put_on(*asker.numbers, payload=b"2")
    asker.fetch_all(reader)
    assert reader.left == [(asker.numbers[0], Code.NOT_SUBSCRIBED)]
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1"], [b"0", b"1", b"2"])
    asker.subscribe(A)
    asker.put_on(*asker.numbers, payload=b"3")
    asker.fetch_all(reader)
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1", b"3"], [b"0", b"1", b"2", b"3"])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.UNSUBSCRIBE, bodies.Unsubscribe(A, b"reader")),
        (Kind.DELETE, bodies.Delete(A)),
        (Kind.ATTACH, bodies.Attach(A, b"reader", b"only one topic")),
        (Kind.SEEK, bodies.Seek(A, b"reader", "earliest")),
    ],
)
def test_what_becomes_of_a_topic_is_told_once_it_is_on_disk(
    asker: ManyAsker, reader: FetchReader, kind: Kind, body: bodies.Body
) -> None:
    """Otherwise a reader would forget where it was on a topic that a broker which died still has for it."""
    asker.send(kind, body)
    key = asker.send_fetch(reader, wait_ms=60_000)
    assert key not in asker.replies
    asker.crash()
    asker.begin(reader)
    asker.put_on(*asker.numbers, payload=b"2")
    asker.fetch_all(reader)
    assert (reader.of(A), reader.left, reader.voided) == ([b"0", b"1", b"2"], [], 0)
    asker.send(kind, body)
    key = asker.send_fetch(reader, wait_ms=60_000)
    asker.settle()
    hear(reader, asker.replies[key])
    assert len(reader.left) + reader.voided == 1


def test_a_topic_unsubscribed_and_subscribed_again_at_once_begins_anew(asker: ManyAsker, reader: FetchReader) -> None:
    asker.send(Kind.UNSUBSCRIBE, bodies.Unsubscribe(A, b"reader"))
    asker.send(Kind.SUBSCRIBE, bodies.Subscribe(A, b"reader", "earliest"))
    asker.settle()
    asker.lose(reader)
    asker.fetch_all(reader)
    assert (reader.of(A), reader.left, reader.voided) == ([b"0", b"1"] * 2, [], 1)


def test_the_end_of_a_pattern_ends_the_session(asker: ManyAsker, reader: FetchReader) -> None:
    key = asker.send_fetch(reader, wait_ms=60_000)
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(FEEDS, b"reader"))
    asker.go_on()
    assert asker.replies[key].kind in (Kind.NOT_SUBSCRIBED, Kind.MESSAGES)
    assert asker.fetch_code(reader) == Code.NO_SESSION
    assert asker.begin_code(reader) == Code.NOT_SUBSCRIBED


def test_a_topic_deleted_and_made_again_is_another(asker: ManyAsker, reader: FetchReader) -> None:
    asker.ask(Kind.DELETE, bodies.Delete(A))
    (number,) = asker.open(A)
    asker.put_on(number, payload=b"new")
    asker.lose(reader)
    asker.fetch_all(reader)
    assert reader.of(A) == [b"0", b"1", b"new"]
    assert reader.left == [(asker.numbers[0], Code.NOT_SUBSCRIBED)]
    assert reader.number_of(A) == number != asker.numbers[0]


def test_a_topic_deleted_while_something_of_it_is_unsent_is_passed_by(asker: ManyAsker, reader: FetchReader) -> None:
    asker.put_on(*asker.numbers, payload=b"2")
    asker.send(Kind.DELETE, bodies.Delete(A))
    asker.fetch_all(reader)
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1"], [b"0", b"1", b"2"])


def test_places_of_topics_that_are_gone_do_not_stay(asker: ManyAsker, reader: FetchReader) -> None:
    for each in range(5):
        (number,) = asker.open(b"feeds/brief/%d" % each)
        asker.put_on(number)
        asker.fetch_all(reader)
        asker.ask(Kind.DELETE, bodies.Delete(b"feeds/brief/%d" % each))
        asker.fetch_all(reader)
    asker.fetch(reader)
    (session,) = asker.state.sessions[b"reader"]
    assert session.places.keys() == set(asker.numbers)


def test_what_is_gone_is_told_and_the_rest_comes(asker: ManyAsker) -> None:
    reader = asker.reader()
    a = asker.numbers[0]
    asker.ask(Kind.CONFIGURE, bodies.Configure(A, "", {"max_bytes": 80, "at_bound": "trim"}))
    asker.put_on(*asker.numbers, payload=b"2")
    assert asker.state.numbered[a].first_offset == 2
    asker.lose(reader)
    asker.fetch_all(reader)
    assert (reader.gone, reader.of(A), reader.of(B)) == ([(a, 0, 2)], [b"2"], [b"0", b"1", b"2"])
    assert not asker.ack_all(reader).refused
    assert asker.cursor(a) == 3


def test_what_was_purged_before_it_was_sent_is_no_hole(asker: ManyAsker, reader: FetchReader) -> None:
    asker.put_on(*asker.numbers, payload=b"2")
    asker.ask(Kind.PURGE, bodies.Purge(A))
    asker.put_on(*asker.numbers, payload=b"3")
    asker.lose(reader)
    asker.fetch_all(reader)
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1", b"3"], [b"0", b"1", b"2", b"3"])


# What cannot be read, has expired, or is done already.


def test_a_topic_that_is_damaged_holds_up_no_other_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = ManyAsker(A, B, memory_bytes=0)
    a = asker.numbers[0]
    asker.put_on(*asker.numbers, payload=b"0")
    reader = asker.reader()
    keep = asker.store.batches

    def batches(topic: int, *args: int) -> object:
        if topic == a:
            raise StoredDataCorrupt("bytes are missing")
        return keep(topic, *args)

    with monkeypatch.context() as patched:
        patched.setattr(asker.store, "batches", batches)
        asker.fetch_all(reader)
        assert (reader.of(B), reader.trouble) == ([b"0"], [(a, Code.CORRUPT)])
        key = asker.send_fetch(reader, wait_ms=60_000)
        assert key not in asker.replies, "it is not told again and again"
    asker.tick(1.5)
    hear(reader, asker.replies[key])
    asker.fetch_all(reader)
    assert reader.of(A) == [b"0"]


def test_a_disk_that_cannot_be_read_just_now_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asker = ManyAsker(A, memory_bytes=0)
    asker.put_on(*asker.numbers, payload=b"0")
    reader = asker.reader()

    def batches(*_: int) -> NoReturn:
        raise StoreUnavailable("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(asker.store, "batches", batches)
        asker.fetch_all(reader)
        key = asker.send_fetch(reader, wait_ms=60_000)
        assert key not in asker.replies
    asker.tick(1.5)
    assert [heard.payload for heard in hear(reader, asker.replies[key])] == [b"0"]


def test_what_expired_is_left_out_and_is_no_hole(asker: ManyAsker, reader: FetchReader) -> None:
    a, b, _ = asker.numbers
    asker.put_parts(asker.part(a, b"brief"), asker.part(b, b"brief"), ttl_ms=500)
    asker.put_on(a, payload=b"long")
    asker.tick(2.0)
    asker.lose(reader)
    asker.fetch_all(reader)
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1", b"long"], [b"0", b"1"])
    asker.put_on(a, b, payload=b"more")
    asker.fetch_all(reader)
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1", b"long", b"more"], [b"0", b"1", b"more"])


def test_what_the_broker_passed_by_before_it_was_sent_is_no_hole(asker: ManyAsker, reader: FetchReader) -> None:
    """Housekeeping lets go of what expired, and moves the cursor over it."""
    assert not asker.ack_all(reader).refused
    a = asker.numbers[0]
    asker.put_parts(asker.part(a, b"brief"), ttl_ms=500)
    for _ in range(5):
        asker.tick(1.5)
        asker.settle()
    asker.ask(Kind.PURGE, bodies.Purge(A, 2))
    for _ in range(5):
        asker.tick(1.5)
        asker.settle()
    assert asker.cursor(a) == 3
    asker.put_on(a, payload=b"long")
    asker.lose(reader)
    asker.fetch_all(reader)
    assert (reader.of(A), reader.gone) == ([b"0", b"1", b"long"], [])


def test_a_successor_is_not_given_what_is_acked_above_the_cursor(asker: ManyAsker, reader: FetchReader) -> None:
    a = asker.numbers[0]
    asker.put_parts(asker.part(a, b"2", b"3", b"4", b"5"))
    asker.fetch_all(reader)
    token = next(row.token for row in asker.store.subscriptions(a))
    acks = ((a, token, 1, 2), (a, token, 3, 5))
    assert not body_of(asker.ask(Kind.ACK_MANY, bodies.AckMany(b"reader", acks, True)), bodies.AcksDone).refused
    asker.crash()
    second = asker.reader(nonce=b"consumer 2")
    asker.fetch_all(second)
    assert second.of(A) == [b"0", b"2", b"5"]
    assert not asker.ack_all(second).refused
    assert asker.cursor(a) == 6


# Topics that are not in memory.


def small() -> ManyAsker:
    asker = ManyAsker(
        *[b"feeds/%02d" % each for each in range(20)],
        max_topics_in_memory=2, topic_unload_interval_s=0.01, stale_msg_interval_s=0.01,
    )  # fmt: skip
    asker.put_on(*asker.numbers, payload=b"0")
    return asker


def unload(asker: ManyAsker) -> None:
    for _ in range(3):
        asker.tick(0.5)
        asker.settle()
    assert asker.engine.stats()["topics_in_memory"] <= 2


def test_a_backlog_of_topics_that_are_not_in_memory_is_found() -> None:
    asker = small()
    asker.crash()
    reader = asker.reader()
    asker.fetch_all(reader)
    assert len(reader.heard) == 20


def test_a_topic_loaded_between_the_beginning_and_the_search_is_not_forgotten() -> None:
    asker = small()
    asker.crash()
    reader = asker.reader()
    asker.ask(Kind.DESCRIBE, bodies.Describe(b"feeds/07"))
    asker.fetch_all(reader)
    assert len(reader.heard) == 20


def test_topics_are_unloaded_while_a_session_has_something_unsent_there() -> None:
    asker = small()
    reader = asker.reader()
    heard = len(asker.fetch(reader, most=3))
    unload(asker)
    asker.put_on(*asker.numbers, payload=b"1")
    unload(asker)
    asker.lose(reader)
    unload(asker)
    while got := asker.fetch(reader, most=7):
        heard += len(got)
        unload(asker)
    assert heard == 40
    assert all(reader.of(b"feeds/%02d" % each) == [b"0", b"1"] for each in range(20))


def test_who_waits_hears_of_topics_that_are_found_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clarion.broker.engine.fetches._TOPICS_SCANNED", 3)
    asker = small()
    asker.crash()
    reader = asker.reader()
    while len(reader.heard) < 20:
        key = asker.send_fetch(reader, wait_ms=60_000)
        for _ in range(20):
            asker.tick()
            asker.settle()
        assert hear(reader, asker.replies[key])


def test_a_wait_that_is_over_while_topics_are_searched_ends_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clarion.broker.engine.fetches._TOPICS_SCANNED", 3)
    asker = ManyAsker(*[b"feeds/%02d" % each for each in range(20)])
    asker.crash()
    key = asker.send_fetch(asker.reader(), wait_ms=1)
    for _ in range(10):
        asker.tick(0.01)
        asker.settle()
    assert asker.replies[key].kind == Kind.NO_MESSAGES
