"""Requests of many topics through a network that loses, repeats and reorders, and a broker that dies: what was answered
comes to the reader of all topics once, in order and without a hole, and what was acked to nobody again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from tests.property.lossy_many import FetchClient, ManyPublisher
from tests.property.lossy_network import Client, World
from tests.property.test_lossy_network import make_world, run, subscribe

from clarion.broker.engine import fetches
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

PATTERN = b"feeds/#"
TOPICS = tuple(b"feeds/%d" % each for each in range(5))
BATCHES = 50


def turn(world: World, clients: Sequence[Client]) -> None:
    world.turn()
    for client in clients:
        client.turn()


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the search for topics take several turns."""
    monkeypatch.setattr(fetches, "_TOPICS_SCANNED", 2)


def prepared(
    seed: int, *, topics: tuple[bytes, ...] = (PATTERN,), ttl_ms: dict[bytes, int] | None = None
) -> tuple[World, list[ManyPublisher], FetchClient]:
    world = make_world(seed)
    for topic in topics:
        subscribe(world, topic, b"reader")
    publishers = [ManyPublisher(world, b"%d" % place, ttl_ms) for place in range(2)]
    reader = FetchClient(world, topics, b"only consumer")
    world.faults = True
    return world, publishers, reader


def confirmed(publishers: Sequence[ManyPublisher]) -> set[tuple[int, int, bytes]]:
    """Return number of the topic, offset and payload of all that was answered."""
    found = [
        (number, offset, payload)
        for publisher in publishers
        for number, log in publisher.confirmed().items()
        for offset, payload in log.items()
    ]
    assert len({(number, offset) for number, offset, _ in found}) == len(found), "two messages have one place"
    return set(found)


def check_order(publishers: Sequence[ManyPublisher], heard: Sequence[tuple[int, int, bytes]]) -> None:
    """What each publisher put on a topic came in its order."""
    for publisher in publishers:
        for log in publisher.logs:
            mine = [payload for number, _, payload in heard if number == log.number and of(publisher, payload)]
            wanted = [payload for batch in log.batches for payload in batch.payloads]
            assert mine == [payload for payload in wanted if payload in set(mine)]


def of(publisher: ManyPublisher, payload: bytes) -> bool:
    return payload.startswith(publisher.name + b" ")


@pytest.mark.parametrize("seed", range(24))
def test_what_was_answered_comes_once_in_order_and_without_a_hole(seed: int) -> None:
    topics = TOPICS if seed % 3 == 2 else (PATTERN,)
    world, publishers, reader = prepared(seed, topics=topics)
    for _ in range(BATCHES):
        for publisher in publishers:
            publisher.add(world.dice.choice(TOPICS))
        for _ in range(world.dice.randrange(0, 8)):
            turn(world, [*publishers, reader])
    for _ in range(50):
        turn(world, [*publishers, reader])
    world.faults = False
    clients = [*publishers, reader]
    run(world, clients, lambda: all(map(ManyPublisher.done, publishers)))
    stored = confirmed(publishers)
    run(world, clients, lambda: len(reader.heard) >= len(stored) and reader.acks_done())
    assert set(reader.heard) == stored
    assert len(reader.heard) == len(stored), "nothing came twice"
    assert (reader.reader.voided, reader.reader.left, reader.reader.gone) == (0, [], [])
    check_order(publishers, reader.heard)
    world._crash()
    second = FetchClient(world, topics, b"second consumer")
    run(world, [second], lambda: second.empty > 0)
    assert second.heard == [], "all was acked"


