"""The clients of an event loop share a connection to their broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.test_async import run
from tests.integration.waiting import DEADLINE_S, until
from tests.unit.session.answering import WELCOME, Answer, answering

from clarion import Admin, AsyncPublisher, AsyncSubscriber
from clarion.model.errors import InvalidRequest
from clarion.session import AsyncSession
from clarion.session.calls import Request as Call
from clarion.session.loop_connection import loop_connections
from clarion.wire import bodies
from clarion.wire.bundles import Frames, bundled, is_bundle, unbundled
from clarion.wire.frames import BUNDLE_VERSION, Kind, Request, pack_frames, unpack_prefix


def _connections(url: str) -> int:
    with Admin(url) as admin:
        return int(admin.stats()["connections"]) - 1  # its own


def _made() -> int:
    return len(loop_connections)


def test_many_clients_are_one_connection_and_each_gets_its_own(url: str) -> None:
    async def work() -> None:
        publishers = [AsyncPublisher(url) for _ in range(20)]
        readers = {f"t/{number}": AsyncSubscriber(url, f"reader-{number}") for number in range(20)}
        for topic, reader in readers.items():
            await reader.subscribe(topic)
        for number, publisher in enumerate(publishers):
            for topic in readers:
                await publisher.put(topic, f"{topic} from {number}")
        assert await asyncio.to_thread(_connections, url) == 1
        for topic, reader in readers.items():
            found = set[str]()
            while len(found) < len(publishers):
                messages = await reader.get(topic, wait_s=DEADLINE_S)
                assert messages
                assert not found & {message.payload.decode() for message in messages}
                found |= {message.payload.decode() for message in messages}
            assert found == {f"{topic} from {number}" for number in range(20)}
        await asyncio.gather(*(publisher.close() for publisher in publishers))
        await asyncio.gather(*(reader.close() for reader in readers.values()))
        assert _made() == 0

    run(work())


def test_much_that_comes_at_once_is_read_in_parts(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clarion.session.loop_connection._READ_AT_ONCE", 1)

    async def work() -> None:
        sessions = [AsyncSession(url) for _ in range(50)]
        for _ in range(3):
            calls = [session.call(Kind.STATE, bodies.AskState(b"s"), timeout_s=DEADLINE_S) for session in sessions]
            assert {reply.kind for reply in await asyncio.gather(*calls)} == {Kind.ACK}
        for session in sessions:
            session.close()

    run(work())


def test_a_name_is_free_again_when_its_client_is_closed(url: str) -> None:
    async def work() -> None:
        async with AsyncPublisher(url):
            for _ in range(3):
                async with AsyncSubscriber(url, "one"):
                    assert _made() == 1

    run(work())


def test_what_was_not_sent_before_the_connection_was_lost_is_not_sent_after_it() -> None:
    """Whoever wanted it sent sends it again, and perhaps to a broker that is older."""

    async def work(url: str) -> None:
        session = AsyncSession(url)
        shared = session._connection
        assert shared is not None
        shared.on_welcome(BUNDLE_VERSION)
        shared.send([b"something"])
        assert shared._connection is not None
        shared._lose(shared._connection)
        assert not shared._outgoing
        assert not shared._may_bundle
        session.close()

    run(work(free_url()))


def test_what_a_client_sent_leaves_though_it_is_closed_at_once() -> None:
    def answer(request: Request) -> Answer:
        return Kind.ACK, bodies.Done()

    async def work(url: str, asked: Callable[[], list[int]]) -> None:
        stays, goes = AsyncSession(url), AsyncSession(url)
        goes.begin(Call(Kind.STATS, bodies.AskStats(), DEADLINE_S))
        goes.close()
        await until(lambda: Kind.STATS in asked())
        stays.close()

    with answering(answer) as broker:
        run(work(broker.url, broker.kinds))


def test_a_forked_child_has_none_of_its_parents(url: str) -> None:
    async def work() -> None:
        async with AsyncPublisher(url):
            child = os.fork()
            if not child:
                os._exit(7 if _made() == 0 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert _made() == 1

    run(work())


def test_two_of_one_name_wait_side_by_side(url: str) -> None:
    """On one connection the newer wait would end the older, and each would ask again without end."""

    async def work() -> None:
        async with AsyncSubscriber(url, "group") as one, AsyncSubscriber(url, "group") as two:
            await one.subscribe("t", shared=True)
            await two.subscribe("t", shared=True)
            assert _made() == 2
            both = [asyncio.create_task(reader.get("t", wait_s=DEADLINE_S, max_messages=1)) for reader in (one, two)]
            async with AsyncPublisher(url) as publisher:
                assert _made() == 2
                await publisher.put("t", b"1")
                await publisher.put("t", b"2")
                found = [message.payload for messages in await asyncio.gather(*both) for message in messages]
            assert sorted(found) == [b"1", b"2"]

    run(work())


def test_all_go_on_after_their_broker_was_killed(broker: BrokerProcess) -> None:
    async def work() -> None:
        readers = [AsyncSubscriber(broker.url, f"reader-{number}", timeout_s=DEADLINE_S) for number in range(10)]
        async with AsyncPublisher(broker.url) as publisher:
            for number, reader in enumerate(readers):
                await reader.subscribe(f"t/{number}")
            waiting = [
                asyncio.create_task(reader.get(f"t/{number}", wait_s=DEADLINE_S))
                for number, reader in enumerate(readers)
            ]
            for _ in range(3):
                await asyncio.to_thread(broker.restart)
                await until(lambda: publisher.stats["connected"])
                await until(lambda: all(reader._session.connected for reader in readers))
            assert {reader._session.reconnects for reader in readers} == {publisher._session.reconnects}
            receipts = [await publisher.put(f"t/{number}", str(number)) for number in range(10)]
            for receipt in receipts:
                await receipt.result(DEADLINE_S)
            found = [message.payload.decode() for messages in await asyncio.gather(*waiting) for message in messages]
            assert found == [str(number) for number in range(10)]
        for reader in readers:
            await reader.close()

    run(work())


def test_a_client_that_is_closed_takes_nothing_from_the_others(url: str) -> None:
    async def work() -> None:
        async with AsyncPublisher(url) as publisher, AsyncSubscriber(url, "stays") as stays:
            leaves = AsyncSubscriber(url, "leaves")
            for reader in (stays, leaves):
                await reader.subscribe("t")
            waiting = asyncio.create_task(leaves.get("t", wait_s=DEADLINE_S))
            await asyncio.sleep(0)
            waiting.cancel()
            await leaves.close()
            await publisher.put("t", b"for who stays, and for who is gone")
            assert len(await stays.get("t", wait_s=DEADLINE_S)) == 1
            again = AsyncSubscriber(url, "leaves")
            assert len(await again.get("t", wait_s=DEADLINE_S)) == 1
            await again.close()

    run(work())


def test_a_loop_that_is_gone_leaves_its_clients_to_another(url: str) -> None:
    """As at the end of a program that closed none of them."""
    with Admin(url) as admin:
        admin.subscribe("left", "reader")

    async def put() -> list[AsyncPublisher]:
        publishers = [AsyncPublisher(url) for _ in range(3)]
        for publisher in publishers:
            await publisher.put("left", b"accepted")
        return publishers

    publishers = run(put())
    works = [publisher._works for publisher in publishers]
    for each in works:
        each.leave_loop()
    assert _made() == 0

    async def end() -> None:
        await asyncio.gather(*(each.end(DEADLINE_S) for each in works))

    run(end())
    with Admin(url) as admin:
        assert admin.describe_topic("left").messages == 3


def _delete(name: bytes) -> bodies.Delete:
    return bodies.Delete(name)


def test_an_older_broker_is_sent_no_bundles() -> None:
    def answer(request: Request) -> Answer:
        return (Kind.ACK, WELCOME) if request.kind == Kind.HELLO else (Kind.ACK, bodies.Done())

    async def work(url: str) -> None:
        sessions = [AsyncSession(url) for _ in range(5)]
        for _ in range(3):
            calls = [session.call(Kind.DELETE, _delete(b"t"), timeout_s=DEADLINE_S) for session in sessions]
            assert {reply.kind for reply in await asyncio.gather(*calls)} == {Kind.ACK}
        for session in sessions:
            session.close()

    with answering(answer) as broker:  # which could read none
        run(work(broker.url))
        assert broker.kinds().count(Kind.DELETE) == 15


def test_a_newer_one_is_and_is_read_whatever_it_answers() -> None:
    """Requests of one turn come together; answers come together, with some that are nobody's or make no sense."""

    bundles = list[int]()

    async def serve(broker: zmq.Socket[bytes]) -> None:
        while True:
            await asyncio.sleep(0.001)
            if not broker.poll(0):
                continue
            peer, *frames = broker.recv_multipart()
            requests = unbundled(frames) if is_bundle(frames) else [frames]
            bundles.append(len(requests))
            stray = pack_frames(Kind.ACK, 1 << 62, bodies.Done())
            answers = [_answer(*unpack_prefix(request[0])) for request in requests]
            for reply in ([*bundled([stray, stray])[0], b"too much"], *bundled([stray, *answers, [b"short", b"?"]])):
                broker.send_multipart([peer, *(bytes(frame) for frame in reply)])

    async def work(url: str, broker: zmq.Socket[bytes]) -> None:
        serving = asyncio.create_task(serve(broker))
        sessions = [AsyncSession(url) for _ in range(5)]
        for _ in range(2):  # before the first answer nobody knows that it is a newer one
            calls = [session.call(Kind.STATE, bodies.AskState(b"s"), timeout_s=DEADLINE_S) for session in sessions]
            for session, reply in zip(sessions, await asyncio.gather(*calls), strict=True):
                assert reply.read(bodies.StateIs).version >> 32 == session.number
        for session in sessions:
            session.close()
        serving.cancel()
        assert max(bundles) == 5

    with zmq.Context() as context, context.socket(zmq.ROUTER) as broker:
        broker.setsockopt(zmq.LINGER, 0)
        run(work(f"tcp://127.0.0.1:{broker.bind_to_random_port('tcp://127.0.0.1')}", broker))


