"""Acks that go with gets and fetches: each is said until it is durable, held up by nobody, and none is made up."""

from __future__ import annotations

import pytest
from tests.unit.subscriber.talking import (
    NAMES,
    SHARED,
    A,
    Asked,
    B,
    Reads,
    Talk,
    Together,
    packed,
    payloads_of,
    topics,
    welcome,
)

from clarion.model.errors import LimitReached, StoredDataCorrupt
from clarion.session.exchange import Reply, Seen
from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.fetch_session import FetchSession
from clarion.subscriber.subscriber_core import Close, Flush, Get, Next
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

LATER_S = 0.2  # when acks that were said in vain are said by themselves at the latest


class One(Reads):
    """A reader of one topic, at a broker to which gets say what is acked."""

    def __init__(self, *, auto_ack: bool = True, at_most_once: bool = False, shared: bool = False) -> None:
        super().__init__(ack="auto" if auto_ack else "explicit", at_most_once=at_most_once, shared=shared)
        self.core.state.version = 2

    def answer(self, asked: Asked, *payloads: bytes, is_durable: bool) -> None:
        """Answer a get with what lies at its position."""
        first = asked.body.position
        if payloads:
            body = bodies.Delivery(((first, 5),), first + len(payloads), acked=is_durable)
            asked.answer(Kind.MESSAGES, body, packed(*payloads))
        else:
            asked.answer(Kind.NO_MESSAGES, bodies.NoMessages(first, is_durable))

    def pass_time(self, seconds: float = 0.0) -> float | None:
        self.now_s += seconds
        wanted_s = self.core.on_time(self.now_s, 0.0)
        self.collect()
        return wanted_s

    def flush_acks(self) -> tuple[tuple[int, int], ...]:
        """Return what a flush finds that is not known to be durable."""
        flush = self.run(Flush(None))
        if flush.go_on():
            return ()
        asked = self.pick(Kind.ACK)
        asked.done()
        flush.end()
        acked: tuple[tuple[int, int], ...] = asked.body.acked
        return acked


@pytest.fixture
def one() -> One:
    """Messages 0 and 1 are handed out, and to be acked by the next call."""
    one = One()
    one.got(0, 1)
    assert one.asked == []
    return one


@pytest.fixture
def reader() -> Together:
    """A message of each of two topics is handed out, and to be acked by the next call."""
    reader = Together()
    reader.first((A, 0, packed(b"a0")), (B, 0, packed(b"b0")))
    return reader


BOTH = [(A, 7, 0, 1), (B, 7, 0, 1)]


# One topic.


def test_the_next_get_says_what_is_acked_and_nothing_else_does(one: One) -> None:
    one.get(wait_s=5.0)
    asked = one.one(Kind.GET)
    assert asked.body.acked == ((0, 2),)
    one.answer(asked, is_durable=True)
    one.pass_time()
    assert one.one(Kind.GET).body.acked == (), "as the call still waits"
    assert one.flush_acks() == ()


def test_what_was_not_durable_goes_with_the_next_get_and_waits_for_it_for_a_moment(one: One) -> None:
    walk = one.get(wait_s=5.0)
    one.answer(one.one(Kind.GET), b"2", is_durable=False)
    assert payloads_of(walk.end()) == [b"2"]
    wanted_s = one.pass_time()
    assert one.asked == []
    assert wanted_s is not None
    assert one.now_s < wanted_s < one.now_s + LATER_S
    one.get(wait_s=5.0)
    asked = one.one(Kind.GET)
    assert asked.body.acked == ((0, 3),)
    one.pass_time(LATER_S)
    assert one.asked == [], "it was said, and is not answered"
    one.answer(asked, is_durable=True)
    assert one.flush_acks() == ()


def test_what_was_not_durable_goes_by_itself_where_the_application_does_not_come_back(one: One) -> None:
    walk = one.get(wait_s=5.0)
    one.answer(one.one(Kind.GET), b"2", is_durable=False)
    walk.end()
    one.pass_time()
    one.pass_time(LATER_S)
    asked = one.one(Kind.ACK)
    assert asked.body.acked == ((0, 2),), "but not what is being worked on"
    asked.done()
    assert one.pass_time(LATER_S) is None


