"""What commands print can be read: by people, and every byte of it by programs."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clarion.cli.command_options import (
    read_duration_s,
)
from clarion.cli.output import (
    age,
    console,
    counted,
    json_lines,
    payload_glance,
    readable_bytes,
    readable_duration,
    table_of,
    text_lines,
    text_lines_with_topic,
    whole_payloads,
)
from clarion.subscriber import MessageBatch
from clarion.wire.batch import Batch, Headers, encode_batch


def _part(payloads: list[bytes], key: bytes | None = None, headers: Headers | None = None) -> MessageBatch:
    count = len(payloads)
    raw = encode_batch(
        payloads, keys=[key] * count, headers=[headers] * count, broker=1, publisher=2, stamp=3, number=1
    )
    return MessageBatch(b"\xff", Batch.parse(bytes(raw)), 10, 1_000_000, 0, count)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (999_960, "1.0 MB"), (2_500_000_000, "2.5 GB"), (3e15, "3000.0 TB")],
)
def test_bytes_are_readable(count: float, text: str) -> None:
    assert readable_bytes(count) == text


def test_nouns_follow_their_number() -> None:
    assert counted(1, "message") == "1 message"
    assert counted(1200, "message") == "1,200 messages"


def test_payloads_are_lines_or_just_bytes() -> None:
    part = _part([b"a", b"", b"\xff\n"])
    assert text_lines(part) == [b"a\n", b"\n", b"\xff\n\n"]
    assert whole_payloads(part) == [b"a", b"", b"\xff\n"]


def test_messages_of_many_topics_have_their_topic_before_them() -> None:
    assert text_lines_with_topic(_part([b"a", b"\xff"])) == [b"b64:_w==\ta\n", b"b64:_w==\t\xff\n"]


@pytest.mark.parametrize(
    ("payload", "glance"),
    [
        (b"", ""),
        (b"short", "short"),
        (b"two\n lines\t", "two lines"),
        (b"0123456789", "0123456789"),
        (b"01234567890", "012345678…"),
        (b"x" * 1000, "xxxxxxxxx…"),
        (b"\xff\x00", "(2 bytes, not text)"),
        ("é".encode() * 500, "ééééééééé…"),
        (b"x" + "é".encode() * 500, "xéééééééé…"),  # a character cut in two is no reason to call it binary
        (b"x" * 80 + b"\xff" * 20, "xxxxxxxxx…"),
        (b"\x1b[31mred", "\ufffd[31mred"),
        (b" " * 1000, "…"),
    ],
)
def test_a_glance_at_a_payload_is_one_short_line(payload: bytes, glance: str) -> None:
    assert payload_glance(payload, 10) == glance


def test_json_says_what_every_byte_was() -> None:
    text, binary = json_lines(_part(["é\n".encode(), b"\xff"], key=b"\xfe", headers={"type": b"x", "odd": b"\xfd"}))
    assert text.endswith(b"}\n")
    assert text.count(b"\n") == 1
    told = msgspec.json.decode(text)
    assert told == {
        "topic": "b64:_w==",
        "offset": 10,
        "id": "0000000100000002" + "000000000003" + "0000",
        "key": "b64:_g==",
        "headers": {"type": "x", "odd": "b64:_Q=="},
        "committed_at": "1970-01-01T00:00:01+00:00",
        "payload": "é\n",
        "attempt": 1,
    }
    other = msgspec.json.decode(binary)
    assert "payload" not in other
    assert base64.b64decode(other["payload_b64"]) == b"\xff"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59, "59s"),
        (60, "1m"),
        (61.4, "1m 1s"),
        (5400, "1h 30m"),
        (3601, "1h"),
        (90_061, "1d 1h"),
        (604_800, "7d"),
        (86_400_000, "1,000d"),
    ],
)
def test_durations_are_told_in_the_two_largest_units(seconds: float, text: str) -> None:
    assert readable_duration(seconds) == text


@given(st.integers(0, 10**9))
def test_what_is_told_can_be_read_again_and_is_nearly_the_same(seconds: int) -> None:
    told = readable_duration(seconds).replace(",", "")
    assert abs(read_duration_s(told) - seconds) <= seconds / 24


def test_ages_are_short_and_never_negative() -> None:
    now = datetime.now(UTC)
    assert age(None) == ""
    assert age(now - timedelta(hours=2, minutes=1)) == "2h 1m"
    assert age(now + timedelta(hours=1)) == "0s"


@pytest.mark.parametrize("show_header", [True, False])
def test_a_long_table_is_set_as_a_short_one(
    show_header: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(many: int) -> str:
        monkeypatch.setattr("clarion.cli.output._MANY_ROWS", many)
        rows = [(f"日本/{n}" if n % 3 else "[bold]x", "3" * (n % 5), "", "r1 (3)"[n % 4 :]) for n in range(30)]
        console().print(
            table_of(["topic", "messages", "b", "subscribers"], rows, ["messages"], show_header=show_header)
        )
        return capsys.readouterr().out

    assert printed(10) == printed(1000)
