"""`clarion config`: every setting of a broker, what it is now and what it means."""

from __future__ import annotations

import dataclasses
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from clarion.cli.failures import tells_errors
from clarion.cli.options import AsJson
from clarion.cli.output import add_row, console, plain_table, print_json
from clarion.cli.up import ConfigFile

if TYPE_CHECKING:
    from clarion.broker.settings import BrokerSettings


_WIDE = 140  # columns; on narrower terminals the default is only told where it is not the value


class Setting(NamedTuple):
    """One setting, as it is told."""

    name: str
    value: str | int | float
    default: str | int | float
    source: str  # default, file or environment
    environment: str  # the variable that sets it
    meaning: str


@tells_errors
def config(
    config: ConfigFile = None,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print a TOML file to save, change and give to --config.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print every setting of a broker, with its default and meaning.

    The value is what `clarion up` would use here and now. Values that are not the
    default are marked, with where they come from. Nothing is asked of a running
    broker.

    \b
    Examples:
      clarion config
      clarion config --toml > clarion.toml     # a file to begin with
      clarion config --config clarion.toml     # what it comes to
      clarion up --config clarion.toml
      clarion up --set max_topics=1000         # for one run
      CLARION_MAX_TOPICS=1000 clarion up       # the same
    """
    from clarion.broker.settings import load_settings

    if as_toml and as_json:
        raise typer.BadParameter("give --toml or --json, not both")
    settings = load_settings(file=config, environment=os.environ, flags={})
    rows = describe(settings, os.environ)
    if as_json:
        for row in rows:
            print_json(row._asdict())
    elif as_toml:
        print(to_toml(rows), end="")
    else:
        _print_table(rows)


def describe(settings: BrokerSettings, environment: Mapping[str, str]) -> list[Setting]:
    """Tell every setting, in the order of its definition."""
    from clarion.broker.settings import ENVIRONMENT_PREFIX

    rows = []
    for field in dataclasses.fields(settings):
        value, default = _plain(getattr(settings, field.name)), _plain(field.default)
        variable = ENVIRONMENT_PREFIX + field.name.upper()
        source = "environment" if variable in environment else "default" if value == default else "file"
        rows.append(Setting(field.name, value, default, source, variable, field.metadata["meaning"]))
    return rows


def to_toml(rows: list[Setting]) -> str:
    """Give a TOML file with every setting explained; those at their default are commented out."""
    lines = [
        "# Settings of a Clarion broker: clarion up --config THIS-FILE",
        "# Lines that begin with # are the defaults. The environment (CLARION_NAME) and options win over this file.",
    ]
    for row in rows:
        lines.append("")
        lines.extend(textwrap.wrap(row.meaning, 110, initial_indent="# ", subsequent_indent="# "))
        mark = "#" if row.value == row.default else ""
        lines.append(f"{mark}{row.name} = {toml_value(row.value)}")
    return "\n".join(lines) + "\n"


def toml_value(value: str | float) -> str:
    """Write a text or number as TOML has it."""
    if not isinstance(value, str):
        return repr(value)
    import msgspec

    # A JSON text is a TOML text too, but for DEL, which TOML wants escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _plain(value: Any) -> str | int | float:
    return str(value) if isinstance(value, Path) else value


def _shown(value: str | float) -> str:
    if value == "":
        return '""'
    return f"{value:,}".removesuffix(".0") if isinstance(value, int | float) else value


def _print_table(rows: list[Setting]) -> None:
    screen = console()
    wide = screen.width >= _WIDE
    table = plain_table(["setting", "value", "default", "meaning"] if wide else ["setting", "value", "meaning"])
    table.columns[0].no_wrap = True
    for row in rows:
        changed = row.source != "default"
        value, default = _shown(row.value), _shown(row.default)
        if changed:
            value += f" ({row.source})" if wide else f" ({row.source})\ndefault {default}"
        cells = (row.name, value, default, row.meaning) if wide else (row.name, value, row.meaning)
        add_row(table, *cells, style="bold yellow" if changed else None)
    screen.print(table)
    if not wide:
        screen.print("\nValues are the defaults, but where it says otherwise.")
