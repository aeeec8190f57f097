"""The loop that polls: how it ends, and whom slow hosts keep waiting."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from clarion.feeds import poller as polling
from clarion.feeds.broker_clock import BrokerClock
from clarion.feeds.channels import Rules
from clarion.feeds.fetcher import FetchFailed
from clarion.feeds.node_broker import Troubles
from clarion.feeds.node_settings import NodeSettings
from clarion.feeds.politeness import HostThrottle
from clarion.feeds.poll_schedule import Slot
from clarion.feeds.polled_channel import PolledChannel
from clarion.feeds.poller import Poller


def _poller(fetcher: Any = None, **settings: Any) -> Poller:
    broker: Any = SimpleNamespace(troubles=Troubles("n"))
    versions: Any = None
    own = NodeSettings(poll_log=False, **settings)
    return Poller("n", own, broker, versions, fetcher, BrokerClock(), HostThrottle(), random.Random(1))


def test_a_node_that_ends_polls_no_more_though_something_becomes_due_at_that_moment() -> None:
    async def ends() -> bool:
        poller = _poller()
        running = asyncio.create_task(poller.run())
        while not poller._wake._waiters:
            await asyncio.sleep(0)
        poller.schedule({}, {}, 1)
        await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=10.0)
        return bool(done)

    assert asyncio.run(ends())


def test_hosts_that_hang_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_SLOW_S", 0.01)
    hosts = ["hangs-1", "hangs-2", "hangs-3", "hangs-4", "answers"]
    asked: dict[str, int] = dict.fromkeys(hosts, 0)
    enough = asyncio.Event()

    class Fetcher:
        """Hosts that hang for a while at first, and then for ever."""

        async def fetch(self, url: str, *_: object, **__: object) -> None:
            host = url.removeprefix("http://")
            asked[host] += 1
            if host == "answers" and asked[host] >= 20:
                enough.set()
            if host != "answers":
                await asyncio.sleep(0.05 if asked[host] == 1 else 3600.0)
            raise FetchFailed("it hung")

    async def run() -> None:
        poller = _poller(Fetcher(), polls_at_once=4, host_limit_per_s=1e6)
        channels = {}
        for host in hosts:
            channel = PolledChannel(f"feeds/http://{host}", f"http://{host}", host, Rules(), 1)
            channel.head_known = True
            channels[channel.topic] = channel
        poller.schedule(
            {topic: Slot(interval_s=0.001, phase_s=0.0, pollers=1, is_owner=False, level=0) for topic in channels},
            channels,
            1,
        )
        running = asyncio.create_task(poller.run())
        async with asyncio.timeout(60.0):
            await enough.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(run())
    assert sum(asked[host] for host in hosts[:-1]) == 6, "two of the four hang again, in half of the room"
