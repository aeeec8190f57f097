"""A batch on its way to the broker: gathering, sealed with an identity and a number, and what became of it; and the
batches that failed."""

from __future__ import annotations

from clarion.model.arguments import whole
from clarion.model.errors import ClarionError, NoSubscriber
from clarion.model.ids import MAX_BATCH_MESSAGES, RECEIPTS_KEPT, MessageId
from clarion.model.names import REPLIES
from clarion.wire.batch import encode_lone, readdress_batch, renumber_batch
from clarion.wire.batch_builder import BatchBuilder
from clarion.wire.frames import Buffer

COMPRESSIONS = (None, "zstd")
ALONE_FROM_BYTES = 32 * 1024  # packed: smaller ones go with those of other topics
SENT_MEMORY_BYTES = 800  # of a batch that is sent, beside its bytes
_UNOBSERVED_MAX = 1000  # failed batches kept for who asks later


class OutgoingBatch:
    """Messages of one topic that leave together: they gather in its `builder`, until the batch is sealed, sent, and
    ends stored or refused."""

    __slots__ = (
        "__weakref__",
        "_builder",
        "_memory_bytes",
        "_places",
        "_size",
        "broker",
        "done",
        "error",
        "first_offset",
        "is_found",
        "messages",
        "number",
        "observed",
        "packed",
        "packed_due",
        "publisher",
        "quarantine",
        "refusal",
        "refused",
        "saved",
        "sent_s",
        "stamp",
        "topic",
        "ttl_ms",
        "uncertain",
    )  # fmt: skip

    def __init__(self, topic: bytes, *, ttl_ms: int = 0, delayed: bool = False, most: int = MAX_BATCH_MESSAGES) -> None:
        self.topic = topic
        self.ttl_ms = ttl_ms
        self._builder: BatchBuilder | None = BatchBuilder(topic, ttl_ms=ttl_ms, delayed=delayed, most=most)
        self.messages = self._size = self._memory_bytes = 0  # once sealed
        self._places: list[int] | None = None  # from the order of adding to the places in the batch
        self.broker = self.publisher = self.stamp = self.number = 0
        self.packed: Buffer | None = None
        self.packed_due = b""
        self.sent_s = 0.0  # when, for the first time
        self.refused = False  # the broker said "again later"
        self.uncertain = False  # a refused request was sent more than once: another copy of it may have been taken
        self.done = False
        self.first_offset = -1
        self.error: ClarionError | None = None
        self.observed = False  # somebody was told of the error
        # What the ledger of an outbox notes of it.
        self.saved = False  # it is on this machine's disk
        self.is_found = False  # it was in the outbox when that was opened: nobody has a receipt
        self.quarantine: str | None = None  # why it is kept, although the broker refused it for good
        self.refusal: ClarionError | None = None  # why it is not to be sent: told once its row is removed

    @property
    def builder(self) -> BatchBuilder:
        """Where its messages gather; there is none once it is sealed."""
        assert self._builder is not None, "a sealed batch takes no more messages"
        return self._builder

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return self.messages if self._builder is None else len(self._builder.payloads)

    @property
    def size(self) -> int:
        """How many bytes it takes, roughly until it is packed."""
        return self._size if self._builder is None else self._builder.size

    @property
    def memory_bytes(self) -> int:
        """What it takes of the publisher's memory, roughly: its messages while they gather, and then as a batch that is
        sent, with what keeps it in mind until it is answered."""
        return self._memory_bytes if self._builder is None else self._builder.memory_bytes

    def seal(self, *, broker: int, publisher: int, stamp: int, number: int, compressed: bool = False) -> Buffer:
        """Pack it for good; the single messages are let go."""
        builder = self.builder
        packed: Buffer
        if builder.plain and len(builder.payloads) == 1 and not compressed:  # as `pack` does, in half the time
            packed = encode_lone(builder.payloads[0], broker, publisher, stamp, number)
        else:
            packed, self.packed_due, self._places = builder.pack(
                broker=broker, publisher=publisher, stamp=stamp, number=number, compressed=compressed
            )
        self.packed = packed
        self.broker, self.publisher, self.stamp, self.number = broker, publisher, stamp, number
        self._let_messages_go(builder)
        return packed

    def count_sent(self) -> int:
        """Have its memory be what it takes once sent, with the copy of a small one that goes with others; return how
        much more that is than it was."""
        assert self.packed is not None
        before, size = self._memory_bytes, len(self.packed)
        self._memory_bytes = SENT_MEMORY_BYTES + (size if size >= ALONE_FROM_BYTES else 2 * size)
        return self._memory_bytes - before

    def count_packed(self) -> None:
        """Have its size be the bytes that it takes packed."""
        assert self.packed is not None
        self._size = len(self.packed)

    def fill(self, packed: bytearray, due: bytes, *, count: int, ttl_ms: int, stamp: int) -> None:
        """Become a batch that was sealed before."""
        self.packed, self.packed_due, self.ttl_ms, self.stamp = packed, due, ttl_ms, stamp
        self.messages, self._size, self._builder = count, len(packed), None

    @classmethod
    def elsewhere(cls, topic: bytes, *, count: int, stamp: int) -> OutgoingBatch:
        """Return one that stands for a batch which was sealed before, and is not in memory."""
        batch = cls(topic)
        batch.messages, batch._builder, batch.stamp = count, None, stamp
        return batch

    def readdress(self, *, broker: int, publisher: int, number: int) -> None:
        """Become this publisher's batch with this number, byte for byte the same whenever it is done again."""
        assert self.packed is not None
        self.broker, self.publisher, self.number = broker, publisher, number
        self.packed = readdress_batch(self.packed, broker=broker, publisher=publisher, stamp=self.stamp, number=number)

    def _let_messages_go(self, builder: BatchBuilder) -> None:
        self.messages, self._size, self._memory_bytes = len(builder.payloads), builder.size, builder.memory_bytes
        self._builder = None

    def renumber(self, number: int) -> None:
        """Take another number; ids stay."""
        assert self.packed is not None
        self.number = number
        self.packed = renumber_batch(self.packed, number)

    def end(self, *, first_offset: int = -1, error: ClarionError | None = None) -> None:
        """Note what became of it."""
        self.first_offset = first_offset
        self.error = error
        if self._builder is not None:
            self._let_messages_go(self._builder)
        self.packed = None
        self.done = True

    def raise_error(self) -> None:
        """Raise what went wrong, if something did."""
        if self.error is not None:
            self.observed = True
            raise self.error.again()

    def message_id(self, place: int) -> MessageId:
        """Return the id of a message; known once the batch is sealed."""
        position = place if self._places is None else self._places[place]
        return MessageId(self.broker, self.publisher, self.stamp, position)

    def offsets(self, start: int, stop: int) -> range | None:
        """Return the offsets of messages that are stored; None while they are not in their topic yet."""
        return None if self.first_offset < 0 else range(self.first_offset + start, self.first_offset + stop)


