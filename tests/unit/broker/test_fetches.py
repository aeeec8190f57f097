"""Fetch sessions: a reader of many topics gets all of them once, in order, whatever is lost, late, moved or ended."""

from __future__ import annotations

from typing import NoReturn

import pytest
from tests.unit.broker.asker import Asker, body_of, code_of
from tests.unit.broker.fetch_reader import FetchReader
from tests.unit.broker.many_askers import FEEDS, ManyAsker, hear

from clarion.model.errors import StoredDataCorrupt, StoreUnavailable
from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

A, B, C = b"feeds/a", b"feeds/b", b"feeds/c"


@pytest.fixture
def asker() -> ManyAsker:
    """Three topics with two messages each."""
    asker = ManyAsker(A, B, C)
    for payload in (b"0", b"1"):
        asker.put_on(*asker.numbers, payload=payload)
    return asker


@pytest.fixture
def reader(asker: ManyAsker) -> FetchReader:
    """A reader that has all there is."""
    reader = asker.reader()
    assert len(asker.fetch_all(reader)) == 6
    return reader


def begin_code(asker: Asker, reader: FetchReader) -> int:
    return code_of(asker.ask(Kind.BEGIN_FETCH, reader.body))[1]


def fetch_code(asker: Asker, reader: FetchReader) -> int:
    return code_of(asker.ask(Kind.FETCH, reader.next_fetch()))[1]


def lose(asker: ManyAsker, reader: FetchReader) -> bodies.Fetched:
    """Have an answer not arrive."""
    key = asker.send_fetch(reader)
    asker.go_on()
    return body_of(asker.replies[key], bodies.Fetched)


# Beginning.


def test_a_reader_gets_what_is_there_and_what_comes(asker: ManyAsker) -> None:
    reader = asker.reader()
    asker.fetch_all(reader)
    assert [reader.of(topic) for topic in (A, B, C)] == [[b"0", b"1"]] * 3
    asker.put_on(asker.numbers[1], payload=b"2")
    assert [heard.payload for heard in asker.fetch(reader)] == [b"2"]


def test_first_contact_attaches_and_is_on_disk_before_it_is_told(asker: ManyAsker) -> None:
    reader = asker.reader()
    key = asker.send_fetch(reader, wait_ms=1000)
    while key not in asker.replies:
        assert not any(row.nonce == reader.body.nonce for row in asker.store.subscriptions(asker.numbers[0]))
        asker.tick()
        if group := asker.engine.take_group():
            asker.commit(group)
    told = body_of(asker.replies[key], bodies.Fetched).topics
    assert len(told) == 3
    for number, _, token, _ in told:
        (row,) = asker.store.subscriptions(number)
        assert (row.token, row.nonce) == (token, reader.body.nonce)


def test_who_does_not_wait_still_hears_of_what_is_there_at_first_contact(asker: ManyAsker) -> None:
    """Otherwise nothing would tell that there is nothing."""
    reader = asker.reader()
    key = asker.send_fetch(reader, wait_ms=0)
    asker.go_on()
    assert len(hear(reader, asker.replies[key])) == 6


def test_where_there_is_nothing_that_is_said_at_once(reader: FetchReader, asker: ManyAsker) -> None:
    key = asker.send_fetch(reader, wait_ms=0)
    assert asker.replies[key].kind == Kind.NO_MESSAGES


def test_a_topic_made_later_is_the_sessions_from_its_beginning(asker: ManyAsker, reader: FetchReader) -> None:
    key = asker.send_fetch(reader, wait_ms=60_000)
    (number,) = asker.open(b"feeds/new")
    asker.send_puts(asker.part(number, b"first"))
    asker.settle()
    assert [heard.payload for heard in hear(reader, asker.replies[key])] == [b"first"]
    (row,) = asker.store.subscriptions(number)
    assert row.nonce == reader.body.nonce


def test_topics_and_patterns_may_be_read_together(asker: ManyAsker) -> None:
    asker.subscribe(b"news")
    asker.put_on(*asker.open(b"news"), payload=b"new")
    reader = asker.reader(b"news", FEEDS, A)
    asker.fetch_all(reader)
    assert (reader.of(b"news"), reader.of(A), reader.of(B)) == ([b"new"], [b"0", b"1"], [b"0", b"1"])


