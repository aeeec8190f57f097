"""Whatever a stranger sends gets INVALID or a refusal with a reason, and does no harm."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import zmq
from tests.integration.conftest import StartBroker
from tests.integration.shell import run, without_waits
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, MessagesUnreadable, Publisher, Subscriber
from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.batch import _checksum, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import LINK_KINDS, MAGIC, PREFIX, Kind, unpack_prefix

_encode = msgspec.msgpack.encode
HUGE = 2**64 - 1


class Stranger:
    """A raw DEALER that says what it likes."""

    def __init__(self, url: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(url)

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def hear(self) -> tuple[int, int, bytes]:
        """Return (kind, request id, body) of the next answer."""
        assert self._socket.poll(int(1000 * DEADLINE_S)), "no answer"
        frames = self._socket.recv_multipart()
        _, kind, request_id = unpack_prefix(frames[0])
        return kind, request_id, frames[1]

    def refused(self, *frames: bytes) -> bodies.Refused:
        """Send, and expect to be refused with a reason."""
        self.send(*frames)
        kind, request_id, body = self.hear()
        refusal = msgspec.msgpack.decode(body, type=bodies.Refused)
        assert kind in (Kind.INVALID, Kind.REFUSED, Kind.NOT_SUBSCRIBED, Kind.NO_SUBSCRIBER), kind
        assert refusal.text
        if len(frames[0]) == PREFIX.size and frames[0].startswith(MAGIC):
            assert request_id == PREFIX.unpack(frames[0])[3]
        return refusal

    def ask(self, kind: int, body: object, *blobs: bytes) -> tuple[int, bytes]:
        """Ask properly; return kind and body of the answer."""
        self.send(prefix(kind), _encode(body), *blobs)
        answer, _, packed = self.hear()
        return answer, packed

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()


def prefix(kind: int, request_id: int = 77, version: int = 1, magic: bytes = MAGIC) -> bytes:
    return PREFIX.pack(magic, version, kind, request_id)


@contextmanager
def harmless(url: str) -> Iterator[Stranger]:
    """Return a stranger, and check that earlier data and later service do not suffer from it."""
    name = os.urandom(8).hex()
    with Subscriber(url, name) as reader, Publisher(url) as publisher:
        reader.subscribe(name)
        publisher.put_many(name, [b"earlier %d" % place for place in range(100)]).result(30)
        stranger = Stranger(url)
        try:
            yield stranger
        finally:
            stranger.close()
        publisher.put(name, b"later").result(30)
        found: list[bytes] = []
        while len(found) < 101:
            found += [message.payload for message in reader.get(name, wait_s=30)]
        assert found == [*(b"earlier %d" % place for place in range(100)), b"later"]
        reader.flush_acks()
        reader.unsubscribe(name)


def test_frames_that_are_no_request(url: str) -> None:
    good = _encode(bodies.AskStats())
    with harmless(url) as stranger:
        for frames in (
            [b""], [b"garbage"], [b"x" * 12], [b"", b""], [os.urandom(12), os.urandom(30)], [b"\x00" * 5000],
            [prefix(Kind.STATS)], [prefix(Kind.STATS), good, b""], [prefix(Kind.STATS), good, b"", b""],
            [prefix(Kind.PUT), _encode(bodies.Put(b"t"))], [b"f"] * 1000,
            [prefix(Kind.STATS, magic=b"XX"), good], [prefix(Kind.STATS) + b"\x00", good],
        ):  # fmt: skip
            assert stranger.refused(*frames).code == Code.MALFORMED


def test_other_versions_are_told_which_are_spoken(url: str) -> None:
    with harmless(url) as stranger:
        for version in (0, 4, 255):
            refusal = stranger.refused(prefix(Kind.STATS, version=version), _encode(bodies.AskStats()))
            assert refusal.code == Code.VERSION
            assert "1 to 3" in refusal.text
        kind, body = stranger.ask(Kind.HELLO, bodies.Hello(5, 9, "from the future"))
        assert (kind, msgspec.msgpack.decode(body, type=bodies.Refused).code) == (Kind.INVALID, Code.VERSION)
        kind, _ = stranger.ask(Kind.HELLO, bodies.Hello(0, HUGE, "polyglot"))
        assert kind == Kind.ACK


WITH_BATCHES = {Kind.PUT, Kind.PUT_MANY, Kind.STAGE, Kind.TRANSACT}
REQUESTS = sorted(WITH_BATCHES | {
    Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.GET, Kind.ACK, Kind.HELLO, Kind.REGISTER, Kind.FORGET, Kind.ATTACH,
    Kind.CONFIGURE, Kind.TOPICS, Kind.STATS, Kind.TAKE, Kind.RENEW, Kind.RETURN, Kind.DETACH, Kind.STATE,
    Kind.COMMIT_STAGED, Kind.DESCRIBE, Kind.SEEK, Kind.PURGE, Kind.DELETE, Kind.READ, Kind.MATCHES, Kind.DEAD,
    Kind.REPORT, Kind.FIND_OFFSET, Kind.OPEN, Kind.BEGIN_FETCH, Kind.FETCH, Kind.ACK_MANY, Kind.DESCRIBE_MANY,
})  # fmt: skip


def test_kinds_that_are_none(url: str) -> None:
    with harmless(url) as stranger:
        for kind in sorted(set(range(256)) - set(REQUESTS) - LINK_KINDS):
            assert "kind" in stranger.refused(prefix(kind), _encode([])).text


WRONG_BODIES: list[Any] = [
    None, True, 1, -1.5, "text", b"bytes", {}, {"a": 1}, [None] * 7, [[]] * 7, [{}] * 7, ["text"] * 7, [-1] * 7,
    [HUGE] * 7, [1.5] * 7, [b"t", b"n", "x", [[1]]], [b"t", b"n", 1, [[1, 2, 3]]], [b"t", b"n", 1, [["a", "b"]]],
]  # fmt: skip


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: Kind(kind).name)
def test_bodies_of_wrong_types(url: str, kind: int) -> None:
    blobs = [b"blob"] if kind in WITH_BATCHES else []
    raw = [b"", b"\xc1", b"\xff" * 100, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000]
    with harmless(url) as stranger:
        for body in [*map(_encode, WRONG_BODIES), *raw]:
            stranger.send(prefix(kind), body, *blobs)
            answer, request_id, packed = stranger.hear()
            assert request_id == 77
            if answer != Kind.ACK:  # the few that happen to be a proper request
                assert msgspec.msgpack.decode(packed, type=bodies.Refused).text


def test_absurd_numbers(url: str) -> None:
    with harmless(url) as stranger:
        stranger.ask(Kind.SUBSCRIBE, bodies.Subscribe(b"absurd", b"n"))
        _, packed = stranger.ask(Kind.ATTACH, bodies.Attach(b"absurd", b"n", os.urandom(16)))
        token = msgspec.msgpack.decode(packed, type=bodies.Attached).token
        for number in (-(2**63), -1, 2**31, 2**63 - 1, 2**63, HUGE):
            answers = [
                stranger.ask(Kind.GET, [b"absurd", b"n", token, number, number, number, 0])[0],
                stranger.ask(Kind.GET, [b"absurd", b"n", token, 0, number, number, min(number, 0)])[0],
                stranger.ask(Kind.GET, [b"absurd", b"n", number, 0, 1, 1, 0])[0],
                stranger.ask(Kind.ACK, [b"absurd", b"n", token, [[number, number]]])[0],
                stranger.ask(Kind.ACK, [b"absurd", b"n", token, [[0, number]]])[0],
                stranger.ask(Kind.ACK, [b"absurd", b"n", number, [[0, 1]]])[0],
                stranger.ask(Kind.FORGET, [number])[0],
                stranger.ask(Kind.TOPICS, [b"", number])[0],
                stranger.ask(Kind.SUBSCRIBE, [b"absurd", b"m", "offset", number])[0],
                stranger.ask(Kind.SUBSCRIBE, [b"absurd", b"t%d" % number, "time", number])[0],
                stranger.ask(Kind.HELLO, [number, number, ""])[0],
            ]
            assert all(answer in set(Kind) for answer in answers)
        assert stranger.refused(prefix(Kind.ACK), _encode([b"absurd", b"n", token, [[0, 1]] * 70_000]))
        assert stranger.refused(prefix(Kind.REGISTER), _encode([b"short"])).code == Code.MALFORMED
        assert stranger.refused(prefix(Kind.REGISTER), _encode([b"n" * 65])).code == Code.MALFORMED
        assert stranger.refused(prefix(Kind.ATTACH), _encode([b"absurd", b"n", b""])).code == Code.MALFORMED
        assert stranger.refused(prefix(Kind.CONFIGURE), _encode([b"absurd", "sometimes"])).code == Code.MALFORMED
        assert stranger.refused(prefix(Kind.CONFIGURE), _encode([b"", "keep"])).code == Code.MALFORMED
        assert stranger.refused(prefix(Kind.SUBSCRIBE), _encode([b"absurd", b"x", "when"])).code == Code.MALFORMED
        assert stranger.refused(prefix(Kind.SUBSCRIBE), _encode([b"t" * 1025, b"x"])).code == Code.TOO_LARGE


ABSURD = (-(2**63), -1, 2**31, 2**63 - 1, 2**63, HUGE)
_BIG = 2**62


def test_absurd_numbers_of_one_who_shares(url: str) -> None:
    with harmless(url) as stranger:
        shared = SubscriptionOptions(shared=True, lease_s=60)
        stranger.ask(Kind.SUBSCRIBE, bodies.Subscribe(b"lent", b"n", options=shared))
        _, packed = stranger.ask(Kind.ATTACH, bodies.Attach(b"lent", b"n", os.urandom(16), HUGE))
        token = msgspec.msgpack.decode(packed, type=bodies.Attached).token
        for number in ABSURD:
            for kind, body in [
                (Kind.TAKE, [b"lent", b"n", token, number, number, number, 0]),
                (Kind.TAKE, [b"lent", b"n", number, 1, 1, 1, 0]),
                (Kind.RENEW, [b"lent", b"n", token, [[0, number, 1], [0, number, number]]]),
                (Kind.RENEW, [b"lent", b"n", token, [[number, 0, 1], [number, number, 0]]]),
                (Kind.RETURN, [b"lent", b"n", token, [[0, number, 1], [number, 5, number]], True, number]),
                (Kind.RETURN, [b"lent", b"n", token, [[0, _BIG, 1]], False]),
                (Kind.DETACH, [b"lent", b"n", number, [[0, number]]]),
                (Kind.ACK, [b"lent", b"n", token, [[0, number], [number, number]]]),
                (Kind.SEEK, [b"lent", b"n", "offset", number]),
                (Kind.SEEK, [b"lent", b"n", "time", number]),
                (Kind.PURGE, [b"lent", number]),
                (Kind.READ, [b"lent", number, number, number]),
                (Kind.MATCHES, [b"lent/*", b"n", number, min(number, 0)]),
                (Kind.DEAD, [b"lent", "drop", [[number, number], [0, number]]]),
                (Kind.COMMIT_STAGED, [b"w", number, None, True, number]),
                (Kind.CONFIGURE, [b"lent", "", {"max_bytes": number}]),
                (Kind.CONFIGURE, [b"lent", "", {"max_age_s": float(number)}]),
                (Kind.SUBSCRIBE, [b"lent", b"m", "new", 0, {"shared": True, "lease_s": number}]),
                (Kind.SUBSCRIBE, [b"lent", b"m", "new", 0, {"shared": True, "max_attempts": number}]),
            ]:
                assert stranger.ask(kind, body)[0] in set(Kind), (Kind(kind).name, body)
            _, packed = stranger.ask(Kind.ATTACH, bodies.Attach(b"lent", b"n", os.urandom(16)))
            token = msgspec.msgpack.decode(packed, type=bodies.Attached).token


def test_absurd_numbers_of_one_who_transacts(url: str) -> None:
    with harmless(url) as stranger:
        _, packed = stranger.ask(Kind.REGISTER, bodies.Register(os.urandom(16)))
        me = msgspec.msgpack.decode(packed, type=bodies.Registered)
        good = _batch(me)
        for number in ABSURD:
            for body in [
                [number, 1, [], [], []],
                [me.publisher, number, [], [], []],
                [me.publisher, 1, [[b"t", b"n", number, [[number, number]]]], [], []],
                [me.publisher, 1, [], [[b"t", number, number, b""]], []],
                [me.publisher, 1, [], [[b"t", len(good), 0, struct.pack("<Q", number % 2**64)]], []],
                [me.publisher, 1, [], [], [[b"s", b"v", number]]],
                [me.publisher, 1, [], [[b"t/*", len(good), 0, b""]], []],
            ]:
                answer, _ = stranger.ask(Kind.TRANSACT, body, good)
                assert answer in (Kind.INVALID, Kind.REFUSED), body
            for place in ([b"t", b"w", number, b"p", 0], [b"t", b"w", 1, b"p", number]):
                stranger.ask(Kind.STAGE, place, good)
            for due in (struct.pack("<2Q", number % 2**64, 0), b"\xff" * 16, b"odd"):
                assert stranger.ask(Kind.PUT, [b"nobody", number, due], good)[0] in set(Kind)


def _batch(registered: bodies.Registered, **changed: Any) -> bytes:
    header: dict[str, Any] = {"broker": registered.broker, "publisher": registered.publisher, "stamp": 1, "number": 1}
    return bytes(encode_batch([b"one", b"two"], **{**header, **changed}))


def test_batches_that_are_damaged_or_foreign(url: str) -> None:
    with harmless(url) as stranger, Subscriber(url, "reader") as reader:
        reader.subscribe("batches")
        _, packed = stranger.ask(Kind.REGISTER, bodies.Register(os.urandom(16)))
        me = msgspec.msgpack.decode(packed, type=bodies.Registered)
        put = [prefix(Kind.PUT), _encode(bodies.Put(b"batches"))]
        good = _batch(me)
        dice = random.Random(3)
        for _ in range(100):
            damaged = bytearray(good)
            damaged[dice.randrange(len(good))] ^= 1 << dice.randrange(8)
            assert stranger.refused(*put, bytes(damaged)).code == Code.MALFORMED
        for cut in range(0, len(good), 7):
            assert stranger.refused(*put, good[:cut]).code == Code.MALFORMED
        assert stranger.refused(*put, good + b"more").code == Code.MALFORMED
        assert "broker" in stranger.refused(*put, _batch(me, broker=me.broker ^ 1)).text
        assert stranger.refused(*put, _batch(me, publisher=0xFFFF_FFFF)).code == Code.PUBLISHER_EXPIRED
        assert stranger.refused(*put, _batch(me, number=5)).code == Code.GAP
        assert stranger.refused(*put, _batch(me, number=HUGE)).code == Code.GAP
        assert stranger.refused(*put, _batch(me, number=0))
        assert stranger.refused(*put, _batch(me, stamp=1 << 48)).code == Code.MALFORMED
        assert stranger.refused(prefix(Kind.PUT), _encode(bodies.Put(b"")), good).text
        assert stranger.ask(Kind.PUT, bodies.Put(b"batches"), good)[0] == Kind.ACK
        assert stranger.refused(*put, _batch(me, stamp=2)).code == Code.CHECKSUM_DIFFERS
        assert stranger.ask(Kind.PUT, bodies.Put(b"batches"), good)[0] == Kind.ACK  # again: the same receipt
        assert [message.payload for message in reader.get("batches", wait_s=30)] == [b"one", b"two"]
        assert reader.get("batches", wait_s=0) == []


def test_a_batch_whose_columns_lie_is_never_more_than_its_publishers_own_harm(url: str) -> None:
    """Offsets inside a column are the publisher's; a reader gets some bytes or an error, and the broker lives."""
    with harmless(url) as stranger, Subscriber(url, "reader") as reader:
        reader.subscribe("lies")
        _, packed = stranger.ask(Kind.REGISTER, bodies.Register(os.urandom(16)))
        me = msgspec.msgpack.decode(packed, type=bodies.Registered)
        lying = bytearray(_batch(me))
        struct.pack_into("<i", lying, 64 + 4, -(2**31))  # where the second message begins
        struct.pack_into("<Q", lying, 8, _checksum(lying))
        answer, _ = stranger.ask(Kind.PUT, bodies.Put(b"lies"), bytes(lying))
        assert answer in (Kind.ACK, Kind.INVALID)
        if answer == Kind.ACK:
            assert len(reader.get("lies", max_messages=1, wait_s=30)) == 1