def test_acks_that_no_get_makes_durable_go_by_themselves_however_busy_the_stream_is(one: One) -> None:
    """A broker of before, say, that took the place of one that reads what gets say."""
    acked = []
    for offset in range(2, 20):
        walk = one.get(wait_s=5.0)
        one.answer(one.pick(Kind.GET), b"%d" % offset, is_durable=False)
        assert payloads_of(walk.end()) == [b"%d" % offset]
        one.pass_time(0.03)
        for asked in [asked for asked in one.asked if asked.kind == Kind.ACK]:
            one.asked.remove(asked)
            acked.append(asked.body.acked)
            asked.done()
    assert acked[0][0][0] == 0
    assert len(acked) > 2
    assert acked[-1][-1][1] > 10


def test_an_ack_beside_a_get_that_waits_for_long_is_not_held_up() -> None:
    one = One(auto_ack=False)
    (part,) = one.got(0, 1, 2)
    first, second, third = part.messages()
    first.ack()
    own = one.one(Kind.ACK)
    second.ack()
    own_waits = one.get(wait_s=60.0)
    long = one.one(Kind.GET)
    assert long.body.acked == (), "one request of their own is under way, which comes first"
    own.done()
    asked = one.one(Kind.ACK)
    assert asked.body.acked == ((1, 2),)
    asked.done()
    third.ack()
    assert one.one(Kind.ACK).body.acked == ((2, 3),)
    assert not own_waits.go_on()


def test_what_a_second_caller_acks_takes_along_what_the_waiting_get_of_the_first_said(one: One) -> None:
    patient = one.get(wait_s=60.0)
    long = one.one(Kind.GET)
    assert long.body.acked == ((0, 2),)
    hurried = one.get()
    one.answer(one.one(Kind.GET), b"2", is_durable=False)
    assert payloads_of(hurried.end()) == [b"2"]
    one.get()
    asked = one.pick(Kind.ACK)
    assert asked.body.acked == ((0, 3),), "nobody knows when the long one is answered"
    one.answer(long, is_durable=True)
    flush = one.run(Flush(None))
    assert not flush.go_on(), "the answer is about less than is to be durable"
    asked.done()
    flush.end()
    assert not patient.go_on()


@pytest.mark.parametrize("call", [Flush(None), Close(True)])
def test_flush_and_close_do_not_wait_for_a_get_that_does(one: One, call: Flush | Close) -> None:
    one.get(wait_s=60.0)
    long = one.one(Kind.GET)
    walk = one.run(call)
    asked = one.one(Kind.ACK)
    assert asked.body.acked == ((0, 2),)
    assert not walk.go_on()
    asked.done()
    walk.end()
    one.answer(long, is_durable=False)
    one.pass_time(LATER_S)
    assert [asked for asked in one.asked if asked.kind == Kind.ACK] == [], "they are durable"


def test_closing_without_acks_still_has_durable_what_was_acked(one: One) -> None:
    walk = one.get()
    one.answer(one.one(Kind.GET), b"2", is_durable=False)
    walk.end()
    one.run(Close(False))
    assert one.one(Kind.ACK).body.acked == ((0, 2),)


def test_a_get_that_is_refused_for_now_does_not_keep_the_acks_it_said(one: One) -> None:
    walk = one.get(wait_s=5.0)
    one.one(Kind.GET).refuse(Code.BUSY, retry_after_s=30.0)
    one.pass_time()
    asked = one.one(Kind.ACK)
    assert asked.body.acked == ((0, 2),)
    asked.done()
    assert not walk.go_on()


def test_a_get_that_is_refused_since_something_is_gone_says_its_acks_again(one: One) -> None:
    one.get(wait_s=5.0)
    one.one(Kind.GET).refuse(Code.GONE, gone=(2, 9))
    one.pass_time()
    assert one.one(Kind.ACK).body.acked == ((0, 9),)


