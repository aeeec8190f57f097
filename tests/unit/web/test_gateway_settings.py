"""Settings that cannot work are refused before anything listens."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from typer.testing import CliRunner

from clarion.cli.main import app
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


def test_without_the_extra_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiohttp" or name.startswith("clarion.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    result = CliRunner().invoke(app, ["publish", "--from-http"])
    assert result.exit_code == 1
    assert 'pip install "clarion[web]"' in result.output


@pytest.mark.parametrize(
    ("wrong", "code", "told"),
    [
        ([], 2, "--from-http"),
        (["--from-http", "--listen", "8080"], 1, "HOST:PORT"),
        (["--from-http", "--listen", "a..b:0"], 1, "cannot listen at a..b:0"),
        (["--from-http", "--tuning", "best"], 1, "recheck"),
    ],
)
def test_a_command_that_cannot_work_says_why(wrong: list[str], code: int, told: str) -> None:
    result = CliRunner().invoke(app, ["publish", *wrong], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code
    assert told in result.output


def test_the_command_has_an_example_that_can_be_copied() -> None:
    result = CliRunner().invoke(app, ["publish", "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert "   clarion publish --from-http" in result.output
    assert "curl -d 'hello'" in result.output
