"""How subscriptions are used, and how far each is, is told in words and in a table."""

from __future__ import annotations

import pytest
from tests.unit.admin.answering import subscription_values, topic_values

from clarion.admin.admin import read_description
from clarion.cli.output import console
from clarion.cli.subscription_commands import kind_of, subscriptions_table, told_options
from clarion.model.options import SubscriptionOptions


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
