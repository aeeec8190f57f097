"""Dead letters are told in full."""

from __future__ import annotations

from datetime import UTC, datetime

from clarion.admin.admin import DeadLetter
from clarion.cli.dead_letter_commands import letter_json
from clarion.model.ids import MessageId


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
