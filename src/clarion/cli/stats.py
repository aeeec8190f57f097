"""`clarion stats`: the broker's counters, once or live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.failures import asking, tells_errors
from clarion.cli.options import DEFAULT_TIMEOUT_S, DEFAULT_URL, AsJson, Timeout, Url
from clarion.cli.output import add_row, console, plain_table, print_json, readable_bytes

if TYPE_CHECKING:
    from rich.table import Table

    from clarion.admin import Admin

# What is held now; everything else counts since the start, and so has a rate.
_GAUGES = frozenset({"topics", "topics_in_memory", "waiting_gets", "pid"})


@tells_errors
def stats(
    watch_s: Annotated[
        float | None, typer.Option("--watch", min=0.1, metavar="SECONDS", help="Ask again and again, until Ctrl-C.")
    ] = None,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Show the broker's counters, once or live.

    They count since its start; what it holds now comes after them.

    \b
    Examples:
      clarion stats
      clarion stats --watch 1                    # live, with rates
      clarion stats --json | jq .messages_stored
      clarion stats --json --watch 10            # a JSON object every 10 s
    """
    from clarion.admin import Admin

    with asking(url), Admin(url, timeout_s=timeout_s) as admin:
        if watch_s is None:
            values = admin.stats()
            if as_json:
                print_json(values)
            else:
                console().print(stats_table(values))
        elif as_json:
            while True:
                print_json(admin.stats())
                time.sleep(watch_s)
        else:
            _watch(admin, watch_s)


def _watch(admin: Admin, watch_s: float) -> None:
    from rich.live import Live

    screen = console()
    before, before_s = admin.stats(), time.monotonic()
    with Live(stats_table(before, {}), console=screen, auto_refresh=False) as live:
        while True:
            time.sleep(watch_s)
            now, now_s = admin.stats(), time.monotonic()
            live.update(stats_table(now, rates(before, now, now_s - before_s)), refresh=True)
            before, before_s = now, now_s


def rates(before: Mapping[str, Any], now: Mapping[str, Any], elapsed_s: float) -> dict[str, float]:
    """Give how fast each counter grew, per second; what is held now has no rate, nor has a restarted broker's."""
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


def stats_table(values: Mapping[str, Any], speeds: Mapping[str, float] | None = None) -> Table:
    """Give the table: counters first, then what is held now; with a column of rates where speeds are given."""
    columns = ["since the start", ""] if speeds is None else ["since the start", "", "per second"]
    table = plain_table(columns, columns[1:])
    counters = [name for name in sorted(values) if is_counter(name, values[name])]
    for name in counters:
        speed = [] if speeds is None else [f"{speeds[name]:,.0f}" if name in speeds else ""]
        add_row(table, _label(name), _shown(name, values[name]), *speed)
    table.add_row()
    table.add_row("[bold]now[/bold]")
    for name in sorted(set(values) - set(counters)):
        add_row(table, _label(name), _shown(name, values[name]))
    return table


def _label(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _shown(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes") or name == "bytes_stored":
        return readable_bytes(value)
    return f"{value:,} s" if name.endswith("_s") else f"{value:,}"
