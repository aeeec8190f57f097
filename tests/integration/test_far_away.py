"""A broker 70 ms away: every policy gets every message there once and in order, in the batches that it promises."""

from __future__ import annotations

import pytest
from bench.far_proxy import far
from tests.integration.waiting import eventually

from clarion import Publisher, Subscriber
from clarion.publisher.tuner import Tuning

_DELAY_S = 0.070
_WAIT_S = 120.0


def _get(reader: Subscriber, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        got = [message.payload for message in reader.get(topic, max_messages=count, wait_s=_WAIT_S)]
        assert got, f"only {len(found)} of {count} came"
        found += got
    return found


@pytest.mark.parametrize("tuning", ["auto", "recheck", "literal", "fixed"])
def test_everything_arrives_once_and_in_order(url: str, tuning: Tuning) -> None:
    messages = [b"%d" % number for number in range(5000)]
    with far(url, _DELAY_S) as far_url, Subscriber(url, name="reader") as reader:
        reader.subscribe("far")
        with Publisher(far_url, tuning=tuning, batch_size=100) as publisher:
            for message in messages:
                publisher.put("far", message)
        assert _get(reader, "far", len(messages)) == messages
        assert reader.get("far", wait_s=0) == []


def test_a_fixed_batch_size_is_kept(url: str) -> None:
    with far(url, _DELAY_S) as far_url, Subscriber(url, name="reader") as reader:
        reader.subscribe("far")
        with Publisher(far_url, tuning="fixed", batch_size=50) as publisher:
            publisher.put_many("far", [b"x"] * 1000).result(_WAIT_S)
            assert publisher.stats["batches_stored"] == 20


def test_while_batches_are_far_away_the_next_gather(url: str) -> None:
    """With no think time, far fewer batches than messages are needed, and no more are under way than may be."""
    with far(url, _DELAY_S) as far_url, Subscriber(url, name="reader") as reader:
        reader.subscribe("far")
        with Publisher(far_url, in_flight=4) as publisher:
            publisher.put("far", b"first").result(_WAIT_S)
            for _ in range(20_000):
                publisher.put("far", b"x" * 100)
                assert publisher.stats["in_flight"] <= 4
            publisher.flush(_WAIT_S)
            assert publisher.stats["batches_stored"] < 1000
            eventually(lambda: publisher.stats["pending"] == 0, "nothing waits any more")
