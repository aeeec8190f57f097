"""A hub, a feed and a node's callback that really talk to each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from tests.integration.broker_process import free_url
from tests.integration.feed_server import FeedServer
from tests.integration.waiting import DEADLINE_S

from clarion.feeds.fetcher import Fetcher, FetchSettings
from clarion.feeds.websub import WebSubCallback

FEED = "/pushed.xml"


@asynccontextmanager
async def listening(allow: tuple[str, ...] = ("127.0.0.0/8",)) -> AsyncIterator[tuple[Fetcher, WebSubCallback]]:
    """Run a callback of a node."""
    port = int(free_url().rpartition(":")[2])
    fetcher = Fetcher(FetchSettings(allow=allow))
    callback = WebSubCallback(fetcher, f"http://127.0.0.1:{port}/hooks", "127.0.0.1", port)
    await callback.start()
    try:
        yield fetcher, callback
    finally:
        await callback.close()
        await fetcher.close()


async def happens(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


def run(work: Callable[[FeedServer], Awaitable[None]]) -> None:
    """Do some work with a server whose feed names its hub."""
    with FeedServer() as server:
        server.set_feed(FEED, ["one"], hub=True)

        async def within() -> None:
            await work(server)

        asyncio.run(within())


def test_a_hub_that_is_asked_confirms_and_pushes_until_it_is_asked_to_stop() -> None:
    async def work(server: FeedServer) -> None:
        url = server.url(FEED)
        async with listening() as (fetcher, callback):
            assert callback.subscribe(url, await fetcher.fetch(url))
            await happens(lambda: server.hub_subscriptions(FEED))
            for method in ("sha1", "sha512"):
                assert await asyncio.to_thread(server.push, FEED, method=method) == 1
            assert await asyncio.wait_for(callback.pushed.get(), DEADLINE_S) == url
            callback.unsubscribe(url)
            await happens(lambda: not server.hub_subscriptions(FEED))

    run(work)


def test_what_is_not_signed_by_the_hub_is_taken_and_does_nothing() -> None:
    async def work(server: FeedServer) -> None:
        url = server.url(FEED)
        async with listening() as (fetcher, callback):
            callback.subscribe(url, await fetcher.fetch(url))
            await happens(lambda: server.hub_subscriptions(FEED))
            for secret in ("wrong", ""):
                assert await asyncio.to_thread(server.push, FEED, secret=secret) == 1
            assert callback.counts == {"unsigned": 2}
            assert callback.pushed.empty()

    run(work)


def test_who_does_not_know_the_path_is_sent_away() -> None:
    async def work(server: FeedServer) -> None:
        url = server.url(FEED)
        async with listening() as (fetcher, callback), aiohttp.ClientSession() as session:
            callback.subscribe(url, await fetcher.fetch(url))
            await happens(lambda: server.hub_subscriptions(FEED))
            (known,) = server.hub_subscriptions(FEED)
            base, _, token = known.callback.rpartition("/")
            assert len(token) >= 40
            query = {"hub.mode": "subscribe", "hub.topic": url, "hub.challenge": "<script>"}
            for path, status in ((f"{base}/guess", 404), (base, 404), (known.callback, 200)):
                async with session.get(path, params=query) as answer:
                    assert answer.status == status
                    assert answer.content_type == "text/plain"
            async with session.post(f"{base}/guess", data=b"x") as answer:
                assert answer.status == 410

    run(work)


@pytest.mark.parametrize("allow", [(), ("127.0.0.2",)])
def test_a_hub_inside_is_not_asked(allow: tuple[str, ...]) -> None:
    async def work(server: FeedServer) -> None:
        url = server.url(FEED)
        async with listening(allow) as (_, callback):
            outside = Fetcher(FetchSettings(allow=("127.0.0.1",)))
            assert callback.subscribe(url, await outside.fetch(url))
            await outside.close()
            await happens(lambda: callback.counts["failed"])
            assert not server.requests("/hub")

    run(work)
