"""A sheaf that is kept on disk from before its first sending until after its last answer."""

from __future__ import annotations

from clarion.model.errors import ClarionError
from clarion.model.ids import MAX_BATCH_MESSAGES
from clarion.publisher.outbox.outbox_rows import Row
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.wire import bodies
from clarion.wire.batch import readdress_batch


class DurableBatch(OutgoingBatch):
    """A sheaf with a row in the outbox; its stamp is the row's. Those that nobody asks about are let go of while
    their row waits on disk."""

    __slots__ = (
        "answered", "aside", "is_found", "refusal", "saved", "surely_out", "was_sent",
    )  # fmt: skip

    def __init__(self, topic: bytes, *, ttl_ms: int = 0, delayed: bool = False, most: int = MAX_BATCH_MESSAGES) -> None:
        super().__init__(topic, ttl_ms=ttl_ms, delayed=delayed, most=most)
        self.saved = False  # it is on this machine's disk
        self.is_found = False  # it was in the outbox when that was opened: nobody has a receipt
        self.aside: str | None = None  # why it is kept, although the broker refused it for good
        self.refusal: ClarionError | None = None  # why it is not to be sent: told once its row is removed
        self.was_sent = False
        self.answered = False  # that was refused: no request with its number is under way any more,
        self.surely_out = False  # and it was not taken then

    @classmethod
    def stand_in(cls, topic: bytes, stamp: int, count: int) -> DurableBatch:
        """Make one for a row that is only on disk."""
        sheaf = cls(topic)
        sheaf.stamp, sheaf.saved, sheaf.is_found = stamp, True, True
        sheaf._builder, sheaf._count = None, count
        return sheaf

    def to_row(self, lane: int) -> Row:
        """Give the row that keeps it, once it is sealed."""
        assert self.packed is not None
        return Row(self.stamp, lane, self.count, self.ttl_ms, self.packed_due, self.packed)

    def refill(self, row: Row) -> None:
        """Take the content back from its row."""
        self.stamp, self.ttl_ms, self.packed_due = row.stamp, row.ttl_ms, row.due
        self.packed = bytearray(row.packed)
        self._count = row.messages
        self._builder = None
        self.count_packed()
        self.saved = True

    def take_number(self, identity: bodies.Registered, number: int) -> None:
        """Become the batch with this number, byte for byte the same whenever it is done again."""
        assert self.packed is not None
        self.broker, self.publisher, self.number = identity.broker, identity.publisher, number
        self.packed = readdress_batch(
            self.packed, broker=self.broker, publisher=self.publisher, stamp=self.stamp, number=number
        )
