"""Through a network that loses, repeats and reorders, and a broker that dies, everything arrives once, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.property.lossy_network import LEASE_S, Client, PublisherClient, SubscriberClient, World
from tests.property.lossy_sharing import Hands, PipelineClient, SharingClient

from clarion.broker.engine import Limits
from clarion.model.errors import NoSubscriber, NoTopic, PublisherExpired
from clarion.model.options import SubscriptionOptions
from clarion.store.port import UNTIL_READ, Changes
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind

TOPIC, NOBODY, OUT = b"news", b"nobody reads this", b"done"
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


def subscribe(world: World, topic: bytes, name: bytes, options: SubscriptionOptions | None = None) -> None:
    """Make the subscription before anything goes wrong."""
    client = SubscriberClient(world, topic, name, b"makes it")
    body = bodies.Subscribe(topic, name, options=options or SubscriptionOptions())
    client.ask(Kind.SUBSCRIBE, body, client.dropped.append)
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
    for topic, payload, batch, place in (item for publisher in publishers for item in publisher.put):
        if topic == NOBODY:
            assert isinstance(batch.error, NoSubscriber)
        else:
            assert batch.error is None
            assert reader.got[batch.first_offset + place] == (batch.first_offset + place, payload)
    for publisher in publishers:
        mine = [payload for _, payload in reader.got if payload.startswith(publisher.name)]
        assert mine == [payload for topic, payload, _, _ in publisher.put if topic == TOPIC]
        assert publisher.core.buffered_bytes == 0
    check_nothing_comes_again(world)


def turn(world: World, publishers: list[PublisherClient], *readers: Client) -> None:
    world.turn()
    for client in (*publishers, *readers):
        client.turn()


def acked(reader: SubscriberClient) -> bool:
    return reader.reading.acks_done()


def check_nothing_comes_again(world: World) -> None:
    """Who takes the subscription over after all was acked gets nothing, even after a crash."""
    world._crash()
    second = SubscriberClient(world, TOPIC, b"reader", b"second consumer")
    run(world, [second], lambda: second.reading.empty > 0)
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
            for identity in publisher.core.identities():
                reader.ask(Kind.FORGET, bodies.Forget(identity), reader.dropped.append)
    world.faults = False
    run(world, [publisher, reader], lambda: publisher.done() and acked(reader))
    confirmed = [item for item in publisher.put if item[2].error is None]
    last = max(batch.first_offset + place for _, _, batch, place in confirmed)
    run(world, [publisher, reader], lambda: len(reader.got) > last and acked(reader))
    payloads = [payload for _, payload in reader.got]
    assert len(payloads) == len(set(payloads))
    for _, payload, batch, place in confirmed:
        assert payloads[batch.first_offset + place] == payload
    assert all(isinstance(batch.error, PublisherExpired) for _, _, batch, _ in publisher.put if batch.error)
    order = [payload for _, payload, _, _ in publisher.put]
    assert payloads == [payload for payload in order if payload in set(payloads)]


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_stored_twice_though_its_topic_is_deleted_and_made_again(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was confirmed was stored once; what failed was stored once or never, on whichever topic had the name."""
    world = make_world(seed)
    world.limits = replace(world.limits, topic_max_bytes=1 << 30)
    world._crash()
    stored: Counter[tuple[int, int]] = Counter()
    keep = world.store.commit

    def commit(changes: Changes) -> None:
        keep(changes)
        for batch in changes.batches:
            packed = Batch.parse(batch.data)
            stored[packed.publisher, packed.stamp] += 1

    monkeypatch.setattr(world.store, "commit", commit)
    subscribe(world, TOPIC, b"reader")
    publishers = [PublisherClient(world, b"publisher %d" % place) for place in range(2)]
    operator = Client(world)
    world.faults = True
    for count in range(MESSAGES):
        for publisher in publishers:
            publisher.add(TOPIC)
        for _ in range(world.dice.randrange(0, 8)):
            turn(world, publishers, operator)
        if count % 7 == 3:
            operator.ask(Kind.DELETE, bodies.Delete(TOPIC), operator.dropped.append)
        if count % 7 == 4:
            operator.ask(Kind.SUBSCRIBE, bodies.Subscribe(TOPIC, b"reader"), operator.dropped.append)
    world.faults = False
    operator.ask(Kind.SUBSCRIBE, bodies.Subscribe(TOPIC, b"reader"), operator.dropped.append)
    run(world, [*publishers, operator], lambda: all(map(PublisherClient.done, publishers)))
    assert set(stored.values()) == {1}
    for _, _, batch, _ in (item for publisher in publishers for item in publisher.put):
        assert batch.error is None or isinstance(batch.error, NoTopic | NoSubscriber)
        assert batch.error is not None or stored[batch.publisher, batch.stamp] == 1
        assert not isinstance(batch.error, NoSubscriber) or stored[batch.publisher, batch.stamp] == 0
    assert all(publisher.core.buffered_bytes == 0 for publisher in publishers)


