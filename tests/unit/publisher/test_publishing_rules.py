"""How the real client drives the tuner: when batches leave, how large they are, what the tuner is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.publisher.talking import TOPIC, Asked, Talk, payloads

from clarion.model.errors import InvalidRequest
from clarion.publisher.topic_queue import TopicQueue
from clarion.publisher.tuner import LAN, PAPER, POLICIES, TunerSettings
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

EVERY = ["auto", *sorted(POLICIES)]
TUNED = [policy for policy in EVERY if policy != "fixed"]
CREDIT = 1 << 40


class Published:
    """What a tuner was told of publishes and transfers, beside what it does with it."""

    def __init__(self, queue: TopicQueue) -> None:
        self.publishes_s: list[float] = []  # T_mpt
        self.transfers: list[tuple[float, int]] = []  # s_i and n_i
        tuner: Any = queue.tuner
        self._on_published, self._on_transferred = tuner.on_published, tuner.on_transferred
        tuner.on_published, tuner.on_transferred = self._note_published, self._note_transferred

    def _note_published(self, *, took_s: float, now_s: float, **more: float) -> None:
        self.publishes_s.append(took_s)
        self._on_published(took_s=took_s, now_s=now_s, **more)

    def _note_transferred(self, *, took_s: float, in_transfer: int) -> None:
        self.transfers.append((took_s, in_transfer))
        self._on_transferred(took_s=took_s, in_transfer=in_transfer)


def idle_talk(tuning: str, settings: TunerSettings = LAN, batch_size: int = 1, **more: Any) -> Talk:
    """A publisher whose first message is stored, with credit, and which has had nothing to do for a minute."""
    talk = Talk(registered=False, tuning=tuning, tuner=replace(settings, batch_size=batch_size), **more)
    first = [b"first"] * batch_size
    talk.add(*first)
    talk.turn()
    talk.register(1)
    (asked,) = talk.pump()
    assert asked.batch.payloads() == first
    talk.now_s += 0.005
    talk.store(asked, credit=CREDIT)
    assert talk.pump() == []
    talk.now_s += 60.0
    return talk


def put_many(talk: Talk, messages: Sequence[bytes]) -> None:
    """As the clients' `put_many`."""
    start = 0
    while start < len(messages):
        stop = talk.core.chunk_end(TOPIC, messages, None, start)
        talk.put_all(TOPIC, messages[start:stop])
        start = stop


def run(talk: Talk, seconds: float, step_s: float = 0.01) -> list[Asked]:
    """Let the time pass, and answer nothing."""
    asked: list[Asked] = []
    until_s = talk.now_s + seconds
    while talk.now_s < until_s:
        talk.now_s = min(until_s, talk.now_s + step_s)
        asked += talk.pump()
    return asked


@pytest.mark.parametrize("settings", [LAN, PAPER])
@pytest.mark.parametrize("tuning", TUNED)
def test_a_lone_message_on_an_idle_publisher_leaves_at_once(tuning: str, settings: TunerSettings) -> None:
    talk = idle_talk(tuning, settings)
    talk.add(b"a")
    talk.turn()
    assert payloads(talk.take()) == [[b"a"]]


@pytest.mark.parametrize("tuning", TUNED)
def test_a_lone_message_leaves_at_once_however_large_batches_were_before_the_silence(tuning: str) -> None:
    talk = idle_talk(tuning, batch_size=500)
    talk.add(b"a")
    talk.turn()
    assert payloads(talk.take()) == [[b"a"]]


@pytest.mark.parametrize("tuning", EVERY)
def test_the_very_first_message_leaves_as_soon_as_the_publisher_has_an_id(tuning: str) -> None:
    talk = Talk(registered=False, tuning=tuning, tuner=LAN)
    talk.add(b"a")
    talk.turn()
    talk.register(1)
    talk.turn()
    assert payloads(talk.take()) == [[b"a"]]


def test_fixed_waits_for_n_and_then_sends_exactly_n() -> None:
    talk = idle_talk("fixed", batch_size=3)
    talk.add(b"a", b"b")
    assert run(talk, 0.1) == []
    talk.add(b"c", b"d")
    assert payloads(talk.pump()) == [[b"a", b"b", b"c"]]


def test_fixed_sends_what_there_is_when_t_is_over() -> None:
    """READINGS: "at most T = T_poll_max (200 ms) counted from the end of the last publish"; here from the message that
    ended the silence."""
    talk = idle_talk("fixed", batch_size=3)
    talk.add(b"a")
    assert talk.pump() == []
    assert run(talk, 0.19) == []
    talk.add(b"b")
    assert payloads(run(talk, 0.02)) == [[b"a", b"b"]]


