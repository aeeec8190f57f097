"""Who subscribes at a linked broker is told which others have confirmed it, and waits a second for that at most."""

from __future__ import annotations

import logging

from tests.property.linked_brokers import SimBroker, World

from clarion.broker.engine import Reply
from clarion.broker.engine.notices import Notice
from clarion.broker.links import LinkSettings
from clarion.broker.links.meter import Meter
from clarion.wire import bodies
from clarion.wire.frames import Kind


def _linked(**links: object) -> tuple[World, SimBroker, SimBroker]:
    world = World(1, [(2, 1)])
    one, two = world.add(1), world.add(2, **links)
    world.run(3)
    return world, one, two


def _subscribe(broker: SimBroker, topic: bytes) -> Reply:
    broker.links.asked(b"client", broker.asked + 1, topic)
    asked = broker.ask(Kind.SUBSCRIBE, bodies.Subscribe(topic, b"reader"))
    broker.step()
    reply = broker.replies[asked]
    assert isinstance(reply, Reply)
    return reply


def _told(replies: list[Reply]) -> tuple[object, object]:
    (reply,) = replies
    assert isinstance(reply.body, bodies.Subscribed)
    return reply.body.origins, reply.body.unconfirmed


def test_an_answer_is_held_until_the_other_broker_has_confirmed() -> None:
    world, _, two = _linked()
    reply = _subscribe(two, b"news")
    assert two.links.hold(reply, world.now)
    assert two.links.take_held(world.now) == []
    world.run(0.5)
    assert _told(two.links.take_held(world.now)) == ((("b1", 0),), ())
    assert not two.links.is_holding


def test_the_offset_told_is_that_of_the_origin_and_a_pattern_has_none() -> None:
    world, one, two = _linked()
    one.subscribe(b"news", b"local")
    for _ in range(3):
        one.put(b"news", 2)
        world.run(0.2)
    assert two.links.hold(_subscribe(two, b"news"), world.now)
    assert two.links.hold(_subscribe(two, b"new/*"), world.now)
    world.run(0.5)
    topic, pattern = two.links.take_held(world.now)
    assert _told([topic]) == ((("b1", 6),), ())
    assert _told([pattern]) == ((("b1", -1),), ())


def test_an_answer_waits_for_a_second_at_most() -> None:
    world, one, two = _linked()
    one.is_running = False  # and nobody knows yet
    assert two.links.hold(_subscribe(two, b"news"), world.now)
    assert two.links.next_deadline_s() <= world.now_s + 1.0
    world.run(0.5)
    assert two.links.take_held(world.now) == []
    world.run(0.6)
    assert _told(two.links.take_held(world.now)) == ((), ("b1",))


def test_at_the_end_all_are_answered() -> None:
    world, one, two = _linked()
    one.is_running = False
    assert two.links.hold(_subscribe(two, b"news"), world.now)
    assert _told(two.links.take_held(world.now, all_of_them=True)) == ((), ("b1",))


def _why_not(broker: SimBroker, topic: bytes) -> dict[str, str]:
    """Subscribe, and return why nothing comes from others; they are not waited for."""
    assert broker.links.hold(_subscribe(broker, topic), broker.now)
    (reply,) = broker.links.take_held(broker.now)
    assert isinstance(reply.body, bodies.Subscribed)
    assert reply.body.origins == ()
    assert set(dict(reply.body.reasons)) == set(reply.body.unconfirmed)
    return dict(reply.body.reasons)


def test_a_broker_of_which_nothing_may_come_is_not_waited_for_and_told_with_the_reason() -> None:
    world = World(1, [(2, 1)])
    world.add(1)
    two = world.add(2)
    two.links.dial((2, 1), LinkSettings(url="tcp://b1:1", origins=("other",)))
    world.run(3)
    assert _why_not(two, b"news") == {"b1": "origins of the link with b1 lets no messages of it in"}


def test_a_broker_from_which_a_topic_may_not_come_in_has_not_confirmed_it() -> None:
    world = World(1, [(2, 1), (1, 3)])
    world.add(1)
    two, _ = world.add(2), world.add(3)
    two.links.dial((2, 1), LinkSettings(url="tcp://b1:1", topics_in=(b"open/#",)))
    world.run(3)
    why = "topics_in of the link with b1 lets nothing of secret/x in"
    assert _why_not(two, b"secret/x") == {"b1": why, "b3": why}
    assert set(_why_not(two, b"secret/#")) == {"b1", "b3"}
    for topic in (b"open/x", b"#"):
        assert two.links.hold(_subscribe(two, topic), world.now)
        world.run(0.5)
        (reply,) = two.links.take_held(world.now)
        assert isinstance(reply.body, bodies.Subscribed)
        assert ([name for name, _ in reply.body.origins], reply.body.unconfirmed) == (["b1", "b3"], ())


