"""A store at its bound, in use, from the future or damaged: said clearly, and nothing acked is lost or wrong."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from tests.integration.broker_process import BrokerDied, BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Message, Publisher, Subscriber
from clarion.broker import Broker, BrokerSettings
from clarion.model.errors import BufferFull, ClarionError, DiskFull, StoreCorrupt, StoredDataCorrupt, TimedOut
from clarion.publisher import Receipt
from clarion.store.index import load_checksum_vfs

MAX_STORE_BYTES = 3_000_000


def _put_until_full(publisher: Publisher, admin: Admin, topic: str, size: int) -> list[Receipt]:
    """Put numbered messages until the publisher's buffer is full and stays so, as the broker has no room."""
    receipts: list[Receipt] = []
    while len(receipts) < 10_000:
        try:
            receipts.append(publisher.put(topic, b"%d " % len(receipts) + bytes(size)))
        except BufferFull:
            if admin.stats()["refused"]:
                return receipts
    raise AssertionError("the buffer never filled up")


def _get(reader: Subscriber, topic: str) -> list[Message]:
    """Get messages; a reader that attaches in the same commit as a put that does not fit is told to try again."""
    until_s = time.monotonic() + 60
    while True:
        try:
            return reader.get(topic, wait_s=30)
        except DiskFull:
            assert time.monotonic() < until_s


@pytest.mark.parametrize("reserve_bytes", [0, 500_000])
def test_a_full_store_refuses_puts_takes_acks_and_recovers(start_broker: StartBroker, reserve_bytes: int) -> None:
    broker = start_broker(max_store_bytes=MAX_STORE_BYTES, disk_reserve_bytes=reserve_bytes, stale_msg_interval_s=0.05)
    with (
        Subscriber(broker.url, "reader", ack="explicit") as reader,
        Publisher(broker.url, buffer_bytes=200_000, batch_bytes=50_000, block_s=0.5) as publisher,
        Admin(broker.url) as admin,
    ):
        reader.subscribe("full")
        receipts = _put_until_full(publisher, admin, "full", 10_000)
        with pytest.raises(TimedOut):
            receipts[-1].result(0.5)
        stored = [receipt.offset for receipt in receipts if receipt.done()]
        assert stored == list(range(len(stored)))
        assert len(stored) * 10_000 > MAX_STORE_BYTES / 4
        got: list[bytes] = []
        while len(got) < len(receipts):  # acks work, and what is acked makes room for what waits
            messages = _get(reader, "full")
            got += [message.payload.split()[0] for message in messages]
            for message in messages:
                message.ack()
            reader.flush_acks(30)
        publisher.flush(60)
        assert got == [b"%d" % place for place in range(len(receipts))]
        assert publisher.put("full", b"again").result(30).offset == len(receipts)


def test_a_full_store_keeps_what_it_has_over_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker(max_store_bytes=MAX_STORE_BYTES, disk_reserve_bytes=0)
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("full")
    publisher = Publisher(broker.url, buffer_bytes=200_000, batch_bytes=50_000, block_s=0.5)
    with Admin(broker.url) as admin:
        receipts = _put_until_full(publisher, admin, "full", 10_000)
    acked = sum(receipt.done() for receipt in receipts)
    broker.restart()
    with Subscriber(broker.url, "reader", timeout_s=60) as reader:
        found = 0
        while found < len(receipts):
            found += len(_get(reader, "full"))
        assert acked <= found == len(receipts)
    publisher.close(60)


def test_a_topic_at_its_bound_slows_its_publisher_and_no_other(start_broker: StartBroker) -> None:
    broker = start_broker(topic_max_bytes=100_000, stale_msg_interval_s=0.05)
    with (
        Subscriber(broker.url, "reader") as reader,
        Publisher(broker.url, buffer_bytes=50_000, block_s=0.5) as publisher,
        Admin(broker.url) as admin,
    ):
        reader.subscribe("small")
        reader.subscribe("other")
        receipts = _put_until_full(publisher, admin, "small", 1000)
        with Publisher(broker.url) as second:
            second.put("other", b"free").result(30)
        found = 0
        while found < len(receipts):
            found += len(reader.get("small", max_messages=10, wait_s=30))
        publisher.flush(60)
        assert found == len(receipts)


# Files that are not right.


def test_a_store_of_a_newer_version_is_refused_by_name(broker: BrokerProcess) -> None:
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("t")
    broker.stop()
    connection = apsw.Connection(str(broker.data / "clarion.db"), vfs=load_checksum_vfs())
    connection.pragma("user_version", 99)
    connection.close()
    with pytest.raises(BrokerDied, match="StoreTooNew") as died:
        broker.start()
    assert died.value.code == 3
    assert str(broker.data / "clarion.db") in died.value.said


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\x00" + bytes(84), bytes(8192)])
def test_a_file_that_is_no_store_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "clarion.db").write_bytes(content)
    broker = BrokerProcess(data)
    with pytest.raises(BrokerDied, match="StoreCorrupt") as died:
        broker.start()
    assert died.value.code == 3
    assert str(data / "clarion.db") in died.value.said
    assert (data / "clarion.db").read_bytes() == content


def test_a_data_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BrokerDied, match="BadSettings") as died:
        BrokerProcess(tmp_path / "file" / "data", log=tmp_path / "log").start()
    assert died.value.code == 2


# Damage.


