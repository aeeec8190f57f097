"""What a publisher tells the broker of its tuners, when, and what becomes of it when the broker refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.unit.publisher.talking import TOPIC, Asked, Talk

from clarion.publisher.publisher_core import REPORT_EVERY_S
from clarion.publisher.tuner import LAN
from clarion.wire import bodies
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Kind

CREDIT = 1 << 40
AT_ONCE = 8  # topics that are told of at a time


def quiet_talk(tuning: str = "auto") -> Talk:
    """A publisher that has just told of its first message."""
    talk = Talk(tuning=tuning, tuner=LAN)
    answer(take_reports(talk))
    answer(report(talk))
    return talk


def report(talk: Talk) -> list[Asked]:
    """Return what it tells when the time has come."""
    talk.now_s += REPORT_EVERY_S
    talk.turn()
    return take_reports(talk)


def take_reports(talk: Talk) -> list[Asked]:
    reports, talk.reports = talk.reports, []
    return reports


def answer(reports: list[Asked]) -> None:
    for told in reports:
        told.answer(Kind.ACK, bodies.Done())


def put_and_store(talk: Talk, *topics: bytes, messages: int = 1) -> None:
    """Put and have stored, in a moment in which nothing is told."""
    for topic in topics:
        talk.add(*[b"x"] * messages, topic=topic)
    for asked in talk.pump():
        talk.store(asked, credit=CREDIT)


def topics_of(reports: list[Asked]) -> list[bytes]:
    return [told.body.topic for told in reports]


def test_the_first_message_of_a_topic_is_told_of() -> None:
    talk = Talk(tuner=LAN)
    (told,) = take_reports(talk)
    assert (told.kind, told.body.topic) == (Kind.REPORT, TOPIC)


def test_what_a_tuner_does_is_told_every_two_seconds() -> None:
    assert REPORT_EVERY_S == 2.0
    talk = quiet_talk()
    told_s = []
    for _ in range(64):
        talk.now_s += 0.125
        put_and_store(talk, TOPIC)
        reports = take_reports(talk)
        answer(reports)
        told_s += [talk.now_s for _ in reports]
    assert len(told_s) == 4
    assert [later_s - sooner_s for sooner_s, later_s in pairwise(told_s)] == pytest.approx([2.0] * 3, abs=0.01)


def test_a_report_says_what_can_be_seen_of_the_publisher_on_that_topic() -> None:
    talk = Talk(tuning="fixed", tuner=LAN)
    answer(take_reports(talk))
    talk.add(b"a", b"b")
    assert len(talk.pump()) == 2, "fixed, one by one"
    queue = talk.core.queues[TOPIC]
    queue.tuner.batch_size = 7
    queue.credit = queue.sent + 30
    talk.core.drops = 5
    talk.add(b"c")
    (told,) = report(talk)
    seen = queue.tuning(talk.now_s)
    assert (seen.poll_interval_s, seen.load_per_s > 0) == (LAN.poll_min_s, True)
    assert told.body == bodies.Report(
        TOPIC, talk.core._instance, "fixed", 7, seen.poll_interval_s, told.body.load_per_s, seen.capacity_per_s, 30,
        pending=1, in_transfer=2, drops=5, stored=1,
    )  # fmt: skip


def test_a_publisher_has_one_name_in_all_its_reports() -> None:
    talk = quiet_talk()
    put_and_store(talk, TOPIC, b"other")
    reports = report(talk)
    assert sorted(topics_of(reports)) == [TOPIC, b"other"]
    assert {told.body.instance for told in reports} == {talk.core._instance}
    assert {told.body.policy for told in reports} == {"auto"}


def test_a_topic_on_which_nothing_happens_is_not_told_of_again() -> None:
    talk = quiet_talk()
    answer(report(talk))
    assert report(talk) == []
    put_and_store(talk, b"other")
    assert topics_of(report(talk)) == [b"other"]


def test_the_last_that_happened_is_told_before_the_silence() -> None:
    talk = quiet_talk()
    put_and_store(talk, TOPIC, messages=3)
    (told,) = report(talk)
    answer([told])
    assert (told.body.stored, told.body.pending, told.body.in_transfer) == (4, 0, 0)
    assert report(talk) == []


def test_a_topic_with_something_under_way_is_told_of_even_when_nothing_moves() -> None:
    talk = quiet_talk()
    talk.add_and_pump(b"a")
    for _ in range(3):
        (told,) = report(talk)
        assert told.body.in_transfer == 1
        answer([told])


def test_the_busiest_topics_are_told_of_first_and_the_others_in_their_turn() -> None:
    talk = quiet_talk()
    topics = [b"topic %02d" % place for place in range(AT_ONCE + 4)]
    for messages, topic in enumerate(topics, 1):
        put_and_store(talk, topic, messages=messages)
    first = report(talk)
    assert topics_of(first) == topics[: -AT_ONCE - 1 : -1]
    answer(first)
    assert report(talk) == [], "many topics are no more reports than one"
    talk.now_s += (len(first) - 1) * REPORT_EVERY_S
    second = report(talk)
    assert topics_of(second) == topics[3::-1]


def test_one_round_is_under_way_at_a_time() -> None:
    talk = quiet_talk()
    put_and_store(talk, TOPIC, b"other")
    one, other = report(talk)
    put_and_store(talk, TOPIC, b"other")
    assert report(talk) == []
    answer([one])
    assert report(talk) == [], "the other is not answered yet"
    answer([other])
    assert len(report(talk)) == 2


@pytest.mark.parametrize("code", [Code.MALFORMED, Code.VERSION])
def test_a_broker_that_does_not_know_reports_is_not_told_again(code: Code) -> None:
    talk = quiet_talk()
    put_and_store(talk, TOPIC)
    (told,) = report(talk)
    told.refuse(code, kind=Kind.INVALID)
    put_and_store(talk, TOPIC)
    assert report(talk) == []
    assert len(talk.add_and_pump(b"a")) == 1, "and publishing goes on"


@pytest.mark.parametrize("code", sorted(RETRIED))
def test_reports_go_on_after_a_broker_that_said_not_now(code: Code) -> None:
    talk = quiet_talk()
    put_and_store(talk, TOPIC)
    (told,) = report(talk)
    told.refuse(code, retry_after_s=0.1)
    put_and_store(talk, TOPIC)
    assert topics_of(report(talk)) == [TOPIC]


def test_nothing_is_told_before_the_broker_has_said_welcome() -> None:
    talk = Talk(registered=False, tuner=LAN)
    talk.greet()
    talk.add(b"a")
    assert report(talk) == []
    (hello,) = talk.take()
    hello.answer(Kind.ACK, bodies.Welcome(1, 1, bytes(16), 1, 1 << 20, 64, 1 << 20))
    assert topics_of(report(talk)) == [TOPIC]


def test_reports_keep_no_message_waiting() -> None:
    talk = quiet_talk()
    put_and_store(talk, TOPIC)
    assert len(report(talk)) == 1, "and it stays unanswered"
    for _ in range(5):
        talk.now_s += REPORT_EVERY_S
        (asked,) = talk.add_and_pump(b"a")
        talk.store(asked, credit=CREDIT)
