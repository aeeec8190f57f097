"""`clarion up`, `config` and `stats`: run a broker, print its settings, show its counters."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import ExitCode, announce_ready, end_cleanly_on_sigterm, exit_code_of, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.output import add_row, console, plain_table, print_json, readable_bytes, show_again, table_of
from clarion.model.errors import BadSettings, ClarionError
from clarion.model.names import to_text
from clarion.version import __version__

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from clarion.admin import Admin, PublisherReport
    from clarion.broker.settings import BrokerSettings

# The committer thread comes back from fsync and has to wait for the GIL that the serving loop holds: 5 ms by
# default, several times what the fsync took. Clients set nothing: they are guests in somebody's process.
_SWITCH_INTERVAL_S = 0.0001
# A broker makes no cycles. Looking for them took a fifth of its time with 20,000 topics; and each time that the records
# which the index lacks had become 50,000 objects more, 20 to 30 ms in which nobody was served.
_COLLECTED_EVERY = (400_000, 50, 20)
ConfigFile = Annotated[
    Path | None, option(..., "--config FILE", "TOML file of settings; `clarion config --toml` makes one.")
]


@tells_errors
def up(
    data: str | None = option(None, "--data DIR", "Folder of the store; made if missing.", show_default="clarion-data"),
    listen: str | None = option(None, "--listen URL", "Address for everybody.", show_default="tcp://127.0.0.1:5590"),
    listen_publishers: str | None = option(None, "--listen-publishers URL", "Address for publishers alone."),
    listen_subscribers: str | None = option(None, "--listen-subscribers URL", "Address for subscribers alone."),
    name: str | None = option(
        None, "--name NAME", "How linked brokers call this one.", show_default="broker- and its id"
    ),
    link: list[str] | None = option(
        None,
        "--link URL",
        "A broker to link with, which need not be there yet: its messages come to subscribers here, and the other way"
        " round; may be repeated. What may cross is said in a file (see `clarion config --toml`), whose links stay:"
        " these are added to them.",
    ),
    config: ConfigFile = None,
    settings: list[str] | None = option(
        None, "--set NAME=VALUE", "Any other setting of `clarion config`; may be repeated."
    ),
    log_level: str | None = option(None, "--log-level LEVEL", "debug, info, warning or error.", show_default="info"),
    as_json: AsJson = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    When it is ready it says so in one line on standard output. Logs go to
    standard error, a JSON object a line. The first Ctrl-C or SIGTERM answers what
    it has taken and stops; a second one stops at once. Neither loses anything
    that was acknowledged, and nor does kill -9.

    \b
    Examples:
      clarion up                   # on tcp://127.0.0.1:5590, in ./clarion-data
      clarion up --data /var/lib/clarion --listen 'tcp://*:5590'
      clarion up --config clarion.toml --set memory_bytes=1000000000
      CLARION_LOG_LEVEL=debug clarion up 2> broker.log
      clarion up --name lbl --link tcp://cern.example:5590

    Linked brokers find each other over any number of others between them, and
    either end may call. `clarion links` shows them.

    Settings come from the file, then CLARION_… in the environment, then options;
    the last one said wins. But links add up, and one that a table \\[\\[links]] of
    the file has (by its url) is as that table says.
    """
    from clarion.broker.settings import load_settings

    said = {
        "data": data,
        "listen": listen,
        "listen_publishers": listen_publishers,
        "listen_subscribers": listen_subscribers,
        "log_level": log_level,
        "name": name,
    }
    flags = {**read_settings(settings or []), **{name: value for name, value in said.items() if value is not None}}
    if link:
        flags["links"] = ",".join([flags.get("links", ""), *link])
    serve(load_settings(file=config, environment=os.environ, flags=flags), as_json=as_json)


def read_settings(pairs: list[str]) -> dict[str, str]:
    """Read settings given as name=value; one that does not exist is BadSettings, with what was likely meant."""
    from clarion.broker.settings import BrokerSettings, did_you_mean

    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"a setting is name=value, not {pair!r}", param_hint="--set")
        if name not in BrokerSettings.__dataclass_fields__:
            hint = did_you_mean(name) or "`clarion config` lists them all"
            raise BadSettings(f"there is no setting {name!r}; {hint}")
        found[name] = value
    return found


