"""Whatever arrives is a request or a BadFrames, and nothing a request says breaks the engine."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.broker.engine import Engine, Limits, Now
from clarion.store.memory import MemoryStore
from clarion.wire import bodies
from clarion.wire.frames import (
    _BODIES,
    MAGIC,
    PREFIX,
    BadFrames,
    Kind,
    Request,
    pack_frames,
    parse_request,
    request_id_of,
)

many = settings(max_examples=300, deadline=None, derandomize=True, database=None)
whole_64 = st.integers(-(1 << 63), (1 << 64) - 1)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | whole_64 | st.floats() | st.text(max_size=4) | st.binary(max_size=12),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
prefixes = st.builds(
    lambda version, kind, request: PREFIX.pack(MAGIC, version, kind, request),
    st.sampled_from((1, 1, 1, 0, 2, 255)),
    st.sampled_from([*Kind, 0, 99, 255]),
    st.integers(0, (1 << 64) - 1),
)


def read(frames: list[bytes]) -> Request | None:
    request_id_of(frames)
    try:
        return parse_request(frames)
    except BadFrames:
        return None


@many
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_is_refused(frames: list[bytes]) -> None:
    assert read(frames) is None


@many
@given(prefixes, st.binary(max_size=60), st.booleans())
def test_garbage_bodies_are_refused_or_read(prefix: bytes, body: bytes, blob: bool) -> None:
    read([prefix, body, b"blob"] if blob else [prefix, body])


@many
@given(prefixes, values, st.booleans())
def test_bodies_of_the_wrong_shape_are_refused(prefix: bytes, body: Any, blob: bool) -> None:
    packed = msgspec.msgpack.encode(body)
    read([prefix, packed, b"blob"] if blob else [prefix, packed])


def test_deeply_nested_bodies_are_refused() -> None:
    for kind in _BODIES:
        prefix = PREFIX.pack(MAGIC, 1, kind, 1)
        frames = [prefix, b"\x91" * 100_000, b""] if kind == Kind.PUT else [prefix, b"\x91" * 100_000]
        assert read(frames) is None


def test_text_that_is_not_utf_8_is_refused() -> None:
    assert read([PREFIX.pack(MAGIC, 1, Kind.HELLO, 1), b"\x93\x01\x01\xa2\xff\xfe"]) is None


NAMES = st.sampled_from([b"", b"a", b"b", b"\xff", bytes(1024), bytes(1025)])
BODIES = st.one_of(
    st.builds(bodies.Hello, whole_64, whole_64, st.text(max_size=3)),
    st.builds(bodies.Register, st.binary(max_size=70)),
    st.builds(bodies.Forget, whole_64),
    st.builds(bodies.Put, NAMES),
    st.builds(bodies.Subscribe, NAMES, NAMES, st.sampled_from(["new", "earliest", "offset", "time", ""]), whole_64),
    st.builds(bodies.Unsubscribe, NAMES, NAMES),
    st.builds(bodies.Attach, NAMES, NAMES, st.binary(max_size=70)),
    st.builds(bodies.Get, NAMES, NAMES, whole_64, whole_64, whole_64, whole_64, whole_64),
    st.builds(bodies.Ack, NAMES, NAMES, whole_64, st.lists(st.tuples(whole_64, whole_64), max_size=3).map(tuple)),
    st.builds(bodies.Configure, NAMES, st.sampled_from(["keep", "until-read", "for ever"])),
    st.builds(bodies.ListTopics, NAMES, whole_64),
    st.builds(bodies.AskStats),
)
KINDS = {body: kind for kind, body in _BODIES.items()}


class NarrowStore(MemoryStore):
    """A store whose numbers have 64 bits with a sign, as in a database."""

    def offset_at(self, topic: int, committed_at_us: int) -> int | None:
        assert abs(committed_at_us) < 1 << 63
        return super().offset_at(topic, committed_at_us)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(BODIES, st.binary(max_size=80), st.booleans()), max_size=12))
def test_no_request_breaks_the_engine(asked: list[tuple[bodies.Body, bytes, bool]]) -> None:
    """Every request is answered once, now or when its group is on disk, and what is stored fits the store."""
    engine, now_s, answers = Engine(NarrowStore(), Limits()), 1.0, 0
    for number, (body, blob, commit) in enumerate(asked, 1):
        kind = KINDS[type(body)]
        request = read([bytes(frame) for frame in pack_frames(kind, number, body, [blob] if kind == Kind.PUT else [])])
        assert request is not None
        engine.handle(b"peer", request, Now(now_s, int(now_s * 1e6)))
        now_s += 0.5
        engine.tick(Now(now_s, int(now_s * 1e6)))
        if commit:
            answers += settle(engine, now_s)
    answers += settle(engine, now_s)
    engine.tick(Now(now_s + 1e9, int(now_s * 1e6)))
    assert answers + settle(engine, now_s) == len(asked)


def settle(engine: Engine, now_s: float) -> int:
    while group := engine.take_group():
        numbers = {*group.changes.gone_publishers, *group.changes.publishers, *group.changes.topics}
        assert all(0 < number < 1 << 32 for number in numbers)
        engine._state.store.commit(group.changes)
        engine.committed(group, Now(now_s, int(now_s * 1e6)))
    return len(engine.take_replies())
