"""`clarion trace` and `clarion tracking`: where messages went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import ExitCode, needing, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.output import counted, print_json, print_result, readable_bytes
from clarion.cli.spark_job import live_line
from clarion.model.errors import Busy, InvalidRequest, TimedOut
from clarion.model.ids import MessageId, stamp_to_unix_s
from clarion.tracking.paths import time_text

if TYPE_CHECKING:
    from clarion.tracking.exported import Written

_NOTHING_TOLD = ("never seen", "unknown")  # states of a message of which nobody knows that it went anywhere
_GAPS_TOLD = 3  # of those in an export, to people; --json has all

tracking_app = typer.Typer(no_args_is_help=True, help="Histories of where messages went: export them for audits.")


@tracking_app.command("export")
@tells_errors
def export(
    out: Path = option(..., "--out DIR", "Folder for exports, made if missing; the file in it is named by broker id."),
    data: Path = option(Path("clarion-data"), "--data DIR", "Data folder of the broker, which may be running."),
    name: str = option("", "--name NAME", "How the broker is called in audits.", show_default="broker- and its id"),
    as_json: AsJson = False,
) -> None:
    """Write a broker's histories as Parquet, for audits of very many messages.

    Run it where the broker's data folder is, for each broker that tracks, and
    bring the files into one folder: DIR/<broker id>.parquet, whole or not at
    all, in place of the last export of that broker. What the broker noted in
    the last seconds (tracking_persist_s) and has not saved is not in it.

    It needs the extras `arrow` and `tracking`. With --json: the path, broker and
    name, begins and ends (between which nothing is missing but for gaps: times in
    which the broker did not track), how many histories, segments, keys (in filters)
    and exact_keys there are, bytes, and in_place, true where an export was there
    before.

    \b
    Examples:
      clarion tracking export --out exports
      clarion tracking export --data /var/lib/clarion --name rome --out exports
      clarion pipeline audit ids.txt --histories exports --without-spark
    """
    from clarion.broker.history_writer import FILE

    with needing("an export needs pyarrow and numpy", "arrow,tracking"):
        import pyarrow

        from clarion.tracking.history_file import export_file
    del pyarrow
    file = data / FILE
    _check_places(file, out, name)
    with live_line(quiet=as_json) as show:
        show(f"exporting {file} ({readable_bytes(file.stat().st_size)}) …")
        written = export_file(file, out, name)
    print_result(_facts(written), _told(written), as_json=as_json)


def _check_places(file: Path, out: Path, name: str) -> None:
    """Refuse where there is nothing to export, or where an export, or a name, cannot be."""
    from clarion.broker.links.policy import why_no_name

    data = file.parent
    if not data.is_dir():
        why = "is a file" if data.exists() else "is not there"
        raise InvalidRequest(f"{data} {why}: name the data folder of a broker with --data")
    if not file.is_file():
        raise InvalidRequest(
            f"{data} has no histories ({file.name}): no broker tracked there. Start it with --set tracking=bloom; what"
            " was put before is not in histories"
        )
    if out.exists() and not out.is_dir():
        raise InvalidRequest(f"{out} is a file, and stays as it is: --out names a folder, in which each broker has one")
    if out.suffix == ".parquet" and not out.exists():
        raise InvalidRequest(
            f"--out names a folder, in which each broker has a file named by its id: --out {out.with_suffix('')}"
        )
    if out.resolve() == data.resolve():
        raise InvalidRequest(f"{out} is the data folder of the broker: choose another folder for exports")
    if name and (why := why_no_name(name)):
        raise InvalidRequest(f"--name: {why}")


def _facts(written: Written) -> dict[str, object]:
    about = written.about
    return {
        "path": str(written.path), "broker": f"{about.broker:08x}", "name": about.name,
        "begins": _time(about.begins), "ends": _time(about.ends),
        "gaps": [[_time(first), _time(last)] for first, last in about.gaps], "histories": written.histories,
        "segments": written.segments, "keys": written.keys, "exact_keys": written.exact_keys,
        "bytes": written.size_bytes, "in_place": written.in_place,
    }  # fmt: skip


def _told(written: Written) -> str:
    about = written.about
    what = (
        f"{written.histories:,} {'history' if written.histories == 1 else 'histories'} of {about.name} with"
        f" {counted(written.keys + written.exact_keys, 'note')}, {readable_bytes(written.size_bytes)}"
    )
    until = f"; all from {_time(about.begins)} to {_time(about.ends)}" if about.ends > about.begins else ""
    gaps = [f"{_time(first) or 'its beginning'} to {_time(last)}" for first, last in about.gaps]
    more = f" and {len(gaps) - _GAPS_TOLD} more" if len(gaps) > _GAPS_TOLD else ""
    but = f"; it did not track {', '.join(gaps[:_GAPS_TOLD])}{more}" if gaps else ""
    return f"{written.path}: {what}{until}{but}{'; in place of the export before' if written.in_place else ''}"


def _time(stamp: int) -> str | None:
    """Return the time of a stamp; None for one that stands for no time."""
    return time_text(stamp_to_unix_s(stamp)) if stamp else None


def read_message_id(text: str) -> str:
    """Return the 32 hexadecimal digits of a message's id."""
    try:
        return str(MessageId.parse(text.replace("-", "")))
    except ValueError:
        raise typer.BadParameter(f"a message id has 32 hexadecimal digits, not {text!r}") from None


@broker_command
def trace(
    call: BrokerCall,
    message: str = typer.Argument(
        ..., metavar="MESSAGE_ID", help="As `clarion put` prints it: 32 hexadecimal digits.", parser=read_message_id
    ),
) -> None:
    """Show where a message went: its origin, the brokers that carried it, who received it.

    Any broker can be asked; it asks the others that it is linked with. They
    answer of messages however old, as far as they keep histories (`clarion up
    --set tracking=bloom`, or log; it needs the extra `tracking`).

    \b
    What is told of each broker, below the one that the message came from:
      published, routed       it was put there; it came there over a link
      → NAME received         the subscriber has acked it
      → NAME went past it     not received: it expired, is a dead letter, or was
                              before its start
      ⋯ NAME is still to get  it waits for the subscriber, or for the broker
      wrong with P            the chance that this claim is false; else it is sure
      unknown                 it could not be asked (until it answers), does not
                              track now, or did not then (for good)
      ✗ given up for NAME     it was kept for that broker, and is not any more
      unsupported             claims that no neighbour supports: most likely false

    \b
    Exit codes: 0 where the message was delivered, is on its way, or was not
    delivered; 3 where it was never seen, or is unknown: nobody is known to have
    received it, and not all could tell; 4 where no broker answers. `state` in
    --json says which, in these words.

    \b
    Examples:
      clarion trace a04eb7ad000000010ca3dfdc68500000
      clarion trace a04eb7ad000000010ca3dfdc68500000 --url tcp://oslo:5590 --json
      clarion put news hello --json | jq -r .first_id | xargs clarion trace
    """
    with call.admin() as admin:
        try:
            traced = admin.trace(message)
        except TimedOut:
            admin.hello()  # it is there
            why = "did not answer in time: it waits for what others say, up to 2.5 s. A longer --timeout may help"
            raise Busy(f"the broker at {call.url} {why}") from None
    if call.as_json:
        print_json(traced.values)
    else:
        print(traced.text)
    if traced.state in _NOTHING_TOLD:
        raise typer.Exit(ExitCode.NOTHING_THERE)
