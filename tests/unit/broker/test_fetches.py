"""Fetch sessions: a reader of many topics gets all of them once, in order, whatever is lost, late, or taken over."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import body_of, code_of
from tests.unit.broker.fetch_reader import FetchReader
from tests.unit.broker.many_askers import FEEDS, A, B, C, ManyAsker, hear, three_feeds

from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


@pytest.fixture
def asker() -> ManyAsker:
    return three_feeds(messages=2)


@pytest.fixture
def reader(asker: ManyAsker) -> FetchReader:
    return asker.reader_of_all()


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
    assert asker.begin_code(FetchReader(topics, b"consumer 1")) == code
    assert asker.state.sessions == {}


def test_a_nonce_that_is_none_is_refused(asker: ManyAsker) -> None:
    assert asker.begin_code(FetchReader((FEEDS,), b"short")) == Code.MALFORMED


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
    assert asker.fetch_code(reader) == Code.NO_SESSION
    count = asker.state.count
    asker.begin(reader)
    assert (reader.token, asker.state.count) == (token, count), "nothing is decided by that"
    asker.put_on(asker.numbers[0], payload=b"2")
    assert [heard.payload for heard in asker.fetch_all(reader)] == [b"2"]
    assert (len(reader.heard), reader.voided) == (heard + 1, 0)


def test_a_begin_that_comes_late_takes_nothing_back(asker: ManyAsker, reader: FetchReader) -> None:
    late = FetchReader((FEEDS,), b"consumer 0", as_of=asker.state.count)
    second = asker.reader(nonce=b"consumer 2")
    assert asker.begin_code(late) == Code.STALE
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
    first = asker.lose(reader)
    second = asker.lose(reader)
    assert sorted(first.batches) == sorted(second.batches)
    assert sorted(first.topics) == sorted(second.topics)
    assert len(asker.fetch_all(reader)) == 6
    asker.put_on(*asker.numbers, payload=b"2")
    asker.lose(reader)
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
    assert asker.fetch_code(reader) == Code.NO_SESSION
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
    asker.lose(reader)
    asker.lose(reader)
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
    asker.lose(reader)
    assert asker.lose(reader).serial < 1 << 63, "which can be packed"
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
    assert asker.fetch_code(reader) == Code.NO_SESSION
    reader.body.as_of = 1
    assert asker.begin_code(reader) == Code.STALE
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
    asker.lose(reader)
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
    assert asker.lose(reader).shared == (A,)
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
    assert asker.fetch_code(reader) == Code.NO_SESSION
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
    assert asker.fetch_code(reader) == Code.NO_SESSION
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
