"""What is typed on a command line is read as it is meant, or refused with what would be right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from typer.testing import CliRunner

from clarion.cli.command_options import (
    ListsByDefault,
    ListsNames,
    option,
    read_bound_s,
    read_count,
    read_duration_s,
    read_headers,
    read_later,
    read_name,
    read_size,
    read_some_time_s,
    read_start,
    read_time,
    read_value,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("30", 30),
        ("0.5", 0.5),
        ("500ms", 0.5),
        ("30s", 30),
        ("1.5h", 5400),
        ("10m", 600),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        (" 7 D ", 604_800),
    ],
)
def test_durations_have_units_and_plain_numbers_are_seconds(text: str, seconds: float) -> None:
    assert read_duration_s(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "5 years", "m", "1h30", "1e3s", "٣s", "inf", "nan", "9" * 40, "9" * 5000]
)
def test_a_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_duration_s(text)


def test_some_time_is_more_than_none() -> None:
    assert read_some_time_s("1ms") == 0.001
    with pytest.raises(typer.BadParameter):
        read_some_time_s("0s")


def test_a_bound_may_be_none() -> None:
    assert read_bound_s("none") == read_bound_s("never") == read_bound_s("0") == 0
    assert read_bound_s("7d") == 604_800
    assert read_size("none") == 0
    assert read_count("none") == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("500", 500),
        ("500B", 500),
        ("64kb", 64_000),
        ("64 KB", 64_000),
        ("64KiB", 65_536),
        ("1.5GB", 1_500_000_000),
        ("10G", 10_000_000_000),
        ("1TiB", 2**40),
    ],
)
def test_sizes_have_units_of_1000_or_1024(text: str, size: int) -> None:
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1", "1XB", "1 000", "9999999TB", "GB", "9" * 5000])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        read_size(text)


def test_counts_may_have_separators() -> None:
    assert read_count("1,000") == read_count("1_000") == read_count("1000") == 1000
    for text in ("", "-1", "1.5", "many", "²", "9" * 5000):
        with pytest.raises(typer.BadParameter):
            read_count(text)


def test_later_is_a_time_or_a_duration_from_now_on() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert read_later("+10m", now) == now + timedelta(minutes=10)
    assert read_later("2026-01-31T13:00:00Z", now) == now + timedelta(hours=1)
    for text in ("10m", "+", "+soon", "tomorrow", "+999999999d"):
        with pytest.raises(typer.BadParameter):
            read_later(text, now)


def test_a_time_without_zone_is_local() -> None:
    assert read_time("2026-01-31T12:00:00").tzinfo is not None
    assert read_time("2026-01-31T12:00:00+02:00") == datetime(2026, 1, 31, 10, tzinfo=UTC)


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


def _group(cls: type[ListsByDefault]) -> typer.Typer:
    group = typer.Typer(cls=cls)

    @group.command("list")
    def _list(name: str = typer.Argument("all"), long: bool = typer.Option(False, "--long")) -> None:
        typer.echo(f"list {name} {long}")

    @group.command("move")
    def _move(name: str) -> None:
        typer.echo(f"move {name}")

    return group


@pytest.mark.parametrize(
    ("cls", "arguments", "said"),
    [
        (ListsByDefault, [], "list all False"),
        (ListsByDefault, ["--long"], "list all True"),
        (ListsByDefault, ["list", "a"], "list a False"),
        (ListsByDefault, ["move", "a"], "move a"),
        (ListsNames, [], "list all False"),
        (ListsNames, ["a", "--long"], "list a True"),
        (ListsNames, ["--long", "a"], "list a True"),
        (ListsNames, ["list", "move"], "list move False"),
        (ListsNames, ["move", "a"], "move a"),
    ],
)
def test_what_names_no_command_lists(cls: type[ListsByDefault], arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(_group(cls), arguments)
    assert (result.exit_code, result.output) == (0, f"{said}\n")


def test_a_command_that_is_none_is_refused_where_no_names_are_listed() -> None:
    assert CliRunner().invoke(_group(ListsByDefault), ["mvoe", "a"]).exit_code == 2


def test_a_wrong_start_names_its_option() -> None:
    with pytest.raises(typer.BadParameter) as error:
        read_start("yesterday", "--to")
    assert error.value.param_hint == "--to"
    assert read_start("end") == "new"


def test_an_option_with_a_misspelt_word_for_its_value_is_none() -> None:
    with pytest.raises(AssertionError, match="TIMES is no word for a value"):
        option("1s", "--wait TIMES", "How long.")
    assert option("1s", "--wait TIMES", "How long.", parser=read_duration_s).metavar == "TIMES"
