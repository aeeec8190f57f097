"""Frames become requests, or a reason why not."""

from __future__ import annotations

import pytest

from clarion.wire import bodies
from clarion.wire.frames import (
    MAGIC,
    PREFIX,
    BadFrames,
    Kind,
    UnknownVersion,
    pack_frames,
    parse_request,
    request_id_of,
)


def frames_of(kind: int, body: object, *blobs: bytes, number: int = 9) -> list[bytes]:
    return [bytes(frame) for frame in pack_frames(kind, number, body, blobs)]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.HELLO, bodies.Hello(1, 1, "test")),
        (Kind.SUBSCRIBE, bodies.Subscribe(b"\xff", b"\x00", "offset", 5)),
        (Kind.GET, bodies.Get(b"t", b"n", 1, 2, 3, 4, 5)),
        (Kind.ACK, bodies.Ack(b"t", b"n", 1, ((0, 1), (3, 9)))),
        (Kind.TOPICS, bodies.ListTopics()),
        (Kind.FIND_OFFSET, bodies.FindOffset(b"t", 1_700_000_000_000_000)),
        (Kind.REPORT, bodies.Report(b"t", b"i" * 16, "recheck", 7, 0.05, 35.0, 140.5, -1, 3, 14, 2, 900)),
    ],
)
def test_a_request_comes_back_as_it_was_packed(kind: Kind, body: bodies.Body) -> None:
    request = parse_request(frames_of(kind, body))
    assert (request.kind, request.request_id, request.body, request.blob) == (kind, 9, body, None)


def test_a_put_brings_its_batch_in_a_third_frame() -> None:
    assert parse_request(frames_of(Kind.PUT, bodies.Put(b"t"), b"batch")).blob == b"batch"
    for frames in (frames_of(Kind.PUT, bodies.Put(b"t")), frames_of(Kind.STATS, bodies.AskStats(), b"batch")):
        with pytest.raises(BadFrames, match="frames"):
            parse_request(frames)


def test_fields_that_came_later_may_be_missing_and_those_to_come_are_ignored() -> None:
    assert parse_request(frames_of(Kind.SUBSCRIBE, [b"t", b"n"])).body == bodies.Subscribe(b"t", b"n", "new", 0)
    assert parse_request(frames_of(Kind.DELETE, [b"t"])).body == bodies.Delete(b"t", 0)
    assert parse_request(frames_of(Kind.FORGET, [5, "from the future"])).body == bodies.Forget(5)


@pytest.mark.parametrize("version", [0, 4, 255])
def test_another_version_is_told_apart_from_garbage(version: int) -> None:
    frames = [PREFIX.pack(MAGIC, version, Kind.STATS, 9), b"\x90"]
    with pytest.raises(UnknownVersion, match=f"version {version}"):
        parse_request(frames)
    assert request_id_of(frames) == 9


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"", b"", b"", b""],
        [b"XX" + PREFIX.pack(MAGIC, 1, Kind.STATS, 9)[2:], b"\x90"],
        [PREFIX.pack(MAGIC, 1, Kind.STATS, 9) + b"x", b"\x90"],
        [PREFIX.pack(MAGIC, 1, 200, 9), b"\x90"],
        [PREFIX.pack(MAGIC, 1, Kind.MESSAGES, 9), b"\x90"],
        [PREFIX.pack(MAGIC, 1, Kind.FORGET, 9), b"\x90"],
        [PREFIX.pack(MAGIC, 1, Kind.FORGET, 9), b"\x91\xa1x"],
        [PREFIX.pack(MAGIC, 1, Kind.FORGET, 9), b"\x91\x01\x01"],
        [PREFIX.pack(MAGIC, 1, Kind.CONFIGURE, 9), b"\x92\xc4\x01a\xa1\xff"],
    ],
)
def test_what_is_not_a_request_is_bad_frames(frames: list[bytes]) -> None:
    with pytest.raises(BadFrames):
        parse_request(frames)


def test_the_id_for_a_reply_is_found_where_it_can_be() -> None:
    assert request_id_of([PREFIX.pack(MAGIC, 1, 200, 77)]) == 77
    assert request_id_of([]) == request_id_of([b"garbage"]) == 0
