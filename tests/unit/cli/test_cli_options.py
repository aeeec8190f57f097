"""What is typed on the command line is read as it was meant, or refused with a reason."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from clarion.cli.broker_commands import read_settings
from clarion.cli.command_options import read_headers, read_name, read_start, read_value
from clarion.model.errors import BadSettings


def test_names_are_utf8_or_base64() -> None:
    assert read_name("alerts") == b"alerts"
    assert read_name("ü") == "ü".encode()
    assert read_name("b64:_wA=") == b"\xff\x00"


@pytest.mark.parametrize("text", ["", "b64:", "b64:!!", "\udcff"])
def test_a_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_name(text)


def test_a_key_may_be_empty_and_any_bytes() -> None:
    assert read_value("") == b""
    assert read_value("b64:_w==") == b"\xff"


def test_headers_are_pairs_and_values_may_hold_equals_signs() -> None:
    assert read_headers(["a=b=c", "d="]) == {"a": b"b=c", "d": b""}
    assert read_headers([]) is None


@pytest.mark.parametrize("pair", ["a", "=b", ""])
def test_a_header_without_name_or_equals_sign_is_refused(pair: str) -> None:
    with pytest.raises(typer.BadParameter, match="name=value"):
        read_headers([pair])


def test_starts_are_words_offsets_and_times() -> None:
    assert read_start("new") == "new"
    assert read_start("earliest") == "earliest"
    assert read_start("1200") == 1200
    assert read_start("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    local = read_start("2026-01-31T12:00:00")
    assert isinstance(local, datetime)
    assert local.tzinfo is not None


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1.5", "¹²"])
def test_a_start_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="earliest"):
        read_start(text)


def test_settings_are_pairs_of_known_names() -> None:
    assert read_settings(["max_topics=5", "listen=tcp://*:1"]) == {"max_topics": "5", "listen": "tcp://*:1"}
    with pytest.raises(typer.BadParameter, match="name=value"):
        read_settings(["max_topics"])
    with pytest.raises(BadSettings, match="did you mean max_topics"):
        read_settings(["max_topic=5"])
    with pytest.raises(BadSettings, match="clarion config"):
        read_settings(["zzz=5"])
