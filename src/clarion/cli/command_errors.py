"""What a command says on standard error, to people or as JSON, and the exit code by which it fails.

With --json every line there is an object, {"error": {…}} or {"note": {…}}, also where the command line itself is wrong.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, ParamSpec, Self

import msgspec
import typer
from typer.core import TyperGroup

from clarion.cli.output import one_line
from clarion.model import errors
from clarion.model.errors import ClarionError, PermanentError


class NeedsYes(PermanentError):
    """Nobody can be asked whether something may be destroyed, and nobody said --yes."""


class ExitCode(IntEnum):
    """What a command's end says to a script, each code with its meaning."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        """Return the code, which knows its meaning."""
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    OK = 0, "done"
    ERROR = 1, "it cannot be done this way; the message says why"
    USAGE = 2, "the command line is not understood, or lacks --yes"
    NOTHING_THERE = (
        3,
        "get, browse, state get, jobs result: nothing there, the wait is over; trace: never seen, or unknown",
    )
    NO_ANSWER = 4, "no broker answered in time; request: nobody did"
    NO_SUBSCRIBER = 5, "put, request: nobody subscribes to the topic; nothing was stored"
    NOT_SUBSCRIBED = 6, "there is no such subscription"
    REFUSED_FOR_NOW = 7, "disk, topic or buffer is full, or being changed; try again later"
    STORE_UNUSABLE = 8, "up: the data is in use, damaged or too new, or the disk failed"
    NO_TOPIC = 9, "there is no such topic"
    INTERRUPTED = 130, "interrupted by Ctrl-C"
    READER_GONE = 141, "get, browse: whoever read the output went away"
    TERMINATED = 143, "get, browse, demo: ended by SIGTERM"


# The first kind that fits decides.
_BY_ERROR: tuple[tuple[type[ClarionError], ExitCode], ...] = (
    (errors.TimedOut, ExitCode.NO_ANSWER),
    (errors.Unreachable, ExitCode.NO_ANSWER),
    (errors.NoSubscriber, ExitCode.NO_SUBSCRIBER),
    (errors.NotSubscribed, ExitCode.NOT_SUBSCRIBED),
    (errors.NoTopic, ExitCode.NO_TOPIC),
    (NeedsYes, ExitCode.USAGE),
    (errors.RetryableError, ExitCode.REFUSED_FOR_NOW),
    (errors.FatalError, ExitCode.STORE_UNUSABLE),
)


def exit_code_of(error: ClarionError) -> ExitCode:
    """Return the exit code of a command that ended with this error."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), ExitCode.ERROR)


def exit_codes_help() -> str:
    """Return the table of exit codes as `clarion --help` shows it."""
    return "\n".join(f"  {code:>3}  {code.meaning}" for code in ExitCode)


Parameters = ParamSpec("Parameters")
_JSON = "--json"
_UsageError: Any = typer.BadParameter.__mro__[1]  # of the click inside Typer, which is not always the one outside
_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_says_json = False


class TellsUsage(TyperGroup):
    """The group of all commands: with --json, what is wrong with the command line is told as JSON, too."""

    def main(  # type: ignore[override]
        self, args: Any = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run the command line; in standalone mode it ends the process."""
        if not (standalone_mode and _JSON in (sys.argv[1:] if args is None else args)):
            return super().main(args, standalone_mode=standalone_mode, **extra)
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except _UsageError as error:
            _tell("error", code="UsageError", message=error.format_message(), exit_code=ExitCode.USAGE)
            code = ExitCode.USAGE
        sys.exit(code if isinstance(code, int) else ExitCode.OK)


def tells_errors(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Let a command's typed errors end it with a line for people, or for programs where `as_json` is given."""

    @functools.wraps(command)
    def told(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        global _says_json
        _says_json = bool(kwargs.get("as_json"))
        try:
            command(*args, **kwargs)
            if sys.stdout is not None:  # closed by who started us
                sys.stdout.flush()  # while its failure can still be told
        except ClarionError as error:
            report_error(error)
            raise typer.Exit(exit_code_of(error)) from None
        except BrokenPipeError:
            _write_no_more()
            raise typer.Exit(ExitCode.READER_GONE) from None
        except OSError as error:
            if error.errno not in _OUTPUT_FULL or error.filename is not None:
                raise
            _write_no_more()
            report_error(PermanentError(f"cannot write to standard output: {error.strerror}"))
            raise typer.Exit(ExitCode.ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        finally:
            _says_json = False

    return told


def report_error(error: ClarionError) -> None:
    """Say on standard error what went wrong."""
    if _says_json:
        _tell("error", code=type(error).__name__, message=str(error), exit_code=exit_code_of(error))
    else:
        note(str(error))


def note(text: str, **facts: Any) -> None:
    """Say something on standard error, in one line; the facts in it are for programs."""
    if _says_json:
        _tell("note", message=text, **facts)
    else:
        print(f"clarion: {one_line(text)}", file=sys.stderr, flush=True)


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """Say what to install where something that is imported here is missing."""
    try:
        yield
    except ImportError as error:
        raise PermanentError(f'{what}: pip install "clarion[{extra}]"') from error


@contextmanager
def naming_option(path: Path, option: str, *, done: str = "written", other: str = "another") -> Iterator[None]:
    """Say which file or folder cannot be written or used, and by which option to choose another."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise PermanentError(f"{path} cannot be {done}: {why}; choose {other} for {option}") from error


def announce_ready(facts: dict[str, Any], text: str, *, as_json: bool, warning: str = "") -> None:
    """Say on standard output that a service is ready; where that reaches nobody, the service goes on."""
    try:
        print(msgspec.json.encode({"event": "ready", **facts}).decode() if as_json else text, flush=True)
        if warning and not as_json:
            note(warning)
    except OSError as error:
        _write_no_more()
        logging.getLogger("clarion").warning("standard output takes nothing (%s); going on", error.strerror)


def _tell(kind: str, **facts: Any) -> None:
    print(msgspec.json.encode({kind: facts}).decode(), file=sys.stderr, flush=True)


def _write_no_more() -> None:
    """Send what is still in Python's buffer nowhere, or it would complain at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def end_cleanly_on_sigterm() -> None:
    """Let SIGTERM unwind the command, as Ctrl-C does, so that it cleans up."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(ExitCode.TERMINATED)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only where the answer is yes, or --yes was given. Where nobody can be asked, that is NeedsYes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise NeedsYes(f"{question} There is nobody to ask here: give --yes if you are sure. Nothing was changed")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # Ctrl-D
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        note("nothing was changed")
        raise typer.Exit(ExitCode.ERROR)