def serve(settings: BrokerSettings, *, as_json: bool) -> None:
    """Make the broker and run it. What fails before it is ready is raised; after that it is logged, loudly."""
    import logging

    from clarion.broker import Broker
    from clarion.broker.logs import log_json_lines

    log_json_lines(settings.log_level)
    log = logging.getLogger("clarion.broker")
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_COLLECTED_EVERY)
    end_cleanly_on_sigterm()  # the first process of a container would not even hear it, and opening may take a while
    try:
        broker = Broker(settings)
    except (KeyboardInterrupt, SystemExit):
        log.info("stopped before it was ready; nothing was taken, and everything is as it was")
        return
    broker.handle_signals()
    facts: dict[str, Any] = {"data": str(settings.data), "pid": os.getpid()}

    def on_ready(urls: list[str]) -> None:
        log.info("ready", extra={"urls": urls, **facts, "version": __version__})
        text = f"clarion: ready on {', '.join(urls)} (data in {settings.data}, pid {os.getpid()})"
        announce_ready({"urls": urls, **facts}, text, as_json=as_json)

    try:
        broker.run(on_ready)
    except ClarionError as error:
        log.critical("the broker stopped: %s", error, extra={"error": type(error).__name__})
        raise typer.Exit(exit_code_of(error)) from None
    except BaseException:
        log.critical("the broker stopped: this is a mistake in Clarion; everything acked is on disk", exc_info=True)
        raise typer.Exit(ExitCode.ERROR) from None
    log.info("stopped; everything that was taken is on disk", extra=facts)


_WIDE = 140  # columns; on narrower terminals the default is only told where it is not the value


# Of one link, as a file has it: commented out, an example.
_EXAMPLE_LINK = {
    "url": "tcp://other.example:5590",
    "name": "other",
    "topics_in": ["#"],
    "topics_out": ["alerts/#"],
    "origins": ["*"],
}
_LINK_MEANINGS = {
    "url": "where the other broker listens; empty: it is the one that calls",
    "name": "what it has to be called; empty: whatever it is called",
    "topics_in": "topics and patterns that may come in by this link",
    "topics_out": "topics and patterns that may go out by it",
    "origins": "names or ids of the brokers whose messages may come in by it; *: all",
}
Value = str | int | float | list[dict[str, Any]]


class Setting(NamedTuple):
    """One setting, as it is told."""

    name: str
    value: Value
    default: Value
    source: str  # default, file or environment
    environment: str  # the variable that sets it
    meaning: str


