"""An administrator at work: a real broker does what an Admin asks, and keeps it over a kill."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import (
    Admin,
    InvalidRequest,
    LimitReached,
    Message,
    MessagesGone,
    NoSubscriber,
    NoTopic,
    NotSubscribed,
    Publisher,
    Subscriber,
    TooLarge,
)
from clarion.publisher import Stager

WAIT_S = DEADLINE_S


@pytest.fixture
def admin(url: str) -> Iterator[Admin]:
    with Admin(url) as admin:
        yield admin


@pytest.fixture
def publisher(url: str) -> Iterator[Publisher]:
    with Publisher(url) as publisher:
        yield publisher


def _put(publisher: Publisher, topic: str, *payloads: bytes) -> None:
    publisher.put_many(topic, payloads).result(WAIT_S)


def _payloads(url: str, topic: str, name: str) -> list[bytes]:
    found: list[bytes] = []
    with Subscriber(url, name) as reader:
        while some := reader.get(topic):
            found += [message.payload for message in some]
    return found


def _take(reader: Subscriber, topic: str, count: int) -> list[Message]:
    """Get so many messages, however they come."""
    found: list[Message] = []
    while len(found) < count:
        some = reader.get(topic, count - len(found), wait_s=WAIT_S)
        assert some, f"only {len(found)} of {count} messages came"
        found += some
    return found


def _give_up_on(url: str, topic: str, *payloads: bytes, reason: str = "broken") -> None:
    """Have messages become dead letters: a shared subscription of one attempt gives each back."""
    with Subscriber(url, "workers", ack="explicit") as worker, Publisher(url) as publisher:
        worker.subscribe(topic, shared=True, max_attempts=1)
        _put(publisher, topic, *payloads)
        for _ in payloads:  # a last attempt is lent alone
            _take(worker, topic, 1)[0].nack(reason=reason)


# Topics.


def test_a_topic_is_made_changed_and_described(admin: Admin, url: str, publisher: Publisher) -> None:
    admin.configure_topic("made", retention="keep", max_age_s=3600, max_bytes=10**9)
    admin.configure_topic("made", at_bound="trim", ttl_s=60)
    _put(publisher, "made", b"one", b"two")
    with Subscriber(url, "reader") as reader:
        reader.subscribe("made", "earliest", expires_s=3600)
        told = admin.describe_topic("made")
    assert (told.topic, told.retention, told.messages, told.next_offset) == (b"made", "keep", 2, 2)
    assert (told.settings.max_age_s, told.settings.max_bytes, told.settings.at_bound) == (3600, 10**9, "trim")
    assert told.settings.ttl_s == 60
    assert told.stored_bytes > 0
    assert told.oldest_at is not None
    assert abs(datetime.now(UTC) - told.oldest_at) < timedelta(hours=1)
    (subscription,) = told.subscriptions
    assert (subscription.name, subscription.lag, subscription.options.expires_s) == (b"reader", 2, 3600)
    assert subscription.oldest_unacked_at == told.oldest_at


def test_settings_live_through_a_kill(broker: BrokerProcess) -> None:
    with Admin(broker.url) as admin:
        admin.configure_topic("made", retention="keep", max_age_s=3600, max_subscriptions=3)
        admin.subscribe("made", "workers", shared=True, order="key", lease_s=30, max_attempts=7, expires_s=3600)
        before = admin.describe_topic("made")
        broker.restart()
        after = admin.describe_topic("made")
    assert after.settings == before.settings
    assert after.subscriptions[0].options == before.subscriptions[0].options
    assert after.subscriptions[0].options.max_attempts == 7


def test_what_is_not_there_is_told(admin: Admin) -> None:
    with pytest.raises(NoTopic, match="nowhere"):
        admin.describe_topic("nowhere")
    with pytest.raises(NoTopic, match="nowhere"):
        admin.delete_topic("nowhere")
    with pytest.raises(NoTopic, match="nowhere"):
        admin.purge("nowhere")
    with pytest.raises(NoTopic, match="nowhere"):
        admin.read("nowhere")
    with pytest.raises(NoTopic, match="nowhere"):
        admin.dead_letters("nowhere")
    admin.configure_topic("somewhere", retention="keep")
    with pytest.raises(NotSubscribed, match="nobody"):
        admin.describe_subscription("somewhere", "nobody")
    with pytest.raises(NotSubscribed, match="nobody"):
        admin.seek("somewhere", "nobody", "new")
    assert not admin.unsubscribe("somewhere", "nobody")
    assert admin.dead_letters("somewhere") == []


def test_a_pattern_is_no_topic_to_make(admin: Admin) -> None:
    with pytest.raises(InvalidRequest):
        admin.configure_topic("alerts/*", retention="keep")


def test_the_limits_of_a_topic_are_kept(admin: Admin, url: str) -> None:
    admin.configure_topic("small", retention="keep", max_batch_bytes=2000, max_subscriptions=1)
    with Publisher(url) as publisher:
        receipt = publisher.put("small", b"x" * 3000)
        with pytest.raises(TooLarge):
            receipt.result(WAIT_S)
    assert admin.subscribe("small", "one")
    with pytest.raises(LimitReached):
        admin.subscribe("small", "two")


def test_purging_forgets_messages_for_everybody(admin: Admin, url: str, publisher: Publisher) -> None:
    for name in ("a", "b"):
        admin.subscribe("purged", name, shared=name == "b")
    for number in range(5):
        _put(publisher, "purged", b"%d" % number)
    assert admin.purge("purged", below=3) == 3
    assert admin.purge("purged", below=3) == 0
    assert [message.offset for message in admin.read("purged")] == [3, 4]
    assert _payloads(url, "purged", "a") == [b"3", b"4"]
    assert admin.purge("purged") == 2
    assert admin.describe_topic("purged").messages == 0
    assert [one.lag for one in admin.subscriptions("purged")] == [0, 0]
    _put(publisher, "purged", b"after")
    assert _payloads(url, "purged", "b") == [b"after"]


def test_a_deleted_topic_is_gone_and_can_be_made_anew(admin: Admin, url: str, publisher: Publisher) -> None:
    admin.subscribe("deleted", "reader")
    _put(publisher, "deleted", b"before")
    admin.delete_topic("deleted")
    with pytest.raises(NoTopic):
        admin.describe_topic("deleted")
    assert b"deleted" not in [row.topic for row in admin.topics()]
    with Publisher(url) as other, pytest.raises(NoSubscriber):
        other.put("deleted", b"nobody").result(WAIT_S)
    with Subscriber(url, "reader") as reader, pytest.raises(NotSubscribed):
        reader.get("deleted")
    assert admin.subscribe("deleted", "reader", "earliest")
    with Publisher(url) as other:
        other.put("deleted", b"after").result(WAIT_S)
    assert _payloads(url, "deleted", "reader") == [b"after"]


def test_usage_counts_what_is_stored_and_what_is_to_come(admin: Admin, publisher: Publisher) -> None:
    admin.configure_topic("used", retention="keep")
    publisher.put("used", b"x" * 10_000).result(WAIT_S)
    publisher.put("used", b"x" * 10_000, deliver_at=datetime.now(UTC) + timedelta(days=1)).result(WAIT_S)
    (used,) = [one for one in admin.usage() if one.topic == b"used"]
    assert used.stored_bytes >= 10_000
    assert used.staged_bytes >= 10_000
    assert admin.describe_topic("used").staged_messages == 1


# Looking without a subscription.


def test_a_topic_can_be_read_without_a_subscription(admin: Admin, publisher: Publisher) -> None:
    admin.configure_topic("browsed", retention="keep")
    payloads = [b"%d" % number for number in range(3000)]
    for start in range(0, 3000, 500):
        _put(publisher, "browsed", *payloads[start : start + 500])
    publisher.put("browsed", b"last", key=b"k", headers={"a": "b"}).result(WAIT_S)
    assert [message.payload for message in admin.read("browsed", 700, max_messages=3)] == payloads[700:703]
    everything = list(admin.browse("browsed"))
    assert [message.payload for message in everything] == [*payloads, b"last"]
    assert [message.offset for message in everything] == list(range(3001))
    assert (everything[-1].key, everything[-1].headers) == (b"k", {"a": b"b"})
    assert admin.read("browsed", 3001) == []
    assert admin.describe_topic("browsed").subscriptions == ()


def test_reading_compressed_messages(admin: Admin, url: str) -> None:
    admin.configure_topic("compressed", retention="keep")
    payloads = [b"%d " % number * 100 for number in range(500)]
    with Publisher(url, compression="zstd") as publisher:
        publisher.put_many("compressed", payloads).result(WAIT_S)
    assert [message.payload for message in admin.read("compressed", 490)] == payloads[490:]


def test_reading_what_is_gone_names_the_gap(admin: Admin, publisher: Publisher) -> None:
    admin.configure_topic("gone", retention="keep")
    for number in range(4):
        _put(publisher, "gone", b"%d" % number)
    admin.purge("gone", below=3)
    with pytest.raises(MessagesGone) as gap:
        admin.read("gone", 1)
    assert (gap.value.topic, gap.value.start, gap.value.stop) == (b"gone", 1, 3)
    assert [message.offset for message in admin.read("gone", gap.value.stop)] == [3]
    assert [message.offset for message in admin.read("gone")] == [3]


def test_expired_messages_are_not_shown(admin: Admin, publisher: Publisher) -> None:
    admin.configure_topic("expired", retention="keep")
    publisher.put("expired", b"short", ttl_s=0.001).result(WAIT_S)
    publisher.put("expired", b"long").result(WAIT_S)
    eventually(
        lambda: [message.payload for message in admin.read("expired")] == [b"long"], "only the lasting one is shown"
    )


# Subscriptions.


def test_lag_leases_and_returns_are_told(admin: Admin, url: str, publisher: Publisher) -> None:
    admin.subscribe("worked", "workers", shared=True)
    admin.subscribe("worked", "reader")
    _put(publisher, "worked", *[b"x"] * 10)
    with Subscriber(url, "workers", ack="explicit", prefetch=False, max_unacked=4) as worker:
        first, second = _take(worker, "worked", 2)
        first.ack()
        second.nack(delay_s=3600.0, reason="later")
        worker.flush_acks()
        told = admin.describe_subscription("worked", "workers")
        assert (told.lag, told.returned, told.consumers) == (9, 1, 1)
        assert told.leased <= 4
        assert told.oldest_unacked_at is not None
    assert admin.describe_subscription("worked", "workers").leased == 0
    assert {(one.name, one.lag) for one in admin.subscriptions("worked")} == {(b"workers", 9), (b"reader", 10)}


def test_subscriptions_of_a_pattern(admin: Admin) -> None:
    for topic in ("listed/a", "listed/b", "elsewhere"):
        admin.subscribe(topic, "reader")
    assert [one.topic for one in admin.subscriptions("listed/*")] == [b"listed/a", b"listed/b"]
    assert {b"listed/a", b"elsewhere"} <= {one.topic for one in admin.subscriptions()}


@pytest.mark.parametrize("shared", [False, True])
def test_a_sought_subscription_goes_on_there(admin: Admin, url: str, publisher: Publisher, shared: bool) -> None:
    topic = f"sought {shared}"
    admin.configure_topic(topic, retention="keep")
    admin.subscribe(topic, "reader", shared=shared)
    for number in range(6):
        _put(publisher, topic, b"%d" % number)
    times = [message.committed_at for message in admin.read(topic)]
    assert len(_payloads(url, topic, "reader")) == 6
    for start, expected in (("earliest", 6), (4, 2), (times[3], 3), ("end", 0), ("new", 0), (2, 4)):
        admin.seek(topic, "reader", start)  # type: ignore[arg-type]
        assert admin.describe_subscription(topic, "reader").lag == expected
        assert _payloads(url, topic, "reader") == [b"%d" % number for number in range(6 - expected, 6)]


@pytest.mark.parametrize("shared", [False, True])
def test_a_running_consumer_follows_a_seek(admin: Admin, url: str, publisher: Publisher, shared: bool) -> None:
    topic = f"followed {shared}"
    admin.configure_topic(topic, retention="keep")
    with Subscriber(url, "reader") as reader:
        reader.subscribe(topic, shared=shared)
        _put(publisher, topic, b"0", b"1", b"2")
        assert [message.payload for message in _take(reader, topic, 3)] == [b"0", b"1", b"2"]
        assert reader.get(topic) == []  # and so they are acked
        admin.seek(topic, "reader", 1)
        assert [message.payload for message in _take(reader, topic, 2)] == [b"1", b"2"]


def test_an_ended_subscription_is_ended(admin: Admin, url: str) -> None:
    admin.subscribe("ended", "reader")
    assert not admin.subscribe("ended", "reader")
    assert admin.unsubscribe("ended", "reader")
    with Subscriber(url, "reader") as reader, pytest.raises(NotSubscribed):
        reader.get("ended")


# Dead letters.


def test_dead_letters_tell_where_they_came_from(admin: Admin, url: str) -> None:
    _give_up_on(url, "died", b"one", b"two", reason="kapütt")
    first, second = admin.dead_letters("died")
    assert (first.topic, first.subscription, first.attempts, first.reason) == (b"died", b"workers", 1, "kapütt")
    assert {first.payload, second.payload} == {b"one", b"two"}
    assert {first.original_offset, second.original_offset} == {0, 1}
    assert first.headers == {}
    assert abs(datetime.now(UTC) - first.at) < timedelta(hours=1)
    assert admin.dead_letters("died", limit=1) == [first]


def test_a_replayed_dead_letter_goes_to_its_subscription_alone(admin: Admin, url: str) -> None:
    admin.subscribe("revived", "other")
    _give_up_on(url, "revived", b"one", b"two", b"three")
    assert sorted(_payloads(url, "revived", "other")) == [b"one", b"three", b"two"]
    first, second, third = admin.dead_letters("revived")
    assert admin.replay_dead("revived", [second.offset]) == (1, 0)
    assert admin.dead_letters("revived") == [first, third]
    with Subscriber(url, "workers") as worker:
        (again,) = worker.get("revived", wait_s=WAIT_S)
        assert (again.payload, again.attempt) == (second.payload, 1)
    assert _payloads(url, "revived", "other") == []
    assert admin.replay_dead("revived") == (2, 0)
    assert admin.replay_dead("revived") == (0, 0)
    assert sorted(_payloads(url, "revived", "workers")) == sorted([first.payload, third.payload])


def test_dead_letters_without_a_home_stay_until_they_are_dropped(admin: Admin, url: str) -> None:
    _give_up_on(url, "homeless", b"one", b"two")
    admin.unsubscribe("homeless", "workers")
    assert admin.replay_dead("homeless") == (0, 2)
    first, second = admin.dead_letters("homeless")
    assert admin.drop_dead("homeless", [first.offset]) == 1
    assert admin.dead_letters("homeless") == [second]
    assert admin.drop_dead("homeless") == 1
    assert admin.dead_letters("homeless") == []


def test_dead_letters_live_through_a_kill(broker: BrokerProcess) -> None:
    _give_up_on(broker.url, "died", b"one")
    with Admin(broker.url) as admin:
        before = admin.dead_letters("died")
        broker.restart()
        assert admin.dead_letters("died") == before
        assert len(before) == 1


# State and staged messages.


def test_state_is_told(admin: Admin, url: str) -> None:
    assert (admin.state("leader").value, admin.state("leader").version) == (None, 0)
    with Subscriber(url, "setter") as setter, setter.transaction() as tx:
        tx.set("leader", b"me", expect=0)
    told = admin.state("leader")
    assert told.value == b"me"
    assert told.version > 0


def test_staged_messages_are_committed_and_dropped(admin: Admin, url: str) -> None:
    admin.configure_topic("staged", retention="keep")
    for epoch in (1, 2):
        with Stager(url, writer="sink", epoch=epoch, part="p") as stager:
            stager.put_many("staged", [b"%d" % epoch] * 3)
    assert admin.describe_topic("staged").staged_messages == 6
    assert admin.commit_staged("sink", 1) == (3, False)
    assert admin.commit_staged("sink", 1).already
    admin.drop_staged("sink", 2)
    assert [message.payload for message in admin.read("staged")] == [b"1"] * 3
    assert admin.describe_topic("staged").staged_messages == 0
