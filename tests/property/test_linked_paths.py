"""Paths over links that break and brokers that crash, beside the truth: the links that each batch really came by."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from tests.property.linked_brokers import World

from clarion.model.ids import MessageId

_WIRES = [(1, 2), (2, 3), (3, 4), (4, 1), (5, 3), (2, 5)]
_TOPICS = [b"a/x", b"a/y"]
_READERS = [(1, b"a/x"), (4, b"a/x"), (5, b"a/y"), (3, b"a/#")]


@pytest.mark.parametrize("seed", range(8))
def test_each_traced_path_is_one_that_the_batch_came_by(seed: int) -> None:
    world = World(seed, _WIRES)
    dice = world.dice
    for number in range(1, 6):
        world.add(number)
    world.run(4)
    for number, wanted in _READERS:
        world.brokers[number].unanswered_subscribe(wanted, b"reader")
    world.run(4)
    down_until: dict[int, float] = {}
    for _ in range(250):
        alive = [broker for broker in world.brokers.values() if broker.is_running]
        happens = dice.random()
        if happens < 0.02:
            wire = dice.choice(_WIRES)
            world.wires[wire] = not world.wires[wire]
            world.cut(wire)
        elif happens < 0.04 and len(alive) > 2:
            crashed = dice.choice(alive)
            crashed.crash()
            down_until[crashed.broker] = world.now_s + dice.random() * 8
        for down, until_s in list(down_until.items()):
            if world.now_s >= until_s:
                del down_until[down]
                world.brokers[down].start()
        for broker in alive:
            if dice.random() < 0.4:
                broker.publishers[0].put(dice.choice(_TOPICS), dice.randrange(1, 4))
        world.step(dice.choice((0.01, 0.05, 0.3)))
    for wire in _WIRES:
        world.wires[wire] = True
    for down in down_until:
        world.brokers[down].start()
    world.run(60, 0.1)
    assert sum(_check(world, number, wanted) for number, wanted in _READERS) > 10


def _check(world: World, number: int, wanted: bytes) -> int:
    """Trace some of what a reader has from others; return how many."""
    here = world.brokers[number]
    keys = [key for topic in (_TOPICS if wanted == b"a/#" else [wanted]) for key in here.keys(topic, 0)]
    others = [key for key in keys if key[0] >> 32 != number]
    some: list[tuple[int, int]] = world.dice.sample(others, min(8, len(others)))
    for who, stamp in some:
        message = MessageId(who >> 32, who & 0xFFFFFFFF, stamp, 0)
        told = world.dice.choice(list(world.brokers.values())).trace(message)
        way, stop = {each[-1]: (each, stop) for each, stop in _ways(told["path"])}[number]
        assert way[0] == message.broker
        assert set(pairwise(way)) <= world.came[who, stamp], told
        assert not told["unsupported"]
        assert not told["unknown"]
        (topic,) = told["topics"]
        assert (who, stamp) in here.keys(topic["topic"].encode(), 0)
        assert [each["subscriber"] for each in stop["waiting"]] == ["reader"]  # which never acks
    return len(some)


def _ways(stop: dict[str, Any], before: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], dict[str, Any]]]:
    """Return the way to each broker of a tree, and that broker."""
    way = (*before, int(stop["broker"], 16))
    return [(way, stop), *(each for onward in stop["onward"] for each in _ways(onward, way))]
