"""Requests find their replies, whatever the order, the number and the faults on the way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clarion.model.errors import (
    ClarionError,
    Closed,
    MessagesGone,
    NoSubscriber,
    NotSubscribed,
    PermanentError,
    TimedOut,
    Unreachable,
)
from clarion.model.names import REPLY_TO, REQUEST, reply_address
from clarion.model.options import SubscriptionOptions
from clarion.publisher import Publisher
from clarion.publisher import requests as requests_module
from clarion.publisher.requests import Requests
from clarion.publisher.waiting import run_now
from clarion.session.exchange import Reply
from clarion.subscriber import Message, MessageBatch
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.frames import Kind

LONG_S = 30.0


acked: list[bytes] = []


class Acking:
    """A client whose attachments are the payloads, and which notes what is acked."""

    def ack_offsets(self, attachment: bytes, start: int, stop: int) -> None:
        acked.append(attachment)

    def nack_offsets(self, attachment: object, start: int, stop: int, delay_s: float, reason: str) -> None:
        raise AssertionError

    def extend_offsets(self, attachment: object, start: int, stop: int) -> None:
        raise AssertionError


def message(payload: bytes, headers: dict[str, bytes] | None = None, topic: bytes = b"$reply/x") -> Message:
    """Return a message as a subscriber does."""
    packed = encode_batch([payload], headers=[headers], broker=1, publisher=2, stamp=3, number=4)
    batch = Batch.parse(bytes(packed))
    return MessageBatch(topic, batch, 0, 0, 0, 1, payload, holder=Acking()).messages()[0]


class Receipt:
    def __init__(self, error: ClarionError | None) -> None:
        self.error = error

    def result(self, timeout_s: float) -> Receipt:
        if self.error is not None:
            raise self.error
        return self


class Session:
    """Keeps what is asked on it, and says yes to it."""

    url = "tcp://broker"

    def __init__(self) -> None:
        self.called: list[tuple[Kind, Any]] = []
        self.closed = False

    def check_usable(self) -> None:
        if self.closed:
            raise Closed("closed")

    def call(self, kind: Kind, body: bodies.Body, *, timeout_s: float, retry: bool) -> Reply:
        assert retry
        self.called.append((kind, body))
        return Reply(Kind.ACK, b"\x90")


class Reader:
    """Stands for the subscriber: what the test puts into `came` is read, or raised."""

    made: list[Reader]

    def __init__(self, url: str, name: bytes, ack: str, timeout_s: float) -> None:
        assert ack == "explicit"
        self.came: queue.SimpleQueue[Message | ClarionError] = queue.SimpleQueue()
        self.ended: list[bytes] = []
        Reader.made.append(self)

    def stream(self, topic: bytes) -> Iterator[Message]:
        while True:
            came = self.came.get()
            if isinstance(came, ClarionError):
                raise came
            yield came

    def unsubscribe(self, topic: bytes) -> bool:
        self.ended.append(topic)
        return True

    def close(self, *, ack: bool, timeout_s: float | None) -> None:
        assert not ack
        self.came.put(Closed("closed"))


class Serving:
    """A Requests whose puts are answered by `serve(payload, headers)`, on the thread that puts."""

    def __init__(self, serve: Callable[[bytes, dict[str, bytes]], ClarionError | None]) -> None:
        self.session = Session()
        self.puts: list[tuple[bytes, bytes, dict[str, bytes]]] = []
        self._serve = serve
        self.requests = Requests(self.session)  # type: ignore[arg-type]

    def _put(self, topic: bytes, payload: bytes, key: bytes, headers: dict[str, bytes], block_s: float) -> Receipt:
        self.puts.append((topic, payload, headers))
        return Receipt(self._serve(payload, headers))

    def ask(self, payload: bytes, wait_s: float = LONG_S) -> bytes:
        put: Any = self._put
        return run_now(self.requests.request(put, b"service", payload, None, {"mine": b"too"}, wait_s)).payload

    def close(self) -> None:
        run_now(self.requests.close())


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> type[Reader]:
    Reader.made = []
    monkeypatch.setattr(requests_module, "Subscriber", Reader)
    return Reader


def answer_at_once(payload: bytes, headers: dict[str, bytes]) -> None:
    Reader.made[-1].came.put(message(b"re: " + payload, {REQUEST: headers[REQUEST]}))


def say_nothing(payload: bytes, headers: dict[str, bytes]) -> None:
    return None


def test_the_reply_to_a_request_is_given() -> None:
    serving = Serving(answer_at_once)
    assert [serving.ask(payload) for payload in (b"a", b"b")] == [b"re: a", b"re: b"]
    (topic, _, headers), (_, _, other) = serving.puts
    assert (topic, headers["mine"]) == (b"service", b"too")
    assert headers[REPLY_TO] == other[REPLY_TO]
    assert headers[REPLY_TO].startswith(b"$reply/")
    assert len(headers[REQUEST]) == 16
    assert headers[REQUEST] != other[REQUEST]
    serving.close()


def test_one_temporary_topic_is_made_for_all_replies_and_goes_at_the_end() -> None:
    serving = Serving(answer_at_once)
    serving.ask(b"a")
    serving.ask(b"b")
    serving.close()
    (_, configure), (_, subscribe) = serving.session.called
    assert configure == bodies.Configure(configure.topic, changes={"temporary": True})
    options = SubscriptionOptions(expires_s=3600.0)
    assert subscribe == bodies.Subscribe(configure.topic, b"requester", options=options)
    assert [found.ended for found in Reader.made] == [[configure.topic]]


def test_many_threads_get_each_their_own_reply() -> None:
    everybody = threading.Barrier(20)
    held: queue.SimpleQueue[tuple[bytes, dict[str, bytes]]] = queue.SimpleQueue()

    def hold(payload: bytes, headers: dict[str, bytes]) -> None:
        held.put((payload, headers))
        if everybody.wait(LONG_S) == 0:  # one of them answers for all, the last request first
            asked = [held.get() for _ in range(20)]
            for payload, headers in reversed(asked):
                answer_at_once(payload, headers)

    serving = Serving(hold)
    got = dict[bytes, bytes]()

    def ask(payload: bytes) -> None:
        got[payload] = serving.ask(payload)

    threads = [threading.Thread(target=ask, args=(b"%d" % number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {b"%d" % number: b"re: %d" % number for number in range(20)}
    assert len(Reader.made) == 1
    serving.close()


def test_no_reply_in_time_is_told_and_a_late_one_is_dropped_and_counted() -> None:
    serving = Serving(say_nothing)
    with pytest.raises(TimedOut, match=r"no reply to the request on service came within 0.01 s"):
        serving.ask(b"a", wait_s=0.01)
    answer_at_once(b"a", serving.puts[0][2])
    Reader.made[0].came.put(message(b"no headers at all"))
    serving._serve = answer_at_once
    assert serving.ask(b"b") == b"re: b"
    assert serving.requests.late == 2
    serving.close()


def test_replies_are_acked_some_at_a_time_late_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "_ACKED_TOGETHER", 3)
    acked.clear()
    serving = Serving(answer_at_once)
    serving.ask(b"1")
    Reader.made[0].came.put(message(b"late"))
    serving.ask(b"2")
    serving.ask(b"3")
    assert acked == [b"re: 1", b"late", b"re: 2"]
    serving.close()


def test_a_topic_that_nobody_serves_is_told_at_once() -> None:
    serving = Serving(lambda *_: NoSubscriber("nobody"))
    with pytest.raises(NoSubscriber):
        serving.ask(b"a")
    serving.close()


def test_reading_goes_on_after_a_passing_fault() -> None:
    def serve(payload: bytes, headers: dict[str, bytes]) -> None:
        for fault in (Unreachable("away"), MessagesGone("purged")):
            Reader.made[-1].came.put(fault)
        answer_at_once(payload, headers)

    serving = Serving(serve)
    assert serving.ask(b"a") == b"re: a"
    assert len(Reader.made) == 1
    serving.close()


def test_when_replies_cannot_be_read_any_more_the_request_fails_and_the_next_one_starts_anew() -> None:
    serving = Serving(lambda *_: Reader.made[-1].came.put(NotSubscribed("deleted")))
    with pytest.raises(NotSubscribed):
        serving.ask(b"a")
    serving._serve = answer_at_once
    assert serving.ask(b"b") == b"re: b"
    assert serving.puts[0][2][REPLY_TO] != serving.puts[1][2][REPLY_TO]
    assert len(Reader.made) == 2
    serving.close()


def test_who_waits_hears_that_it_is_closed() -> None:
    asked = threading.Event()
    serving = Serving(lambda *_: asked.set())
    failed = list[ClarionError]()

    def ask() -> None:
        try:
            serving.ask(b"a")
        except Closed as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(LONG_S)
    serving.close()
    thread.join()
    assert len(failed) == 1


def test_a_closed_publisher_asks_nothing() -> None:
    serving = Serving(answer_at_once)
    serving.session.closed = True
    with pytest.raises(Closed):
        serving.ask(b"a")
    assert Reader.made == []


def test_a_reply_goes_where_the_request_says() -> None:
    assert reply_address({REPLY_TO: b"$reply/x", REQUEST: b"id", "other": b""}) == (b"$reply/x", {REQUEST: b"id"})


@pytest.mark.parametrize("headers", [None, {REPLY_TO: b"$reply/x"}, {REQUEST: b"id"}, {REPLY_TO: b"", REQUEST: b"id"}])
def test_only_a_request_can_be_replied_to(headers: dict[str, bytes] | None) -> None:
    publisher = Publisher("tcp://127.0.0.1:1")
    try:
        with pytest.raises(PermanentError, match="no request"):
            publisher.reply(message(b"x", headers), b"y")
        assert publisher.stats["buffered_bytes"] == 0
    finally:
        publisher.close()


def test_a_reply_is_put_on_the_topic_of_the_request_with_its_id() -> None:
    publisher = Publisher("tcp://127.0.0.1:1")
    receipt = publisher.reply(message(b"x", {REPLY_TO: b"$reply/x", REQUEST: b"id"}), "y", key="k", headers={"h": "v"})
    builder = receipt._batch.builder
    assert (builder.topic, builder.payloads, builder.keys) == (b"$reply/x", [b"y"], [b"k"])
    assert builder.headers == [{"h": b"v", REQUEST: b"id"}]
    with pytest.raises(TimedOut):
        publisher.close(timeout_s=0.0)
