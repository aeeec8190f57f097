"""Channels as the broker lists their topics."""

from __future__ import annotations

import pytest

from clarion.feeds.channels import Rules, channel_topic
from clarion.feeds.registry import Channel, Listed


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
