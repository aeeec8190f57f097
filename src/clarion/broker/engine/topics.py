"""What the engine holds in memory of a topic: its end, its subscriptions, its writers, its newest batches."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Generic, TypeVar

from clarion.broker.engine.answers import Peer, Refused, Waiting
from clarion.broker.engine.clock import Now
from clarion.broker.engine.lease_table import LeaseTable
from clarion.broker.engine.session_places import FetchSession
from clarion.model.ids import RECEIPTS_KEPT
from clarion.model.options import SubscriptionOptions, TopicSettings, pack_options, unpack_options, unpack_settings
from clarion.model.ranges import AckedRanges
from clarion.store.port import Answer, Receipt, StoredBatch, SubscriptionRow, TopicRow
from clarion.wire.codes import Code

_GAP_RETRY_S = 0.02  # what is missing is most likely on its way
NOTHING: deque[StoredBatch] = deque(maxlen=0)  # in memory of a topic: one for all, as an empty one takes much room
_LAG_KEPT_S = 0.5  # of the quickest reader of a topic, until the next one's counts
_LAG_TOLD_S = 5.0  # since readers who are far behind of many topics come to each but once in a while
_first_offset = attrgetter("first_offset")
_MOVED = b"moved by "  # and the nonce of the last seek stand before the consumer's, where there was one


@dataclass(slots=True, eq=False)
class Subscription:
    """A durable cursor, and the consumer that holds it, or the consumers that share it."""

    topic: int
    name: bytes
    acked: AckedRanges
    token: int
    nonce: bytes
    options: SubscriptionOptions
    seen_at_us: int
    leases: LeaseTable | None = field(init=False)
    moved_token: int = 0  # of the last consumer from before a seek
    moved_by: bytes = b""  # the nonce of that seek

    def __post_init__(self) -> None:
        self.leases = LeaseTable(self.acked, self.options, self.token) if self.options.shared else None

    @classmethod
    def from_row(cls, row: SubscriptionRow) -> Subscription:
        acked = AckedRanges.unpack(row.cursor, row.acked)
        options = unpack_options(row.options)
        found = cls(row.topic, row.name, acked, row.token, row.nonce, options, row.seen_at_us)
        if row.nonce.startswith(_MOVED):
            size = row.nonce[len(_MOVED)]
            rest = row.nonce[len(_MOVED) + 1 :]
            found.moved_by, found.nonce = rest[:size], rest[size:]
        if found.leases is not None:
            found.leases.await_consumers(row.consumers, row.lent)
        elif not found.nonce:  # nobody attached since it was sought, or made
            found.moved_token = row.token - 1
        return found

    def move_to(self, cursor: int, nonce: bytes, token: int) -> None:
        """Begin anew elsewhere, for new consumers."""
        self.moved_token = self.token
        self.token = token
        self.nonce, self.moved_by = b"", nonce
        self.acked = AckedRanges(cursor)
        self.__post_init__()

    def to_row(self) -> SubscriptionRow:
        return SubscriptionRow(
            self.topic,
            self.name,
            self.acked.cursor,
            self.acked.pack(),
            self.token,
            _MOVED + bytes([len(self.moved_by)]) + self.moved_by + self.nonce if self.moved_by else self.nonce,
            pack_options(self.options),
            self.leases.pack_consumers() if self.leases else b"",
            self.seen_at_us,
            self.leases.pack_lent() if self.leases else b"",
        )


KeptT = TypeVar("KeptT", Receipt, Answer)


class Numbers(Generic[KeptT]):
    """What one publisher numbers: the last number taken, and the answers a retry may ask for."""

    __slots__ = ("durable_number", "kept", "last_number")

    def __init__(self, kept: Iterable[KeptT]) -> None:
        self.kept: list[KeptT] = list(kept)[-RECEIPTS_KEPT:]  # without a gap up to the last number
        self.last_number = self.kept[-1].number if self.kept else 0
        self.durable_number = self.last_number  # up to which all answers are on disk

    def keep(self, answer: KeptT) -> None:
        """Take in the answer to the next number; the oldest goes for it."""
        self.last_number = answer.number
        self.kept.append(answer)
        if len(self.kept) > RECEIPTS_KEPT:
            del self.kept[0]

    def find(self, number: int, checksum: int, what: str, answers: str) -> KeptT:
        """Return the answer to a number that is not the next one; refuse one that overtook others, is too old to be
        known, or came before for something else."""
        expected = self.last_number + 1
        if number > expected:
            text = f"{what} {number} overtook {what} {expected}"
            raise Refused(Code.GAP, text, expected=expected, retry_after_s=_GAP_RETRY_S)
        place = number - expected + len(self.kept)
        if place < 0:
            raise Refused(Code.MALFORMED, f"{what} {number} is older than the last {len(self.kept)} {answers} kept")
        if self.kept[place].checksum != checksum:
            raise Refused(Code.CHECKSUM_DIFFERS, f"{what} {number} came before with other contents")
        return self.kept[place]


Transactor = Numbers[Answer]  # one publisher and its transactions


class Writer(Numbers[Receipt]):
    """One publisher on one topic."""

    __slots__ = ("messages_total", "seen_s")

    def __init__(self, receipts: Iterable[Receipt], now_s: float) -> None:
        super().__init__(receipts)
        self.messages_total = self.kept[-1].messages_total if self.kept else 0
        self.seen_s = now_s


class Topic:
    """A topic while it is in memory. `next_offset` counts what was taken, `visible_end` what is committed."""

    __slots__ = (
        "active_writers", "bytes_total", "delayed_bytes", "deleted", "fetched_by", "first_offset", "is_noted",
        "known_from", "lag_noted_s", "lag_s", "last_commit_us", "name", "next_offset", "number", "recent",
        "recent_messages", "retention", "settings", "stored_bytes", "subscriptions", "takers", "touched_s",
        "tracked_below", "tried_below", "uncommitted", "unread_mark", "visible_bytes", "visible_end", "waiting",
        "writers",
    )  # fmt: skip

    def __init__(self, row: TopicRow, subscriptions: Iterable[SubscriptionRow], now_s: float) -> None:
        self.number = row.number
        self.name = row.name
        self.retention = row.retention
        self.settings: TopicSettings = unpack_settings(row.settings)
        self.deleted = False  # its deletion is taken, and perhaps not on disk yet
        self.next_offset = self.visible_end = row.next_offset
        self.last_commit_us = row.last_commit_us
        self.bytes_total = self.visible_bytes = row.bytes_total  # ever put: taken, and committed
        self.first_offset = row.first_offset
        self.stored_bytes = row.stored_bytes
        self.subscriptions = {sub.name: Subscription.from_row(sub) for sub in subscriptions}
        self.writers: dict[int, Writer] = {}
        self.active_writers = (0.0, 0)  # when they were counted last, and how many there were
        self.known_from = 0  # publishers from here on have nothing in the store that is not in memory
        self.recent: deque[StoredBatch] = NOTHING  # the newest batches, without a gap up to visible_end
        self.recent_messages = 0
        self.waiting: dict[tuple[Peer, bytes], Waiting] = {}
        self.fetched_by: tuple[int, list[FetchSession]] = (-1, [])  # as of which count of sessions
        self.takers: dict[bytes, Subscription] = {}  # shared subscriptions that somebody waits to be lent from
        self.uncommitted = 0  # groups with changes to this topic that are not on disk yet
        self.touched_s = now_s
        self.delayed_bytes: int | None = None  # of batches that appear here later; None when nobody looked yet
        self.tried_below = 0  # up to where a trim was tried last; what is left below it lies in batches still needed
        self.lag_s = 0.0  # from a commit to its delivery, of the quickest reader lately
        self.lag_noted_s = -inf  # when that was
        self.is_noted = False  # where what was put or acked is noted, and that is not saved yet
        self.tracked_below = self.slowest_cursor()  # of what was read, below which the saved notes have all
        self.unread_mark = (0, 0)  # an offset, and the bytes put below it: what one reader at least has read

    def row(self) -> TopicRow:
        return TopicRow(self.number, self.name, self.retention, settings=pack_options(self.settings))

    def is_leased(self) -> bool:
        """Return whether a consumer shares one of its subscriptions right now."""
        return any(sub.leases is not None and sub.leases.in_use() for sub in self.subscriptions.values())

    def slowest_cursor(self) -> int:
        """Return the offset from which on somebody still has to read; the end when nobody has."""
        return min((sub.acked.cursor for sub in self.subscriptions.values()), default=self.visible_end)

    def note_read(self, committed_at_us: int, now: Now) -> None:
        """Take in that somebody who does not share was handed something that was committed at this time."""
        lag_s = (now.unix_us - committed_at_us) / 1e6
        if lag_s < self.lag_s or now.monotonic_s - self.lag_noted_s > _LAG_KEPT_S:
            self.lag_s, self.lag_noted_s = lag_s, now.monotonic_s

    def readers_lag_s(self, now_s: float) -> float:
        """Return how far behind the quickest reader is; 0 where nobody had anything lately."""
        return self.lag_s if now_s - self.lag_noted_s <= _LAG_TOLD_S else 0.0

    def recent_from(self, position: int) -> int | None:
        """Return the place in `recent` of the batch that holds `position`; None when it is not in memory."""
        if not self.recent or position < self.recent[0].first_offset or position >= self.visible_end:
            return None
        return bisect_right(self.recent, position, key=_first_offset) - 1
