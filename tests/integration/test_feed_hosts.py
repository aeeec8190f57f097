"""Polls of many channels at one host, beside those of others."""

from __future__ import annotations

from pathlib import Path

from tests.integration.feed_nodes import FeedNodes
from tests.integration.feed_server import FeedServer
from tests.integration.waiting import eventually

from clarion.feeds.front_end import Feeds


def test_a_host_that_does_not_answer_keeps_no_other_host_waiting(url: str, tmp_path: Path) -> None:
    with FeedServer() as silent, FeedServer("127.0.0.2") as other, Feeds(url) as feeds:
        for number in range(8):
            silent.misbehave(f"/{number}.xml", "silent")
            feeds.subscribe(silent.url(f"/{number}.xml"), "reader")
        with FeedNodes(url, ["n"], tmp_path / "log", polls_at_once=4, poll_interval_s=3600.0):
            eventually(lambda: len(silent.requests()) >= 2, "the silent host is asked")
            other.set_feed("/a.xml", ["first"])
            asked = other.url("/a.xml")
            feeds.subscribe(asked, "reader")
            eventually(lambda: feeds.show(asked).status.head is not None, "the other host's channel is known")
            assert len(silent.requests()) == 2, "no poll of the silent host was given up before"
