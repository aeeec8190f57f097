"""What crosses links, and what does not: policies, times to live, topics that come and go, disks that are full."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.property.linked_brokers import Publisher, SimBroker, World

from clarion.broker.engine import link_reads
from clarion.broker.engine.state import ForeignDone
from clarion.broker.links import LinkSettings
from clarion.model.errors import StoreUnavailable
from clarion.store.port import StoredBatch
from clarion.wire import bodies
from clarion.wire.frames import Kind


def _world(*wires: tuple[int, int], retention: str = "until-read", **arguments: Any) -> World:
    world = World(1, list(wires), retention=retention)
    for broker in sorted({broker for wire in wires for broker in wire}):
        world.add(broker, **arguments.get(f"b{broker}", {}))
    world.settle()
    return world


def _put(world: World, broker: int, topic: bytes, count: int = 1, size: int = 0) -> None:
    """Put a batch, and wait until it is answered."""
    world.brokers[broker].put(topic, count, size)
    for _ in range(200):
        world.step(0.05)
        if world.brokers[broker].publishers[0].waiting is None:
            return
    raise AssertionError(f"not put: {world.brokers[broker].publishers[0].refused}")


def _sent(world: World, broker: int, topic: bytes) -> list[bytes]:
    return list(world.published[broker, topic].values())


def _link(to: int, **settings: Any) -> dict[str, Any]:
    return {"dialled": {to: LinkSettings(url=f"tcp://b{to}:1", **settings)}}


# Policies.


def test_topics_that_may_not_come_in_are_told_and_wait_for_nobody() -> None:
    world = _world((1, 2), (2, 3), b1=_link(2, topics_in=(b"open/#",)))
    for topic in (b"open/t", b"secret"):
        world.brokers[1].subscribe(topic, b"s")
    world.settle()
    for topic in (b"secret", b"open/t", b"secret", b"open/t"):
        _put(world, 3, topic, 3)
    world.settle()
    assert world.brokers[1].log(b"open/t")[3] == _sent(world, 3, b"open/t") != []
    assert world.brokers[1].log(b"secret") == {}
    assert world.brokers[1].about(3)["kept_out_messages"] == 6
    assert world.brokers[1].links.counters["link_kept_out"] == 6
    assert not world.brokers[2].links.counters["link_kept_out"]
    assert world.brokers[3].about(1)["lag_messages"] == 0, "nothing waits for what may not cross"


def test_topics_that_may_not_go_out_are_counted_by_the_broker_that_keeps_them() -> None:
    world = _world((2, 1), (2, 3), b2=_link(1, topics_out=(b"open/#",)))
    world.brokers[1].subscribe(b"#", b"s")
    world.settle()
    for topic in (b"secret", b"open/t"):
        _put(world, 3, topic, 3)
    world.settle()
    assert world.brokers[1].log(b"open/t")[3] == _sent(world, 3, b"open/t")
    assert world.brokers[1].log(b"secret") == {}
    assert world.brokers[2].links.counters["link_kept_out"] == 3
    assert world.brokers[1].about(3)["kept_out_messages"] == 3
    assert world.brokers[3].about(1)["lag_messages"] == 0


def test_origins_that_are_not_accepted_keep_nothing_for_the_reader() -> None:
    world = _world((1, 2), (2, 3), b1=_link(2, origins=("b2",)))
    world.brokers[1].subscribe(b"t", b"s")
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    for broker in (2, 3):
        _put(world, broker, b"t")
    world.settle()
    assert world.brokers[1].log(b"t") == {2: _sent(world, 2, b"t")}
    assert world.brokers[3].engine.link_reads.subscribed(b"$link/00000001") == []
    assert world.brokers[1].links.next_deadline_s() > world.now_s, "the loop would spin"


# Times to live, sizes, room.


def test_what_has_expired_does_not_cross_and_the_rest_expires_over_there() -> None:
    world = _world((1, 2))
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    world.brokers[1].ttl_ms = 60_000
    _put(world, 1, b"t")
    world.settle()
    row = world.brokers[2].store.topic(b"t")
    assert row is not None
    batch = next(iter(world.brokers[2].store.batches(row.number, 0, 9, 9999)))
    assert 40e6 < batch.expires_at_us - world.now.unix_us < 60e6
    world.wires[1, 2] = False
    _put(world, 1, b"t")
    world.run(120, 1.0)
    world.brokers[1].ttl_ms = 0
    _put(world, 1, b"t")
    world.wires[1, 2] = True
    world.settle(20)
    got = world.brokers[2].log(b"t")[1]
    assert got == _sent(world, 1, b"t")[2:], "the first expired there, the second here"
    assert world.brokers[1].about(2)["lag_messages"] == 0


@pytest.mark.parametrize("compresses", [False, True])
def test_a_batch_too_large_for_the_other_side_is_left_out_and_told_and_the_others_come(compresses: bool) -> None:
    world = _world((1, 2), b2={"limits": {"max_batch_bytes": 1000}})
    world.brokers[1].publishers[0].compresses = compresses  # so it is small on its way, and large when it is opened
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    for size in (10, 5000, 20):
        _put(world, 1, b"t", 1, size)
    world.settle()
    sent = _sent(world, 1, b"t")
    assert [len(text) for text in sent] == [17, 5007, 27]
    assert world.brokers[2].log(b"t")[1] == [sent[0], sent[2]]
    assert world.brokers[2].engine.stats()["link_left_out"] == 1
    assert world.brokers[1].about(2)["lag_messages"] == 0


def test_a_batch_that_the_neighbours_socket_would_not_take_does_not_break_the_link() -> None:
    world = _world((1, 2), (2, 3), b2={"most_bytes": 4000}, b3={"most_bytes": 2000})
    for broker in (2, 3):
        world.brokers[broker].subscribe(b"t", b"s")
    world.settle()
    for size in (10, 3000, 5000, 20):
        _put(world, 1, b"t", 1, size)
    world.settle()
    sent = _sent(world, 1, b"t")
    assert world.brokers[2].log(b"t")[1] == [sent[0], sent[1], sent[3]]
    assert world.brokers[3].log(b"t")[1] == [sent[0], sent[3]]
    assert "do not cross the link with b2" in world.texts(1)
    assert "do not cross the link with b3" in world.texts(2)
    assert world.brokers[1].links.counters["link_left_out"] == 1 == world.brokers[2].links.counters["link_left_out"]


def test_very_many_small_batches_fit_in_what_is_taken() -> None:
    world = _world((1, 2), (1, 3), (1, 4))
    topics = [b"%d/" % number + b"n" * 900 for number in range(40)]
    for broker in (2, 3, 4):
        world.brokers[broker].subscribe(b"#", b"s")
    world.settle()
    world.wires = dict.fromkeys(world.wires, False)
    world.run(8)
    origin = world.brokers[1]
    for topic in topics:
        for _ in range(60):
            origin.put(topic)
            origin.publishers[0].go_on()
    world.wires = dict.fromkeys(world.wires, True)
    world.settle(20)
    for broker in (2, 3, 4):
        for topic in topics:
            assert world.brokers[broker].log(topic)[1] == _sent(world, 1, topic)


def test_no_packet_is_larger_than_a_broker_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clarion.broker.links.outbound.READ_BYTES", 2**22)
    world = _world((1, 2))
    world.brokers[2].subscribe(b"n" * 1000, b"s")
    world.settle()
    world.wires[1, 2] = False
    world.run(8)
    origin = world.brokers[1]
    for _ in range(4000):
        origin.put(b"n" * 1000)
        origin.publishers[0].go_on()
    world.wires[1, 2] = True
    world.settle(20)
    assert world.brokers[2].log(b"n" * 1000)[1] == _sent(world, 1, b"n" * 1000)


def test_a_topic_that_is_full_does_not_hold_up_others_and_goes_on_later() -> None:
    world = _world((1, 2))
    reader = world.brokers[2]
    for topic in (b"full", b"other"):
        reader.subscribe(topic, b"s")
    reader.tell(Kind.CONFIGURE, bodies.Configure(b"full", changes={"max_bytes": 3000}))
    world.settle()
    for _ in range(10):
        _put(world, 1, b"full", 1, 1000)
        _put(world, 1, b"other")
    world.settle()
    assert reader.log(b"other")[1] == _sent(world, 1, b"other")
    got = reader.log(b"full")[1]
    assert got == _sent(world, 1, b"full")[: len(got)]
    assert 0 < len(got) < 10
    token = reader.tell(Kind.ATTACH, bodies.Attach(b"full", b"s", b"consumer")).token
    for _ in range(20):
        end = reader.store.topic(b"full").next_offset  # type: ignore[union-attr]
        reader.tell(Kind.ACK, bodies.Ack(b"full", b"s", token, ((0, end),)))
        world.run(2)
    assert reader.store.topic(b"full").next_offset == 10  # type: ignore[union-attr]
    assert world.brokers[1].about(2)["lag_messages"] == 0


@pytest.mark.parametrize("full", [1, 2])
def test_a_disk_that_is_full_for_a_while_loses_and_repeats_nothing(full: int) -> None:
    world = _world((1, 2))
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    _put(world, 1, b"t", 3)
    for _ in range(4):
        world.brokers[full].fails_until_s = world.now_s + 3
        world.brokers[1].put(b"t", 2)
        world.run(4)
    world.settle(20)
    assert world.brokers[2].log(b"t")[1] == _sent(world, 1, b"t")
    assert len(_sent(world, 1, b"t")) == 11


def test_a_store_that_cannot_be_read_for_a_while_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _world((1, 2))
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    world.wires[1, 2] = False
    world.run(8)
    _put(world, 1, b"t")
    origin = world.brokers[1]
    origin.crash()
    origin.start()

    def batches(*_: Any) -> list[StoredBatch]:
        raise StoreUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(origin.store, "batches", batches)
        world.wires[1, 2] = True
        world.settle()
        assert origin.engine.stats()["unavailable_reads"] > 0
    world.settle(3)
    assert world.brokers[2].log(b"t")[1] == _sent(world, 1, b"t")


# What waits for a broker that is away.


@pytest.mark.parametrize("wire", [(1, 2), (2, 1)])
@pytest.mark.parametrize("restart", [False, True])
def test_more_than_may_wait_for_a_broker_is_given_up_and_told(wire: tuple[int, int], restart: bool) -> None:
    world = World(1, [wire])
    world.add(1, pass_by_bytes=5000)
    world.add(2)
    world.settle()
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    _put(world, 1, b"t")
    world.settle()
    world.wires[wire] = False
    world.run(8)
    if restart:
        world.brokers[1].crash()
        world.brokers[1].start()
    for _ in range(20):
        _put(world, 1, b"t", 1, 1000)
        world.run(1.0)
    row = world.brokers[1].store.topic(b"t")
    assert row is not None
    assert row.stored_bytes < 10_000, "a link that is down costs disk within a bound"
    assert "are given up for" in world.texts(1)
    given_up = world.brokers[1].links.counters["link_passed_by"]
    world.wires[wire] = True
    world.settle(20)
    _put(world, 1, b"t")
    world.settle()
    sent, got = _sent(world, 1, b"t"), world.brokers[2].log(b"t")[1]
    assert got == [sent[0], *sent[1 + given_up :]]
    assert world.brokers[2].about(1)["gone_messages"] == given_up, "the reader is told, too"
    told = [text for text in world.texts(2).splitlines() if "were given up there and will not come" in text]
    assert [text[: text.index(" were")] for text in told] == [f"{given_up} messages of t, put at b1,"]


def test_a_broker_whose_links_are_all_gone_has_nothing_to_do_but_to_look_at_what_waits() -> None:
    world = _world((2, 1), b1={"pass_by_bytes": 5000})
    world.brokers[1].subscribe(b"t", b"s")
    world.settle()
    _put(world, 2, b"t")
    world.wires[2, 1] = False
    world.run(12)
    left = world.brokers[1].links
    assert [link["state"] for link in left.status(world.now)["links"]] == ["down"]
    left._engine._state.foreign_done.append(ForeignDone(2, 7, 9))  # it was on its way to the disk
    assert left.is_on
    assert not left.has_more, "the loop would spin"
    assert left.next_deadline_s() > world.now_s


def test_nothing_is_kept_for_a_broker_that_is_forgotten() -> None:
    world = _world((2, 1), retention="keep")
    world.brokers[2].subscribe(b"t", b"s")
    world.brokers[2].subscribe(b"a/#", b"s")
    world.settle()
    origin = world.brokers[1]
    assert "stop it first" in origin.links.forget("b2", origin.now)
    world.wires[2, 1] = False
    world.run(8)
    assert origin.links.forget("b2", origin.now) == ""
    world.run(1)
    assert origin.engine.link_reads.subscribed(b"$link/00000002") == []
    assert "nothing is kept" in origin.links.forget("b2", origin.now)
    assert "nothing is kept" in origin.links.forget("nobody!!", origin.now)
    assert 2 in origin.links._not_reached(), "paths may have gone there"
    assert "00000002" not in [each["broker"] for each in origin.links.status(origin.now)["brokers"]]
    world.wires[2, 1] = True
    world.settle()
    _put(world, 1, b"t")
    world.settle()
    assert world.brokers[2].log(b"t")[1] == _sent(world, 1, b"t"), "it may come back all the same"


# Topics and subscriptions that come and go.


@pytest.mark.parametrize("retention", ["until-read", "keep"])
@pytest.mark.parametrize("wanted", [b"t/x", b"t/#"])
def test_a_topic_deleted_and_made_anew_at_its_origin_is_read_on(retention: str, wanted: bytes) -> None:
    world = _world((1, 2), retention=retention)
    world.brokers[2].subscribe(wanted, b"s")
    world.settle()
    for _ in range(3):
        _put(world, 1, b"t/x", 2)
        world.settle(3)
        world.brokers[1].delete(b"t/x")
        if retention == "until-read":
            world.settle(3)
    _put(world, 1, b"t/x")
    world.settle()
    assert world.brokers[2].log(b"t/x")[1] == _sent(world, 1, b"t/x")
    assert len(_sent(world, 1, b"t/x")) == 7


def test_a_topic_deleted_and_made_anew_at_the_reader_goes_on() -> None:
    world = _world((1, 2), retention="keep")
    reader = world.brokers[2]
    for _ in range(3):
        reader.subscribe(b"t", b"s")
        world.settle(3)
        _put(world, 1, b"t", 2)
        world.settle(3)
        assert reader.log(b"t")[1] == _sent(world, 1, b"t")[-2:]
        reader.delete(b"t")
        world.settle(3)
        _put(world, 1, b"t")


@pytest.mark.parametrize("wanted", [b"t", b"t/#"])
def test_an_origin_has_not_confirmed_what_it_was_not_told_of(wanted: bytes) -> None:
    world = _world((1, 2))
    reader = world.brokers[2]
    assert reader.about(1)["confirmed"]
    asked = reader.ask(Kind.SUBSCRIBE, bodies.Subscribe(wanted, b"s"))
    while asked not in reader.replies:  # the engine alone, as between two turns of the links
        reader.engine.tick(reader.now)
        group = reader.engine.take_group()
        if group is not None:
            reader.store.commit(group.changes)
            reader.engine.committed(group, reader.now)
        reader._hear(reader.now)
    assert not reader.about(1)["confirmed"]
    world.settle(2)
    assert reader.about(1)["confirmed"]


def test_unsubscribing_and_subscribing_again_quickly_misses_nothing_after_it_is_confirmed() -> None:
    world = _world((1, 2))
    reader = world.brokers[2]
    for pause_s in (0.0, 0.01, 0.05, 0.5, 3.0):
        reader.subscribe(b"t", b"s")
        world.settle(3)
        reader.unsubscribe(b"t", b"s")
        world.run(pause_s, 0.01)
        cursor = reader.subscribe(b"t", b"s")
        world.settle(3)
        for _ in range(3):
            _put(world, 1, b"t")
        world.settle(3)
        assert reader.log(b"t", cursor)[1][-3:] == _sent(world, 1, b"t")[-3:]
        reader.unsubscribe(b"t", b"s")
        world.settle(3)


def test_patterns_and_plain_subscriptions_of_one_topic_take_turns_without_a_gap() -> None:
    world = _world((1, 2))
    reader = world.brokers[2]
    reader.subscribe(b"a/x", b"plain")
    world.settle(3)
    for _ in range(2):
        for wanted, ended in ((b"a/#", b"a/x"), (b"a/*", b"a/#"), (b"a/x", b"a/*")):
            reader.unanswered_subscribe(wanted, b"plain" if wanted == b"a/x" else wanted)
            reader.step()
            _put(world, 1, b"a/x")
            reader.unsubscribe(ended, b"plain" if ended == b"a/x" else ended)
            _put(world, 1, b"a/x")
            world.settle(3)
            _put(world, 1, b"a/x")
            world.settle(3)
            row = reader.store.topic(b"a/x")
            assert row is not None
            assert row.next_offset == len(_sent(world, 1, b"a/x"))


def test_an_unsubscribe_that_was_not_kept_ends_nothing_elsewhere() -> None:
    world = _world((1, 2))
    reader = world.brokers[2]
    for wanted in (b"a/x", b"b/#"):
        reader.unanswered_subscribe(wanted, b"s")
        reader.step()
    world.settle()
    for topic, wanted in ((b"a/x", b"a/x"), (b"b/y", b"b/#")):
        reader.fails_until_s = world.now_s + 1
        reader.unsubscribe(wanted, b"s")
        world.run(3)
        _put(world, 1, topic)
        world.settle()
        assert reader.log(topic)[1] == _sent(world, 1, topic), wanted


def test_positions_outlive_publishers_that_expire() -> None:
    world = _world((1, 2), retention="keep", b2={"limits": {"publisher_expiry_s": 100.0}})
    reader = world.brokers[2]
    reader.subscribe(b"t", b"s")
    world.settle()
    _put(world, 1, b"t", 3)
    world.settle()
    world.run(1000, 5.0)
    world.deaf.add(((1, 2), 1))  # confirmations are lost, so that all is sent again
    _put(world, 1, b"t", 2)
    world.run(3)
    reader.crash()
    reader.start()
    world.deaf.clear()
    world.settle(20)
    assert reader.log(b"t")[1] == _sent(world, 1, b"t")


def test_an_origin_whose_store_went_back_is_told_and_goes_on_with_a_new_topic() -> None:
    world = _world((1, 2))
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    _put(world, 1, b"t")
    world.settle()
    origin = world.brokers[1]
    backup = copy.deepcopy(origin.store)
    _put(world, 1, b"t", 9)
    world.settle()
    origin.crash()
    origin.store = backup
    origin.start()
    origin.publishers[0].numbers[b"t"] = 1
    _put(world, 1, b"t")
    world.settle()
    assert origin.engine.stats()["link_went_back"]
    assert any("Was an older copy" in text for _, text in origin.engine.take_notices(world.now_s))
    origin.delete(b"t")
    world.settle()
    _put(world, 1, b"t")
    world.settle()
    assert world.brokers[2].log(b"t")[1][-1] == list(_sent(world, 1, b"t"))[-1]


# A read-only cache.


def test_a_cache_has_all_there_is_and_keeps_it_without_a_reader() -> None:
    world = World(1, [(2, 1)], retention="keep")
    world.add(1)
    for topic in (b"a/x", b"a/y", b"b"):
        _put(world, 1, topic, 2)
    world.add(2, follow=(b"a/#",))
    world.settle()
    for topic in (b"a/x", b"a/y", b"a/z", b"b"):
        _put(world, 1, topic)
    world.settle()
    cache: SimBroker = world.brokers[2]
    for topic in (b"a/x", b"a/y", b"a/z"):
        assert cache.log(topic)[1] == _sent(world, 1, topic)
    assert cache.store.topic(b"b") is None
    cache.crash()
    cache.start()
    _put(world, 1, b"a/x")
    world.settle()
    assert cache.log(b"a/x")[1] == _sent(world, 1, b"a/x")


def test_who_was_forgotten_and_never_noticed_says_again_what_it_wants() -> None:
    world = _world((1, 2), retention="keep")
    origin, reader = world.brokers[1], world.brokers[2]
    reader.subscribe(b"t", b"s")
    world.settle()
    world.deaf.add(((1, 2), 1))  # what the reader says is lost, and what it hears is not
    world.run(7)
    assert (origin.about(2)["reachable"], reader.about(1)["reachable"]) == (False, True)
    assert origin.links.forget("b2", origin.now, "who asked") == ""
    assert origin.links.take_forgotten() == [], "it is not on disk yet"
    world.run(1)
    assert origin.links.take_forgotten() == [("who asked", "")]
    assert not origin.engine.link_reads.subscribed(b"$link/00000002")
    world.deaf.clear()
    world.settle()
    _put(world, 1, b"t", 3)
    world.settle()
    assert reader.about(1)["confirmed"]
    assert reader.log(b"t")[1] == _sent(world, 1, b"t")


def test_a_broker_is_forgotten_at_once_where_nothing_is_kept_but_its_place() -> None:
    world = _world((2, 1))
    world.wires[2, 1] = False
    world.run(8)
    origin = world.brokers[1]
    assert origin.links.forget("b2", origin.now, "who asked") == ""
    assert origin.links.take_forgotten() == [("who asked", "")]
    assert origin.links.take_forgotten() == []


def test_topics_that_come_into_memory_while_they_are_looked_for_are_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_reads, "_TOPICS_SCANNED", 3)
    world = _world((1, 2), b1={"limits": {"max_topics_in_memory": 2}})
    origin, reader = world.brokers[1], world.brokers[2]
    reader.subscribe(b"p/#", b"s")
    world.settle()
    world.wires[1, 2] = False
    world.run(8)
    topics = [b"p/%d" % number for number in range(12)]
    for topic in topics:
        _put(world, 1, topic)
    origin.crash()
    world.run(1)
    origin.start()
    world.run(20)
    name = b"$link/00000002"
    reads = origin.engine.link_reads
    begun = reads.begin(name)
    found: set[bytes] = set()
    for topic in topics:  # each is looked at by a client just before its page is
        origin.ask(Kind.DESCRIBE, bodies.Describe(topic))
        found |= {each.name for each in reads.read(begun, 1, origin.now)}
    while begun.ready or begun.scanned is not None:
        found |= {each.name for each in reads.read(begun, 1 << 20, origin.now)}
    assert found == set(topics)


def test_a_topic_of_an_older_copy_of_its_origin_is_told_and_counted() -> None:
    world = _world((1, 2), retention="keep")
    origin, reader = world.brokers[1], world.brokers[2]
    reader.subscribe(b"p/#", b"s")
    world.settle()
    older = copy.deepcopy(origin.store)
    for number in range(5):
        origin.subscribe(b"other/%d" % number, b"s")  # topics with numbers
    _put(world, 1, b"p/t")
    world.settle()
    origin.crash()
    origin.store = older
    world.run(8)
    origin.start()
    world.run(8)
    origin.publishers = [Publisher(origin, 77)]
    _put(world, 1, b"p/t")
    world.run(10)
    assert len(reader.log(b"p/t")[1]) == 1
    assert reader.engine._state.counters["link_forged"] >= 1
    texts = [notice.text for notice in reader.engine.take_notices(world.now_s)]
    assert any("Was an older copy of its store restored?" in text for text in texts), texts
    reader.delete(b"p/t")
    world.settle()
    assert len(reader.log(b"p/t")[1]) == 1, "it begins anew, as the log said"
