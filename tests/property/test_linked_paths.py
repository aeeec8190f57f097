"""Paths over links that break and brokers that crash, beside the truth: the links that each batch really came by, the
logs that it came into, and who acked which of its messages. All that is told is true, and all of it is told."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from tests.property.linked_brokers import SimBroker, World

from clarion.model.ids import MessageId
from clarion.wire.batch import Batch, key_of

_WIRES = [(1, 2), (2, 3), (3, 4), (4, 1), (5, 3), (2, 5)]
_TOPICS = [b"a/x", b"a/y"]
_NOT_TOLD = "the broker before it has no claim, but this one is sure"


class Reader:
    """A subscription, which acks what it likes, and what it has acked."""

    def __init__(self, broker: int, wanted: bytes, name: str, *, acks: bool) -> None:
        self.broker, self.wanted, self.name, self.acks = broker, wanted, name, acks
        self.topics = _TOPICS if wanted == b"a/#" else [wanted]
        self.has_left = False
        self.acked: dict[bytes, set[int]] = defaultdict(set)  # offsets, by topic

    def ack(self, world: World, here: SimBroker) -> None:
        """Ack some messages: from the first one on that is not acked, or anywhere."""
        topic = world.dice.choice(self.topics)
        acked, end = self.acked[topic], here.end_of(topic)
        left = [offset for offset in range(end) if offset not in acked]
        if not left:
            return
        start = world.dice.choice((left[0], left[0], world.dice.choice(left)))
        stop = world.dice.randrange(start, end) + 1
        if here.ack(topic, self.name.encode(), start, stop):
            acked.update(range(start, stop))


class Campaign:
    """Batches put while links break, brokers crash and readers ack and leave; and where they are in logs."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, _WIRES)
        self.readers = [
            Reader(1, b"a/x", "anna", acks=True),
            Reader(1, b"a/#", "bert", acks=False),
            Reader(4, b"a/x", "carl", acks=False),
            Reader(4, b"a/y", "dora", acks=True),
            Reader(5, b"a/y", "emil", acks=False),
            Reader(3, b"a/#", "fred", acks=True),
            Reader(5, b"a/#", "gina", acks=True),
        ]
        # By key and broker: the topic, the first offset, and how many messages.
        self.stored: dict[tuple[int, int], dict[int, tuple[bytes, int, int]]] = defaultdict(dict)
        self._seen: dict[tuple[int, bytes], int] = defaultdict(int)
        self._down_until: dict[int, float] = {}

    def run(self) -> None:
        world, dice = self.world, self.world.dice
        for number in range(1, 6):
            world.add(number)
        world.run(4)
        for reader in self.readers:
            world.brokers[reader.broker].unanswered_subscribe(reader.wanted, reader.name.encode())
        world.run(4)
        for _ in range(250):
            self._break()
            for broker in self._alive():
                if dice.random() < 0.4:
                    broker.publishers[0].put(dice.choice(_TOPICS), dice.randrange(1, 4))
            self._step(dice.choice((0.01, 0.05, 0.3)))
            self._read()
        for wire in _WIRES:
            world.wires[wire] = True
        for down in self._down_until:
            world.brokers[down].start()
        for _ in range(600):
            self._step(0.1)
            if dice.random() < 0.1:
                self._read()

    def _alive(self) -> list[SimBroker]:
        return [broker for broker in self.world.brokers.values() if broker.is_running]

    def _break(self) -> None:
        world, dice = self.world, self.world.dice
        happens, alive = dice.random(), self._alive()
        if happens < 0.02:
            wire = dice.choice(_WIRES)
            world.wires[wire] = not world.wires[wire]
            world.cut(wire)
        elif happens < 0.04 and len(alive) > 2:
            crashed = dice.choice(alive)
            crashed.crash()
            self._down_until[crashed.broker] = world.now_s + dice.random() * 8
        for down, until_s in list(self._down_until.items()):
            if world.now_s >= until_s:
                del self._down_until[down]
                world.brokers[down].start()

    def _step(self, seconds: float) -> None:
        """Let time pass, and note what came into logs."""
        self.world.step(seconds)
        self._look()

    def _look(self) -> None:
        for broker in self.world.brokers.values():
            for topic in _TOPICS:
                seen, end = self._seen[broker.broker, topic], broker.end_of(topic)
                row = broker.store.topic(topic)
                for batch in broker.store.batches(row.number, seen, 1 << 30, 1 << 40) if row and seen < end else ():
                    where = (topic, batch.first_offset, batch.count)
                    assert self.stored[key_of(batch.data)].setdefault(broker.broker, where) == where, (
                        "it is there twice"
                    )
                    self._seen[broker.broker, topic] = batch.first_offset + Batch.parse(batch.data).count

    def _read(self) -> None:
        """Have readers ack, and leave."""
        world, dice = self.world, self.world.dice
        for reader in self.readers:
            here = world.brokers[reader.broker]
            if not reader.acks or reader.has_left or not here.is_running or dice.random() < 0.7:
                continue
            if dice.random() < 0.005:
                here.unsubscribe(reader.wanted, reader.name.encode())
                reader.has_left = True
            else:
                reader.ack(world, here)
            self._look()

    # What is true.

    def had(self, key: tuple[int, int]) -> set[int]:
        """Return the brokers that had a batch and know it: it is in their logs, or that it came is on their disks, or
        will be; as far as there is a way to each through others of them."""
        edges = self.world.kept[key] | {
            (neighbour, broker.broker)
            for broker in self.world.brokers.values()
            for came, neighbour in broker.unsaved_ways
            if came == key
        }
        know = {*self.stored[key], *(to for _, to in edges)}
        found, new = set(), {key[0] >> 32}
        while new:
            found |= new
            near = {b for a, b in (*_WIRES, *(wire[::-1] for wire in _WIRES)) if a in new}
            new = near & know - found
        return found

    def acked(self, key: tuple[int, int], place: int) -> set[tuple[int, str]]:
        """Return who acked a message of a batch: at which broker, and the name."""
        return {
            (reader.broker, reader.name)
            for reader in self.readers
            if (where := self.stored[key].get(reader.broker)) and where[1] + place in reader.acked[where[0]]
        }

    def waiting(self, key: tuple[int, int], place: int) -> set[tuple[int, str]]:
        """Return who is still to ack it."""
        return {
            (reader.broker, reader.name)
            for reader in self.readers
            if not reader.has_left and (where := self.stored[key].get(reader.broker)) and where[0] in reader.topics
        } - self.acked(key, place)


