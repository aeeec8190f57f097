"""The serving loop's turns."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from clarion.broker import Broker
from clarion.broker.engine import Now
from clarion.broker.settings import load_settings
from clarion.store.memory import MemoryStore
from clarion.wire import bodies
from clarion.wire.frames import Kind, pack_frames

ASKED = 10
DEADLINE_MS = 120_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = load_settings(environment={}, flags={"listen": "tcp://127.0.0.1:*"})
    broker = Broker(settings, store=MemoryStore())
    yield broker
    broker.stop()
    broker.run()


def test_a_turn_ends_when_it_took_long_and_the_rest_is_taken_in_the_next(broker: Broker) -> None:
    (listener,) = broker._transport.listeners
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.connect(listener.url)
        for number in range(ASKED):
            peer.send_multipart([bytes(part) for part in pack_frames(Kind.STATS, number, bodies.AskStats(), ())])
        assert listener.socket.poll(DEADLINE_MS)
        long_ago = Now(time.monotonic() - 3600, 0)
        assert broker._take_requests(listener, long_ago) == (1, False)
        taken = 1
        while taken < ASKED:
            assert listener.socket.poll(DEADLINE_MS)
            count, is_all = broker._take_requests(listener, Now(time.monotonic() + 3600, 0))
            assert is_all
            taken += count
        assert taken == ASKED