def _unreadable(me: bodies.Registered, number: int, count: int = 3) -> bytes:
    """Return a batch that the broker takes and nobody can open: what is compressed in it is no zstd frame."""
    packed = bytearray(
        encode_batch(
            [b"x" * 200] * count, broker=me.broker, publisher=me.publisher, stamp=number, number=number, compressed=True
        )
    )
    packed[64:68] = b"nope"
    struct.pack_into("<Q", packed, 8, _checksum(packed))
    return bytes(packed)


@pytest.mark.parametrize("way", ["get", "stream", "pattern"])
def test_a_batch_that_nobody_can_open_is_told_once_and_holds_no_reader_up(url: str, way: str) -> None:
    topic = f"closed/{way}"
    pattern = "closed/pattern/#" if way == "pattern" else topic
    with harmless(url) as stranger, Subscriber(url, f"{way} reader") as reader, Publisher(url) as publisher:
        reader.subscribe(pattern)
        topic = topic if way != "pattern" else "closed/pattern/here"
        _, packed = stranger.ask(Kind.REGISTER, bodies.Register(os.urandom(16)))
        me = msgspec.msgpack.decode(packed, type=bodies.Registered)
        publisher.put(topic, b"before").result(DEADLINE_S)
        assert stranger.ask(Kind.PUT, bodies.Put(topic.encode()), _unreadable(me, 1))[0] == Kind.ACK
        publisher.put(topic, b"after").result(DEADLINE_S)
        heard: list[Any] = []
        while len(heard) < 3:
            try:
                if way == "stream":
                    heard += [next(iter(reader.stream(pattern))).payload]
                else:
                    heard += [message.payload for message in reader.get(pattern, wait_s=DEADLINE_S)]
            except MessagesUnreadable as error:
                heard.append((error.topic.decode(), error.start, error.stop, error.raw[64:68]))
        assert heard == [b"before", (topic, 1, 4, b"nope"), b"after"]
        reader.get(pattern, wait_s=0.0)
        reader.flush_acks()
    with Admin(url) as admin:
        assert admin.describe_subscription(topic, f"{way} reader").lag == 0


