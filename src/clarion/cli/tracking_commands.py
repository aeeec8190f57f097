"""`clarion trace` and `clarion tracking`: where messages went."""

from __future__ import annotations

from pathlib import Path

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import needing, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.output import counted, print_json, print_result
from clarion.model.errors import InvalidRequest
from clarion.model.ids import MessageId

tracking_app = typer.Typer(no_args_is_help=True, help="Histories of where messages went.")


@tracking_app.command("export")
@tells_errors
def export(
    out: Path = option(..., "--out DIR", "Folder for the export; a file for each broker, which replaces the last one."),
    data: Path = option(Path("clarion-data"), "--data DIR", "Data folder of the broker, which may be running."),
    name: str = option("", "--name NAME", "How the broker is called in audits.", show_default="broker- and its id"),
    as_json: AsJson = False,
) -> None:
    """Write a broker's histories as Parquet, for audits of very many messages.

    What the broker has noted in the last seconds and not saved yet is not in it.
    Export the histories of all brokers into one folder, and give that to `clarion
    pipeline audit`.

    \b
    Examples:
      clarion tracking export --out exports
      clarion tracking export --data /var/lib/clarion --name lbl --out exports
      clarion pipeline audit ids.parquet --histories exports
    """
    from clarion.broker.history_writer import FILE

    with needing("an export needs pyarrow and numpy", "arrow,tracking"):
        from clarion.tracking.exported import export_file
    try:
        written = export_file(data / FILE, out, name)
    except FileNotFoundError:
        raise InvalidRequest(
            f"there are no histories in {data}: the broker there tracks nothing. Start it with --set tracking=bloom"
        ) from None
    value = {"path": str(written.path), "segments": written.segments, "keys": written.keys}
    print_result(value, f"{written.path}: {counted(written.segments, 'part')} of histories", as_json=as_json)


@broker_command
def trace(
    call: BrokerCall,
    message_id: str = typer.Argument(
        ..., metavar="MESSAGE_ID", help="As `clarion put` prints it: 32 hexadecimal digits."
    ),
) -> None:
    """Show where a message went: its origin, the brokers that carried it, who received it.

    Any broker can be asked; it asks the others that it is linked with. Brokers
    answer of messages however old, as far as they keep histories (`clarion up
    --set tracking=bloom`). Each part tells the chance that it is wrong, where
    there is one; a claim that no neighbour supports is set apart, and so are
    brokers that could not be asked.

    \b
    Examples:
      clarion trace a04eb7ad000000010ca3dfdc68500000
      clarion trace a04eb7ad000000010ca3dfdc68500000 --url tcp://lbl:5590 --json
    """
    try:
        wanted = MessageId.parse(message_id)
    except ValueError:
        raise InvalidRequest(f"a message id has 32 hexadecimal digits, not {message_id!r}") from None
    with call.admin() as admin:
        traced = admin.trace(wanted)
    if call.as_json:
        print_json(traced.values)
    else:
        print(traced.text)
