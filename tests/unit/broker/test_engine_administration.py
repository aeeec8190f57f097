"""What an administrator can ask for, and that a crash in the middle leaves all of it or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.broker.asker import FIRST_TOPIC, START_US, Asker, body_of, code_of, news_asker, payloads_of

from clarion.broker.engine import Reply
from clarion.model.options import SubscriptionOptions, TopicSettings
from clarion.store.port import Changes, StateRow
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

NEWS = b"news"
WORKERS = b"workers"


@pytest.fixture
def asker() -> Asker:
    """A topic of four messages that one subscription has not read."""
    asker = news_asker()
    asker.put_many(NEWS, 1, 1, b"0", b"1", b"2", b"3")
    return asker


def configure(asker: Asker, retention: str = "", topic: bytes = NEWS, **changes: Any) -> Reply:
    return asker.ask(Kind.CONFIGURE, bodies.Configure(topic, retention, changes))


def describe(asker: Asker, topic: bytes = NEWS) -> dict[str, Any]:
    return body_of(asker.ask(Kind.DESCRIBE, bodies.Describe(topic)), bodies.Description).values


def read(asker: Asker, token: int, position: int = 0) -> list[bytes]:
    reply = asker.get(NEWS, token, position)
    return payloads_of(reply) if reply.kind == Kind.MESSAGES else []


def subscribe_shared(asker: Asker, **options: Any) -> None:
    body = bodies.Subscribe(NEWS, WORKERS, "earliest", 0, SubscriptionOptions(shared=True, **options))
    assert asker.ask(Kind.SUBSCRIBE, body).kind == Kind.ACK


def take(asker: Asker, token: int, number: int, most: int = 100) -> Reply:
    return asker.ask(Kind.TAKE, bodies.Take(NEWS, WORKERS, token, number, most, 1 << 20, 0))


# Settings.


def test_settings_are_changed_one_by_one_and_survive_a_crash(asker: Asker) -> None:
    assert configure(asker, max_bytes=1 << 30, ttl_s=60).body == bodies.Done()
    configure(asker, "keep", at_bound="trim", max_bytes=0)
    asker.crash()
    values = describe(asker)
    assert values["retention"] == "keep"
    assert values["settings"]["at_bound"] == "trim"
    assert values["settings"]["ttl_s"] == 60.0
    assert values["settings"]["max_bytes"] == 0


def test_configuring_makes_the_topic_with_the_brokers_retention() -> None:
    asker = Asker(default_retention="keep")
    configure(asker, topic=b"fresh", max_age_s=5)
    assert describe(asker, b"fresh")["retention"] == "keep"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_bites": 1}, "max_bites"),
        ({"max_bytes": "many"}, "max_bytes"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"max_bytes": 1.5}, "max_bytes"),
        ({"ttl_s": float("nan")}, "ttl_s"),
        ({"max_age_s": float("inf")}, "max_age_s"),
        ({"at_bound": "drop"}, "at_bound"),
        ({"temporary": 1}, "temporary"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name_and_changes_nothing(
    asker: Asker, changes: dict[str, Any], named: str
) -> None:
    refused = configure(asker, "keep", **changes)
    assert code_of(refused) == (Kind.INVALID, Code.MALFORMED)
    assert named in body_of(refused, bodies.Refused).text
    assert describe(asker)["retention"] == "until-read"
    assert code_of(configure(asker, topic=b"fresh", **changes))[0] == Kind.INVALID
    assert asker.store.topic(b"fresh") is None


@pytest.mark.parametrize("name", [b"", b"x" * 1025, b"a/*", b"#"])
def test_a_name_that_no_topic_can_have_is_invalid(asker: Asker, name: bytes) -> None:
    assert code_of(configure(asker, topic=name)) == (Kind.INVALID, Code.MALFORMED)


def test_subscriptions_are_bounded_by_the_topic(asker: Asker) -> None:
    configure(asker, max_subscriptions=2)
    asker.subscribe(NEWS, b"second")
    assert code_of(asker.subscribe(NEWS, b"third")) == (Kind.REFUSED, Code.LIMIT)


# Looking.


def test_topics_are_listed_with_settings_and_what_is_shared(asker: Asker) -> None:
    configure(asker, ttl_s=5)
    subscribe_shared(asker)
    row = body_of(asker.ask(Kind.TOPICS, bodies.ListTopics()), bodies.TopicRows).topics[0]
    assert (row.settings, row.shared) == ({"ttl_s": 5.0}, (WORKERS,))
    assert [name for name, _, _ in row.subscriptions] == [b"reader", WORKERS]


def test_a_topic_is_described_with_everything_there_is_to_know(asker: Asker) -> None:
    asker.ack(NEWS, asker.attach(NEWS).token, (0, 1), (2, 3))
    subscribe_shared(asker, max_attempts=3)
    token = asker.attach(NEWS, WORKERS).token
    take(asker, token, 1, most=3)
    returned = ((0, 1, 1),)
    asker.ask(Kind.RETURN, bodies.Return(NEWS, WORKERS, token, returned, counted=True, delay_ms=60_000, reason="no"))
    asker.ask(Kind.PUT, bodies.Put(NEWS, 0, (START_US * 2).to_bytes(8, "little")), asker.batch(1, 5, b"later"))
    values = describe(asker)
    times = [batch.committed_at_us for batch in asker.store.batches(FIRST_TOPIC, 0, 99, 9999)]
    reader, workers = values.pop("subscriptions")
    row = asker.store.topic(NEWS)
    assert row is not None
    assert values == {
        "topic": NEWS,
        "number": FIRST_TOPIC,
        "retention": "until-read",
        "settings": {name: getattr(TopicSettings(), name) for name in TopicSettings.__struct_fields__},
        "first_offset": 0,
        "next_offset": 4,
        "stored_bytes": row.stored_bytes,
        "staged_messages": 1,
        "staged_bytes": asker.store.staged_totals(FIRST_TOPIC)[1],
        "oldest_at_us": times[0],
    }
    assert (reader["cursor"], reader["lag"], reader["acked_ranges"]) == (1, 2, 1)
    assert reader["oldest_unacked_at_us"] == times[1]
    assert (workers["consumers"], workers["leased"], workers["returned"], workers["lag"]) == (1, 2, 1, 4)
    assert workers["options"]["shared"]
    assert workers["options"]["max_attempts"] == 3
    assert workers["seen_at_us"] > START_US


def test_an_empty_topic_is_described_without_times() -> None:
    asker = Asker()
    asker.subscribe(NEWS)
    values = describe(asker)
    assert (values["oldest_at_us"], values["subscriptions"][0]["oldest_unacked_at_us"]) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Kind.DESCRIBE, bodies.Describe(b"nowhere")),
        (Kind.PURGE, bodies.Purge(b"nowhere")),
        (Kind.DELETE, bodies.Delete(b"nowhere")),
        (Kind.READ, bodies.Read(b"nowhere", 0, 1, 1)),
        (Kind.FIND_OFFSET, bodies.FindOffset(b"nowhere", 0)),
    ],
)
def test_what_is_asked_of_a_topic_that_is_not_there_is_refused_and_makes_none(
    asker: Asker, kind: Kind, body: bodies.Body
) -> None:
    assert code_of(asker.ask(kind, body)) == (Kind.REFUSED, Code.NO_TOPIC)
    assert asker.store.topic(b"nowhere") is None


def test_a_named_state_is_told_as_it_is_on_disk(asker: Asker) -> None:
    assert asker.ask(Kind.STATE, bodies.AskState(b"leader")).body == bodies.StateIs(None, 0)
    asker.store.commit(Changes(states={b"leader": StateRow(b"leader", b"me", 7)}))
    assert asker.ask(Kind.STATE, bodies.AskState(b"leader")).body == bodies.StateIs(b"me", 7)


def test_an_offset_is_found_by_the_time_of_its_commit(asker: Asker) -> None:
    def find(at_us: int) -> int:
        return body_of(asker.ask(Kind.FIND_OFFSET, bodies.FindOffset(NEWS, at_us)), bodies.OffsetIs).offset

    asker.now_s += 60
    asker.put_many(NEWS, 1, 5, b"4")
    times = [batch.committed_at_us for batch in asker.store.batches(FIRST_TOPIC, 0, 100, 1 << 20)]
    assert [find(at_us) for at_us in times] == [0, 1, 2, 3, 4]
    assert [find(times[3] + 1), find(times[4] + 1)] == [4, 5]
    assert [find(at_us) for at_us in (-(1 << 63), 0, (1 << 64) - 1)] == [0, 0, 5]
    asker.ask(Kind.PURGE, bodies.Purge(NEWS, 3))
    assert find(0) == 3
    configure(asker, topic=b"empty")
    assert asker.ask(Kind.FIND_OFFSET, bodies.FindOffset(b"empty", 0)).body == bodies.OffsetIs(0)


# Reading without a subscription.


def test_messages_are_read_from_a_position_without_subscribing(asker: Asker) -> None:
    reply = asker.ask(Kind.READ, bodies.Read(NEWS, 1, 2, 1 << 20))
    assert payloads_of(reply) == [b"1", b"2"]
    assert body_of(reply, bodies.Delivery).skip == ()
    assert asker.ask(Kind.READ, bodies.Read(NEWS, 4, 2, 1 << 20)).body == bodies.NoMessages(4)
    assert code_of(asker.ask(Kind.READ, bodies.Read(NEWS, 5, 2, 1))) == (Kind.INVALID, Code.MALFORMED)
    assert code_of(asker.ask(Kind.READ, bodies.Read(NEWS, -1, 2, 1))) == (Kind.INVALID, Code.MALFORMED)


def test_who_reads_for_a_subscription_is_told_what_it_acked(asker: Asker) -> None:
    asker.ack(NEWS, asker.attach(NEWS).token, (0, 1), (2, 3))
    reply = asker.ask(Kind.READ, bodies.Read(NEWS, 0, 100, 1 << 20, b"reader"))
    assert body_of(reply, bodies.Delivery).skip == ((0, 1), (2, 3))
    assert code_of(asker.ask(Kind.READ, bodies.Read(NEWS, 0, 1, 1, b"nobody")))[0] == Kind.NOT_SUBSCRIBED


def test_expired_messages_are_not_read(asker: Asker) -> None:
    asker.ask(Kind.PUT, bodies.Put(NEWS, 1000), asker.batch(1, 5, b"short"))
    asker.put_many(NEWS, 1, 6, b"5")
    asker.now_s += 5
    reply = asker.ask(Kind.READ, bodies.Read(NEWS, 3, 100, 1 << 20))
    assert payloads_of(reply) == [b"3", b"5"]
    assert body_of(reply, bodies.Delivery).skip == ((4, 5),)


def test_what_is_gone_is_told_when_read(asker: Asker) -> None:
    asker.ask(Kind.PURGE, bodies.Purge(NEWS, 3))
    refused = asker.ask(Kind.READ, bodies.Read(NEWS, 1, 100, 1 << 20))
    assert code_of(refused) == (Kind.REFUSED, Code.GONE)
    assert body_of(refused, bodies.Refused).gone == (1, 3)


# Seeking.


@pytest.mark.parametrize(
    ("start", "at", "expected"),
    [("new", 0, []), ("earliest", 0, [b"0", b"1", b"2", b"3"]), ("offset", 2, [b"2", b"3"])],
)
def test_a_subscription_goes_on_where_it_is_sought(asker: Asker, start: str, at: int, expected: list[bytes]) -> None:
    configure(asker, "keep")
    asker.ack(NEWS, asker.attach(NEWS).token, (0, 1), (3, 4))
    assert asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", start, at)).body == bodies.Done()
    asker.crash()
    attached = asker.attach(NEWS, nonce=b"another nonce")
    assert attached.acked == ()
    assert read(asker, attached.token, attached.cursor) == expected


def test_a_subscription_is_sought_to_a_time(asker: Asker) -> None:
    second = asker.store.batches(FIRST_TOPIC, 1, 1, 1)[0].committed_at_us
    asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", "time", second))
    assert asker.attach(NEWS).cursor == 1


def test_who_used_the_subscription_is_told_that_it_moved_and_attaches_anew(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    waiting = asker.send_wait(NEWS, token, position=4)
    asker.send(Kind.SEEK, bodies.Seek(NEWS, b"reader", "earliest"))
    assert code_of(asker.replies[waiting]) == (Kind.REFUSED, Code.MOVED)
    asker.settle()
    assert code_of(asker.ack(NEWS, token, (0, 1))) == (Kind.REFUSED, Code.MOVED)
    asker.crash()
    assert code_of(asker.get(NEWS, token)) == (Kind.REFUSED, Code.MOVED)
    again = asker.attach(NEWS, nonce=b"consumer nonce")
    assert again.token > token + 1
    assert read(asker, again.token) == [b"0", b"1", b"2", b"3"]


def test_what_was_lent_of_a_sought_subscription_is_no_longer_and_its_attempts_are_forgotten(asker: Asker) -> None:
    subscribe_shared(asker)
    token = asker.attach(NEWS, WORKERS).token
    take(asker, token, 1, most=2)
    asker.ask(Kind.RETURN, bodies.Return(NEWS, WORKERS, token, ((0, 1, 1),), counted=True))
    asker.ask(Kind.SEEK, bodies.Seek(NEWS, WORKERS, "earliest"))
    assert code_of(asker.ack(NEWS, token, (1, 2), name=WORKERS)) == (Kind.REFUSED, Code.MOVED)
    assert asker.store.returned(FIRST_TOPIC) == []
    again = asker.attach(NEWS, WORKERS, nonce=b"another nonce").token
    assert body_of(take(asker, again, 1), bodies.Lent).lent == ((0, 4, 1),)


@pytest.mark.parametrize(("start", "at"), [("offset", 9), ("offset", -1), ("yesterday", 0)])
def test_a_place_that_cannot_be_is_not_sought(asker: Asker, start: str, at: int) -> None:
    token = asker.attach(NEWS).token
    refused = asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", start, at))
    assert code_of(refused) == (Kind.INVALID, Code.MALFORMED)
    assert asker.ack(NEWS, token, (0, 1)).kind == Kind.ACK


def test_what_is_gone_is_not_sought(asker: Asker) -> None:
    asker.ask(Kind.PURGE, bodies.Purge(NEWS, 3))
    refused = asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", "offset", 1))
    assert code_of(refused) == (Kind.REFUSED, Code.GONE)


@pytest.mark.parametrize("crashes", [False, True])
def test_who_came_before_a_seek_does_not_come_again_where_somebody_else_came_since(asker: Asker, crashes: bool) -> None:
    before = asker.attach(NEWS, nonce=b"before the seek").token
    asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", "earliest"))
    if crashes:
        asker.crash()
    assert code_of(asker.get(NEWS, before)) == (Kind.REFUSED, Code.MOVED)
    asker.attach(NEWS, nonce=b"after the seek")
    assert code_of(asker.get(NEWS, before)) == (Kind.REFUSED, Code.TAKEN_OVER)
    assert code_of(asker.ack(NEWS, before, (0, 1))) == (Kind.REFUSED, Code.TAKEN_OVER)


def test_a_seek_that_does_not_reach_the_disk_did_not_happen(asker: Asker) -> None:
    token = asker.attach(NEWS).token
    asker.ack(NEWS, token, (0, 2))
    key = asker.send(Kind.SEEK, bodies.Seek(NEWS, b"reader", "new"))
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.DISK_FULL)
    assert read(asker, token) == [b"2", b"3"]
    asker.send(Kind.SEEK, bodies.Seek(NEWS, b"reader", "new"))
    asker.take_group()
    asker.crash()
    assert read(asker, token) == [b"2", b"3"]


def test_what_is_told_of_a_topic_is_on_disk(asker: Asker) -> None:
    asker.send(Kind.SEEK, bodies.Seek(NEWS, b"reader", "new"))
    key = asker.send(Kind.DESCRIBE, bodies.Describe(NEWS))
    assert key not in asker.replies
    asker.settle()
    assert body_of(asker.replies[key], bodies.Description).values["subscriptions"]


# Purging.


def test_purged_messages_are_gone_and_behind_every_subscription(asker: Asker) -> None:
    subscribe_shared(asker)
    token = asker.attach(NEWS).token
    worker = asker.attach(NEWS, WORKERS).token
    take(asker, worker, 1, most=1)
    assert asker.ask(Kind.PURGE, bodies.Purge(NEWS, 3)).body == bodies.Purged(3)
    assert read(asker, token) == [b"3"]
    assert asker.ack(NEWS, worker, (0, 1), name=WORKERS).kind == Kind.ACK
    assert body_of(take(asker, worker, 2), bodies.Lent).lent == ((3, 4, 1),)
    assert describe(asker)["first_offset"] == 3
    assert asker.ask(Kind.PURGE, bodies.Purge(NEWS)).body == bodies.Purged(1)
    assert asker.store.used_bytes() == 0
    asker.crash()
    assert asker.attach(NEWS).cursor == 4
    assert body_of(asker.put(NEWS, asker.batch(1, 5, b"4")), bodies.PutDone).first_offset == 4


def test_purging_up_to_the_middle_of_a_batch_leaves_its_rest(asker: Asker) -> None:
    asker.put(NEWS, asker.batch(1, 5, b"4", b"5", b"6"))
    assert asker.ask(Kind.PURGE, bodies.Purge(NEWS, 5)).body == bodies.Purged(5)
    token = asker.attach(NEWS).token
    blobs = asker.get(NEWS, token).blobs
    assert [payload for blob in blobs for payload in Batch.parse(bytes(blob)).payloads()][-2:] == [b"5", b"6"]
    assert asker.ask(Kind.PURGE, bodies.Purge(NEWS, 99)).body == bodies.Purged(3)


def test_a_topic_that_keeps_is_purged_too_and_beyond_its_end_nothing(asker: Asker) -> None:
    configure(asker, "keep")
    assert asker.ask(Kind.PURGE, bodies.Purge(NEWS, 100)).body == bodies.Purged(4)
    assert asker.ask(Kind.PURGE, bodies.Purge(NEWS)).body == bodies.Purged(0)
    assert code_of(asker.ask(Kind.PURGE, bodies.Purge(NEWS, -2))) == (Kind.INVALID, Code.MALFORMED)


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_in_a_purge_leaves_all_or_nothing(asker: Asker, committed: bool) -> None:
    asker.send(Kind.PURGE, bodies.Purge(NEWS, 2))
    group = asker.take_group()
    if committed:
        asker.store.commit(group.changes)
    asker.crash()
    assert read(asker, asker.attach(NEWS).token) == [b"0", b"1", b"2", b"3"][2 if committed else 0 :]


def test_a_seek_asked_again_does_not_move_again(asker: Asker) -> None:
    body = bodies.Seek(NEWS, b"reader", "earliest", nonce=b"a seek of mine")
    asker.ask(Kind.SEEK, body)
    token = asker.attach(NEWS).token
    asker.ack(NEWS, token, (0, 1))
    assert asker.ask(Kind.SEEK, body).body == bodies.Done()
    assert asker.attach(NEWS).cursor == 1
    assert asker.ask(Kind.SEEK, bodies.Seek(NEWS, b"reader", "earliest", nonce=b"another seek")).body == bodies.Done()
    assert asker.attach(NEWS, nonce=b"a new consumer").cursor == 0