def test_a_thousand_topics_by_name() -> None:
    names = tuple(b"feeds/%d" % each for each in range(1000))
    asker = ManyAsker(*names)
    asker.put_on(*asker.numbers)
    reader = asker.reader(*names)
    assert len(asker.fetch_all(reader)) == 1000
    assert not asker.ack_all(reader).refused
    asker.put_on(*asker.numbers)
    assert len(asker.fetch(reader)) == 1000


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        ((), Code.TOO_LARGE),
        (tuple(b"feeds/%d" % each for each in range(1001)), Code.TOO_LARGE),
        ((b"nothing",), Code.NOT_SUBSCRIBED),
        ((A, b"other/#"), Code.NOT_SUBSCRIBED),
    ],
)
def test_what_cannot_be_read_is_refused(asker: ManyAsker, topics: tuple[bytes, ...], code: Code) -> None:
    assert begin_code(asker, FetchReader(topics, b"consumer 1")) == code
    assert asker.state.sessions == {}


def test_a_nonce_that_is_none_is_refused(asker: ManyAsker) -> None:
    assert begin_code(asker, FetchReader((FEEDS,), b"short")) == Code.MALFORMED


def test_the_same_begin_again_is_the_same_session(asker: ManyAsker, reader: FetchReader) -> None:
    again = body_of(asker.ask(Kind.BEGIN_FETCH, reader.body), bodies.FetchBegun)
    assert again.token == reader.token
    asker.put_on(asker.numbers[0], payload=b"2")
    assert [heard.payload for heard in asker.fetch(reader)] == [b"2"], "and it is where it was"


@pytest.mark.parametrize("topics", [(FEEDS,), (A, B, C), (A, FEEDS)])
def test_after_a_restart_the_same_begin_gives_the_same_token_and_nothing_comes_twice(
    asker: ManyAsker, topics: tuple[bytes, ...]
) -> None:
    reader = asker.reader(*topics)
    asker.fetch_all(reader)
    token, heard = reader.token, len(reader.heard)
    asker.crash()
    assert fetch_code(asker, reader) == Code.NO_SESSION
    count = asker.state.count
    asker.begin(reader)
    assert (reader.token, asker.state.count) == (token, count), "nothing is decided by that"
    asker.put_on(asker.numbers[0], payload=b"2")
    assert [heard.payload for heard in asker.fetch_all(reader)] == [b"2"]
    assert (len(reader.heard), reader.voided) == (heard + 1, 0)


def test_a_begin_that_comes_late_takes_nothing_back(asker: ManyAsker, reader: FetchReader) -> None:
    late = FetchReader((FEEDS,), b"consumer 0", as_of=asker.state.count)
    second = asker.reader(nonce=b"consumer 2")
    assert begin_code(asker, late) == Code.STALE
    assert second.token == asker.state.patterns.consumers[FEEDS, b"reader"][0]
    assert len(asker.fetch_all(second)) == 6


def test_a_begin_from_before_the_pattern_was_made_anew_is_not_for_that_one(asker: ManyAsker) -> None:
    late = FetchReader((FEEDS,), b"consumer 1", as_of=asker.state.count)
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(FEEDS, b"reader"))
    asker.subscribe(FEEDS)
    refused = body_of(asker.ask(Kind.BEGIN_FETCH, late.body), bodies.Refused)
    assert (refused.code, refused.expected) == (Code.MOVED, asker.state.count)
    assert asker.state.sessions == {}
    asker.reader(as_of=refused.expected)


# Answers that do not arrive, and questions that come late.


def test_what_was_lost_comes_again(asker: ManyAsker) -> None:
    reader = asker.reader()
    first = lose(asker, reader)
    second = lose(asker, reader)
    assert sorted(first.batches) == sorted(second.batches)
    assert sorted(first.topics) == sorted(second.topics)
    assert len(asker.fetch_all(reader)) == 6
    asker.put_on(*asker.numbers, payload=b"2")
    lose(asker, reader)
    asker.put_on(*asker.numbers, payload=b"3")
    asker.fetch_all(reader)
    assert [reader.of(topic) for topic in (A, B, C)] == [[b"0", b"1", b"2", b"3"]] * 3


