"""What else may come to a gateway's port: garbage, the slow, the many, the vanished. It goes on."""

from __future__ import annotations

import http.client
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from tests.integration.gateway_process import Answer, GatewayProcess
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Subscriber

HEAD = b"POST /topics/a HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def hasty(url: str) -> Iterator[GatewayProcess]:
    """A gateway with little patience."""
    with GatewayProcess(url, "--read-timeout", "0.5", "--max-connections", "20") as started:
        eventually(started.connected, "the gateway has its broker")
        yield started


@pytest.fixture(scope="module")
def narrow(url: str) -> Iterator[GatewayProcess]:
    """A gateway that takes few connections."""
    with GatewayProcess(url, "--max-connections", "4") as started:
        eventually(started.connected, "the gateway has its broker")
        yield started


def _connect(gateway: GatewayProcess) -> socket.socket:
    connection = socket.create_connection(gateway.address)
    connection.settimeout(DEADLINE_S)
    return connection


def _rest(connection: socket.socket) -> bytes:
    """Return everything until the other side closes; a reset is an end, too."""
    found = b""
    try:
        while some := connection.recv(65_536):
            found += some
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\r\n\r\n",
        b"\x00\xff\xfe" * 1000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # a TLS hello
        b"POST /topics/a HTTP/9.9\r\n\r\n",
        b"POST /topics/" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        HEAD + b"Clarion-Key: " + b"k" * 100_000 + b"\r\n\r\n",
        HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + b"\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nhello\r\n",
        HEAD + b"Clarion-Key: \xff\xfe\r\nContent-Length: 1\r\n\r\nx",
    ],
)
def test_garbage_is_answered_with_400_and_hurts_nobody(hasty: GatewayProcess, garbage: bytes) -> None:
    before = hasty.get("/stats").told["accepted"]
    with _connect(hasty) as connection:
        connection.sendall(garbage)
        answer = _rest(connection)
    assert answer.split(b" ", 2)[1:2] in ([b"400"], [])  # a reset may swallow the answer
    assert hasty.get("/stats").told["accepted"] == before
    assert hasty.connected()


def test_random_bytes_hurt_nobody(hasty: GatewayProcess) -> None:
    dice = random.Random(1)
    for _ in range(50):
        with _connect(hasty) as connection:
            connection.sendall(HEAD[: dice.randrange(len(HEAD))] + dice.randbytes(dice.randrange(200)))
    eventually(hasty.connected, "there is room for others again")
    eventually(lambda: hasty.get("/stats").told["connections"] == 1, "all others are gone")


def test_who_sends_no_request_is_disconnected(hasty: GatewayProcess) -> None:
    with _connect(hasty) as silent, _connect(hasty) as slow:
        slow.sendall(HEAD)
        assert _rest(slow) == b""
        assert _rest(silent) == b""


def test_a_body_that_does_not_come_is_408_and_holds_no_room(hasty: GatewayProcess) -> None:
    before = hasty.get("/stats").told["accepted"]
    with _connect(hasty) as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 999)
        answer = b""
        while b"}" not in answer:
            answer += connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"nothing was queued" in answer
    stats = hasty.get("/stats").told
    assert (stats["buffer"]["bytes"], stats["accepted"]) == (0, before)


def test_a_client_that_vanishes_holds_no_room_and_is_nobodys_mistake(url: str) -> None:
    with GatewayProcess(url) as gateway:
        with _connect(gateway) as connection:
            connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000)
            eventually(lambda: gateway.get("/stats").told["buffer"]["bytes"] == 50_000, "half of it has come")
        eventually(lambda: gateway.get("/stats").told["buffer"]["bytes"] == 0, "it is given back")
        assert gateway.get("/stats").told["accepted"] == 0
        _, logged = gateway.stop()
    assert {line["level"] for line in logged} == {"info"}


def _send_until_nothing_is_taken(connection: socket.socket, request: bytes) -> None:
    connection.settimeout(0.1)
    try:
        while True:
            connection.sendall(request)
    except TimeoutError:
        pass


