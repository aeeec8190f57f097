"""A lane whose sheaves are kept on disk: gathering, sealed, saved, numbered, flying, done, and then removed."""

from __future__ import annotations

from collections import deque

from clarion.model.errors import ClarionError
from clarion.publisher.lanes import Lane
from clarion.publisher.outbox.outbox_rows import FoundLane, LaneRow
from clarion.publisher.outbox.sheaves import DurableBatch
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.tuner import Tuner
from clarion.wire import bodies


class KeptLane(Lane):
    """The rows of one topic, in order: `numbered` ones, which may be sent, then `waiting_rows` in memory, then those
    that are only on disk (`on_disk`). What is not saved yet is in `sealed`, `filled` and where it gathers.

    Only what is numbered on disk is ever sent, so a row without a number was never sent by anybody.
    """

    __slots__ = (
        "filled", "first_number", "is_on_disk", "kept", "last", "last_found", "loaded_bytes", "loaded_until", "number",
        "numbered", "on_disk", "sealed", "stored_before", "trouble", "unread_found", "unread_numbered",
    )  # fmt: skip

    def __init__(self, topic: bytes, tuner: Tuner, number: int) -> None:
        super().__init__(topic, tuner)
        self.number = number
        self.is_on_disk = False  # its row is
        self.filled: deque[DurableBatch] = deque()
        self.sealed: deque[DurableBatch] = deque()
        self.kept: deque[DurableBatch] = deque()  # saved, without a number, and in memory
        self.on_disk = 0  # rows that come after those
        self.unread_numbered = 0  # the first of which have a number
        self.loaded_until = 0  # the last stamp that was in memory
        self.loaded_bytes = 0  # of what is saved and in memory
        self.numbered: deque[DurableBatch] = deque()  # ready, flying, or done and not removed yet
        self.first_number = 1
        self.stored_before = 0  # messages that the broker took before these
        self.last: DurableBatch | None = None
        self.last_found: DurableBatch | None = None  # of the rows that were there when the outbox was opened,
        self.unread_found = 0  # of which so many were not read yet
        self.trouble: ClarionError | None = None  # why its numbers are good for nothing any more

    @classmethod
    def found(cls, found: FoundLane, tuner: Tuner, broker: int) -> KeptLane:
        """Make a lane as it was left."""
        row = found.row
        lane = cls(row.topic, tuner, row.number)
        lane.is_on_disk = True
        lane.on_disk = found.rows
        if found.rows:
            lane.unread_found = found.rows
            lane.last = lane.last_found = DurableBatch.stand_in(row.topic, found.last_stamp, found.messages)
        if row.numbered:  # with nothing numbered there is nothing that its old numbers are needed for
            lane.unread_numbered = row.numbered
            lane.identity = bodies.Registered(broker, row.publisher)
            lane.topic_number = row.topic_number
            lane.first_number = row.first_number
            lane.stored_before = lane.sent = row.stored
        return lane

    def to_row(self, gone: int, stored: int, numbered: int) -> LaneRow:
        """Give how it will be on disk when so many numbered rows are gone, with messages stored, and others added."""
        publisher = 0 if self.identity is None else self.identity.publisher
        left = len(self.numbered) + self.unread_numbered - gone + numbered
        first_number, stored = self.first_number + gone, self.stored_before + stored
        return LaneRow(self.number, self.topic, publisher, first_number, left, stored, self.topic_number or 0)

    def idle(self) -> bool:
        """Whether there is nothing to send and nothing under way."""
        return not self.flying and not self.ready

    def is_unopened(self) -> bool:
        """Whether something waits for the number of its topic, and nothing has a number that belongs to another."""
        waits = self.kept or self.on_disk or self.unsaved()
        return self.topic_number is None and self.trouble is None and not self.has_numbers() and bool(waits)

    def open(self, topic_number: int) -> None:
        """Take the number of the topic: rows may be numbered, from 1 on."""
        assert not self.has_numbers()
        self.first_number, self.stored_before = 1, 0
        super().open(topic_number)

    def refuse(self, error: ClarionError) -> None:
        """Have the rows in memory that have no number removed without one."""
        for sheaf in self.kept:
            sheaf.refusal = error
        self.numbered.extend(self.kept)
        self.kept.clear()

    def is_empty(self) -> bool:
        """Whether nothing is left of it, on disk or in memory."""
        return not (self.numbered or self.kept or self.on_disk or self.unsaved())

    def unsent(self) -> bool:
        """Whether something may be sent for the first time."""
        return bool(self.ready)

    def unsaved(self) -> list[DurableBatch]:
        """Give the sheaves that are not on disk yet."""
        return [*self.sealed, *self.unsealed()]

    def unsealed(self) -> list[DurableBatch]:
        """Give the sheaves that still gather, or wait to be sealed."""
        gathering = [sheaf for sheaf in (self.gathering, self.delayed) if sheaf is not None]
        assert all(isinstance(sheaf, DurableBatch) for sheaf in gathering)
        return [*self.filled, *gathering]  # type: ignore[list-item]

    def take_unsealed(self) -> DurableBatch | None:
        """Give the next sheaf to seal, if there is one."""
        if not self.filled:
            self.filled.extend(self.unsealed())
            self.gathering = self.delayed = None
        return self.filled.popleft() if self.filled else None

    def take_unsaved(self) -> list[DurableBatch]:
        """Give up what is not on disk: give it."""
        taken = self.unsaved()
        self.sealed.clear()
        self.filled.clear()
        self.gathering = self.delayed = None
        return taken

    def has_numbers(self) -> bool:
        """Whether rows of it may have been sent."""
        return bool(self.numbered or self.unread_numbered)

    def sheaf_for(self, messages: int, size: int, batch_bytes: int, *, ttl_ms: int, delayed: bool) -> OutgoingBatch:
        """Give the sheaf that so much more gathers in; what it does not fit into waits to be saved."""
        sheaf = self.delayed if delayed else self.gathering
        if sheaf is not None and (sheaf.ttl_ms != ttl_ms or not sheaf.builder.has_room(messages, size, batch_bytes)):
            assert isinstance(sheaf, DurableBatch)
            self.filled.append(sheaf)
            sheaf = None
        if sheaf is None:
            sheaf = DurableBatch(self.topic, ttl_ms=ttl_ms, delayed=delayed, most=self.tuner.gathers)
            if delayed:
                self.delayed = sheaf
            else:
                self.gathering = sheaf
        return sheaf

    def next_up(self) -> OutgoingBatch:
        """Give the sheaf that leaves next."""
        return self.ready[0]

    def take_next(self) -> OutgoingBatch:
        """Give the sheaf that leaves now."""
        taken = self.ready.popleft()
        self.ready_messages -= taken.count
        return taken

    def pending(self) -> int:
        """Give how many messages may be sent for the first time."""
        return self.ready_messages

    def waiting(self) -> list[OutgoingBatch]:
        """Give the sheaves that may leave."""
        return list(self.ready)

    def newest(self) -> list[OutgoingBatch]:
        """Give sheaves that, once done, leave none before them undone."""
        gathering = [sheaf for sheaf in (self.gathering, self.delayed) if sheaf is not None]
        if gathering:
            return gathering
        if self.filled:
            return [self.filled[-1]]
        return [] if self.last is None or self.last.done else [self.last]

    def fly(self, sheaf: OutgoingBatch, now_s: float) -> None:
        """Note a sheaf as sent."""
        self.next_number = sheaf.number
        super().fly(sheaf, now_s)

    def add_number(self, sheaf: DurableBatch) -> None:
        """Give the next number to a sheaf; it may be sent then."""
        assert self.identity is not None
        sheaf.take_number(self.identity, self.first_number + len(self.numbered))
        self.numbered.append(sheaf)
        self._make_ready(sheaf)

    def done_first(self) -> list[DurableBatch]:
        """Give the numbered sheaves that are done, or refused, up to the first that is not."""
        done: list[DurableBatch] = []
        for sheaf in self.numbered:
            if not sheaf.done and sheaf.refusal is None:
                break
            done.append(sheaf)
        return done

    def start_anew(self) -> None:
        """Have numbers begin with 1, as those of another publisher; nothing is numbered now."""
        assert not self.numbered
        self.crash()
        self.first_number, self.stored_before = 1, 0
        self.identity = self.topic_number = None

    def is_answered(self) -> bool:
        """Whether no request with a number of this lane is under way any more."""
        return all(isinstance(sheaf, DurableBatch) and sheaf.answered for sheaf in self.flying.values())

    def doubtful(self) -> int:
        """Give up to which place the numbered sheaves may be stored, or were; those behind surely are not."""
        for place in range(len(self.numbered), 0, -1):
            sheaf = self.numbered[place - 1]
            if sheaf.uncertain or ((sheaf.done or sheaf.was_sent) and not sheaf.surely_out):
                return place
        return 0