def test_who_looks_at_a_topic_is_told_of_a_batch_that_nobody_can_open_and_sees_the_others(url: str) -> None:
    with harmless(url) as stranger, Publisher(url) as publisher, Admin(url) as admin:
        admin.configure_topic("looked at", retention="keep")
        _, packed = stranger.ask(Kind.REGISTER, bodies.Register(os.urandom(16)))
        me = msgspec.msgpack.decode(packed, type=bodies.Registered)
        publisher.put("looked at", b"before").result(DEADLINE_S)
        assert stranger.ask(Kind.PUT, bodies.Put(b"looked at"), _unreadable(me, 1))[0] == Kind.ACK
        publisher.put("looked at", b"after").result(DEADLINE_S)
    done = run("browse", "looked at", "--json", "--url", url)
    assert done.returncode == 0
    assert [json.loads(line)["payload"] for line in done.stdout.splitlines()] == ["before", "after"]
    (told,) = [json.loads(line)["note"] for line in without_waits(done.stderr).splitlines()]
    assert (told["code"], told["topic"], told["start"], told["stop"]) == ("MessagesUnreadable", "looked at", 1, 4)


def test_a_batch_that_nobody_can_open_becomes_dead_letters_of_those_who_share(url: str) -> None:
    with harmless(url) as stranger, Subscriber(url, "sharers", ack="explicit") as reader, Admin(url) as admin:
        reader.subscribe("closed jobs", shared=True, max_attempts=2)
        _, packed = stranger.ask(Kind.REGISTER, bodies.Register(os.urandom(16)))
        me = msgspec.msgpack.decode(packed, type=bodies.Registered)
        closed = _unreadable(me, 1)
        assert stranger.ask(Kind.PUT, bodies.Put(b"closed jobs"), closed)[0] == Kind.ACK
        told = 0
        while admin.describe_subscription("closed jobs", "sharers").lag:
            try:
                assert reader.get("closed jobs", wait_s=0.2) == []
            except MessagesUnreadable:
                told += 1
        assert told >= 2
        eventually(lambda: len(admin.dead_letters("closed jobs")) == 3, "the last of them is on disk")
        letters = admin.dead_letters("closed jobs")
        assert sorted(letter.payload for letter in letters) == [b"", b"", closed], "once for all of it"


