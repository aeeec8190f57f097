"""Publishers of many topics with a real broker: requests of many topics, and what a close that cannot finish tells."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.integration.broker_process import free_url
from tests.integration.conftest import StartBroker

from clarion import AsyncPublisher, Publisher, Subscriber
from clarion.model.errors import NoSubscriber, TimedOut
from clarion.session.exchange import Exchange, Send
from clarion.wire.frames import Buffer, Kind

TOPICS = [f"many/{number}" for number in range(300)]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[Kind]:
    """How many requests of each kind were made by clients of this process."""
    counts: Counter[Kind] = Counter()
    original = Exchange.send

    def counting(exchange: Exchange, send: Send, *, now_s: float, sent: bool = True) -> list[Buffer]:
        counts[send.kind] += 1
        return original(exchange, send, now_s=now_s, sent=sent)

    monkeypatch.setattr(Exchange, "send", counting)
    return counts


@pytest.mark.parametrize("has_outbox", [False, True])
def test_messages_of_many_topics_are_stored_in_order_with_few_requests(
    start_broker: StartBroker, tmp_path: Path, sent: Counter[Kind], has_outbox: bool
) -> None:
    broker = start_broker()
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("many/#")
    with Publisher(broker.url, outbox=tmp_path / "outbox" if has_outbox else None) as publisher:
        receipts = [publisher.put(topic, b"%d" % place) for place in range(6) for topic in TOPICS]
        publisher.flush(60)
        offsets: dict[str, list[int | None]] = {topic: [] for topic in TOPICS}
        for place, receipt in enumerate(receipts):
            offsets[TOPICS[place % len(TOPICS)]].append(receipt.offset)
        assert all(found == list(range(6)) for found in offsets.values())
        assert publisher.stats["buffered_bytes"] == 0
    assert sent[Kind.PUT_MANY] > 0
    assert sent[Kind.PUT] + sent[Kind.PUT_MANY] < len(receipts) / 5


def test_topics_that_nobody_reads_refuse_their_part_and_the_others_are_stored(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Subscriber(broker.url, "reader") as reader:
        for topic in TOPICS[::2]:
            reader.subscribe(topic)

    async def work() -> None:
        async with AsyncPublisher(broker.url) as publisher:
            receipts = [await publisher.put(topic, b"x") for topic in TOPICS]
            for place, receipt in enumerate(receipts):
                if place % 2:
                    with pytest.raises(NoSubscriber):
                        await receipt.result(60)
                else:
                    assert (await receipt.result(60)).offset == 0

    asyncio.run(work())


def test_a_close_that_cannot_finish_counts_what_is_left_on_all_topics() -> None:
    publisher = Publisher(free_url())
    for topic in TOPICS * 4:
        publisher.put(topic, b"x")
    with pytest.raises(TimedOut, match=r"^1200 messages not confirmed .* never sent, and lost"):
        publisher.close(0.05)


def test_a_close_on_an_event_loop_that_cannot_finish_counts_what_is_left_on_all_topics() -> None:
    async def work() -> None:
        publisher = AsyncPublisher(free_url())
        for topic in TOPICS * 4:
            await publisher.put(topic, b"x")
        with pytest.raises(TimedOut, match=r"^1200 messages not confirmed .* never sent, and lost"):
            await publisher.close(0.05)

    asyncio.run(work())


def test_a_close_while_the_broker_stands_still_counts_what_was_sent_too(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Subscriber(broker.url, "reader") as reader:
        reader.subscribe("many/#")
    publisher = Publisher(broker.url)
    for topic in TOPICS:
        publisher.put(topic, b"x")
    publisher.flush(60)
    broker.kill()
    for topic in TOPICS * 3:
        publisher.put(topic, b"x")
    with pytest.raises(TimedOut, match=r"^900 messages not confirmed"):
        publisher.close(0.3)
