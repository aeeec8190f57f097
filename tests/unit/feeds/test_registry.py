"""Which topics are channels, and what is kept of them."""

from __future__ import annotations

import msgspec
import pytest

from clarion.feeds.channels import ChannelRecord, Rules
from clarion.feeds.registry import Listed, channel_of
from clarion.subscriber import State


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
