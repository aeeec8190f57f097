"""What a topic holds and keeps is told in words and in JSON."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.admin.answering import subscription_values, topic_values

from clarion.admin.admin import read_description
from clarion.cli.topic_commands import keeps, row_json, settings_words, topic_json
from clarion.model.options import TopicSettings
from clarion.wire.bodies import TopicRow


def test_a_listed_topic_says_what_each_subscriber_has_not_read() -> None:
    row = TopicRow(
        b"\xff", "until-read", 5, 20, 1000, ((b"a", 18, 0), (b"b", 20, 2)), {"ttl_s": 5.0, "odd": 1}, (b"b",)
    )
    told = row_json(row)
    assert told["topic"] == "b64:_w=="
    assert told["messages"] == 15
    assert (told["settings"]["ttl_s"], told["settings"]["at_bound"]) == (5.0, "refuse")
    assert [(reader["subscriber"], reader["lag"], reader["shared"]) for reader in told["subscriptions"]] == [
        ("a", 2, False),
        ("b", 0, True),
    ]


def test_a_described_topic_is_json_with_times_programs_can_read() -> None:
    one = subscription_values(b"\xfe", lag=2, oldest_unacked_at_us=1_000_000)
    told = topic_json(read_description(topic_values(b"orders", subscriptions=[one])))
    assert msgspec.json.decode(msgspec.json.encode(told)) == told
    assert told["oldest_at"] is None
    (reader,) = told["subscriptions"]
    assert (reader["subscriber"], reader["lag"]) == ("b64:_g==", 2)
    assert reader["oldest_unacked_at"] == "1970-01-01T00:00:01+00:00"
    assert reader["options"]["max_attempts"] == 5


@pytest.mark.parametrize(
    ("retention", "settings", "short", "words"),
    [
        ("keep", TopicSettings(), "keep", "everything"),
        ("until-read", TopicSettings(), "until-read", "messages until every subscriber has read them"),
        (
            "keep",
            TopicSettings(max_age_s=604_800, max_bytes=10**10, at_bound="trim"),
            "keep 7d 10.0 GB trim",
            "messages, read or not, for 7d, up to 10.0 GB; at a bound the oldest go, read or not",
        ),
        (
            "until-read",
            TopicSettings(max_bytes=1000, ttl_s=3600),
            "until-read 1.0 KB",
            "messages until every subscriber has read them, up to 1.0 KB; puts are refused where a bound would overtake"
            " a subscriber; messages expire after 1h where the put does not say otherwise",
        ),
        (
            "keep",
            TopicSettings(max_batch_bytes=1000, max_subscriptions=3, at_bound="trim"),
            "keep",
            "everything; a batch has at most 1.0 KB; at most 3 subscribe",
        ),
    ],
)
def test_what_a_topic_keeps_is_told_in_words(retention: str, settings: TopicSettings, short: str, words: str) -> None:
    assert keeps(retention, settings) == short
    assert settings_words(retention, settings) == words
