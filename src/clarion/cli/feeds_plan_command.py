"""`clarion feeds plan`: how many nodes should poll each channel, and how soon changes are found then."""

from __future__ import annotations

import csv
import math
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clarion.cli.command_errors import naming_option, needing, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.output import console, counted, print_json, table_of
from clarion.model.errors import BadSettings

if TYPE_CHECKING:
    from clarion.feeds.honeycomb import Channels, Floats, LevelPlan

_COLUMNS = ("channel", "subscribers", "size", "update_interval_s")
_PARQUET = (".parquet", ".pq")
_NEEDS_ARROW = "Parquet needs PyArrow; CSV does not"
_SHOWN = 3  # of wrong names, in a message
SchemeName = StrEnum(
    "SchemeName", {"LITE": "lite", "FAST": "fast", "FAIR": "fair", "FAIR_SQRT": "fair-sqrt", "FAIR_LOG": "fair-log"}
)


@tells_errors
def plan_feeds(
    file: Path = typer.Argument(
        ..., metavar="CHANNELS", help="CSV or .parquet: channel, subscribers, size, update_interval_s."
    ),
    nodes: int = option(..., "--nodes N", "How many nodes poll together."),
    base: int = option(16, "--base", "A level less has so many times the nodes.", min=2, max=1 << 16),
    poll_interval_s: float = option("30m", "--poll-interval-s --poll-interval TIME", "How often each node polls."),
    scheme: SchemeName = option(SchemeName.LITE, "--scheme", "What is minimised."),
    target_s: float | None = option(
        None, "--target-s --target TIME", "For fast: how soon a change is to be found, mean over subscriptions."
    ),
    out: Path | None = option(None, "--out FILE", "Write the level of each channel: .parquet, else CSV."),
    as_json: AsJson = False,
) -> None:
    """Tell how many nodes should poll each channel.

    lite finds changes as soon as it can at no more load than subscribers would
    cause who poll on their own. fast meets --target-s at the least load. fair,
    fair-sqrt and fair-log are as lite, and give more to channels that change
    often: by the update interval, its root, or its logarithm.

    polls and bandwidth are per channel and poll interval; bandwidth is in mean
    sizes. A channel without subscribers is not polled. An empty update interval
    means that the channel never changed. decentralised is what comes of it where
    each node decides alone, from sums that the nodes exchange.

    \b
    Examples:
      clarion feeds plan channels.csv --nodes 16
      clarion feeds plan channels.csv --nodes 1024 --scheme fast --target-s 30
      clarion feeds plan channels.parquet --nodes 64 --scheme fair-sqrt \\
        --poll-interval 10m --out levels.csv --json
    """
    if (target_s is None) == (scheme is SchemeName.FAST):
        raise typer.BadParameter("it is for --scheme fast, which needs it", param_hint="--target-s")
    with needing("planning needs numpy", "feeds"):
        from clarion.feeds import honeycomb
    names, channels = _read(file)
    how = honeycomb.Scheme(scheme.value)
    found = honeycomb.choose_levels(channels, nodes, base, poll_interval_s, how, target_s)
    sizes = honeycomb.wedge_sizes(nodes, base)
    clusters = honeycomb.clusters_of(channels, how)
    none_before = honeycomb.Clusters(how)  # nodes in line decide as one that owns all: who owns what does not matter
    levels = honeycomb.decide_alone(channels, clusters, nodes, base, poll_interval_s, how, target_s, none_before)
    alone = honeycomb.describe(channels, levels, sizes, poll_interval_s, how, found.bound)
    if out is not None:
        _write(out, names, found, poll_interval_s)
    told = {
        "scheme": scheme.value,
        "nodes": nodes,
        "base": base,
        "poll_interval_s": poll_interval_s,
        "target_s": target_s,
        "channels": len(names),
        "watched": found.watched,
        "levels": len(sizes),
        "pollers_by_level": sizes.tolist(),
        "channels_by_level": list(found.channels_by_level),
        **_loads(found),
        "budget": found.budget,
        "polls_per_s": found.polls * found.watched / poll_interval_s,
        "bandwidth_per_s": found.bandwidth * found.mean_size * found.watched / poll_interval_s,
        "exact": found.exact,
        "decentralised": {"nodes": nodes, "clusters": len(clusters.clusters), **_loads(alone)},
    }
    if as_json:
        print_json(told)
    else:
        _print(told)


def _loads(found: LevelPlan) -> dict[str, Any]:
    return {
        "polls": found.polls,
        "bandwidth": found.bandwidth,
        "detection_s": {
            "by_subscription": found.detection_s_by_subscription,
            "by_channel": found.detection_s_by_channel,
        },
        "gap_to_bound": found.gap_to_bound,
    }