def test_fixed_counts_t_from_the_end_of_the_last_publish() -> None:
    talk = idle_talk("fixed", batch_size=3)
    talk.add(b"a", b"b", b"c", b"d")
    assert payloads(talk.pump()) == [[b"a", b"b", b"c"]]
    assert run(talk, 0.19) == []
    assert payloads(run(talk, 0.02)) == [[b"d"]]


def test_with_the_papers_settings_fixed_sends_one_batch_each_t_poll() -> None:
    """READINGS: "A full poll takes N messages (not all pending)"."""
    talk = idle_talk("fixed", PAPER, batch_size=2, in_flight=9)
    talk.add(b"a", b"b", b"c", b"d", b"e")
    assert payloads(talk.pump()) == [[b"a", b"b"]]
    assert run(talk, 0.049) == []
    assert payloads(run(talk, 0.01)) == [[b"c", b"d"]]


@pytest.mark.parametrize("batch_size", [1, 3, 10])
def test_no_batch_of_fixed_is_larger_than_n_however_messages_come(batch_size: int) -> None:
    talk = idle_talk("fixed", batch_size=batch_size, in_flight=200)
    messages = [b"message %d" % place for place in range(57)]
    put_many(talk, messages[:7])
    talk.add(*messages[7:12])
    put_many(talk, messages[12:50])
    asked = talk.pump()
    talk.add(*messages[50:])
    asked += talk.pump() + run(talk, 0.3)
    assert [payload for some in payloads(asked) for payload in some] == messages
    assert max(map(len, payloads(asked))) == batch_size
    assert batch_size < 10 or len(asked) <= 10, "and batches are not made smaller than they need to be"


def test_a_delayed_message_makes_no_batch_of_fixed_larger_than_n() -> None:
    talk = idle_talk("fixed", batch_size=3, in_flight=9)
    talk.add(b"a", b"b")
    for payload in (b"later", b"much later"):
        talk.put(TOPIC, payload, None, None, due_us=1_800_000_000_000_000)
    assert payloads(talk.pump()) == [[b"a", b"b"], [b"later", b"much later"]], "four are pending, three are wanted"


@pytest.mark.parametrize("tuning", TUNED)
def test_what_is_pending_when_a_tuned_batch_leaves_goes_with_it(tuning: str) -> None:
    """A batch costs one transfer whatever is in it: N is how many it takes for one to leave."""
    talk = idle_talk(tuning)
    talk.add(b"a", b"b", b"c")
    assert payloads(talk.pump()) == [[b"a", b"b", b"c"]]


def test_auto_publishes_once_each_t_poll_while_something_is_in_transfer() -> None:
    talk = idle_talk("auto", replace(LAN, poll_min_s=0.02))
    talk.add(b"a")
    assert payloads(talk.pump()) == [[b"a"]]
    talk.add(b"b")
    wanted_s = talk.turn()
    assert talk.take() == []
    assert wanted_s == pytest.approx(talk.now_s + 0.02)
    talk.add(b"c")
    assert run(talk, 0.019) == []
    assert payloads(run(talk, 0.002)) == [[b"b", b"c"]]


def test_auto_goes_on_at_once_when_nothing_is_in_transfer_any_more() -> None:
    talk = idle_talk("auto", replace(LAN, poll_min_s=0.2))
    (asked,) = talk.add_and_pump(b"a")
    assert talk.add_and_pump(b"b") == []
    talk.store(asked, credit=CREDIT)
    assert payloads(talk.pump()) == [[b"b"]]


@pytest.mark.parametrize("tuning", EVERY)
def test_no_more_than_the_window_is_under_way(tuning: str) -> None:
    talk = idle_talk(tuning, in_flight=2, batch_bytes=100)
    put_many(talk, [bytes(60)] * 5)
    asked = run(talk, 1.0)
    assert len(asked) == 2
    talk.store(asked[0], credit=CREDIT)
    assert len(run(talk, 1.0)) == 1