def test_the_same_fetch_again_gives_the_same(asker: ManyAsker) -> None:
    reader = asker.reader()
    body = reader.next_fetch()
    replies = [asker.ask(Kind.FETCH, body, peer=b"connection %d" % each) for each in range(1)]
    asker.go_on()
    again = asker.ask(Kind.FETCH, body, peer=b"another connection")
    assert len(hear(reader, again)) == 6
    assert hear(reader, replies[0]) == []
    assert asker.fetch_all(reader) == []


def test_a_copy_that_is_answered_after_the_first_was_taken_in_makes_no_hole(asker: ManyAsker) -> None:
    """The reader has the first answer, and the broker believes that it has neither."""
    reader = asker.reader()
    asker.fetch_all(reader)
    asker.put_on(*asker.numbers, payload=b"2")
    body = reader.next_fetch()
    first = asker.ask(Kind.FETCH, body)
    asker.put_on(*asker.numbers, payload=b"3")
    asker.ask(Kind.FETCH, body, peer=b"late")
    hear(reader, first)
    asker.put_on(*asker.numbers, payload=b"4")
    asker.fetch_all(reader)
    assert [reader.of(topic) for topic in (A, B, C)] == [[b"0", b"1", b"2", b"3", b"4"]] * 3


def test_a_fetch_that_comes_late_changes_nothing(asker: ManyAsker, reader: FetchReader) -> None:
    late = reader.next_fetch(wait_ms=60_000)
    asker.put_on(*asker.numbers, payload=b"2")
    asker.fetch_all(reader)
    waiting = asker.send_fetch(reader, wait_ms=60_000)
    stray = asker.send(Kind.FETCH, late, peer=b"late")
    assert asker.replies[stray].kind == Kind.NO_MESSAGES
    assert waiting not in asker.replies, "nor does it end the wait of the newer one"
    asker.put_on(*asker.numbers, payload=b"3")
    assert len(hear(reader, asker.replies[waiting])) == 3
    assert reader.of(A) == [b"0", b"1", b"2", b"3"]


def test_a_fetch_from_before_a_restart_makes_no_hole(asker: ManyAsker) -> None:
    """The session begun again has the same token, and counts its answers from the beginning."""
    reader = asker.reader()
    for payload in (b"2", b"3", b"4"):
        asker.fetch_all(reader)
        asker.put_on(*asker.numbers, payload=payload)
    late = reader.next_fetch()
    assert late.got > 1
    asker.crash()
    assert fetch_code(asker, reader) == Code.NO_SESSION
    asker.begin(reader)
    asker.send(Kind.FETCH, late, peer=b"late")
    asker.go_on()
    asker.fetch_all(reader)
    assert [reader.of(topic) for topic in (A, B, C)] == [[b"0", b"1", b"2", b"3", b"4"]] * 3


def test_a_reader_that_still_counts_as_before_a_restart_misses_nothing(asker: ManyAsker) -> None:
    reader = asker.reader()
    for payload in (b"2", b"3", b"4"):
        asker.fetch_all(reader)
        asker.put_on(*asker.numbers, payload=payload)
    got = reader.got
    asker.crash()
    asker.begin(reader)
    reader.got = got
    lose(asker, reader)
    lose(asker, reader)
    asker.fetch_all(reader)
    assert [reader.of(topic) for topic in (A, B, C)] == [[b"0", b"1", b"2", b"3", b"4"]] * 3


def test_a_newer_fetch_ends_the_wait_of_the_one_before(asker: ManyAsker, reader: FetchReader) -> None:
    first = asker.send_fetch(reader, wait_ms=60_000)
    second = asker.send_fetch(reader, wait_ms=60_000)
    assert asker.replies[first].kind == Kind.NO_MESSAGES
    asker.put_on(asker.numbers[0])
    assert len(hear(reader, asker.replies[second])) == 1