def test_acks_for_which_a_get_is_refused_do_not_keep_it_refused(one: One) -> None:
    """As an ack by itself that is refused for good: it is told, and all comes again."""
    walk = one.get(wait_s=5.0)
    one.one(Kind.GET).refuse(Code.LIMIT)
    with pytest.raises(LimitReached):
        walk.end()
    one.pass_time()
    one.one(Kind.ACK).refuse(Code.LIMIT)
    with pytest.raises(LimitReached):
        one.get().end()
    assert payloads_of(one.got(0, 1)) == [b"0", b"1"]


def test_what_is_not_acked_yet_is_never_said(one: One) -> None:
    """The application stops after a get: what that brought is not acked, whatever time passes."""
    walk = one.get(wait_s=5.0)
    one.answer(one.one(Kind.GET), b"2", b"3", is_durable=True)
    assert payloads_of(walk.end()) == [b"2", b"3"]
    one.pass_time(60.0)
    assert one.asked == []
    assert one.flush_acks() == ()


def test_with_explicit_acks_no_get_says_anything_by_itself() -> None:
    one = One(auto_ack=False)
    one.got(0, 1)
    one.get(wait_s=5.0)
    assert one.one(Kind.GET).body.acked == ()


def test_what_a_cancelled_get_brought_is_not_acked_by_the_next(one: One) -> None:
    walk = one.get(wait_s=5.0)
    one.answer(one.one(Kind.GET), b"2", b"3", is_durable=True)
    walk.go_on()
    walk.cancel()
    assert payloads_of(one.get().end()) == [b"2", b"3"]
    assert one.flush_acks() == ()


def test_a_get_that_is_cancelled_while_it_waits_said_its_acks(one: One) -> None:
    walk = one.get(wait_s=60.0)
    asked = one.one(Kind.GET)
    walk.cancel()
    one.answer(asked, is_durable=True)
    assert one.flush_acks() == ()


def test_a_broker_of_before_gets_acks_by_themselves(one: One) -> None:
    one.core.state.version = 1
    one.get(wait_s=5.0)
    assert one.pick(Kind.ACK).body.acked == ((0, 2),)
    assert one.one(Kind.GET).body.acked == ()


def test_which_protocol_the_broker_speaks_is_heard_with_every_answer(one: One) -> None:
    for version, carried in ((1, ()), (2, ((0, 2),))):
        world = One()
        world.got(0, 1)
        seen = Seen()
        seen.version = version
        world.core.on_reply((None, None), Reply(Kind.ACK, b"", seen=seen), world.now_s)
        world.get(wait_s=5.0)
        assert world.pick(Kind.GET).body.acked == carried


def test_the_welcome_tells_which_protocol_it_is() -> None:
    talk = Talk(attached=False)
    talk.core.count.known = None
    talk.reading.want(1.0, 5)
    talk.one(Kind.HELLO).answer(Kind.ACK, welcome(2))
    assert talk.core.state.may_carry_acks


def test_at_most_once_acks_are_requests_of_their_own() -> None:
    one = One(at_most_once=True)
    walk = one.get()
    one.attach()
    one.answer(one.one(Kind.GET), b"0", b"1", is_durable=False)
    assert not walk.go_on()
    asked = one.one(Kind.ACK)
    assert asked.body.acked == ((0, 2),)
    asked.done()
    assert payloads_of(walk.end()) == [b"0", b"1"]
    one.get(wait_s=5.0)
    assert one.one(Kind.GET).body.acked == ()


def test_what_is_lent_is_acked_by_itself() -> None:
    one = One(shared=True)
    one.got(0, 1)
    one.get(wait_s=5.0)
    assert one.pick(Kind.ACK).body.acked == ((0, 2),)


def test_a_stream_acks_with_its_gets_what_it_handed_out() -> None:
    one = One()
    walk = one.run(Next(b"news", 5.0, holder=one))
    one.attach()
    one.answer(one.one(Kind.GET), b"0", is_durable=False)
    assert walk.end().payload == b"0"
    assert one.reader.next_now(b"news") is None
    one.run(Next(b"news", 5.0, holder=one))
    assert one.one(Kind.GET).body.acked == ((0, 1),)


