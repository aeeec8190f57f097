"""A gateway with an outbox: what was answered with 202 is on this machine's disk, and survives its crash."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from tests.integration.broker_process import free_url
from tests.integration.conftest import StartBroker
from tests.integration.gateway_process import GatewayProcess, make_reader, read_posted
from tests.integration.shell import one_line, run
from tests.integration.waiting import eventually

LINES = "application/x-ndjson"


def test_what_was_answered_with_202_survives_sigkill_and_arrives_once(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    make_reader(broker.url, "a")
    outbox = ("--outbox", str(tmp_path / "outbox"))
    with GatewayProcess(broker.url, *outbox) as gateway:
        assert gateway.post("a", b"0").status == 201
        broker.send(signal.SIGSTOP)
        for number in range(1, 20):
            assert gateway.post("a", b"%d" % number, Prefer="respond-async").status == 202
        lines = b"".join(b"%d\n" % number for number in range(20, 1000))
        assert gateway.post("a", lines, Content_Type=LINES, Prefer="respond-async").status == 202
        gateway.process.kill()
    broker.send(signal.SIGCONT)
    with GatewayProcess(broker.url, *outbox) as gateway:
        assert read_posted(broker.url, "a", 1000) == [b"%d" % number for number in range(1000)]
        assert gateway.stop()[0] == 0


def test_what_is_left_at_the_end_stays_in_the_outbox(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    make_reader(broker.url, "a")
    broker.send(signal.SIGSTOP)
    outbox = ("--outbox", str(tmp_path / "outbox"), "--stop-timeout", "0.3")
    with GatewayProcess(broker.url, *outbox) as gateway:
        assert gateway.post("a", b"1", Prefer="respond-async").status == 202
        assert gateway.post("a", b"2", Prefer="respond-async").status == 202
        code, said = gateway.stop(signal.SIGINT)
    assert code == 4
    assert "2 messages not confirmed" in said[-1]["error"]["message"]
    assert f"kept in the outbox {tmp_path / 'outbox'}" in said[-1]["error"]["message"]
    with socket.create_server(("127.0.0.1", 0)) as taken:  # what is kept does not hide why it cannot start
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("publish", "--from-http", "--url", broker.url, "--listen", listen, *outbox)
    assert f"cannot listen at {listen}" in one_line(done)
    broker.send(signal.SIGCONT)
    with GatewayProcess(broker.url, *outbox) as gateway:
        assert read_posted(broker.url, "a", 2) == [b"1", b"2"]


def test_an_outbox_that_is_full_is_429(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    make_reader(broker.url, "a")
    broker.send(signal.SIGSTOP)
    with GatewayProcess(
        broker.url, "--outbox", str(tmp_path / "outbox"), "--outbox-bytes", "2MiB", "--buffer-bytes", "1MB"
    ) as gateway:
        room = gateway.get("/stats").told["buffer"]
        assert room["messages_max"] == 100_000
        statuses = [gateway.post("a", b"x" * 600_000, Prefer="respond-async").status for _ in range(5)]
        assert statuses == [202, 202, 202, 429, 429]
        stats = gateway.get("/stats").told
        assert (stats["buffer"]["messages"], stats["buffer"]["bytes"]) == (3, 0)  # they are on disk
        broker.send(signal.SIGCONT)
        assert read_posted(broker.url, "a", 3) == [b"x" * 600_000] * 3
        eventually(lambda: gateway.post("a", b"x" * 600_000).status == 201, "there is room again")
        stats = gateway.get("/stats").told
        assert (stats["stored"], stats["waiting"], stats["buffer"]["messages"]) == (4, 0, 0)


def test_an_outbox_in_use_is_told_and_a_second_signal_says_what_it_keeps(tmp_path: Path) -> None:
    url, outbox = free_url(), ("--outbox", str(tmp_path / "outbox"))
    with GatewayProcess(url, *outbox, "--outbox-bytes", "1MiB") as gateway:
        assert gateway.post("a", b"x" * 2**20).status == 413  # it never fits, however long one waits
        done = run("publish", "--from-http", "--url", url, "--listen", "127.0.0.1:0", *outbox)
        assert done.returncode == 7
        assert str(tmp_path / "outbox") in one_line(done)
        assert gateway.post("a", b"1", Prefer="respond-async").status == 202
        err = gateway.end_at_once()
    assert gateway.process.returncode == 130
    assert f"kept in {tmp_path / 'outbox'}" in err.splitlines()[-1].decode()
