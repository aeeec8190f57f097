"""Exit codes are promises to scripts."""

from __future__ import annotations

import pytest

from clarion.cli.command_errors import MEANINGS, ExitCode, NeedsYes, exit_code_of, exit_codes_help
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
    assert set(MEANINGS) == set(ExitCode)
    shown = [line.split()[0] for line in exit_codes_help().splitlines()]
    assert shown == [str(int(code)) for code in ExitCode]
