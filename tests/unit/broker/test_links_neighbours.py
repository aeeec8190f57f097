"""Which links there may be, what is told where there may be none, and what neighbours are believed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.property.linked_brokers import World
from tests.unit.broker.link_script import OTHER, OWN, THIRD, Script, data_of, packet_of, start_of

from clarion.broker.links import LinkSettings
from clarion.store.memory import MemoryStore
from clarion.wire.frames import Kind, pack_frames, parse_request
from clarion.wire.link_bodies import CONFIRM, LinkConfirm, LinkState


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
    script.number = 2**52  # an earlier start of this broker, when the clock was ahead
    script.announce((OWN, (OTHER,)), start=start_of(OWN, 0))
    script.kinds()
    script.turn(1.0)
    ours = [each for send in script.sent if send.kind == Kind.LINK_STATE for each in send.body.announcements]
    assert ours[-1][3] > 2**52, "what is announced from now on counts"
    assert not script.links.counters["link_id_conflicts"]
    script.kinds()
    for _ in range(100):
        script.announce((OWN, (THIRD,)), start=start_of(OWN, 9))
        script.number += 10
    assert "runs on a copy" in script.notices[-1]
    assert script.kinds().count(Kind.LINK_STATE) <= 1


def test_the_second_of_two_running_copies_is_refused_next_door_until_the_first_is_gone() -> None:
    script = Script()
    script.hello()
    script.turn(3.0)
    for _ in range(3):
        script.hello("copy", start=start_of(OTHER, 2))
        script.turn(0.8)
        script.hello()
    script.hello("copy", start=start_of(OTHER, 2))
    first, second = script.links.status(script.now)["links"]
    assert (first["state"], second["state"]) == ("up", "refused")
    assert "two brokers of the id 00000002 run at the same time" in second["reason"]
    assert sum("run at the same time" in text for text in script.notices) == 1
    body = packet_of(LinkConfirm(1, ((7, 1),), ()), CONFIRM)
    script.hear("copy", Kind.LINK_PACKET, body)
    assert script.links.counters["link_unasked"] == 1, "what it confirms counts for nothing"
    for _ in range(8):
        script.turn(1.0)
        script.hello("copy", start=start_of(OTHER, 2))
    (left,) = script.links.status(script.now)["links"]
    assert left["state"] == "up"


def test_a_broker_that_was_started_again_and_calls_anew_is_no_copy_of_itself() -> None:
    script = Script()
    script.hello()
    script.turn(0.5)
    script.hello("anew", start=start_of(OTHER, 2))
    script.hello()  # it was said before, and comes late
    for _ in range(8):
        script.turn(1.0)
        script.hello("anew", start=start_of(OTHER, 2))
        assert [each["state"] for each in script.links.status(script.now)["links"]][-1] == "up"
    assert not any("no link with" in text for text in script.notices)


def test_copies_further_away_from_each_other_are_told_of_at_both_and_confirm_nothing_to_each_other() -> None:
    world = World(1, [(2, 1), (2, 4), (4, 3)])
    real, _, copy, _ = (world.add(broker) for broker in (1, 2, 3, 4))
    copy.crash()
    world.run(3.5)
    copy.store = MemoryStore(real.store.identity)
    copy.start()
    world.run(10)
    for broker in (1, 3):
        assert "another broker runs on a copy of this one's store" in world.texts(broker)
    script = Script()
    script.link(THIRD)
    script.subscribe()
    script.kinds()
    data, raw = data_of(OWN)
    script.hear("port", Kind.LINK_PACKET, packet_of(data, source=OWN, hops=(OWN, OTHER)), raw)
    assert Kind.LINK_PACKET not in script.kinds()
    assert script.stored() == 0


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
        {"name": "x" * 1_000_000}, {"name": ""}, {"name": "0000000a"}, {"name": "*"}, {"name": "a b"}, {"name": "a\n"},
        {"store": b""}, {"start": b"x" * 100_000}, {"number": 2**64 - 1},
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


# What is told of links that are not there.


def _said(script: Script, words: str) -> int:
    return sum(words in text for text in script.notices)


def test_a_link_that_never_comes_up_is_in_the_log_after_a_while_and_in_long_intervals() -> None:
    script = Script()
    script.links.dial("port", LinkSettings(url="tcp://b2:1"))
    for _ in range(4):
        script.turn(1.0)
    assert script.notices == []
    for _ in range(300):
        script.turn(1.0)
    assert _said(script, "no answer from tcp://b2:1") == 1
    for _ in range(400):
        script.turn(1.0)
    assert _said(script, "no answer from tcp://b2:1") == len(script.notices) == 2
    script.link()
    for _ in range(1000):
        script.turn(1.0)
    assert _said(script, "no answer from") == 2, "once it was up, it is down"


def test_what_takes_connections_and_is_no_broker_is_told_apart_from_nobody() -> None:
    script = Script()
    words = "something takes connections there, and does not answer as a broker of Clarion"
    for port in ("a", "b"):
        script.links.dial(port, LinkSettings(url=f"tcp://{port}:1"))
    script.links.was_taken("a")
    for _ in range(8):
        script.turn(1.0)
    assert [row["reason"] for row in script.links.status(script.now)["links"]] == [words, ""]
    assert [words in text for text in script.notices] == [True, False]
    script.hello("a")
    assert script.links.status(script.now)["links"][0]["reason"] == ""
    script.links.lost("a", script.now)
    assert script.links.status(script.now)["links"][0]["reason"] == "the connection is gone"


def test_a_link_that_is_made_anew_again_and_again_is_told_of_once_a_minute() -> None:
    script = Script()
    for second in range(300):
        script.hello(f"port {second}")
        script.turn(1.0)
    assert script.notices[:2] == [
        "link up: b2 (00000002), which called here",
        "link up: b2 (00000002), which called here, by one more connection",
    ]
    assert _said(script, "was made anew 60 times in the last minute, and is up now") == len(script.notices) - 2
    assert 4 <= len(script.notices) - 2 <= 5
    for _ in range(200):
        script.turn(1.0)
    assert "and is down now" in script.notices[-1], "the last word is how it is"
    assert len(script.notices) <= 9
    script.hello("at last")
    assert script.notices[-1] == "link up: b2 (00000002), which called here", "calm again, it is told at once"


@pytest.mark.parametrize("is_another_port", [False, True])
def test_a_neighbour_that_starts_again_and_again_is_told_of_once_a_minute(is_another_port: bool) -> None:
    script = Script()
    for start in range(300):
        script.hello(f"port {start}" if is_another_port else "port", start=start_of(OTHER, start))
        script.turn(1.0)
    assert _said(script, "it was started again") == (1 if is_another_port else 3)
    assert _said(script, "link up") <= 3
    assert len(script.notices) <= 12


def test_a_link_that_breaks_now_and_then_is_told_of_each_time() -> None:
    script = Script()
    for _ in range(10):
        script.hello()
        for _ in range(30):
            script.turn(1.0)
    assert (_said(script, "link up:"), _said(script, "link down:"), len(script.notices)) == (10, 10, 20)


def test_a_neighbour_that_called_is_told_of_as_down_until_it_calls_again() -> None:
    script = Script()
    script.link()
    for _ in range(10):
        script.turn(1.0)
    (row,) = script.links.status(script.now)["links"]
    assert (row["name"], row["url"], row["state"], row["reason"]) == ("b2", "", "down", "nothing was heard for 5 s")
    assert row["for_s"] > 0
    assert _said(script, "It is expected to call again") == 1
    assert _said(script, "tried again") == 0
    script.hello("another port")
    (row,) = script.links.status(script.now)["links"]
    assert (row["name"], row["state"]) == ("b2", "up")
    script.links.lost("another port", script.now)
    (row,) = script.links.status(script.now)["links"]
    assert (row["name"], row["state"], row["reason"]) == ("b2", "down", "the connection is gone")


def test_neighbours_that_called_and_are_gone_are_told_of_within_bounds() -> None:
    script = Script()
    for broker in range(2, 203):
        script.hello(f"port {broker}", broker)
        script.links.lost(f"port {broker}", script.now)
    names = [row["name"] for row in script.links.status(script.now)["links"]]
    assert names == [f"b{broker}" for broker in range(103, 203)]


def test_a_broker_that_is_to_forget_itself_says_that_it_is_the_one_that_was_asked() -> None:
    script = Script()
    script.link()
    for name in ("b1", "00000001"):
        assert f"{name} is this broker, which was asked" in script.links.forget(name, script.now)


def test_a_broker_that_nothing_is_kept_for_can_be_forgotten_and_is_told_of_when_it_is_back() -> None:
    script = Script()
    script.link(THIRD)
    script.links.lost("port", script.now)
    known = [one["name"] for one in script.links.status(script.now)["brokers"]]
    assert known == ["b2", "b3"]
    for name in known:
        assert script.links.forget(name, script.now) == ""
        assert "nothing is kept for a broker called" in script.links.forget(name, script.now)
    status = script.links.status(script.now)
    assert (status["links"], status["brokers"]) == ([], [])
    script.hello()
    script.announce((OTHER, (OWN,)))
    script.links.lost("port", script.now)
    assert "b2" in [one["name"] for one in script.links.status(script.now)["brokers"]]


@pytest.mark.parametrize(
    ("accepts", "words"),
    [("none", "set accept_links to listed or any there"), ("listed", "name it in a table [[links]] there")],
)
def test_who_is_not_accepted_is_told_what_would_help(accepts: str, words: str) -> None:
    script = Script(LinkSettings(name="other"), accepts=accepts)
    script.hello()
    (notice,) = script.notices
    assert words in notice
    assert ("[[links]]" in notice) == (accepts == "listed")


@pytest.mark.parametrize("settings", [(), (LinkSettings(url="tcp://b2:1"),)])
def test_a_cache_without_a_link_is_told_at_the_start(settings: tuple[LinkSettings, ...]) -> None:
    script = Script(*settings, follow=(b"a/#",))
    script.turn()
    assert _said(script, "`follow` is set, and there are no links") == (not settings)


@pytest.mark.parametrize(
    ("accepts", "settings", "is_told"),
    [
        ("listed", (), True),
        ("listed", (LinkSettings(url="tcp://b2:1"),), True),
        ("listed", (LinkSettings(name="b2"),), False),
        ("any", (), False),
        ("none", (), False),
    ],
)
def test_a_list_of_brokers_that_may_call_is_told_at_the_start_where_nobody_is_on_it(
    accepts: str, settings: tuple[LinkSettings, ...], is_told: bool
) -> None:
    script = Script(*settings, accepts=accepts)
    script.turn()
    assert _said(script, "`accept_links` is listed, and no table [[links]] has a name") == is_told
