"""Messages gather, with keys and headers or without, and come back in their places."""

from __future__ import annotations

import pytest

from clarion.model import MAX_BATCH_MESSAGES, MessageId
from clarion.model.arguments import all_bytes, as_headers
from clarion.publisher.outgoing_batch import OutgoingBatch, check_settings
from clarion.wire.batch import Batch


def sealed(outgoing: OutgoingBatch) -> Batch:
    return Batch.parse(bytes(outgoing.seal(broker=1, publisher=2, stamp=3, number=4)))


def test_keys_and_headers_stay_with_their_messages_however_they_mix() -> None:
    outgoing = OutgoingBatch(b"topic")
    assert outgoing.builder.add(b"plain", None, None, 1) == 0
    assert outgoing.builder.add(b"keyed", b"key", None, 1) == 1
    assert outgoing.builder.extend([b"many 1", b"many 2"], None, 2) == 2
    assert outgoing.builder.add(b"headed", None, {"h": b"v"}, 1) == 4
    assert outgoing.builder.extend([b"keyed 1", b"keyed 2"], [b"k1", None], 2) == 5
    assert outgoing.builder.add(b"plain", None, None, 1) == 7
    batch = sealed(outgoing)
    assert batch.payloads() == [b"plain", b"keyed", b"many 1", b"many 2", b"headed", b"keyed 1", b"keyed 2", b"plain"]
    assert [batch.key(place) for place in range(8)] == [None, b"key", None, None, None, b"k1", None, None]
    assert [batch.headers(place) for place in range(8)] == [None] * 4 + [{"h": b"v"}] + [None] * 3
    assert (outgoing.count, outgoing.size) == (8, 8)


def test_an_empty_key_is_not_no_key() -> None:
    outgoing = OutgoingBatch(b"topic")
    outgoing.builder.add(b"", b"", {}, 1)
    outgoing.builder.add(b"", None, None, 1)
    batch = sealed(outgoing)
    assert [batch.key(place) for place in range(2)] == [b"", None]
    assert [batch.headers(place) for place in range(2)] == [{}, None]


def test_without_keys_and_headers_there_are_no_such_columns() -> None:
    outgoing = OutgoingBatch(b"topic")
    outgoing.builder.extend([b"a", b"b"], None, 2)
    assert sealed(outgoing).flags == 0


def test_sealing_lets_the_messages_go_and_gives_their_ids() -> None:
    outgoing = OutgoingBatch(b"topic")
    outgoing.builder.extend([b"a", b"b"], None, 2)
    sealed(outgoing)
    with pytest.raises(AssertionError, match="takes no more messages"):
        _ = outgoing.builder
    assert outgoing.count == 2
    assert outgoing.message_id(1) == MessageId(1, 2, 3, 1)


def test_there_is_room_up_to_the_bounds() -> None:
    outgoing = OutgoingBatch(b"topic")
    outgoing.builder.extend([b""] * (MAX_BATCH_MESSAGES - 1), None, 10)
    assert outgoing.builder.has_room(1, 90, 100)
    assert not outgoing.builder.has_room(2, 0, 100)
    assert not outgoing.builder.has_room(1, 91, 100)


def test_headers_are_text_to_bytes() -> None:
    assert as_headers({"a": "ä", "b": b"\xff"}) == {"a": "ä".encode(), "b": b"\xff"}
    assert as_headers({}) is as_headers(None) is None


def test_only_bytes_and_text_become_payloads() -> None:
    plain = [b"a", b"b"]
    assert all_bytes(plain) is plain
    assert all_bytes([b"a", "é", bytearray(b"c")]) == [b"a", "é".encode(), b"c"]  # type: ignore[list-item]
    with pytest.raises(TypeError, match="not int"):
        all_bytes([b"a", 5])  # type: ignore[list-item]


@pytest.mark.parametrize("settings", [(0, 1, 1), (65, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_settings_a_publisher_cannot_work_with_are_refused(settings: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"is at (least 1|most 64)"):
        check_settings(*settings)