@tells_errors
def config(
    config: ConfigFile = None,
    as_toml: bool = option(False, "--toml", "Print a TOML file to save, change and give to --config."),
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
    rows = describe_settings(settings, os.environ)
    if as_json:
        for row in rows:
            print_json(row._asdict())
    elif as_toml:
        print(to_toml(rows), end="")
    else:
        _print_settings(rows)


def describe_settings(settings: BrokerSettings, environment: Mapping[str, str]) -> list[Setting]:
    """Return every setting, in the order of its definition."""
    from clarion.broker.settings import ENVIRONMENT_PREFIX

    rows = []
    for field in dataclasses.fields(settings):
        value, default = _plain(getattr(settings, field.name)), _plain(field.default)
        variable = ENVIRONMENT_PREFIX + field.name.upper()
        source = "environment" if variable in environment else "default" if value == default else "file"
        rows.append(Setting(field.name, value, default, source, variable, field.metadata["meaning"]))
    return rows


def to_toml(rows: list[Setting]) -> str:
    """Return a TOML file with every setting explained; those at their default are commented out."""
    lines = [
        "# Settings of a Clarion broker: clarion up --config THIS-FILE",
        "# Lines that begin with # are the defaults. The environment (CLARION_NAME) and options win over this file;",
        "# links are added to those of this file.",
    ]
    for row in sorted(rows, key=lambda row: isinstance(row.value, list)):  # what follows a table belongs to the table
        lines.append("")
        lines.extend(textwrap.wrap(row.meaning, 110, initial_indent="# ", subsequent_indent="# "))
        if isinstance(row.value, list):
            lines += _toml_tables(row.name, row.value)
        else:
            mark = "#" if row.value == row.default else ""
            lines.append(f"{mark}{row.name} = {toml_value(row.value)}")
    return "\n".join(lines) + "\n"


def _toml_tables(name: str, values: list[dict[str, Any]]) -> list[str]:
    """Return the lines of tables; where there are none, those of an example, commented out."""
    lines = [f"# {key}: {meaning}" for key, meaning in _LINK_MEANINGS.items()]
    if not values:
        lines.append("# The default is none; this is an example.")
    for value in values or [_EXAMPLE_LINK]:
        table = [f"[[{name}]]", *(f"{key} = {toml_value(its)}" for key, its in value.items())]
        lines += table if values else [f"#{line}" for line in table]
        lines.append("")
    return lines[:-1]


def toml_value(value: str | float | list[str]) -> str:
    """Return a text, a number or a list of texts as TOML has it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if not isinstance(value, str):
        return repr(value)
    import msgspec

    # A JSON text is a TOML text too, but for DEL, which TOML wants escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _plain(value: Any) -> Any:
    """Return a setting's value as JSON has it."""
    if isinstance(value, bytes):
        return to_text(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value) if isinstance(value, Path) else value


def _shown(value: Value) -> str:
    if isinstance(value, list):
        return ", ".join(link["url"] or f"{link['name']} (calls here)" for link in value) or "none"
    if value == "":
        return '""'
    return f"{value:,}".removesuffix(".0") if isinstance(value, int | float) else value


def _print_settings(rows: list[Setting]) -> None:
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


# What is held now; everything else counts since the start, and so has a rate.
_GAUGES = frozenset({"topics", "topics_in_memory", "waiting_gets", "clock_off_s", "pid"})
_PUBLISHERS = "publishers"  # has a table of its own


@broker_command
def stats(
    call: BrokerCall,
    watch_s: float | None = option(None, "--watch TIME", "Ask again so often (1s), until Ctrl-C."),
) -> None:
    """Show the broker's counters, once or live.

    They count since its start; what it holds now comes after them, and then
    the publishers that told of themselves in the last seconds: batch size N,
    poll interval, estimated load and capacity, what the broker would take
    (credit), what waits (pending), and what a full buffer refused (drops).

    \b
    Examples:
      clarion stats
      clarion stats --watch 1                    # live, with rates
      clarion stats --json | jq .messages_stored
      clarion stats --json | jq .publishers
      clarion stats --json --watch 10            # a JSON object every 10 s
    """
    with call.admin() as admin:
        if watch_s is None:
            values = admin.stats()
            if call.as_json:
                print_json(as_plain(values))
            else:
                console().print(stats_tables(values))
        elif call.as_json:
            while True:
                print_json(as_plain(admin.stats()))
                time.sleep(watch_s)
        else:
            show_again(_with_rates(admin), watch_s)


def _with_rates(admin: Admin) -> Iterator[Group]:
    before, before_s = admin.stats(), time.monotonic()
    yield stats_tables(before, {})
    while True:
        now, now_s = admin.stats(), time.monotonic()
        yield stats_tables(now, rates(before, now, now_s - before_s))
        before, before_s = now, now_s


def rates(before: Mapping[str, Any], now: Mapping[str, Any], elapsed_s: float) -> dict[str, float]:
    """Return how fast each counter grew, per second; what is held now has no rate, nor has a restarted broker's."""
    found = {}
    for name, value in now.items():
        earlier = before.get(name, 0)
        if is_counter(name, value) and is_counter(name, earlier) and value >= earlier:
            found[name] = (value - earlier) / elapsed_s
    return found


def is_counter(name: str, value: object) -> bool:
    """Whether a value counts since the broker's start."""
    held = name in _GAUGES or (name.endswith("_bytes") and name != "bytes_stored")
    return isinstance(value, int) and not isinstance(value, bool) and not held


def as_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as JSON has them: topics as text, who reports in hex."""
    import msgspec

    plain = [
        {**msgspec.structs.asdict(one), "topic": to_text(one.topic), "instance": one.instance.hex()}
        for one in values.get(_PUBLISHERS, ())
    ]
    return {**values, _PUBLISHERS: plain}


def stats_tables(values: Mapping[str, Any], speeds: Mapping[str, float] | None = None) -> Group:
    """Return the table of counters, and one of publishers where there are any."""
    from rich.console import Group

    reports = values.get(_PUBLISHERS, ())
    tables = [stats_table({name: value for name, value in values.items() if name != _PUBLISHERS}, speeds)]
    return Group(*tables, "", publishers_table(reports)) if reports else Group(*tables)


def publishers_table(reports: Sequence[PublisherReport]) -> Table:
    """Return what publishers told of themselves, a row for each of their topics."""
    numbers = ["N", "T_poll", "load/s", "capacity/s", "credit", "pending", "drops"]
    rows = (
        (
            one.instance.hex()[:8], to_text(one.topic), one.policy, f"{one.batch_size:,}",
            f"{one.poll_interval_s * 1000:,.1f} ms", f"{one.load_per_s:,.1f}",
            f"{one.capacity_per_s:,.1f}" if one.capacity_per_s else "", f"{one.credit:,}" if one.credit >= 0 else "",
            f"{one.pending:,}", f"{one.drops:,}",
        )
        for one in reports
    )  # fmt: skip
    return table_of([_PUBLISHERS, "topic", "tuning", *numbers], rows, numbers)


def stats_table(values: Mapping[str, Any], speeds: Mapping[str, float] | None = None) -> Table:
    """Return the table: counters first, then what is held now; with a column of rates where speeds are given."""
    columns = ["since the start", ""] if speeds is None else ["since the start", "", "per second"]
    table = plain_table(columns, columns[1:])
    counters = [name for name in sorted(values) if is_counter(name, values[name])]
    for name in counters:
        speed = [] if speeds is None else [f"{speeds[name]:,.0f}" if name in speeds else ""]
        add_row(table, _label(name), _shown_counter(name, values[name]), *speed)
    table.add_row()
    table.add_row("[bold]now[/bold]")
    for name in sorted(set(values) - set(counters)):
        add_row(table, _label(name), _shown_counter(name, values[name]))
    return table


def _label(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _shown_counter(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes") or name == "bytes_stored":
        return readable_bytes(value)
    return f"{value:,} s" if name.endswith("_s") else f"{value:,}"
