"""Slow links: what moves keeps them up, what is on its way is not sent again, and that is no more than fits."""

from __future__ import annotations

import pytest
from tests.property.linked_brokers import World
from tests.unit.broker.link_script import Script

from clarion.broker.links.outbound import WINDOW_BYTES


def _linked(*, bytes_per_s: float, delay_s: float = 0.02) -> World:
    """Return two brokers, of which the second has subscribed to what the first gets."""
    world = World(1, [(1, 2)])
    world.delay_s = delay_s
    world.add(1)
    world.add(2)
    world.settle()
    if bytes_per_s:
        world.bytes_per_s[1, 2] = bytes_per_s
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    return world


def _put(world: World, count: int, size: int) -> int:
    """Have the first broker take batches; return how many bytes it will have sent."""
    for _ in range(count):
        world.brokers[1].put(b"t", 1, size)
        for publisher in world.brokers[1].publishers:
            publisher.go_on()
        world.brokers[1].step()
        assert world.brokers[1].publishers[0].waiting is None
    return count * size


def _run_until_it_came(world: World, count: int, seconds: float) -> None:
    downs = world.texts(1) + world.texts(2)
    for _ in range(int(seconds / 0.25)):
        world.run(0.25, 0.05)
        if len(world.brokers[2].log(b"t").get(1, ())) == count:
            break
    published = list(world.published[1, b"t"].values())
    assert world.brokers[2].log(b"t")[1] == published
    assert len(published) == count
    assert world.texts(1) + world.texts(2) == downs, "no link went down"


@pytest.mark.parametrize(("count", "size"), [(1, 14_000_000), (400, 10_000), (3, 1_500_000)])
@pytest.mark.parametrize("bytes_per_s", [100e3, 1e6])
def test_all_comes_over_a_slow_link_and_is_sent_once(count: int, size: int, bytes_per_s: float) -> None:
    world = _linked(bytes_per_s=bytes_per_s)
    before = world.bytes_sent[(1, 2), 2]
    needed = _put(world, count, size)
    _run_until_it_came(world, count, 3 * needed / bytes_per_s + 10)
    assert world.bytes_sent[(1, 2), 2] - before < 1.2 * needed + 100_000


def test_a_small_batch_over_a_slow_way_further_on_is_sent_once() -> None:
    world = World(1, [(1, 3), (3, 2)])
    for broker in (1, 2, 3):
        world.add(broker)
    world.settle()
    world.brokers[2].subscribe(b"t", b"s")
    world.settle()
    world.bytes_per_s[3, 2] = 60e3
    before = world.bytes_sent[(1, 3), 3]
    needed = _put(world, 100, 20_000)
    _run_until_it_came(world, 100, 100)
    assert world.bytes_sent[(1, 3), 3] - before < 1.2 * needed + 100_000


def test_what_is_still_queued_to_a_link_is_not_sent_again_however_slow_that_is() -> None:
    world = _linked(bytes_per_s=10e3)
    before = world.bytes_sent[(1, 2), 2]
    needed = _put(world, 1, 2_000_000)
    _run_until_it_came(world, 1, 250)
    assert world.bytes_sent[(1, 2), 2] - before < 1.2 * needed


def test_a_link_that_becomes_slow_soon_has_little_under_way() -> None:
    world = _linked(bytes_per_s=50e6)
    _put(world, 1200, 10_000)
    world.run(20, 0.05)
    (outbound,) = world.brokers[1].links._outbound.values()
    assert outbound.window_bytes > WINDOW_BYTES / 2
    before = world.bytes_sent[(1, 2), 2]
    world.bytes_per_s[1, 2] = 200e3
    needed = _put(world, 1200, 10_000)
    world.run(30, 0.05)
    assert outbound.unconfirmed_bytes < 600_000
    world.run(45, 0.05)
    assert world.brokers[2].log(b"t")[1] == list(world.published[1, b"t"].values())
    assert world.bytes_sent[(1, 2), 2] - before < 1.2 * needed


def test_over_a_slow_link_as_much_is_under_way_as_takes_about_a_second() -> None:
    world = _linked(bytes_per_s=100e3)
    _put(world, 600, 5_000)
    world.run(15, 0.05)
    (outbound,) = world.brokers[1].links._outbound.values()
    assert outbound.unconfirmed_bytes < 300_000
    world.bytes_per_s[1, 2] = 50e6
    world.queued.clear()
    world.run(30, 0.05)
    _put(world, 900, 30_000)
    world.run(20, 0.05)
    assert outbound.window_bytes > WINDOW_BYTES / 2, "it grows where it may"
    assert len(world.brokers[2].log(b"t")[1]) == 1500


def test_a_way_that_is_long_and_not_slow_is_used_in_full() -> None:
    world = _linked(bytes_per_s=0.0, delay_s=1.5)
    _put(world, 2000, 10_000)
    _run_until_it_came(world, 2000, 100)
    (outbound,) = world.brokers[1].links._outbound.values()
    assert outbound.window_bytes > WINDOW_BYTES / 2


def test_what_is_lost_is_sent_again() -> None:
    """Nobody notices that it is: the link is up all the time."""
    world = _linked(bytes_per_s=0.0)
    _put(world, 20, 10_000)
    world.brokers[1].step()
    world.cut((1, 2))
    _run_until_it_came(world, 20, 20)


def test_whatever_comes_is_a_sign_of_life_and_silence_is_not() -> None:
    script = Script()
    script.link()
    for _ in range(20):
        script.turn(1.0)
        script.links.moves("port", True, 0.0, script.now)
        assert script.links.is_up("port"), "a part of a long frame has come"
    for _ in range(20):
        script.turn(1.0)
        script.announce()
        assert script.links.is_up("port"), "something has come that is no hello"
    for _ in range(5):
        script.turn(1.0)
        script.links.moves("port", False, 0.0, script.now)
        assert script.links.is_up("port")
    script.turn(1.0)
    assert not script.links.is_up("port")
