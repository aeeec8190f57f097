"""Linked brokers in processes of their own: each message comes once, in order; what may not be linked is told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import zmq
from msgspec import msgpack
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.conftest import StartBroker
from tests.integration.linked_processes import LinkedProcesses, ask, links_of
from tests.integration.links_torture import Campaign, Plan
from tests.integration.torture_oracle import describe
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Publisher, Subscriber
from clarion.model.errors import ClarionError
from clarion.publisher import Stager
from clarion.wire.bodies import Refused
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, pack_frames
from clarion.wire.link_bodies import AskLinks, LinkHello, LinkPacket, LinkState


def _answers(broker: BrokerProcess) -> bool:
    with Admin(broker.url, timeout_s=DEADLINE_S) as admin:
        return bool(admin.stats())


def _state(broker: BrokerProcess) -> tuple[str, str]:
    link = links_of(broker.url)["links"][0]
    return link["state"], link["reason"]


def _take(reader: Subscriber, topic: str, count: int) -> list[bytes]:
    got: list[bytes] = []

    def has_all() -> bool:
        got.extend(each.payload for each in reader.get(topic, max_messages=1000, wait_s=0.5))
        return len(got) >= count

    eventually(has_all, f"{count} messages come")
    return got


def test_five_brokers_in_circles_under_kills_and_cuts(tmp_path: Path) -> None:
    campaign = Campaign(Plan(kills=10, seed=4, readers=6, traces=150), tmp_path, lambda _: None)
    verdict = campaign.run()
    report = describe(verdict, [f"{dict(campaign.kills)}"])
    assert not verdict.violations, report
    assert campaign.kills["broker"] >= 3, report
    assert sum(campaign.kills.values()) - campaign.kills["broker"] >= 3, report
    assert verdict.counts["promised"] > 1000, report
    assert verdict.counts["paths_traced"] == 150, report
    assert verdict.counts["receipts_traced"] > 100, report


def test_a_link_that_is_cut_catches_up(tmp_path: Path) -> None:
    with LinkedProcesses(tmp_path, [(1, 2)]) as linked:
        linked.wait_linked()
        with Subscriber(linked.url(2), "reader") as reader, Publisher(linked.url(1), block_s=DEADLINE_S) as publisher:
            reader.subscribe("t")
            eventually(lambda: linked.is_confirmed(2), "the origin has confirmed")
            proxy = linked.proxies[1, 2]
            sent = [b"%d " % number + bytes(2000) for number in range(3000)]
            for number, payload in enumerate(sent):
                publisher.put("t", payload)
                if number % 700 == 300:
                    proxy.swallow()
                elif number % 700 == 600:
                    proxy.relent()
            publisher.flush(DEADLINE_S)
            proxy.relent()
            assert _take(reader, "t", len(sent)) == sent


@pytest.mark.parametrize("origin", [1, 2])
def test_a_slow_link_brings_all_of_it_once(tmp_path: Path, origin: int) -> None:
    """One batch takes longer than a neighbour may be silent, and hellos wait behind it."""
    sent = [b"large" + bytes(7_000_000), *(b"%d " % number + bytes(10_000) for number in range(200))]
    linked = LinkedProcesses(tmp_path, [(1, 2)])
    proxy = linked.proxies[1, 2]
    proxy.bytes_per_s = 1_000_000.0
    with linked:
        linked.wait_linked()
        other = 3 - origin
        with Subscriber(linked.url(other), "reader") as reader, Publisher(linked.url(origin)) as publisher:
            reader.subscribe("t")
            eventually(lambda: linked.is_confirmed(other), "the origin has confirmed")
            for payload in sent:
                publisher.put("t", payload)
            publisher.flush(DEADLINE_S)
            assert _take(reader, "t", len(sent)) == sent
            assert proxy.passed_bytes < 2 * sum(map(len, sent))


def test_what_cannot_be_linked_is_told_and_both_serve_on(start_broker: StartBroker) -> None:
    url = free_url()
    itself = start_broker("itself", listen=url, name="a", links=url)
    eventually(lambda: "leads back" in _state(itself)[1], "the link to itself is refused")
    same_name = start_broker("same", name="a", links=itself.url)
    eventually(lambda: "both brokers are called a" in _state(same_name)[1], "the same name is refused")
    not_a_broker = start_broker("other", name="b", links=[{"url": itself.url, "name": "c"}])
    eventually(lambda: "c is expected at" in _state(not_a_broker)[1], "another than expected is refused")
    for broker in (itself, same_name, not_a_broker):
        assert _answers(broker)
        before = links_of(broker.url)["counters"]["links_refused"]
        eventually(lambda: links_of(broker.url)["counters"]["links_refused"] > before, "it is tried again")  # noqa: B023
        assert links_of(broker.url)["counters"]["links_refused"] < 500, "they refuse each other without end"
        assert broker.said().count("no link with") < 10, "the log says it once"


def test_a_broker_without_links_forgets_another(start_broker: StartBroker) -> None:
    """The last link is gone, and with it whoever would hear what becomes of it."""
    origin = start_broker("origin", name="origin")
    reader = start_broker("reader", name="reader", links=origin.url)
    with Subscriber(reader.url, "s") as subscriber:
        subscriber.subscribe("t")
        eventually(
            lambda: any(each["confirmed"] for each in links_of(reader.url)["brokers"]), "the origin has confirmed"
        )
        assert ask(origin.url, Kind.LINKS, AskLinks("reader"))[1][0] == Code.MALFORMED, "it is there"
    reader.kill()
    eventually(
        lambda: [each["state"] for each in links_of(origin.url)["links"]] == ["down"], "the origin has no link any more"
    )
    assert ask(origin.url, Kind.LINKS, AskLinks("reader"))[0] == Kind.ACK
    assert links_of(origin.url)["links"] == []
    assert _answers(origin)
    with Admin(origin.url) as admin:
        assert [row.subscriptions for row in admin.topics()] == [()]


def test_a_cache_serves_readers_and_refuses_writes(start_broker: StartBroker) -> None:
    origin = start_broker("origin", name="origin", default_retention="keep")
    with Publisher(origin.url) as publisher:
        for number in range(10):
            publisher.put("a/x", b"%d" % number)
    cache = start_broker("cache", name="cache", links=origin.url, follow="a/#")
    with Subscriber(cache.url, "s") as reader, Admin(cache.url) as admin:
        eventually(lambda: any(row.next_offset == 10 for row in admin.topics()), "the cache has all")
        reader.subscribe("a/x", "earliest")
        assert _take(reader, "a/x", 10) == [b"%d" % number for number in range(10)]
        for put in (
            lambda: Publisher(cache.url).put("a/x", b"no").result(DEADLINE_S),
            lambda: Publisher(cache.url).put_many("a/x", [b"no", b"nor this"]).result(DEADLINE_S),
            lambda: _stage(cache.url),
            lambda: _transact(reader),
        ):
            with pytest.raises(ClarionError, match="read-only"):
                put()
        assert [row.next_offset for row in admin.topics()] == [10]


def _stage(url: str) -> None:
    with Stager(url, "writer", 1) as stager:
        stager.put("a/x", b"no")
        stager.flush()


def _transact(reader: Subscriber) -> None:
    with reader.transaction() as tx:
        tx.put("a/x", b"no")


def test_a_neighbour_that_sends_anything_breaks_nothing(broker: BrokerProcess) -> None:
    hello = LinkHello(1, 1, 77, bytes(16), "evil", b"s" * 16)
    with zmq.Context() as context, context.socket(zmq.DEALER) as evil:
        evil.setsockopt(zmq.LINGER, 0)
        evil.connect(broker.url)
        evil.send_multipart(pack_frames(Kind.LINK_HELLO, 0, hello))
        own = msgpack.decode(evil.recv_multipart()[1], type=LinkHello)
        hello.heard = own.start
        evil.send_multipart(pack_frames(Kind.LINK_HELLO, 0, hello))
        for number in (1, 2**62, 2**64 - 1):
            told = (
                (77, "evil", bytes(16), number, (own.broker,), b"s" * 16),
                (own.broker, "x", own.store, number, (77,), b"t" * 16),
            )
            evil.send_multipart(pack_frames(Kind.LINK_STATE, 0, LinkState(told)))
        for what in range(6):
            for contents in (b"", b"\xc1" * 100, bytes(1000)):
                packet = LinkPacket(77, (own.broker,), (77,), what, contents)
                evil.send_multipart(pack_frames(Kind.LINK_PACKET, 0, packet, (b"x" * 1000,)))
        eventually(lambda: links_of(broker.url)["counters"].get("link_unreadable", 0) >= 12, "all of it was heard")
    assert _answers(broker)
    assert broker.process.poll() is None


def test_a_broker_that_knows_no_links_is_told_of(start_broker: StartBroker) -> None:
    """As one of an older release answers: INVALID to what it does not know."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            if router.poll(50):
                identity = router.recv_multipart()[0]
                router.send_multipart([identity, *pack_frames(Kind.INVALID, 0, Refused(Code.MALFORMED, "what?"))])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        broker = start_broker(links=f"tcp://127.0.0.1:{port}")
        eventually(lambda: "does not take links" in _state(broker)[1], "it is told")
        assert _answers(broker)
    finally:
        stopping.set()
        thread.join()
        context.destroy(0)
