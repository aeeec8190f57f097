"""The batch layout, byte by byte: what is stored today must be read for ever."""

from __future__ import annotations

import pytest

from clarion.model import MAX_BATCH_MESSAGES
from clarion.wire.batch import BadBatch, Batch, encode_batch, slice_batch

# Two messages, "ab" with key "k" and "cde" with headers {"h": "v"}, of broker 1, publisher 2, stamp 3, number 4.
HEADER = (
    "434c5242 01 03 0000"  # magic, layout version 1, flags keys and headers, first counter
    "CHECKSUM"
    "02000000 01000000 02000000 05000000"  # messages, broker, publisher, bytes of payload
    "0300000000000000 0400000000000000"  # stamp, number
    "01000000 06000000 58000000 00000000"  # bytes of keys, of headers, of the body; reserved
)
PAYLOAD = "00000000 02000000 05000000 00000000 6162636465 000000"  # offsets 0 2 5, bytes
KEY = "01 00000000000000 00000000 01000000 01000000 00000000 6b 00000000000000"  # valid: the first
HEADERS = "02 00000000000000 00000000 00000000 06000000 00000000 81a168c40176 0000"  # valid: the second
CHECKSUM = "c4703145ccb08dfe"
KNOWN = bytes.fromhex((HEADER + PAYLOAD + KEY + HEADERS).replace("CHECKSUM", CHECKSUM))


def known() -> bytes:
    keys, headers = [b"k", None], [None, {"h": b"v"}]
    return bytes(encode_batch([b"ab", b"cde"], keys=keys, headers=headers, broker=1, publisher=2, stamp=3, number=4))


def test_a_batch_is_packed_to_the_very_same_bytes_for_ever() -> None:
    assert known().hex() == KNOWN.hex()
    assert Batch.parse(KNOWN).payloads() == [b"ab", b"cde"]


def test_without_keys_and_headers_there_is_only_the_payload() -> None:
    packed = encode_batch([b"ab", b"cde"], broker=1, publisher=2, stamp=3, number=4)
    assert packed[64:].hex() == PAYLOAD.replace(" ", "")


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [(0, b"X", "begins with"), (4, b"\x02", "version 2"), (5, b"\x83", "flags"), (70, b"\x01", "checksum")],
)
def test_what_cannot_be_read_says_why(at: int, value: bytes, reason: str) -> None:
    with pytest.raises(BadBatch, match=reason):
        Batch.parse(KNOWN[:at] + value + KNOWN[at + 1 :])


@pytest.mark.parametrize("headers", [b"\x81\xa1\xff\xc4\x01v", b"\x81\xa1h\x01\x01\x01", b"\xc1\xc1\xc1\xc1\xc1\xc1"])
def test_headers_that_are_no_map_of_text_to_bytes_are_a_bad_batch(headers: bytes) -> None:
    batch = Batch(KNOWN[:-8] + headers + bytes(2))
    with pytest.raises(BadBatch, match="headers of message 1"):
        batch.headers(1)


def test_a_batch_holds_65536_messages_and_its_last_can_be_cut_out() -> None:
    packed = encode_batch([b"x"] * MAX_BATCH_MESSAGES, broker=1, publisher=2, stamp=3, number=4)
    whole = Batch.parse(bytes(packed))
    whole.check_offsets()
    last = Batch.parse(bytes(slice_batch(whole, MAX_BATCH_MESSAGES - 1, MAX_BATCH_MESSAGES)))
    assert last.message_id(0) == whole.message_id(MAX_BATCH_MESSAGES - 1)


def test_column_buffers_are_views_of_the_batch_itself() -> None:
    batch = Batch.parse(KNOWN)
    payload, key, headers = batch.column_buffers()
    assert payload is not None
    assert key is not None
    assert headers is not None
    assert payload[0] is None
    assert [bytes(column[2]) for column in (payload, key, headers)] == [b"abcde", b"k", b"\x81\xa1h\xc4\x01v"]
    assert all(buffer.obj is KNOWN for column in (payload, key, headers) for buffer in column if buffer is not None)
    plain = Batch.parse(bytes(encode_batch([b"x"], broker=1, publisher=2, stamp=3, number=4)))
    assert plain.column_buffers()[1:] == [None, None]