@pytest.mark.parametrize("seed", range(8))
def test_each_traced_path_is_the_one_that_the_batch_took(seed: int) -> None:
    campaign = Campaign(seed)
    campaign.run()
    dice = campaign.world.dice
    keys = sorted(campaign.stored)
    received = 0
    for key in dice.sample(keys, min(80, len(keys))):
        (count,) = {count for _, _, count in campaign.stored[key].values()}
        received += _check(campaign, key, dice.randrange(count))
    assert received > 30


def _check(campaign: Campaign, key: tuple[int, int], place: int) -> int:
    """Trace a message; return how many readers are told to have it."""
    world, message = campaign.world, MessageId(key[0] >> 32, key[0] & 0xFFFFFFFF, key[1], place)
    told = world.dice.choice(list(world.brokers.values())).trace(message)
    assert not told["unsupported"]
    assert not told["unknown"]
    stored = campaign.stored[key]
    assert [each["topic"].encode() for each in told["topics"]] == [*{topic for topic, _, _ in stored.values()}]
    ways = _ways(told["path"])
    stops = {way[-1]: stop for way, stop in ways}
    assert len(stops) == len(ways), "a broker is told twice"
    assert stops.keys() == campaign.had(key), told
    assert stored.keys() <= stops.keys(), told
    for way, stop in ways:
        assert way[0] == message.broker
        assert stop["state"] == ("routed" if way[1:] else "published")
        edges = set(pairwise(way))
        if way[-1] in stored:
            assert edges <= world.came[key], told
        elif not edges <= world.came[key]:  # one before it crashed before it had noted anything
            assert _NOT_TOLD in [stops[broker]["note"] for broker in way], told
    received = {
        (at, each["subscriber"]) for at, stop in stops.items() for each in stop["receivers"] if each["received"]
    }
    assert received == campaign.acked(key, place), told
    assert not any(each["went_past"] for stop in stops.values() for each in stop["receivers"])
    waiting = {(at, each.get("subscriber", "?")) for at, stop in stops.items() for each in stop["waiting"]}
    assert waiting == campaign.waiting(key, place), told
    return len(received)


def _ways(stop: dict[str, Any], before: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """Return the way to each broker of a tree, and that broker."""
    way = (*before, int(stop["broker"], 16))
    return [(way, stop), *(each for onward in stop["onward"] for each in _ways(onward, way))]
