"""Every kind of error has its exit code, and nothing is destroyed before somebody said yes."""

from __future__ import annotations

import io
import sys

import pytest
import typer

from clarion.cli.command_errors import ExitCode, NeedsYes, confirm, exit_code_of, exit_codes_help
from clarion.model import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.TimedOut, 4),
        (errors.Unreachable, 4),
        (errors.NoSubscriber, 5),
        (errors.NotSubscribed, 6),
        (errors.BufferFull, 7),
        (errors.TopicFull, 7),
        (errors.DiskFull, 7),
        (errors.StoreInUse, 8),
        (errors.StoreCorrupt, 8),
        (errors.StoreTooNew, 8),
        (errors.StoreFailed, 8),
        (errors.Busy, 7),
        (errors.NoTopic, 9),
        (NeedsYes, 2),
        (errors.LeaseLost, 1),
        (errors.VersionConflict, 1),
        (errors.MessagesGone, 1),
        (errors.BadSettings, 1),
        (errors.TooLarge, 1),
        (errors.TakenOver, 1),
        (errors.ClarionError, 1),
    ],
)
def test_each_kind_of_error_has_its_code(kind: type[errors.ClarionError], code: int) -> None:
    assert exit_code_of(kind("why")) == code


def test_every_code_is_explained_in_the_help() -> None:
    assert all(code.meaning for code in ExitCode)
    shown = [line.split()[0] for line in exit_codes_help().splitlines()]
    assert shown == [str(int(code)) for code in ExitCode]


def test_with_yes_nobody_is_asked() -> None:
    confirm("Delete it?", yes=True)


def test_without_a_terminal_yes_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(NeedsYes, match=r"Delete it\? .*--yes"):
        confirm("Delete it?", yes=False)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("answer", ["y\n", "Yes\n", " y \n"])
def test_a_person_who_says_yes_is_obeyed(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(answer))
    confirm("Delete it?", yes=False)
    assert capsys.readouterr() == ("", "Delete it? [y/N] ")  # nothing of it where programs read


@pytest.mark.parametrize("answer", ["n\n", "\n", "yellow\n", ""])
def test_whatever_is_not_yes_changes_nothing(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", _Terminal(answer))
    with pytest.raises(typer.Exit) as ended:
        confirm("Delete it?", yes=False)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err.endswith("clarion: nothing was changed\n")
