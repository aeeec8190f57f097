"""Linked brokers in a cyclic graph: links break, brokers crash, subscribers come and go; each message comes once."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from tests.property.linked_brokers import World

from clarion.model.ids import MessageId

_WIRES = [(1, 2), (2, 3), (3, 4), (4, 1), (5, 3), (2, 5)]
_TOPICS = [b"a/x", b"a/y", b"b/z"]
_PATTERNS = [b"a/#", b"b/*"]


class Reader:
    """A subscription, and from where on it must have everything of each origin."""

    def __init__(self, world: World, broker: int, wanted: bytes, name: bytes) -> None:
        self.world, self.broker, self.wanted, self.name = world, broker, wanted, name
        here = world.brokers[broker]
        self.cursors: dict[bytes, int] = {}
        for topic in _TOPICS if wanted in _PATTERNS else [wanted]:
            row = here.store.topic(topic)
            self.cursors[topic] = row.next_offset if row is not None else 0
        if wanted in _PATTERNS:
            here.unanswered_subscribe(wanted, name)
        else:
            here.subscribe(wanted, name)
        self.must_from: dict[tuple[int, bytes], int] = {}

    def topics(self) -> list[bytes]:
        if self.wanted not in _PATTERNS:
            return [self.wanted]
        return [topic for topic in _TOPICS if topic.startswith(self.wanted[:2])]

    def note_confirmed(self) -> None:
        """Note, of origins that confirmed all, that from now on everything comes."""
        here = self.world.brokers[self.broker]
        if not here.is_running or self.wanted not in here.engine.interest.wanted or here.engine.interest.news:
            covered = any(pattern in here.engine.interest.wanted for pattern in _PATTERNS if pattern != self.wanted)
            if not here.is_running or not covered:
                return
        for origin, inbound in here.links._inbound.items():
            if inbound.is_confirmed and not here.engine.interest.news:
                for topic in self.topics():
                    published = self.world.published[origin, topic]
                    waiting = self.world.brokers[origin].waiting
                    under_way = len(waiting.payloads) if waiting is not None and waiting.topic == topic else 0
                    self.must_from.setdefault((origin, topic), len(published) + under_way)

    def check(self) -> int:
        count = 0
        here = self.world.brokers[self.broker]
        for topic in self.topics():
            log = here.log(topic, self.cursors[topic])
            for origin in self.world.brokers:
                if origin == self.broker:
                    continue
                got, all_of_it = log.get(origin, []), self.world.published[origin, topic]
                place = {payload: n for n, payload in enumerate(all_of_it)}
                places = [place[payload] for payload in got]
                assert places == sorted(set(places)), f"{self.broker} has {topic!r} of {origin} twice, or out of order"
                promised = range(self.must_from[origin, topic], len(all_of_it))
                assert set(promised) <= set(places), f"{self.broker} misses some of {origin} on {topic!r}"
                count += len(promised)
        return count


@pytest.mark.parametrize("seed", range(12))
def test_links_neither_lose_nor_repeat(seed: int) -> None:
    world = World(seed, _WIRES, retention="until-read" if seed % 3 else "keep")
    dice = world.dice
    for number in range(1, 6):
        world.add(number)
    world.run(4)
    readers: list[Reader] = []
    names = 0
    down_until: dict[int, float] = {}
    for _ in range(500):
        happens = dice.random()
        alive = [broker for broker in world.brokers.values() if broker.is_running]
        if happens < 0.04 and len(readers) < 10:
            names += 1
            readers.append(Reader(world, dice.choice(alive).broker, dice.choice(_TOPICS + _PATTERNS), b"r%d" % names))
        elif happens < 0.05 and readers:
            reader = dice.choice(readers)
            if world.brokers[reader.broker].is_running:
                world.brokers[reader.broker].unsubscribe(reader.wanted, reader.name)
                readers.remove(reader)
        elif happens < 0.07:
            wire = dice.choice(_WIRES)
            world.wires[wire] = not world.wires[wire]
            world.cut(wire)
        elif happens < 0.08 and len(alive) > 2:
            crashed = dice.choice(alive)
            crashed.crash()
            down_until[crashed.broker] = world.now_s + dice.random() * 10
        for down, until_s in list(down_until.items()):
            if world.now_s >= until_s:
                del down_until[down]
                world.brokers[down].start()
        for broker in alive:
            if dice.random() < 0.5:
                broker.put(dice.choice(_TOPICS), dice.randrange(1, 4))
        world.step(dice.choice((0.01, 0.05, 0.3)))
        for reader in readers:
            reader.note_confirmed()
    for wire in _WIRES:
        world.wires[wire] = True
    for down in down_until:
        world.brokers[down].start()
    world.run(100, 0.1)
    for reader in readers:
        reader.note_confirmed()
    got = sum(reader.check() for reader in readers)
    assert got, "nobody got anything: the test tests nothing"
    for broker in world.brokers.values():
        for told in broker.links.status(world.now)["brokers"]:
            assert told["reachable"], told
            assert not told["lag_messages"], told
    check_paths(world, readers)


def check_paths(world: World, readers: list[Reader]) -> None:
    """Each path that is traced leads from the origin to this reader's broker, by links that the batch came by."""
    traced = 0
    for reader in readers:
        here = world.brokers[reader.broker]
        keys = [key for topic in reader.topics() for key in here.keys(topic, reader.cursors[topic])]
        others = [key for key in keys if key[0] >> 32 != reader.broker]
        for who, stamp in world.dice.sample(others, min(5, len(others))):
            message = MessageId(who >> 32, who & 0xFFFFFFFF, stamp, 0)
            told = world.dice.choice(list(world.brokers.values())).trace(message)
            ways = {way[-1]: way for way in ways_of(told["path"])}
            way = ways[reader.broker]
            assert way[0] == message.broker
            assert set(pairwise(way)) <= world.came[who, stamp], told
            assert not told["unsupported"]
            assert not told["unknown"]
            traced += 1
    assert traced


def ways_of(stop: dict[str, Any], before: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Return the way to each broker of a tree."""
    way = (*before, int(stop["broker"], 16))
    return [way, *(each for onward in stop["onward"] for each in ways_of(onward, way))]


def test_a_batch_crosses_a_link_once_and_only_where_somebody_subscribed() -> None:
    world = World(7, [(1, 2), (2, 3), (2, 4), (1, 5)])
    for broker in range(1, 6):
        world.add(broker)
    world.run(4)
    for broker in (2, 3, 4):
        world.brokers[broker].subscribe(b"t", b"s")
    world.run(4)
    for _ in range(10):
        world.brokers[1].put(b"t")
        world.run(0.3)
    world.run(3)
    assert world.carried == defaultdict(int, {(1, 2): 10, (2, 3): 10, (2, 4): 10})
