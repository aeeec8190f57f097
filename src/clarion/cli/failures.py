"""What a command says on standard error, to people or as JSON, and how it fails: with an exit code by kind.

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
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec

import typer
from typer.core import TyperGroup

from clarion.cli.exit_codes import ExitCode, exit_code_of
from clarion.cli.units import readable_duration
from clarion.model.errors import ClarionError, PermanentError, TimedOut, Unreachable

if TYPE_CHECKING:
    from clarion.admin import Admin

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
            tell_error(error)
            raise typer.Exit(exit_code_of(error)) from None
        except BrokenPipeError:
            _write_no_more()
            raise typer.Exit(ExitCode.READER_GONE) from None
        except OSError as error:
            if error.errno not in _OUTPUT_FULL or error.filename is not None:
                raise
            _write_no_more()
            tell_error(PermanentError(f"cannot write to standard output: {error.strerror}"))
            raise typer.Exit(ExitCode.ERROR) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        finally:
            _says_json = False

    return told


@contextmanager
def asking(url: str, timeout_s: float) -> Iterator[Admin]:
    """Give a client that asks the broker, and close it; where no broker answers that is told meanwhile and at last."""
    from clarion.admin import Admin

    with (
        no_answer_told(url),
        Admin(url, timeout_s=timeout_s) as admin,
        waiting_told(url, timeout_s),
    ):
        yield admin


@contextmanager
def no_answer_told(url: str) -> Iterator[None]:
    """Say it the same way in every command when no broker answers."""
    try:
        yield
    except (TimedOut, Unreachable):
        raise Unreachable(f"no broker answers at {url}. Is one running there? `clarion up` starts one") from None


@contextmanager
def waiting_told(url: str, timeout_s: float) -> Iterator[ClientNotes]:
    """Say what a client warns of as a note: above all that no broker answers yet, and how long it will be tried."""
    notes = ClientNotes(url, timeout_s)
    log = logging.getLogger("clarion")
    log.addHandler(notes)
    try:
        yield notes
    finally:
        log.removeHandler(notes)


class ClientNotes(logging.Handler):
    """Makes notes of a client's warnings. `for_ever`: a broker that goes away is waited for, however long."""

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(logging.WARNING)
        self._url = url
        self._timeout_s = timeout_s
        self.for_ever = False

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        if record.name == "clarion.session" and record.levelno == logging.WARNING and not self.for_ever:
            note(f"no answer from {self._url} yet; trying for {readable_duration(self._timeout_s)} in all")
        else:
            note(record.getMessage())


def tell_error(error: ClarionError) -> None:
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
        print(f"clarion: {' '.join(text.split())}", file=sys.stderr, flush=True)


@contextmanager
def announcing() -> Iterator[None]:
    """Let a service go on where what it says on standard output when it is ready reaches nobody."""
    try:
        yield
    except OSError as error:
        _write_no_more()
        logging.getLogger("clarion").warning("standard output takes nothing (%s); going on", error.strerror)


def _tell(kind: str, **facts: Any) -> None:
    import msgspec

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