@pytest.mark.parametrize("wait_ms", [1, 500, 60_000])
def test_a_wait_ends_in_its_time(asker: ManyAsker, reader: FetchReader, wait_ms: int) -> None:
    key = asker.send_fetch(reader, wait_ms=wait_ms)
    assert asker.engine.next_deadline_s() <= asker.now_s + wait_ms / 1000
    asker.tick(wait_ms / 1000 - 0.0005)
    assert key not in asker.replies
    asker.tick(0.001)
    assert asker.replies[key].kind == Kind.NO_MESSAGES
    assert asker.engine.stats()["waiting_gets"] == 0


def test_who_cannot_wait_is_told(asker: ManyAsker) -> None:
    asker = ManyAsker(A, B, max_waiting_gets=1)
    first, second = asker.reader(A), asker.reader(B, nonce=b"consumer 2")
    asker.fetch_all(first)
    asker.fetch_all(second)
    asker.send_fetch(first, wait_ms=1000)
    assert code_of(asker.ask(Kind.FETCH, second.next_fetch(1000)))[1] == Code.LIMIT
    asker.send_fetch(first, wait_ms=1000)


@pytest.mark.parametrize("got", [-1, (1 << 64) - 1])
def test_an_answer_that_was_never_given_is_taken_for_none(asker: ManyAsker, got: int) -> None:
    reader = asker.reader()
    reader.got = got
    lose(asker, reader)
    assert lose(asker, reader).serial < 1 << 63, "which can be packed"
    reader.got = 0
    assert len(asker.fetch_all(reader)) == 6


# Other consumers.


def test_who_reads_topics_by_name_hears_of_a_take_over_before_any_message() -> None:
    asker = ManyAsker(A, B)
    reader = asker.reader(A, B)
    asker.fetch_all(reader)
    key = asker.send_fetch(reader, wait_ms=60_000)
    asker.attach(A, nonce=b"only one topic")
    hear(reader, asker.replies[key])
    assert reader.left == [(asker.numbers[0], Code.TAKEN_OVER)]
    assert set(reader.topics) == {asker.numbers[1]}


def test_who_begins_later_takes_over(asker: ManyAsker, reader: FetchReader) -> None:
    asker.ask(Kind.ACK_MANY, bodies.AckMany(b"reader", reader.next_acks().acks[:1], True))
    key = asker.send_fetch(reader, wait_ms=60_000)
    second = asker.reader(nonce=b"consumer 2", as_of=asker.state.count)
    assert code_of(asker.replies[key])[1] == Code.TAKEN_OVER
    assert len(asker.fetch_all(second)) == 6 - 1
    assert fetch_code(asker, reader) == Code.NO_SESSION
    reader.body.as_of = 1
    assert begin_code(asker, reader) == Code.STALE
    refused = asker.ack_all(reader).refused
    assert {code for _, code, _ in refused} <= {Code.TAKEN_OVER}


def test_a_direct_attach_to_one_topic_is_told_once_and_the_others_go_on(asker: ManyAsker, reader: FetchReader) -> None:
    attached = asker.attach(A, nonce=b"only one topic")
    key = asker.send_fetch(reader, wait_ms=60_000)
    hear(reader, asker.replies[key])
    asker.attach(A, nonce=b"only one again")
    asker.put_on(*asker.numbers, payload=b"2")
    asker.fetch_all(reader)
    assert reader.left == [(asker.numbers[0], Code.TAKEN_OVER)]
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1"], [b"0", b"1", b"2"])
    assert attached.cursor == 0


def test_that_another_has_a_topic_is_told_again_where_it_was_lost(asker: ManyAsker, reader: FetchReader) -> None:
    asker.attach(A, nonce=b"only one topic")
    lose(asker, reader)
    asker.fetch_all(reader)
    assert reader.left == [(asker.numbers[0], Code.TAKEN_OVER)]


def test_who_attached_before_is_taken_over_with_the_first_delivery(asker: ManyAsker) -> None:
    asker.attach(A, nonce=b"only one topic")
    reader = asker.reader()
    key = asker.send_wait(A, asker.attach(A, nonce=b"only one topic").token, 2)
    asker.fetch_all(reader)
    assert reader.of(A) == [b"0", b"1"]
    assert code_of(asker.replies[key])[1] == Code.TAKEN_OVER


