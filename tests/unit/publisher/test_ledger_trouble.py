"""Numbers that the broker does not know any more: what surely never arrived is sent anew, the rest is set aside."""

from __future__ import annotations

import pytest
from tests.unit.publisher.talking import TOPIC, Talk, numbers, payloads
from tests.unit.publisher.test_ledger import STORE, Keep
from tests.unit.publisher.test_ledger import keep as keep

from clarion.model.errors import LimitReached, NoSubscriber, OutboxFull, OutboxInDoubt
from clarion.publisher.outbox.outbox_file import look
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_on_a_topic_made_again_what_was_sent_once_is_numbered_from_one(keep: Keep) -> None:
    keep.save(b"a", b"b")
    for asked in keep.pump():
        asked.refuse(Code.NO_TOPIC)
    keep.welcome()
    again = keep.deliver()
    assert (numbers(again), payloads(again)) == ([1, 2], [[b"a"], [b"b"]])


def test_on_a_topic_made_again_what_was_found_is_in_doubt(keep: Keep) -> None:
    keep.save(b"a")
    keep.pump()
    keep.die()
    keep.save(b"b")
    keep.welcome()
    (asked,) = keep.send()
    asked.refuse(Code.NO_TOPIC)
    keep.welcome()
    assert payloads(keep.send()) == [[b"b"]]
    assert [row.messages for row in look(keep.path).quarantined] == [1]
    assert isinstance(keep.core.take_error(), OutboxInDoubt)
    assert keep.core.take_error() is None


def test_a_forgotten_publisher_numbers_anew_what_was_surely_not_taken(keep: Keep) -> None:
    batches = keep.save(b"a", b"b")
    sent = keep.pump()
    sent[0].refuse(Code.PUBLISHER_EXPIRED)
    assert keep.send() == [], "a request with an old number is under way"
    sent[1].refuse(Code.PUBLISHER_EXPIRED)
    keep.welcome()
    again = keep.deliver()
    assert (numbers(again), payloads(again)) == ([1, 2], [[b"a"], [b"b"]])
    assert {asked.batch.publisher for asked in again} == {keep.publishers}
    assert [outgoing.error for outgoing in batches] == [None, None]


def test_a_forgotten_publisher_sets_aside_what_may_have_been_taken(keep: Keep) -> None:
    batches = keep.save(b"a", b"b")
    sent = keep.pump()
    for asked in sent:  # the session had to send them again: the first time may have got through
        asked.refuse(Code.PUBLISHER_EXPIRED, times_sent=2)
    keep.save(b"c")
    keep.welcome()
    assert payloads(keep.send()) == [[b"c"]]
    for outgoing in batches:
        with pytest.raises(OutboxInDoubt, match="clarion outbox resend the outbox"):
            outgoing.raise_error()
    told = keep.core.take_error()
    assert isinstance(told, OutboxInDoubt)
    assert "2 messages" in str(told)
    assert sum(row.messages for row in look(keep.path).quarantined) == 2


def test_another_store_gets_nothing_that_was_numbered_for_the_first(keep: Keep) -> None:
    keep.save(b"a", b"b")
    keep.die()
    keep.save(b"c")
    keep.welcome(store=bytes(16), broker=2)
    sent = keep.send()
    assert (numbers(sent), payloads(sent)) == ([1], [[b"c"]])
    assert sent[0].batch.broker == 2
    assert sum(row.messages for row in look(keep.path).quarantined) == 2
    keep.store(sent[0])
    keep.work()
    keep.die()
    keep.welcome(store=bytes(16), broker=2)
    assert keep.send() == []


def test_an_identity_without_numbered_rows_is_not_used_again(keep: Keep) -> None:
    keep.die()
    keep.save(b"a")
    keep.welcome()
    (sent,) = keep.send()
    assert (sent.batch.number, sent.batch.publisher) == (1, 2)
    assert [asked.body for asked in keep.take(Kind.FORGET)] == [bodies.Forget(1)]


