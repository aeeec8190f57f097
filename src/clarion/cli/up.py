"""`clarion up`: run a broker until it is told to stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.exit_codes import ExitCode, exit_code_of
from clarion.cli.failures import announcing, end_cleanly_on_sigterm, tells_errors
from clarion.cli.options import AsJson
from clarion.cli.output import print_json
from clarion.model.errors import BadSettings, ClarionError
from clarion.version import __version__

if TYPE_CHECKING:
    from clarion.broker.settings import BrokerSettings

# The committer thread comes back from fsync and has to wait for the GIL that the serving loop holds: 5 ms by
# default, several times what the fsync took. Clients set nothing: they are guests in somebody's process.
_SWITCH_INTERVAL_S = 0.0005

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file of settings; `clarion config --toml` makes one."),
]


@tells_errors
def up(
    data: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="DIR", help="Folder of the store; made if missing.", show_default="clarion-data"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="URL", help="Address for everybody.", show_default="tcp://127.0.0.1:5590"),
    ] = None,
    listen_publishers: Annotated[
        str | None, typer.Option("--listen-publishers", metavar="URL", help="Address for publishers alone.")
    ] = None,
    listen_subscribers: Annotated[
        str | None, typer.Option("--listen-subscribers", metavar="URL", help="Address for subscribers alone.")
    ] = None,
    config: ConfigFile = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of `clarion config`; may be repeated."),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.", show_default="info"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a broker until Ctrl-C or SIGTERM.

    When it is ready it says so in one line on standard output. Logs go to
    standard error, a JSON object a line. The first Ctrl-C or SIGTERM answers what
    it has taken and stops; a second one stops at once. Neither loses anything
    that was acknowledged, and nor does kill -9.

    \b
    Examples:
      clarion up                   # on tcp://127.0.0.1:5590, in ./clarion-data
      clarion up --data /var/lib/clarion --listen 'tcp://*:5590'
      clarion up --config clarion.toml --set memory_bytes=1000000000
      CLARION_LOG_LEVEL=debug clarion up 2> broker.log

    Settings come from the file, then CLARION_… in the environment, then options;
    the last one said wins.
    """
    from clarion.broker.settings import load_settings

    flags = {
        **read_settings(settings or []),
        "data": data,
        "listen": listen,
        "listen_publishers": listen_publishers,
        "listen_subscribers": listen_subscribers,
        "log_level": log_level,
    }
    serve(load_settings(file=config, environment=os.environ, flags=flags), as_json=as_json)


def read_settings(pairs: list[str]) -> dict[str, str]:
    """Read settings given as name=value; one that does not exist is BadSettings, with what was likely meant."""
    from clarion.broker.settings import BrokerSettings, did_you_mean

    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"a setting is name=value, not {pair!r}", param_hint="--set")
        if name not in BrokerSettings.__dataclass_fields__:
            hint = did_you_mean(name) or "`clarion config` lists them all"
            raise BadSettings(f"there is no setting {name!r}; {hint}")
        found[name] = value
    return found


def serve(settings: BrokerSettings, *, as_json: bool) -> None:
    """Make the broker and run it. What fails before it is ready is raised; after that it is logged, loudly."""
    import logging

    from clarion.broker import Broker
    from clarion.broker.logs import log_json_lines

    log_json_lines(settings.log_level)
    log = logging.getLogger("clarion.broker")
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    end_cleanly_on_sigterm()  # the first process of a container would not even hear it, and opening may take a while
    try:
        broker = Broker(settings)
    except (KeyboardInterrupt, SystemExit):
        log.info("stopped before it was ready; nothing was taken, and everything is as it was")
        return
    broker.handle_signals()
    facts: dict[str, Any] = {"data": str(settings.data), "pid": os.getpid()}

    def on_ready(urls: list[str]) -> None:
        log.info("ready", extra={"urls": urls, **facts, "version": __version__})
        with announcing():
            if as_json:
                print_json({"event": "ready", "urls": urls, **facts})
            else:
                print(f"clarion: ready on {', '.join(urls)} (data in {settings.data}, pid {os.getpid()})", flush=True)

    try:
        broker.run(on_ready)
    except ClarionError as error:
        log.critical("the broker stopped: %s", error, extra={"error": type(error).__name__})
        raise typer.Exit(exit_code_of(error)) from None
    except BaseException:
        log.critical("the broker stopped: this is a mistake in Clarion; everything acked is on disk", exc_info=True)
        raise typer.Exit(ExitCode.ERROR) from None
    log.info("stopped; everything that was taken is on disk", extra=facts)