@pytest.mark.parametrize("tuning", EVERY)
def test_credit_gates_all_but_the_one_batch_that_may_always_be_under_way(tuning: str) -> None:
    """READINGS: "Build the credit gate." """
    talk = idle_talk(tuning, in_flight=9, batch_bytes=200)
    queue = talk.core.queues[TOPIC]
    queue.credit = queue.sent + 4
    put_many(talk, [bytes(60)] * 12)
    asked = run(talk, 1.0)
    assert 0 < sum(item.batch.count for item in asked) <= 4
    for item in asked:
        assert run(talk, 0.5) == []
        talk.store(item, credit=queue.credit)
    (alone,) = run(talk, 1.0)
    talk.store(alone, credit=queue.sent)
    assert len(run(talk, 1.0)) == 1, "without credit one batch after the other"


@pytest.mark.parametrize("tuning", EVERY)
def test_a_batch_that_credit_covers_only_in_part_does_not_leave(tuning: str) -> None:
    talk = idle_talk(tuning, replace(LAN, batch_size=3), batch_size=3)
    talk.add(b"a", b"b", b"c")
    (asked,) = talk.pump()
    queue = talk.core.queues[TOPIC]
    queue.credit = queue.sent + 2
    talk.add(b"d", b"e", b"f")
    assert run(talk, 1.0) == []
    talk.store(asked, credit=queue.sent)
    assert payloads(run(talk, 1.0)) == [[b"d", b"e", b"f"]], "one batch may always be under way"


@pytest.mark.parametrize("tuning", EVERY)
def test_credit_lets_batches_go_as_soon_as_it_comes(tuning: str) -> None:
    talk = idle_talk(tuning, in_flight=9, batch_bytes=100)
    queue = talk.core.queues[TOPIC]
    queue.credit = queue.sent
    put_many(talk, [bytes(60)] * 4)
    (asked,) = run(talk, 1.0)
    talk.store(asked, credit=CREDIT)
    assert len(run(talk, 1.0)) == 3


@pytest.mark.parametrize("tuning", EVERY)
def test_a_publish_lasts_until_the_window_has_let_all_of_it_go(tuning: str) -> None:
    """ "The MPT returns only when all the messages have been assigned. The time from when the MPT read from the data
    store and completes assigning messages to WTs is T_mpt": a place in the window is what a worker is there."""
    talk = idle_talk(tuning, replace(LAN, batch_size=3, batch_size_min=3), batch_size=3, in_flight=1, batch_bytes=100)
    seen = Published(talk.core.queues[TOPIC])
    put_many(talk, [bytes(60)] * 3)
    (asked,) = talk.pump()
    began_s = talk.now_s
    for _ in range(2):
        assert seen.publishes_s == []
        talk.now_s += 0.3
        talk.store(asked, credit=CREDIT)
        (asked,) = talk.pump()
    assert seen.publishes_s == [pytest.approx(talk.now_s - began_s)]


@pytest.mark.parametrize("tuning", EVERY)
def test_a_publish_that_the_window_lets_go_at_once_takes_no_time(tuning: str) -> None:
    talk = idle_talk(tuning)
    seen = Published(talk.core.queues[TOPIC])
    talk.add(b"a")
    talk.turn()
    assert seen.publishes_s == [0.0]


def test_a_transfer_is_told_with_its_time_and_all_messages_in_transfer() -> None:
    """ "When a WT completes transferring a message to the broker, we record the time it took. [...] We also keep track
    of the number of WTs that are currently transferring". READINGS: "n in n_i/s_i counts messages in transfer, also
    where we send them as one packed batch"."""
    talk = idle_talk("literal")
    seen = Published(talk.core.queues[TOPIC])
    talk.add(b"a", b"b", b"c")
    (first,) = talk.pump()
    talk.now_s += 0.1
    (second,) = talk.add_and_pump(b"d")
    talk.now_s += 0.2
    talk.store(first, credit=CREDIT)
    talk.store(second, credit=CREDIT)
    assert [took_s for took_s, _ in seen.transfers] == pytest.approx([0.3, 0.2], abs=0.001)
    assert [in_transfer for _, in_transfer in seen.transfers] == [4, 1]


def test_the_time_of_a_transfer_counts_from_the_first_try() -> None:
    """ "s_i will increase whenever there is congestion in the link between the publisher and broker, or congestion in
    the broker": a broker that says "later" is congested."""
    talk = idle_talk("literal")
    seen = Published(talk.core.queues[TOPIC])
    (asked,) = talk.add_and_pump(b"a")
    asked.refuse(Code.BUSY, retry_after_s=0.5)
    (again,) = run(talk, 1.0)
    talk.store(again, credit=CREDIT)
    ((took_s, in_transfer),) = seen.transfers
    assert took_s == pytest.approx(1.0, abs=0.01)
    assert in_transfer == 1