def test_headers_that_are_none_hold_no_reader_up(url: str) -> None:
    """Neither a map of text to bytes: the message itself is there, and says so when its headers are asked for."""
    with harmless(url) as stranger, Subscriber(url, "reader of headers") as reader:
        reader.subscribe("headers")
        _, packed = stranger.ask(Kind.REGISTER, bodies.Register(os.urandom(16)))
        me = msgspec.msgpack.decode(packed, type=bodies.Registered)
        lying = bytearray(_batch(me, headers=[{"n": b"1"}] * 2))
        at = lying.index(_encode({"n": b"1"}))
        lying[at] = 0xC1  # which is nothing in MessagePack
        lying[lying.index(_encode({"n": b"1"})) + 2] = 0xFF  # no UTF-8
        struct.pack_into("<Q", lying, 8, _checksum(lying))
        assert stranger.ask(Kind.PUT, bodies.Put(b"headers"), bytes(lying))[0] == Kind.ACK
        for message in reader.get("headers", wait_s=DEADLINE_S):
            with pytest.raises(MessagesUnreadable, match="headers of message"):
                message.headers  # noqa: B018
        assert reader.get("headers", wait_s=0.0) == []


def test_a_frame_beyond_the_limit_ends_the_connection_and_nothing_else(start_broker: StartBroker) -> None:
    broker = start_broker(max_batch_bytes=100_000)
    with harmless(broker.url) as stranger:
        stranger.send(prefix(Kind.PUT), _encode(bodies.Put(b"t")), bytes(10_000_000))
        stranger.send(prefix(Kind.STATS), _encode(bodies.AskStats()))
        kind, _, _ = stranger.hear()  # on the connection that ZeroMQ made anew
        assert kind == Kind.ACK


