"""Nodes that poll a web server together: what they find, who polls, who takes over, and what cannot make them fail."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess, hold_port
from tests.integration.feed_nodes import LOOPBACK, FeedNodes, NodesHere, node_settings
from tests.integration.feed_server import Entry, FeedServer, Misbehaviour
from tests.integration.feeds_torture import Campaign, Plan, judge
from tests.integration.torture_oracle import describe
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import Admin, Publisher, Subscriber
from clarion.feeds.channels import Rules, channel_hash, channel_topic, record_name
from clarion.feeds.deltas import Change, Delta, delta_of
from clarion.feeds.fetcher import FetchSettings
from clarion.feeds.front_end import ChannelDetail, Feeds, NotFollowed
from clarion.feeds.node import Node
from clarion.feeds.polls import POLLS_TOPIC, PollRecord, decode_poll
from clarion.feeds.ring_view import NOTICES_TOPIC, RING_TOPIC
from clarion.feeds.versions import content_name, head_name
from clarion.model.errors import BadSettings, PermanentError, TakenOver

SOON = {"poll_interval_s": 0.5, "beat_s": 0.3}
SELDOM = {"poll_interval_s": 86_400.0, "beat_s": 0.3}  # so that whatever is polled is polled for another reason


@pytest.fixture(scope="module")
def server() -> Iterator[FeedServer]:
    """A web server that the tests share, each with paths of its own."""
    with FeedServer() as server:
        yield server


class World:
    """A broker, a web server and nodes."""

    def __init__(self, url: str, server: FeedServer, nodes: NodesHere, feeds: Feeds) -> None:
        self.url = url
        self.server = server
        self.nodes = nodes
        self.feeds = feeds

    def start(self, *names: str, **settings: Any) -> list[Node]:
        """Start nodes, and wait until each sees all."""
        made = [self.nodes.start(name, **{**SOON, **settings}) for name in names]
        eventually(lambda: all(set(names) <= set(node.view.nodes) for node in made), "the nodes see each other")
        return made

    def follow(self, path: str, *names: str, rules: Rules | None = None) -> str:
        """Subscribe to a path of the server; return its URL."""
        for name in names or ("reader",):
            self.feeds.subscribe(self.server.url(path), name, rules=rules)
        return self.server.url(path)

    def deltas(self, url: str) -> list[Delta]:
        """Return all deltas that are on a channel's topic."""
        with Admin(self.url) as admin:
            found = [delta_of(message.payload) for message in admin.browse(channel_topic(url), "earliest")]
        return [one for one in found if one is not None]

    def wait_versions(self, url: str, count: int) -> list[Delta]:
        """Wait until a channel has so many versions; they are without gaps, and none is there twice."""
        eventually(lambda: len(self.deltas(url)) >= count, f"version {count} of {url}")
        found = self.deltas(url)
        assert [one.version for one in found] == list(range(1, count + 1))
        return found

    def wait_polls(self, path: str, count: int) -> None:
        """Wait until a path was asked for so many times more."""
        before = len(self.server.requests(path))
        eventually(lambda: len(self.server.requests(path)) >= before + count, f"{path} is polled")

    def wait_entries(self, url: str, *titles: str) -> list[Delta]:
        """Wait until these entries came, in whatever versions; return the deltas."""

        def came() -> list[Delta]:
            found = self.deltas(url)
            return found if set(titles) <= {one.title for delta in found for one in delta.changes} else []

        return eventually(came, f"{titles} of {url}")

    def wait_trouble(self, url: str, kind: str) -> str:
        """Wait until it is told that a channel cannot be had, for this reason; return what is told."""

        def told() -> str:
            trouble = self.feeds.show(url).status.trouble
            return trouble.text if trouble and trouble.kind == kind else ""

        return eventually(told, f"{kind} is told of {url}")

    def wait_shown(self, url: str, condition: Callable[[ChannelDetail], bool]) -> ChannelDetail:
        """Wait until a channel is shown so."""
        (found,) = eventually(lambda: [one for one in [self.feeds.show(url)] if condition(one)], f"{url} is shown so")
        return found

    def polls(self) -> list[PollRecord]:
        """Return the log of all polls."""
        with Admin(self.url) as admin:
            return [decode_poll(message.payload) for message in admin.browse(POLLS_TOPIC, "earliest")]


