"""`clarion pipeline replay`: a slice of the lake back onto a topic, at the pace you like."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.exit_codes import ExitCode
from clarion.cli.failures import tells_errors
from clarion.cli.options import DEFAULT_URL, AsJson, Url, read_name
from clarion.cli.output import print_json
from clarion.cli.pipeline.archive import Lake
from clarion.cli.pipeline.inputs import check_broker, check_input, names_of
from clarion.cli.pipeline.session import spark_session
from clarion.cli.pipeline.showing import live_line, print_pairs
from clarion.cli.units import read_number, read_time
from clarion.model.names import to_text

if TYPE_CHECKING:
    from clarion.pipeline.jobs.replay import Replayed


def _read_bound(text: str) -> int | datetime:
    return read_number(text) if text.isdigit() else read_time(text)


def _read_speed(text: str) -> float:
    """Read how many times as fast; full is 0."""
    plain = text.strip().lower().removesuffix("x")
    if plain == "full":
        return 0.0
    try:
        speed = float(plain)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise typer.BadParameter(f"a speed is full, or how many times as fast: 1, 50, 0.5; not {text!r}")
    return speed


@tells_errors
def replay(
    context: typer.Context,
    lake: Lake,
    to: Annotated[
        bytes | None,
        typer.Option("--to", parser=read_name, metavar="TOPIC", show_default="its own", help="Topic to put them on."),
    ] = None,
    topics: Annotated[
        list[bytes] | None,
        typer.Option("--topic", parser=read_name, metavar="TOPIC", show_default="all", help="Of these topics only."),
    ] = None,
    start: Annotated[
        Any,
        typer.Option("--start", parser=_read_bound, metavar="WHERE", help="From this offset or time on."),
    ] = None,
    end: Annotated[
        Any, typer.Option("--end", parser=_read_bound, metavar="WHERE", help="Before this offset or time.")
    ] = None,
    speed: Annotated[
        float,
        typer.Option("--speed", parser=_read_speed, metavar="X", help="full, or how many times as fast as it was."),
    ] = "full",  # type: ignore[assignment]
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="Name of this replay: done again under it, nothing is put twice."),
    ] = None,
    mark: Annotated[
        bool, typer.Option("--mark", help="Tell each message's original id in its header clarion-replay-of.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put a slice of the lake back onto a topic, in order: keys, headers and payloads as they were.

    At full speed it is one write, all or nothing; with --as, once and for all.
    At a pace (--speed 1 as it was, --speed 50 for the x50 of the document) messages
    are put one after another at their times; Ctrl-C ends it, and it says how far
    it came.

    \b
    Examples:
      clarion pipeline replay lake --topic alerts --to alerts-again
      clarion pipeline replay lake --topic alerts --to test --speed 50
      clarion pipeline replay lake --to night --start 2026-11-15T20:00:00Z --end 2026-11-16T05:00:00Z
    """
    if speed and name is not None:
        raise typer.BadParameter("only a replay at full speed is done once under a name", param_hint="--as")
    check_input(url, names_of(topics), lake)
    check_broker(url)
    began_s = time.monotonic()
    with spark_session(context, "replay", quiet=as_json) as spark, live_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.replay import replay as run

        done = run(
            spark,
            lake,
            url,
            topic=None if to is None else to_text(to),
            topics=names_of(topics) or None,
            start=start,
            end=end,
            speed=speed or None,
            name=name,
            mark=mark,
            on_progress=lambda told: show(
                f"{told.messages:,} messages put · {told.took_s:.0f} s · at most {told.late_s:.2f} s late"
            ),
        )
    elapsed_s = time.monotonic() - began_s
    if as_json:
        print_json({**done._asdict(), "elapsed_s": round(elapsed_s, 3)})
    else:
        _tell(done)
    if done.stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _tell(done: Replayed) -> None:
    pairs = [("messages put", f"{done.messages:,}"), ("putting took", f"{done.took_s:,.1f} s")]
    if done.reached is not None:
        pairs.append(("latest of them", f"{done.late_s:.2f} s after it was due"))
    if done.stopped:
        pairs += [(f"{topic} was put up to offset", f"{end:,}") for topic, end in sorted((done.reached or {}).items())]
    print_pairs(pairs)
    if done.done_before:
        print("A replay of this name was done before; nothing was put again.")
