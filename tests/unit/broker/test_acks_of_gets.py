"""Gets and fetches that say what is acked: it counts once it is on disk, and nobody is told so before."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.asker import PEER, body_of, code_of, news_asker, payloads_of
from tests.unit.broker.fetch_reader import FetchReader
from tests.unit.broker.many_askers import ManyAsker, hear

from clarion.broker.engine import Reply
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

A, B = b"feeds/a", b"feeds/b"
TOPIC = b"news"
Key = tuple[bytes, int]


class OneTopic:
    """A consumer of one topic with four messages, that has read them all."""

    def __init__(self, **limits: Any) -> None:
        self.asker = news_asker(default_retention="keep", **limits)
        self.written = 0
        self.put(4)
        self.token = self.asker.attach(TOPIC).token
        self.number = next(iter(self.asker.state.numbered))

    def put(self, count: int = 1) -> None:
        self.asker.put_many(TOPIC, 1, self.written + 1, *(b"%d" % (self.written + each) for each in range(count)))
        self.written += count

    def send_put(self) -> Key:
        self.written += 1
        return self.asker.send_put(TOPIC, self.asker.batch(1, self.written, b"new"))

    def send(
        self, *acked: tuple[int, int], wait_ms: int = 0, position: int | None = None, peer: bytes = PEER, token: int = 0
    ) -> Key:
        at = self.written if position is None else position
        body = bodies.Get(TOPIC, b"reader", token or self.token, at, 100, 1 << 20, wait_ms, acked)
        return self.asker.send(Kind.GET, body, peer=peer)

    def is_acked(self, key: Key) -> bool:
        body = self.asker.replies[key].body
        assert isinstance(body, bodies.Delivery | bodies.NoMessages)
        return body.acked

    @property
    def cursor(self) -> int:
        """On disk."""
        (row,) = self.asker.store.subscriptions(self.number)
        return row.cursor


@pytest.fixture
def one() -> OneTopic:
    return OneTopic()


@pytest.fixture
def many() -> tuple[ManyAsker, FetchReader]:
    """A reader that has all four messages of each of two topics."""
    asker = ManyAsker(A, B)
    for _ in range(4):
        asker.put_on(*asker.numbers)
    reader = asker.reader()
    assert len(asker.fetch_all(reader)) == 8
    return asker, reader


def send_fetch(asker: ManyAsker, reader: FetchReader, acks: bodies.Acks | None = None, wait_ms: int = 0) -> Key:
    """Fetch, saying that all that came is acked, or that something is."""
    body = reader.next_fetch(wait_ms)
    body.acks = reader.next_acks().acks if acks is None else acks
    return asker.send(Kind.FETCH, body)


def acked_and_refused(reply: Reply) -> tuple[bool, dict[int, int]]:
    if isinstance(reply.body, bodies.NoMessages):
        return reply.body.acked, {}
    body = body_of(reply, bodies.Fetched)
    return body.acked, {number: code for number, code, _ in body.refused}


def cursors(asker: ManyAsker) -> list[int]:
    return [asker.cursor(number) for number in asker.numbers]


# A get.


def test_what_a_get_says_is_acked_is_not_said_to_be_durable_before_it_is(one: OneTopic) -> None:
    assert not one.is_acked(one.send((0, 2))), "the group is open"
    one.asker.tick(0.02)
    group = one.asker.take_group()
    assert not one.is_acked(one.send((0, 2))), "it is being committed"
    assert one.cursor == 0
    one.asker.commit(group)
    assert one.cursor == 2
    assert one.is_acked(one.send((0, 2)))
    assert one.asker.engine.take_group() is None, "what is said again is not stored again"


def test_a_get_that_says_nothing_is_told_nothing(one: OneTopic) -> None:
    assert not one.is_acked(one.send())
    assert not one.is_acked(one.send(position=0))


def test_what_a_get_brings_comes_with_whether_its_acks_are_durable(one: OneTopic) -> None:
    key = one.send((0, 2), position=2)
    assert payloads_of(one.asker.replies[key]) == [b"2", b"3"]
    assert not one.is_acked(key)
    one.asker.tick(0.02)
    one.asker.settle()
    assert one.is_acked(one.send((0, 2), position=2))


def test_acks_of_a_get_are_committed_within_ten_ms_though_nobody_waits_for_them(one: OneTopic) -> None:
    one.send((0, 4), wait_ms=60_000)
    assert one.asker.engine.take_group() is None
    assert one.asker.engine.next_deadline_s() <= one.asker.now_s + 0.0101
    one.asker.tick(0.011)
    one.asker.commit(one.asker.take_group())
    assert one.cursor == 4


def test_acks_that_are_no_news_leave_the_broker_asleep(one: OneTopic) -> None:
    """An empty group that is due would have the loop turn without end."""
    one.send((0, 4))
    one.asker.tick(0.02)
    one.asker.settle()
    assert one.is_acked(one.send((0, 4)))
    one.asker.tick(0.02)
    one.asker.settle()
    assert one.asker.engine.next_deadline_s() > one.asker.now_s


def test_the_next_put_takes_the_acks_of_a_waiting_get_along(one: OneTopic) -> None:
    waiting = one.send((0, 4), wait_ms=60_000)
    one.send_put()
    assert waiting not in one.asker.replies
    one.asker.commit(one.asker.take_group())
    assert payloads_of(one.asker.replies[waiting]) == [b"new"]
    assert one.is_acked(waiting)
    assert one.cursor == 4


def test_what_comes_with_an_earlier_commit_does_not_make_acks_durable(one: OneTopic) -> None:
    one.send_put()
    group = one.asker.take_group()
    waiting = one.send((0, 4), wait_ms=60_000, position=4)
    one.asker.commit(group)
    assert payloads_of(one.asker.replies[waiting]) == [b"new"]
    assert not one.is_acked(waiting)
    assert one.cursor == 0


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_acks_of_a_commit_that_failed_are_never_said_to_be_durable(one: OneTopic, is_in_flight: bool) -> None:
    if is_in_flight:
        waiting = one.send((0, 4), wait_ms=60_000)
        one.asker.tick(0.02)
        group = one.asker.take_group()
    else:
        one.send_put()
        group = one.asker.take_group()
        waiting = one.send((0, 4), wait_ms=60_000, position=4)
    one.asker.fail(group)
    assert not one.is_acked(waiting)
    assert one.cursor == 0
    again = one.send((0, 4), position=4)
    assert not one.is_acked(again)
    one.asker.tick(0.02)
    one.asker.settle()
    assert one.cursor == 4


def test_a_waiting_get_whose_acks_are_durable_says_so_when_a_later_commit_fails(one: OneTopic) -> None:
    waiting = one.send((0, 4), wait_ms=60_000)
    one.asker.tick(0.02)
    one.asker.settle()
    one.send_put()
    one.asker.fail(one.asker.take_group())
    assert one.is_acked(waiting)
    assert one.cursor == 4


def test_a_crash_before_the_commit_leaves_messages_unacked_and_the_acks_may_be_said_again(one: OneTopic) -> None:
    one.send((0, 4), wait_ms=60_000)
    one.asker.crash()
    assert one.cursor == 0
    assert not one.is_acked(one.send((0, 4)))
    one.asker.tick(0.02)
    one.asker.settle()
    assert one.cursor == 4
    one.asker.crash()
    assert one.is_acked(one.send((0, 4)))


def test_a_get_that_is_sent_away_for_a_newer_one_says_what_is_durable(one: OneTopic) -> None:
    older = one.send((0, 2), wait_ms=60_000)
    newer = one.send((2, 4), wait_ms=60_000)
    assert not one.is_acked(older)
    one.asker.tick(0.02)
    one.asker.settle()
    newest = one.send(wait_ms=60_000)
    assert one.is_acked(newer)
    one.asker.tick(61.0)
    assert not one.is_acked(newest), "it said nothing"


@pytest.mark.parametrize(
    ("acked", "code"), [(((0, 5),), Code.MALFORMED), (((2, 2),), Code.MALFORMED), (((-1, 2),), Code.MALFORMED)]
)
def test_a_get_with_acks_that_cannot_be_is_refused_and_nothing_is_acked(
    one: OneTopic, acked: tuple[tuple[int, int], ...], code: Code
) -> None:
    assert code_of(one.asker.replies[one.send(*acked)])[1] == code
    assert code_of(one.asker.replies[one.send(*acked, position=0)])[1] == code
    assert not one.asker.state.open
    assert one.asker.engine.take_group() is None


def test_a_get_of_who_is_not_the_consumer_any_more_acks_nothing(one: OneTopic) -> None:
    before = one.token
    one.token = one.asker.attach(TOPIC, nonce=b"another nonce").token
    assert code_of(one.asker.replies[one.send((0, 4), token=before)])[1] == Code.TAKEN_OVER
    one.asker.ask(Kind.SEEK, bodies.Seek(TOPIC, b"reader", "earliest"))
    assert code_of(one.asker.replies[one.send((0, 4))])[1] == Code.MOVED
    one.asker.tick(0.02)
    one.asker.settle()
    assert one.cursor == 0


def test_a_get_that_cannot_wait_is_refused_and_acks_nothing() -> None:
    one = OneTopic(max_waiting_gets=0)
    assert code_of(one.asker.replies[one.send((0, 4), wait_ms=1000)])[1] == Code.LIMIT
    assert not one.asker.state.open


def test_more_ranges_than_are_kept_above_the_cursor_refuse_the_get() -> None:
    one = OneTopic(max_acked_ranges=1)
    one.put(4)
    assert code_of(one.asker.replies[one.send((1, 2), (3, 4), (5, 6))])[1] == Code.LIMIT
    assert not one.asker.state.open


def test_who_waits_keeps_no_batches_in_memory(one: OneTopic) -> None:
    one.send((0, 4), wait_ms=60_000)
    ((waiting,),) = [list(topic.waiting.values()) for topic in one.asker.state.topics.values() if topic.waiting]
    assert waiting.acked_with is one.asker.state.open.commit


# A fetch.


def test_what_a_fetch_says_is_acked_is_not_said_to_be_durable_before_it_is(
    many: tuple[ManyAsker, FetchReader],
) -> None:
    asker, reader = many
    acks = reader.next_acks().acks
    assert acked_and_refused(asker.replies[send_fetch(asker, reader, acks)]) == (False, {})
    asker.tick(0.02)
    group = asker.take_group()
    assert acked_and_refused(asker.replies[send_fetch(asker, reader, acks)]) == (False, {})
    assert cursors(asker) == [0, 0]
    asker.commit(group)
    assert cursors(asker) == [4, 4]
    assert acked_and_refused(asker.replies[send_fetch(asker, reader, acks)]) == (True, {})
    assert asker.engine.take_group() is None
    assert asker.engine.next_deadline_s() > asker.now_s, "nothing is due"


def test_a_fetch_that_says_nothing_is_told_nothing(many: tuple[ManyAsker, FetchReader]) -> None:
    asker, reader = many
    assert acked_and_refused(asker.replies[send_fetch(asker, reader, ())]) == (False, {})


def test_acks_of_a_fetch_are_committed_within_ten_ms_though_nobody_waits_for_them(
    many: tuple[ManyAsker, FetchReader],
) -> None:
    asker, reader = many
    send_fetch(asker, reader, wait_ms=60_000)
    assert asker.engine.take_group() is None
    assert asker.engine.next_deadline_s() <= asker.now_s + 0.0101
    asker.tick(0.011)
    asker.commit(asker.take_group())
    assert cursors(asker) == [4, 4]


def test_the_next_put_takes_the_acks_of_a_waiting_fetch_along(many: tuple[ManyAsker, FetchReader]) -> None:
    asker, reader = many
    waiting = send_fetch(asker, reader, wait_ms=60_000)
    asker.send_puts(asker.part(asker.numbers[1], b"new"))
    asker.commit(asker.take_group())
    assert acked_and_refused(asker.replies[waiting]) == (True, {})
    assert [heard.payload for heard in hear(reader, asker.replies[waiting])] == [b"new"]
    assert cursors(asker) == [4, 4]


def test_what_comes_with_an_earlier_commit_does_not_make_acks_of_a_fetch_durable(
    many: tuple[ManyAsker, FetchReader],
) -> None:
    asker, reader = many
    asker.send_puts(asker.part(asker.numbers[1], b"new"))
    group = asker.take_group()
    waiting = send_fetch(asker, reader, wait_ms=60_000)
    asker.commit(group)
    assert acked_and_refused(asker.replies[waiting]) == (False, {})
    assert cursors(asker) == [0, 0]


def test_acks_of_a_fetch_that_are_refused_are_told_at_once_and_the_others_taken(
    many: tuple[ManyAsker, FetchReader],
) -> None:
    asker, reader = many
    a, b = asker.numbers
    token = reader.topics[b].token
    asker.ask(Kind.SEEK, bodies.Seek(A, b"reader", "earliest"))
    acks = ((a, reader.topics[a].token, 0, 4), (b, token, 0, 4), (99, token, 0, 1))
    waiting = send_fetch(asker, reader, acks, wait_ms=60_000)
    assert acked_and_refused(asker.replies[waiting]) == (False, {a: Code.MOVED, 99: Code.NOT_SUBSCRIBED})
    asker.go_on()
    assert cursors(asker) == [0, 4]
    refused = ((b, token + 1000, 0, 4), (b, token, 0, 5))
    for ack in refused:
        durable, codes = acked_and_refused(asker.replies[send_fetch(asker, reader, (ack,), wait_ms=60_000)])
        assert set(codes) == {b}, durable


@pytest.mark.parametrize("is_in_flight", [True, False])
def test_acks_of_a_fetch_whose_commit_failed_are_never_said_to_be_durable(
    many: tuple[ManyAsker, FetchReader], is_in_flight: bool
) -> None:
    asker, reader = many
    acks = reader.next_acks().acks
    if not is_in_flight:
        asker.send_puts(asker.part(asker.numbers[1], b"new"))
        group = asker.take_group()
    waiting = send_fetch(asker, reader, acks, wait_ms=60_000)
    if is_in_flight:
        asker.tick(0.02)
        group = asker.take_group()
    asker.fail(group)
    assert acked_and_refused(asker.replies[waiting]) == (False, {})
    assert cursors(asker) == [0, 0]
    assert code_of(asker.replies[send_fetch(asker, reader, acks)])[1] == Code.NO_SESSION
    asker.go_on()
    assert cursors(asker) == [0, 0], "a fetch that is refused acks nothing"
    asker.begin(reader)
    send_fetch(asker, reader, acks)
    asker.go_on()
    assert cursors(asker) == [4, 4]


def test_a_fetch_that_comes_late_acks_nothing_and_says_so(many: tuple[ManyAsker, FetchReader]) -> None:
    asker, reader = many
    late = reader.next_fetch()
    late.acks = reader.next_acks().acks
    send_fetch(asker, reader, ())
    assert acked_and_refused(asker.replies[asker.send(Kind.FETCH, late)]) == (False, {})
    assert not asker.state.open


def test_more_acks_than_one_request_may_have_are_refused(many: tuple[ManyAsker, FetchReader]) -> None:
    asker, reader = many
    acks = ((asker.numbers[0], 1, 0, 1),) * 65_537
    assert code_of(asker.replies[send_fetch(asker, reader, acks)]) == (Kind.INVALID, Code.MALFORMED)


def test_a_broker_that_stops_commits_what_gets_said(one: OneTopic) -> None:
    one.send((0, 4), wait_ms=60_000)
    one.asker.engine.make_haste()
    one.asker.commit(one.asker.take_group())
    assert one.cursor == 4
