"""How a command fails: one line on standard error, and an exit code by kind."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, ParamSpec

import typer

from clarion.cli.exit_codes import ExitCode, exit_code_of
from clarion.model.errors import ClarionError, TimedOut, Unreachable

Parameters = ParamSpec("Parameters")


def tells_errors(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Let a command's typed errors end it with a line for people, or for programs where `as_json` is given."""

    @functools.wraps(command)
    def told(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ClarionError as error:
            tell_error(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(exit_code_of(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    return told


@contextmanager
def asking(url: str) -> Iterator[None]:
    """Say it the same way in every command when no broker answers."""
    try:
        yield
    except (TimedOut, Unreachable):
        raise Unreachable(f"no broker answers at {url}. Is one running there? `clarion up` starts one") from None


def tell_error(error: ClarionError, *, as_json: bool) -> None:
    """Say on standard error what went wrong."""
    if as_json:
        import msgspec

        told = {"error": type(error).__name__, "message": str(error)}
        print(msgspec.json.encode(told).decode(), file=sys.stderr, flush=True)
    else:
        note(str(error))


def note(text: str) -> None:
    """Say something on standard error, in one line."""
    print(f"clarion: {' '.join(text.split())}", file=sys.stderr, flush=True)


def end_cleanly_on_sigterm() -> None:
    """Let SIGTERM unwind the command, as Ctrl-C does, so that it cleans up."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(ExitCode.TERMINATED)
