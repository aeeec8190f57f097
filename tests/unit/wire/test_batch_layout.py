"""The batch layout, byte by byte: what is stored today must be read for ever."""

from __future__ import annotations

from random import Random

import pytest

from clarion.model import MAX_BATCH_MESSAGES
from clarion.wire.batch import BadBatch, Batch, decompress, encode_batch, encode_lone, renumber_batch, slice_batch

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

# Twelve messages "the same words again 0" to 11, each with key "k", as one zstd frame; it has to be read for ever.
COMPRESSED = bytes.fromhex(
    "434c5242 01 05 0000 272f48712aacb375 0c000000 01000000 02000000 0a010000 0300000000000000 0400000000000000"
    "0c000000 00000000 93000000 98010000"  # bytes of keys, of headers, of the frame, and of the columns in it
    "28b52ffd6098004d0400b2c81722904d73cffbd83517b1c43433d5ad5ff6d6a69e4ba8d3d38fe2425a32f250f86f7ba7bf19f1c3ad1b5e38"
    "e1830b1e38e0d5a9c4a9739489240279381a8ed130cdc3bc965d3c1d50bb382f6b57e693b26e7ae9a48f2e7ae8d82daf7c71c5071100381b"
    "adea2ad7ac4a4662af039b9a814fc077e063e013f01df818f8047c073e26e78b69c11e"
)


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


def test_a_compressed_batch_of_long_ago_is_read() -> None:
    batch = Batch.parse(COMPRESSED)
    assert batch.is_compressed
    assert batch.payloads() == [b"the same words again %d" % place for place in range(12)]
    assert [batch.key(place) for place in range(12)] == [b"k"] * 12
    assert (batch.plain_bytes, batch.headers(0)) == (472, None)


def test_a_batch_is_compressed_where_that_is_asked_for_and_makes_it_smaller() -> None:
    def packed(payload: bytes, compressed: bool) -> Batch:
        raw = encode_batch([payload], broker=1, publisher=2, stamp=3, number=4, compressed=compressed)
        return Batch.parse(bytes(raw))

    same, random = b"same" * 1000, Random(1).randbytes(150)
    assert packed(same, compressed=True).is_compressed
    assert len(packed(same, compressed=True).raw) < 200
    assert not packed(same, compressed=False).is_compressed
    assert not packed(random, compressed=True).is_compressed
    assert not packed(b"same" * 3, compressed=True).is_compressed, "too small to be worth a try"
    assert packed(random, compressed=True).raw == packed(random, compressed=False).raw


def test_the_broker_need_not_open_a_compressed_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[int]()

    def counted(frame: memoryview, size: int) -> bytes:
        opened.append(size)
        return decompress(frame, size)

    monkeypatch.setattr("clarion.wire.batch.decompress", counted)
    batch = Batch.parse(COMPRESSED)
    batch.check_offsets()
    assert (batch.count, batch.publisher, batch.plain_bytes, batch.message_id(3).counter) == (12, 2, 472, 3)
    assert opened == []
    batch.payload(0)
    batch.key(1)
    assert opened == [408], "and who looks into it opens it once"


def test_a_slice_of_a_compressed_batch_is_not_compressed() -> None:
    part = Batch.parse(bytes(slice_batch(Batch.parse(COMPRESSED), 10, 12)))
    assert not part.is_compressed
    assert part.payloads() == [b"the same words again 10", b"the same words again 11"]
    assert part.message_id(0) == Batch.parse(COMPRESSED).message_id(10)


@pytest.mark.parametrize("raw", [KNOWN, COMPRESSED])
def test_another_number_changes_nothing_else(raw: bytes) -> None:
    batch, other = Batch.parse(raw), Batch.parse(bytes(renumber_batch(raw, 77)))
    assert (other.number, other.stamp, other.publisher) == (77, batch.stamp, batch.publisher)
    assert other.payloads() == batch.payloads()
    assert other.message_id(1) == batch.message_id(1)
    assert bytes(renumber_batch(other.raw, batch.number)) == raw


@pytest.mark.parametrize("count", [15, 16, 63, 64, 65, 129, 1000])
@pytest.mark.parametrize("size", [0, 1, 100])
def test_payloads_of_one_size_are_cut_as_all_others(count: int, size: int) -> None:
    payloads = [place.to_bytes(2, "big")[-size:].rjust(size, b".") if size else b"" for place in range(count)]
    batch = Batch.parse(encode_batch(payloads, broker=1, publisher=2, stamp=3, number=4))
    assert batch.payloads() == payloads
    for start, stop in ((0, count), (1, count - 1), (3, 4), (count - 1, count)):
        assert batch.payloads(start, stop) == payloads[start:stop]


def test_payloads_that_only_look_alike_in_sum_are_cut_where_they_end() -> None:
    payloads = [b"ab", b"abcd"] * 32
    batch = Batch.parse(encode_batch(payloads, broker=1, publisher=2, stamp=3, number=4))
    assert batch.payloads() == payloads
    assert batch.payloads(1, 40) == payloads[1:40]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 200, 4096, 100_001])
def test_a_lone_message_is_packed_to_the_bytes_of_any_other_batch(size: int) -> None:
    payload = bytes(range(256)) * (size // 256 + 1)
    packed = encode_lone(payload[:size], 3, 7, 1 << 40, 9)
    assert packed == encode_batch([payload[:size]], broker=3, publisher=7, stamp=1 << 40, number=9)
    assert Batch.parse(bytes(packed)).payloads() == [payload[:size]]
