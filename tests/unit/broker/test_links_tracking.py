"""What links do with histories: confirm what is saved as noted, and answer who asks where a message went."""

from __future__ import annotations

from math import nan
from typing import Any

import msgspec
import pytest
from tests.unit.broker.link_script import OTHER, OWN, THIRD, Script, data_of, packet_of

from clarion.broker.links.path_search import Traces, why_unsound
from clarion.model.errors import StoreFailed
from clarion.model.ids import MessageId
from clarion.overlay.link_graph import Announcement
from clarion.tracking.tracker import Claim, HistoryName, Tracker
from clarion.wire.frames import Kind
from clarion.wire.link_bodies import CONFIRM, LinkConfirm, LinkPacket, TraceIs


def _confirms(script: Script) -> list[LinkPacket]:
    return [send.body for send in script.sent if send.kind == Kind.LINK_PACKET and send.body.what == CONFIRM]


def test_what_came_is_confirmed_once_it_is_saved_that_it_did() -> None:
    script = Script(tracker=Tracker())
    script.link()
    script.subscribe()
    tracks = script.engine.tracks
    assert tracks.take() is not None  # is being saved …
    data, raw = data_of()
    script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    tracks.saved()  # … and has nothing of what came meanwhile
    script.turn()
    assert script.stored() == 2
    assert not _confirms(script)
    assert tracks.take() is not None
    script.turn()
    assert not _confirms(script)
    tracks.saved()
    script.turn()
    assert _confirms(script)


def test_a_confirmation_of_another_is_carried_once_it_is_saved_that_the_batches_came_by() -> None:
    script = Script(tracker=Tracker())
    script.link(THIRD)
    script.hello("other port", 4)
    script.announce((4, (OWN,)), port="other port")
    tracks = script.engine.tracks
    data, raw = data_of(to=4)
    script.hear("port", Kind.LINK_PACKET, packet_of(data, to=(4,)), raw)
    confirm = packet_of(
        LinkConfirm(1, ((7, 2),)), CONFIRM, source=4, to=(OTHER,), hops=(4,), route=(OTHER,)
    )  # fmt: skip
    script.hear("other port", Kind.LINK_PACKET, confirm)
    assert script.links.waits_for_histories
    assert not _confirms(script)
    assert tracks.take() is not None
    script.turn()
    assert not _confirms(script), "what is being saved may be lost"
    tracks.failed()
    script.turn()
    assert not _confirms(script)
    assert tracks.take() is not None
    tracks.saved()
    script.turn()
    (carried,) = _confirms(script)
    assert (carried.source, carried.to, carried.hops) == (4, (OTHER,), (4, OWN))


class _Damaged:
    strategy = "bloom"
    begins_us = 0

    def seen(self, _key: tuple[int, int]) -> Any:
        raise StoreFailed("histories: page 7 is damaged")


def test_histories_that_cannot_be_read_are_told_and_the_rest_of_the_path_is_traced() -> None:
    script = Script()
    histories: Any = _Damaged()
    traces = Traces(OWN, "b1", {}, histories)
    traces.begin(MessageId(OWN, 1, 1, 0), "who asks", frozenset(), (), script.now)
    ((asker, found),) = traces.found
    assert asker == "who asks"
    assert traces.trouble == "histories: page 7 is damaged"
    assert found.values["state"] == "unknown"
    assert "cannot read its histories" in found.text
    assert found.values["unknown"] == {"b1": "cannot read its histories: histories: page 7 is damaged"}


def test_a_broker_that_is_known_and_away_may_have_had_it() -> None:
    script = Script()
    traces = Traces(OWN, "b1", {}, None)
    traces.begin(MessageId(OWN, 1, 1, 0), "who asks", frozenset(), (OTHER,), script.now)
    ((_, found),) = traces.found
    unknown: Any = found.values["unknown"]
    assert f"broker-{OTHER:08x}" in unknown


_MESSAGE = MessageId(OWN, 1, 1, 0)
_NAMES = {OWN: "b1", OTHER: "b2", THIRD: "b3"}


class _Own:
    """Histories of the broker where the message was put."""

    strategy = "bloom"
    begins_us = 0

    def gaps(self) -> tuple[tuple[int, int], ...]:
        return ()

    def seen(self, _key: tuple[int, int]) -> list[Claim]:
        return [Claim(HistoryName("publisher", OWN))]

    def held(self, *_: Any) -> tuple[()]:
        return ()

    strangers = held


def _line() -> Traces:
    """Return who asks at the beginning of a line of three brokers."""
    linked = {OWN: (OTHER,), OTHER: (OWN, THIRD), THIRD: (OTHER,)}
    announced = {
        broker: Announcement(broker, _NAMES[broker], b"", 1, others) for broker, others in linked.items()
    }  # fmt: skip
    histories: Any = _Own()
    return Traces(OWN, "b1", announced, histories)


_ALL = frozenset(_NAMES)
_SOUND = TraceIs(
    1, OTHER, "b2", (OWN, THIRD),
    (("routing", OWN, OWN, b"", 1e-5, ()), ("subscriber", OWN, 0, b"anna", 0.0, ((0, 3),))), "bloom", 5,
    ((b"news", 7, 5, ((b"late", 3), (b"$link/00000003", 0)), 2, (b"early",)),), (b"eve",), ((5, 6),),
)  # fmt: skip


