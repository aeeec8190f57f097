"""The exit codes that scripts may rely on, and which error gets which."""

from __future__ import annotations

from enum import IntEnum

from clarion.model import errors


class NeedsYes(errors.PermanentError):
    """Nobody can be asked whether something may be destroyed, and nobody said --yes."""


class ExitCode(IntEnum):
    """What a command's end says to a script."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOTHING_THERE = 3
    NO_ANSWER = 4
    NO_SUBSCRIBER = 5
    NOT_SUBSCRIBED = 6
    REFUSED_FOR_NOW = 7
    STORE_UNUSABLE = 8
    NO_TOPIC = 9
    INTERRUPTED = 130
    READER_GONE = 141
    TERMINATED = 143


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.ERROR: "it cannot be done this way; the message says why",
    ExitCode.USAGE: "the command line is not understood, or lacks --yes",
    ExitCode.NOTHING_THERE: "get, browse, state get: nothing was there, and the wait is over",
    ExitCode.NO_ANSWER: "no broker answered in time; request: nobody did",
    ExitCode.NO_SUBSCRIBER: "put, request: nobody subscribes to the topic; nothing was stored",
    ExitCode.NOT_SUBSCRIBED: "there is no such subscription",
    ExitCode.REFUSED_FOR_NOW: "disk, topic or buffer is full, or being changed; try again later",
    ExitCode.STORE_UNUSABLE: "up: the data is in use, damaged or too new, or the disk failed",
    ExitCode.NO_TOPIC: "there is no such topic",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.READER_GONE: "get, browse: whoever read the output went away",
    ExitCode.TERMINATED: "get, browse, demo: ended by SIGTERM",
}

# The first kind that fits decides.
_BY_ERROR: tuple[tuple[type[errors.ClarionError], ExitCode], ...] = (
    (errors.TimedOut, ExitCode.NO_ANSWER),
    (errors.Unreachable, ExitCode.NO_ANSWER),
    (errors.NoSubscriber, ExitCode.NO_SUBSCRIBER),
    (errors.NotSubscribed, ExitCode.NOT_SUBSCRIBED),
    (errors.NoTopic, ExitCode.NO_TOPIC),
    (NeedsYes, ExitCode.USAGE),
    (errors.RetryableError, ExitCode.REFUSED_FOR_NOW),
    (errors.FatalError, ExitCode.STORE_UNUSABLE),
)


def exit_code_of(error: errors.ClarionError) -> ExitCode:
    """Give the exit code of a command that ended with this error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.ERROR)


def exit_codes_help() -> str:
    """Give the table of exit codes as `clarion --help` shows it."""
    return "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
