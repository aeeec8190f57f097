"""What became of messages, by exported histories, beside what really did: a line of brokers, in all its states."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.tracking.broker_line import (
    EAST,
    HELD,
    LOST,
    NORTH,
    READ,
    SOUTH,
    STUCK,
    export,
    key,
    line,
    message,
    segment,
)
from tests.unit.tracking.segments import segment_of

from clarion.model.ids import MessageId
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.bloom import Key, false_positives
from clarion.tracking.exported import HistoryPart
from clarion.tracking.verdicts import STATES, HistoryIndex, Ids, Lists, read_ids


def ids(*messages: MessageId) -> Ids:
    """Return ids as numbers."""
    return read_ids(b"".join(message.to_bytes() for message in messages))


def told(index: HistoryIndex, *messages: MessageId) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Return state, carriers, receivers and where it was last seen of each message."""
    found = index.judge(ids(*messages))

    def names(lists: Lists, row: int, texts: list[str]) -> list[str]:
        return [texts[place] for place in lists.values[lists.offsets[row] : lists.offsets[row + 1]]]

    return [
        (
            STATES[found.states[row]],
            names(found.carried, row, index.brokers),
            names(found.received, row, index.receivers),
            names(found.last_seen, row, index.brokers),
        )
        for row in found.rows
    ]


def test_each_message_is_told_with_its_way_and_its_end() -> None:
    index = HistoryIndex(line())
    assert told(index, *(message(each, 3) for each in (LOST, READ, HELD, STUCK, READ))) == [
        ("never seen", [], [], []),
        ("delivered", ["north", "south", "east"], ["east/anna", "east/bert"], []),
        ("stopped", ["north"], [], ["north"]),
        ("stopped", ["north", "south"], [], ["south"]),
        ("delivered", ["north", "south", "east"], ["east/anna", "east/bert"], []),
    ]
    assert index.not_exported == []


def test_what_the_origin_could_not_have_told_is_not_called_never_seen() -> None:
    index = HistoryIndex(line())
    early, late, elsewhere = key(NORTH, 7, 400), key(NORTH, 7, 2001), key(0xD4, 7, 1000)
    assert [state for state, *_ in told(index, *map(message, (early, late, elsewhere)))] == ["not covered"] * 3


def test_a_broker_without_an_export_is_named_where_messages_came_from_it() -> None:
    index = HistoryIndex(line()[2:])
    assert told(index, message(READ)) == [("delivered", ["000000b2", "east"], ["east/anna", "east/bert"], [])]
    assert index.not_exported == ["000000a1", "000000b2"]


def test_brokers_of_one_name_are_told_apart() -> None:
    same = [each._replace(about=replace(each.about, name="same")) for each in line()]
    assert HistoryIndex(same).brokers == ["same (000000a1)", "same (000000b2)", "same (000000c3)"]


def test_the_error_is_the_chance_that_any_answer_is_wrong() -> None:
    index = HistoryIndex(line())
    found = index.judge(ids(message(READ), message(HELD), message(LOST)))
    by_id = found.errors[found.rows]
    filters = [part.segment for export in line() for part in export.parts if part.segment.count]
    each = [false_positives(one.bits, one.hashes, one.count) for one in filters]
    assert by_id[0] == pytest.approx(1 - np.prod([1 - fpp for fpp in each]))
    assert by_id[1] == pytest.approx(each[0])
    assert 0 < by_id[1] < by_id[0] < 4e-5  # four filters; what bert received is known exactly
    assert by_id[2] == 0


def test_doubts_add_up_to_the_false_positives_that_there_are() -> None:
    """Filters that err often: of messages that were never put, as many are found as the others lead to expect."""
    keys = [key(NORTH, 7, stamp) for stamp in range(0, 4000, 2)]
    segment = segment_of(keys, accuracy=Accuracy(efpp=0.05, overlap=0, skew_s=0))
    index = HistoryIndex([export(NORTH, "north", HistoryPart("publisher", NORTH, 0, b"", segment))])
    asked = np.arange(4000, dtype=np.uint64)
    found = index.judge(np.stack([np.full(4000, NORTH << 32 | 7, np.uint64), asked << np.uint64(16)], axis=1))
    named = found.states[found.rows] == STATES.index("stopped")
    assert named[::2].all()
    assert found.doubts.sum() == pytest.approx(named[1::2].sum(), rel=0.5)
    assert 0.02 * 2000 < found.doubts.sum() < 0.06 * 2000


def test_a_part_of_a_batch_is_received_by_its_messages_alone() -> None:
    part = struct.pack(">QQII", *STUCK, 10, 20)
    whole = segment(READ)
    carried = HistoryPart("routing", NORTH, SOUTH, b"", segment(READ, STUCK))
    exports = [*line()[:2], export(EAST, "east", carried, HistoryPart("subscriber", NORTH, 0, b"anna", whole, part))]
    index = HistoryIndex(exports)
    asked = [message(STUCK, counter) for counter in (9, 10, 19, 20)]
    found = told(index, *asked, message(READ, 65535))
    assert [state for state, *_ in found] == ["stopped", "delivered", "delivered", "stopped", "delivered"]
    assert found[1][2] == ["east/anna"]
    assert found[3][3] == ["east"]