def test_a_pattern_that_another_begins_to_fetch_from_ends_a_session_wherever_it_has_it(asker: ManyAsker) -> None:
    first = asker.reader(A, FEEDS)
    asker.fetch_all(first)
    key = asker.send_fetch(first, wait_ms=60_000)
    asker.reader(FEEDS, nonce=b"consumer 2")
    assert code_of(asker.replies[key])[1] == Code.TAKEN_OVER


def test_sessions_of_other_names_and_of_other_topics_do_not_disturb_each_other(asker: ManyAsker) -> None:
    asker.subscribe(FEEDS, b"other", "earliest")
    first, second = asker.reader(A), asker.reader(B, nonce=b"consumer 2")
    third = FetchReader((FEEDS,), b"consumer 3", b"other")
    asker.begin(third)
    assert [len(asker.fetch_all(each)) for each in (first, second, third)] == [2, 2, 6]
    asker.put_on(*asker.numbers, payload=b"2")
    assert [len(asker.fetch_all(each)) for each in (first, second, third)] == [1, 1, 3]
    assert not first.left + second.left + third.left


def test_a_session_with_more_topics_follows_the_one_with_fewer(asker: ManyAsker) -> None:
    reader = asker.reader(A)
    asker.fetch_all(reader)
    key = asker.send_fetch(reader, wait_ms=60_000)
    reader.body = bodies.BeginFetch((A, B), b"reader", reader.body.nonce)
    asker.begin(reader)
    assert asker.replies[key].kind == Kind.NO_MESSAGES, "it is the same consumer"
    asker.fetch_all(reader)
    assert (reader.of(A), reader.of(B)) == ([b"0", b"1"], [b"0", b"1"])


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
    lose(asker, reader)
    lose(asker, reader)
    assert [heard.payload for heard in asker.fetch_all(reader)] == [b"1"]


def test_an_unsubscribed_topic_is_left_and_told_until_that_arrives(asker: ManyAsker, reader: FetchReader) -> None:
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(A, b"reader"))
    assert lose(asker, reader).left
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
    lose(asker, reader)
    asker.fetch_all(reader)
    assert (reader.of(A), reader.left, reader.voided) == ([b"0", b"1"] * 2, [], 1)


def test_the_end_of_a_pattern_ends_the_session(asker: ManyAsker, reader: FetchReader) -> None:
    key = asker.send_fetch(reader, wait_ms=60_000)
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(FEEDS, b"reader"))
    asker.go_on()
    assert asker.replies[key].kind in (Kind.NOT_SUBSCRIBED, Kind.MESSAGES)
    assert fetch_code(asker, reader) == Code.NO_SESSION
    assert begin_code(asker, reader) == Code.NOT_SUBSCRIBED


def test_a_topic_deleted_and_made_again_is_another(asker: ManyAsker, reader: FetchReader) -> None:
    asker.ask(Kind.DELETE, bodies.Delete(A))
    (number,) = asker.open(A)
    asker.put_on(number, payload=b"new")
    lose(asker, reader)
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
    lose(asker, reader)
    asker.fetch_all(reader)
    assert (reader.gone, reader.of(A), reader.of(B)) == ([(a, 0, 2)], [b"2"], [b"0", b"1", b"2"])
    assert not asker.ack_all(reader).refused
    assert asker.cursor(a) == 3


def test_what_was_purged_before_it_was_sent_is_no_hole(asker: ManyAsker, reader: FetchReader) -> None:
    asker.put_on(*asker.numbers, payload=b"2")
    asker.ask(Kind.PURGE, bodies.Purge(A))
    asker.put_on(*asker.numbers, payload=b"3")
    lose(asker, reader)
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
    lose(asker, reader)
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
    lose(asker, reader)
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


# Shared subscriptions.


def test_a_shared_pattern_is_read_topic_by_topic() -> None:
    asker = ManyAsker(A)
    asker.subscribe_with(b"jobs/#", shared=True)
    begun = body_of(
        asker.ask(Kind.BEGIN_FETCH, bodies.BeginFetch((b"jobs/#",), b"reader", b"consumer 1")), bodies.FetchBegun
    )
    assert begun.shared
    both = asker.ask(Kind.BEGIN_FETCH, bodies.BeginFetch((FEEDS, b"jobs/#"), b"reader", b"consumer 1"))
    assert body_of(both, bodies.FetchBegun).shared
    assert asker.state.sessions == {}


