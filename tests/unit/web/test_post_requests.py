"""What a POST says is read as it is meant, or refused with a status and a sentence."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from clarion.model import errors
from clarion.model.names import is_pattern, to_text
from clarion.web.post_requests import (
    PostOptions,
    Refusal,
    bad,
    check_encoding,
    check_origin,
    fingerprint,
    is_certain,
    read_options,
    read_topic,
    refusal_of,
    split_lines,
)


@given(st.binary(min_size=1, max_size=50))
def test_every_topic_is_read_back_from_its_text_form(topic: bytes) -> None:
    assume(not is_pattern(topic))
    assert read_topic("/topics/" + quote(to_text(topic), safe="")) == topic
    assert read_topic("/topics/" + quote(to_text(topic))) == topic  # with slashes as they are


@pytest.mark.parametrize(
    "path", ["/topics/", "/topics/%ff", "/topics/b64:", "/topics/b64:%%%", "/%74opics/a", "/topics/a/*", "/topics/%23"]
)
def test_a_topic_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_topic(path)
    assert caught.value.status == 400


def test_a_query_is_refused_since_a_name_may_have_been_meant() -> None:
    with pytest.raises(Refusal, match="%3F"):
        read_topic("/topics/what", "now")
    with pytest.raises(Refusal, match="%23"):
        read_topic("/topics/c", "sharp")


def test_headers_are_read_whatever_their_case() -> None:
    options = read_options(
        [
            ("CLARION-KEY", "b64:/w=="),
            ("clarion-header-Type", "text"),
            ("Clarion-Header-x", ""),
            ("Clarion-Ttl", "1.5"),
            ("Clarion-Deliver-At", "2026-01-31T12:00:00Z"),
            ("Idempotency-Key", "k"),
            ("Prefer", "wait=5, Respond-Async"),
            ("Content-Type", "application/X-NDJSON; charset=utf-8"),
            ("Accept", "*/*"),
        ]
    )
    assert options == PostOptions(
        b"\xff", {"type": b"text", "x": b""}, 1.5, datetime(2026, 1, 31, 12, tzinfo=UTC), "k", True, True
    )


def test_without_headers_there_is_nothing_to_note() -> None:
    assert read_options([("Host", "x"), ("Content-Type", "application/json")]) == PostOptions()


def test_a_moment_may_be_unix_seconds() -> None:
    assert read_options([("Clarion-Deliver-At", "1800000000.5")]).deliver_at == 1_800_000_000.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Clarion-Key", "b64:!"),
        ("Clarion-Key", "\udcff"),
        ("Clarion-Header-", "x"),
        ("Clarion-Header-A", "b64:!"),
        ("Clarion-TTL", "0"),
        ("Clarion-TTL", "nan"),
        ("Clarion-TTL", "1h"),
        ("Clarion-TTL", "1e300"),
        ("Clarion-Deliver-At", "nan"),
        ("Clarion-Deliver-At", "inf"),
        ("Clarion-Deliver-At", "2026-01-31T12:00:00"),
        ("Clarion-Deliver-At", ""),
        ("Clarion-Topic", "x"),
        ("Idempotency-Key", ""),
        ("Idempotency-Key", "k" * 257),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(name: str, value: str) -> None:
    with pytest.raises(Refusal) as caught:
        read_options([(name, value)])
    assert caught.value.status == 400
    assert "nothing was queued" in caught.value.message


@pytest.mark.parametrize("name", ["Clarion-Key", "Clarion-Header-A", "Idempotency-Key"])
def test_a_header_that_is_there_twice_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match="twice"):
        read_options([(name, "1"), (name.lower(), "2")])


def test_lines_lose_their_ends_and_nothing_else() -> None:
    assert split_lines(b'{"a": 1}\r\n\n {"b": 2} \n\r\n\xff', 3) == [b'{"a": 1}', b' {"b": 2} ', b"\xff"]
    assert split_lines(b"\r\n\n1\r\r\n2\r", 2) == [b"1\r", b"2"]


@pytest.mark.parametrize("body", [b"", b"\n", b"\r", b"\n\r\n\n"])
def test_a_body_without_a_line_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal, match="no line") as caught:
        split_lines(body, 9)
    assert caught.value.status == 400


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line and not line.endswith(b"\r")), min_size=1))
def test_lines_come_out_as_they_went_in(lines: list[bytes]) -> None:
    assert split_lines(b"\n".join(lines), len(lines)) == lines
    assert split_lines(b"".join(line + b"\r\n" for line in lines), len(lines)) == lines
    with pytest.raises(Refusal, match="send fewer") as caught:
        split_lines(b"\n\n".join(lines), len(lines) - 1)
    assert caught.value.status == 413


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"ab\n"])
def test_lines_that_are_too_many_take_no_memory_each(line: bytes) -> None:
    body = line * (1_200_000 // len(line))
    tracemalloc.start()
    try:
        with pytest.raises(Refusal):
            split_lines(body, 1000)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 4 * len(body)


def test_requests_that_ask_for_the_same_have_the_same_fingerprint_and_others_do_not() -> None:
    options = read_options([("Clarion-Key", "k"), ("Idempotency-Key", "1")])
    first = fingerprint(b"a", options, b"body")
    assert fingerprint(b"a", options._replace(respond_async=True), b"body") == first
    turned = [
        options._replace(headers=dict(pairs)) for pairs in ([("a", b"1"), ("b", b"2")], [("b", b"2"), ("a", b"1")])
    ]
    assert fingerprint(b"a", turned[0], b"") == fingerprint(b"a", turned[1], b"")
    others = [
        fingerprint(b"b", options, b"body"),
        fingerprint(b"a", options, b"other"),
        fingerprint(b"a", options._replace(key=None), b"body"),
        fingerprint(b"a", options._replace(headers={"a": b""}), b"body"),
        fingerprint(b"a", options._replace(ttl_s=1.0), b"body"),
        fingerprint(b"a", options._replace(by_lines=True), b"body"),
    ]
    assert len({first, *others}) == 7


@pytest.mark.parametrize("name", ["Content-Encoding", "Transfer-Encoding"])
def test_a_body_that_was_packed_for_the_way_is_refused(name: str) -> None:
    check_encoding({"Transfer-Encoding": "Chunked", "Content-Encoding": "identity"})
    with pytest.raises(Refusal) as caught:
        check_encoding({name: "gzip, chunked"})
    assert caught.value.status == 415


def test_a_page_in_a_browser_cannot_post() -> None:
    check_origin([("Host", "x")])
    with pytest.raises(Refusal) as caught:
        check_origin([("ORIGIN", "null")])
    assert caught.value.status == 403


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
