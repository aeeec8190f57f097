"""When messages come and when they go: delays, times to live, bounds that trim and tell; compressed or not."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.conftest import StartBroker
from tests.integration.sharing import WAIT_S, ack_all, numbers, put, share, standing, take, take_one, worker
from tests.integration.waiting import eventually, paced

from clarion import Admin, MessagesGone, NotSubscribed, Publisher, Subscriber
from clarion.publisher import Stager, commit_staged

# Delayed.


@paced
def test_delayed_messages_come_when_they_are_due_and_in_that_order(url: str, pace_s: float) -> None:
    topic = f"delayed {pace_s}"
    with Subscriber(url, "reader", timeout_s=WAIT_S) as reader, Publisher(url) as publisher:
        reader.subscribe(topic)
        now_s = time.time()
        due = {b"second": 0.6 * pace_s, b"a": 0.8 * pace_s, b"b": 0.9 * pace_s, b"last": 1.2 * pace_s}
        receipt = publisher.put(topic, b"last", deliver_at=now_s + due[b"last"])
        publisher.put(topic, b"second", deliver_at=datetime.now(UTC) + timedelta(seconds=due[b"second"]))
        publisher.put(topic, b"first", deliver_at=now_s - 5)
        publisher.put_many(topic, [b"b", b"a"], deliver_at=[now_s + due[b"b"], now_s + due[b"a"]])
        publisher.flush(WAIT_S)
        assert receipt.offset is None  # it has none yet
        assert [message.payload for message in reader.get(topic, wait_s=WAIT_S)] == [b"first"]
        for payload, after_s in due.items():
            message = take_one(reader, topic)
            assert message.payload == payload
            assert time.time() >= now_s + after_s
            assert message.committed_at.timestamp() >= now_s + after_s


def test_delayed_messages_live_through_a_kill_and_come_once(broker: BrokerProcess) -> None:
    share(broker.url, "asleep")
    with Publisher(broker.url) as publisher, worker(broker.url) as consumer, Admin(broker.url) as admin:
        now_s = time.time()
        publisher.put_many("asleep", numbers(50), deliver_at=[now_s + place * 0.04 for place in range(50)])
        publisher.put("asleep", b"far", deliver_at=now_s + 3600)
        publisher.flush(WAIT_S)
        found = take(consumer, "asleep", 10)
        broker.restart()
        found += take(consumer, "asleep", 40)
        assert [message.payload for message in found] == numbers(50)
        ack_all(consumer, found)
        assert consumer.get("asleep", wait_s=0) == []
        assert admin.describe_topic("asleep").staged_messages == 1


# Time to live.


def test_what_has_expired_is_not_delivered_and_holds_nothing_up(url: str) -> None:
    share(url, "brief")
    with (
        Subscriber(url, "reader", timeout_s=WAIT_S) as reader,
        worker(url) as consumer,
        Publisher(url) as publisher,
        Admin(url) as admin,
    ):
        reader.subscribe("brief")
        publisher.put("brief", b"short", ttl_s=0.3).result(WAIT_S)
        publisher.put("brief", b"long").result(WAIT_S)
        expired_s = time.time() + 0.3
        eventually(lambda: time.time() > expired_s, "its time is over")
        assert [message.payload for message in take(consumer, "brief", 1)] == [b"long"]
        assert consumer.get("brief", wait_s=0) == []
        assert [message.payload for message in reader.get("brief", wait_s=WAIT_S)] == [b"long"]
        eventually(lambda: admin.describe_topic("brief").first_offset == 1, "what has expired is gone")


def test_a_topic_gives_its_messages_a_time_to_live(start_broker: StartBroker) -> None:
    url = start_broker(stale_msg_interval_s=0.05).url
    with Subscriber(url, "reader", timeout_s=WAIT_S) as reader, Admin(url) as admin:
        admin.configure_topic("news", ttl_s=0.5)
        reader.subscribe("news")
        put(url, "news", numbers(3))
        eventually(lambda: admin.describe_topic("news").stored_bytes == 0, "they are gone without a reader")
        assert reader.get("news", wait_s=0) == []
        assert standing(admin, "news", "reader").lag == 0


# Bounds that trim, and tell.


@pytest.mark.parametrize("shared", [False, True])
def test_a_reader_is_told_the_gap_once_and_goes_on_after_it(start_broker: StartBroker, shared: bool) -> None:
    url = start_broker(stale_msg_interval_s=0.05).url
    with worker(url, "slow", prefetch=False) as slow, Publisher(url) as publisher, Admin(url) as admin:
        admin.configure_topic("trimmed", retention="keep", max_bytes=20_000, at_bound="trim")
        slow.subscribe("trimmed", shared=shared)
        for place in range(100):
            publisher.put("trimmed", b"%d " % place + bytes(1000)).result(WAIT_S)
        first = admin.describe_topic("trimmed").first_offset
        assert first > 50
        with pytest.raises(MessagesGone) as gone:
            slow.get("trimmed", wait_s=WAIT_S)
        assert (gone.value.topic, gone.value.start, gone.value.stop) == (b"trimmed", 0, first)
        found = take(slow, "trimmed", 100 - first)
        assert [message.offset for message in found] == list(range(first, 100))
        ack_all(slow, found)
        assert standing(admin, "trimmed", "slow").lag == 0
        assert slow.get("trimmed", wait_s=0) == []
        publisher.put("trimmed", b"next").result(WAIT_S)
        assert take_one(slow, "trimmed").payload == b"next"


def test_what_a_consumer_holds_may_be_trimmed_under_its_hands(start_broker: StartBroker) -> None:
    url = start_broker(stale_msg_interval_s=0.05).url
    with worker(url) as consumer, Publisher(url) as publisher, Admin(url) as admin:
        admin.configure_topic("held", retention="keep", max_bytes=5_000, at_bound="trim")
        consumer.subscribe("held", shared=True)
        publisher.put("held", b"held").result(WAIT_S)
        held = take_one(consumer, "held")
        for _ in range(20):
            publisher.put("held", bytes(1000)).result(WAIT_S)
        eventually(lambda: admin.describe_topic("held").first_offset > 0, "it is trimmed")
        ack_all(consumer, [held])  # the work is done, and that is fine


def test_an_age_bound_lets_go_of_the_old_but_not_of_what_a_reader_needs(start_broker: StartBroker) -> None:
    url = start_broker(stale_msg_interval_s=0.05).url
    with worker(url, "slow") as slow, Admin(url) as admin:
        admin.configure_topic("aged", retention="keep", max_age_s=0.3)
        slow.subscribe("aged")
        put(url, "aged", numbers(5))
        read = take(slow, "aged", 5)
        ack_all(slow, read[:3])
        eventually(lambda: admin.describe_topic("aged").first_offset == 3, "what was read and is old is gone")
        ack_all(slow, read[3:])
        eventually(lambda: admin.describe_topic("aged").first_offset == 5, "and the rest when it is read")


@paced
def test_a_subscription_that_nobody_uses_expires_and_one_in_use_does_not(
    start_broker: StartBroker, pace_s: float
) -> None:
    url = start_broker(f"data {pace_s}", stale_msg_interval_s=0.05).url
    with Subscriber(url, "used") as used, Subscriber(url, "unused") as unused, Admin(url) as admin:
        used.subscribe("subscribed", expires_s=pace_s)
        unused.subscribe("subscribed", expires_s=pace_s)

        def left() -> set[bytes]:
            assert used.get("subscribed", wait_s=0.05) == []
            return {one.name for one in admin.describe_topic("subscribed").subscriptions}

        eventually(lambda: left() == {b"used"}, "only the one in use is left")
        with pytest.raises(NotSubscribed):
            unused.get("subscribed")


# Compression.


# Clocks that jump.


@pytest.fixture
def moved(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker whose clock can be moved."""
    broker = BrokerProcess(tmp_path / "moved")
    broker.move_clock(0.0)
    yield broker.start()
    broker.close()


