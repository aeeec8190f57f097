"""Bounds of the whole broker: at each of them a request is refused with its name, and nothing is made."""

from __future__ import annotations

import pytest
from tests.unit.broker.asker import Asker, code_of

from clarion.broker.engine import Reply
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import BadFrames, Kind, pack_frames, parse_request

NEWS = b"news"


def register(asker: Asker, nonce: bytes) -> tuple[int, int] | None:
    reply = asker.ask(Kind.REGISTER, bodies.Register(nonce))
    return None if reply.kind == Kind.ACK else code_of(reply)


def test_there_are_no_more_publishers_than_may_be_and_one_that_goes_makes_room() -> None:
    asker = Asker(max_publishers=2)
    for nonce in (b"the first", b"the second"):
        assert register(asker, nonce) is None
    assert register(asker, b"the third") == (Kind.REFUSED, Code.LIMIT)
    assert register(asker, b"the first") is None, "it is there already"
    asker.crash()
    assert register(asker, b"the third") == (Kind.REFUSED, Code.LIMIT)
    for _ in range(2):  # asked again, it makes no more room
        asker.ask(Kind.FORGET, bodies.Forget(1))
    assert register(asker, b"the third") is None
    assert register(asker, b"the fourth") == (Kind.REFUSED, Code.LIMIT)


def test_there_are_no_more_subscriptions_than_may_be_and_one_that_goes_makes_room() -> None:
    asker = Asker(max_subscriptions=2)
    assert asker.subscribe(NEWS, b"one").kind == asker.subscribe(b"other", b"two").kind == Kind.ACK
    assert code_of(asker.subscribe(b"third", b"three")) == (Kind.REFUSED, Code.LIMIT)
    assert asker.store.topic(b"third") is None
    assert asker.subscribe(NEWS, b"one").kind == Kind.ALREADY_SUBSCRIBED
    asker.crash()
    assert code_of(asker.subscribe(NEWS, b"three")) == (Kind.REFUSED, Code.LIMIT)
    asker.ask(Kind.DELETE, bodies.Delete(b"other"))
    assert asker.subscribe(NEWS, b"three").kind == Kind.ACK
    assert code_of(asker.subscribe(NEWS, b"four")) == (Kind.REFUSED, Code.LIMIT)


def test_a_pattern_makes_no_more_subscriptions_than_may_be() -> None:
    asker = Asker(max_subscriptions=2, default_retention="keep")
    for topic in (b"a/1", b"a/2", b"a/3"):
        asker.ask(Kind.CONFIGURE, bodies.Configure(topic))
    key = asker.send(Kind.SUBSCRIBE, bodies.Subscribe(b"a/#", b"reader"))
    asker.tick()
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.LIMIT)
    asker.settle()
    assert asker.state.subscription_count == asker.store.subscription_count() == 0


@pytest.mark.parametrize(("own", "told"), [(0, "max_subscriptions_per_topic"), (1, "its max_subscriptions")])
def test_who_is_beyond_a_topics_bound_is_told_which_it_is(own: int, told: str) -> None:
    asker = Asker(max_subscriptions_per_topic=1)
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, changes={"max_subscriptions": own}))
    assert asker.subscribe(NEWS, b"one").kind == Kind.ACK
    refused = asker.subscribe(NEWS, b"two").body
    assert isinstance(refused, bodies.Refused)
    assert (refused.code, refused.text) == (Code.LIMIT, f"news has 1 subscriptions, as many as it may ({told})")


def test_on_a_full_disk_nothing_new_is_made_and_what_is_there_goes_on() -> None:
    asker = Asker(default_retention="keep")
    asker.register(b"publisher nonce")
    asker.subscribe(NEWS)
    token = asker.attach(NEWS).token
    asker.put(NEWS, asker.batch(1, 1, b"one"))
    asker.store.capacity_bytes = asker.store.used_bytes() + asker.limits.disk_reserve_bytes + 100
    asker.state.free_bytes = asker.store.free_bytes()
    assert register(asker, b"another one") == (Kind.REFUSED, Code.DISK_FULL)
    for request in (
        asker.subscribe(b"new"),
        asker.subscribe(NEWS, b"new"),
        asker.ask(Kind.CONFIGURE, bodies.Configure(b"new", "keep")),
    ):
        assert code_of(request) == (Kind.REFUSED, Code.DISK_FULL)
    opened = asker.ask(Kind.OPEN, bodies.Open((b"new", NEWS))).body
    assert isinstance(opened, bodies.Opened)
    assert [code for _, code, _ in opened.topics] == [Code.DISK_FULL, 0]
    assert asker.store.topic(b"new") is None
    assert register(asker, b"publisher nonce") is None
    assert asker.subscribe(NEWS).kind == Kind.ALREADY_SUBSCRIBED
    assert asker.ack(NEWS, token, (0, 1)).kind == Kind.ACK


def fill(asker: Asker) -> None:
    asker.store.capacity_bytes = asker.store.used_bytes() + asker.limits.disk_reserve_bytes + 100
    asker.state.free_bytes = asker.store.free_bytes()


def stage(asker: Asker, topic: bytes, place: int) -> Reply:
    return asker.ask(Kind.STAGE, bodies.Stage(topic, b"writer", 1, b"part", place), asker.batch(1, 0, b"one"))


