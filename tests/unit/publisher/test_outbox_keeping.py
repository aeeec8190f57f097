"""What an outbox does in which order: saved before numbered, numbered before sent, removed after the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.publisher.talking import AT_ONCE, MOMENT_S, TOPIC, Asked, numbers, payloads

from clarion.model.errors import ClarionError, OutboxFull, OutboxUnusable
from clarion.model.ids import RECEIPTS_KEPT
from clarion.publisher.outbox import planning
from clarion.publisher.outbox.keeping import KeptSending
from clarion.publisher.outbox.outbox_file import OutboxFile
from clarion.publisher.outbox.planning import Plan
from clarion.publisher.outbox.sheaves import DurableBatch
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

STORE = bytes(range(16))


class Keep:
    """A KeptSending whose requests and jobs are kept, to be answered and done by the test."""

    def __init__(self, path: Path, *, in_flight: int = 4, memory_bytes: int = 1 << 20) -> None:
        self.path = path
        self.now_s = 100.0
        self.topic_number = 1  # of all topics; 0: they are not opened by themselves
        self.in_flight, self.memory_bytes = in_flight, memory_bytes
        self.publishers = 0
        self.open()

    def open(self) -> None:
        self.asked: list[Asked] = []
        self.file = OutboxFile(self.path, durable=False)
        self.sending = KeptSending(
            self._ask,
            lambda: self.now_s,
            lambda: 1_700_000_000.0 + self.now_s,
            lambda: b"nonce",
            lambda: None,
            found=self.file.read(),
            name="the outbox",
            memory_bytes=self.memory_bytes,
            in_flight=self.in_flight,
            batch_bytes=1 << 20,
            tuner=AT_ONCE,
        )
        self.sending.greet()

    def die(self) -> None:
        """End as a crash does, and start again."""
        self.file.close()
        self.open()

    def _ask(self, kind: Kind, body: bodies.Body, on_reply: Any, blobs: tuple[bytes, ...] = ()) -> None:
        asked = Asked(kind, body, on_reply, blobs)
        if kind == Kind.OPEN and self.topic_number:
            asked.open(self.topic_number)
        elif kind != Kind.REPORT:
            self.asked.append(asked)

    def take(self, kind: Kind) -> list[Asked]:
        taken = [asked for asked in self.asked if asked.kind == kind]
        self.asked = [asked for asked in self.asked if asked.kind != kind]
        return taken

    def welcome(self, store: bytes = STORE, broker: int = 1) -> None:
        """Answer the greeting, and have somebody register where that is asked."""
        for asked in self.take(Kind.HELLO):
            asked.answer(Kind.ACK, bodies.Welcome(1, broker, store, 1, 1 << 24, 64, 1 << 20))
        self.work()
        self.sending.pump(self.now_s)
        for asked in self.take(Kind.REGISTER):
            self.publishers += 1
            asked.answer(Kind.ACK, bodies.Registered(broker, self.publishers))

    def pump(self) -> list[Asked]:
        """Let it send what it may; give the puts."""
        self.now_s += MOMENT_S
        self.sending.pump(self.now_s)
        return self.take(Kind.PUT)

    def job(self) -> Any:
        return self.sending.next_job(self.now_s)

    def do(self, job: Any) -> None:
        done = self.file.commit(job.changes) if isinstance(job, Plan) else self.file.load(job)
        self.sending.done(job, done, self.now_s)

    def work(self) -> int:
        """Do jobs until there are none; give how many there were."""
        count = 0
        while (job := self.job()) is not None:
            self.do(job)
            count += 1
        return count

    def put(self, *messages: bytes, topic: bytes = TOPIC) -> list[DurableBatch]:
        """Put messages, each saved as a batch of its own."""
        sheaves = []
        for message in messages:
            sheaf = self.sending.add(topic, message, None, None)[0]
            assert isinstance(sheaf, DurableBatch)
            sheaves.append(sheaf)
            if self.sending._unopened and self.sending._settled and not self.sending._opening:
                self.sending._open(self.now_s)
            self.work()
        return sheaves

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
        """Batches on disk, and how many of them have a number, by lane."""
        return [(lane.rows, lane.row.numbered) for lane in self.file.read().lanes]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    keep = Keep(tmp_path / "outbox")
    keep.welcome()
    keep.put(b"first")
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
    sheaf = keep.sending.add(TOPIC, b"a", None, None)[0]
    assert isinstance(sheaf, DurableBatch)
    job = keep.job()
    assert (keep.pump(), sheaf.saved) == ([], False)
    keep.do(job)
    assert sheaf.saved
    assert keep.left == [(1, 1)]
    sent = keep.pump()
    assert (numbers(sent), payloads(sent)) == ([2], [[b"a"]])


def test_what_gathers_during_a_commit_goes_into_the_next_one_together(keep: Keep) -> None:
    keep.sending.add(TOPIC, b"a", None, None)
    job = keep.job()
    for message in (b"b", b"c", b"d"):
        keep.sending.add(TOPIC, message, None, None)
        assert keep.job() is None
    keep.do(job)
    assert keep.work() == 1
    assert payloads(keep.pump()) == [[b"a"], [b"b", b"c", b"d"]]


def test_what_is_put_before_a_broker_answers_is_saved_without_a_number(make: Callable[..., Keep]) -> None:
    keep = make()
    (sheaf,) = keep.put(b"a")
    assert sheaf.saved
    assert keep.left == [(1, 0)]
    assert keep.send() == []
    keep.welcome()
    assert numbers(keep.send()) == [1]
    assert keep.left == [(1, 1)]


def test_a_row_is_removed_by_the_commit_after_its_answer(keep: Keep) -> None:
    (sheaf,) = keep.put(b"a")
    (asked,) = keep.pump()
    assert keep.work() == 0
    keep.store(asked)
    assert sheaf.done
    assert keep.left == [(1, 1)]
    assert keep.work() == 1
    assert keep.left == [(0, 0)]


def test_what_the_broker_told_is_kept_with_what_is_removed_by_it(keep: Keep) -> None:
    keep.put(b"a")
    (asked,) = keep.pump()
    keep.sending.last_seen.start = b"a start"
    keep.sending.last_seen.note(9)
    keep.store(asked)
    assert keep.work() == 1
    keep.die()
    seen = keep.sending.last_seen
    assert (seen.store, seen.start, seen.sequence) == (STORE, b"a start", 9)


def test_after_a_crash_the_same_bytes_leave_under_the_same_numbers(keep: Keep) -> None:
    keep.put(b"a", b"b", b"c")
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
    keep.put(b"first")
    keep.deliver()
    keep.put(*(b"%d" % number for number in range(100)))
    assert keep.left == [(100, RECEIPTS_KEPT)]
    sent = keep.send()
    keep.store(sent[1])  # an answer that overtook the one before it removes nothing
    keep.work()
    assert keep.left == [(100, RECEIPTS_KEPT)]
    keep.store(sent[0])
    keep.work()
    assert keep.left == [(98, RECEIPTS_KEPT)]


def test_stamps_go_on_after_a_crash_though_the_clock_went_back(keep: Keep) -> None:
    keep.put(b"a")
    before = keep.pump()[0].batch.stamp
    keep.now_s -= 50.0
    keep.die()
    keep.welcome()
    keep.put(b"b")
    assert keep.deliver()[-1].batch.stamp > before


def test_on_a_full_disk_what_was_sent_is_still_removed_and_saving_is_tried_again(keep: Keep) -> None:
    keep.put(b"a")
    (asked,) = keep.pump()
    sheaf = keep.sending.add(TOPIC, b"b", None, None)[0]
    assert isinstance(sheaf, DurableBatch)
    keep.sending.done(keep.job(), OutboxFull("no room"), keep.now_s)
    assert keep.job() is None, "it does not try again at once"
    keep.store(asked)
    keep.do(keep.job())
    assert keep.left == [(0, 0)]
    assert isinstance(keep.sending.disk_error, OutboxFull)
    keep.sending.done(keep.job(), OutboxFull("still no room"), keep.now_s)
    assert keep.job() is None
    keep.now_s += 1.0
    keep.work()
    assert sheaf.saved
    assert keep.sending.disk_error is None
    assert payloads(keep.send()) == [[b"b"]]


def test_a_disk_that_fails_ends_it_and_what_was_not_saved_says_so(keep: Keep) -> None:
    (saved,) = keep.put(b"a")
    sheaf = keep.sending.add(TOPIC, b"b", None, None)[0]
    keep.sending.done(keep.job(), OutboxUnusable("the disk failed"), keep.now_s)
    assert isinstance(sheaf.error, OutboxUnusable)
    assert "opening it again sends it" in str(saved.error)
    assert isinstance(keep.sending.failures.take(), OutboxUnusable)
    assert keep.left == [(1, 1)]
    assert isinstance(keep.sending.broken, OutboxUnusable)
    assert keep.job() is None


def test_saving_goes_before_reading_but_one_read_may_come_between(make: Callable[..., Keep]) -> None:
    keep = make()
    for number in range(20):
        keep.put(b"a", topic=b"topic %d" % number)
    keep.die()
    for asked in keep.take(Kind.HELLO):
        asked.answer(Kind.ACK, bodies.Welcome(1, 1, STORE, 1, 1 << 24, 64, 1 << 20))
    kinds = []
    for number in range(10):
        keep.sending.add(TOPIC, b"more %d" % number, None, None)
        job = keep.job()
        kinds.append(isinstance(job, Plan))
        keep.do(job)
    assert kinds[0]
    assert not all(kinds)
    assert (False, False) not in list(pairwise(kinds))


def test_only_so_much_is_in_memory_and_the_rest_is_read_in_order(make: Callable[..., Keep]) -> None:
    keep = make(memory_bytes=1000, in_flight=2)
    messages = [b"%d" % number * 100 for number in range(50)]
    keep.put(*messages)
    keep.welcome()
    got: list[bytes] = []
    while sent := keep.send():
        assert keep.sending.loaded_bytes <= 2000
        for asked in sent:
            got += asked.batch.payloads()
            keep.store(asked)
    assert got == messages
    keep.work()
    assert keep.left == [(0, 0)]
    assert (keep.sending.loaded_bytes, keep.sending.kept_bytes, keep.sending.kept_messages) == (0, 0, 0)


def test_a_clean_end_removes_the_identity_before_the_broker_is_told(keep: Keep) -> None:
    keep.put(b"a")
    (asked,) = keep.pump()
    keep.sending.retire()
    keep.work()
    assert not keep.sending.retired
    keep.store(asked)
    keep.work()
    assert keep.sending.retired
    assert keep.left == []
    assert keep.take(Kind.FORGET) == []


def test_a_clean_end_on_a_full_disk_takes_no_lane_away(keep: Keep) -> None:
    keep.sending.retire()
    keep.sending.done(keep.job(), OutboxFull("no room"), keep.now_s)
    keep.now_s += 1.0
    keep.put(b"late")
    keep.die()
    keep.welcome()
    assert payloads(keep.send()) == [[b"late"]]


def test_what_is_put_after_the_end_is_not_lost_with_its_lane(keep: Keep) -> None:
    keep.sending.retire()
    keep.work()
    keep.put(b"late")
    keep.die()
    keep.welcome()
    assert payloads(keep.send()) == [[b"late"]]


def test_what_is_put_after_the_end_gets_no_number_of_a_publisher_that_is_let_go(keep: Keep) -> None:
    keep.sending.retire()
    keep.work()
    (late,) = keep.put(b"late")
    assert late.saved
    assert keep.left == [(1, 0)]
    assert keep.send() == []


def test_only_so_many_small_batches_wait_in_memory_and_all_are_sent_in_order(
    make: Callable[..., Keep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "KEPT_MAX", 10)
    keep = make()
    messages = [b"%d" % number for number in range(60)]
    keep.put(*messages)
    lane = keep.sending._kept_lanes()[0]
    assert (len(lane.kept), lane.on_disk) == (10, 50)
    keep.welcome()
    assert payloads(keep.deliver()) == [[message] for message in messages]


def test_winding_down_saves_and_removes_and_numbers_nothing(keep: Keep) -> None:
    keep.put(b"a")
    (asked,) = keep.pump()
    keep.store(asked)
    keep.sending.add(TOPIC, b"b", None, None)
    keep.sending.wind_down()
    keep.work()
    assert keep.left == [(1, 0)]
    assert keep.sending.left_behind() == (1, 0)
    assert keep.send() == []


def test_a_publisher_that_cannot_register_keeps_everything_and_tries_again(make: Callable[..., Keep]) -> None:
    keep = make()
    (sheaf,) = keep.put(b"a")
    for asked in keep.take(Kind.HELLO):
        asked.answer(Kind.ACK, bodies.Welcome(1, 1, STORE, 1, 1 << 24, 64, 1 << 20))
    keep.work()
    keep.pump()
    (asked,) = keep.take(Kind.REGISTER)
    asked.refuse(Code.LIMIT)
    assert isinstance(keep.sending.refusal, ClarionError)
    assert not sheaf.done
    keep.now_s += 10.0
    keep.pump()
    (asked,) = keep.take(Kind.REGISTER)
    asked.answer(Kind.ACK, bodies.Registered(1, 9))
    assert payloads(keep.send()) == [[b"a"]]