def test_who_does_not_read_the_answers_is_disconnected(hasty: GatewayProcess) -> None:
    with _connect(hasty) as connection:
        _send_until_nothing_is_taken(connection, b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
        eventually(lambda: hasty.get("/stats").told["connections"] == 1, "it is gone")


def test_connections_are_bounded_and_who_is_beyond_is_told(narrow: GatewayProcess) -> None:
    held: list[socket.socket] = []
    beyond: list[Answer] = []

    def is_turned_away() -> bool:
        held.append(_connect(narrow))
        beyond.append(narrow.post("a", b"x"))
        return beyond[-1].status == 503

    eventually(is_turned_away, "there is no room for one more")
    assert len(held) >= 3  # and who asked
    assert beyond[-1].told["error"] == "TooManyConnections"
    assert beyond[-1].headers["retry-after"] == "1"
    for connection in held:
        connection.close()
    eventually(lambda: narrow.post("a", b"x").status == 404, "there is room again")
    assert narrow.get("/stats").told["connections_turned_away"] >= 1


def test_connections_that_come_all_at_once_are_bounded(narrow: GatewayProcess) -> None:
    eventually(lambda: narrow.get("/stats").told["connections"] == 1, "nobody else is there")
    before = narrow.get("/stats").told["connections_turned_away"]
    narrow.process.send_signal(signal.SIGSTOP)
    held = [_connect(narrow) for _ in range(20)]
    narrow.process.send_signal(signal.SIGCONT)
    for connection in held[4:]:
        assert _rest(connection).startswith(b"HTTP/1.1 503 ")
    for connection in held:
        connection.close()
    eventually(lambda: narrow.get("/stats").status == 200, "there is room again")
    assert narrow.get("/stats").told["connections_turned_away"] >= before + 16


def test_more_connections_than_open_files_are_turned_away_and_the_gateway_goes_on(url: str) -> None:
    with GatewayProcess(url, open_files=420) as gateway:
        eventually(gateway.connected, "the gateway has its broker")
        with ExitStack() as strangers:
            for _ in range(600):
                with suppress(OSError):
                    strangers.enter_context(socket.create_connection(gateway.address, timeout=DEADLINE_S))

        def goes_on() -> bool:
            with suppress(OSError, http.client.HTTPException):  # until the last of them is gone
                return bool(gateway.get("/stats").told.get("connections_turned_away", 0) > 100)
            return False

        eventually(goes_on, "it takes connections again, and has counted those it did not take")
        code, lines = gateway.stop()
    assert code == 0
    assert [line for line in lines if line["level"] != "info"] == []


def test_too_few_open_files_are_told_before_anything_is_accepted(url: str) -> None:
    with pytest.raises(AssertionError, match=r"may open 64 files, which is too few.*Raise the limit"):
        GatewayProcess(url, open_files=64)


def test_a_client_of_http_1_0_gets_the_answer_alone_though_it_asks_first(url: str, hasty: GatewayProcess) -> None:
    with Subscriber(url, "reader") as reader:
        reader.subscribe("old")
        with _connect(hasty) as connection:
            connection.sendall(b"POST /topics/old HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx")
            assert _rest(connection).startswith(b"HTTP/1.0 201 ")
        assert [message.payload for message in reader.get("old", wait_s=DEADLINE_S)] == [b"x"]


def test_requests_sent_ahead_are_answered_in_order(hasty: GatewayProcess) -> None:
    with _connect(hasty) as connection:
        connection.sendall(
            b"".join(HEAD + b"Clarion-TTL: %d\r\nContent-Length: 1\r\n\r\nx" % -number for number in range(9))
        )
        answer = _rest(connection)
    assert answer.count(b"HTTP/1.1 400") == 9
    assert [answer.index(b"not '-%d'" % number) for number in range(1, 9)] == sorted(
        answer.index(b"not '-%d'" % number) for number in range(1, 9)
    )