@pytest.fixture
def world(url: str, server: FeedServer) -> Iterator[World]:
    """A broker and a web server that tests share; nobody follows anything before, and nobody does afterwards."""
    with Feeds(url) as feeds:
        with NodesHere(url) as nodes:
            yield World(url, server, nodes, feeds)
        for one in feeds.channels():
            for name in one.names:
                feeds.unsubscribe(one.url, name)


def _titles(delta: Delta) -> list[tuple[str, str]]:
    return [(one.kind, one.title) for one in delta.changes]


# What is found.


def test_a_change_is_found_by_one_of_many_and_delivered_once_as_what_changed(world: World) -> None:
    world.server.set_feed("/a.xml", ["entry 1"], title="News")
    world.server.set_feed("/b.xml", [Entry("one", "of old")], form="atom")
    rss, atom = (world.follow(path, "reader", "r2", "r3", "r4") for path in ("/a.xml", "/b.xml"))
    world.start("n1", "n2", "n3", base=2)
    for number in range(1, 5):
        world.server.set_feed("/a.xml", [f"entry {each}" for each in range(number, 0, -1)], title="News")
        found = world.wait_versions(rss, number)
    assert [one.kind for one in found] == ["snapshot", "delta", "delta", "delta"]
    assert found[0].title == "News"
    assert _titles(found[3]) == [("new", "entry 4")]
    world.wait_versions(atom, 1)
    world.server.set_feed("/b.xml", [Entry("one", "of new")], form="atom")
    (change,) = world.wait_versions(atom, 2)[1].changes
    assert (change.kind, change.title, change.before, change.text) == ("changed", "one", "of old", "of new")
    with Subscriber(world.url, "reader") as reader:
        topic = channel_topic(rss)
        assert len(reader.get(topic, 100, wait_s=30.0)) == 4
        assert reader.get(topic, 100, wait_s=0.0) == []


def test_of_a_page_the_text_counts_and_noise_does_not(world: World) -> None:
    page = (
        "<html><head><title>Prices</title></head><body><nav>{noise}</nav><main id='m'><h1>Prices</h1>"
        "<p>A loaf of bread costs {price} crowns today.</p><p>The market is open from seven to twelve.</p></main>"
        "<script>var now = '{noise}'</script></body></html>"
    )

    def serve(price: int, noise: str) -> None:
        world.server.set_page("/prices", page.format(price=price, noise=noise))

    serve(10, "first")
    url = world.follow("/prices", rules=Rules(keep=("#m",)))
    world.start("n1")
    (first,) = world.wait_versions(url, 1)
    assert (first.form, first.title) == ("page", "Prices")
    for noise in ("second", "third"):
        serve(10, noise)
        world.wait_polls("/prices", 2)
    serve(12, "third")
    (_, second) = world.wait_versions(url, 2)
    assert ["12 crowns" in one.text for one in second.changes] == [True]


# Who polls.


