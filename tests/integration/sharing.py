"""Reading shared subscriptions in tests: fill a topic, take from it, and see how the subscription stands."""

from __future__ import annotations

from collections.abc import Sequence

from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Message, Publisher, Subscriber
from clarion.admin import SubscriptionDescription

WAIT_S = DEADLINE_S


def share(url: str, topic: str, name: str = "workers", **options: object) -> None:
    """Have a shared subscription."""
    with Admin(url) as admin:
        assert admin.subscribe(topic, name, shared=True, **options)  # type: ignore[arg-type]


def put(url: str, topic: str, payloads: Sequence[bytes], keys: Sequence[bytes | None] | None = None) -> None:
    """Put messages, one batch each so that any of them can be lent alone cheaply."""
    with Publisher(url) as publisher:
        for place, payload in enumerate(payloads):
            publisher.put(topic, payload, None if keys is None else keys[place]).result(WAIT_S)


def numbers(count: int) -> list[bytes]:
    """Return payloads that tell their place."""
    return [b"%d" % place for place in range(count)]


def worker(url: str, name: str = "workers", **options: object) -> Subscriber:
    """Return a consumer that acks what it is told to."""
    return Subscriber(url, name, ack="explicit", timeout_s=WAIT_S, **options)  # type: ignore[arg-type]


def take(consumer: Subscriber, topic: str | list[str], count: int, most: int = 100) -> list[Message]:
    """Get so many messages, and none beyond."""
    found: list[Message] = []
    while len(found) < count:
        got = consumer.get(topic, max_messages=min(most, count - len(found)), wait_s=WAIT_S)
        assert got, f"nothing more came after {[message.offset for message in found]}"
        found += got
    return found


def take_one(consumer: Subscriber, topic: str) -> Message:
    """Get one message."""
    (message,) = take(consumer, topic, 1)
    return message


def ack_all(consumer: Subscriber, messages: Sequence[Message]) -> None:
    """Ack, durably."""
    for message in messages:
        message.ack()
    consumer.flush_acks()


def standing(admin: Admin, topic: str, name: str = "workers") -> SubscriptionDescription:
    """Tell how a subscription stands."""
    return admin.describe_subscription(topic, name)


def wait_done(url: str, topic: str, name: str = "workers") -> None:
    """Wait until everything is acked."""
    with Admin(url) as admin:
        eventually(lambda: standing(admin, topic, name).lag == 0, f"all of {topic} is done")