def transact(
    asker: Asker, number: int, *topics: bytes, size: int = 1, sets: tuple[tuple[bytes, bytes | None, None], ...] = ()
) -> Reply:
    packed = asker.batch(1, 0, bytes(size))
    puts = tuple((topic, len(packed), 0, b"") for topic in topics)
    return asker.ask(Kind.TRANSACT, bodies.Transact(1, number, (), puts, sets), packed * len(topics))


@pytest.mark.parametrize("retention", ["keep", "until-read"])
def test_a_full_disk_takes_no_topic_writer_or_state_by_what_it_refuses(retention: str) -> None:
    asker = Asker(default_retention=retention)
    asker.register(b"publisher nonce")
    asker.subscribe(NEWS)
    assert stage(asker, NEWS, 1).kind == Kind.ACK
    assert transact(asker, 1, sets=((b"there", b"", None),)).kind == Kind.ACK
    fill(asker)
    used = asker.store.used_bytes()
    for request in (
        asker.put(b"new", asker.batch(1, 1, b"one")),
        stage(asker, b"new", 2),
        asker.ask(Kind.COMMIT_STAGED, bodies.CommitStaged(b"new writer", 1)),
        transact(asker, 2, sets=((bytes(1000), b"", None),)),
    ):
        assert code_of(request) == (Kind.REFUSED, Code.DISK_FULL)
    assert (asker.store.topic(b"new"), asker.store.used_bytes()) == (None, used)
    assert transact(asker, 2, sets=((b"there", None, None),)).kind == Kind.ACK, "a state may go"
    assert asker.ask(Kind.COMMIT_STAGED, bodies.CommitStaged(b"writer", 1)).kind == Kind.ACK, "what is there is shown"


def test_a_put_that_nobody_would_read_is_not_even_remembered_on_a_full_disk() -> None:
    asker = Asker()
    asker.register(b"publisher nonce")
    asker.ask(Kind.CONFIGURE, bodies.Configure(NEWS, "until-read"))
    assert code_of(asker.put(NEWS, asker.batch(1, 1, b"one"))) == (Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER)
    fill(asker)
    assert code_of(asker.put(NEWS, asker.batch(1, 2, b"two"))) == (Kind.REFUSED, Code.DISK_FULL)
    asker.store.capacity_bytes = 1 << 40
    asker.tick(2)
    assert code_of(asker.put(NEWS, asker.batch(1, 2, b"two"))) == (Kind.NO_SUBSCRIBER, Code.NO_SUBSCRIBER)


def test_a_transaction_that_is_refused_makes_no_topic() -> None:
    asker = Asker(default_retention="keep", max_topics=3)
    asker.register(b"publisher nonce")
    asker.ask(Kind.CONFIGURE, bodies.Configure(b"lonely", "until-read"))
    for number, topics, code in (
        (1, (b"new", b"lonely"), Code.NO_SUBSCRIBER),
        (2, (b"1", b"2", b"3"), Code.LIMIT),
    ):
        assert code_of(transact(asker, number, *topics)) == (Kind.REFUSED, code)
        assert asker.store.topic_count() == 1
    assert transact(asker, 3, b"new", b"new", b"other").kind == Kind.ACK
    assert asker.store.topic_count() == 3


def test_a_transaction_that_is_refused_has_no_topic_let_go_of_what_it_has() -> None:
    asker = Asker()
    asker.register(b"publisher nonce")
    for topic, at_bound in ((b"trims", "trim"), (b"refuses", "refuse")):
        asker.ask(Kind.CONFIGURE, bodies.Configure(topic, "keep", {"max_bytes": 120, "at_bound": at_bound}))
        asker.subscribe(topic)
    assert transact(asker, 1, b"trims", b"refuses").kind == Kind.ACK
    assert code_of(transact(asker, 2, b"trims", b"refuses", size=500)) == (Kind.REFUSED, Code.TOPIC_FULL)
    asker.tick(2)
    row = asker.store.topic(b"trims")
    assert row is not None
    assert (row.first_offset, row.next_offset) == (0, 1)


def test_a_transaction_has_no_more_parts_than_are_done_quickly() -> None:
    asker = Asker(default_retention="keep")
    asker.register(b"publisher nonce")
    for request in (
        transact(asker, 1, *[NEWS] * 1001),
        transact(asker, 1, sets=tuple((b"%d" % place, b"", None) for place in range(1001))),
    ):
        assert code_of(request) == (Kind.INVALID, Code.TOO_LARGE)
    assert transact(asker, 1, *[NEWS] * 1000).kind == Kind.ACK


@pytest.mark.parametrize(
    "body",
    [
        bodies.Ack(b"t", b"n", 1, tuple((place << 40, (place << 40) + 1) for place in range(200_000))),
        bodies.Configure(b"t", changes={"x" * 100_000: 1}),
        bodies.Subscribe(b"t", bytes(100_000)),
    ],
    ids=["ack", "configure", "subscribe"],
)
def test_a_body_that_would_take_long_to_read_is_refused_unread(body: bodies.Body) -> None:
    kind = {bodies.Ack: Kind.ACK, bodies.Configure: Kind.CONFIGURE}.get(type(body), Kind.SUBSCRIBE)
    with pytest.raises(BadFrames, match="at most"):
        parse_request([bytes(frame) for frame in pack_frames(kind, 1, body, ())])
