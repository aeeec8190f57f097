"""A disk that is full to the last byte: puts wait, everything else works, nothing acked is lost, and it recovers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import WAIT_S, ack_all, standing, take, take_one, worker
from tests.integration.small_disk import SmallDisk
from tests.integration.waiting import eventually

from clarion import Admin, Publisher, Subscriber
from clarion.model.errors import BufferFull, DiskFull, TimedOut
from clarion.publisher import Receipt
from clarion.session.calls import Request
from clarion.session.exchange import Reply
from clarion.session.thread_session import ThreadSession
from clarion.wire import bodies
from clarion.wire.batch import encode_batch
from clarion.wire.frames import Kind

SIZE = 48 << 20
PAYLOAD_BYTES = 50_000
LARGE = bytes(1_900_000)  # more than SQLite has room for in its log and in the reserve


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", SIZE) as disk:
        yield disk


@pytest.fixture
def small(disk: SmallDisk) -> BrokerProcess:
    return disk.broker(disk_reserve_bytes=1 << 20, stale_msg_interval_s=0.05)


def _publisher(url: str) -> Publisher:
    return Publisher(url, buffer_bytes=400_000, batch_bytes=100_000, block_s=0.5)


def _payload(place: int) -> bytes:
    return b"%d " % place + os.urandom(PAYLOAD_BYTES)


def _fill(publisher: Publisher, admin: Admin, topic: str, most: int = 10_000) -> list[Receipt]:
    """Put until the broker takes nothing more; return all receipts, of which the last ones are still open then."""
    receipts: list[Receipt] = []
    refused = admin.stats()["refused"]
    while len(receipts) < most:
        try:
            receipts.append(publisher.put(topic, _payload(len(receipts))))
        except BufferFull:
            if admin.stats()["refused"] > refused:  # it is not slow, it has no room
                break
    return receipts


def _refusal(url: str) -> BaseException | None:
    """Put one batch by hand; return how it was refused, if it was."""
    session = ThreadSession(url)
    try:
        nonce = bodies.Register(os.urandom(16))
        try:
            identity = session.call(Kind.REGISTER, nonce, timeout_s=WAIT_S).read(bodies.Registered)
        except DiskFull as error:
            return error
        batch = encode_batch([_payload(0)], broker=identity.broker, publisher=identity.publisher, stamp=1, number=1)
        reply: Reply = session.run(Request(Kind.PUT, bodies.Put(b"full"), WAIT_S, blobs=[batch]))
        return reply.error()
    finally:
        session.close()


def _abandon(publisher: Publisher) -> None:
    """Let go of a publisher whose last messages are not taken."""
    with pytest.raises(TimedOut):
        publisher.close(0.1)


def _numbers(receipts: list[Receipt]) -> list[int]:
    return [receipt.offset for receipt in receipts if receipt.done() and receipt.offset is not None]


def test_a_full_disk_refuses_puts_takes_all_else_and_loses_nothing_acked(disk: SmallDisk, small: BrokerProcess) -> None:
    with worker(small.url, "reader") as reader, worker(small.url) as consumer, Admin(small.url) as admin:
        reader.subscribe("full")
        consumer.subscribe("full", shared=True)
        admin.configure_topic("kept", retention="keep")
        with Publisher(small.url) as early:
            early.put_many("kept", [_payload(place) for place in range(100)]).result(WAIT_S)
        publisher = _publisher(small.url)
        receipts = _fill(publisher, admin, "full")
        stored = _numbers(receipts)
        assert stored == list(range(len(stored)))
        assert len(stored) * PAYLOAD_BYTES > SIZE / 3
        # A batch of two may be refused where one message still fits: put single ones until none does.
        eventually(lambda: isinstance(_refusal(small.url), DiskFull), "the disk is full to the last message")
        _abandon(publisher)
        assert "DISK_FULL: " in small.said(), "the log says so"

        # Acks and nacks, over a kill.
        stored_end = standing(admin, "full", "reader").lag
        assert stored_end >= len(stored)
        read = take(reader, "full", 5)
        ack_all(reader, read)
        first, second = take(consumer, "full", 2, most=1)
        first.ack()
        second.nack(delay_s=0.2, reason="on a full disk")
        consumer.flush_acks()
        small.restart()
        assert take_one(reader, "full").offset == 5
        assert standing(admin, "full", "reader").lag == stored_end - 5
        assert standing(admin, "full").lag == stored_end - 1
        again = eventually(
            lambda: [m for m in consumer.get("full", max_messages=10, wait_s=1) if m.offset == second.offset],
            "what was given back comes again",
        )
        assert again[0].attempt == 2

        # Deletes make room, with no put to help: housekeeping alone gives it back.
        before = disk.free_bytes()
        admin.delete_topic("kept")
        assert consumer.unsubscribe("full")
        assert admin.purge("full") > 0
        eventually(lambda: disk.free_bytes() > before + SIZE // 3, "the disk has room again")
        eventually(lambda: _refusal(small.url) is None, "puts are taken again")
    with worker(small.url, "reader") as reader:
        assert take_one(reader, "full").offset == stored_end


def test_puts_go_on_by_themselves_when_what_was_read_makes_room(small: BrokerProcess) -> None:
    with (
        Subscriber(small.url, "reader", timeout_s=WAIT_S) as reader,
        _publisher(small.url) as publisher,
        Admin(small.url) as admin,
    ):
        reader.subscribe("full")
        receipts = _fill(publisher, admin, "full")
        assert len(_numbers(receipts)) < len(receipts)
        found: list[int] = []
        while len(found) < len(receipts):
            messages = reader.get("full", wait_s=WAIT_S)
            assert messages
            found += [int(message.payload.split(b" ", 1)[0]) for message in messages]
        assert found == list(range(len(receipts)))
        publisher.flush(WAIT_S)


@pytest.mark.parametrize("way", ["purge", "delete", "unsubscribe"])
def test_puts_go_on_by_themselves_when_an_administrator_makes_room(small: BrokerProcess, way: str) -> None:
    with (
        Subscriber(small.url, "reader") as reader,
        _publisher(small.url) as publisher,
        Admin(small.url) as admin,
    ):
        reader.subscribe("old")
        reader.subscribe("new")
        _fill(publisher, admin, "old", most=SIZE // 2 // PAYLOAD_BYTES)
        waiting = _fill(publisher, admin, "new")
        assert len(_numbers(waiting)) < len(waiting)
        make_room: dict[str, Callable[[], object]] = {
            "purge": lambda: admin.purge("old"),
            "delete": lambda: admin.delete_topic("old"),
            "unsubscribe": lambda: admin.unsubscribe("old", "reader"),
        }
        make_room[way]()
        publisher.flush(WAIT_S)
        assert _numbers(waiting) == list(range(len(waiting)))


def test_a_disk_that_others_fill_stops_nothing_but_puts(disk: SmallDisk, small: BrokerProcess) -> None:
    with (
        worker(small.url, "reader") as reader,
        worker(small.url) as consumer,
        _publisher(small.url) as publisher,
        Admin(small.url) as admin,
    ):
        reader.subscribe("full")
        consumer.subscribe("full", shared=True)
        receipts = [publisher.put("full", _payload(place)) for place in range(50)]
        publisher.flush(WAIT_S)
        disk.fill()
        receipts += _fill(publisher, admin, "full")
        stored = len(_numbers(receipts))
        assert stored < len(receipts)
        for _ in range(5):
            ack_all(reader, take(reader, "full", 5))
            ack_all(consumer, take(consumer, "full", 5, most=1))
        small.restart()
        ack_all(reader, take(reader, "full", 5))
        assert standing(admin, "full").lag >= stored - 25
        if disk.is_real:
            assert not receipts[-1].done()
            assert isinstance(_refusal(small.url), DiskFull)
        disk.relieve()
        if not disk.is_real:
            ack_all(reader, take(reader, "full", stored - 30))
            ack_all(consumer, take(consumer, "full", stored - 25))
        publisher.flush(WAIT_S)
        assert sorted(_numbers(receipts)) == list(range(len(receipts)))


def test_a_change_that_sqlites_log_has_no_room_for_is_refused_and_the_broker_goes_on(disk: SmallDisk) -> None:
    small = disk.broker(disk_reserve_bytes=1 << 20, max_state_bytes=4 << 20, stale_msg_interval_s=3600.0)
    with worker(small.url, "reader") as reader, _publisher(small.url) as publisher:
        reader.subscribe("full")
        receipts = [publisher.put("full", _payload(place)) for place in range(10)]
        publisher.flush(WAIT_S)
        disk.fill()
        if disk.is_real:
            with (
                Subscriber(small.url, "setter", timeout_s=3.0) as setter,
                pytest.raises((DiskFull, TimedOut)),
                setter.transaction() as transaction,
            ):
                transaction.set("large", LARGE)  # the log has room for it, the index has not
        ack_all(reader, take(reader, "full", 5))
        small.restart()
        ack_all(reader, take(reader, "full", 5))
        disk.relieve()
        with Subscriber(small.url, "setter", timeout_s=WAIT_S) as setter:
            with setter.transaction() as transaction:
                transaction.set("large", LARGE)
            assert setter.state("large").value == LARGE
        assert _numbers(receipts) == list(range(10))


def test_a_broker_starts_on_a_disk_that_was_filled_while_it_was_stopped_and_takes_acks(disk: SmallDisk) -> None:
    small = disk.broker(disk_reserve_bytes=1 << 20)
    with worker(small.url, "reader") as reader, _publisher(small.url) as publisher:
        reader.subscribe("full")
        receipts = [publisher.put("full", _payload(place)) for place in range(20)]
        publisher.flush(WAIT_S)
    assert small.stop() == 0
    disk.fill()
    small.start()
    with worker(small.url, "reader") as reader:
        for _ in range(3):
            ack_all(reader, take(reader, "full", 5, most=1))
        small.restart()
        assert take_one(reader, "full").offset == 15
    disk.relieve()
    assert _numbers(receipts) == list(range(20))