@pytest.mark.parametrize("order", ["", "key"])
@pytest.mark.parametrize("seed", range(30))
def test_what_is_shared_is_acked_once_by_somebody_and_seen_by_one_at_a_time(seed: int, order: str) -> None:
    """Consumers lapse, die, give messages back and are told wrongly by nobody: each attempt at a message is one living
    consumer's, and in the end everything is acked."""
    world = make_world(seed)
    subscribe(world, TOPIC, b"reader", SubscriptionOptions(True, order, LEASE_S, 0))
    hands = Hands(world)
    publisher = PublisherClient(world, b"publisher")
    consumers = [SharingClient(world, hands, TOPIC, b"reader", number) for number in range(4)]
    world.faults = True
    for count in range(MESSAGES):
        publisher.add(TOPIC, b"%d" % world.dice.randrange(4) if order else None)
        for _ in range(world.dice.randrange(0, 20)):
            turn(world, [publisher], *consumers)
        if world.chance(0.05):  # one dies, and another comes
            consumers[world.dice.randrange(4)] = SharingClient(world, hands, TOPIC, b"reader", 10 + count)
    for _ in range(500):
        turn(world, [publisher], *consumers)
    world.faults = False
    run(world, [publisher, *consumers], lambda: publisher.done() and is_all_acked(world, len(publisher.put)))
    run(world, consumers, lambda: all(not consumer.handed and consumer.reading.acks_done() for consumer in consumers))
    assert all(len(tokens) == 1 for tokens in hands.acked.values()), "the broker took two acks of one message"
    assert {offset for offset, _ in hands.seen} == set(range(len(publisher.put)))
    check_nothing_is_lent_again(world)


def is_all_acked(world: World, count: int) -> bool:
    topic = world.store.topic(TOPIC)
    assert topic is not None
    (row,) = world.store.subscriptions(topic.number)
    return row.cursor == count


def check_nothing_is_lent_again(world: World) -> None:
    world._crash()
    second = SharingClient(world, Hands(world), TOPIC, b"reader", 999)
    run(world, [second], lambda: second.reading.empty > 0)
    assert not second.handed