def _print(told: dict[str, Any]) -> None:
    screen = console()
    columns = ["level", "pollers", "found after", "channels"]
    half_s = told["poll_interval_s"] / 2
    rows = [
        (str(level), f"{pollers:,.4g}", f"{half_s / pollers:,.3g} s", f"{count:,}")
        for level, (pollers, count) in enumerate(zip(told["pollers_by_level"], told["channels_by_level"], strict=True))
    ]
    screen.print(table_of(columns, rows, columns))
    late, alone = told["detection_s"], told["decentralised"]
    proof = "nothing is better" if told["exact"] else f"at most {told['gap_to_bound']:.2g} of it could be saved"
    lines = [
        f"changes are found after {late['by_subscription']:.4g} s (mean over subscriptions;"
        f" {late['by_channel']:.4g} s over channels): {told['scheme']}, {proof}",
        f"{told['polls']:.4g} polls and {told['bandwidth']:.4g} mean sizes a channel and poll interval;"
        f" subscribers on their own would cause {told['budget']:.4g}",
        f"in all {_number(told['polls_per_s'])} polls a second, {_number(told['bandwidth_per_s'])} in the unit of size",
        f"nodes that decide alone, from {counted(alone['clusters'], 'cluster')}: found after"
        f" {alone['detection_s']['by_subscription']:.4g} s with {alone['bandwidth']:.4g}",
    ]
    if left := told["channels"] - told["watched"]:
        lines.append(f"{counted(left, 'channel')} without subscribers: not polled")
    screen.print()
    screen.print("\n".join(lines), markup=False)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _read(path: Path) -> tuple[list[str], Channels]:
    """Return the names and numbers of a file's channels; BadSettings says what is wrong with it."""
    import numpy as np

    from clarion.feeds.honeycomb import Channels

    try:
        names, numbers = _read_parquet(path) if path.suffix.lower() in _PARQUET else _read_csv(path)
    except OSError as error:
        raise BadSettings(f"{path} cannot be read: {error.strerror or error}") from error
    if not names:
        raise BadSettings(f"{path} holds no channels")
    if not all(names):
        raise BadSettings(f"{path}: channel {list(map(bool, names)).index(False) + 1} has no name")
    if len(set(names)) != len(names):
        twice = [name for name, count in Counter(names).items() if count > 1]
        shown = ", ".join(twice[:_SHOWN]) + (", …" if len(twice) > _SHOWN else "")
        raise BadSettings(f"{path} has channels more than once: {shown}")
    return names, Channels(*(np.asarray(column, dtype=np.float64) for column in numbers))


def _places(path: Path, header: list[str]) -> list[int]:
    missing = [name for name in _COLUMNS if name not in header]
    if missing:
        raise BadSettings(
            f"{path} has no column {', '.join(missing)}: a file of channels has {', '.join(_COLUMNS)}, as"
            " `clarion pipeline channels` writes it"
        )
    return [header.index(name) for name in _COLUMNS]


def _read_csv(path: Path) -> tuple[list[str], tuple[list[float], ...]]:
    names: list[str] = []
    subscribers, sizes, updates = numbers = [], [], []  # type: tuple[list[float], list[float], list[float]]
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, strict=True)
        try:
            header = [name.strip() for name in next(rows, [])]
            at, of_subscribers, of_size, of_update = _places(path, header)
            for row in rows:
                if row:
                    names.append(row[at])
                    subscribers.append(float(row[of_subscribers]))
                    sizes.append(float(row[of_size]))
                    updates.append(float(row[of_update] or math.inf))
        except IndexError:
            raise BadSettings(f"{path}, line {rows.line_num}: it has fewer columns than the first line") from None
        except (ValueError, csv.Error) as error:  # UnicodeDecodeError is a ValueError
            raise BadSettings(f"{path}, line {rows.line_num}: {error}") from None
    return names, numbers


def _read_parquet(path: Path) -> tuple[list[str], tuple[Floats, ...]]:
    with needing(_NEEDS_ARROW, "arrow"):
        import pyarrow as pa
        from pyarrow import compute, parquet
    try:
        _places(path, parquet.read_schema(path).names)
        table = parquet.read_table(path, columns=list(_COLUMNS))
        never = compute.fill_null(table["update_interval_s"].cast(pa.float64()), math.inf)
        numbers = (*(table[name].cast(pa.float64()) for name in _COLUMNS[1:3]), never)
        names = table["channel"].cast(pa.string())
    except pa.ArrowException as error:
        raise BadSettings(f"{path} cannot be read: {error}") from error
    return names.to_pylist(), tuple(column.to_numpy() for column in numbers)


def _write(path: Path, names: list[str], found: LevelPlan, poll_interval_s: float) -> None:
    """Write a row for each channel: its level, how many poll it, and how soon a change is found."""
    import numpy as np

    with np.errstate(divide="ignore"):
        late = poll_interval_s / 2 / found.pollers
    if path.suffix.lower() in _PARQUET:
        with needing(_NEEDS_ARROW, "arrow"):
            import pyarrow as pa
            from pyarrow import parquet
        detection = pa.array(late, mask=found.pollers == 0)
        columns = {"channel": names, "level": found.levels, "pollers": found.pollers, "detection_s": detection}
        with naming_option(path, "--out"):
            parquet.write_table(pa.table(columns), path)
        return
    detected = ["" if one == math.inf else one for one in late.tolist()]
    with naming_option(path, "--out"), path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("channel", "level", "pollers", "detection_s"))
        writer.writerows(zip(names, found.levels.tolist(), found.pollers.tolist(), detected, strict=True))
