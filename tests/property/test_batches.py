"""Batches come back as they were packed, and damage never passes for data."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from clarion.model import MessageId
from clarion.wire.batch import (
    COMPRESSED,
    HEADER_BYTES,
    MAX_PLAIN_BYTES,
    BadBatch,
    Batch,
    Headers,
    compress,
    decompress,
    encode_batch,
    slice_batch,
)
from clarion.wire.messages import MessageBatch

quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)
keys = st.none() | st.binary(max_size=12)
headers = st.none() | st.dictionaries(st.text(max_size=6), st.binary(max_size=6), max_size=3)
Content = tuple[list[bytes], list[bytes | None] | None, list[Headers | None] | None]


@st.composite
def contents(draw: st.DrawFn) -> Content:
    payloads = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
    count = len(payloads)
    some_keys = draw(st.none() | st.lists(keys, min_size=count, max_size=count))
    return payloads, some_keys, draw(st.none() | st.lists(headers, min_size=count, max_size=count))


@st.composite
def same_contents(draw: st.DrawFn) -> Content:
    """Enough of the same to be worth compressing."""
    payloads, some_keys, some_headers = draw(contents())
    times = draw(st.integers(60, 70))
    return payloads * times, some_keys and some_keys * times, some_headers and some_headers * times


def pack(content: Content, *, compressed: bool = False) -> bytes:
    payloads, some_keys, some_headers = content
    return bytes(
        encode_batch(
            payloads,
            keys=some_keys,
            headers=some_headers,
            broker=7,
            publisher=9,
            stamp=(1 << 48) - 1,
            number=1 << 40,
            compressed=compressed,
        )
    )


def check(batch: Batch, content: Content, start: int, stop: int) -> None:
    """`batch` holds messages [start, stop) of the content, with the ids they have there."""
    payloads, some_keys, some_headers = content
    places = range(stop - start)
    assert batch.payloads() == [batch.payload(place) for place in places] == payloads[start:stop]
    assert [batch.key(place) for place in places] == (some_keys or [None] * len(payloads))[start:stop]
    assert [batch.headers(place) for place in places] == (some_headers or [None] * len(payloads))[start:stop]
    ids = [MessageId(7, 9, (1 << 48) - 1, start + place) for place in places]
    assert [batch.message_id(place) for place in places] == ids
    assert (batch.count, batch.number) == (stop - start, 1 << 40)


@quick
@given(contents())
def test_a_batch_comes_back_as_it_was_packed(content: Content) -> None:
    batch = Batch.parse(pack(content))
    batch.check_offsets()
    check(batch, content, 0, len(content[0]))


@quick
@given(contents(), st.data())
def test_a_slice_is_that_part_with_the_same_ids(content: Content, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(content[0]) - 1))
    stop = data.draw(st.integers(start + 1, len(content[0])))
    part = Batch.parse(bytes(slice_batch(Batch.parse(pack(content)), start, stop)))
    part.check_offsets()
    check(part, content, start, stop)
    again = data.draw(st.integers(0, stop - start - 1))
    check(Batch.parse(bytes(slice_batch(part, again, again + 1))), content, start + again, start + again + 1)


@quick
@given(contents(), st.data())
def test_a_changed_byte_is_never_taken_for_data(content: Content, data: st.DataObject) -> None:
    packed = bytearray(pack(content))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadBatch):
        Batch.parse(bytes(packed))


@quick
@given(contents(), st.data())
def test_a_batch_cut_short_or_drawn_out_is_never_taken_for_data(content: Content, data: st.DataObject) -> None:
    packed = pack(content)
    with pytest.raises(BadBatch):
        Batch.parse(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(BadBatch):
        Batch.parse(packed + data.draw(st.binary(min_size=1, max_size=70)))


@quick
@given(same_contents(), st.data())
def test_a_compressed_batch_and_its_slices_are_what_was_packed(content: Content, data: st.DataObject) -> None:
    packed = pack(content, compressed=True)
    batch = Batch.parse(packed)
    assert batch.is_compressed
    assert len(packed) < batch.plain_bytes == len(pack(content))
    start = data.draw(st.integers(0, len(content[0]) - 1))
    stop = data.draw(st.integers(start + 1, len(content[0])))
    part = Batch.parse(bytes(slice_batch(batch, start, stop)))
    part.check_offsets()
    check(part, content, start, stop)
    check(batch, content, 0, len(content[0]))


@quick
@given(same_contents(), st.data())
def test_damage_to_a_compressed_batch_is_never_taken_for_data(content: Content, data: st.DataObject) -> None:
    packed = bytearray(pack(content, compressed=True))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadBatch):
        Batch.parse(bytes(packed))


@quick
@given(st.binary(max_size=200))
def test_any_other_bytes_are_no_batch(raw: bytes) -> None:
    for candidate in (raw, b"CLRB\x01" + raw):
        with pytest.raises(BadBatch):
            Batch.parse(candidate)


def sealed(packed: bytearray) -> bytes:
    """Return the bytes a checksum that fits, as somebody who means harm would."""
    digest = xxh3_64_intdigest(bytes(packed[16:]), seed=int.from_bytes(packed[:8], "little"))
    packed[8:16] = struct.pack("<Q", digest)
    return bytes(packed)


@quick
@given(contents(), st.data())
def test_a_forged_batch_is_refused_or_read_without_harm(content: Content, data: st.DataObject) -> None:
    """A right checksum on wrong contents: what the broker takes can be cut and read within its own size."""
    packed = bytearray(pack(content))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(16, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = Batch.parse(sealed(packed))
        batch.check_offsets()
    except BadBatch:
        return
    assert sum(map(len, batch.payloads())) <= len(packed)
    part = Batch.parse(bytes(slice_batch(batch, 0, (batch.count + 1) // 2)))
    assert len(part.raw) <= len(packed) + 8
    for place in range(part.count):
        try:
            part.headers(place)
        except BadBatch:
            pass


def look_at_everything(batch: Batch) -> None:
    batch.payloads()
    batch.column_buffers()
    for place in range(batch.count):
        batch.key(place)
        try:
            batch.headers(place)
        except BadBatch:
            pass  # of one message alone


@quick
@given(same_contents(), st.data())
def test_a_forged_compressed_batch_is_refused_or_read_without_harm(content: Content, data: st.DataObject) -> None:
    packed = bytearray(pack(content, compressed=True))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(16, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = Batch.parse(sealed(packed))
        batch.check_offsets()
        batch.open()
    except BadBatch:
        return
    assert sum(map(len, batch.payloads())) < batch.plain_bytes <= MAX_PLAIN_BYTES + HEADER_BYTES
    look_at_everything(batch)


def with_frame(content: Content, frame: bytes, plain_bytes: int | None = None) -> bytes:
    """Return the batch with another frame for its body, and another size for that, if wanted."""
    packed = bytearray(pack(content, compressed=True)[:HEADER_BYTES] + frame)
    struct.pack_into("<I", packed, 56, len(frame))
    if plain_bytes is not None:
        struct.pack_into("<I", packed, 60, plain_bytes)
    return sealed(packed)


SOME: Content = ([b"same words"] * 50, None, None)
BODY = pack(SOME)[HEADER_BYTES:]


def frame_of(plain: bytes) -> bytes:
    frame = compress(plain)
    assert frame is not None
    return frame


@pytest.mark.parametrize(
    "frame",
    [
        frame_of(bytes(1 << 20)),  # opens to more than the header says
        frame_of(BODY[:-8]),
        frame_of(BODY)[:-1],
        frame_of(BODY) + b"x",
        frame_of(BODY) + frame_of(BODY),
        b"\x50\x2a\x4d\x18\x04\0\0\0skip",
        b"no frame at all",
        b"",
    ],
)
def test_a_frame_that_does_not_hold_what_the_header_says_is_a_bad_batch(frame: bytes) -> None:
    batch = Batch.parse(with_frame(SOME, frame))
    batch.check_offsets()
    for touch in (batch.open, batch.payloads, batch.column_buffers, lambda: slice_batch(batch, 0, 1)):
        with pytest.raises(BadBatch, match="cannot be decompressed"):
            touch()


def test_a_bomb_is_refused_before_anything_is_opened() -> None:
    for plain_bytes in (MAX_PLAIN_BYTES + 8, (1 << 32) - 8):
        packed = bytearray(with_frame(SOME, frame_of(bytes(1 << 20)), plain_bytes))
        struct.pack_into("<I", packed, 28, plain_bytes - 208)  # payload bytes, so that columns fill the body
        with pytest.raises(BadBatch, match="at most"):
            Batch.parse(sealed(packed))
    with pytest.raises(BadBatch, match="do not fill"):
        Batch.parse(with_frame(SOME, frame_of(BODY), len(BODY) + 8))


def test_no_more_is_opened_than_was_asked_for() -> None:
    bomb = frame_of(bytes(32 << 20))
    with pytest.raises(ValueError, match="does not hold the 1000 bytes"):
        decompress(bomb, 1000)
    with pytest.raises(ValueError, match="more than are ever"):
        decompress(bomb, MAX_PLAIN_BYTES + 1)
    assert compress(bytes(MAX_PLAIN_BYTES + 1)) is None


def test_wrong_columns_inside_a_frame_are_found_when_it_is_opened() -> None:
    body = bytearray(BODY)
    struct.pack_into("<i", body, 4 * 20, 1)  # an offset goes back
    with pytest.raises(BadBatch, match="go back"):
        Batch.parse(with_frame(SOME, frame_of(bytes(body)))).payloads()
    body = bytearray(BODY)
    struct.pack_into("<i", body, 4 * 50, 499)  # the last one does not reach the end
    with pytest.raises(BadBatch, match="do not span"):
        Batch.parse(with_frame(SOME, frame_of(bytes(body)))).payloads()


def test_the_flag_alone_makes_no_compressed_batch() -> None:
    packed = bytearray(pack(SOME))
    packed[5] |= COMPRESSED
    with pytest.raises(BadBatch):
        Batch.parse(sealed(packed))


def test_offsets_that_go_back_are_found_anywhere() -> None:
    for place in range(1, 40):
        packed = bytearray(pack(([b"four"] * 40, None, None)))
        struct.pack_into("<i", packed, HEADER_BYTES + 4 * place, 4 * place - 5)
        with pytest.raises(BadBatch, match="go back"):
            Batch.parse(sealed(packed)).check_offsets()


@quick
@given(contents() | same_contents(), st.booleans(), st.data())
def test_columns_become_arrow_as_they_are(content: Content, compressed: bool, data: st.DataObject) -> None:
    payloads, some_keys, some_headers = content
    start = data.draw(st.integers(0, len(payloads) - 1))
    stop = data.draw(st.integers(start + 1, len(payloads)))
    part = MessageBatch(b"topic", Batch.parse(pack(content, compressed=compressed)), 100, 5_000_000, start, stop)
    table = part.to_arrow().to_pydict()
    nothing = [None] * len(payloads)
    packed_headers = [None if item is None else msgspec.msgpack.encode(item) for item in some_headers or nothing]
    assert table["payload"] == payloads[start:stop] == part.payloads()
    assert table["key"] == (some_keys or nothing)[start:stop] == part.keys()
    assert table["headers"] == packed_headers[start:stop]
    assert table["offset"] == list(range(100 + start, 100 + stop)) == [message.offset for message in part]
    assert table["id"] == [message.id.to_bytes() for message in part]
    assert table["committed_at"] == [part.committed_at] * (stop - start)
