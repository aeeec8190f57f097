"""`clarion state`: look at the small named values that transactions set."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clarion.cli.exit_codes import ExitCode
from clarion.cli.failures import asking, tells_errors
from clarion.cli.options import DEFAULT_TIMEOUT, DEFAULT_URL, AsJson, Timeout, Url, read_name
from clarion.cli.output import print_json
from clarion.model.names import to_text

_HELP = """Look at named state: the small values that transactions set.

\b
Examples:
  clarion state get joined/order-17
  clarion state get leader --json
"""
state_app = typer.Typer(help=_HELP, no_args_is_help=True)


@state_app.callback()
def _state() -> None:
    pass


@state_app.command("get")
@tells_errors
def get_state(
    name: Annotated[
        bytes,
        typer.Argument(
            parser=read_name, metavar="NAME", help="Name of the state; for bytes that are not UTF-8, b64: and base64."
        ),
    ],
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Print a named state's value, as transaction.set() gave it.

    With --json there are name, version and value (or value_b64). Where it is not
    set the exit code is 3, and with --json the version is 0.

    \b
    Examples:
      clarion state get leader
      clarion state get leader --json | jq .version
    """
    from clarion.cli.printing import text_or_base64

    with asking(url, timeout_s) as admin:
        told = admin.state(name)
    if as_json:
        value = {"value": None} if told.value is None else text_or_base64("value", told.value)
        print_json({"name": to_text(name), "version": told.version, **value})
    elif told.value is not None:
        sys.stdout.buffer.write(told.value + b"\n")
        sys.stdout.buffer.flush()
    if told.value is None:
        raise typer.Exit(ExitCode.NOTHING_THERE)