def test_what_the_broker_refuses_for_good_is_told_or_kept_for_who_can_be_told(keep: Keep) -> None:
    (outgoing,) = keep.save(b"a")
    keep.pump()[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    keep.work()
    assert isinstance(outgoing.error, NoSubscriber)
    assert look(keep.path) == ([], [])
    keep.save(b"b")
    keep.pump()
    keep.die()
    keep.welcome()
    keep.send()[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    keep.work()
    assert [(row.messages, row.reason) for row in look(keep.path).quarantined] == [(1, "because")]
    assert keep.left == [(0, 0)]
    keep.save(b"c")
    assert numbers(keep.send()) == [4], "a refusal uses its number up"


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_refused_takes_none_of_the_credit(keep: Keep, kept: bool) -> None:
    talk = Talk()
    queue = (keep if kept else talk).core.queues[TOPIC]
    before = queue.sent
    if kept:
        keep.save(b"a", b"b")
    asked = keep.send() if kept else talk.add_and_pump(b"a", b"b")
    asked[0].refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
    assert queue.sent == before + 1


def test_a_limit_of_the_broker_is_told_as_what_it_is_and_the_message_is_kept(keep: Keep) -> None:
    (outgoing,) = keep.save(b"a")
    keep.pump()[0].refuse(Code.LIMIT)
    keep.welcome()
    keep.send()
    assert isinstance(outgoing.error, LimitReached)
    assert [row.messages for row in look(keep.path).quarantined] == [1]


def test_lanes_that_are_let_go_leave_the_disk_before_the_broker_forgets_their_publisher(keep: Keep) -> None:
    keep.save(b"a", topic=b"other")
    keep.deliver()
    keep.save(b"waits")
    keep.core.queues_bound = 2
    keep.put(b"third", b"c", None, None)
    assert keep.take(Kind.FORGET) == []
    keep.work()
    assert {topic.row.topic for topic in keep.file.read().topics} == {TOPIC, b"third"}
    assert keep.take(Kind.FORGET) == [], "the first topic still has numbers of that publisher"
    keep.welcome()
    keep.core.queues_bound = 100
    keep.save(b"again", topic=b"other")
    sent = {asked.body.topic: (asked.batch.publisher, asked.batch.number) for asked in keep.deliver()}
    assert sent == {TOPIC: (1, 2), b"third": (2, 1), b"other": (2, 1)}
    keep.die()
    keep.welcome()
    assert keep.deliver() == []


def test_a_second_death_while_it_recovers_changes_nothing(keep: Keep) -> None:
    keep.save(b"a", b"b", b"c")
    sent = keep.pump()
    for _ in range(3):
        keep.die()
        keep.welcome()
        keep.send()
    keep.die()
    keep.welcome()
    assert [bytes(asked.blobs[0]) for asked in keep.deliver()] == [bytes(asked.blobs[0]) for asked in sent]
    assert keep.left == [(0, 0)]


def test_a_topic_that_is_just_being_numbered_when_the_publisher_is_forgotten_is_sent_all_the_same(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    keep.put(b"other", b"b", None, None)
    keep.ask_numbers()
    job = keep.job()
    asked.refuse(Code.PUBLISHER_EXPIRED)
    keep.do(job)
    keep.welcome()
    (old, new) = keep.send()
    assert (payloads([old]), old.batch.publisher) == ([[b"b"]], 1)
    old.refuse(Code.PUBLISHER_EXPIRED)
    keep.store(new)
    keep.welcome()
    again = keep.deliver()
    assert (payloads(again), again[0].batch.publisher) == ([[b"b"]], keep.publishers)


def test_a_topic_that_is_just_being_numbered_when_another_store_answers_is_numbered_for_that(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    keep.put(b"other", b"b", None, None)
    job = keep.job()
    asked.refuse(Code.MALFORMED, kind=Kind.INVALID)
    for hello in keep.take(Kind.HELLO):
        hello.answer(Kind.ACK, bodies.Welcome(1, 2, bytes(16), 1, 1 << 24, 64, 1 << 20))
    keep.do(job)
    keep.welcome(store=bytes(16), broker=2)
    sent = keep.deliver()
    assert (payloads(sent), sent[0].batch.broker) == ([[b"b"]], 2)


def test_what_was_once_sent_twice_stays_in_doubt_whatever_is_answered_later(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    asked.refuse(Code.TOPIC_FULL, times_sent=2)  # one may be refused, and the other taken
    keep.now_s += 1.0
    (asked,) = keep.send()
    asked.refuse(Code.PUBLISHER_EXPIRED)
    keep.welcome()
    assert keep.send() == []
    assert [row.messages for row in look(keep.path).quarantined] == [1]


def test_who_waits_for_what_was_found_hears_that_it_was_set_aside_though_more_was_put_since(keep: Keep) -> None:
    keep.save(b"a", b"b")
    keep.die()
    (found,) = keep.core.unfinished()
    (outgoing,) = keep.save(b"c")
    keep.welcome(store=bytes(16), broker=2)
    keep.deliver()
    assert isinstance(found.error, OutboxInDoubt)
    assert (outgoing.done, outgoing.error) == (True, None)


def test_who_waits_for_what_was_found_and_never_sent_waits_until_it_is_stored(keep: Keep) -> None:
    keep.save(b"a")
    keep.die()
    keep.save(b"never sent")
    keep.die()
    (found,) = keep.core.unfinished()
    keep.save(b"c")
    keep.welcome(store=bytes(16), broker=2)
    assert not found.done
    assert payloads(keep.deliver()) == [[b"never sent"], [b"c"]]
    assert (found.done, found.error) == (True, None)


def test_what_the_broker_took_is_counted_on_disk_and_what_it_refused_is_not(keep: Keep) -> None:
    for message in (b"a", b"b", b"c"):
        keep.save(message)
        (asked,) = keep.pump()
        if message == b"b":
            asked.refuse(Code.NO_SUBSCRIBER, kind=Kind.NO_SUBSCRIBER)
        else:
            keep.store(asked)
        keep.work()
    keep.save(b"d")
    assert keep.file.read().topics[0].row.stored == 3  # with the first one
    keep.die()
    keep.welcome()
    keep.send()
    assert keep.core.queues[TOPIC].sent == 4


def test_what_was_set_aside_is_not_left_behind(keep: Keep) -> None:
    keep.save(b"a", b"b")
    sent = keep.pump()
    for asked in sent:
        asked.refuse(Code.PUBLISHER_EXPIRED, times_sent=2)
    keep.welcome()
    assert sum(row.messages for row in look(keep.path).quarantined) == 2
    assert keep.ledger.left_behind() == (0, 0)


def test_an_old_publisher_is_forgotten_though_the_disk_was_full_once(keep: Keep) -> None:
    keep.die()
    for asked in keep.take(Kind.HELLO):
        asked.answer(Kind.ACK, bodies.Welcome(1, 1, STORE, 1, 1 << 24, 64, 1 << 20))
    keep.finish(keep.job(), OutboxFull("no room"))
    assert keep.take(Kind.FORGET) == []
    keep.now_s += 1.0
    keep.work()
    assert [asked.body for asked in keep.take(Kind.FORGET)] == [bodies.Forget(1)]


def test_winding_down_while_it_is_noted_who_answers_numbers_nothing(keep: Keep) -> None:
    keep.die()
    for asked in keep.take(Kind.HELLO):
        asked.answer(Kind.ACK, bodies.Welcome(1, 1, STORE, 1, 1 << 24, 64, 1 << 20))
    job = keep.job()
    keep.ledger.wind_down()
    keep.do(job)
    assert keep.send() == []
    assert keep.take(Kind.REGISTER) == []


def test_a_publisher_registered_with_another_broker_than_the_one_that_was_met_gets_no_numbers(keep: Keep) -> None:
    keep.die()
    keep.save(b"a")
    for asked in keep.take(Kind.HELLO):
        asked.answer(Kind.ACK, bodies.Welcome(1, 1, STORE, 1, 1 << 24, 64, 1 << 20))
    keep.work()
    keep.pump()
    (asked,) = keep.take(Kind.REGISTER)
    asked.answer(Kind.ACK, bodies.Registered(2, 7))
    assert keep.send() == []
    keep.welcome(store=bytes(16), broker=2)
    assert [asked.batch.broker for asked in keep.deliver()] == [2]


def test_rows_for_a_topic_where_nothing_can_be_put_are_told_and_removed(keep: Keep) -> None:
    keep.topic_number = 0
    (outgoing,) = keep.save(b"a", topic=b"nobody's")
    keep.turn()
    keep.work()
    (opening,) = keep.take(Kind.OPEN)
    opening.answer(Kind.ACK, bodies.Opened(((0, Code.NO_SUBSCRIBER, "nobody subscribes"),)))
    assert not outgoing.done, "who was told and dies must not find it again"
    keep.work()
    assert isinstance(outgoing.error, NoSubscriber)
    assert (look(keep.path).waiting, look(keep.path).quarantined, keep.ledger.stored_messages) == ([], [], 0)
    keep.save(b"b", b"c", topic=b"nobody's")
    keep.turn()
    for opening in keep.take(Kind.OPEN):
        opening.open(4)
    sent = keep.deliver()
    assert (payloads(sent), numbers(sent)) == ([[b"b"], [b"c"]], [1, 2])
    assert {asked.body.topic_number for asked in sent} == {4}


def test_after_a_crash_numbered_rows_name_the_topic_that_they_were_numbered_for(keep: Keep) -> None:
    keep.save(b"a")
    keep.pump()
    keep.topic_number = 2
    keep.die()
    keep.welcome()
    (again,) = keep.send()
    assert again.body.topic_number == 1
    again.refuse(Code.NO_TOPIC)
    keep.welcome()
    assert keep.send() == []
    assert sum(row.messages for row in look(keep.path).quarantined) == 1
    keep.save(b"b")
    assert [(asked.body.topic_number, asked.batch.number) for asked in keep.send()] == [(2, 1)]


def test_a_greeting_that_is_refused_for_now_is_sent_again_in_time_though_topics_wait_to_be_opened(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    asked.refuse(Code.NO_TOPIC)
    keep.put(b"other", b"b", None, None)
    (greeting,) = keep.take(Kind.HELLO)
    greeting.refuse(Code.BUSY, retry_after_s=0.5)
    assert keep.turn() == keep.now_s + 0.5
