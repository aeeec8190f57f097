"""Which links there may be, what is told where there may be none, and what neighbours are believed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.property.linked_brokers import World
from tests.unit.broker.link_script import OTHER, OWN, THIRD, Script, start_of

from clarion.broker.links import LinkSettings
from clarion.wire.frames import Kind, pack_frames, parse_request
from clarion.wire.link_bodies import LinkState


def test_a_link_to_itself_is_refused_and_does_not_go_round() -> None:
    world = World(1, [(1, 1)])
    world.add(1)
    world.wires[1, 1] = True
    world.run(10)
    assert "leads back to this broker itself" in world.texts(1)
    assert world.sent < 60, "the two ends refuse each other without end"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"broker": OWN, "start": start_of(OWN, 2)}, "copy of the other's store"),
        ({"name": "b1"}, "both brokers are called b1"),
        ({"oldest_version": 2, "newest_version": 3}, "link versions 2 to 3"),
        ({"oldest_version": 0, "newest_version": 0}, "link versions 0 to 0"),
        ({"name": ""}, "a broker's name has 1 to 64 characters"),
        ({"name": "x" * 10_000}, "a broker's name has 1 to 64 characters"),
        ({"broker": 0}, "no id"),
        ({"broker": -5}, "no id"),
        ({"broker": 2**64 - 1}, "no id"),
        ({"start": b""}, "no id"),
        ({"store": b"x" * 1000}, "no id"),
    ],
)
def test_who_cannot_be_linked_with_is_told_why(changes: dict[str, Any], text: str) -> None:
    script = Script()
    script.hello(**changes)
    refused = [send.body.refused for send in script.sent if send.kind == Kind.LINK_HELLO and send.body.refused]
    assert len(refused) == 1
    assert text in refused[0]
    assert len(script.notices) == 1
    assert text in script.notices[0]
    assert script.links.status(script.now)["links"][0]["state"] == "refused"
    script.kinds()
    script.hello(**changes, refused="the same of you")
    assert not script.kinds(), "a refusal is not answered by another"
    assert script.links.counters["links_refused"] == 2
    for _ in range(8):
        script.turn(1.0)
        script.hello(**changes)
    assert len(script.notices) == 1, "the log says it once"


def test_an_id_with_two_stores_is_refused_next_door_and_told_of_further_away() -> None:
    script = Script()
    script.link(THIRD)
    script.hello("another", THIRD, store=b"another's store!", name="c")
    assert "two brokers of the id 00000003, on different stores" in script.notices[-1]
    script.announce((THIRD, (OTHER,)), store=b"another's store!")
    assert "two brokers of the id 00000003, on different stores" in script.notices[-1]
    script.announce((OWN, (OTHER,)), store=b"another's store!")
    assert "another broker has the id of this one" in script.notices[-1]
    assert script.links.counters["link_id_conflicts"] == 2


def test_a_name_that_is_taken_is_refused_next_door_and_told_of_further_away() -> None:
    script = Script()
    script.link(THIRD)
    script.hello("another", 4, name="b3")
    assert "(00000003) that can be reached is called b3, too" in script.notices[-1]
    script.announce((5, (OTHER,)), (OTHER, (OWN, THIRD, 5)), name="b3")
    assert any("are called b3: rename one" in text for text in script.notices)


def test_a_living_copy_of_the_own_store_further_away_is_told_of_and_not_answered_without_end() -> None:
    script = Script()
    script.link(THIRD)
    script.number = 2**55  # an earlier start of this broker, when the clock was ahead
    script.announce((OWN, (OTHER,)), start=start_of(OWN, 0))
    script.kinds()
    script.turn(1.0)
    ours = [each for send in script.sent if send.kind == Kind.LINK_STATE for each in send.body.announcements]
    assert ours[-1][3] > 2**55, "what is announced from now on counts"
    assert not script.links.counters["link_id_conflicts"]
    script.kinds()
    for _ in range(100):
        script.announce((OWN, (THIRD,)), start=start_of(OWN, 9))
        script.number += 10
    assert "runs on a copy" in script.notices[-1]
    assert script.kinds().count(Kind.LINK_STATE) <= 1


def test_what_knows_no_links_is_told_of_and_tried_again() -> None:
    script = Script()
    script.links.dial("port", LinkSettings(url="tcp://there:1"))
    script.turn()
    script.links.rejected("port", "it is no broker", script.now)
    script.turn()
    assert script.notices == ["no link with tcp://there:1: what listens there does not take links: it is no broker"]
    script.kinds()
    script.turn(1.0)
    assert script.kinds() == [Kind.LINK_HELLO]
    script.hello()
    assert script.links.status(script.now)["links"][0]["state"] == "up"


def test_which_brokers_may_call() -> None:
    for accepts, listed, others in (("any", "up", "up"), ("listed", "up", "refused"), ("none", "refused", "refused")):
        script = Script(LinkSettings(name="b2"), accepts=accepts)
        script.hello("a", 2)
        script.hello("b", 3)
        assert [each["state"] for each in script.links.status(script.now)["links"]] == [listed, others], accepts


def test_another_broker_than_expected_is_refused() -> None:
    script = Script()
    script.links.dial("port", LinkSettings(url="tcp://there:1", name="c"))
    script.hello()
    assert "c is expected at tcp://there:1, and b2 is there" in script.notices[-1]


def test_a_neighbour_that_calls_anew_does_not_go_down_with_its_old_connection() -> None:
    script = Script()
    script.link()
    for _ in range(8):
        script.turn(1.0)
        script.hello("anew")
    assert not any("link down" in text for text in script.notices)
    assert [each["state"] for each in script.links.status(script.now)["links"]] == ["up"]


def test_very_many_announcements_are_heard_up_to_a_bound() -> None:
    script = Script()
    script.link()
    for at in range(3, 20_000, 4000):
        script.announce(*((broker, (OTHER,)) for broker in range(at, at + 4000)))
    assert len(script.links.status(script.now)["brokers"]) < 1000
    assert "link_too_many_brokers" not in script.links.counters, "those that cannot be reached make room"
    reached = range(30_000, 30_998)
    script.announce((OTHER, (OWN, *reached)), *((broker, (OTHER,)) for broker in reached))
    script.announce((OTHER, (OWN, *reached)), *((broker, (OTHER,)) for broker in reached))
    assert sum(each["reachable"] for each in script.links.status(script.now)["brokers"]) == 999
    script.announce(*((broker, (OTHER,)) for broker in range(40_000, 60_000)))
    assert script.links.counters["link_too_many_brokers"] == 20_000
    assert sum("brokers are linked" in text for text in script.notices) == 1
    script.turn(1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "x" * 1_000_000}, {"name": ""}, {"store": b""}, {"start": b"x" * 100_000}, {"number": 2**64 - 1},
        {"number": -1}, {"linked": tuple(range(5000))}, {"linked": (-1,)}, {"broker": 0}, {"broker": -1},
        {"broker": 2**64 - 1},
    ],
)  # fmt: skip
def test_announcements_that_no_broker_makes_are_counted(changes: dict[str, Any]) -> None:
    for broker in (OWN, OTHER, THIRD):
        script = Script()
        script.link()
        script.announce((broker, (OTHER,)), **changes)
        assert script.links.counters["link_forged"] == 1
        script.turn(1.0)


def test_all_that_is_told_of_many_brokers_fits_in_what_is_taken() -> None:
    script = Script()
    script.link(*range(3, 900))
    for send in script.sent:
        parse_request([bytes(each) for each in pack_frames(send.kind, 0, send.body, send.blobs)])
    script.kinds()
    script.hello(digest=1)
    told = [send for send in script.sent if send.kind == Kind.LINK_STATE]
    assert sum(len(send.body.announcements) for send in told if isinstance(send.body, LinkState)) == 899
