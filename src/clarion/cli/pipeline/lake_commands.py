"""`clarion pipeline archive`, `compact` and `replay`: topics into a Parquet lake, exactly once, and back."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.command_errors import ExitCode, note, tells_errors
from clarion.cli.command_options import DEFAULT_URL, AsJson, Url, option, read_name, read_number, read_some, read_time
from clarion.cli.output import counted, print_json, readable_duration
from clarion.cli.pipeline.job_output import live_line, print_pairs, query_line
from clarion.cli.pipeline.spark_job import check_broker, check_extra, check_input, check_place, names_of, spark_session
from clarion.model.errors import PermanentError
from clarion.model.names import to_text

if TYPE_CHECKING:
    from clarion.pipeline.jobs.archive import Archived
    from clarion.pipeline.jobs.replay import Replayed

Lake = Annotated[str, typer.Argument(metavar="LAKE", help="Folder of the lake, or a URL of one.")]


@tells_errors
def archive(
    context: typer.Context,
    topics: list[bytes] = typer.Argument(
        ..., parser=read_name, metavar="TOPIC…", help="Topics, or one pattern like 'alerts/#'."
    ),
    lake: str = option(..., "--to LAKE", "Folder of the lake, or a URL of one."),
    follow: bool = option(False, "--follow", "Go on with what comes, until Ctrl-C; else end with what is there now."),
    every_s: float = option("10s", "--every TIME", "With --follow: how often."),
    max_rows: int | None = option(
        None, "--max-rows", "Most rows of one micro-batch.", parser=read_some, show_default="no bound"
    ),
    cursor: str | None = option(
        None, "--cursor NAME", "Durable subscription, so that retention waits for the archive."
    ),
    checkpoint: str | None = option(None, "--checkpoint DIR", "Spark's checkpoint.", show_default="in the lake"),
    merges: bool = option(True, "--compact/--no-compact", "Merge small files."),
    lenient: bool = option(False, "--skip-gaps", "Go on over messages that retention has removed, instead of failing."),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Stream topics into a Parquet lake, partitioned by topic and day, exactly once.

    Each run goes on where the last one stopped. Kill it at any moment: started
    again, no row is missing and none is there twice. The lake is plain Parquet,
    in LAKE/topic=…/day=…/, that anything can read.

    \b
    Examples:
      clarion pipeline archive alerts --to lake
      clarion pipeline archive 'alerts/#' --to lake --follow --every 30s --cursor archive
      clarion pipeline --master spark://head:7077 archive alerts --to /shared/lake
    """
    names = names_of(topics)
    check_input(url, names, None)
    check_place(lake)
    began_s = time.monotonic()
    with spark_session(context, "archive", quiet=as_json) as spark, query_line(quiet=as_json) as show:
        from clarion.pipeline.jobs.archive import archive as run

        if follow and not as_json:
            note("archiving; Ctrl-C ends it cleanly")
        done = run(
            spark,
            url,
            names,
            lake,
            checkpoint=checkpoint,
            cursor=cursor,
            max_rows=max_rows,
            every_s=every_s if follow else None,
            merge=merges,
            fail_on_data_loss=not lenient,
            on_progress=show,
        )
    _tell_archived(done, lake, time.monotonic() - began_s, as_json=as_json)
    if done.stopped and not follow:
        raise typer.Exit(ExitCode.INTERRUPTED)


@tells_errors
def compact(
    lake: Lake,
    target_bytes: int = option("128MB", "--target SIZE", "Size that files are merged up to."),
    as_json: AsJson = False,
) -> None:
    """Merge a lake's small files, topic by topic and day by day. Needs no Spark and no broker.

    Not while an archive runs into the lake, which merges by itself, and not twice
    at a time.

    \b
    Example:
      clarion pipeline compact lake --target 256MB
    """
    check_extra()
    from clarion.pipeline.lake import compact as run

    try:
        done = run(lake, target_bytes=target_bytes)
    except OSError as error:
        raise PermanentError(f"{error}; no row is lost, and the next run goes on") from error
    if as_json:
        print_json(done._asdict())
    elif done.merged:
        print(f"{counted(done.merged, 'file')} merged into {done.into:,}, with {counted(done.rows, 'row')}.")
    else:
        print("There is nothing to merge.")


def _tell_archived(done: Archived, lake: str, elapsed_s: float, *, as_json: bool) -> None:
    if as_json:
        print_json({**done._asdict(), "lake": lake, "elapsed_s": round(elapsed_s, 3)})
        return
    print_pairs([
        ("rows archived", f"{done.rows:,}"),
        ("files added", f"{done.files:,}" + (f", {done.merged:,} small ones merged" if done.merged else "")),
        ("micro-batches", f"{done.batches:,}"),
        *((f"{topic} is there up to offset", f"{end:,}") for topic, end in sorted(done.ends.items())),
        ("time", readable_duration(max(1, round(elapsed_s)))),
    ])  # fmt: skip
    if done.stopped:
        print("It was stopped; the next run goes on from here.")
    print(f"The lake is {lake}: plain Parquet by topic and day. Look: clarion pipeline rates --lake {lake}")


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
    to: bytes | None = option(None, "--to TOPIC", "Topic to put them on.", parser=read_name, show_default="its own"),
    topics: list[bytes] | None = option(
        None, "--topic TOPIC", "Of these topics only.", parser=read_name, show_default="all"
    ),
    start: Any = option(None, "--start WHERE", "From this offset or time on.", parser=_read_bound),
    end: Any = option(None, "--end WHERE", "Before this offset or time.", parser=_read_bound),
    speed: float = option("full", "--speed X", "full, or how many times as fast as it was.", parser=_read_speed),
    name: str | None = option(None, "--as NAME", "Name of this replay: done again under it, nothing is put twice."),
    mark: bool = option(False, "--mark", "Tell each message's original id in its header clarion-replay-of."),
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put a slice of the lake back onto a topic, in order: keys, headers and payloads as they were.

    At full speed it is one write, all or nothing; with --as, once and for all.
    At a pace (--speed 1 as it was, --speed 50 fifty times as fast) messages
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
        _tell_replayed(done)
    if done.stopped:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _tell_replayed(done: Replayed) -> None:
    pairs = [("messages put", f"{done.messages:,}"), ("putting took", f"{done.took_s:,.1f} s")]
    if done.reached is not None:
        pairs.append(("latest of them", f"{done.late_s:.2f} s after it was due"))
    if done.stopped:
        pairs += [(f"{topic} was put up to offset", f"{end:,}") for topic, end in sorted((done.reached or {}).items())]
    print_pairs(pairs)
    if done.done_before:
        print("A replay of this name was done before; nothing was put again.")