@pytest.mark.parametrize("tuning", ["literal", "recheck"])
def test_full_polls_under_a_quick_window_raise_n_and_silence_brings_it_down(tuning: str) -> None:
    talk = idle_talk(tuning)
    tuner = talk.core.queues[TOPIC].tuner
    for _ in range(9):
        talk.add(*[b"x"] * 20)
        for asked in talk.pump():
            talk.store(asked, credit=CREDIT)
    assert tuner.batch_size == 10
    talk.now_s += 10.0
    assert len(talk.add_and_pump(b"a")) == 1
    assert tuner.batch_size <= 2


def test_pump_gives_the_time_to_come_back_for_the_next_poll() -> None:
    talk = idle_talk("fixed", PAPER, batch_size=5)
    talk.add(b"a")
    assert talk.turn() == pytest.approx(talk.now_s + 0.05)
    assert talk.take() == []


@pytest.mark.parametrize("tuning", EVERY)
def test_who_comes_back_only_when_told_sends_all(tuning: str) -> None:
    talk = idle_talk(tuning, PAPER, batch_size=5, in_flight=99)
    talk.add(*[b"x"] * 12)
    sent = 0
    for _ in range(50):
        wanted_s = talk.turn()
        sent += sum(asked.batch.count for asked in talk.take())
        if wanted_s is None:
            break
        assert wanted_s > talk.now_s, "or it would turn for ever"
        talk.now_s = wanted_s
    assert sent == 12


@pytest.mark.parametrize("tuning", EVERY)
def test_with_nothing_to_send_pump_wants_no_time(tuning: str) -> None:
    talk = idle_talk(tuning)
    assert talk.turn() is None
    talk.add(b"a")
    assert talk.turn() is None, "an answer comes by itself"


@pytest.mark.parametrize("tuning", EVERY)
def test_each_topic_has_a_tuner_of_its_own_but_auto_decides_for_all(tuning: str) -> None:
    talk = idle_talk(tuning, batch_size=2)
    talk.add(b"a", b"b", topic=b"other")
    assert [asked.body.topic for asked in talk.pump() if asked.kind == Kind.PUT] == [b"other"]
    is_one = talk.core.queues[b"other"].tuner is talk.core.queues[TOPIC].tuner
    assert is_one == (tuning in ("auto", "eager"))
    assert set(talk.core.seen(talk.now_s)) == {TOPIC, b"other"}


def test_what_can_be_seen_of_a_tuner_tells_what_is_pending_and_what_credit_is_left() -> None:
    talk = idle_talk("fixed", batch_size=5)
    queue = talk.core.queues[TOPIC]
    queue.credit = queue.sent + 40
    talk.add(b"a", b"b")
    seen = talk.core.seen(talk.now_s)[TOPIC]
    assert (seen.batch_size, seen.pending, seen.credit) == (5, 2, 40)


def test_without_credit_none_is_left_and_that_is_not_told_as_unbounded() -> None:
    talk = Talk()
    talk.core.queues[TOPIC].credit = 1
    talk.add_and_pump(b"the one that may always be under way")
    assert talk.core.seen(talk.now_s)[TOPIC].credit == 0


def test_a_publish_that_was_given_up_lets_nothing_go_later() -> None:
    talk = idle_talk("fixed", batch_size=3, in_flight=1)
    talk.add(*[b"x"] * 9)
    assert len(talk.pump()) == 1
    talk.give_up(InvalidRequest("no more"))
    talk.add(b"alone")
    talk.turn()
    talk.register(2)
    assert talk.pump() == []


def test_fixed_comes_back_when_t_is_over_and_not_before() -> None:
    talk = idle_talk("fixed", batch_size=3)
    talk.add(b"alone")
    wanted_s = [talk.turn()]
    while wanted_s[-1] is not None:
        talk.now_s = wanted_s[-1]
        wanted_s.append(talk.turn())
    assert payloads(talk.take()) == [[b"alone"]]
    assert len(wanted_s) <= 4


@pytest.mark.parametrize("tuning", TUNED)
def test_what_a_poll_tells_to_have_published_is_what_left(tuning: str) -> None:
    talk = idle_talk(tuning, in_flight=64, trace_samples=100_000)
    before = len(talk.core.trace.of(TOPIC))
    left = 0
    for burst in (5, 1, 40, 3):
        talk.add(*[b"x"] * burst)
        left += sum(len(batch) for batch in payloads(run(talk, 0.3)))
    samples = talk.core.trace.of(TOPIC)[before:]
    assert left == sum(sample.published for sample in samples) == 49
