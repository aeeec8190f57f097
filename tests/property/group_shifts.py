"""What workers do from the beginning of a shift to its end, so that much is lent, done, given back and lost."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.property.broker_model import runs
from tests.property.group_disk import OUT, WORK
from tests.property.group_rules import GroupRules, Work, choose, delays, mask, places, small
from tests.property.group_workers import Worker
from tests.property.transaction_rules import STATES, Transacting, tellers

ENDS = ("ack", "ack", "ack some", "nack", "nack", "release", "leave", "leave with it", "die", "go on", "go on", "go on")
disk = st.integers(0, 3)  # steps


class Shifts(Work, GroupRules, Transacting):
    """Workers that do one thing after the other, as the disk and the reaper let them."""

    def borrow(self, place: int, most: int) -> Worker | None:
        """Have a worker come, show what it holds, and borrow; None where it cannot."""
        both, worker = self.both, self.workers[place]
        if not worker.token:
            both.attach(worker)
            both.settle()
        elif worker.token in both.loans.awaited or not both.loans.begun:
            both.renew(worker)
        if worker.token not in both.loans.held:
            return None
        if not both.loans.due_to(worker.token, both.current, both.durable, both.now_us):
            self.put_and_settle([None, b"red", b"blue"])
        worker.number += 1
        both.take(worker, worker.token, worker.number, most, 0)
        if not worker.view:
            both.settle()  # what may have ended a consumer waits for the disk
        if worker.gap is not None:
            self.ack_the_gap(place)
        return worker if worker.token and worker.view else None

    @rule(place=places, most=small, end=st.sampled_from(ENDS), which=mask, delay=delays, steps=disk)
    def work(self, place: int, most: int, end: str, which: int, delay: int, steps: int) -> None:
        both, worker = self.both, self.borrow(place, most)
        if worker is None:
            return
        chosen = choose(list(worker.view), which if end == "ack some" else 0)
        if end.startswith("ack"):
            both.ack(worker, worker.token, runs(chosen))
        elif end in ("nack", "release"):
            returned = {offset: worker.view[offset] for offset in chosen}
            both.give_back(worker, worker.token, returned, delay if end == "nack" else None)
        elif end.startswith("leave"):
            self.note_lost(worker)
            both.detach(worker, set(chosen) if end == "leave with it" else set())
        elif end == "die":
            self.die(worker)
        both.advance(steps)

    @rule(place=places, steps=disk)
    def wear_out(self, place: int, steps: int) -> None:
        """Try a message until it is given up."""
        for _ in range(self.both.options.max_attempts or 2):
            worker = self.borrow(place, 1)
            if worker is None:
                return
            self.both.settle()
            self.both.give_back(worker, worker.token, dict(worker.view), 0)
            self.both.advance(3)
        self.both.advance(steps)

    @rule(steps=disk, coming=mask, lies=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=1))
    def crash_and_come_back(self, steps: int, coming: int, lies: list[tuple[int, int]]) -> None:
        """Some come back and say what they hold, or more than that; the others are late, or dead."""
        both = self.both
        both.advance(steps)
        both.crash()
        for place, worker in enumerate(self.workers):
            if worker.token and coming >> place & 1:
                places = [(start % (both.end + 1), attempt) for start, attempt in lies]
                both.renew(worker, [(start, start + 2, attempt) for start, attempt in places])
        both.advance(1)

    @rule(
        place=places,
        teller=tellers,
        which=mask,
        topic=st.sampled_from((OUT, WORK)),
        state=st.sampled_from(STATES),
        steps=disk,
        crashes=st.booleans(),
    )
    def take_transform_put(
        self, place: int, teller: int, which: int, topic: bytes, state: bytes, steps: int, crashes: bool
    ) -> None:
        """One transaction, with a crash anywhere in it, and asked again."""
        both, worker = self.both, self.borrow(place, 1 + which % 4)
        if worker is None:
            return
        self.transact(teller, place, which, "own", [topic], [(state, b"z", "right")])
        both.advance(steps)
        if crashes:
            both.crash()
            both.renew(worker)
        if which % 2:
            self.transact_again(1000)