def test_a_link_that_is_refused_is_told_though_the_others_name_is_known() -> None:
    world = World(1, [(2, 1)])
    world.add(1, accepts="none")
    two = world.add(2)
    world.run(3)
    assert list(_why_not(two, b"news").values()) == ["the link is refused (clarion links says why)"]
    hello = two.links.status(world.now)["links"][0]
    assert list(_why_not(two, b"other")) == [hello["name"] or hello["url"]]


def test_nobody_waits_where_no_broker_is_reached_nor_with_a_refusal() -> None:
    world = World(1, [(2, 1)])
    world.wires[2, 1] = False
    two = world.add(2)
    world.run(1)
    assert two.links.hold(_subscribe(two, b"news"), world.now)
    assert _told(two.links.take_held(world.now)) == ((), ("tcp://b1:1",))
    _, _, linked = _linked()
    linked.links.asked(b"client", linked.asked + 1, b"#/x")
    asked = linked.ask(Kind.SUBSCRIBE, bodies.Subscribe(b"#/x", b"reader"))
    linked.step()
    assert not linked.links.hold(linked.replies[asked], world.now)


def _noticed(broker: SimBroker) -> list[Notice]:
    notices, broker.notices = broker.notices, []
    return notices


def test_links_that_come_up_are_information_and_those_that_go_down_warnings() -> None:
    world, one, two = _linked()
    assert [(level, text[:11]) for level, text in _noticed(two)] == [(logging.INFO, "link up: b1")]
    one.is_running = False
    world.run(8)
    ((level, text),) = _noticed(two)
    assert (level, text[:13]) == (logging.WARNING, "link down: b1")
    assert "clarion links forget" in text


def test_a_refused_caller_that_calls_again_is_told_of_once() -> None:
    world = World(1, [(2, 1)])
    one, two = world.add(1, name="same"), world.add(2, name="same")
    world.run(30)
    for broker in (one, two):
        ((level, text),) = _noticed(broker)
        assert level == logging.WARNING
        assert "both brokers are called same: give one of them another name" in text
    (link,) = two.links.status(world.now)["links"]
    assert (link["state"], link["for_s"]) == ("refused", None)


def test_what_is_kept_for_a_broker_that_was_not_heard_of_since_the_start_is_told() -> None:
    world, one, two = _linked()
    two.subscribe(b"news", b"reader")
    two.subscribe(b"a/*", b"reader")
    world.run(1)
    two.crash()
    one.crash()
    one.start()
    world.run(1)
    (told,) = one.links.status(world.now)["brokers"]
    assert (told["name"], told["broker"], told["reachable"]) == ("", "00000002", False)
    assert one.links.forget("00000002", world.now) == ""
    world.run(1)
    assert one.links.status(world.now)["brokers"] == []


def test_a_meter_tells_how_fast_a_count_grew_lately() -> None:
    meter = Meter()
    assert meter.per_s(5, 1.0) == 0.0
    for second in range(10):
        meter.look(10 * second, float(second))
    assert meter.per_s(90, 9.0) == 10.0
    for second in range(10, 20):
        meter.look(90, float(second))
    assert meter.per_s(90, 20.0) == 0.0


def test_an_answer_is_given_and_old_messages_are_given_up_where_the_only_neighbour_is_gone() -> None:
    world = World(1, [(2, 1)])
    one, two = world.add(1, pass_by_bytes=10), world.add(2)
    world.run(3)
    two.subscribe(b"news", b"reader")
    world.run(1)
    two.is_running = False
    world.run(4.5)
    assert one.links.hold(_subscribe(one, b"other"), world.now)
    for _ in range(3):
        one.publishers[0].put(b"news", 5)
        world.run(3)
    assert one.links.is_on
    assert [link["state"] for link in one.links.status(world.now)["links"]] == ["down"]
    assert _told(one.links.take_held(world.now)) == ((), ("b2",))
    assert any("are given up for b2" in text for _, text in _noticed(one))
