"""Linked brokers in random graphs: links break, one way or both, brokers crash, disks are full, clocks jump, packets
come again, topics are deleted, subscribers come and go; each message comes once, in order."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import pytest
from tests.property.linked_brokers import Publisher, SimBroker, Wire, World

_TOPICS = [b"a/x", b"a/y", b"b/z"]
_PATTERNS = [b"a/#", b"b/*"]
_EVENTS = 400
_HOUR_US = 3600 * 1_000_000


class Reader:
    """A subscription, and from where on it must have everything of each origin."""

    def __init__(self, world: World, broker: int, wanted: bytes, name: bytes) -> None:
        self.world, self.broker, self.wanted, self.name = world, broker, wanted, name
        here = world.brokers[broker]
        self.cursors: dict[bytes, int] = {}
        for topic in self.topics():
            row = here.store.topic(topic)
            self.cursors[topic] = row.next_offset if row is not None else 0
        here.unanswered_subscribe(wanted, name)
        here.step()
        self.must_from: dict[tuple[int, bytes], int] = {}

    def topics(self) -> list[bytes]:
        if self.wanted not in _PATTERNS:
            return [self.wanted]
        return [topic for topic in _TOPICS if topic.startswith(self.wanted[:2])]

    def note_confirmed(self) -> None:
        """Note, of origins that confirmed all, that from now on everything comes."""
        here = self.world.brokers[self.broker]
        if not here.is_running or not here.engine.interest.is_settled:
            return
        wanted = here.engine.interest.wanted
        if self.wanted not in wanted and not any(pattern in wanted for pattern in _PATTERNS if pattern != self.wanted):
            return
        for origin, inbound in here.links._inbound.items():
            if inbound.is_confirmed:
                for topic in self.topics():
                    if (origin, topic) not in self.must_from and self._is_subscribed(origin, topic):
                        self.must_from[origin, topic] = _count(self.world, origin, topic)

    def _is_subscribed(self, origin: int, topic: bytes) -> bool:
        """Return whether an origin knows of this broker's interest in a topic, which may have been deleted there."""
        there = self.world.brokers[origin]
        row, name = there.store.topic(topic), b"$link/%08x" % self.broker
        if row is None:
            return any(who == name and pattern[:2] == topic[:2] for pattern, who in _patterns(there))
        return any(each.name == name for each in there.store.subscriptions(row.number))

    def on_deleted(self, broker: int, topic: bytes) -> None:
        """Take in that a topic was deleted, with all that was on it."""
        if broker != self.broker:
            self.must_from.pop((broker, topic), None)
        elif topic in self.cursors:
            self.cursors[topic] = 0
            for origin, name in self.must_from:
                if name == topic:
                    self.must_from[origin, topic] = _count(self.world, origin, topic)

    def check(self) -> int:
        count = 0
        here = self.world.brokers[self.broker]
        for topic in self.topics():
            log = here.log(topic, self.cursors[topic])
            for origin in self.world.brokers:
                if origin == self.broker:
                    continue
                published = self.world.published[origin, topic]
                place = {published[key]: n for n, key in enumerate(sorted(published))}
                places = [place[payload] for payload in log.get(origin, [])]
                assert places == sorted(set(places)), f"{self.broker} has {topic!r} of {origin} twice, or out of order"
                promised = range(self.must_from[origin, topic], len(published))
                missing = set(promised) - set(places)
                assert not missing, f"{self.broker} misses {sorted(missing)[:9]} of {origin} on {topic!r}"
                count += len(promised)
        return count


def _patterns(broker: SimBroker) -> list[tuple[bytes, bytes]]:
    return [(row.pattern, row.name) for row in broker.store.patterns()]


def _count(world: World, origin: int, topic: bytes) -> int:
    """Return how many messages were put on a topic, or may have been."""
    waiting = [publisher.waiting for publisher in world.brokers[origin].publishers]
    under_way = sum(len(put.payloads) for put in waiting if put is not None and put.topic == topic)
    return len(world.published[origin, topic]) + under_way


def _random_graph(dice: Random) -> list[Wire]:
    """Return links that connect 3 to 7 brokers, some in circles."""
    count = dice.randrange(3, 8)
    pairs = {(dice.randrange(1, broker), broker) for broker in range(2, count + 1)}
    for _ in range(dice.randrange(0, count)):
        one, other = dice.sample(range(1, count + 1), 2)
        pairs.add((min(one, other), max(one, other)))
    return [pair if dice.random() < 0.5 else pair[::-1] for pair in sorted(pairs)]


