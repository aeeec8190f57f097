"""What the engine does on its own, and how it stays within its bounds."""

from __future__ import annotations

from tests.unit.broker.asker import Asker, body_of, code_of, news_asker, payloads_of

from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind


def test_the_coldest_topics_are_unloaded_and_come_back_when_asked_for() -> None:
    asker = Asker(max_topics_in_memory=1)
    asker.register()
    for topic in (b"a", b"b", b"c"):
        asker.subscribe(topic)
        asker.put_many(topic, 1, 1, b"0 of " + topic)
    asker.tick(20)
    assert list(asker.state.topics) == [b"c"]
    assert payloads_of(asker.get(b"a", asker.attach(b"a").token)) == [b"0 of a"]


def test_a_topic_where_somebody_waits_or_something_is_uncommitted_stays_in_memory() -> None:
    asker = Asker(max_topics_in_memory=1)
    asker.register()
    for topic in (b"a", b"b", b"c"):
        asker.subscribe(topic)
    asker.send_wait(b"a", asker.attach(b"a").token, wait_ms=60_000)
    asker.send_put(b"b", asker.batch(1, 1, b"x"))
    asker.tick(20)
    assert set(asker.state.topics) == {b"a", b"b"}


def test_memory_holds_the_newest_batches_of_the_warmest_topics() -> None:
    asker = Asker(memory_bytes=3000, topic_queue_size=5)
    asker.register()
    for topic in (b"a", b"b"):
        asker.subscribe(topic)
        asker.put_many(topic, 1, 1, *[b"%d" % place for place in range(8)])
    held = {name: [batch.first_offset for batch in topic.recent] for name, topic in asker.state.topics.items()}
    assert held[b"b"] == [3, 4, 5, 6, 7]
    assert held[b"a"] == [3, 4, 5, 6, 7][-len(held[b"a"]) :], "the newest, without a gap"
    assert asker.engine.stats()["memory_bytes"] <= 3000


def test_a_silent_publisher_expires_and_must_register_again() -> None:
    asker = news_asker(publisher_expiry_s=1000)
    asker.put_many(b"news", 1, 1, b"0")
    asker.tick(1500)
    asker.settle()
    refused = asker.put(b"news", asker.batch(1, 2, b"1"))
    assert code_of(refused) == (Kind.REFUSED, Code.PUBLISHER_EXPIRED)


def test_a_publisher_that_puts_never_expires_however_short_the_expiry() -> None:
    asker = news_asker(publisher_expiry_s=100)
    for number in range(1, 20):
        assert asker.put(b"news", asker.batch(1, number, b"x")).kind == Kind.ACK
        asker.tick(61)
        asker.settle()
        asker.crash()


def test_a_publisher_whose_sign_of_life_is_on_its_way_to_the_disk_does_not_expire() -> None:
    asker = news_asker(publisher_expiry_s=1000)
    asker.now_s += 1500
    key = asker.send_put(b"news", asker.batch(1, 1, b"0"))
    group = asker.take_group()
    asker.tick(0)
    asker.commit(group)
    asker.settle()
    assert asker.replies[key].kind == Kind.ACK
    assert asker.put(b"news", asker.batch(1, 2, b"1")).kind == Kind.ACK


def test_the_next_deadline_is_the_next_wait_that_ends() -> None:
    asker = Asker(topic_unload_interval_s=1000, stale_msg_interval_s=1000)
    asker.subscribe(b"news")
    token = asker.attach(b"news").token
    asker.tick(0)
    asker.send_wait(b"news", token, wait_ms=500)
    assert asker.engine.next_deadline_s() == asker.now_s + 0.5


def test_topics_are_listed_in_pages() -> None:
    asker = Asker()
    for topic in (b"b", b"a", b"c"):
        asker.subscribe(topic)
    first = body_of(asker.ask(Kind.TOPICS, bodies.ListTopics(limit=2)), bodies.TopicRows)
    rest = body_of(asker.ask(Kind.TOPICS, bodies.ListTopics(b"b", 2)), bodies.TopicRows)
    assert ([row.topic for row in first.topics], first.more) == ([b"a", b"b"], True)
    assert ([row.topic for row in rest.topics], rest.more) == ([b"c"], False)
    assert first.topics[0].subscriptions == ((b"reader", 0, 0),)


def test_a_hello_is_welcomed_with_what_the_broker_is_and_bears() -> None:
    asker = Asker(max_batch_bytes=5000)
    welcome = body_of(asker.ask(Kind.HELLO, bodies.Hello(1, 9, "test")), bodies.Welcome)
    assert (welcome.version, welcome.broker, welcome.max_batch_bytes) == (3, 1, 5000)


def test_a_client_that_speaks_no_common_version_is_told() -> None:
    asker = Asker()
    for oldest, newest in ((4, 9), (0, 0)):
        refused = asker.ask(Kind.HELLO, bodies.Hello(oldest, newest, "test"))
        assert code_of(refused) == (Kind.INVALID, Code.VERSION)


def test_an_unknown_retention_is_invalid() -> None:
    asker = Asker()
    assert code_of(asker.ask(Kind.CONFIGURE, bodies.Configure(b"news", "for a while"))) == (
        Kind.INVALID,
        Code.MALFORMED,
    )


def test_stats_count_what_happened() -> None:
    asker = news_asker()
    asker.put(b"news", asker.batch(1, 1, b"0", b"1"))
    asker.get(b"news", asker.attach(b"news").token)
    values = body_of(asker.ask(Kind.STATS, bodies.AskStats()), bodies.Stats).values
    assert (values["messages_stored"], values["messages_delivered"], values["topics"]) == (2, 2, 1)
    assert values["waiting_gets"] == values["uncommitted_bytes"] == 0


def test_an_idle_store_is_given_time_for_itself_about_once_a_second() -> None:
    asker = news_asker(disk_reserve_bytes=1000)
    asker.tick(2)
    asker.engine.take_chore()
    asker.put_many(b"news", 1, 1, b"0")
    asker.tick(0.5)
    assert not asker.engine.take_chore(), "not yet"
    asker.tick(1)
    assert not asker.engine.take_chore(), "there was a commit"
    asker.tick(1)
    assert asker.engine.take_chore()
    assert not asker.engine.take_chore(), "once"


def test_a_store_with_little_room_is_given_time_for_itself_between_commits_too() -> None:
    asker = news_asker(disk_reserve_bytes=1000)
    asker.tick(2)
    asker.engine.take_chore()
    asker.store.capacity_bytes = asker.store.used_bytes() + 1900
    asker.put_many(b"news", 1, 1, b"0")
    asker.tick(1)
    assert asker.engine.take_chore()