def test_bytes_that_are_not_even_zeromq(url: str) -> None:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    dice = random.Random(4)
    with harmless(url):
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as raw:
                raw.sendall(
                    dice.choice([b"GET / HTTP/1.1\r\n\r\n", dice.randbytes(200), b"\xff" + bytes(8) + b"\x7f", b""])
                )


def test_connections_that_vanish_leave_nothing_behind(start_broker: StartBroker) -> None:
    broker = start_broker(max_get_wait_s=3.0)
    with Subscriber(broker.url, "0") as reader, Admin(broker.url) as admin:
        for name in range(200):
            with Subscriber(broker.url, f"{name}") as each:
                each.subscribe("vanish")
        strangers = [Stranger(broker.url) for _ in range(200)]
        gets = [_attach(stranger, b"%d" % name) for name, stranger in enumerate(strangers)]
        for stranger, get in zip(strangers, gets, strict=True):  # all at once, as none waits for long
            stranger.send(prefix(Kind.GET), _encode(get))
        eventually(lambda: admin.stats()["waiting_gets"] > 100, "most of them wait")
        for stranger in strangers:
            stranger.close()
        eventually(lambda: admin.stats()["waiting_gets"] == 0, "their gets are forgotten")
        with Publisher(broker.url) as publisher:
            publisher.put("vanish", b"still here").result(30)
        assert [message.payload for message in reader.get("vanish", wait_s=30)] == [b"still here"]


def _attach(stranger: Stranger, name: bytes) -> bodies.Get:
    """Attach; return a get that waits for long."""
    _, packed = stranger.ask(Kind.ATTACH, bodies.Attach(b"vanish", name, os.urandom(16)))
    token = msgspec.msgpack.decode(packed, type=bodies.Attached).token
    return bodies.Get(b"vanish", name, token, 0, 1, 1, 3_600_000)
