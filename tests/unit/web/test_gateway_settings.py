"""The settings of a gateway are checked before it starts."""

from __future__ import annotations

import dataclasses

import pytest

from clarion.model.errors import BadSettings
from clarion.web.gateway_settings import GatewaySettings, read_listen


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:80", ("::1", 80)),
        (":9000", ("0.0.0.0", 9000)),
        ("http://127.0.0.1:8080/", ("127.0.0.1", 8080)),
    ],
)
def test_addresses_are_read(text: str, found: tuple[str, int]) -> None:
    assert read_listen(text) == found


@pytest.mark.parametrize("text", ["", "8080", "localhost", "::1:80", "a:b", "a:99999", "a:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadSettings, match="HOST:PORT"):
        read_listen(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"buffer_messages": 0},
        {"buffer_bytes": 0},
        {"body_bytes": 0},
        {"max_connections": 0},
        {"timeout_s": 0.0},
        {"read_timeout_s": float("inf")},
        {"stop_timeout_s": float("nan")},
        {"tuning": "best"},
        {"batch_size": 0},
        {"topics": (b"a/#/b",)},
        {"topics": (b"",)},
    ],
)
def test_a_setting_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadSettings):
        dataclasses.replace(GatewaySettings(), **wrong)  # type: ignore[arg-type]


def test_any_topic_is_allowed_but_those_that_clarion_makes() -> None:
    settings = GatewaySettings()
    assert settings.allows(b"a")
    assert settings.allows(b"a/b/c")
    assert not settings.allows(b"$dead/a")
    assert GatewaySettings(topics=(b"$reply/#",)).allows(b"$reply/x")


def test_named_topics_and_patterns_are_allowed_alone() -> None:
    settings = GatewaySettings(topics=(b"a", b"b/*"))
    assert [settings.allows(topic) for topic in (b"a", b"b/c", b"b", b"b/c/d", b"x")] == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_it_is_known_whether_others_can_reach_it(host: str, local: bool) -> None:
    assert GatewaySettings(host=host).is_local == local
