"""Topics and subscriptions are told in full to programs and in few words to people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.unit.admin.answering import subscription_values, topic_values

from clarion.admin.descriptions import DeadLetter, read_description
from clarion.cli.dead_letter_commands import letter_json
from clarion.cli.output import age, console
from clarion.cli.subscription_commands import kind_of, subscriptions_table, told_options
from clarion.cli.topic_commands import keeps, row_json, settings_words, topic_json
from clarion.model.ids import MessageId
from clarion.model.options import SubscriptionOptions, TopicSettings
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


def test_how_a_subscription_is_used_is_told_in_words() -> None:
    assert kind_of(SubscriptionOptions()) == "exclusive"
    assert told_options(SubscriptionOptions()) == ""
    both = SubscriptionOptions(shared=True, order="key", lease_s=30, max_attempts=1, expires_s=60)
    assert kind_of(both) == "shared by key"
    assert kind_of(SubscriptionOptions(shared=True)) == "shared"
    assert told_options(both) == (
        "shared: each message goes to one consumer, taken back after 30s without a sign of life,"
        " given up after 1 attempt, one at a time for each key, ended when not used for 1m"
    )


def test_ages_are_short_and_never_negative() -> None:
    now = datetime.now(UTC)
    assert age(None) == ""
    assert age(now - timedelta(hours=2, minutes=1)) == "2h 1m"
    assert age(now + timedelta(hours=1)) == "0s"


def test_the_table_of_subscriptions_keeps_names_that_look_like_markup(capsys: pytest.CaptureFixture[str]) -> None:
    shared = subscription_values(b"[red]a", lag=1200, leased=7, returned=2, consumers=3)
    plain = subscription_values(b"b", options={"expires_s": 60.0})
    told = read_description(topic_values(subscriptions=[shared, plain])).subscriptions
    console().print(subscriptions_table(told, with_topic=True, width=80))
    console().print(subscriptions_table(told, with_topic=False, width=200))
    head, first, second, wide_head, wide_first, wide_second = capsys.readouterr().out.splitlines()
    assert head.split() == ["topic", "subscriber", "kind", "lag", "oldest", "consumers", "leased", "returned"]
    assert first.split() == ["orders", "[red]a", "shared", "1,200", "3", "7", "2"]
    assert second.split() == ["orders", "b", "exclusive", "0"]
    assert "oldest unacked" in wide_head
    assert wide_first.rstrip().endswith("never")
    assert wide_second.rstrip().endswith("unused for 1m")


def test_a_dead_letter_is_told_in_full() -> None:
    letter = DeadLetter(
        offset=3, topic=b"jobs", subscription=b"workers", attempts=5, reason="broken",
        at=datetime(2026, 1, 1, tzinfo=UTC), id=MessageId(1, 2, 3, 4), key=None, headers={"a": b"\xff"},
        payload=b"\xff", original_offset=17,
    )  # fmt: skip
    assert letter_json(letter) == {
        "offset": 3,
        "topic": "jobs",
        "subscriber": "workers",
        "attempts": 5,
        "reason": "broken",
        "at": "2026-01-01T00:00:00+00:00",
        "id": "00000001000000020000000000030004",
        "key": None,
        "headers": {"a": "b64:_w=="},
        "original_offset": 17,
        "payload_b64": "/w==",
    }
