"""`clarion trace`: where a message went."""

from __future__ import annotations

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.output import print_json
from clarion.model.errors import InvalidRequest
from clarion.model.ids import MessageId


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