def test_sixteen_nodes_share_the_polls_and_ask_no_more_than_subscribers_would(world: World) -> None:
    paths = ["/shared/1.xml", "/shared/2.xml"]
    followers = [f"follower {number}" for number in range(16)]
    urls = []
    for path in paths:
        world.server.set_feed(path, ["one"])
        urls.append(world.follow(path, *followers))
    names = {f"n{number}" for number in range(16)}
    interval_s = 1.0
    world.start(*sorted(names), poll_interval_s=interval_s, beat_s=1.0)
    for url in urls:
        shown = world.wait_shown(url, lambda found: len(found.pollers) == 16)
        assert set(shown.pollers) == names
        assert shown.detection_s == pytest.approx(interval_s / 32)
    with_all = {(url, name) for url in urls for name in names}

    def polled(since_s: float) -> bool:
        return with_all <= {(one.url, one.node) for one in world.polls() if one.at_us > since_s * 1e6}

    eventually(lambda: polled(0.0), "every node knows every channel")  # before, it has nothing to ask conditionally by
    began_s = time.time()
    eventually(lambda: polled(began_s), "every node polls every channel")
    until_s = time.time()
    for path in paths:
        came = [one for one in world.server.requests(path) if began_s <= one.at_s <= until_s]
        assert len(came) <= len(followers) * ((until_s - began_s) // interval_s + 2)
        assert all(one.conditional for one in came)


def test_what_nobody_follows_is_polled_no_more_and_what_is_new_is_polled_at_once(world: World) -> None:
    world.server.set_feed("/old.xml", ["one"])
    world.server.set_feed("/new.xml", ["one"])
    old = world.follow("/old.xml")
    world.start("n1", poll_interval_s=0.3, beat_s=0.3, maintenance_s=86_400.0)
    world.wait_versions(old, 1)
    assert world.feeds.unsubscribe(old, "reader")
    (node,) = world.nodes.running
    eventually(lambda: channel_topic(old) not in node.poller.slots, "the node hears of it")
    new = world.follow("/new.xml")
    world.wait_versions(new, 1)
    before = len(world.server.requests("/old.xml"))
    eventually(lambda: len(world.server.requests("/new.xml")) > 5, "others are polled")
    assert len(world.server.requests("/old.xml")) == before


def test_a_node_that_leaves_hands_over_at_once_and_one_that_dies_is_replaced(world: World, tmp_path: Path) -> None:
    world.server.set_feed("/handed.xml", ["one"])
    url = world.follow("/handed.xml")
    with FeedNodes(world.url, ["n1", "n2"], tmp_path / "log", **SOON) as others:
        owner = world.wait_shown(url, lambda found: found.nodes == 2).owner
        (node,) = world.start("n3")
        world.wait_versions(url, 1)
        assert others.stop() == 0
        eventually(lambda: list(node.view.nodes) == ["n3"], "those who leave are gone")
    assert owner in ("n1", "n2")
    with FeedNodes(world.url, ["n1", "n2"], tmp_path / "log", **SOON) as others:
        eventually(lambda: len(node.view.nodes) == 3, "they are back")
        others.kill()
        world.server.set_feed("/handed.xml", ["two", "one"])
        world.wait_versions(url, 2)
        eventually(lambda: list(node.view.nodes) == ["n3"], "those who died are gone")


def test_who_starts_later_has_the_name(world: World) -> None:
    (first,) = world.start("n1")
    (second,) = world.start("n1")
    with pytest.raises(TakenOver, match="another node named n1"):
        world.nodes.wait(first)
    world.server.set_feed("/name.xml", ["one"])
    world.wait_versions(world.follow("/name.xml"), 1)
    assert second.poller.counts["changes"] == 1


def test_nodes_of_a_ring_agree_on_what_they_all_compute_with(world: World) -> None:
    world.start("n1")
    with pytest.raises(BadSettings, match=r"node n1 is on this ring with poll_interval_s 0\.5 \(here 60"):
        world.start("n2", poll_interval_s=60.0)
    assert list(world.feeds.nodes()) == ["n1"]


def test_bounds_that_somebody_set_for_the_topics_of_nodes_stay(world: World) -> None:
    with Admin(world.url) as admin:
        admin.configure_topic(POLLS_TOPIC, retention="keep", max_age_s=60.0)
        world.start("n1")
        assert admin.describe_topic(POLLS_TOPIC).settings.max_age_s == 60.0


# Who fails.


def test_a_node_that_is_started_before_its_broker_joins_when_it_comes(broker: BrokerProcess) -> None:
    broker.kill()
    with ThreadPoolExecutor(1) as pool, NodesHere(broker.url) as nodes:
        starting = pool.submit(nodes.start, "n1")
        eventually(lambda: nodes.running, "it tries")
        broker.start()
        assert list(starting.result(DEADLINE_S).view.nodes) == ["n1"]


def test_a_node_that_waits_for_its_broker_ends_when_it_is_told_to() -> None:
    async def run(url: str) -> None:
        node = Node(url, "n1", node_settings())
        running = asyncio.create_task(node.run())
        await asyncio.sleep(0)
        node.stop()
        await running

    with hold_port() as port:
        asyncio.run(run(f"tcp://127.0.0.1:{port.getsockname()[1]}"))


def test_nodes_go_on_while_the_broker_is_away_and_what_they_found_comes_in_order(
    broker: BrokerProcess, server: FeedServer
) -> None:
    server.set_feed("/away.xml", ["one"])
    with Feeds(broker.url) as feeds, NodesHere(broker.url) as nodes:
        world = World(broker.url, server, nodes, feeds)
        url = world.follow("/away.xml")
        world.start("n1", "n2")
        world.wait_versions(url, 1)
        broker.kill()
        for number in (2, 3):
            server.set_feed("/away.xml", [f"entry {each}" for each in range(number, 1, -1)] + ["one"])
            world.wait_polls("/away.xml", 3)
        broker.start()
        found = world.wait_entries(url, "entry 2", "entry 3")
        assert [title for delta in found for _, title in _titles(delta)] == ["one", "entry 2", "entry 3"]
        assert [delta.version for delta in found] == list(range(1, len(found) + 1))


def test_updates_are_neither_lost_nor_doubled_under_kills(tmp_path: Path) -> None:
    plan = Plan(kills=5, seed=10, processes=3, nodes=6, channels=3)
    campaign = Campaign(plan, tmp_path, lambda _: None)
    verdict = campaign.run()
    report = describe(verdict, [f"{dict(campaign.kills)}"])
    assert not verdict.violations, report
    assert all(campaign.kills[kind] >= 1 for kind in ("owner", "node", "broker")), report
    assert verdict.counts["versions"] >= plan.channels, report


def _delta(version: int, *titles: str, kind: str = "new") -> Delta:
    changes = tuple(Change(kind=kind, title=title) for title in titles)  # type: ignore[arg-type]
    return Delta(url="u", version=version, kind="delta", form="feed", changes=changes)


@pytest.mark.parametrize(
    ("deltas", "accused"),
    [
        ([_delta(1, "a"), _delta(2, "b", "c")], []),
        ([_delta(1, "a"), _delta(2, "c")], ["/x: b was lost"]),
        ([_delta(1, "a", "b"), _delta(2, "b", "c")], ["/x: b came 2 times"]),
        ([_delta(1, "a", "b"), _delta(3, "c")], ["/x: versions are [1, 3]"]),
        ([_delta(2, "a", "b"), _delta(1, "c")], ["/x: versions are [2, 1]"]),
        ([_delta(1, "a", "b"), _delta(2, "c", kind="changed")], ["/x: entries were told as {'changed'}"]),
    ],
)
def test_the_judge_sees_what_is_lost_doubled_or_out_of_order(deltas: list[Delta], accused: list[str]) -> None:
    assert judge({"/x": ["a", "b", "c"]}, {"/x": deltas}).violations == accused


# Servers that misbehave.

_HOW: dict[Misbehaviour, str] = {
    "gzip-bomb": "too-large",
    "entity-bomb": "unreadable",
    "redirect-loop": "redirects",
    "drip": "timeout",
    "garbage": "connection",
}
_STRICT = dataclasses.replace(LOOPBACK, total_s=1.0, body_bytes=1 << 20, connections_per_host=16)


def test_a_server_that_misbehaves_is_told_of_spares_others_and_recovers(world: World) -> None:
    urls = {}
    for how in _HOW:
        world.server.set_feed(f"/{how}.xml", ["one"])
        world.server.misbehave(f"/{how}.xml", how)
        urls[how] = world.follow(f"/{how}.xml")
    world.server.set_feed("/fine.xml", ["one"])
    fine = world.follow("/fine.xml")
    (node,) = world.start("n1", poll_interval_s=0.05, fetch=_STRICT)
    for how, url in urls.items():
        world.wait_trouble(url, _HOW[how])
    world.server.set_feed("/fine.xml", ["two", "one"])
    world.wait_versions(fine, 2)
    for how, url in urls.items():
        world.server.behave(f"/{how}.xml")
        world.wait_versions(url, 1)
        world.wait_shown(url, lambda found: found.status.trouble is None)
    assert node.poller.counts["failures"] >= 2 * len(_HOW)


def test_a_host_that_throttles_is_spared_by_all_nodes(broker: BrokerProcess, server: FeedServer) -> None:
    with Feeds(broker.url) as feeds, NodesHere(broker.url) as nodes:
        world = World(broker.url, server, nodes, feeds)
        server.set_feed("/calm.xml", ["one"])
        server.fail("/throttled.xml", 429, "3600")
        calm = world.follow("/calm.xml")
        made = world.start("n1", "n2")
        world.wait_versions(calm, 1)
        world.follow("/throttled.xml")
        eventually(lambda: server.requests("/throttled.xml"), "it is polled")
        now_s = time.time()
        eventually(
            lambda: all(node.view.throttle.until_s("127.0.0.1") > now_s + 3000 for node in made), "all know of it"
        )
        server.forget_requests()
        server.set_feed("/calm.xml", ["two", "one"])
        known_us = made[0].view.newest_us
        eventually(lambda: made[0].view.newest_us > known_us + 1.5e6, "more than an interval passes")
        assert server.requests() == []


def test_an_address_that_nobody_allowed_is_not_asked(world: World) -> None:
    world.server.set_feed("/inner.xml", ["secret"])
    url = world.follow("/inner.xml")
    (node,) = world.start("n1", poll_interval_s=0.2, fetch=FetchSettings())
    assert "must not be connected to" in world.wait_trouble(url, "address")
    assert world.server.requests("/inner.xml") == []
    world.nodes.stop(node)
    world.start("n2", poll_interval_s=0.2)  # it may, and clears what the other told
    world.wait_versions(url, 1)
    world.wait_shown(url, lambda found: found.status.trouble is None)


def test_a_hub_has_a_channel_be_polled_at_once(world: World) -> None:
    world.server.set_feed("/pushed.xml", ["one"], hub=True)
    url = world.follow("/pushed.xml")
    with hold_port() as port:
        number = port.getsockname()[1]
    world.start("n1", **SELDOM, websub_callback=f"http://127.0.0.1:{number}/hub", websub_listen=("127.0.0.1", number))
    world.wait_versions(url, 1)
    eventually(lambda: world.server.hub_subscriptions("/pushed.xml"), "the hub is asked")
    world.server.set_feed("/pushed.xml", ["two", "one"], hub=True)
    assert world.server.push("/pushed.xml") == 1
    assert _titles(world.wait_versions(url, 2)[1]) == [("new", "two")]


# What is at the broker.


def test_what_the_broker_forgot_comes_again_and_garbage_makes_no_node_fail(world: World) -> None:
    paths = ["/kept.xml", "/lost.xml", "/headless.xml", "/broken.xml", "/recordless.xml"]
    urls = []
    for path in paths:
        world.server.set_feed(path, ["one"])
        urls.append(world.follow(path))
    kept, lost, headless, broken, recordless = urls
    made = world.start("n1", "n2", maintenance_s=0.5)
    for url in urls:
        world.wait_versions(url, 1)
    garbage = [b"", b"\xff\x00", b"null", b"[]", b"{}", b"9" * 5000, b'{"type":"levels","node":"n1","levels":{"x":-9}}']
    garbage += [b'{"type":"aggregate","node":"nobody","clusters":"AAAA"}', b'{"type":"beat","node":"n9"}']
    garbage += [b'{"topic":"feeds/*"}', b'{"topic":"feeds/%s"}' % (b"x" * 5000), b'{"topic":"feeds/\\u0000"}']
    lost_topic, headless_topic = channel_topic(lost), channel_topic(headless)
    with Subscriber(world.url, "vandal") as client, Publisher(world.url) as publisher:
        for topic in (RING_TOPIC, NOTICES_TOPIC, POLLS_TOPIC, *map(channel_topic, urls)):
            publisher.put_many(topic, garbage).result(60)
        with client.transaction() as tx:
            tx.set(head_name(lost_topic), None)
            tx.set(content_name(lost_topic, 0), None)
            tx.set(head_name(headless_topic), b"\xff garbage")
            tx.set(content_name(channel_topic(broken), 0), b"\xff garbage")
            tx.set(record_name(channel_hash(channel_topic(recordless))), b"\xff garbage")
    for path in paths:
        world.server.set_feed(path, ["two", "one"])
    for url, last in ((kept, (2, "delta")), (lost, (1, "snapshot")), (headless, (1, "snapshot")),
                      (broken, (2, "snapshot")), (recordless, (2, "delta"))):  # fmt: skip
        found = world.wait_entries(url, "one", "two")
        assert [(one.version, one.kind) for one in found] == [(1, "snapshot"), last]
    assert all(set(node.view.nodes) == {"n1", "n2"} for node in made)
    assert len(world.feeds.channels()) == len(urls)
    world.follow("/recordless.xml", "another")
    assert world.feeds.show(recordless).status.names == ("another", "reader")


def test_a_channel_is_forgotten_as_a_whole_and_only_where_nobody_follows_it(world: World) -> None:
    world.server.set_feed("/forgotten.xml", ["one"])
    url = world.follow("/forgotten.xml")
    (node,) = world.start("n1")
    world.wait_versions(url, 1)
    with pytest.raises(PermanentError, match="followed by reader"):
        world.feeds.forget(url)
    assert len(world.deltas(url)) == 1
    world.feeds.unsubscribe(url, "reader")
    topic = channel_topic(url)
    eventually(lambda: topic not in node.poller.slots, "the node hears of it")
    world.feeds.forget(url)
    with Subscriber(world.url, "looks") as client:
        names = [head_name(topic), content_name(topic, 0), record_name(channel_hash(topic))]
        assert [state.value for state in client.states(names)] == [None] * 3
    with pytest.raises(NotFollowed):
        world.feeds.forget(url)