def test_a_shared_topic_among_others_is_told_until_that_arrives(asker: ManyAsker) -> None:
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(A, b"reader"))
    asker.subscribe_with(A, shared=True)
    reader = asker.reader()
    assert lose(asker, reader).shared == (A,)
    asker.fetch_all(reader)
    assert (reader.shared, reader.of(A), reader.of(B)) == ([A], [], [b"0", b"1"])
    asker.put_on(*asker.numbers, payload=b"2")
    asker.fetch_all(reader)
    assert (reader.shared, reader.of(B)) == ([A], [b"0", b"1", b"2"])


def test_a_single_shared_topic_has_no_session(asker: ManyAsker) -> None:
    asker.ask(Kind.UNSUBSCRIBE, bodies.Unsubscribe(A, b"reader"))
    asker.subscribe_with(A, shared=True)
    begun = asker.ask(Kind.BEGIN_FETCH, bodies.BeginFetch((A,), b"reader", b"consumer 1"))
    assert body_of(begun, bodies.FetchBegun).shared
    both = asker.ask(Kind.BEGIN_FETCH, bodies.BeginFetch((A, B), b"reader", b"consumer 1"))
    assert body_of(both, bodies.FetchBegun).shared
    assert asker.state.sessions == {}


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
    lose(asker, reader)
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


# How much at a time, and whose turn it is.


def test_no_more_comes_than_was_asked_for(asker: ManyAsker) -> None:
    asker.put_parts(*[asker.part(number, *[b"x"] * 10) for number in asker.numbers])
    reader = asker.reader()
    while got := asker.fetch(reader, most=3):
        assert len(got) <= 5, "a batch most of which is wanted comes whole"
    assert len(reader.heard) == 36
    asker.put_on(asker.numbers[0], payload=b"more")
    asker.put_parts(*[asker.part(number, *[b"y"] * 10) for number in asker.numbers])
    assert len(asker.fetch(reader, most=3)) <= 5


def test_bytes_are_bounded_but_for_one_batch(asker: ManyAsker) -> None:
    asker.put_parts(*[asker.part(number, b"x" * 5000) for number in asker.numbers for _ in range(20)])
    reader = asker.reader()
    sizes = []
    while True:
        key = asker.send_fetch(reader, most_bytes=20_000)
        asker.go_on()
        reply = asker.replies[key]
        if not hear(reader, reply):
            break
        sizes.append(sum(len(blob) for blob in reply.blobs))
    assert max(sizes) < 20_000 + 6000
    assert len(reader.heard) == 66


def test_a_busy_topic_keeps_quiet_ones_not_waiting(asker: ManyAsker, reader: FetchReader) -> None:
    a, b, c = asker.numbers
    for _ in range(5):
        asker.put_parts(*[asker.part(a, b"x" * 1000) for _ in range(200)])
    asker.put_on(b, c, payload=b"quiet")
    heard = [each.topic for each in asker.fetch(reader, most_bytes=100_000)]
    assert {B, C} <= set(heard), "they are in the first answer, beside a part of what the busy one has"
    for _ in range(3):
        asker.put_on(b, payload=b"quiet")
        asker.put_parts(*[asker.part(a, b"x" * 1000) for _ in range(100)])
        assert B in {each.topic for each in asker.fetch(reader, most_bytes=50_000)}


def test_small_batches_travel_in_one_frame_and_large_ones_alone(asker: ManyAsker, reader: FetchReader) -> None:
    a, b, c = asker.numbers
    asker.put_parts(asker.part(a, b"small"), asker.part(b, b"x" * 100_000), asker.part(c, b"small"))
    key = asker.send_fetch(reader)
    assert len(asker.replies[key].blobs) == 3
    assert len(hear(reader, asker.replies[key])) == 3


# Commits that fail, and time.


