"""The gateway when the broker is slow, away or killed: refused loudly or stored once, never dropped, never twice."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.gateway_process import Answer, Client, GatewayProcess, make_reader, read_posted
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Subscriber

LINES = "application/x-ndjson"
TOPIC = "load"


@pytest.fixture
def away(broker: BrokerProcess) -> BrokerProcess:
    """A broker that has a subscription, and does not answer."""
    make_reader(broker.url, TOPIC)
    broker.send(signal.SIGSTOP)
    return broker


def test_a_full_buffer_is_429_and_all_that_was_accepted_arrives_once(away: BrokerProcess) -> None:
    away.kill()
    with GatewayProcess(away.url, "--buffer-messages", "50") as gateway:
        assert gateway.get("/health").status == 503
        client = gateway.client()
        answers = [client.post(TOPIC, b"%d" % number, Prefer="respond-async") for number in range(80)]
        client.close()
        accepted = [b"%d" % number for number, answer in enumerate(answers) if answer.status == 202]
        assert accepted == [b"%d" % number for number in range(50)]
        for refused in answers[50:]:
            assert (refused.status, refused.told["error"]) == (429, "BufferFull")
            assert int(refused.headers["retry-after"]) >= 1
            assert "nothing was queued" in refused.told["message"]
            assert "no broker answers" in refused.told["message"]
        stats = gateway.get("/stats").told
        assert (stats["accepted"], stats["waiting"], stats["refused_429"], stats["drops"]) == (50, 50, 30, 0)
        away.start()
        assert read_posted(away.url, TOPIC, 50) == accepted
        eventually(gateway.connected, "the gateway has its broker")
        assert gateway.post(TOPIC, b"after").status == 201
        stats = gateway.get("/stats").told
        assert (stats["stored"], stats["waiting"], stats["buffer"]["messages"]) == (51, 0, 0)
        assert read_posted(away.url, TOPIC, 1) == [b"after"]


def test_lines_that_do_not_all_fit_are_all_refused(away: BrokerProcess) -> None:
    with GatewayProcess(away.url, "--buffer-messages", "10") as gateway:
        six = b"".join(b"%d\n" % number for number in range(6))
        headers = {"Content_Type": LINES, "Prefer": "respond-async"}
        assert gateway.post(TOPIC, six, **headers).status == 202
        assert gateway.post(TOPIC, six, **headers).status == 429
        assert gateway.get("/stats").told["buffer"]["messages"] == 6
        assert gateway.post(TOPIC, b"7\n8\n9\n10\n", **headers).status == 202
        away.send(signal.SIGCONT)
        assert read_posted(away.url, TOPIC, 10) == [b"0", b"1", b"2", b"3", b"4", b"5", b"7", b"8", b"9", b"10"]


def test_bytes_are_bounded_as_messages_are(away: BrokerProcess) -> None:
    with GatewayProcess(away.url, "--buffer-bytes", "100KB") as gateway:
        payload = b"x" * 40_000
        in_pieces = [iter([payload[:30_000], payload[30_000:]]) for _ in range(2)]
        bodies = [payload, in_pieces[0], payload, in_pieces[1]]
        answers = [gateway.post(TOPIC, body, Prefer="respond-async").status for body in bodies]
        assert answers == [202, 202, 429, 429]
        used = gateway.get("/stats").told["buffer"]
        assert (used["messages"], used["bytes"] < 100_000) == (2, True)  # what was refused took nothing
        away.send(signal.SIGCONT)
        assert read_posted(away.url, TOPIC, 2) == [payload, payload]


def test_a_broker_that_does_not_answer_is_503_and_the_message_is_stored_once(broker: BrokerProcess) -> None:
    make_reader(broker.url, TOPIC)
    with GatewayProcess(broker.url, "--timeout", "0.5") as gateway:
        while gateway.post(TOPIC, b"before", Idempotency_Key="before").status != 201:
            pass  # a machine that is busy may need longer than that
        broker.send(signal.SIGSTOP)
        late = gateway.post(TOPIC, b"late", Idempotency_Key="late")
        assert (late.status, late.told["error"]) == (503, "TimedOut")
        assert int(late.headers["retry-after"]) >= 1
        assert "still queued" in late.told["message"]
        assert "same Idempotency-Key" in late.told["message"]
        unsafe = gateway.post(TOPIC, b"unsafe")
        assert (unsafe.status, "makes a second one" in unsafe.told["message"]) == (503, True)
        assert gateway.post(TOPIC, b"late", Idempotency_Key="late").status == 503  # no third message
        broker.send(signal.SIGCONT)
        again: list[Answer] = []

        def is_known() -> bool:
            again.append(gateway.post(TOPIC, b"late", Idempotency_Key="late"))
            return again[-1].status == 201

        eventually(is_known, "the first answer is known")
        assert again[-1].headers["idempotent-replayed"] == "true"
        assert read_posted(broker.url, TOPIC, 3) == [b"before", b"late", b"unsafe"]


def test_a_source_that_lost_the_answer_repeats_safely(url: str) -> None:
    make_reader(url, TOPIC)
    with GatewayProcess(url) as gateway:
        request = b"POST /topics/load HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %d\r\nContent-Length: 2\r\n\r\n%02d"
        for number in range(20):
            with socket.create_connection(gateway.address) as lost:
                lost.sendall(request % (number, number))  # and gone, without reading
        for number in range(20):
            assert gateway.post(TOPIC, b"%02d" % number, Idempotency_Key=str(number)).status == 201
        assert sorted(read_posted(url, TOPIC, 20)) == [b"%02d" % number for number in range(20)]


def test_every_message_is_stored_once_though_the_broker_is_killed_while_they_come(start_broker: StartBroker) -> None:
    broker = start_broker()
    make_reader(broker.url, TOPIC)
    per_source, sources = 150, 4
    failures: list[BaseException] = []
    progress = Counter[int]()

    def post_all(source: int, client: Client) -> None:
        try:
            for number in range(per_source):
                name = f"{source}-{number}"
                while client.post(TOPIC, name.encode(), Idempotency_Key=name).status != 201:
                    pass
                progress[source] += 1
        except (AssertionError, OSError, http.client.HTTPException, ValueError) as error:
            failures.append(error)
        finally:
            client.close()

    with GatewayProcess(broker.url, "--timeout", "0.3", "--buffer-messages", "100") as gateway:
        threads = [threading.Thread(target=post_all, args=(source, gateway.client())) for source in range(sources)]
        for thread in threads:
            thread.start()
        for share in (0.2, 0.4, 0.6):
            wanted = share * per_source * sources
            eventually(lambda wanted=wanted: failures or progress.total() >= wanted, "the sources get on")  # type: ignore[misc]
            broker.restart()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert failures == []
        assert gateway.get("/stats").told["drops"] == 0
    found = read_posted(broker.url, TOPIC, per_source * sources)
    assert Counter(found) == Counter(
        f"{source}-{number}".encode() for source in range(sources) for number in range(per_source)
    )
    for source in range(sources):  # and in the order in which each source sent them
        own = [payload for payload in found if payload.startswith(b"%d-" % source)]
        assert own == [b"%d-%d" % (source, number) for number in range(per_source)]


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "in an outbox"])
def test_of_a_burst_each_message_is_accepted_and_stored_once_or_refused_with_429(
    broker: BrokerProcess, tmp_path: Path, kept: bool
) -> None:
    """The broker stands still again and again while sources post as fast as they can, some waiting, some not, some many
    lines at once: what was answered with 201 or 202 arrives once, what was answered with 429 does not."""
    make_reader(broker.url, TOPIC)
    sources, per_source, answers = 6, 50, Counter[int]()
    accepted: list[bytes] = []
    failures: list[BaseException] = []

    def post_all(source: int, client: Client) -> None:
        try:
            for number in range(per_source):
                lines = [b"%d-%d-%d" % (source, number, line) for line in range(1 + 9 * (source % 2))]
                headers = {"Content_Type": LINES} | ({"Prefer": "respond-async"} if source % 3 else {})
                answer = client.post(TOPIC, b"\n".join(lines), **headers)
                assert answer.status in (201, 202, 429), answer
                if answer.status == 429:
                    assert int(answer.headers["retry-after"]) >= 1
                    assert "nothing was queued" in answer.told["message"]
                else:
                    accepted.extend(lines)
                answers[answer.status] += 1
        except (AssertionError, OSError, http.client.HTTPException, ValueError) as error:
            failures.append(error)
        finally:
            client.close()

    outbox = ("--outbox", str(tmp_path / "outbox.db")) if kept else ()
    with GatewayProcess(broker.url, "--timeout", "100", "--buffer-messages", "40", *outbox) as gateway:
        eventually(gateway.connected, "the gateway has its broker")
        threads = [threading.Thread(target=post_all, args=(source, gateway.client())) for source in range(sources)]

        def is_over() -> bool:
            return not any(thread.is_alive() for thread in threads)

        for thread in threads:
            thread.start()
        for refused in (10, 30, 60):
            broker.send(signal.SIGSTOP)
            eventually(lambda refused=refused: is_over() or answers[429] >= refused, "the buffer is full")  # type: ignore[misc]
            taken = answers[201] + answers[202]
            broker.send(signal.SIGCONT)
            eventually(lambda taken=taken: is_over() or answers[201] + answers[202] > taken, "it drains")  # type: ignore[misc]
        for thread in threads:
            thread.join(DEADLINE_S)
        assert failures == []
        assert answers[429] > 0
        eventually(lambda: gateway.get("/stats").told["waiting"] == 0, "all that was accepted is stored")
        stats = gateway.get("/stats").told
        assert (stats["accepted"], stats["stored"], stats["failed"]) == (len(accepted), len(accepted), 0)
        assert (stats["refused_429"], stats["drops"], stats["buffer"]["messages"]) == (answers[429], 0, 0)
    assert Counter(read_posted(broker.url, TOPIC, len(accepted))) == Counter(accepted)


def test_health_follows_the_broker(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    with GatewayProcess(broker.url) as gateway:
        eventually(gateway.connected, "the gateway has its broker")
        broker.kill()
        eventually(lambda: not gateway.connected(), "the gateway misses its broker")
        told = gateway.get("/health").told
        assert told["status"] == "unavailable"
        assert f"no broker answers at {broker.url}" in told["message"]
        broker.start()
        eventually(gateway.connected, "the gateway has its broker again")


def test_what_was_accepted_at_once_and_then_refused_is_counted_and_logged(url: str) -> None:
    with GatewayProcess(url) as gateway:
        assert gateway.post("nobody", b"1", Prefer="respond-async").status == 202
        eventually(lambda: gateway.get("/stats").told["failed"] == 1, "it is counted")
        assert "nobody subscribes" in gateway.get("/stats").told["last_failure"]
        code, logged = gateway.stop()
    assert code == 0
    assert [line["messages"] for line in logged if "not stored" in line["message"]] == [1]


def test_the_log_of_what_was_accepted_and_not_stored_names_its_own_topic(broker: BrokerProcess) -> None:
    """Others fail at the same moment: some of them waited and are told, so that the log has nothing to say of them."""
    answers: list[Answer] = []
    with GatewayProcess(broker.url, "--timeout", "100") as gateway:
        eventually(gateway.connected, "the gateway has its broker")
        broker.send(signal.SIGSTOP)
        for topic in ("one", "two", "two"):
            assert gateway.post(topic, b"x\ny\n", Content_Type=LINES, Prefer="respond-async").status == 202
        waiting = threading.Thread(target=lambda: answers.append(gateway.post("waited-for", b"x")))
        waiting.start()
        eventually(lambda: gateway.get("/stats").told["waiting"] == 7, "all of it is accepted")
        broker.send(signal.SIGCONT)
        waiting.join(DEADLINE_S)
        assert [answer.status for answer in answers] == [404]
        eventually(lambda: gateway.get("/stats").told["failed"] == 7, "all of it is refused")
        code, logged = gateway.stop()
    assert code == 0
    told = Counter[str]()
    for line in logged:
        if "not stored" in line["message"]:
            assert f"messages for {line['topic']} " in line["message"]
            assert f"nobody subscribes to {line['topic']}," in line["message"]
            told[line["topic"]] += line["messages"]
    assert told == {"one": 2, "two": 4}


def test_whoever_waited_for_nothing_is_not_told_of_another_topic_that_is_full(broker: BrokerProcess) -> None:
    with Admin(broker.url) as admin:
        admin.configure_topic("full", retention="until-read", max_bytes=1000)
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("full")
        reader.subscribe("other")
    with GatewayProcess(broker.url, "--timeout", "0.5") as gateway:
        eventually(gateway.connected, "the gateway has its broker")
        assert gateway.post("other", b"x").status in (201, 503)
        gateway.post("full", b"x" * 900)

        def says_full() -> bool:
            late = gateway.post("full", b"x" * 900)
            return late.status == 503 and "topic full holds" in late.told["message"]

        eventually(says_full, "whoever posts to the topic that is full hears of it")
        assert gateway.connected()  # others are taken
        broker.send(signal.SIGSTOP)
        late = gateway.post("other", b"x")
        assert late.status == 503
        assert "full" not in late.told["message"]
        assert "did not confirm it" in late.told["message"]
        broker.send(signal.SIGCONT)
