"""Several messages as one, and back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.wire import bodies
from clarion.wire.bundles import BUNDLED_MAX, Frames, bundled, is_bundle, unbundled
from clarion.wire.frames import (
    BUNDLE_VERSION,
    MAGIC,
    PREFIX,
    BadFrames,
    Kind,
    UnknownVersion,
    pack_frames,
    parse_request,
)

_frames = st.lists(st.binary(max_size=20), min_size=1, max_size=4)
_HEAD = PREFIX.pack(MAGIC, BUNDLE_VERSION, Kind.BUNDLE, 0)


def _opened(sent: list[Frames]) -> list[Frames]:
    return [message for frames in sent for message in (unbundled(frames) if is_bundle(frames) else [frames])]


def _request(number: int, size: int = 0) -> Frames:
    return pack_frames(Kind.STATE, number, bodies.AskState(bytes(size)))


@given(st.lists(_frames, max_size=3 * BUNDLED_MAX))
def test_all_come_out_in_their_order(rest: list[list[bytes]]) -> None:
    messages = [[*_request(number), *more] for number, more in enumerate(rest)]
    assert [list(message) for message in _opened(bundled(messages))] == messages


def test_one_alone_is_no_bundle_nor_is_one_that_is_large() -> None:
    small, large = _request(1), _request(2, 100_000)
    assert bundled([small]) == [small]
    assert bundled([small, small, large, small])[1:] == [large, small]


def test_there_is_an_end_to_what_goes_together() -> None:
    many, sizeable = [_request(number) for number in range(BUNDLED_MAX + 1)], [_request(1, 30_000)] * 3
    assert [is_bundle(frames) for frames in bundled(many)] == [True, False]
    assert _opened(bundled(many)) == many
    assert [is_bundle(frames) for frames in bundled(sizeable)] == [True, False]


@pytest.mark.parametrize(
    "frames",
    [
        [_HEAD],
        [_HEAD, b"", b"1", b"2"],
        [_HEAD, b"\xc1", b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([]), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([2])],
        [_HEAD, msgspec.msgpack.encode([3]), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([1]), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([-1, 3]), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([0, 2]), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([2**63]), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode("2"), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([1] * (BUNDLED_MAX + 1)), *[b"1"] * (BUNDLED_MAX + 1)],
        [_HEAD, msgspec.msgpack.encode([1] * 1_000_000), b"1", b"2"],
        [_HEAD, msgspec.msgpack.encode([2]), b"1", bytes(1 << 20)],
    ],
)
def test_what_is_none_is_told(frames: Frames) -> None:
    assert is_bundle(frames)
    with pytest.raises(BadFrames):
        unbundled(frames)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_garbage_is_told_or_comes_out_whole(rest: list[bytes]) -> None:
    try:
        found = unbundled([_HEAD, *rest])
    except BadFrames:
        return
    assert [frame for message in found for frame in message] == rest[1:]


def test_a_bundle_in_a_bundle_is_no_request() -> None:
    inner = [_HEAD, msgspec.msgpack.encode([1]), b"1"]
    (outer,) = bundled([inner, _request(3)])
    with pytest.raises(BadFrames, match="kind 49 is not known"):
        parse_request(unbundled(outer)[0])


@pytest.mark.parametrize("head", [PREFIX.pack(MAGIC, 99, Kind.BUNDLE, 0), PREFIX.pack(b"XX", 3, Kind.BUNDLE, 0)])
def test_of_another_version_or_protocol_it_is_none(head: bytes) -> None:
    frames = [head, msgspec.msgpack.encode([2])]
    assert not is_bundle(frames)
    with pytest.raises((UnknownVersion, BadFrames)):
        parse_request(frames)
