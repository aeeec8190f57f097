"""`clarion stats`: the broker's counters, once or live."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.failures import asking, tells_errors
from clarion.cli.options import DEFAULT_TIMEOUT, DEFAULT_URL, AsJson, Timeout, Url
from clarion.cli.output import add_row, console, plain_table, print_json, readable_bytes
from clarion.cli.units import read_some_time_s
from clarion.model.names import to_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from clarion.admin import Admin, PublisherReport

# What is held now; everything else counts since the start, and so has a rate.
_GAUGES = frozenset({"topics", "topics_in_memory", "waiting_gets", "clock_off_s", "pid"})
_PUBLISHERS = "publishers"  # has a table of its own


@tells_errors
def stats(
    watch_s: Annotated[
        float | None,
        typer.Option("--watch", parser=read_some_time_s, metavar="TIME", help="Ask again so often (1s), until Ctrl-C."),
    ] = None,
    url: Url = DEFAULT_URL,
    timeout_s: Timeout = DEFAULT_TIMEOUT,
    as_json: AsJson = False,
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
    with asking(url, timeout_s) as admin:
        if watch_s is None:
            values = admin.stats()
            if as_json:
                print_json(as_plain(values))
            else:
                console().print(stats_tables(values))
        elif as_json:
            while True:
                print_json(as_plain(admin.stats()))
                time.sleep(watch_s)
        else:
            _watch(admin, watch_s)


def _watch(admin: Admin, watch_s: float) -> None:
    from rich.live import Live

    screen = console()
    before, before_s = admin.stats(), time.monotonic()
    shown = stats_tables(before, {})
    # A file or pipe cannot be drawn over: there, one follows the other.
    drawn = Live(shown, console=screen, auto_refresh=False) if screen.is_terminal else None
    with drawn or nullcontext():
        while True:
            if drawn is None:
                screen.print(shown)
            else:
                drawn.update(shown, refresh=True)
            time.sleep(watch_s)
            now, now_s = admin.stats(), time.monotonic()
            shown = stats_tables(now, rates(before, now, now_s - before_s))
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


def as_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the values as JSON has them: topics as text, who reports in hex."""
    import msgspec

    plain = [
        {**msgspec.structs.asdict(one), "topic": to_text(one.topic), "instance": one.instance.hex()}
        for one in values.get(_PUBLISHERS, ())
    ]
    return {**values, _PUBLISHERS: plain}


def stats_tables(values: Mapping[str, Any], speeds: Mapping[str, float] | None = None) -> Group:
    """Give the table of counters, and one of publishers where there are any."""
    from rich.console import Group

    reports = values.get(_PUBLISHERS, ())
    tables = [stats_table({name: value for name, value in values.items() if name != _PUBLISHERS}, speeds)]
    return Group(*tables, "", publishers_table(reports)) if reports else Group(*tables)


def publishers_table(reports: Sequence[PublisherReport]) -> Table:
    """Give what publishers told of themselves, a row for each of their topics."""
    numbers = ["N", "T_poll", "load/s", "capacity/s", "credit", "pending", "drops"]
    table = plain_table([_PUBLISHERS, "topic", "tuning", *numbers], numbers)
    for one in reports:
        add_row(
            table,
            one.instance.hex()[:8],
            to_text(one.topic),
            one.policy,
            f"{one.batch_size:,}",
            f"{one.poll_interval_s * 1000:,.1f} ms",
            f"{one.load_per_s:,.1f}",
            f"{one.capacity_per_s:,.1f}" if one.capacity_per_s else "",
            f"{one.credit:,}" if one.credit >= 0 else "",
            f"{one.pending:,}",
            f"{one.drops:,}",
        )
    return table


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
