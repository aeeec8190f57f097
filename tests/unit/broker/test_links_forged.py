"""Packets that lie, are mutilated, or come from who may not send them: refused, counted, and nothing breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.link_script import OTHER, OWN, THIRD, Script, data_of, packet_of, start_of, store_of

from clarion.broker.engine.foreign_puts import ForeignPut, Took
from clarion.broker.engine.limits import ROW_BYTES
from clarion.broker.engine.state import ForeignDone, Group
from clarion.broker.links import LinkSettings
from clarion.broker.links.inbound import first_session
from clarion.tracking.tracker import Tracker
from clarion.wire.batch import encode_batch, key_of
from clarion.wire.codes import Code
from clarion.wire.frames import BadFrames, Kind, pack_frames, parse_request
from clarion.wire.link_bodies import (
    CONFIRM,
    DATA,
    INTEREST,
    INTEREST_DONE,
    Interest,
    InterestDone,
    LinkConfirm,
    LinkData,
    LinkPacket,
    LinkPart,
    LinksAre,
)

_EPOCH = start_of(OTHER)[:8] + bytes(8)


def _linked(**arguments: Any) -> Script:
    script = Script(**arguments)
    script.link(THIRD)
    script.subscribe()
    return script


def test_a_batch_is_taken_once() -> None:
    script = _linked()
    data, raw = data_of()
    for _ in range(3):
        script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    assert script.stored() == 2


@pytest.mark.parametrize(
    ("changes", "counter"),
    [
        ({"source": THIRD, "hops": (THIRD,)}, "link_forged"),  # it came by somebody else than it says
        ({"source": THIRD, "hops": (OTHER,)}, "link_forged"),
        ({"hops": ()}, "link_forged"),
        ({"source": 99, "hops": (99, OTHER)}, "link_off_route"),  # nobody knows it
        ({"source": OWN, "hops": (OWN, OTHER)}, "link_loops"),
        ({"hops": (OTHER, OWN, OTHER)}, "link_loops"),
        ({"source": THIRD, "hops": (THIRD, *range(10, 60), OTHER)}, "link_loops"),
        ({"source": -1, "hops": (-1, OTHER)}, "link_off_route"),
        ({"contents": b"garbage"}, "link_unreadable"),
        ({"what": 77}, "link_unreadable"),
    ],
)
def test_a_packet_that_lies_of_its_way_is_counted(changes: dict[str, Any], counter: str) -> None:
    script = _linked()
    data, raw = data_of()
    script.hear("port", Kind.LINK_PACKET, packet_of(data, **changes), raw)
    assert script.links.counters[counter] == 1
    assert script.stored() == 0


def test_a_packet_off_the_route_of_its_source_is_not_taken() -> None:
    script = _linked()
    script.hello("other port", 4)
    script.announce((4, (OWN, 5)), (5, (4,)))
    data, raw = data_of(5, name=b"t")
    packet = packet_of(data, source=5, hops=(5, OTHER))
    script.hear("port", Kind.LINK_PACKET, packet, raw)
    assert script.links.counters["link_off_route"] == 1
    assert script.stored() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"count": 1}, {"count": 0}, {"count": -2}, {"count": 2**63}, {"size": 10}, {"size": -1}, {"size": 2**63},
        {"first_offset": -1, "since": -1}, {"first_offset": 2**64 - 1}, {"since": 9}, {"since": -9}, {"topic": 0},
        {"topic": -1}, {"topic": 2**64 - 1}, {"ttl_ms": -1}, {"ttl_ms": 2**64 - 1}, {"place": 1}, {"place": -1},
        {"place": 2**64 - 1}, {"gone": -1}, {"gone": 2**63}, {"name": b""}, {"name": b"n" * 100_000}, {"name": b"a/#"},
        {"name": b"$dead/t"}, {"header": THIRD}, {"header": OWN},
    ],
)  # fmt: skip
def test_a_batch_that_is_not_what_is_said_of_it_is_counted(changes: dict[str, Any]) -> None:
    script = _linked()
    data, raw = data_of(**changes)
    script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    counted = script.links.counters["link_forged"] + script.engine.stats().get("link_forged", 0)
    assert counted == 1, "a forged batch is counted"
    assert script.store.topic_count() == 1
    assert script.stored() == 0
    good, raw = data_of()
    script.hear("port", Kind.LINK_PACKET, packet_of(good), raw)
    assert script.stored() == 2, "what is true comes in all the same"


def test_bytes_that_are_no_batch_are_counted() -> None:
    for raw in (b"x", b"CLRN" + bytes(100), bytes(1000)):
        script = _linked()
        data, _ = data_of(size=len(raw))
        script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
        assert script.links.counters["link_forged"] == 1
        assert script.stored() == 0


def test_a_batch_that_is_damaged_is_counted_where_it_would_be_stored() -> None:
    script = _linked()
    data, raw = data_of()
    script.hear("port", Kind.LINK_PACKET, packet_of(data), raw[:-1] + bytes([raw[-1] ^ 1]))
    assert script.engine.stats()["link_forged"] == 1
    assert script.stored() == 0
    script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    assert script.stored() == 2


@pytest.mark.parametrize("header", [OWN, THIRD, 77])
def test_a_batch_of_another_broker_than_its_sender_is_neither_noted_nor_carried(header: int) -> None:
    script = Script(tracker=Tracker())
    script.link(THIRD)
    tracker = script.engine.tracks.tracker
    assert tracker is not None
    script.hello("other port", 4)
    script.announce((4, (OWN,)), port="other port")
    script.subscribe()
    for to in (OWN, 4):
        data, raw = data_of(header=header, to=to)
        script.hear("port", Kind.LINK_PACKET, packet_of(data, to=(to,)), raw)
        assert tracker.seen(key_of(raw)) == []
    assert script.links.counters["link_forged"] == 2
    assert script.stored() == 0
    assert not _carried(script)
    data, raw = data_of(to=4)
    script.hear("port", Kind.LINK_PACKET, packet_of(data, to=(4,)), raw)
    assert [claim.history.origin for claim in tracker.seen(key_of(raw))] == [OTHER]
    assert _carried(script) == ["other port"], "what is true is"


def _carried(script: Script) -> list[str]:
    """Return over which connections batches were sent."""
    return [send.port for send in script.sent if send.kind == Kind.LINK_PACKET and send.body.what == DATA]


def test_counts_that_a_neighbour_says_can_be_told_however_large_they_are() -> None:
    script = _linked()
    for place in range(20):
        data, raw = data_of(gone=2**61 - 1, first_offset=2 * place, since=2 * place)
        script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    assert script.stored() == 40
    status = script.links.status(script.now)
    assert status["brokers"][0]["gone_messages"] == 2**61
    pack_frames(Kind.ACK, 0, LinksAre(status))


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        (b"t", {"max_publishers": 0}),
        (b"t", {}),  # the disk is full
        (b"x/t", {"max_publishers": 0}),
        (b"x/t", {"max_topics": 0}),
        (b"x/t", {}),
    ],
)
def test_a_batch_that_there_is_no_room_for_makes_nothing_and_is_taken_later(
    name: bytes, limits: dict[str, Any]
) -> None:
    script = _linked()
    script.subscribe(b"x/*")
    data, raw = data_of(name=name)
    state = script.engine._state
    before, free = state.limits, state.free_bytes
    state.limits = replace(before, **limits)
    if not limits:  # there is room for all that is to be made, and not for the batch
        state.free_bytes = before.disk_reserve_bytes + (1 if name == b"t" else 2) * ROW_BYTES + len(raw) - 1
    counts = (state.publisher_count, state.topic_count, state.next_publisher, state.free_bytes)
    assert script.engine.foreign_puts.take(_put_of(data, raw), script.now) is Took.NOT_NOW
    assert (state.publisher_count, state.topic_count, state.next_publisher, state.free_bytes) == counts
    assert not state.open.changes
    state.limits, state.free_bytes = before, free
    assert script.engine.foreign_puts.take(_put_of(data, raw), script.now) is Took.DONE
    script.turn()
    assert script.stored(name) == 2


def _put_of(data: LinkData, raw: bytes) -> ForeignPut:
    topic, name, first_offset, count, _, ttl_ms = data.batches[0]
    return ForeignPut(OTHER, store_of(OTHER), topic, name, 0, first_offset, count, ttl_ms, True, raw)


def test_a_batch_that_comes_again_while_it_is_committed_is_confirmed_when_it_is_on_disk() -> None:
    script, group = _in_flight()
    script.engine.committed(group, script.now)
    assert [each.position for each in _all_done(script)] == [2, 2]


def test_a_batch_that_comes_again_while_its_commit_fails_is_never_confirmed() -> None:
    script, group = _in_flight()
    script.engine.commit_failed(group, Code.DISK_FULL, "the disk is full")
    assert _all_done(script) == []
    assert script.stored() == 0


def _in_flight() -> tuple[Script, Group]:
    """Return a broker that was given a batch again, while a group with it is being committed."""
    script = _linked()
    data, raw = data_of()
    assert script.engine.foreign_puts.take(_put_of(data, raw), script.now) is Took.DONE
    group = script.engine.take_group()
    assert group is not None
    assert script.engine.foreign_puts.take(_put_of(data, raw), script.now) is Took.DONE
    assert script.engine.take_foreign_done() == [], "it is not on disk yet"
    return script, group


def _all_done(script: Script) -> list[ForeignDone]:
    """Return what is on disk, after all that was left to be committed."""
    done = script.engine.take_foreign_done()
    while (group := script.engine.take_group()) is not None:
        script.engine.committed(group, script.now)
        done += script.engine.take_foreign_done()
    return done


def test_a_batch_that_others_have_to_come_before_makes_nothing() -> None:
    script = _linked()
    data, raw = data_of(first_offset=5)
    put = _put_of(data, raw)._replace(is_start=False, since=3)
    assert script.engine.foreign_puts.take(put, script.now) is Took.AGAIN
    assert not script.engine._state.open.changes
    assert not script.engine._state.registered


def test_a_batch_that_nobody_here_subscribes_to_is_not_stored_whatever_topics_keep() -> None:
    script = _linked(limits={"default_retention": "keep"})
    data, raw = data_of(name=b"unasked")
    script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    assert script.store.topic(b"unasked") is None


def test_messages_of_an_origin_that_may_not_come_this_way_are_not_asked_for_and_dropped_and_counted() -> None:
    script = Script()
    script.links.dial("port", LinkSettings(url="tcp://there:1", origins=("b2",)))
    script.link(THIRD)
    script.subscribe()
    interests = [send.body.to for send in script.sent if send.kind == Kind.LINK_PACKET and send.body.what == INTEREST]
    assert interests == [(OTHER,)]
    assert script.links.next_deadline_s() > script.now_s, "what may not be asked for is not due, either"
    for source, hops in ((OTHER, (OTHER,)), (THIRD, (THIRD, OTHER))):
        data, raw = data_of(source)
        script.hear("port", Kind.LINK_PACKET, packet_of(data, source=source, hops=hops), raw)
    assert script.stored() == 2
    assert script.links.counters["link_origins_refused"] == 1
    assert "messages of b3 (00000003) may not come by this link" in script.notices[-1]


def test_what_a_neighbour_says_before_it_is_one_is_not_heard() -> None:
    script = Script()
    script.subscribe()
    data, raw = data_of()
    script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    script.announce((OTHER, (OWN,)))
    script.hello(heard=b"")
    script.hear("port", Kind.LINK_PACKET, packet_of(data), raw)
    assert script.links.counters["link_unasked"] == 3
    assert script.stored() == 0


def test_outdated_interest_ends_nothing() -> None:
    """A packet may come again much later, by another way, when its broker has begun anew and wants something else."""
    script = Script()
    script.link()
    epochs = [start_of(OTHER)[:8] + bytes(7) + bytes([number]) for number in (1, 2)]
    before = Interest(epochs[0], 1, ((b"a", "new"),), (), True)
    for wanted in (before, Interest(epochs[1], 1, ((b"a", "new"), (b"b", "new")), (), True)):
        script.hear("port", Kind.LINK_PACKET, packet_of(wanted, INTEREST))
    ended = Interest(epochs[1], 2, (), (b"a",))
    script.hear("port", Kind.LINK_PACKET, packet_of(ended, INTEREST))
    script.hear("port", Kind.LINK_PACKET, packet_of(before, INTEREST))
    of_another_start = Interest(start_of(OTHER, 0)[:8] + bytes(8), 1, ((b"c", "new"),), (), True)
    script.hear("port", Kind.LINK_PACKET, packet_of(of_another_start, INTEREST))
    assert script.engine.link_reads.subscribed(b"$link/00000002") == [b"b"]
    assert script.links.counters["link_outdated"] == 1


def test_names_of_the_broker_itself_are_not_for_others() -> None:
    script = Script()
    script.link()
    wanted = Interest(_EPOCH, 1, ((b"$dead/#", "earliest"), (b"$reply/x", "new"), (b"a", "new")), (), True)
    script.hear("port", Kind.LINK_PACKET, packet_of(wanted, INTEREST))
    done = [send.body for send in script.sent if send.kind == Kind.LINK_PACKET and send.body.what == INTEREST_DONE]
    assert b"do not cross links" in done[-1].contents
    assert script.engine.link_reads.subscribed(b"$link/00000002") == [b"a"]
    script.subscribe(b"$dead/#", b"s")
    assert b"$dead/#" not in script.engine.interest.wanted


# Whatever comes, `heard` takes it.

_numbers = st.one_of(
    st.integers(-3, 10), st.sampled_from([2**31, 2**32 - 1, 2**32, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
)
_names = st.sampled_from([b"", b"t", b"a/#", b"#", b"*", b"#/a", b"$dead/t", b"x" * 2000, b"\xff\x00"])
_starts = st.sampled_from(["new", "earliest", "offset", "time", "", "nonsense"])
_epochs = st.sampled_from([b"", b"x", _EPOCH, start_of(OTHER)[:8] + bytes(7) + b"\x01", start_of(OTHER)])
_raw = bytes(encode_batch([b"x", b"y"], broker=OTHER, publisher=1, stamp=1, number=1))


def _tuples(*each: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.tuples(*each), max_size=4).map(tuple)


_sessions = st.one_of(_numbers, st.integers(0, 9).map(lambda each: first_session(start_of(OTHER)) + each))
_mostly_right = st.one_of(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2), _numbers)
_sizes = st.sampled_from([len(_raw)] * 9 + [0, -1, 2**63])
_counts = st.one_of(st.just(2), st.just(2), st.just(2), _numbers)
_likely_names = st.one_of(st.just(b"t"), st.just(b"t"), _names)
_contents = st.one_of(
    st.builds(Interest, _epochs, _numbers, _tuples(_names, _starts), st.lists(_names, max_size=3).map(tuple),
              st.booleans()).map(lambda body: (INTEREST, body)),
    st.builds(InterestDone, _epochs, _numbers, _tuples(_names, _numbers), _tuples(_names, st.text(max_size=5)))
    .map(lambda body: (INTEREST_DONE, body)),
    st.builds(LinkConfirm, _numbers, _tuples(_numbers, _numbers), _tuples(_numbers, _numbers))
    .map(lambda body: (CONFIRM, body)),
    st.builds(
        LinkData, _tuples(_mostly_right, _likely_names, _mostly_right, _counts, _sizes, _mostly_right),
        st.lists(st.builds(LinkPart, st.sampled_from([OWN, OWN, OTHER, THIRD, 9]), _sessions,
                           _tuples(_mostly_right, _mostly_right, st.booleans(), _mostly_right),
                           _tuples(_numbers, _numbers)), max_size=3).map(tuple),
    ).map(lambda body: (DATA, body)),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            _contents, st.sampled_from([(OTHER, (OTHER,)), (THIRD, (THIRD, OTHER))]),
            st.lists(_numbers, max_size=3),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_no_packet_breaks_a_broker(packets: list[Any]) -> None:
    script = _linked()
    for (what, body), (source, hops), to in packets:
        packet = packet_of(body, what, source=source, hops=hops, to=(OWN, *to))
        blob = _raw * len(body.batches) if what == DATA else b""
        script.hear("port", Kind.LINK_PACKET, packet, blob)
        script.turn(0.7)
    script.turn(40.0)
    pack_frames(Kind.ACK, 0, LinksAre(script.links.status(script.now)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_mutated_frame_breaks_a_broker(draw: st.DataObject) -> None:
    script = _linked()
    data, raw = data_of()
    bodies = [
        (INTEREST, Interest(_EPOCH, 1, ((b"t", "new"), (b"a/#", "earliest")), (b"u",), True)),
        (INTEREST_DONE, InterestDone(_EPOCH, 1, ((b"t", 4),), ((b"u", "no"),))),
        (CONFIRM, LinkConfirm(5, ((2, 3),), ((2, 100),))),
        (DATA, data),
    ]
    for what, body in bodies:
        packet = packet_of(body, what)
        mutated = _mutate(draw, packet.contents)
        blob = _mutate(draw, raw) if what == DATA else b""
        frames = [bytes(each) for each in pack_frames(Kind.LINK_PACKET, 0, packet_of(body, what, contents=mutated))]
        frames = [frames[0], _mutate(draw, frames[1]), blob]
        try:
            request = parse_request(frames)
        except BadFrames:
            continue
        assert isinstance(request.body, LinkPacket)
        script.links.heard("port", request.kind, request.body, request.blob, script.now)
        script.turn(0.5)
    script.turn(40.0)
    pack_frames(Kind.ACK, 0, LinksAre(script.links.status(script.now)))


def _mutate(draw: st.DataObject, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw.draw(st.integers(0, 2))):
        place = draw.draw(st.integers(0, len(changed) - 1))
        changed[place] = draw.draw(st.integers(0, 255))
    return bytes(changed[: draw.draw(st.sampled_from([len(changed)] * 9 + [len(changed) // 2]))])
