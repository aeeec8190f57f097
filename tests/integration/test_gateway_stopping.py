"""A gateway that is told to stop takes no more and finishes what it accepted, or says what it could not."""

from __future__ import annotations

import signal
import socket
import threading

from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.gateway_process import Answer, GatewayProcess
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Subscriber


def test_what_was_accepted_is_stored_before_it_ends(broker: BrokerProcess) -> None:
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("a")
    answers: list[Answer] = []
    with GatewayProcess(broker.url) as gateway:
        idle = gateway.client()
        assert idle.post("a", b"0").status == 201
        broker.send(signal.SIGSTOP)
        waiting = threading.Thread(target=lambda: answers.append(gateway.post("a", b"1")))
        waiting.start()
        eventually(lambda: gateway.get("/stats").told["waiting"] == 1, "it is accepted")
        assert idle.post("a", b"2", Prefer="respond-async").status == 202
        gateway.process.send_signal(signal.SIGINT)
        eventually(gateway.refuses, "it takes no more")
        assert gateway.process.poll() is None
        broker.send(signal.SIGCONT)
        code, logged = gateway.end()
        waiting.join(DEADLINE_S)
        idle.close()
    assert code == 0
    assert [answer.status for answer in answers] == [201]
    assert logged[-1]["message"].startswith("stopped")
    with Subscriber(broker.url, "reader") as reader:
        found: list[bytes] = []
        while len(found) < 3:
            found += [message.payload for message in reader.get("a", wait_s=DEADLINE_S)]
    assert found == [b"0", b"1", b"2"]


def test_a_request_that_was_begun_is_taken_and_answered(broker: BrokerProcess) -> None:
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("a")
    with GatewayProcess(broker.url) as gateway, socket.create_connection(gateway.address) as slow:
        slow.settimeout(DEADLINE_S)
        slow.sendall(b"POST /topics/a HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf ")
        eventually(lambda: gateway.get("/stats").told["buffer"]["bytes"] == 5, "half of it has come")
        gateway.process.send_signal(signal.SIGTERM)
        eventually(gateway.refuses, "it takes no more")
        slow.sendall(b"other")
        answer = slow.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 201 ")
        assert gateway.end()[0] == 0
    with Subscriber(broker.url, "reader") as reader:
        assert [message.payload for message in reader.get("a", wait_s=DEADLINE_S)] == [b"half other"]


def test_who_still_waits_at_the_end_is_told_that_nothing_is_known() -> None:
    answers: list[Answer] = []
    with GatewayProcess(free_url(), "--stop-timeout", "0.5", "--timeout", "1000") as gateway:
        waiting = threading.Thread(target=lambda: answers.append(gateway.post("a", b"1")))
        waiting.start()
        eventually(lambda: gateway.get("/stats").told["waiting"] == 1, "it is accepted")
        code, _ = gateway.stop()
        waiting.join(DEADLINE_S)
    assert code == 4
    assert [(answer.status, answer.told["error"]) for answer in answers] == [(503, "Stopping")]
    assert "not known" in answers[0].told["message"]


def test_what_could_not_be_stored_in_time_is_told_and_the_exit_code_is_4() -> None:
    with GatewayProcess(free_url(), "--stop-timeout", "0.3") as gateway:
        for _ in range(3):
            assert gateway.post("a", b"1", Prefer="respond-async").status == 202
        code, said = gateway.stop()
    assert code == 4
    assert said[-1]["error"]["code"] == "TimedOut"
    assert said[-1]["error"]["message"].startswith("3 messages were accepted and not confirmed")


def test_a_second_signal_ends_it_at_once() -> None:
    with GatewayProcess(free_url(), "--stop-timeout", "1000", "--timeout", "1000") as gateway:
        assert gateway.post("a", b"1", Prefer="respond-async").status == 202
        err = gateway.end_at_once()
        assert gateway.process.returncode == 130
        assert b"1 message accepted and not confirmed" in err