class ThreadBroker:
    """A broker in a thread, for the many starts that damage takes, and its reader; `error` is what ended it."""

    def __init__(self, data: Path) -> None:
        self._broker = Broker(BrokerSettings(data=data, listen="tcp://127.0.0.1:*"))
        self.reader = Subscriber(self._broker.urls[0], "probe")
        self.error: ClarionError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._broker.run()
        except ClarionError as error:
            self.error = error
            self.reader.close(ack=False)  # so that it does not wait for answers that never come

    def stop(self) -> None:
        self.reader.close(ack=False)
        self._broker.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


TOPICS = {b"wide": 40_000, b"many": 50, b"deep": 3_000}


def _payload(topic: bytes, place: int) -> bytes:
    return b"%s %d " % (topic, place) + random.Random(place).randbytes(TOPICS[topic])


class Image:
    """What is in the files of a store whose broker was killed, without the zeros at their ends, and what was acked."""

    def __init__(self, data: Path, acked: dict[bytes, int]) -> None:
        self.acked = acked
        self._files: dict[Path, tuple[bytes, int]] = {}  # by name: what is in it, and its size
        for file in sorted(data.rglob("*")):
            if file.is_file():
                content = file.read_bytes()
                self._files[file.relative_to(data)] = content.rstrip(b"\x00"), len(content)

    def holding(self) -> list[Path]:
        """Return every file that holds what was acked; the log's index and the lock hold nothing of it."""
        return [file for file, (content, _) in self._files.items() if content and file.name not in _HOLD_NOTHING]

    def write(self, data: Path, changed: Path | None = None, content: bytes = b"", size: int | None = None) -> None:
        """Make a copy in which one file has another content or size."""
        for file, (was, length) in self._files.items():
            (data / file).parent.mkdir(parents=True, exist_ok=True)
            with (data / file).open("wb") as opened:
                opened.write(content if file == changed else was)
                opened.truncate(size if file == changed and size is not None else length)

    def flip(self, data: Path, dice: random.Random) -> str:
        """Make a copy with one bit wrong; say which."""
        file = dice.choice(self.holding())
        content = bytearray(self._files[file][0])
        place, bit = dice.randrange(len(content)), dice.randrange(8)
        content[place] ^= 1 << bit
        self.write(data, file, bytes(content))
        return f"bit {bit} of byte {place} of {file.name} flipped"

    def tear(self, data: Path, dice: random.Random) -> str:
        """Make a copy with one file cut short; say where."""
        file = dice.choice(self.holding())
        content, _ = self._files[file]
        place = dice.randrange(len(content))
        self.write(data, file, content[:place], place)
        return f"{file.name} cut at byte {place}"


_HOLD_NOTHING = ("lock", "clarion.db-shm")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A store whose broker was killed, with data both in the database and in its log."""
    folder = tmp_path_factory.mktemp("killed")
    broker = BrokerProcess(folder / "data", default_retention="keep").start()
    acked: dict[bytes, int] = dict.fromkeys(TOPICS, 0)

    def put(rounds: int) -> None:
        with Publisher(broker.url) as publisher:
            for _ in range(rounds):
                receipts = []
                for topic in TOPICS:
                    receipts.append(publisher.put(topic, _payload(topic, acked[topic])))
                    acked[topic] += 1
                for receipt in receipts:
                    receipt.result(30)

    put(30)
    broker.stop()  # this moves the log into the database
    broker.start()
    put(30)
    with Subscriber(broker.url, "half") as reader:
        reader.subscribe(b"deep", start="earliest")
        while reader.get(b"deep", max_messages=10, wait_s=30)[-1].offset < 29:
            pass
    broker.kill()
    broker.close()
    image = Image(broker.data, acked)
    shutil.rmtree(folder)
    return image


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("damage", [Image.flip, Image.tear])
def test_damage_is_told_or_does_not_matter(
    tmp_path: Path, killed: Image, seed: int, damage: Callable[[Image, Path, random.Random], str]
) -> None:
    told = 0
    for number in range(12):
        data = tmp_path / f"{number}"
        what = damage(killed, data, random.Random(f"{seed} {number}"))
        told += _is_told(data, killed, what)
        shutil.rmtree(data)
    assert told > 0  # most of it matters


def _is_told(data: Path, image: Image, what: str) -> bool:
    """Say whether a typed error names the damage; whatever is served before that must be right."""
    files = [str(data / file) for file in image.holding()]
    try:
        broker = ThreadBroker(data)
    except StoreCorrupt as error:
        return _names_file(error, files, what)
    told = False
    try:
        for topic, count in image.acked.items():
            try:
                _read_right(broker.reader, topic, count, what)
            except StoredDataCorrupt as error:
                told = _names_file(error, files, what)
    except ClarionError:
        eventually(lambda: broker.error, f"a broker that does not answer has ended ({what})")
        assert isinstance(broker.error, StoreCorrupt), (what, broker.error)
        told = True
    finally:
        broker.stop()
    return told


def _names_file(error: ClarionError, files: list[str], what: str) -> bool:
    assert any(file in str(error) for file in files), (what, str(error))
    return True


def _read_right(probe: Subscriber, topic: bytes, count: int, what: str) -> None:
    probe.subscribe(topic, start="earliest")
    place = 0
    while place < count:
        messages = probe.get(topic)
        assert messages, f"{topic!r} ends at {place} of {count} after {what}"
        for message in messages:
            assert (message.offset, message.payload) == (place, _payload(topic, place)), what
            place += 1
    assert probe.get(topic, wait_s=0) == [], what


def test_the_undamaged_store_is_served_in_full(tmp_path: Path, killed: Image) -> None:
    killed.write(tmp_path / "copy")
    assert not _is_told(tmp_path / "copy", killed, "nothing")