def test_what_is_handed_out_from_the_inbox_acks_what_was_before_by_itself() -> None:
    one = One()
    walk = one.get(1)
    one.attach()
    one.answer(one.one(Kind.GET), b"0", b"1", b"2", is_durable=False)
    walk.end()
    one.get(1).end()
    assert one.one(Kind.ACK).body.acked == ((0, 1),)
    one.get(1).end()
    assert one.asked == [], "one is under way"


# Many topics.


def test_the_next_fetch_says_again_what_was_not_durable(reader: Together) -> None:
    walk = reader.get(wait_s=1.0)
    asked = reader.one(Kind.FETCH)
    assert sorted(asked.body.acks) == BOTH
    reader.bring((A, 1, packed(b"a1")), asked=asked, acked=False)
    walk.end()
    wanted_s = reader.pass_time()
    assert reader.asked == []
    assert wanted_s is not None
    assert reader.now_s < wanted_s < reader.now_s + LATER_S
    reader.get(wait_s=1.0)
    assert sorted(reader.carried()) == [(A, 7, 0, 2), (B, 7, 0, 1)]
    assert reader.flush_acks() == ()


def test_what_was_not_durable_is_acked_though_the_application_does_not_come_back(reader: Together) -> None:
    walk = reader.get(wait_s=1.0)
    reader.bring((A, 1, packed(b"a1")), acked=False)
    walk.end()
    reader.pass_time()
    reader.pass_time(LATER_S)
    asked = reader.one(Kind.ACK_MANY)
    assert (sorted(asked.body.acks), asked.body.soon) == (BOTH, False)


def test_a_fetch_beside_a_waiting_one_does_not_lose_what_that_said(reader: Together) -> None:
    patient = reader.get(wait_s=60.0)
    long = reader.one(Kind.FETCH)
    assert sorted(long.body.acks) == BOTH
    hurried = reader.get()
    at_once = reader.one(Kind.FETCH)
    assert at_once.body.acks == ()
    long.answer(Kind.NO_MESSAGES, bodies.NoMessages(0, False))
    at_once.nothing()
    assert hurried.end() == []
    assert not patient.go_on()
    assert sorted(reader.carried()) == BOTH
    assert reader.flush_acks() == ()


def test_an_ack_beside_a_fetch_that_waits_for_long_takes_along_what_that_said(reader: Together) -> None:
    reader.get(wait_s=60.0)
    long = reader.one(Kind.FETCH)
    hurried = reader.get()
    reader.bring((A, 1, packed(b"a1")))
    assert payloads_of(hurried.end()) == [b"a1"]
    reader.get()
    asked = reader.pick(Kind.ACK_MANY)
    assert sorted(asked.body.acks) == [(A, 7, 0, 2), (B, 7, 0, 1)]
    long.answer(Kind.NO_MESSAGES, bodies.NoMessages(0, True))
    flush = reader.run(Flush(None))
    assert not flush.go_on(), "the answer is about less than is to be durable"
    asked.answer(Kind.ACK, bodies.AcksDone())
    flush.end()


@pytest.mark.parametrize("call", [Flush(None), Close(True)])
def test_flush_and_close_do_not_wait_for_a_fetch_that_does(reader: Together, call: Flush | Close) -> None:
    reader.get(wait_s=60.0)
    long = reader.one(Kind.FETCH)
    walk = reader.run(call)
    asked = reader.one(Kind.ACK_MANY)
    assert (sorted(asked.body.acks), asked.body.soon) == (BOTH, True)
    assert not walk.go_on()
    asked.answer(Kind.ACK, bodies.AcksDone())
    walk.end()
    long.answer(Kind.NO_MESSAGES, bodies.NoMessages(0, False))
    reader.pass_time(LATER_S)
    assert [asked for asked in reader.asked if asked.kind == Kind.ACK_MANY] == []