def test_parts_that_overlap_each_other_and_whole_batches_count_once() -> None:
    parts = struct.pack(">QQII", *READ, 0, 5) + struct.pack(">QQII", *READ, 3, 65_536)
    index = HistoryIndex([export(EAST, "east", HistoryPart("subscriber", NORTH, 0, b"anna", segment(READ), parts))])
    found = index.judge(ids(message(READ, 4), message(READ, 65_535)))
    assert found.received.values.tolist() == [0, 0]
    assert found.errors.tolist() == [0, 0]


def test_who_received_what_its_broker_did_not_carry_did_not() -> None:
    """A subscriber's filter errs; the routing history of the same broker knows better, for what it covers."""
    wrong = HistoryPart("subscriber", NORTH, 0, b"anna", segment(READ, STUCK))
    inside = export(EAST, "east", HistoryPart("routing", NORTH, SOUTH, b"", segment(READ)), wrong)
    assert [state for state, *_ in told(HistoryIndex([inside]), message(READ), message(STUCK))] == [
        "delivered", "not covered",
    ]  # fmt: skip
    later = export(EAST, "east", *inside.parts, begins=STUCK[1] + 1)
    assert [state for state, *_ in told(HistoryIndex([later]), message(STUCK))] == ["delivered"]
    alone = export(EAST, "east", wrong)
    assert [state for state, *_ in told(HistoryIndex([alone]), message(STUCK))] == ["delivered"]


def test_histories_without_keys_and_no_ids_at_all_are_fine() -> None:
    empty = HistoryIndex([export(NORTH, "", HistoryPart("publisher", NORTH, 0, b"", segment()))])
    assert told(empty, message(READ)) == [("never seen", [], [], [])]
    assert told(empty) == []
    assert told(HistoryIndex([export(NORTH, "")]), message(READ)) == [("never seen", [], [], [])]


def test_an_index_goes_to_other_processes() -> None:
    index = pickle.loads(pickle.dumps(HistoryIndex(line())))
    assert told(index, message(STUCK)) == [("stopped", ["north", "south"], [], ["south"])]
    assert index.size_bytes > 0


_keys = st.builds(key, st.sampled_from([NORTH, SOUTH]), st.integers(0, 2), st.integers(0, 60))


@settings(deadline=None, max_examples=60)
@given(
    carried=st.lists(st.sets(_keys), min_size=1, max_size=3),
    exact=st.sets(_keys),
    pieces=st.lists(st.tuples(_keys, st.integers(0, 5), st.integers(0, 9)), max_size=6),
    asked=st.lists(st.tuples(_keys, st.integers(0, 9)), min_size=1, max_size=40),
)
def test_what_was_there_is_always_found_whatever_lies_beside_it(
    carried: list[set[Key]],
    exact: set[Key],
    pieces: list[tuple[Key, int, int]],
    asked: list[tuple[Key, int]],
) -> None:
    parts = []
    for origin in (NORTH, SOUTH):
        for some in carried:
            filed = segment(*sorted(each for each in some if each[0] >> 32 == origin))
            parts.append(HistoryPart("routing", origin, SOUTH, b"", filed))
        packed = b"".join(
            struct.pack(">QQII", *each, first, max(first, stop))
            for each, first, stop in pieces
            if each[0] >> 32 == origin
        )
        kept = segment(exact=tuple(each for each in exact if each[0] >> 32 == origin))
        parts.append(HistoryPart("subscriber", origin, 0, b"anna", kept, packed))
    found = told(HistoryIndex([export(EAST, "east", *parts)]), *(message(each, counter) for each, counter in asked))
    for (each, counter), (state, *_) in zip(asked, found, strict=True):
        received = each in exact or any(
            each == of and first <= counter < max(first, stop) for of, first, stop in pieces
        )
        if received:
            assert state == "delivered"
        elif any(each in some for some in carried):
            assert state == "stopped"
        else:
            assert state == "not covered"


def test_who_went_past_a_message_and_read_it_after_all_received_it() -> None:
    past = [
        HistoryPart("skipped", NORTH, 0, name, segment(), struct.pack(">QQII", *READ, 2, 4))
        for name in (b"anna", b"nobody")  # of one of them there is nothing else
    ]
    exports = line()
    exports[2].parts.extend(past)
    both = ["east/anna", "east/bert"]
    assert [receivers for _, _, receivers, _ in told(HistoryIndex(exports), *(message(READ, n) for n in range(5)))] == [
        both, both, both, both, both
    ]  # fmt: skip
