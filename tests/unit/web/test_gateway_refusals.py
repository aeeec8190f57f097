"""Every error of a put has its status, and says what was kept and what to do."""

from __future__ import annotations

import pytest

from clarion.model import errors
from clarion.web.post_requests import Refusal, bad, is_certain, refusal_of


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NoSubscriber("no"), 404),
        (errors.TooLarge("no"), 413),
        (errors.BufferFull("no"), 429),
        (errors.TimedOut("no"), 503),
        (errors.LimitReached("no"), 507),
        (errors.InvalidRequest("another store"), 502),
        (errors.PublisherExpired("no"), 502),
        (errors.VersionMismatch("no"), 502),
    ],
)
def test_each_error_has_its_status_and_its_name(error: errors.ClarionError, status: int) -> None:
    refusal = refusal_of(error, b"topic")
    assert (refusal.status, refusal.error) == (status, type(error).__name__)
    assert refusal.told().keys() == {"error", "message"}


def test_a_topic_without_subscribers_says_how_to_get_one() -> None:
    told = refusal_of(errors.NoSubscriber("no"), b"my topic").message
    assert told.startswith("nobody subscribes to my topic, so nothing was stored.")
    assert "clarion subscribe 'my topic' --as NAME" in told


def test_what_was_stored_of_many_is_told() -> None:
    assert refusal_of(errors.TooLarge("too much"), b"t", stored=3, count=5).message == (
        "too much; of 5 messages 3 were stored, the others were not"
    )


def test_only_what_is_certain_is_said_to_be_certain() -> None:
    assert is_certain(errors.NoSubscriber("no"))
    assert not is_certain(errors.PublisherExpired("in doubt"))
    assert "nothing was stored" not in refusal_of(errors.PublisherExpired("in doubt"), b"t").message


def test_the_time_to_come_again_is_a_header() -> None:
    assert Refusal(429, "BufferFull", "full", retry_after_s=3).headers() == {"Retry-After": "3"}
    assert bad("it is nonsense").headers() == {}
    assert bad("it is nonsense").told() == {"error": "BadRequest", "message": "it is nonsense; nothing was queued"}
