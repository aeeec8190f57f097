"""What an outbox does in which order: saved before numbered, numbered before sent, removed after the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.publisher.talking import AT_ONCE, MOMENT_S, TOPIC, Asked, KeptRequests, numbers, payloads

from clarion.model.errors import ClarionError, OutboxFull, OutboxUnusable
from clarion.model.ids import RECEIPTS_KEPT
from clarion.publisher.outbox import ledger_topics
from clarion.publisher.outbox.ledger import Ledger
from clarion.publisher.outbox.ledger_topics import Plan
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.publisher_core import PublisherCore
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

STORE = bytes(range(16))


class Keep(KeptRequests):
    """A core with an outbox whose requests and jobs are kept, to be answered and done by the test."""

    def __init__(self, path: Path, *, in_flight: int = 4, memory_bytes: int = 1 << 20) -> None:
        super().__init__()
        self.path = path
        self.in_flight, self.memory_bytes = in_flight, memory_bytes
        self.publishers = 0
        self.open()

    def open(self) -> None:
        self.asked = []
        self.file = OutboxFile(self.path, durable=False)
        self.ledger = Ledger(self.file.read(), "the outbox", self.memory_bytes)
        self.core = PublisherCore(
            "", b"seed", self.ledger, in_flight=self.in_flight, batch_bytes=1 << 20, tuner=AT_ONCE
        )
        self.ledger.open(self.core, self.now_s)
        self.perform()

    def die(self) -> None:
        """End as a crash does, and start again."""
        self.file.close()
        self.open()

    def take(self, kind: Kind) -> list[Asked]:
        taken = [asked for asked in self.asked if asked.kind == kind]
        self.asked = [asked for asked in self.asked if asked.kind != kind]
        return taken

    def welcome(self, store: bytes = STORE, broker: int = 1) -> None:
        """Answer the greeting, and have somebody register where that is asked."""
        for asked in self.take(Kind.HELLO):
            asked.answer(Kind.ACK, bodies.Welcome(1, broker, store, 1, 1 << 24, 64, 1 << 20))
        self.work()
        self.turn()
        for asked in self.take(Kind.REGISTER):
            self.publishers += 1
            asked.answer(Kind.ACK, bodies.Registered(broker, self.publishers))

    def pump(self) -> list[Asked]:
        """Let it send what it may; give the puts."""
        self.now_s += MOMENT_S
        self.turn()
        return self.take(Kind.PUT)

    def job(self) -> Any:
        return self.ledger.next_job(self.now_s, self.unix_s)

    def do(self, job: Any) -> None:
        self.finish(job, self.file.commit(job.changes) if isinstance(job, Plan) else self.file.load(job))

    def finish(self, job: Any, outcome: Any) -> None:
        self.ledger.done(job, outcome, self.now_s)
        self.perform()

    def work(self) -> int:
        """Do jobs until there are none; give how many there were."""
        count = 0
        while (job := self.job()) is not None:
            self.do(job)
            count += 1
        return count

    def save(self, *messages: bytes, topic: bytes = TOPIC) -> list[OutgoingBatch]:
        """Put messages, each saved as a batch of its own."""
        batches = []
        for message in messages:
            batches.append(self.put(topic, message, None, None)[0])
            self.ask_numbers()
            self.work()
        return batches

    def ask_numbers(self) -> None:
        """Have the broker asked for the numbers of topics, and nothing sent."""
        core = self.core
        if core._unopened and self.ledger.settled and not core._opening:
            core._open(self.now_s)
            self.perform()

    def send(self) -> list[Asked]:
        """Do all that can be done without the broker."""
        sent = self.pump()
        while True:
            jobs, more = self.work(), self.pump()
            sent += more
            if not jobs and not more:
                return sent

    def deliver(self) -> list[Asked]:
        """Have everything sent and stored."""
        sent: list[Asked] = []
        while more := self.send():
            for asked in more:
                self.store(asked)
            sent += more
        return sent

    def store(self, asked: Asked, credit: int = 1 << 40) -> None:
        asked.answer(Kind.ACK, bodies.PutDone(asked.batch.number, 0, 0, credit, 1e9))

    @property
    def left(self) -> list[tuple[int, int]]:
        """Batches on disk, and how many of them have a number, by topic."""
        return [(topic.rows, topic.row.numbered) for topic in self.file.read().topics]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    keep = Keep(tmp_path / "outbox")
    keep.welcome()
    keep.save(b"first")
    keep.store(keep.pump()[0])
    keep.work()
    yield keep
    keep.file.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Keep]]:
    made: list[Keep] = []

    def make_one(**settings: int) -> Keep:
        made.append(Keep(tmp_path / "outbox", **settings))
        return made[-1]

    yield make_one
    for keep in made:
        keep.file.close()


def test_nothing_is_sent_before_it_is_on_disk_with_its_number(keep: Keep) -> None:
    outgoing = keep.put(TOPIC, b"a", None, None)[0]
    job = keep.job()
    assert (keep.pump(), outgoing.saved) == ([], False)
    keep.do(job)
    assert outgoing.saved
    assert keep.left == [(1, 1)]
    sent = keep.pump()
    assert (numbers(sent), payloads(sent)) == ([2], [[b"a"]])


def test_what_gathers_during_a_commit_goes_into_the_next_one_together(keep: Keep) -> None:
    keep.put(TOPIC, b"a", None, None)
    job = keep.job()
    for message in (b"b", b"c", b"d"):
        keep.put(TOPIC, message, None, None)
        assert keep.job() is None
    keep.do(job)
    assert keep.work() == 1
    assert payloads(keep.pump()) == [[b"a"], [b"b", b"c", b"d"]]


def test_what_is_put_before_a_broker_answers_is_saved_without_a_number(make: Callable[..., Keep]) -> None:
    keep = make()
    (outgoing,) = keep.save(b"a")
    assert outgoing.saved
    assert keep.left == [(1, 0)]
    assert keep.send() == []
    keep.welcome()
    assert numbers(keep.send()) == [1]
    assert keep.left == [(1, 1)]


def test_a_row_is_removed_by_the_commit_after_its_answer(keep: Keep) -> None:
    (outgoing,) = keep.save(b"a")
    (asked,) = keep.pump()
    assert keep.work() == 0
    keep.store(asked)
    assert outgoing.done
    assert keep.left == [(1, 1)]
    assert keep.work() == 1
    assert keep.left == [(0, 0)]


def test_what_the_broker_told_is_kept_with_what_is_removed_by_it(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    keep.core.last_seen.start = b"a start"
    keep.core.last_seen.note(9)
    keep.store(asked)
    assert keep.work() == 1
    keep.die()
    seen = keep.core.last_seen
    assert (seen.store, seen.start, seen.sequence) == (STORE, b"a start", 9)


def test_after_a_crash_the_same_bytes_leave_under_the_same_numbers(keep: Keep) -> None:
    keep.save(b"a", b"b", b"c")
    sent = keep.pump()
    keep.store(sent[0])  # answered, but the row is not removed when it dies
    keep.die()
    keep.welcome()
    again = keep.deliver()
    assert [bytes(asked.blobs[0]) for asked in again] == [bytes(asked.blobs[0]) for asked in sent]
    assert numbers(again) == [2, 3, 4]


def test_no_more_rows_have_numbers_than_the_broker_keeps_receipts(make: Callable[..., Keep]) -> None:
    keep = make(in_flight=64)
    keep.welcome()
    keep.save(b"first")
    keep.deliver()
    keep.save(*(b"%d" % number for number in range(100)))
    assert keep.left == [(100, RECEIPTS_KEPT)]
    sent = keep.send()
    keep.store(sent[1])  # an answer that overtook the one before it removes nothing
    keep.work()
    assert keep.left == [(100, RECEIPTS_KEPT)]
    keep.store(sent[0])
    keep.work()
    assert keep.left == [(98, RECEIPTS_KEPT)]


def test_stamps_go_on_after_a_crash_though_the_clock_went_back(keep: Keep) -> None:
    keep.save(b"a")
    before = keep.pump()[0].batch.stamp
    keep.now_s -= 50.0
    keep.die()
    keep.welcome()
    keep.save(b"b")
    assert keep.deliver()[-1].batch.stamp > before


def test_on_a_full_disk_what_was_sent_is_still_removed_and_saving_is_tried_again(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    outgoing = keep.put(TOPIC, b"b", None, None)[0]
    keep.finish(keep.job(), OutboxFull("no room"))
    assert keep.job() is None, "it does not try again at once"
    keep.store(asked)
    keep.do(keep.job())
    assert keep.left == [(0, 0)]
    assert isinstance(keep.ledger.disk_error, OutboxFull)
    keep.finish(keep.job(), OutboxFull("still no room"))
    assert keep.job() is None
    keep.now_s += 1.0
    keep.work()
    assert outgoing.saved
    assert keep.ledger.disk_error is None
    assert payloads(keep.send()) == [[b"b"]]


def test_a_disk_that_fails_ends_it_and_what_was_not_saved_says_so(keep: Keep) -> None:
    (saved,) = keep.save(b"a")
    outgoing = keep.put(TOPIC, b"b", None, None)[0]
    keep.finish(keep.job(), OutboxUnusable("the disk failed"))
    assert isinstance(outgoing.error, OutboxUnusable)
    assert "opening it again sends it" in str(saved.error)
    assert isinstance(keep.core.take_error(), OutboxUnusable)
    assert keep.left == [(1, 1)]
    assert isinstance(keep.core.broken, OutboxUnusable)
    assert keep.job() is None


def test_saving_goes_before_reading_but_one_read_may_come_between(make: Callable[..., Keep]) -> None:
    keep = make()
    for number in range(20):
        keep.save(b"a", topic=b"topic %d" % number)
    keep.die()
    for asked in keep.take(Kind.HELLO):
        asked.answer(Kind.ACK, bodies.Welcome(1, 1, STORE, 1, 1 << 24, 64, 1 << 20))
    kinds = []
    for number in range(10):
        keep.put(TOPIC, b"more %d" % number, None, None)
        job = keep.job()
        kinds.append(isinstance(job, Plan))
        keep.do(job)
    assert kinds[0]
    assert not all(kinds)
    assert (False, False) not in list(pairwise(kinds))


def test_only_so_much_is_in_memory_and_the_rest_is_read_in_order(make: Callable[..., Keep]) -> None:
    keep = make(memory_bytes=1000, in_flight=2)
    messages = [b"%d" % number * 100 for number in range(50)]
    keep.save(*messages)
    keep.welcome()
    got: list[bytes] = []
    while sent := keep.send():
        assert keep.ledger.loaded_bytes <= 2000
        for asked in sent:
            got += asked.batch.payloads()
            keep.store(asked)
    assert got == messages
    keep.work()
    assert keep.left == [(0, 0)]
    assert (keep.ledger.loaded_bytes, keep.ledger.stored_bytes, keep.ledger.stored_messages) == (0, 0, 0)


def test_a_clean_end_removes_the_identity_before_the_broker_is_told(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    keep.ledger.retire()
    keep.work()
    assert not keep.ledger.retired
    keep.store(asked)
    keep.work()
    assert keep.ledger.retired
    assert keep.left == []
    assert keep.take(Kind.FORGET) == []


def test_a_clean_end_on_a_full_disk_takes_no_lane_away(keep: Keep) -> None:
    keep.ledger.retire()
    keep.finish(keep.job(), OutboxFull("no room"))
    keep.now_s += 1.0
    keep.save(b"late")
    keep.die()
    keep.welcome()
    assert payloads(keep.send()) == [[b"late"]]


def test_what_is_put_after_the_end_is_not_lost_with_its_lane(keep: Keep) -> None:
    keep.ledger.retire()
    keep.work()
    keep.save(b"late")
    keep.die()
    keep.welcome()
    assert payloads(keep.send()) == [[b"late"]]


def test_what_is_put_after_the_end_gets_no_number_of_a_publisher_that_is_let_go(keep: Keep) -> None:
    keep.ledger.retire()
    keep.work()
    (late,) = keep.save(b"late")
    assert late.saved
    assert keep.left == [(1, 0)]
    assert keep.send() == []


def test_only_so_many_small_batches_wait_in_memory_and_all_are_sent_in_order(
    make: Callable[..., Keep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_topics, "SAVED_MAX", 10)
    keep = make()
    messages = [b"%d" % number for number in range(60)]
    keep.save(*messages)
    topic = next(iter(keep.ledger.topics.values()))
    assert (len(topic.unnumbered), topic.on_disk) == (10, 50)
    keep.welcome()
    assert payloads(keep.deliver()) == [[message] for message in messages]


def test_winding_down_saves_and_removes_and_numbers_nothing(keep: Keep) -> None:
    keep.save(b"a")
    (asked,) = keep.pump()
    keep.store(asked)
    keep.put(TOPIC, b"b", None, None)
    keep.ledger.wind_down()
    keep.work()
    assert keep.left == [(1, 0)]
    assert keep.ledger.left_behind() == (1, 0)
    assert keep.send() == []


def test_a_publisher_that_cannot_register_keeps_everything_and_tries_again(make: Callable[..., Keep]) -> None:
    keep = make()
    (outgoing,) = keep.save(b"a")
    for asked in keep.take(Kind.HELLO):
        asked.answer(Kind.ACK, bodies.Welcome(1, 1, STORE, 1, 1 << 24, 64, 1 << 20))
    keep.work()
    keep.pump()
    (asked,) = keep.take(Kind.REGISTER)
    asked.refuse(Code.LIMIT)
    assert isinstance(keep.core.refusal, ClarionError)
    assert not outgoing.done
    keep.now_s += 10.0
    keep.pump()
    (asked,) = keep.take(Kind.REGISTER)
    asked.answer(Kind.ACK, bodies.Registered(1, 9))
    assert payloads(keep.send()) == [[b"a"]]
