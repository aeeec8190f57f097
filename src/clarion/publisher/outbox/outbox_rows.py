"""What an outbox holds, as plain values: rows, topics, and the changes that one commit makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from clarion.wire.frames import Buffer


class Home(NamedTuple):
    """The broker's store that the numbers of the topics belong to."""

    broker: int
    store_uuid: bytes
    timeline: int


class Row(NamedTuple):
    """A packed batch of one topic. Its stamp is its place in the outbox, too: rows of a topic are sent in that order.

    The batch is packed for nobody (broker, publisher and number 0): numbering it fills them in, always alike.
    """

    stamp: int
    topic: int  # its number here
    messages: int
    ttl_ms: int
    due: bytes
    packed: Buffer


class LedgerRow(NamedTuple):
    """How the rows of one topic are numbered: the first `numbered` of them, in order, have the numbers from
    `first_number` on, and may have been sent as `publisher`'s. The others were never sent."""

    number: int
    topic: bytes
    publisher: int = 0  # 0: none yet
    first_number: int = 1
    numbered: int = 0
    stored: int = 0  # messages that the broker took before these, against which it counts its credit
    topic_number: int = 0  # which topic of this name they are for; 0: whichever has it, as before format 2


class FoundTopic(NamedTuple):
    """A topic as it was found on disk, with what is left in it."""

    row: LedgerRow
    rows: int
    messages: int
    last_stamp: int


@dataclass(slots=True)
class Found:
    """What an outbox held when it was opened."""

    topics: list[FoundTopic] = field(default_factory=list)
    home: Home | None = None
    start: bytes = b""  # of the broker that was spoken with last, and the highest of its commits that was told of
    sequence: int = 0
    max_batch_bytes: int = 0  # that the broker took when it was last asked; 0: it never was
    last_stamp: int = 0
    stored_bytes: int = 0  # of all rows, those in quarantine too
    quarantined_messages: int = 0


@dataclass(slots=True)
class Changes:
    """What one commit does. Rows go to quarantine and are removed first; `quarantine_first` counts what is left."""

    home: Home | None = None
    start: bytes = b""  # with what is gone, by which commit of the broker's it was known
    sequence: int = 0
    max_batch_bytes: int = 0
    gone: list[int] = field(default_factory=list)  # stamps
    quarantine: list[tuple[int, str]] = field(default_factory=list)  # stamps, with the reason
    quarantine_first: list[tuple[int, int, str]] = field(default_factory=list)  # the first so many rows of a topic
    rows: list[Row] = field(default_factory=list)
    last_stamp: int = 0
    topics: dict[int, LedgerRow] = field(default_factory=dict)
    gone_topics: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.home or self.max_batch_bytes or self.gone or self.quarantine or self.quarantine_first or self.rows
            or self.topics or self.gone_topics
        )  # fmt: skip


class Load(NamedTuple):
    """Read rows of a topic that follow a stamp: at most so many, and no more once so many bytes are there."""

    topic: int  # its number here
    after: int
    rows: int
    size: int
