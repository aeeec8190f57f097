"""Through a network that loses, repeats and reorders, and a broker that dies, everything arrives once, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.property.lossy_network import Client, PublisherClient, SubscriberClient, World

from clarion.broker.engine import Limits
from clarion.model.errors import NoSubscriber, PublisherExpired
from clarion.store.port import UNTIL_READ
from clarion.wire import bodies
from clarion.wire.frames import Kind

TOPIC, NOBODY = b"news", b"nobody reads this"
MESSAGES = 60
TURNS_AT_MOST = 20_000


def make_world(seed: int) -> World:
    world = World(seed, Limits())
    world.limits = Limits(
        max_topics_in_memory=1,
        topic_queue_size=world.dice.choice((0, 10, 1000)),
        memory_bytes=world.dice.choice((0, 3000, 100_000)),
        topic_unload_interval_s=0.05,
        stale_msg_interval_s=0.05,
        topic_max_bytes=world.dice.choice((700, 1 << 30)),
        credit_max_messages=world.dice.choice((1, 5, 1000)),
        credit_s=0.1,
        disk_reserve_bytes=0,
        default_retention=UNTIL_READ,
    )
    world.faults = False
    world._crash()
    return world


def subscribe(world: World, topic: bytes, name: bytes) -> None:
    """Make the subscription before anything goes wrong."""
    client = SubscriberClient(world, topic, name, b"makes it")
    client.ask(Kind.SUBSCRIBE, bodies.Subscribe(topic, name), client.dropped.append)
    run(world, [client], lambda: not len(client.exchange), only_session=True)


def run(world: World, clients: Sequence[Client], done: Callable[[], bool], *, only_session: bool = False) -> None:
    """Let time pass until it is done."""
    for _ in range(TURNS_AT_MOST):
        if done():
            return
        world.turn()
        for client in clients:
            if only_session:
                client.session_turn()
            else:
                client.turn()
    raise AssertionError("it hangs")


@pytest.mark.parametrize("seed", range(40))
def test_everything_arrives_once_and_in_order(seed: int) -> None:
    world = make_world(seed)
    subscribe(world, TOPIC, b"reader")
    publishers = [PublisherClient(world, b"publisher %d" % place) for place in range(2)]
    reader = SubscriberClient(world, TOPIC, b"reader", b"only consumer")
    world.faults = True
    for _ in range(MESSAGES):
        for publisher in publishers:
            publisher.add(NOBODY if world.dice.random() < 0.1 else TOPIC)
        for _ in range(world.dice.randrange(0, 8)):
            turn(world, publishers, reader)
    for _ in range(100):
        turn(world, publishers, reader)
    world.faults = False
    stored = [item for publisher in publishers for item in publisher.put if item[0] == TOPIC]
    run(
        world,
        [*publishers, reader],
        lambda: all(map(PublisherClient.done, publishers)) and len(reader.got) >= len(stored) and acked(reader),
    )
    assert reader.reading.error is None
    assert [offset for offset, _ in reader.got] == list(range(len(stored)))
    for topic, payload, sheaf, place in (item for publisher in publishers for item in publisher.put):
        if topic == NOBODY:
            assert isinstance(sheaf.error, NoSubscriber)
        else:
            assert sheaf.error is None
            assert reader.got[sheaf.first_offset + place] == (sheaf.first_offset + place, payload)
    for publisher in publishers:
        mine = [payload for _, payload in reader.got if payload.startswith(publisher.name)]
        assert mine == [payload for topic, payload, _, _ in publisher.put if topic == TOPIC]
        assert publisher.sending.buffered_bytes == 0
    check_nothing_comes_again(world)


def turn(world: World, publishers: list[PublisherClient], reader: SubscriberClient) -> None:
    world.turn()
    for client in (*publishers, reader):
        client.turn()


def acked(reader: SubscriberClient) -> bool:
    return reader.reading.acks_done()


def check_nothing_comes_again(world: World) -> None:
    """Who takes the subscription over after all was acked gets nothing, even after a crash."""
    world._crash()
    second = SubscriberClient(world, TOPIC, b"reader", b"second consumer")
    run(world, [second], lambda: second.reading.empty_get > 0)
    assert second.got == []


@pytest.mark.parametrize("seed", range(20))
def test_a_publisher_that_is_forgotten_fails_what_was_under_way_and_goes_on(seed: int) -> None:
    """What failed may be stored, but never twice; what was confirmed is stored; the rest goes on in order."""
    world = make_world(seed)
    subscribe(world, TOPIC, b"reader")
    publisher = PublisherClient(world, b"publisher")
    reader = SubscriberClient(world, TOPIC, b"reader", b"only consumer")
    world.faults = True
    for count in range(MESSAGES):
        publisher.add(TOPIC)
        for _ in range(world.dice.randrange(0, 4)):
            turn(world, [publisher], reader)
        if count % 20 == 10:
            for identity in publisher.sending.identities():
                reader.ask(Kind.FORGET, bodies.Forget(identity), reader.dropped.append)
    world.faults = False
    run(world, [publisher, reader], lambda: publisher.done() and acked(reader))
    confirmed = [item for item in publisher.put if item[2].error is None]
    last = max(sheaf.first_offset + place for _, _, sheaf, place in confirmed)
    run(world, [publisher, reader], lambda: len(reader.got) > last and acked(reader))
    payloads = [payload for _, payload in reader.got]
    assert len(payloads) == len(set(payloads))
    for _, payload, sheaf, place in confirmed:
        assert payloads[sheaf.first_offset + place] == payload
    assert all(isinstance(sheaf.error, PublisherExpired) for _, _, sheaf, _ in publisher.put if sheaf.error)
    order = [payload for _, payload, _, _ in publisher.put]
    assert payloads == [payload for payload in order if payload in set(payloads)]


def test_the_dice_do_their_work() -> None:
    """The worlds above see crashes, failed commits and broken connections; otherwise they would prove little."""
    world = make_world(1)
    world.faults = True
    reader = SubscriberClient(world, TOPIC, b"reader", b"only consumer")
    publisher = PublisherClient(world, b"publisher")
    for _ in range(2000):
        publisher.add(TOPIC)
        turn(world, [publisher], reader)
    assert min(world.crashes, world.failures, world.breaks, publisher.exchange.resent, publisher.exchange.strays) > 2