def test_after_a_commit_that_failed_the_session_begins_again_and_misses_nothing(
    asker: ManyAsker, reader: FetchReader
) -> None:
    key = asker.send_fetch(reader, wait_ms=60_000)
    lost = asker.part(asker.numbers[0], b"2")
    asker.send_puts(lost)
    asker.fail(asker.take_group())
    assert asker.replies[key].kind == Kind.NO_MESSAGES
    assert fetch_code(asker, reader) == Code.NO_SESSION
    token = reader.token
    asker.begin(reader)
    assert reader.token == token
    asker.tick(2.0)
    asker.state.free_bytes = asker.store.free_bytes()
    assert not asker.put_parts(lost).refused
    assert [heard.payload for heard in asker.fetch_all(reader)] == [b"2"]
    assert asker.engine.stats()["waiting_gets"] == 0


def test_an_attach_that_was_not_kept_was_not_told(asker: ManyAsker) -> None:
    reader = asker.reader()
    key = asker.send_fetch(reader, wait_ms=60_000)
    asker.fail(asker.take_group())
    assert asker.replies[key].kind == Kind.NO_MESSAGES
    asker.tick(2.0)
    asker.begin(reader)
    assert len(asker.fetch_all(reader)) == 6
    assert reader.voided == 0


def test_a_begin_that_was_not_kept_is_refused(asker: ManyAsker) -> None:
    reader = FetchReader((FEEDS,), b"consumer 1")
    key = asker.send(Kind.BEGIN_FETCH, reader.body)
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key])[1] == Code.DISK_FULL
    asker.begin(reader)
    assert len(asker.fetch_all(reader)) == 6


def test_a_session_without_fetches_is_forgotten_and_begun_again(asker: ManyAsker, reader: FetchReader) -> None:
    token = reader.token
    for _ in range(8):
        asker.tick(61.0)
        asker.settle()
    assert fetch_code(asker, reader) == Code.NO_SESSION
    asker.begin(reader)
    assert reader.token == token
    asker.put_on(asker.numbers[0], payload=b"2")
    assert [heard.payload for heard in asker.fetch_all(reader)] == [b"2"]


@pytest.mark.parametrize("is_in_memory", [True, False])
def test_a_subscription_does_not_expire_while_a_session_reads_nor_soon_after(*, is_in_memory: bool) -> None:
    """A quiet topic is in use as long as its session is: that is noted, as every use is."""
    asker = ManyAsker(b"other", max_topics_in_memory=1_000 if is_in_memory else 0, topic_unload_interval_s=0.1)
    asker.subscribe_with(b"jobs/#", expires_s=1000)
    asker.open(b"jobs/quiet")
    reader = asker.reader(b"jobs/#")
    asker.fetch_all(reader)
    for _ in range(52):
        asker.fetch(reader)
        asker.tick(40.0)
        asker.settle()
    for _ in range(22):  # it stops, and for most of the time to expire nothing happens
        asker.tick(40.0)
        asker.settle()
    assert asker.engine.stats().get("subscriptions_expired", 0) == 0
    for _ in range(20):
        asker.tick(40.0)
        asker.settle()
    assert asker.engine.stats()["subscriptions_expired"] == 1


def test_messages_that_are_delayed_come_when_they_are_due(asker: ManyAsker, reader: FetchReader) -> None:
    due = (asker.now.unix_us + 1_000_000).to_bytes(8, "little")
    number, packed = asker.part(asker.numbers[0], b"later")
    asker.ask(Kind.PUT, bodies.Put(A, 0, due, number), packed)
    key = asker.send_fetch(reader, wait_ms=60_000)
    asker.tick(2.0)
    asker.settle()
    assert [heard.payload for heard in hear(reader, asker.replies[key])] == [b"later"]


def test_options_of_a_pattern_are_kept_when_a_consumer_begins() -> None:
    asker = ManyAsker()
    options = SubscriptionOptions(expires_s=5000)
    asker.ask(Kind.SUBSCRIBE, bodies.Subscribe(b"jobs/#", b"reader", options=options))
    asker.reader(b"jobs/#")
    asker.crash()
    (number,) = asker.open(b"jobs/1")
    assert asker.state.numbered[number].subscriptions[b"reader"].options == options