def _jump(broker: BrokerProcess, admin: Admin, seconds: float) -> None:
    broker.move_clock(seconds)
    eventually(lambda: (admin.stats()["clock_off_s"] != 0) == (seconds != 0), "the broker has looked at its clock")


def test_a_message_given_back_comes_again_though_the_clock_was_put_back(moved: BrokerProcess) -> None:
    share(moved.url, "back")
    put(moved.url, "back", [b"x"])
    with worker(moved.url) as consumer, Admin(moved.url) as admin, Publisher(moved.url) as publisher:
        take_one(consumer, "back").nack(delay_s=0.5)
        publisher.put("back", b"y", deliver_at=time.time() + 0.5).result(WAIT_S)
        _jump(moved, admin, -3600.0)
        assert {message.payload for message in take(consumer, "back", 2)} == {b"x", b"y"}
    assert "the clock was put back by 3600 s" in moved.said()


def test_a_clock_that_is_wrong_for_a_while_ends_nothing_that_lives(moved: BrokerProcess) -> None:
    week_s = 7 * 86_400.0
    with Subscriber(moved.url, "reader") as reader, Admin(moved.url) as admin, Publisher(moved.url) as publisher:
        admin.configure_topic("a week", retention="keep", max_age_s=week_s)
        reader.subscribe("a week", "earliest", expires_s=week_s)
        publisher.put_many("a week", [b"0", b"1"], ttl_s=week_s).result(WAIT_S)
        (first,) = reader.get("a week", max_messages=1, wait_s=WAIT_S)
        _jump(moved, admin, 30 * 86_400.0)
        # When one that is for a moment is gone, the broker has looked at all of them.
        for _ in range(2):
            admin.configure_topic("then a moment", retention="keep")
            publisher.put("then a moment", b"x", ttl_s=0.1).result(WAIT_S)
            eventually(lambda: not admin.describe_topic("then a moment").stored_bytes, "a moment has passed")
        publisher.put("a week", b"2").result(WAIT_S)
        _jump(moved, admin, 0.0)
        (second, third) = take(reader, "a week", 2)
        assert [message.payload for message in (first, second, third)] == [b"0", b"1", b"2"]
        assert abs(third.committed_at.timestamp() - time.time()) < week_s, "the message is not of the future"
        assert [message.payload for message in admin.read("a week")] == [b"0", b"1", b"2"]
    assert "the clock was put forward by 2592000 s" in moved.said()


