"""Groups of commands list where no command is named, and destructive commands are not run by accident."""

from __future__ import annotations

import io
import sys

import pytest
import typer
from typer.testing import CliRunner

from clarion.cli.command_errors import NeedsYes, make_sure
from clarion.cli.command_options import ListsByDefault, ListsNames, read_start
from clarion.cli.main import app

_NOWHERE = ("--url", "ipc:///nowhere/at/all", "--timeout", "0.05")


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


def test_with_yes_nobody_is_asked() -> None:
    make_sure("Delete it?", yes=True)


def test_without_a_terminal_yes_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(NeedsYes, match=r"Delete it\? .*--yes"):
        make_sure("Delete it?", yes=False)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "Yes\n", " y \n"])
def test_a_person_who_says_yes_is_obeyed(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(answer))
    make_sure("Delete it?", yes=False)
    assert capsys.readouterr() == ("", "Delete it? [y/N] ")  # nothing of it where programs read


@pytest.mark.parametrize("answer", ["n\n", "\n", "yellow\n", ""])
def test_whatever_is_not_yes_changes_nothing(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(answer))
    with pytest.raises(typer.Exit) as ended:
        make_sure("Delete it?", yes=False)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.endswith("clarion: nothing was changed\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "configure", "orders"),
        ("topics", "create", "orders", "--max-age", "soon"),
        ("topics", "create", "orders", "--max-size", "big"),
        ("topics", "create", "orders", "--retention", "forever"),
        ("topics", "purge", "orders", "--below", "-1"),
        ("topics", "--sort", "colour"),
        ("subscriptions", "seek", "orders", "billing"),
        ("subscriptions", "seek", "orders", "billing", "--to", "yesterday"),
        ("subscribe", "orders", "--as", "billing", "--order", "key"),
        ("subscribe", "orders", "--as", "billing", "--lease", "30s"),
        ("subscribe", "orders", "--as", "billing", "--shared", "--order", "time"),
        ("browse", "orders", "--from", "new"),
        ("browse", "orders", "--from", "5", "--last", "5"),
        ("put", "orders", "x", "--deliver-at", "soon"),
        ("put", "orders", "x", "--ttl", "-1"),
        ("request", "orders", "x", "--wait", "long"),
        ("request", "orders", "x", "--json", "--no-newline"),
        ("dead", "drop", "orders", "--offset", "-1"),
        ("get", "orders", "--as", "billing", "--nack", "broken"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anybody_is_asked(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*arguments, *_NOWHERE])
    assert result.exit_code == 2


def test_a_wrong_start_names_its_option() -> None:
    with pytest.raises(typer.BadParameter) as error:
        read_start("yesterday", "--to")
    assert error.value.param_hint == "--to"
    assert read_start("end") == "new"
