"""A process that puts with an outbox is killed again and again, and so is the broker: what was saved arrives once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from tests.integration.broker_process import ROOT, BrokerProcess
from tests.integration.waiting import eventually

from clarion import Admin, Publisher, Subscriber
from clarion.publisher import Receipt, Receipts
from clarion.publisher.outbox.outbox_file import look

TOPICS = ("news", "sport")
_PATIENCE_S = 60.0
_ROUNDS = 8


def putting_process(url: str, outbox: str, log: str, first: int, seed: int) -> None:
    """Put until killed; whatever is saved for sure is appended to the log, whole lines at a time."""
    dice = random.Random(seed)
    noted = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    publisher = Publisher(url, outbox=outbox, in_flight=dice.choice((1, 4, 20, 64)))
    number = first
    while True:
        waiting: list[tuple[str, list[bytes], Receipt | Receipts]] = []
        for _ in range(dice.choice((1, 1, 5, 40))):
            topic = dice.choice(TOPICS)
            payloads = [b"%d" % (number + place) for place in range(dice.choice((1, 1, 3, 20)))]
            os.write(noted, b"P %s %d %d\n" % (topic.encode(), number, len(payloads)))
            if len(payloads) == 1:
                waiting.append((topic, payloads, publisher.put(topic, payloads[0], key=b"k" if number % 3 else None)))
            else:
                waiting.append((topic, payloads, publisher.put_many(topic, payloads)))
            number += len(payloads)
        for topic, payloads, receipt in waiting:
            receipt.saved(_PATIENCE_S)
            os.write(noted, b"S %s %d %d\n" % (topic.encode(), int(payloads[0]), len(payloads)))


class PuttingProcess:
    """Starts and kills it."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self.outbox = folder / "outbox"
        self.log = folder / "put.log"
        self._seed = 0

    def start(self) -> subprocess.Popen[bytes]:
        self._seed += 1
        task = [self._url, str(self.outbox), str(self.log), self._seed * 1_000_000, self._seed]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.integration.test_outbox_kills", json.dumps(task)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
        )

    def noted(self, kind: str) -> dict[str, list[int]]:
        """Return the messages that were put (P), or saved (S), by topic and in order."""
        found: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        lines = self.log.read_bytes().decode().split("\n") if self.log.exists() else []
        for line in lines[:-1]:
            what, topic, first, count = line.split()
            if what == kind:
                found[topic] += range(int(first), int(first) + int(count))
        return found

    def has_saved_more_than(self, count: int) -> bool:
        return sum(map(len, self.noted("S").values())) > count


def receive_all(url: str) -> dict[str, list[int]]:
    got: dict[str, list[int]] = {}
    with Subscriber(url, "reader") as reader:
        for topic in TOPICS:
            received: list[int] = []
            while messages := reader.get(topic, max_messages=10_000, wait_s=0.5):
                received += [int(message.payload) for message in messages]
            got[topic] = received
    return got


@pytest.mark.parametrize("kills_broker", [False, True])
def test_what_was_saved_arrives_exactly_once_and_in_order_over_many_kills(tmp_path: Path, kills_broker: bool) -> None:
    dice = random.Random(7)
    broker = BrokerProcess(tmp_path / "data").start()
    never = threading.Event()
    try:
        with Subscriber(broker.url, "reader") as reader:
            for topic in TOPICS:
                reader.subscribe(topic)
        putting = PuttingProcess(broker.url, tmp_path)
        for _ in range(_ROUNDS):
            saved = sum(map(len, putting.noted("S").values()))
            process = putting.start()
            try:
                wanted = saved + dice.choice((0, 0, 30, 300))
                eventually(partial(putting.has_saved_more_than, wanted), "something is saved")
                never.wait(dice.random() * 0.05)  # so that it dies anywhere
                if kills_broker and dice.random() < 0.7:
                    broker.kill()
                    more = sum(map(len, putting.noted("S").values()))
                    eventually(partial(putting.has_saved_more_than, more), "saving needs no broker")
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            if broker.process.poll() is not None and dice.random() < 0.7:
                broker.start()
        if broker.process.poll() is not None:
            broker.start()
        with Publisher(broker.url, outbox=putting.outbox) as publisher:  # sends what is left by itself
            publisher.flush(_PATIENCE_S)
        contents = look(putting.outbox)
        assert (contents.waiting, contents.quarantined) == ([], [])
        got = receive_all(broker.url)
        put, saved_for_sure = putting.noted("P"), putting.noted("S")
        for topic in TOPICS:
            times = Counter(got[topic])
            assert [number for number in times if times[number] > 1] == []
            assert [number for number in saved_for_sure[topic] if number not in times] == []
            assert [number for number in put[topic] if number in times] == got[topic]
        assert sum(map(len, got.values())) > _ROUNDS
    finally:
        broker.close()


def test_a_message_that_is_saved_while_no_broker_is_there_is_sent_by_the_next_process(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data").start()
    try:
        with Admin(broker.url) as admin:
            admin.configure_topic("news", retention="keep")
        broker.kill()
        putting = PuttingProcess(broker.url, tmp_path)
        process = putting.start()
        eventually(lambda: putting.has_saved_more_than(20), "messages are saved without a broker")
        process.send_signal(signal.SIGKILL)
        process.wait()
        broker.start()
        with Admin(broker.url) as admin:
            admin.configure_topic("sport", retention="keep")
            Publisher(broker.url, outbox=putting.outbox).close()
            got = [int(message.payload) for message in admin.read("news", max_messages=100_000)]
        assert set(putting.noted("S")["news"]) <= set(got)
        assert len(got) == len(set(got))
    finally:
        broker.close()


if __name__ == "__main__":
    putting_process(*json.loads(sys.argv[1]))