@pytest.mark.parametrize("shared", [False, True])
def test_compressed_batches_arrive_as_they_were_put(broker: BrokerProcess, shared: bool) -> None:
    url, dice = broker.url, random.Random(3)
    payloads = [b"%d " % place + b"all the same " * dice.randrange(200) for place in range(2000)]
    keys = [b"k%d" % (place % 5) if place % 3 else None for place in range(2000)]
    with worker(url, "reader") as reader, Publisher(url, compression="zstd") as publisher, Admin(url) as admin:
        reader.subscribe("packed", shared=shared)
        publisher.put_many("packed", payloads, keys).result(WAIT_S)
        publisher.put("packed", b"single " * 1000, headers={"a": b"b" * 500}).result(WAIT_S)
        assert admin.describe_topic("packed").stored_bytes < sum(map(len, payloads)) / 5
        with Stager(url, writer="job", epoch=1, part="p", compression="zstd") as stager:
            stager.put("packed", b"staged " * 1000)
        commit_staged(url, "job", 1)
        broker.restart()
        found = sorted(take(reader, "packed", 2002, most=1500), key=lambda message: message.offset)
        assert [message.payload for message in found] == [*payloads, b"single " * 1000, b"staged " * 1000]
        assert [message.key for message in found[:2000]] == keys
        assert found[2000].headers == {"a": b"b" * 500}
        ack_all(reader, found)
        assert standing(admin, "packed", "reader").lag == 0
