"""`clarion links`: show how this broker is linked with others, and forget one that will not come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from clarion.cli.broker_clients import BrokerCall, broker_command
from clarion.cli.command_errors import confirm
from clarion.cli.command_options import ListsByDefault, Yes, option
from clarion.cli.output import all_fields, console, counted, print_json, readable_duration, show_again, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Group

    from clarion.admin import Admin, LinkDescription, LinkedBroker, LinksDescription

_HELP = """Show how a broker is linked with others, and forget one that is gone.

`clarion links` alone shows them, as `clarion links list` does. A link is made
by `clarion up --link URL`, at either end.

\b
Examples:
  clarion links
  clarion links --watch 1
  clarion links forget ornl
"""

links_app = typer.Typer(cls=ListsByDefault, help=_HELP)
_NUMBERS = ("sent", "sent/s", "received", "received/s", "gone", "kept out")


@links_app.command("list")
@broker_command
def list_links(
    call: BrokerCall,
    watch_s: float | None = option(None, "--watch TIME", "Ask again so often (1s), until Ctrl-C."),
) -> None:
    """Show the links of a broker, and the brokers that they lead to.

    First its links: the neighbour, and whether the link is up, since when, and
    why not. Then all brokers that can be reached over them, or could be once:

    \b
    via        the neighbour by which it is reached
    confirmed  it knows what is wanted of it: what is put there comes here; or
               that there is no way to it now (not reachable)
    sent       messages sent there since this broker's start, and a second
    received   messages that came from there
    lag        messages that it wants and has not confirmed; they are kept
    gone       messages that it could not keep until they had come here
    kept out   messages that may not cross a link, by its settings

    \b
    Examples:
      clarion links
      clarion links --watch 1
      clarion links --json | jq '.brokers[] | select(.lag_messages > 1000)'
      clarion links --json --watch 10            # a JSON object every 10 s
    """
    with call.admin() as admin:
        if watch_s is None:
            told = admin.links()
            if call.as_json:
                print_json(links_json(told))
            else:
                console().print(links_tables(told))
        elif call.as_json:
            while True:
                print_json(links_json(admin.links()))
                time.sleep(watch_s)
        else:
            show_again(_pictures(admin), watch_s)


@links_app.command("forget")
@broker_command
def forget(
    call: BrokerCall,
    name: str = typer.Argument(..., metavar="NAME", help="Name of the broker, or its id."),
    yes: Yes = False,
) -> None:
    """Keep nothing any more for a broker that will not come back.

    What it wants and has not confirmed is kept here until it does. This ends its
    subscriptions here, and lets that go. One that is linked is not forgotten; if
    it comes back after all, it gets what is put from then on.

    \b
    Examples:
      clarion links forget ornl
      clarion links forget 0a1b2c3d --yes
    """
    with call.admin() as admin:
        for one in admin.links().brokers:
            if name in (one.name, one.broker) and not one.reachable:
                kept = f"has not confirmed {_behind(one)}" if one.lag_messages else "has confirmed all that it wanted"
                confirm(f"{name} {kept}. Forget it, with that?", yes=yes)
        admin.forget_broker(name)
    call.print({"broker": name, "forgotten": True}, f"nothing is kept for {name} any more")


def _pictures(admin: Admin) -> Iterator[Group]:
    while True:
        yield links_tables(admin.links())


def links_json(told: LinksDescription) -> dict[str, Any]:
    """Return everything about links as JSON."""
    return {
        "name": told.name,
        "broker": told.broker,
        "links": [all_fields(one) for one in told.links],
        "brokers": [all_fields(one) for one in told.brokers],
        "counters": told.counters,
    }


def links_tables(told: LinksDescription) -> Group:
    """Return the tables of links and of brokers; a sentence where there are none."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(f"this broker is {told.name} ({told.broker})")]
    if not told.links:
        parts.append("it has no links now; either end makes one: clarion up --name NAME --link URL-OF-THE-OTHER")
    if told.links:
        rows = [_link_cells(one) for one in told.links]
        parts += ["", table_of(["link with", "id", "address", "state", "for", "why"], rows)]
    if told.brokers:
        columns = ["broker", "id", "via", "confirmed", *_NUMBERS[:4], "lag", *_NUMBERS[4:]]
        parts += ["", table_of(columns, [_broker_cells(one) for one in told.brokers], _NUMBERS)]
    refusals = [
        Text(f"{one.name} does not send {topic}: {why}") for one in told.brokers for topic, why in one.refused.items()
    ]
    return Group(*parts, *([""] if refusals else []), *refusals)


def _link_cells(one: LinkDescription) -> tuple[str, ...]:
    lasted = "never up" if one.for_s is None else readable_duration(round(one.for_s))
    why = one.reason
    if one.state == "down" and one.for_s is None:
        why = why or "nobody has answered there yet"
    return (one.name or "?", one.broker, one.url or "calls here", one.state, lasted, why)


def _broker_cells(one: LinkedBroker) -> tuple[str, ...]:
    confirmed = ("yes" if one.confirmed else "not yet") if one.reachable else "not reachable"
    return (
        one.name or "?", one.broker, one.via, confirmed, f"{one.sent_messages:,}", f"{one.sent_per_s:,.1f}",
        f"{one.received_messages:,}", f"{one.received_per_s:,.1f}", _behind(one), f"{one.gone_messages:,}",
        f"{one.kept_out_messages:,}",
    )  # fmt: skip


def _behind(one: LinkedBroker) -> str:
    if not one.lag_messages:
        return "0"
    return f"{counted(one.lag_messages, 'message')} of {counted(one.lag_topics, 'topic')}"
