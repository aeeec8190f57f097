"""Readers whose gets and fetches say what is acked, through a network that loses and repeats, and a broker that dies:
everything is handed out once, nothing is acked before, and what is said to be durable is on disk."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.property.lossy_network import Client, PublisherClient, ReadingClient, World
from tests.property.test_lossy_network import make_world, run, subscribe

from clarion.subscriber.core_state import FetchSettings
from clarion.subscriber.subscriber_core import Flush, Get, SubscriberCore, Topics
from clarion.wire.frames import Kind

ONE, PATTERN = b"news", b"feeds/#"
FEEDS = tuple(b"feeds/%d" % each for each in range(4))
MESSAGES = 60


class CallingClient(ReadingClient):
    """Gets, several calls at a time, each of which acks what those before brought; flushes; stops waiting."""

    def __init__(self, world: World, topics: Topics, seed: bytes) -> None:
        Client.__init__(self, world)
        settings = FetchSettings(fetch_bytes=300, prefetch=world.dice.random() < 0.5)
        self.core = SubscriberCore(b"reader", "", 10_000.0, settings, auto_ack=True, seed=seed)
        self.exchange.seen.version = 2
        self.topics = topics
        self.got: list[tuple[bytes, int, bytes]] = []  # topic, offset, payload
        self.handed: Counter[bytes] = Counter()  # by topic, how many
        self.acked: Counter[bytes] = Counter()  # the same, of those that a later call acked
        self._calls: list[tuple[Any, Counter[bytes]]] = []  # with what was acked when it began
        self.flushed = 0
        self.sent: Counter[tuple[int, bool]] = Counter()  # kind of a request, and whether it has acks

    def send(self, send: Any) -> None:
        body = send.body
        self.sent[send.kind, bool(getattr(body, "acked", ()) or getattr(body, "acks", ()))] += 1
        super().send(send)

    def turn(self) -> None:
        self.session_turn()
        self.core_turn()
        dice = self.world.dice
        if len(self._calls) < (2 if dice.random() < 0.2 else 1) and dice.random() < 0.8:
            wait_s = dice.choice((0.0, 0.05, 1.0))
            self.begin(Flush(None) if dice.random() < 0.1 else Get(self.topics, dice.choice((1, 3, 100)), wait_s))
        self._take_results()
        if self._calls and self.world.chance(0.02):
            call, _ = self._calls.pop()
            self.core.cancel(call, self.world.now_s)
            self._take_results()
        self.perform()

    def begin(self, call: Get | Flush) -> None:
        self._take_results()
        if isinstance(call, Get):
            self.acked = self.handed.copy()
        self.core.begin(call, self.world.now_s, 0.0)
        self._calls.append((call, self.acked.copy()))
        self._take_results()
        self.perform()

    def _take_results(self) -> None:
        done = [(call, acked) for call, acked in self._calls if call.done]
        self._calls = [(call, acked) for call, acked in self._calls if not call.done]
        for call, acked in done:
            parts = call.outcome()
            if isinstance(call, Flush):
                self.flushed += 1
                self.check_on_disk(acked)
            for part in parts or ():
                self.got += [(part.topic, message.offset, message.payload) for message in part]
                self.handed[part.topic] += len(part)

    def is_idle(self) -> bool:
        return not self._calls

    def cursors(self) -> dict[bytes, int]:
        """Return how far each topic is acked on disk."""
        found: dict[bytes, int] = {}
        for topic in (ONE, *FEEDS):
            row = self.world.store.topic(topic)
            for subscription in [] if row is None else self.world.store.subscriptions(row.number):
                found[topic] = subscription.cursor
        return found

    def check_on_disk(self, acked: Counter[bytes]) -> None:
        cursors = self.cursors()
        for topic, count in acked.items():
            assert cursors[topic] >= count, "it was said to be durable"

    def check_none_too_early(self) -> None:
        for topic, cursor in self.cursors().items():
            assert cursor <= self.acked[topic], "nobody acked it"


@pytest.mark.parametrize("topics", [ONE, PATTERN, FEEDS])
@pytest.mark.parametrize("seed", range(20))
def test_all_is_handed_out_once_and_acked_after_that(seed: int, topics: Topics) -> None:
    world = make_world(seed)
    for each in (topics,) if isinstance(topics, bytes) else topics:
        subscribe(world, each, b"reader")
    publisher = PublisherClient(world, b"publisher")
    reader = CallingClient(world, topics, b"only consumer")
    clients = [publisher, reader]
    world.faults = True
    for _ in range(MESSAGES):
        publisher.add(ONE if topics == ONE else world.dice.choice(FEEDS))
        for _ in range(world.dice.randrange(0, 12)):
            world.turn()
            for client in clients:
                client.turn()
            reader.check_none_too_early()
    world.faults = False
    run(world, clients, lambda: publisher.done() and len(reader.got) >= len(publisher.put))
    assert len(reader.got) == len(publisher.put)
    for topic in (ONE, *FEEDS):
        mine = [(offset, payload) for of, offset, payload in reader.got if of == topic]
        assert [offset for offset, _ in mine] == list(range(len(mine)))
        assert [payload for _, payload in mine] == [put[1] for put in publisher.put if put[0] == topic]
    run(world, clients, reader.is_idle)
    reader.begin(Get(topics, 1, 0.0))
    run(world, clients, reader.is_idle)
    flushed = reader.flushed
    reader.begin(Flush(None))
    run(world, clients, lambda: reader.flushed > flushed)
    world._crash()
    second = CallingClient(world, topics, b"second consumer")
    second.begin(Get(topics, 100, 0.0))
    run(world, [second], second.is_idle, only_session=False)
    assert second.got == []


@pytest.mark.parametrize(("topics", "kind"), [(ONE, Kind.GET), (PATTERN, Kind.FETCH)])
def test_gets_and_fetches_do_carry_acks_here(topics: bytes, kind: Kind) -> None:
    """Otherwise the worlds above would prove little."""
    world = make_world(1)
    subscribe(world, topics, b"reader")
    publisher, reader = PublisherClient(world, b"publisher"), CallingClient(world, topics, b"consumer")
    for _ in range(MESSAGES):
        publisher.add(ONE if topics == ONE else FEEDS[0])
        run(world, [publisher, reader], lambda: publisher.done() and len(reader.got) == len(publisher.put))
    assert reader.sent[kind, True] > MESSAGES // 2
    assert reader.sent[Kind.ACK, True] + reader.sent[Kind.ACK_MANY, True] < MESSAGES // 2