@pytest.mark.parametrize("seed", range(5))
def test_who_only_loses_connections_never_loses_a_lease(seed: int) -> None:
    """Broken connections, and brokers that die, alone are no reason to take messages away from the living."""
    world = make_world(seed)
    subscribe(world, TOPIC, b"reader", SubscriptionOptions(True, "", LEASE_S, 0))
    hands = Hands(world)
    publisher = PublisherClient(world, b"publisher")
    consumers = [SharingClient(world, hands, TOPIC, b"reader", number) for number in range(3)]
    for count in range(MESSAGES):
        publisher.add(TOPIC)
        for _ in range(world.dice.randrange(0, 20)):
            turn(world, [publisher], *consumers)
        if count % 10 == 5:
            world._crash()
        if count % 7 == 3:
            consumers[count % 3].reconnect()
    run(world, [publisher, *consumers], lambda: publisher.done() and is_all_acked(world, MESSAGES))
    assert hands.losses == 0
    assert all(attempt == 1 for _, attempt in hands.seen)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_transformed_and_put_arrives_once(seed: int) -> None:
    """Whoever dies, lapses or is told nothing in time: each message comes out of the stage once."""
    world = make_world(seed)
    world.limits = replace(world.limits, topic_max_bytes=1 << 30)
    world._crash()
    subscribe(world, TOPIC, b"stage", SubscriptionOptions(True, "", LEASE_S, 0))
    subscribe(world, OUT, b"reader")
    publisher = PublisherClient(world, b"publisher")
    reader = SubscriberClient(world, OUT, b"reader", b"only consumer")
    stages = [PipelineClient(world, TOPIC, b"stage", number, OUT) for number in range(3)]
    world.faults = True
    for count in range(MESSAGES):
        publisher.add(TOPIC)
        for _ in range(world.dice.randrange(0, 30)):
            turn(world, [publisher], reader, *stages)
        if world.chance(0.05):
            stages[world.dice.randrange(3)] = PipelineClient(world, TOPIC, b"stage", 10 + count, OUT)
    world.faults = False
    run(
        world,
        [publisher, reader, *stages],
        lambda: publisher.done() and is_all_acked(world, MESSAGES) and all(stage.idle() for stage in stages),
    )
    run(world, [reader, *stages], lambda: len(reader.got) >= MESSAGES and acked(reader))
    mark = reader.reading.mark(world.now_s)
    run(world, [reader, *stages], lambda: reader.reading.empty_since(mark))
    assert sorted(payload for _, payload in reader.got) == sorted(b"done: " + put[1] for put in publisher.put)


def test_the_dice_do_their_work() -> None:
    """The worlds above see crashes, failed commits, broken connections, nacks and lost leases; otherwise they would
    prove little."""
    seen: Counter[str] = Counter()
    for seed in range(8):
        world = make_world(seed)
        subscribe(world, TOPIC, b"reader", SubscriptionOptions(True, "", LEASE_S, 0))
        world.faults = True
        hands = Hands(world)
        readers = [SharingClient(world, hands, TOPIC, b"reader", number) for number in range(3)]
        publisher = PublisherClient(world, b"publisher")
        for _ in range(2000):
            publisher.add(TOPIC)
            turn(world, [publisher], *readers)
        seen.update(crashes=world.crashes, failures=world.failures, breaks=world.breaks)
        seen.update(resent=publisher.exchange.resent, strays=publisher.exchange.strays)
        seen.update(nacks=hands.nacks, losses=hands.losses)
    assert min(seen.values()) > 3, seen


def transcript_of(seed: int) -> list[tuple[float, int, list[bytes]]]:
    """Everything that went over the wires of a world with publishers, consumers and a stage of a pipeline."""
    world = make_world(seed)
    subscribe(world, TOPIC, b"reader", SubscriptionOptions(True, "", LEASE_S, 0))
    subscribe(world, OUT, b"reader")
    world.faults = True
    hands = Hands(world)
    publisher = PublisherClient(world, b"publisher")
    clients: list[Client] = [
        SharingClient(world, hands, TOPIC, b"reader", 1),
        PipelineClient(world, TOPIC, b"reader", 2, OUT),
        SubscriberClient(world, OUT, b"reader", b"only consumer"),
    ]
    for _ in range(1000):
        publisher.add(TOPIC)
        turn(world, [publisher], *clients)
    return world.transcript


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_transcript(seed: int) -> None:
    """Cores hold no clock and no dice: what they send, and when, follows from what came and when."""
    first = transcript_of(seed)
    assert first == transcript_of(seed)
    assert len({number for _, number, _ in first}) > 8, "everybody has sent something, and got something"
    assert first != transcript_of(seed + 100)