class Campaign:
    """One run: what goes wrong, by the dice, and what must hold at its end."""

    def __init__(self, seed: int) -> None:
        dice = Random(seed)
        self.wires = _random_graph(dice)
        self.world = World(seed, self.wires, retention="until-read" if seed % 3 else "keep")
        self.world.repeats = dice.choice((0.0, 0.05, 0.3))
        self.dice = self.world.dice
        if seed % 4 == 1:
            self.world.bytes_per_s = {wire: dice.choice((5e3, 50e3)) for wire in self.wires[::2]}
        for broker in range(1, max(map(max, self.wires)) + 1):
            made = self.world.add(broker)
            made.publishers += [Publisher(made, number) for number in range(1, dice.randrange(1, 4))]
        self.readers: list[Reader] = []
        self.names = 0
        self.mends: list[tuple[float, Wire | int]] = []  # what is to work again, and when

    def run(self) -> int:
        """Return how many messages somebody was promised, and got."""
        world = self.world
        world.run(4)
        for _ in range(_EVENTS):
            self._something()
            for broker in world.brokers.values():
                for publisher in broker.publishers:
                    if self.dice.random() < 0.3:
                        publisher.put(self.dice.choice(_TOPICS), self.dice.randrange(1, 4))
            world.step(self.dice.choice((0.01, 0.05, 0.3)))
            self._mend()
            for reader in self.readers:
                reader.note_confirmed()
        self._mend(at_once=True)
        world.deaf.clear()
        world.run(35, 0.25)
        for _ in range(40):
            if self._is_done():
                break
            world.run(5, 0.25)
        for reader in self.readers:
            reader.note_confirmed()
        for broker in world.brokers.values():
            for told in broker.links.status(world.now)["brokers"]:
                assert told["reachable"], (broker.broker, told)
                assert not told["lag_messages"], (broker.broker, told)
        return sum(reader.check() for reader in self.readers)

    def _is_done(self) -> bool:
        told = [each for one in self.world.brokers.values() for each in one.links.status(one.now)["brokers"]]
        waiting = any(each.waiting for one in self.world.brokers.values() for each in one.publishers)
        return not waiting and all(each["reachable"] and not each["lag_messages"] for each in told)

    def _something(self) -> None:
        world, dice, happens = self.world, self.dice, self.dice.random()
        alive = [broker for broker in world.brokers.values() if broker.is_running]
        healthy = [broker for broker in alive if world.now_s > broker.fails_until_s]
        if happens < 0.04 and len(self.readers) < 10 and healthy:
            self.names += 1
            wanted = dice.choice(_TOPICS + _PATTERNS)
            self.readers.append(Reader(world, dice.choice(healthy).broker, wanted, b"r%d" % self.names))
        elif happens < 0.05 and self.readers:
            reader = dice.choice(self.readers)
            if world.brokers[reader.broker] in healthy:
                world.brokers[reader.broker].unsubscribe(reader.wanted, reader.name)
                self.readers.remove(reader)
        elif happens < 0.07:
            self._break(dice.choice(self.wires))
        elif happens < 0.08 and len(alive) > 2:
            crashed = dice.choice(alive)
            crashed.crash()
            self.mends.append((world.now_s + dice.random() * 10, crashed.broker))
        elif happens < 0.09:
            dice.choice(alive).fails_until_s = world.now_s + dice.choice((0.1, 1.0, 5.0))
        elif happens < 0.10:
            dice.choice(alive).clock_off_us = dice.choice((-30 * 24, -1, 0, 1, 30 * 24)) * _HOUR_US
        elif happens < 0.11 and healthy:
            self._delete(dice.choice(healthy), dice.choice(_TOPICS))

    def _break(self, wire: Wire) -> None:
        world, dice = self.world, self.dice
        if dice.random() < 0.3:
            world.deaf.add((wire, dice.choice(wire)))
        else:
            world.wires[wire] = False
            world.cut(wire)
        self.mends.append((world.now_s + dice.choice((0.5, 5.0, 60.0)), wire))

    def _delete(self, broker: SimBroker, topic: bytes) -> None:
        waiting = [each.waiting for each in broker.publishers]
        if broker.store.topic(topic) is None or any(put is not None and put.topic == topic for put in waiting):
            return
        broker.delete(topic)
        self.readers = [each for each in self.readers if (each.broker, each.wanted) != (broker.broker, topic)]
        for reader in self.readers:
            reader.on_deleted(broker.broker, topic)

    def _mend(self, *, at_once: bool = False) -> None:
        world = self.world
        due = [each for each in self.mends if at_once or each[0] <= world.now_s]
        self.mends = [each for each in self.mends if each not in due]
        for _, what in due:
            if isinstance(what, tuple):
                world.wires[what] = True
                world.deaf -= {(what, broker) for broker in what}
            elif not world.brokers[what].is_running:
                world.brokers[what].start()


@pytest.mark.parametrize("seed", range(14))
def test_links_neither_lose_nor_repeat(seed: int) -> None:
    assert Campaign(seed).run(), "nobody got anything: the test tests nothing"


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
