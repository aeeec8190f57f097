"""What nobody could work on goes to the dead letters, whole and with its story, and from there back or away."""

from __future__ import annotations

from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import WAIT_S, ack_all, put, share, standing, take_one, wait_done, worker
from tests.integration.waiting import eventually, paced
from tests.integration.worker_process import WorkerProcess

from clarion import Admin, Publisher, Subscriber


def _give_up(url: str, topic: str, attempts: int, reason: str) -> None:
    """Have the next message nacked until it is dead."""
    with worker(url) as consumer:
        for attempt in range(1, attempts + 1):
            message = take_one(consumer, topic)
            assert message.attempt == attempt
            message.nack(reason=reason)
            consumer.flush_acks()


def test_after_the_last_attempt_a_message_is_dead_and_can_be_replayed(url: str) -> None:
    share(url, "orders", max_attempts=3)
    with Subscriber(url, "other") as other, Publisher(url) as publisher, Admin(url) as admin:
        other.subscribe("orders")
        receipt = publisher.put("orders", b"\x00bad", key=b"k", headers={"colour": b"red"}).result(WAIT_S)
        _give_up(url, "orders", 3, "no such customer")
        (letter,) = admin.dead_letters("orders")
        assert (letter.payload, letter.key, letter.headers) == (b"\x00bad", b"k", {"colour": b"red"})
        assert (letter.topic, letter.subscription, letter.attempts) == (b"orders", b"workers", 3)
        assert (letter.reason, letter.id, letter.original_offset) == ("no such customer", receipt.id, 0)
        wait_done(url, "orders")
        assert [message.offset for message in other.get("orders", wait_s=WAIT_S)] == [0]

        assert admin.replay_dead("orders").done == 1
        assert admin.dead_letters("orders") == []
        with worker(url) as consumer:
            again = take_one(consumer, "orders")
            assert (again.payload, again.key, again.attempt) == (b"\x00bad", b"k", 1)
            assert again.headers["colour"] == b"red"
            ack_all(consumer, [again])
        assert other.get("orders", wait_s=0) == []  # it had it
        assert admin.replay_dead("orders").done == 0


def test_dead_letters_are_dropped_one_by_one(url: str) -> None:
    share(url, "drops", max_attempts=1)
    put(url, "drops", [b"a", b"b", b"c"])
    for _ in range(3):
        _give_up(url, "drops", 1, "whatever")
    with Admin(url) as admin:
        letters = admin.dead_letters("drops")
        assert [letter.payload for letter in letters] == [b"a", b"b", b"c"]
        assert admin.drop_dead("drops", [letters[1].offset]) == 1
        assert admin.replay_dead("drops", [letters[2].offset]).done == 1
        assert [letter.payload for letter in admin.dead_letters("drops")] == [b"a"]
        with worker(url) as consumer:
            assert take_one(consumer, "drops").payload == b"c"


@paced
def test_a_message_that_kills_its_consumers_ends_as_a_dead_letter_and_takes_no_other_along(
    url: str, pace_s: float
) -> None:
    topic = f"poison {pace_s}"
    share(url, topic, max_attempts=3, lease_s=pace_s / 2)
    put(url, topic, [b"good", b"poison", b"fine"])
    done: set[str] = set()
    deaths = 0
    with Admin(url) as admin:
        while not admin.dead_letters(topic):
            with WorkerProcess(url, "workers") as victim:
                while victim.process.poll() is None:
                    for offset, _, payload in victim.ask("get", topic, 1, 0.1):
                        if payload == "poison":
                            victim.kill()
                            deaths += 1
                            break
                        victim.ask("ack", offset)
                        done.add(payload)
                    if admin.dead_letters(topic):
                        break
        (letter,) = admin.dead_letters(topic)
        assert (letter.payload, letter.attempts) == (b"poison", 3)
        assert "no sign of life" in letter.reason
        assert deaths == 3
        with worker(url) as consumer:
            while len(done) < 2:
                message = take_one(consumer, topic)
                done.add(message.payload.decode())
                ack_all(consumer, [message])
        assert done == {"good", "fine"}
        eventually(lambda: standing(admin, topic).lag == 0, "nothing is left")


def test_dead_letters_and_their_replay_live_through_kills_of_the_broker(broker: BrokerProcess) -> None:
    share(broker.url, "kept", max_attempts=1)
    put(broker.url, "kept", [b"a", b"b"])
    _give_up(broker.url, "kept", 1, "first")
    broker.restart()
    _give_up(broker.url, "kept", 1, "second")
    broker.restart()
    with Admin(broker.url) as admin:
        assert [(letter.payload, letter.reason) for letter in admin.dead_letters("kept")] == [
            (b"a", "first"),
            (b"b", "second"),
        ]
        assert admin.replay_dead("kept").done == 2
        broker.restart()
        assert admin.dead_letters("kept") == []
        with worker(broker.url) as consumer:
            for payload in (b"a", b"b"):
                message = take_one(consumer, "kept")
                assert (message.payload, message.attempt) == (payload, 1)
                ack_all(consumer, [message])
        assert standing(admin, "kept").lag == 0
