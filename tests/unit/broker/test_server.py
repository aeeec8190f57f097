"""The serving loop's turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from clarion import Admin, Publisher
from clarion.broker import Broker
from clarion.broker.committer import Committer
from clarion.broker.engine import Now
from clarion.broker.settings import load_settings
from clarion.store.memory import MemoryStore
from clarion.store.segmented import SegmentedStore
from clarion.wire import bodies
from clarion.wire.frames import Kind, Request, pack_frames

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


def test_what_links_and_the_engine_count_by_one_name_is_told_as_their_sum(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker._transport, "send", lambda _peer, _frames: None)
    broker._links.counters.update(link_forged=2, links_refused=1)
    broker._engine._state.counters.update(link_forged=3, link_left_out=4)
    broker._engine.handle(b"client", Request(Kind.STATS, 1, bodies.AskStats(), None), Now(time.monotonic(), 0))
    (reply,) = broker._engine.take_replies()
    broker._send(reply)
    assert isinstance(reply.body, bodies.Stats)
    assert [reply.body.values[name] for name in ("link_forged", "links_refused", "link_left_out")] == [5, 1, 4]


def test_the_index_follows_when_no_request_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Committer, "is_quick", lambda *_: True)  # whatever the disk does
    store = SegmentedStore(tmp_path / "data")
    broker = Broker(load_settings(environment={}, flags={"listen": "tcp://127.0.0.1:*"}), store=store)
    catch_up, followed = store.catch_up, threading.Event()  # by whoever comes first: its own thread, or a chore

    def watched() -> None:
        was_ahead = store.is_ahead
        catch_up()
        if was_ahead:
            followed.set()

    monkeypatch.setattr(store, "catch_up", watched)
    serving = threading.Thread(target=broker.run)
    serving.start()
    try:
        with Publisher(broker.urls[0]) as publisher:
            with Admin(broker.urls[0]) as admin:
                admin.configure_topic("kept", retention="keep")
            publisher.put("kept", b"alone").result(DEADLINE_MS / 1000)
            assert followed.wait(DEADLINE_MS / 1000)
    finally:
        broker.stop()
        serving.join()
