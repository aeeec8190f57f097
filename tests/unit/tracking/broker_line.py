"""Three brokers in a line, and what their exported histories have of four batches."""

from __future__ import annotations

from tests.unit.tracking.segments import segment_of

from clarion.model.ids import MessageId
from clarion.tracking.bloom import Key
from clarion.tracking.exported import About, Export, HistoryPart, Segment

NORTH, SOUTH, EAST = 0xA1, 0xB2, 0xC3


def key(origin: int, publisher: int, stamp: int) -> Key:
    """Return the key of a batch."""
    return origin << 32 | publisher, stamp


def segment(*keys: Key, exact: tuple[Key, ...] = ()) -> Segment:
    """Return a segment with these keys."""
    return segment_of(keys, exact=exact)


def export(broker: int, name: str, *parts: HistoryPart, begins: int = 0, ends: int = 1 << 48) -> Export:
    """Return a broker's export."""
    about = About(broker=broker, name=name, strategy="bloom", efpp=1e-5, begins=begins, ends=ends)
    return Export(about, list(parts))


def message(of: Key, counter: int = 0) -> MessageId:
    """Return a message of the batch with this key."""
    return MessageId(of[0] >> 32, of[0] & 0xFFFFFFFF, of[1], counter)


READ, STUCK, HELD, LOST = (key(NORTH, 7, stamp) for stamp in (1000, 1001, 1002, 1003))


def line() -> list[Export]:
    """Return three brokers in a line: READ went to the end, STUCK to the middle, HELD stayed, LOST was never put."""
    return [
        export(
            NORTH, "north", HistoryPart("publisher", NORTH, 0, b"", segment(READ, STUCK, HELD)), begins=500, ends=2000
        ),
        export(SOUTH, "south", HistoryPart("routing", NORTH, NORTH, b"", segment(READ, STUCK))),
        export(
            EAST,
            "east",
            HistoryPart("routing", NORTH, SOUTH, b"", segment(READ)),
            HistoryPart("subscriber", NORTH, 0, b"anna", segment(READ)),
            HistoryPart("subscriber", NORTH, 0, b"bert", segment(exact=(READ,))),
        ),
    ]  # fmt: skip
