"""What a transaction will do, gathered and packed: acks, puts and named states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clarion.model.errors import TooLarge
from clarion.model.ids import MAX_BATCH_MESSAGES, next_stamp
from clarion.model.ranges import merged
from clarion.subscriber.acking import Range
from clarion.subscriber.claim import Claim
from clarion.wire import bodies
from clarion.wire.batch import Headers, encode_batch
from clarion.wire.timestamps import pack_due


class State(NamedTuple):
    """A named state; version 0 and no value when it was never set, or removed."""

    value: bytes | None
    version: int


class Stamps:
    """The stamps of one publisher's batches, each higher than the last."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, unix_s: float) -> int:
        """Give the stamp for now."""
        self._last = next_stamp(self._last, unix_s)
        return self._last


class _Sheaf:
    """Messages that become one batch."""

    def __init__(self, place: int, topic: bytes, ttl_ms: int) -> None:
        self.place = place  # among the batches of the transaction
        self.topic = topic
        self.ttl_ms = ttl_ms
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Headers | None] = []
        self.due: list[int] = []  # of each, where they are delayed

    def pack(self, identity: bodies.Registered, stamp: int, number: int) -> tuple[bytearray, bytes]:
        """Give the batch, and when each of its messages is due."""
        order: Sequence[int] = range(len(self.payloads))
        if self.due:
            order = sorted(order, key=self.due.__getitem__)
        batch = encode_batch(
            [self.payloads[place] for place in order],
            keys=[self.keys[place] for place in order] if any(key is not None for key in self.keys) else None,
            headers=[self.headers[place] for place in order] if any(self.headers) else None,
            broker=identity.broker,
            publisher=identity.publisher,
            stamp=stamp,
            number=number,
        )
        return batch, pack_due([self.due[place] for place in order]) if self.due else b""


class Draft:
    """Gathers a transaction. Messages of one topic become one batch, delayed ones another."""

    def __init__(self) -> None:
        self._sheaves: list[_Sheaf] = []
        self._open: dict[tuple[bytes, int, bool], _Sheaf] = {}
        self._places: list[tuple[int, int]] = []  # of each put: sheaf, place in it
        self._acks: dict[Claim, list[Range]] = {}
        self._sets: list[tuple[bytes, bytes | None, int | None]] = []

    def __bool__(self) -> bool:
        return bool(self._sheaves or self._acks or self._sets)

    def put(
        self,
        topic: bytes,
        payload: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        ttl_ms: int,
        due_us: int | None,
    ) -> None:
        """Add a message."""
        lane = (topic, ttl_ms, due_us is not None)
        sheaf = self._open.get(lane)
        if sheaf is None or len(sheaf.payloads) >= MAX_BATCH_MESSAGES:
            sheaf = self._open[lane] = _Sheaf(len(self._sheaves), topic, ttl_ms)
            self._sheaves.append(sheaf)
        self._places.append((sheaf.place, len(sheaf.payloads)))
        sheaf.payloads.append(payload)
        sheaf.keys.append(key)
        sheaf.headers.append(dict(headers) if headers else None)
        if due_us is not None:
            sheaf.due.append(due_us)

    def ack(self, claim: Claim, start: int, stop: int) -> None:
        """Add a range to be acked."""
        self._acks.setdefault(claim, []).append((start, stop))

    def set(self, name: bytes, value: bytes | None, expect: int | None) -> None:
        """Add a named state."""
        if any(name == known for known, _, _ in self._sets):
            raise ValueError("a transaction sets each state once")
        self._sets.append((name, value, expect))

    def acks(self) -> list[tuple[Claim, int, int]]:
        """Give what is to be acked."""
        return [(claim, start, stop) for claim, ranges in self._acks.items() for start, stop in ranges]

    def pack(
        self, identity: bodies.Registered, number: int, stamps: Stamps, unix_s: float, max_bytes: int
    ) -> tuple[bodies.Transact, bytes]:
        """Give the request and the frame that goes with it."""
        batches: list[bytearray] = []
        puts: list[tuple[bytes, int, int, bytes]] = []
        for sheaf in self._sheaves:
            batch, due = sheaf.pack(identity, stamps.next(unix_s), number)
            batches.append(batch)
            puts.append((sheaf.topic, len(batch), sheaf.ttl_ms, due))
        blob = b"".join(batches)
        if len(blob) > max_bytes:
            raise TooLarge(
                f"a transaction with {len(blob)} bytes to put is larger than this broker takes ({max_bytes});"
                " nothing of it was done"
            )
        acks = tuple(
            (claim.reading.topic, claim.reading.name, claim.token, tuple(merged(ranges)))
            for claim, ranges in self._acks.items()
        )
        return bodies.Transact(identity.publisher, number, acks, tuple(puts), tuple(self._sets)), blob

    def offsets_of(self, first_offsets: Sequence[int]) -> tuple[int, ...]:
        """Give the offset of each message put, in order; -1 for a delayed one, which has none yet."""
        firsts = [first_offsets[sheaf] for sheaf, _ in self._places]
        return tuple(-1 if first < 0 else first + place for first, (_, place) in zip(firsts, self._places, strict=True))
