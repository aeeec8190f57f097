"""Which topics are channels, as the broker lists them, and what is kept of them."""

from __future__ import annotations

import msgspec
import pytest

from clarion.feeds.channels import ChannelRecord, Rules, channel_topic
from clarion.feeds.registry import Channel, Listed, channel_of
from clarion.subscriber import State


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/news",
        "https://example.org:8443/news",
        "https://xn--bcher-kva.example/",
        "http://[2001:db8::1]/a?b=//example.org/",
        "https://example.org/" + "x" * 2000,
    ],
)
def test_the_host_of_a_topic_is_that_of_its_url(url: str) -> None:
    topic = channel_topic(url)
    assert Listed(topic, (), 0).host == Channel(topic, url, Rules(), 1).host


@pytest.mark.parametrize("topic", ["feeds/", "feeds/http://[", "feeds/nothing of ours", "feeds/http://a:b/"])
def test_a_topic_that_is_nobodys_channel_has_no_host(topic: str) -> None:
    assert Listed(topic, (), 0).host == ""


def _channel(url: str, record: bytes | None) -> object:
    return channel_of(Listed(f"feeds/{url}", ((b"reader", 0),), 1), State(record, 1))


def test_a_channel_is_what_its_record_says_or_else_its_topic() -> None:
    url, rules = "http://a.example/x", Rules(keep=("main",))
    for record, kept in ((ChannelRecord(url=url, rules=rules), rules), (None, Rules()), (b"garbage", Rules())):
        value = record if record is None or isinstance(record, bytes) else msgspec.json.encode(record)
        assert _channel(url, value) == (f"feeds/{url}", url, kept, 1)


@pytest.mark.parametrize("url", ["http://[bad", "file:///etc/passwd", "http://u:p@a.example/", "HTTP://a.example/", ""])
def test_a_record_of_what_is_no_url_of_a_channel_makes_no_node_stumble(url: str) -> None:
    assert _channel(url, msgspec.json.encode(ChannelRecord(url=url))) is None