@pytest.mark.parametrize("seed", range(16))
def test_a_successor_gets_all_that_was_not_acked_and_nothing_that_was(seed: int) -> None:
    world, publishers, first = prepared(seed)
    for _ in range(BATCHES // 2):
        for publisher in publishers:
            publisher.add(world.dice.choice(TOPICS))
        for _ in range(world.dice.randrange(0, 8)):
            turn(world, [*publishers, first])
    acked = set(first.acked)
    first.reconnect()  # what it sent may still arrive, but it hears nothing any more
    second = FetchClient(world, (PATTERN,), b"second consumer")
    for _ in range(BATCHES // 2):
        for publisher in publishers:
            publisher.add(world.dice.choice(TOPICS))
        for _ in range(world.dice.randrange(0, 8)):
            turn(world, [*publishers, second])
    world.faults = False
    clients = [*publishers, second]
    run(world, clients, lambda: all(map(ManyPublisher.done, publishers)))
    stored = confirmed(publishers)
    wanted = {(number, offset) for number, offset, _ in stored}
    run(world, clients, lambda: second.acks_done() and _all_read(world, wanted))
    theirs = Counter((number, offset) for number, offset, _ in second.heard)
    assert not theirs.keys() & acked
    assert max(theirs.values(), default=1) == 1
    assert theirs.keys() | {(number, offset) for number, offset, _ in first.heard} == wanted
    assert set(second.heard) <= stored
    check_order(publishers, second.heard)


def _all_read(world: World, wanted: set[tuple[int, int]]) -> bool:
    ends = {number: 1 + max(offset for each, offset in wanted if each == number) for number, _ in wanted}
    return all(row.cursor >= end for number, end in ends.items() for row in world.store.subscriptions(number))


@pytest.mark.parametrize("seed", range(16))
def test_topics_that_are_deleted_sought_made_again_or_expire_disturb_no_other(seed: int) -> None:
    restless, sought, brief = TOPICS[0], TOPICS[1], TOPICS[4]
    world, publishers, reader = prepared(seed, ttl_ms={brief: 40})
    operator = Client(world)
    clients = [*publishers, reader, operator]
    for count in range(BATCHES):
        for publisher in publishers:
            publisher.add(world.dice.choice(TOPICS))
        for _ in range(world.dice.randrange(0, 8)):
            turn(world, clients)
        if count % 13 == 7:
            operator.ask(Kind.DELETE, bodies.Delete(restless), operator.dropped.append)
        if count % 17 == 9:
            operator.ask(Kind.SEEK, bodies.Seek(sought, b"reader", "earliest"), operator.dropped.append)
    world.faults = False
    run(world, clients, lambda: not len(operator.exchange))
    run(world, clients, lambda: all(map(ManyPublisher.done, publishers)))
    steady = {log.number for publisher in publishers for log in publisher.logs if log.topic in TOPICS[2:4]}
    stored = [each for each in confirmed(publishers) if each[0] in steady]

    def heard() -> list[tuple[int, int, bytes]]:
        return [each for each in reader.heard if each[0] in steady]

    run(world, clients, lambda: len(heard()) >= len(stored) and reader.acks_done())
    assert sorted(heard()) == sorted(stored)
    living = {row.topic.number: row.topic.next_offset for row in world.store.topics(b"", 100)}
    run(world, clients, lambda: _all_read(world, {(number, end - 1) for number, end in living.items() if end}))
    moved = {
        number for publisher in publishers for log in publisher.logs if log.topic == sought for number in [log.number]
    }
    assert {each for each in confirmed(publishers) if each[0] in moved} <= set(reader.heard)
    passing = [each for each in reader.heard if each[0] not in steady | moved]
    assert len(set(passing)) == len(passing), "nothing came twice"
    assert {code for _, code in reader.reader.left} <= {Code.NOT_SUBSCRIBED}


def test_the_dice_do_their_work() -> None:
    """The worlds above see sessions begun again, parts refused and all that can go wrong on the way."""
    seen: Counter[str] = Counter()
    for seed in range(6):
        world, publishers, reader = prepared(seed)
        for _ in range(300):
            publishers[0].add(world.dice.choice(TOPICS))
            turn(world, [*publishers, reader])
        seen.update(crashes=world.crashes, failures=world.failures, breaks=world.breaks, begins=reader.begins)
        seen.update(gaps=Code.GAP in publishers[0].codes, full=Code.TOPIC_FULL in publishers[0].codes)
    assert min(seen.values()) > 0, seen