def test_a_path_is_told_in_time_however_many_brokers_do_not_answer_one_after_the_other() -> None:
    script, traces = Script(), _line()
    began_s = script.now_s
    traces.begin(_MESSAGE, "who asks", _ALL, (), script.now)
    asked = []
    while not traces.found:
        asked += [each.broker for each in traces.asks]
        traces.asks.clear()
        deadline_s = traces.next_deadline_s()
        assert deadline_s is not None
        assert deadline_s > script.now_s
        script.now_s = deadline_s
        traces.tick(_ALL, script.now)
    assert asked == [OTHER, THIRD], "who is behind one that is silent is asked"
    assert script.now_s - began_s == 2.5, "a client waits for 5 s"
    ((_, found),) = traces.found
    assert (found.values["state"], found.values["unknown"]) == (
        "unknown", {"b2": "did not answer in time", "b3": "did not answer in time"}
    )  # fmt: skip
    assert traces.next_deadline_s() is None


def test_where_no_other_broker_can_be_asked_it_is_not_known_that_nobody_received_it() -> None:
    script, traces = Script(), _line()
    traces.begin(_MESSAGE, "who asks", frozenset(), (OTHER, THIRD), script.now)
    ((_, found),) = traces.found
    assert found.values["state"] == "unknown"
    assert found.values["summary"] == "nobody that could be asked received it; 2 brokers are unknown"


def test_an_answer_that_comes_late_and_in_time_counts() -> None:
    script, traces = Script(), _line()
    traces.begin(_MESSAGE, "who asks", _ALL, (), script.now)
    script.now_s = traces.next_deadline_s() or 0.0
    traces.tick(_ALL, script.now)
    for broker, said in ((OTHER, _SOUND), (THIRD, TraceIs(1, THIRD, "b3", (), (), "bloom", 0))):
        traces.take(said, broker, _ALL, script.now)
    ((_, found),) = traces.found
    assert (found.values["state"], found.values["unknown"]) == ("on its way", {})


def test_who_is_found_when_time_is_up_is_not_asked() -> None:
    script, traces = Script(), _line()
    traces.begin(_MESSAGE, "who asks", _ALL, (), script.now)
    traces.asks.clear()
    script.now_s += 60
    traces.tick(_ALL, script.now)
    ((_, found),) = traces.found
    assert not traces.asks
    assert found.values["unknown"] == {"b2": "did not answer in time", "b3": "could not be asked"}


_HELD = _SOUND.held[0]


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        ({"name": "b2\x1b[2J"}, "its name"),
        ({"name": ""}, "its name"),
        ({"linked": (1 << 32,)}, "ids of brokers"),
        ({"linked": (-1,)}, "ids of brokers"),
        ({"linked": tuple(range(20_000))}, "its neighbours"),
        ({"claims": (("routing", OWN, 1 << 40, b"", 0.0, ()),)}, "ids of brokers"),
        ({"claims": tuple(("routing", OWN, via, b"", 0.0, ()) for via in range(200))}, "its neighbours"),
        ({"claims": (("routing", OWN, OWN, b"", nan, ()),)}, "chances"),
        ({"claims": (("routing", OWN, OWN, b"", -5.0, ()),)}, "chances"),
        ({"claims": (("subscriber", OWN, 0, b"anna", 0.0, ((4, 1),)),)}, "parts of a batch"),
        ({"claims": (("subscriber", OWN, 0, b"anna", 0.0, ((0, 1 << 20),)),)}, "parts of a batch"),
        ({"begins_us": -1}, "times"),
        ({"gaps": ((0, 1 << 62),)}, "times"),
        ({"held": ((*_HELD[:2], 1 << 62, *_HELD[3:]),)}, "times"),
        ({"held": ((_HELD[0], -2, *_HELD[2:]),)}, "its log"),
        ({"held": ((*_HELD[:4], -1, ()),)}, "its log"),
        ({"held": ((*_HELD[:3], ((b"$link/zz", 0),), 1, ()),)}, "who waits"),
        ({"held": ((*_HELD[:3], ((b"late", -1),), 1, ()),)}, "who waits"),
    ],
)
def test_an_answer_that_cannot_be_is_none(forged: dict[str, Any], why: str) -> None:
    assert why_unsound(_SOUND) == ""
    script, traces = Script(), _line()
    said = msgspec.structs.replace(_SOUND, **forged)
    assert why_unsound(said) == why
    traces.begin(_MESSAGE, "who asks", _ALL, (), script.now)
    traces.take(said, OTHER, _ALL, script.now)
    traces.take(TraceIs(1, THIRD, "b3", (), (), "bloom", 0), THIRD, _ALL, script.now)
    ((_, found),) = traces.found
    assert found.values["unknown"] == {"b2": f"answered what cannot be ({why})"}
    assert found.text.replace("\n", "").isprintable()


def test_what_is_not_found_in_a_log_and_what_is_new_can_be() -> None:
    said = msgspec.structs.replace(
        _SOUND, held=((b"news", -1, 0, (), 0, ()),), claims=(("kept", OWN, 0, b"", 0.5, ()),), strategy="counts"
    )
    assert why_unsound(said) == ""


def test_nothing_that_others_say_of_themselves_garbles_a_terminal() -> None:
    script, traces = Script(), _line()
    announced: Any = traces._announced
    announced[THIRD] = announced[THIRD]._replace(name="\x1b[2Jb3")
    traces.begin(_MESSAGE, "who asks", _ALL, (), script.now)
    said = msgspec.structs.replace(_SOUND, name="rome", trouble="\x1b[2Jgone\n" + 10_000 * "!")
    traces.take(said, OTHER, frozenset({OTHER}), script.now)
    ((_, found),) = traces.found
    unknown: Any = found.values["unknown"]
    assert list(unknown) == ["b2", f"broker-{THIRD:08x}"], "a broker has the name that it is known by"
    assert unknown["b2"].startswith("cannot read its histories: ?[2Jgone?!!!")
    assert len(unknown["b2"]) < 500
    assert found.text.replace("\n", "").isprintable()
