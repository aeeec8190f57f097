"""Bodies that are unpacked as they come."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.feeds.fetcher import FetchFailed, UnpackedBody

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN = b"<item>something new</item>" * 50
MOST = 10_000


def bare(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(plain) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "plain": ("", bytes),
    "identity": ("identity", bytes),
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "bare deflate": ("Deflate", bare),
    "zstd": ("zstd", zstd.compress),
}
PACKED = ["gzip", "deflate", "bare deflate", "zstd"]


def unpacked(name: str, data: bytes, cuts: list[int], most: int = MOST) -> bytes:
    """Return a body that came in pieces."""
    body = UnpackedBody(PACKERS[name][0], "http://a.example/", most)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(places):
        body.take(data[start:stop])
    return body.whole()


@given(st.sampled_from([*PACKERS]), st.binary(max_size=3000), st.lists(st.integers(0, 4000), max_size=5))
def test_a_body_is_the_same_in_whatever_pieces_it_comes(name: str, plain: bytes, cuts: list[int]) -> None:
    assert unpacked(name, PACKERS[name][1](plain), cuts) == plain


@given(
    st.sampled_from(["gzip", "zstd"]), st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.integers(0, 999)
)
def test_several_packed_pieces_are_one_body(name: str, parts: list[bytes], cut: int) -> None:
    data = b"".join(map(PACKERS[name][1], parts))
    assert unpacked(name, data, [cut]) == b"".join(parts)


@pytest.mark.parametrize("name", PACKED)
def test_a_body_whose_end_is_missing_is_not_taken_for_whole(name: str) -> None:
    data = PACKERS[name][1](PLAIN)
    for length in range(1, len(data)):
        with pytest.raises(FetchFailed) as told:
            unpacked(name, data[:length], [])
        assert told.value.kind == "encoding"


@pytest.mark.parametrize("name", PACKED)
def test_garbage_is_told(name: str) -> None:
    with pytest.raises(FetchFailed) as told:
        unpacked(name, b"\x07garbage" * 10, [])
    assert told.value.kind == "encoding"


@pytest.mark.parametrize("name", [*PACKERS])
def test_a_body_may_be_as_large_as_it_may_be_and_no_larger(name: str) -> None:
    pack = PACKERS[name][1]
    assert len(unpacked(name, pack(bytes(MOST)), [])) == MOST
    with pytest.raises(FetchFailed) as told:
        unpacked(name, pack(bytes(MOST + 1)), [])
    assert told.value.kind == "too-large"


@pytest.mark.parametrize("name", PACKED)
def test_a_bomb_stops_when_it_is_too_large_not_when_it_is_unpacked(name: str) -> None:
    body = UnpackedBody(PACKERS[name][0], "http://bomb.example/", MOST)
    with pytest.raises(FetchFailed, match="more than 10,000 bytes unpacked"):
        body.take(PACKERS[name][1](bytes(1 << 24)))
    assert len(body._body) == MOST + 1


def test_very_many_packed_pieces_are_refused() -> None:
    for name in ("gzip", "zstd"):
        with pytest.raises(FetchFailed, match="more than 100 pieces"):
            unpacked(name, PACKERS[name][1](b"") * 101, [])


def test_what_follows_a_packed_body_is_no_part_of_it() -> None:
    for name in PACKED:
        assert unpacked(name, PACKERS[name][1](PLAIN) + bytes(50), [], MOST) == PLAIN


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "compress", "gzip;q=1", "aes128gcm", "gzip,br"])
def test_an_encoding_that_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(FetchFailed, match="is not read") as told:
        UnpackedBody(encoding, "http://a.example/", MOST)
    assert told.value.kind == "encoding"