def test_an_answer_about_acks_of_a_topic_that_is_gone_is_not_taken_for_others(reader: Together) -> None:
    """A topic is unsubscribed while the fetch waits that said its acks; then others are acked."""
    reader.get(wait_s=60.0)
    long = reader.one(Kind.FETCH)
    (session,) = reader.core.consumers()
    assert isinstance(session, FetchSession)
    for topic in session.topics():
        session.drop(topic, LimitReached("gone"))
    hurried = reader.get()
    reader.bring((3, 0, packed(b"c0")), topics=topics(3))
    assert payloads_of(hurried.end()) == [b"c0"]
    reader.get()
    asked = reader.pick(Kind.ACK_MANY)
    assert asked.body.acks == ((3, 7, 0, 1),)
    long.answer(Kind.NO_MESSAGES, bodies.NoMessages(0, True))
    flush = reader.run(Flush(None))
    assert not flush.go_on()
    asked.answer(Kind.ACK, bodies.AcksDone())
    flush.end()


def test_a_topic_that_is_read_alone_from_now_on_keeps_the_acks_that_a_waiting_fetch_said(reader: Together) -> None:
    reader.get(wait_s=60.0)
    reader.one(Kind.FETCH)
    reader.run(Get(NAMES[A], 1, 1.0, holder=reader))
    assert reader.pick(Kind.ACK_MANY).body.acks == ((A, 7, 0, 1),)
    assert reader.one(Kind.ATTACH).body.topic == NAMES[A]


def test_acks_that_are_refused_and_not_durable_are_said_again_but_for_those_refused(reader: Together) -> None:
    reader.get(wait_s=1.0)
    reader.bring(acked=False, refused=((A, Code.NOT_SUBSCRIBED, "deleted"),))
    assert reader.flush_acks() == ((B, 7, 0, 1),)


def test_acks_refused_for_now_and_not_durable_are_said_once_each(reader: Together) -> None:
    reader.get(wait_s=1.0)
    reader.bring(acked=False, refused=((A, Code.BUSY, "later"),))
    reader.pass_time(1.0)
    assert sorted(reader.acks()) == BOTH
    assert reader.flush_acks() == ()


def test_a_session_that_ends_forgets_what_its_fetch_said(reader: Together) -> None:
    walk = reader.get(wait_s=1.0)
    reader.bring((A, 5, packed(b"a5")), acked=False)  # what does not follow
    assert not walk.go_on()
    reader.begin()
    fetch = reader.one(Kind.FETCH)
    assert fetch.body.acks == (), "the tokens are not these any more"
    reader.bring((A, 0, packed(b"a0")), topics=topics(A, token=9), asked=fetch)
    assert payloads_of(walk.end()) == [b"a0"]


def test_a_damaged_answer_says_all_the_same_what_is_durable(reader: Together) -> None:
    walk = reader.get(wait_s=1.0)
    bad = bytearray(packed(b"a1"))
    bad[-1] ^= 1
    reader.bring((A, 1, bytes(bad)), acked=True)
    with pytest.raises(StoredDataCorrupt):
        walk.end()
    assert reader.flush_acks() == ()


def test_with_at_most_once_no_fetch_says_acks() -> None:
    reader = Together(FetchSettings(at_most_once=True))
    walk = reader.get()
    reader.begin()
    reader.bring((A, 0, packed(b"a0")), topics=topics(A, B))
    walk.go_on()
    assert reader.acks() == ((A, 7, 0, 1),)
    walk.end()
    reader.get(wait_s=1.0)
    assert reader.one(Kind.FETCH).body.acks == ()


def test_acks_are_sent_where_another_topic_has_something_to_tell_first() -> None:
    """The call raises before it asks for anything."""
    reader = Together()
    reader.first((A, 0, packed(b"a0")), shared=(b"alerts/shared",), topics=topics(A))
    walk = reader.get(wait_s=1.0)
    reader.bring((A, 1, packed(b"a1")), acked=True)
    reader.pick(Kind.ATTACH).answer(Kind.ACK, bodies.Attached(7, 0, (), SHARED))
    walk.end()
    reader.core.of(b"alerts/shared").notice = StoredDataCorrupt("damaged")
    reader.core.of(b"alerts/shared").tell_news()
    with pytest.raises(StoredDataCorrupt):
        reader.get(wait_s=1.0)
    assert reader.acks() == ((A, 7, 1, 2),)
