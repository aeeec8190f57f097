"""`clarion pipeline archive` and `compact`: topics into a Parquet lake, exactly once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from clarion.cli.exit_codes import ExitCode
from clarion.cli.failures import note, tells_errors
from clarion.cli.options import DEFAULT_URL, AsJson, Url, read_name
from clarion.cli.output import counted, print_json
from clarion.cli.pipeline.inputs import check_input, check_place, names_of
from clarion.cli.pipeline.session import check_extra, spark_session
from clarion.cli.pipeline.showing import print_pairs, query_line
from clarion.cli.units import read_size, read_some, read_some_time_s, readable_duration
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from clarion.pipeline.jobs.archive import Archived

Lake = Annotated[str, typer.Argument(metavar="LAKE", help="Folder of the lake, or a URL of one.")]


@tells_errors
def archive(
    context: typer.Context,
    topics: Annotated[
        list[bytes],
        typer.Argument(parser=read_name, metavar="TOPIC…", help="Topics, or one pattern like 'alerts/#'."),
    ],
    lake: Annotated[str, typer.Option("--to", metavar="LAKE", help="Folder of the lake, or a URL of one.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C; else end with what is there now.")
    ] = False,
    every_s: Annotated[
        float, typer.Option("--every", parser=read_some_time_s, metavar="TIME", help="With --follow: how often.")
    ] = "10s",  # type: ignore[assignment]
    max_rows: Annotated[
        int | None,
        typer.Option("--max-rows", parser=read_some, help="Most rows of one micro-batch.", show_default="no bound"),
    ] = None,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="NAME", help="Durable subscription, so that retention waits for the archive."),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="DIR", show_default="in the lake", help="Spark's checkpoint.")
    ] = None,
    merges: Annotated[bool, typer.Option("--compact/--no-compact", help="Merge small files.")] = True,
    lenient: Annotated[
        bool, typer.Option("--skip-gaps", help="Go on over messages that retention has removed, instead of failing.")
    ] = False,
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
    _tell(done, lake, time.monotonic() - began_s, as_json=as_json)
    if done.stopped and not follow:
        raise typer.Exit(ExitCode.INTERRUPTED)


@tells_errors
def compact(
    lake: Lake,
    target_bytes: Annotated[
        int, typer.Option("--target", parser=read_size, metavar="SIZE", help="Size that files are merged up to.")
    ] = "128MB",  # type: ignore[assignment]
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


def _tell(done: Archived, lake: str, elapsed_s: float, *, as_json: bool) -> None:
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
