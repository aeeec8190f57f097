"""A publisher with an outbox: what is put is saved, sent once, and survives whatever ends the publisher."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.broker_process import ROOT, BrokerProcess, free_url
from tests.integration.small_disk import SmallDisk
from tests.integration.waiting import DEADLINE_S, eventually, paced

from clarion import Admin, AsyncPublisher, Publisher, Subscriber
from clarion.model.errors import (
    BufferFull,
    NoOutbox,
    NoSubscriber,
    OutboxInDoubt,
    OutboxInUse,
    OutboxUnusable,
    TimedOut,
    UsedAfterFork,
)
from clarion.publisher.outbox.outbox_file import OutboxFile, look, resend
from clarion.session.thread_session import ThreadSession
from clarion.wire import bodies
from clarion.wire.frames import Kind

_WAIT_S = DEADLINE_S


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(tmp_path / "data").start()
    with Admin(broker.url) as admin:
        admin.configure_topic("news", retention="keep")
    yield broker
    broker.close()


def read(url: str, topic: str = "news") -> list[bytes]:
    with Admin(url) as admin:
        return [message.payload for message in admin.browse(topic)]


def test_without_an_outbox_nothing_can_be_saved_and_that_is_said(broker: BrokerProcess) -> None:
    with Publisher(broker.url) as publisher:
        with pytest.raises(NoOutbox, match="outbox=PATH"):
            publisher.put("news", b"a").saved()
        with pytest.raises(NoOutbox):
            publisher.put_many("news", [b"b", b"c"]).saved()
        with pytest.raises(NoOutbox):
            publisher.save()


def test_what_was_sent_leaves_an_empty_outbox_without_an_identity(broker: BrokerProcess, tmp_path: Path) -> None:
    with Publisher(broker.url, outbox=tmp_path / "outbox") as publisher:
        assert publisher.put("news", b"a").saved(_WAIT_S).result(_WAIT_S).offset == 0
        receipts = publisher.put_many("news", [b"b", b"c"]).saved(_WAIT_S)
        publisher.save(_WAIT_S)
        assert receipts.result(_WAIT_S).offsets == [range(1, 3)]
        assert publisher.stats["outbox"] == str(tmp_path / "outbox")
    assert read(broker.url) == [b"a", b"b", b"c"]
    assert look(tmp_path / "outbox") == ([], [])
    file = OutboxFile(tmp_path / "outbox")
    assert (file.read().topics, file.read().stored_bytes) == ([], 0)
    file.close()


def test_a_close_that_is_not_done_in_time_says_what_is_kept_and_the_next_publisher_sends_it(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.kill()
    publisher = Publisher(broker.url, outbox=tmp_path / "outbox")
    publisher.put_many("news", [b"%d" % number for number in range(10)])
    with pytest.raises(TimedOut, match=f"10 messages not confirmed .* kept in the outbox {tmp_path / 'outbox'}"):
        publisher.close(timeout_s=0.1)
    assert [(row.topic, row.messages) for row in look(tmp_path / "outbox").waiting] == [(b"news", 10)]
    broker.start()
    with Publisher(broker.url, outbox=tmp_path / "outbox") as publisher:
        publisher.put("news", b"10")
    assert read(broker.url) == [b"%d" % number for number in range(11)]


@paced
def test_everything_a_message_can_have_goes_through_an_outbox(
    broker: BrokerProcess, tmp_path: Path, pace_s: float
) -> None:
    news, outbox = f"news {pace_s}", tmp_path / f"outbox {pace_s}"
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe(news)
        broker.kill()
        publisher = Publisher(broker.url, outbox=outbox, compression="zstd")
        publisher.put(news, b"with key", key="k", headers={"h": "1"})
        publisher.put(news, b"short lived", ttl_s=0.05)
        publisher.put_many(news, [b"same " * 1000] * 50, keys=[b"k"] * 50)
        publisher.put(news, b"second", deliver_at=time.time() + 2.3 * pace_s)
        publisher.put(news, b"first", deliver_at=time.time() + 2 * pace_s)
        with pytest.raises(TimedOut):
            publisher.close(timeout_s=0.05)
        kept = sum(row.size for row in look(outbox).waiting)
        assert kept < 100_000, "it was not compressed"
        broker.start()
        Publisher(broker.url, outbox=outbox).close()
        got = reader.get(news, max_messages=100, wait_s=_WAIT_S)
        while got[-1].payload != b"second":
            got += reader.get(news, max_messages=100, wait_s=_WAIT_S)
        by_payload = {message.payload: message for message in got}
        assert (by_payload[b"with key"].key, by_payload[b"with key"].headers) == (b"k", {"h": b"1"})
        assert [message.payload for message in got][-2:] == [b"first", b"second"]
        assert len([message for message in got if message.payload == b"same " * 1000]) == 50


def test_requests_and_replies_go_through_an_outbox(broker: BrokerProcess, tmp_path: Path) -> None:
    with (
        Publisher(broker.url, outbox=tmp_path / "asks") as asking,
        Publisher(broker.url, outbox=tmp_path / "replies") as replying,
        Subscriber(broker.url, "server") as server,
    ):
        server.subscribe("square")
        loop = asyncio.new_event_loop()
        reply = loop.run_in_executor(None, asking.request, "square", b"12")
        (question,) = server.get("square", wait_s=_WAIT_S)
        replying.reply(question, b"144").result(_WAIT_S)
        assert loop.run_until_complete(reply).payload == b"144"
        loop.close()
        with pytest.raises(NoSubscriber):
            replying.put("nobody reads this", b"x").result(_WAIT_S)


def test_an_outbox_at_its_bound_has_puts_wait_and_goes_on_when_the_broker_is_back(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.kill()
    publisher = Publisher(broker.url, outbox=tmp_path / "outbox", outbox_bytes=2**20, batch_bytes=50_000)
    count = 0

    def put_until_full() -> None:
        nonlocal count
        while True:
            publisher.put("news", b"%d " % count + bytes(20_000), wait=False)
            count += 1

    with pytest.raises(BufferFull, match=r"outbox .* holds its 1048576 bytes"):
        put_until_full()
    assert 40 <= count <= 70
    broker.start()
    publisher.put("news", b"more", block_s=_WAIT_S)
    publisher.close()
    assert [int(payload.split(b" ")[0]) for payload in read(broker.url)[:-1]] == list(range(count))


def test_a_large_outbox_is_only_partly_in_memory_and_is_sent_in_order(broker: BrokerProcess, tmp_path: Path) -> None:
    broker.kill()
    settings = {"buffer_bytes": 2**20, "batch_bytes": 100_000, "outbox": tmp_path / "outbox"}
    publisher = Publisher(broker.url, **settings)  # type: ignore[arg-type]
    for number in range(2000):
        publisher.put("news", b"%d " % number + bytes(5000))
    publisher.save(_WAIT_S)
    outbox = publisher._works.outbox
    assert outbox is not None
    assert publisher._core.buffered_bytes == 0
    assert outbox.ledger.loaded_bytes <= 2**20
    assert publisher.stats["outbox_bytes"] > 10_000_000
    broker.start()
    publisher.close()
    assert [int(payload.split(b" ")[0]) for payload in read(broker.url)] == list(range(2000))


def test_a_second_publisher_on_one_outbox_is_refused(broker: BrokerProcess, tmp_path: Path) -> None:
    with Publisher(broker.url, outbox=tmp_path / "outbox"), pytest.raises(OutboxInUse):
        Publisher(broker.url, outbox=tmp_path / "outbox")
    Publisher(broker.url, outbox=tmp_path / "outbox").close()


def test_a_publisher_that_the_broker_forgot_registers_again_and_sends(broker: BrokerProcess, tmp_path: Path) -> None:
    with Publisher(broker.url, outbox=tmp_path / "outbox") as publisher:
        publisher.put("news", b"a").result(_WAIT_S)
        session = ThreadSession(broker.url)
        for known in publisher._core.identities():
            session.call(Kind.FORGET, bodies.Forget(known), timeout_s=_WAIT_S)
        session.close()
        assert (
            publisher.put("news", b"b").result(_WAIT_S).offset == 1
        )  # it was refused once, so it is surely not stored
    assert read(broker.url) == [b"a", b"b"]


def test_what_another_store_may_have_is_kept_aside_until_somebody_decides(tmp_path: Path) -> None:
    url = free_url()
    first = BrokerProcess(tmp_path / "first", url).start()
    second = BrokerProcess(tmp_path / "second", url)
    try:
        with Admin(url) as admin:
            admin.configure_topic("news", retention="keep")
        publisher = Publisher(url, outbox=tmp_path / "outbox")
        publisher.put("news", b"a").result(_WAIT_S)
        first.send(signal.SIGSTOP)
        publisher.put_many("news", [b"b", b"c", b"d"]).saved(_WAIT_S)
        eventually(lambda: publisher.stats["in_flight"], "it is sent")
        with pytest.raises(TimedOut):
            publisher.close(timeout_s=0.1)
        first.send(signal.SIGKILL)
        first.wait()
        second.start()
        with Admin(url) as admin:
            admin.configure_topic("news", retention="keep")
        publisher = Publisher(url, outbox=tmp_path / "outbox")
        publisher.put("news", b"e").result(_WAIT_S)
        with pytest.raises(OutboxInDoubt, match=r"3 messages .*clarion outbox show"):
            publisher.close()
        assert read(url) == [b"e"]
        assert sum(row.messages for row in look(tmp_path / "outbox").quarantined) == 3
        assert resend(tmp_path / "outbox") == 3
        Publisher(url, outbox=tmp_path / "outbox").close()
        assert read(url) == [b"e", b"b", b"c", b"d"]
        assert look(tmp_path / "outbox") == ([], [])
    finally:
        first.close()
        second.close()


def fill_a_disk(url: str, outbox: str, most_pages: int) -> None:
    """Put until the disk is full, say so, and go on when there is room again; what was put is told at the end."""
    publisher = Publisher(url, outbox=outbox, buffer_bytes=200_000, batch_bytes=50_000)
    if most_pages:
        publisher._works.outbox._file._connection.pragma("max_page_count", most_pages)  # type: ignore[union-attr]
    count, said = 0, ""
    while "no room" not in said:  # a disk that is only slow is waited for
        try:
            publisher.put("news", b"%d " % count + os.urandom(20_000), block_s=0.5)
            count += 1
        except BufferFull as error:
            said = str(error)
    sys.stdout.write(f"{said}\n")
    try:
        publisher.save(0.3)
    except TimedOut as error:
        sys.stdout.write(f"{error}\n")
    sys.stdout.flush()
    publisher.put("news", b"%d last" % count, block_s=_WAIT_S).saved(_WAIT_S)
    publisher.close()
    sys.stdout.write(f"{count}\n")


def test_on_a_full_disk_nothing_saved_is_lost_and_it_goes_on_when_there_is_room(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with SmallDisk(tmp_path / "disk", 24 << 20) as disk:
        within = ["nsenter", "--target", str(disk._keeper.pid), "--user", "--mount", "--preserve-credentials", "--"]
        task = json.dumps([broker.url, str(tmp_path / "disk" / "outbox"), 0 if disk.is_real else 2000])
        broker.kill()
        process = subprocess.Popen(
            [*(within if disk.is_real else []), sys.executable, "-m", "tests.integration.test_outbox", task],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert "disk has no room" in process.stdout.readline()
            assert "disk has no room" in process.stdout.readline()
            broker.start()  # sending what was saved makes room
            told, _ = process.communicate(timeout=2 * _WAIT_S)
        finally:
            process.kill()
            process.wait()
    count = int(told)
    assert count > 100
    assert [int(payload.split(b" ")[0]) for payload in read(broker.url)] == list(range(count + 1))


def test_after_a_disk_failed_save_says_so_and_not_only_the_receipts(broker: BrokerProcess, tmp_path: Path) -> None:
    publisher = Publisher(broker.url, outbox=tmp_path / "outbox")
    publisher.put("news", b"a").result(_WAIT_S)
    eventually(lambda: not publisher.stats["outbox_batches"], "the disk has nothing to do")
    publisher._works.outbox._file._connection.close()  # type: ignore[union-attr]
    receipt = publisher.put("news", b"b")
    with pytest.raises(OutboxUnusable):
        receipt.saved(_WAIT_S)
    with pytest.raises(OutboxUnusable):
        publisher.save(_WAIT_S)
    with pytest.raises(OutboxUnusable):
        publisher.put("news", b"c")
    publisher.close(_WAIT_S)
    assert read(broker.url) == [b"a"]


def test_after_a_disk_failed_the_asyncio_publisher_says_so_too(broker: BrokerProcess, tmp_path: Path) -> None:
    async def fail() -> None:
        publisher = AsyncPublisher(broker.url, outbox=tmp_path / "outbox")
        await (await publisher.put("news", b"a")).result(_WAIT_S)
        async with asyncio.timeout(_WAIT_S):
            while publisher.stats["outbox_batches"]:
                await asyncio.sleep(0.001)
        publisher._works.outbox._file._connection.close()  # type: ignore[union-attr]
        receipt = await publisher.put("news", b"b")
        with pytest.raises(OutboxUnusable):
            await receipt.saved(_WAIT_S)
        with pytest.raises(OutboxUnusable):
            await publisher.save(_WAIT_S)
        with pytest.raises(OutboxUnusable):
            await publisher.put("news", b"c")
        await publisher.close(_WAIT_S)

    asyncio.run(fail())
    assert read(broker.url) == [b"a"]


def test_in_a_child_process_the_outbox_is_the_parents(broker: BrokerProcess, tmp_path: Path) -> None:
    publisher = Publisher(broker.url, outbox=tmp_path / "outbox")
    publisher.put("news", b"a").saved(_WAIT_S)
    child = os.fork()
    if not child:
        try:
            publisher.put("news", b"from the child")
        except UsedAfterFork:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    publisher.put("news", b"b").result(_WAIT_S)
    publisher.close()
    assert read(broker.url) == [b"a", b"b"]


def test_the_asyncio_publisher_saves_and_sends_alike(broker: BrokerProcess, tmp_path: Path) -> None:
    async def put_some() -> None:
        async with AsyncPublisher(broker.url) as plain:
            with pytest.raises(NoOutbox):
                await (await plain.put("news", b"x")).saved()
        async with AsyncPublisher(broker.url, outbox=tmp_path / "outbox") as publisher:
            receipt = await publisher.put("news", b"a")
            await receipt.saved(_WAIT_S)
            await receipt.result(_WAIT_S)
            receipts = await publisher.put_many("news", [b"b", b"c"])
            await publisher.save(_WAIT_S)
            await receipts.saved(_WAIT_S)
            with pytest.raises(OutboxInUse):
                AsyncPublisher(broker.url, outbox=tmp_path / "outbox")
        broker.kill()
        publisher = AsyncPublisher(broker.url, outbox=tmp_path / "outbox")
        await publisher.put("news", b"d")
        with pytest.raises(TimedOut, match=r"1 message not confirmed .* kept in the outbox"):
            await publisher.close(timeout_s=0.1)
        broker.start()
        await AsyncPublisher(broker.url, outbox=tmp_path / "outbox").close()

    asyncio.run(put_some())
    assert read(broker.url) == [b"x", b"a", b"b", b"c", b"d"]
    assert look(tmp_path / "outbox") == ([], [])


if __name__ == "__main__":
    fill_a_disk(*json.loads(sys.argv[1]))
