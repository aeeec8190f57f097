"""The command line put together; `main` is the `clarion` command."""

from __future__ import annotations

import gc
import sys

import typer

from clarion import __version__
from clarion.cli.advise_command import advise
from clarion.cli.broker_commands import config, stats, up
from clarion.cli.command_errors import TellsUsage, exit_codes_help
from clarion.cli.command_options import option
from clarion.cli.dead_letter_commands import dead_app
from clarion.cli.demo_command import demo
from clarion.cli.feeds_commands import feeds_app
from clarion.cli.feeds_delivery_commands import chat, notify
from clarion.cli.feeds_model_commands import reproduce_feeds, simulate_feeds
from clarion.cli.feeds_node_commands import node, run
from clarion.cli.feeds_plan_command import plan_feeds
from clarion.cli.job_commands import jobs_app
from clarion.cli.link_commands import links_app
from clarion.cli.model_commands import reproduce_app, simulate_app
from clarion.cli.outbox_commands import outbox_app
from clarion.cli.pipeline_commands import pipeline_app
from clarion.cli.plan_command import plan
from clarion.cli.put_commands import publish, put, request
from clarion.cli.read_commands import browse, get, state_app
from clarion.cli.subscription_commands import subscribe, subscriptions_app, unsubscribe
from clarion.cli.topic_commands import topics_app
from clarion.cli.tracking_commands import trace, tracking_app
from clarion.cli.tracking_model_commands import reproduce_tracking
from clarion.cli.workflow_commands import worker, workflow_app
from clarion.cli.workflow_model_commands import reproduce_workflow, simulate_workflow

_HELP = """Clarion: durable publish/subscribe. What was acknowledged is never lost; a living consumer gets it once.

\b
Start here:
  clarion demo                             # see it work, kill -9 and all
  clarion up                               # a broker, in one terminal
  clarion subscribe alerts --as reader     # and in another
  clarion put alerts 'hello'
  clarion get alerts --as reader

Client commands ask the broker at --url, or CLARION_URL, or
tcp://127.0.0.1:5590. Names of topics and subscribers that are not UTF-8 are
written b64: and base64. Each command has its own --help, with examples.
"""
_EPILOG = f"""\b
Exit codes:
{exit_codes_help()}

Errors are one line on standard error, or a JSON object there with --json.
"""

app = typer.Typer(
    cls=TellsUsage,
    help=_HELP,
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"clarion {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = option(False, "--version", "Print the version and exit.", callback=_print_version, is_eager=True),
) -> None:
    pass


simulate_app.command("workflow")(simulate_workflow)
reproduce_app.command("workflow")(reproduce_workflow)
simulate_app.command("feeds")(simulate_feeds)
reproduce_app.command("feeds")(reproduce_feeds)
reproduce_app.command("tracking")(reproduce_tracking)

_BROKER, _MESSAGES, _LOOK_AFTER = "Broker", "Messages", "Look around, look after"
_WORKFLOWS, _FEEDS, _PIPELINE, _MODELS = "Workflows", "The web", "Data", "Models"
app.command("up", rich_help_panel=_BROKER)(up)
app.command("config", rich_help_panel=_BROKER)(config)
app.command("stats", rich_help_panel=_BROKER)(stats)
app.command("demo", rich_help_panel=_BROKER)(demo)
app.command("put", rich_help_panel=_MESSAGES)(put)
app.command("publish", rich_help_panel=_MESSAGES)(publish)
app.command("get", rich_help_panel=_MESSAGES)(get)
app.command("subscribe", rich_help_panel=_MESSAGES)(subscribe)
app.command("unsubscribe", rich_help_panel=_MESSAGES)(unsubscribe)
app.command("request", rich_help_panel=_MESSAGES)(request)
app.command("browse", rich_help_panel=_MESSAGES)(browse)
app.add_typer(topics_app, name="topics", rich_help_panel=_LOOK_AFTER)
app.command("trace", rich_help_panel=_LOOK_AFTER)(trace)
app.add_typer(tracking_app, name="tracking", rich_help_panel=_LOOK_AFTER)
app.add_typer(subscriptions_app, name="subscriptions", rich_help_panel=_LOOK_AFTER)
app.add_typer(dead_app, name="dead", rich_help_panel=_LOOK_AFTER)
app.add_typer(links_app, name="links", rich_help_panel=_LOOK_AFTER)
app.add_typer(state_app, name="state", rich_help_panel=_LOOK_AFTER)
app.add_typer(outbox_app, name="outbox", rich_help_panel=_LOOK_AFTER)
workflow_app.command("advise")(advise)
app.add_typer(workflow_app, name="workflow", rich_help_panel=_WORKFLOWS)
app.command("worker", rich_help_panel=_WORKFLOWS)(worker)
app.add_typer(jobs_app, name="jobs", rich_help_panel=_WORKFLOWS)
feeds_app.command("node")(node)
feeds_app.command("run")(run)
feeds_app.command("plan")(plan_feeds)
feeds_app.command("notify")(notify)
feeds_app.command("chat")(chat)
app.add_typer(feeds_app, name="feeds", rich_help_panel=_FEEDS)
app.add_typer(pipeline_app, name="pipeline", rich_help_panel=_PIPELINE)
app.command("plan", rich_help_panel=_MODELS)(plan)
app.add_typer(simulate_app, name="simulate", rich_help_panel=_MODELS)
app.add_typer(reproduce_app, name="reproduce", rich_help_panel=_MODELS)


def main() -> None:
    """Run the command line; it ends the process with the command's exit code."""
    _leave_out_all_but(sys.argv[1] if len(sys.argv) > 1 else "")
    gc.freeze()  # what is loaded stays until the end, and looking through it again then takes a while
    app(prog_name="clarion")


def _leave_out_all_but(name: str) -> None:
    """Where a command is named, have no others: making all of them ready takes longer than most take to run."""
    commands = [command for command in app.registered_commands if command.name == name]
    groups = [group for group in app.registered_groups if group.name == name]
    if commands or groups:
        app.registered_commands, app.registered_groups = commands, groups
