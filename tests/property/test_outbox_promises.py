"""An outbox whose process dies at any moment, with a network and a broker that fail: nothing saved is lost or twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.property.lossy_network import Client, CoreClient, SubscriberClient, World
from tests.property.test_lossy_network import NOBODY, TOPIC, make_world, subscribe

from clarion.model.errors import ClarionError, OutboxFull
from clarion.publisher.outbox.ledger import Ledger
from clarion.publisher.outbox.ledger_topics import Plan
from clarion.publisher.outbox.outbox_file import OutboxFile, look, resend
from clarion.publisher.outgoing_batch import OutgoingBatch
from clarion.publisher.publisher_core import PublisherCore
from clarion.session.exchange import Exchange
from clarion.store.port import Changes, Identity
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind

OTHER = b"other news"
MESSAGES = 60
TURNS_AT_MOST = 30_000


class OutboxClient(CoreClient):
    """A publisher with an outbox, which may die between any two steps and be started again."""

    def __init__(self, world: World, file: Path) -> None:
        super().__init__(world)
        self.path = file
        self.put: list[tuple[bytes, bytes]] = []
        self.under_way: dict[bytes, OutgoingBatch] = {}  # by payload, of the process that lives
        self.saved: set[bytes] = set()  # of which somebody was told that they are on disk
        self.refused: set[bytes] = set()  # of which somebody was told that they are not stored
        self.doubted: set[bytes] = set()
        self.opened = self.deaths = self.full = 0
        self.job: Any = None
        self.open()

    def open(self) -> None:
        dice = self.world.dice
        self.exchange = Exchange()
        self.file = OutboxFile(self.path, durable=False)
        self.ledger = Ledger(self.file.read(), str(self.path), dice.choice((300, 2000, 1 << 20)))
        self.opened += 1
        seed = b"%d of an outbox" % self.opened
        self.core = PublisherCore("", seed, self.ledger, in_flight=dice.randrange(1, 30), batch_bytes=200)
        self.ledger.open(self.core, self.world.now_s)
        self.perform()

    def next_job(self) -> Any:
        return self.ledger.next_job(self.world.now_s, self.world.now.unix_us / 1e6)

    def job_done(self, job: Any, outcome: Any) -> None:
        self.ledger.done(job, outcome, self.world.now_s)
        self.perform()

    def add(self, topic: bytes) -> None:
        payload = b"message %d" % len(self.put)
        outgoing, _, _ = self.core.add(topic, payload, None, None, now_s=self.world.now_s)
        self.put.append((topic, payload))
        self.under_way[payload] = outgoing

    def turn(self) -> None:
        self.session_turn()
        self.core_turn()
        self._disk_turn()
        self.listen()
        if self.world.chance(0.004):
            self.die()

    def _disk_turn(self) -> None:
        """Begin or end a job; it takes a few turns, and everything else goes on meanwhile."""
        world = self.world
        if self.job is None:
            self.job = self.next_job()
        elif world.dice.random() < 0.4:
            job, self.job = self.job, None
            if isinstance(job, Plan) and world.chance(0.05):
                self.full += 1
                self.job_done(job, OutboxFull("for want of luck"))
            else:
                self.job_done(job, self._do(job))
            assert self.core.broken is None

    def _do(self, job: Any) -> Any:
        return self.file.commit(job.changes) if isinstance(job, Plan) else self.file.load(job)

    def listen(self) -> None:
        """Note what an application would have been told by now."""
        for payload, outgoing in list(self.under_way.items()):
            if outgoing.saved:
                self.saved.add(payload)
            if outgoing.done:
                del self.under_way[payload]
                if outgoing.error is not None:
                    kept_aside = "kept aside" in str(outgoing.error)
                    (self.doubted if kept_aside else self.refused).add(payload)

    def die(self) -> None:
        """The process is killed: before, inside or after a commit, which is whole or not there at all."""
        self.deaths += 1
        if isinstance(self.job, Plan) and self.world.dice.random() < 0.5:
            self._do(self.job)
            gone = [gone for part in self.job.topics for gone in part.gone if gone.refusal is not None]
            # What was refused is told when its row is gone, here to a process that just died.
            self.refused |= {payload for payload, outgoing in self.under_way.items() if outgoing in gone}
        self.job = None
        self.file.close()
        self.under_way.clear()
        if self.world.dice.random() < 0.5:  # what was under way may still arrive
            self.world.wires.pop(self.wire, None)
        self.reconnect_as_new()

    def reconnect_as_new(self) -> None:
        self.exchange.drop_all()
        self.open()
        self.reconnect()

    def is_done(self) -> bool:
        return not self.under_way and not self.core.unfinished() and self.is_at_rest()

    def is_at_rest(self) -> bool:
        self.ledger.retire()
        return self.job is None and all(topic.is_empty() for topic in self.ledger.topics.values())


def turn(world: World, clients: Sequence[Client]) -> None:
    world.turn()
    for client in clients:
        client.turn()


def finish(world: World, publisher: OutboxClient, readers: list[SubscriberClient]) -> None:
    """Let everything go well until all is sent and read."""
    world.faults = False
    for _ in range(TURNS_AT_MOST):
        if publisher.is_done() and all(has_all(world, reader) for reader in readers):
            return
        turn(world, [publisher, *readers])
    raise AssertionError(f"it hangs: {publisher.core.stats()}")


def has_all(world: World, reader: SubscriberClient) -> bool:
    topic = world.engine._state.find_topic(reader.reading.topic, world.now_s)
    assert topic is not None
    return topic.next_offset == (reader.got[-1][0] + 1 if reader.got else 0)


def check(publisher: OutboxClient, readers: dict[bytes, SubscriberClient], *, in_doubt: Counter[bytes]) -> None:
    for topic, reader in readers.items():
        offsets = [offset for offset, _ in reader.got]
        assert offsets == sorted(set(offsets))
        got = [payload for _, payload in reader.got]
        assert [payload for payload, times in Counter(got).items() if times > 1] == [], "something came twice"
        wanted = [payload for where, payload in publisher.put if where == topic]
        saved = [payload for payload in wanted if payload in publisher.saved]
        missing = set(saved) - set(got)
        assert sum(in_doubt.values()) >= len(missing) - len(publisher.refused & missing)
        if not in_doubt:
            assert not missing, "something that was saved is lost"
            assert got == [payload for payload in wanted if payload in set(got)], "the order is not kept"
        assert not publisher.refused & set(got)


@pytest.mark.parametrize("seed", range(60))
def test_what_was_saved_arrives_once_and_in_order_whenever_the_process_dies(seed: int, tmp_path: Path) -> None:
    world = make_world(seed)
    readers = {}
    for topic in (TOPIC, OTHER):
        subscribe(world, topic, b"reader")
        readers[topic] = SubscriberClient(world, topic, b"reader", b"only consumer")
    publisher = OutboxClient(world, tmp_path / "outbox")
    world.faults = True
    for _ in range(MESSAGES):
        publisher.add(world.dice.choice((TOPIC, TOPIC, OTHER)))
        for _ in range(world.dice.randrange(0, 12)):
            turn(world, [publisher, *readers.values()])
    for _ in range(100):
        turn(world, [publisher, *readers.values()])
    finish(world, publisher, list(readers.values()))
    check(publisher, readers, in_doubt=Counter())
    assert publisher.doubted == set()
    publisher.file.close()
    assert look(publisher.path).waiting == []
    assert look(publisher.path).quarantined == []


@pytest.mark.parametrize("seed", range(40))
def test_a_publisher_that_the_broker_forgot_leaves_what_is_in_doubt_aside(seed: int, tmp_path: Path) -> None:
    world = make_world(seed)
    subscribe(world, TOPIC, b"reader")
    reader = SubscriberClient(world, TOPIC, b"reader", b"only consumer")
    publisher = OutboxClient(world, tmp_path / "outbox")
    world.faults = True
    for _ in range(MESSAGES):
        publisher.add(TOPIC)
        for _ in range(world.dice.randrange(0, 12)):
            turn(world, [publisher, reader])
        if world.dice.random() < 0.05 and world.group is None:
            for known in list(world.store._publishers):
                world.engine._puts.drop_publisher(known)
    finish(world, publisher, [reader])
    publisher.file.close()
    aside = Counter({b"": sum(row.messages for row in look(publisher.path).quarantined)})
    check(publisher, {TOPIC: reader}, in_doubt=+aside)
    got = {payload for _, payload in reader.got}
    assert look(publisher.path).waiting == []
    if aside[b""]:
        assert resend(publisher.path) == aside[b""]
        publisher.reconnect_as_new()
        finish(world, publisher, [reader])
        assert publisher.saved <= {payload for _, payload in reader.got} | publisher.refused
        assert got <= {payload for _, payload in reader.got}
        publisher.file.close()
        assert look(publisher.path) == ([], [])


@pytest.mark.parametrize("seed", range(30))
def test_a_topic_that_is_deleted_and_made_again_gets_nothing_that_the_first_one_had(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(seed)
    world.limits = replace(world.limits, topic_max_bytes=1 << 30)
    world._crash()
    stored: Counter[bytes] = Counter()
    keep = world.store.commit

    def commit(changes: Changes) -> None:
        keep(changes)
        stored.update(payload for batch in changes.batches for payload in Batch.parse(batch.data).payloads())

    monkeypatch.setattr(world.store, "commit", commit)
    subscribe(world, TOPIC, b"reader")
    publisher, operator = OutboxClient(world, tmp_path / "outbox"), Client(world)
    world.faults = True
    for count in range(MESSAGES):
        publisher.add(TOPIC)
        for _ in range(world.dice.randrange(0, 12)):
            turn(world, [publisher, operator])
        if count % 7 == 3:
            operator.ask(Kind.DELETE, bodies.Delete(TOPIC), operator.dropped.append)
        if count % 7 == 4:
            operator.ask(Kind.SUBSCRIBE, bodies.Subscribe(TOPIC, b"reader"), operator.dropped.append)
    operator.ask(Kind.SUBSCRIBE, bodies.Subscribe(TOPIC, b"reader"), operator.dropped.append)
    finish(world, publisher, [])
    publisher.file.close()
    assert set(stored.values()) == {1}
    assert not publisher.refused & stored.keys()
    contents = look(publisher.path)
    assert contents.waiting == []
    missing = publisher.saved - stored.keys() - publisher.refused
    assert len(missing) <= sum(row.messages for row in contents.quarantined), (
        "something is neither stored, told nor kept"
    )


@pytest.mark.parametrize("seed", range(20))
def test_what_nobody_reads_is_refused_and_what_was_found_is_kept_aside(seed: int, tmp_path: Path) -> None:
    world = make_world(seed)
    subscribe(world, TOPIC, b"reader")
    reader = SubscriberClient(world, TOPIC, b"reader", b"only consumer")
    publisher = OutboxClient(world, tmp_path / "outbox")
    world.faults = True
    for _ in range(MESSAGES):
        publisher.add(world.dice.choice((TOPIC, NOBODY)))
        for _ in range(world.dice.randrange(0, 12)):
            turn(world, [publisher, reader])
    finish(world, publisher, [reader])
    got = {payload for _, payload in reader.got}
    publisher.file.close()
    contents = look(publisher.path)
    assert contents.waiting == []
    assert all(row.topic == NOBODY for row in contents.quarantined)
    for topic, payload in publisher.put:
        if payload in publisher.saved:
            assert (payload in got) == (topic == TOPIC)
    told = {payload for topic, payload in publisher.put if topic == NOBODY} & publisher.refused
    saved_for_nobody = {payload for topic, payload in publisher.put if topic == NOBODY} & publisher.saved
    assert len(saved_for_nobody - told) <= sum(row.messages for row in contents.quarantined)


def test_an_outbox_that_meets_another_store_sends_only_what_was_never_sent(tmp_path: Path) -> None:
    world = make_world(1)
    subscribe(world, TOPIC, b"reader")
    publisher = OutboxClient(world, tmp_path / "outbox")
    publisher.add(TOPIC)
    for _ in range(TURNS_AT_MOST):
        turn(world, [publisher])
        if any(queue.flying for queue in publisher.core.queues.values()):
            break
    publisher.listen()
    publisher.under_way.clear()
    publisher.job = None
    publisher.file.close()
    elsewhere = make_world(2)
    elsewhere.store._identity = Identity(broker=2, store_uuid=bytes(range(16)), timeline=1)
    elsewhere._crash()
    subscribe(elsewhere, TOPIC, b"reader")
    reader = SubscriberClient(elsewhere, TOPIC, b"reader", b"only consumer")
    publisher.world = elsewhere
    publisher.reconnect_as_new()
    publisher.add(TOPIC)
    finish(elsewhere, publisher, [reader])
    assert [payload for _, payload in reader.got] == [b"message 1"]
    told = publisher.core.take_error()
    assert isinstance(told, ClarionError)
    assert "1 message " in str(told)
    publisher.file.close()
    assert [(row.topic, row.messages) for row in look(publisher.path).quarantined] == [(TOPIC, 1)]