Part = tuple[OutgoingBatch, int, int]  # messages [start, stop) of a batch


class Failures:
    """Batches that were refused for good, kept until somebody was told, and counted."""

    def __init__(self) -> None:
        self._unobserved: list[tuple[OutgoingBatch, ClarionError]] = []
        self._unobserved_more = 0  # messages of those beyond the bound, which are only counted
        self._last: ClarionError | None = None  # of these
        self.first: ClarionError | None = None  # what is told before all others
        self.replies_unread = 0  # replies to who is gone by now

    def note(self, batch: OutgoingBatch, error: ClarionError) -> None:
        """Note a batch that failed."""
        if is_unread_reply(batch, error):
            # Who asked did not wait for the answer. Its receipt says so; a flush has nothing to raise.
            self.replies_unread += batch.count
            return
        if len(self._unobserved) >= _UNOBSERVED_MAX:
            self._unobserved = [failed for failed in self._unobserved if not failed[0].observed]
        if len(self._unobserved) < _UNOBSERVED_MAX:
            self._unobserved.append((batch, error))
        else:
            self._unobserved_more += batch.count
            self._last = error

    def tell(self, error: ClarionError) -> None:
        """Have the next who asks told of something that befell no message in particular."""
        self._last = error

    def take(self) -> ClarionError | None:
        """Return one error that nobody was told of, with how many messages failed; forget the rest."""
        if self.first is not None:
            first, self.first = self.first, None
            return first
        failed = [(batch, error) for batch, error in self._unobserved if not batch.observed]
        self._unobserved.clear()
        error = failed[0][1] if failed else self._last
        count = sum(batch.count for batch, _ in failed) + self._unobserved_more
        self._unobserved_more, self._last = 0, None
        if error is None or not count:
            return error
        return type(error)(f"{error} ({count} message{'s' if count > 1 else ''} not stored)")


def is_unread_reply(batch: OutgoingBatch, error: ClarionError) -> bool:
    """Whether the batch is replies to somebody who is gone: nobody misses them."""
    return batch.topic.startswith(REPLIES) and isinstance(error, NoSubscriber)


def check_settings(in_flight: int, batch_bytes: int, buffer_bytes: int, compression: str | None = None) -> None:
    """Raise TypeError or ValueError for what a publisher cannot work with."""
    if compression not in COMPRESSIONS:
        raise ValueError(f'compression is None or "zstd", not {compression!r}')
    whole(in_flight, "in_flight", 1, RECEIPTS_KEPT)  # the broker keeps so many receipts
    whole(batch_bytes, "batch_bytes", 1)
    whole(buffer_bytes, "buffer_bytes", 1)