def _answer(_: int, kind: int, request_id: int) -> Frames:
    welcome = bodies.Welcome(BUNDLE_VERSION, 1, bytes(16), 1, 1 << 20, 64, 1 << 20)
    return pack_frames(Kind.ACK, request_id, bodies.StateIs(b"", request_id) if kind == Kind.STATE else welcome)


class _Faulty:
    """What a core does with an answer that it cannot take."""

    def on_reply(self, *_: Any) -> None:
        raise ZeroDivisionError


def test_a_fault_of_one_is_not_the_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        faulty, sound = AsyncSession(url), AsyncSession(url)
        ask = bodies.AskState(b"s")
        assert (await faulty.call(Kind.STATE, ask, timeout_s=DEADLINE_S)).kind == Kind.ACK
        monkeypatch.setattr(faulty._core, "on_reply", _Faulty().on_reply)
        calls = [session.call(Kind.STATE, ask, timeout_s=DEADLINE_S) for session in (faulty, sound)]
        broke, answered = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(broke, InvalidRequest)
        assert "broke" in str(broke)
        assert not isinstance(answered, BaseException)
        assert answered.kind == Kind.ACK
        for session in (faulty, sound):
            session.close()

    run(work())


def test_of_a_bundle_what_cannot_be_read_is_refused_and_the_rest_done(url: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.setsockopt(zmq.LINGER, 0)
        peer.setsockopt(zmq.RCVTIMEO, int(1000 * DEADLINE_S))
        peer.connect(url)
        good = pack_frames(Kind.STATE, 1, bodies.AskState(b"s"))
        bad = pack_frames(Kind.STATE, 2, 3)
        unknown = pack_frames(99, 3, None)
        (bundle,) = bundled([good, bad, unknown, [b"nonsense"]])
        peer.send_multipart([bytes(frame) for frame in bundle])
        kinds = _answers(peer, 4)
        assert kinds == {1: Kind.ACK, 2: Kind.INVALID, 3: Kind.INVALID, 0: Kind.INVALID}
        peer.send_multipart(
            [bytes(bundle[0]), b"\x91\x63", *(bytes(frame) for frame in good)]
        )  # it says there are more
        assert _answers(peer, 1) == {0: Kind.INVALID}
        peer.send_multipart([bytes(frame) for frame in good])
        assert _answers(peer, 1) == {1: Kind.ACK}


def _answers(peer: zmq.Socket[bytes], count: int) -> dict[int, int]:
    kinds = dict[int, int]()
    while len(kinds) < count:
        frames = peer.recv_multipart()
        for message in unbundled(frames) if is_bundle(frames) else [frames]:
            _, kind, request_id = unpack_prefix(message[0])
            kinds[request_id] = kind
    return kinds
