"""`clarion pipeline`: what all jobs share, and the jobs put together."""

from __future__ import annotations

import typer

from clarion.cli.command_options import option
from clarion.cli.pipeline.lake_commands import archive, compact, replay
from clarion.cli.pipeline.measure_commands import latency, rates
from clarion.cli.pipeline.spark_job import SparkOptions
from clarion.cli.pipeline.sweep_command import sweep

_HELP = """Run jobs on Spark: topics as tables, on this machine or on a cluster.

Needs PySpark (Clarion's extra `spark`) and Java 17 or newer. Options of Spark
come before the job's name.

\b
Examples:
  clarion pipeline archive alerts --to lake
  clarion pipeline rates --lake lake --workload workload.yaml
  clarion pipeline --master spark://head:7077 replay lake --speed 50
"""
pipeline_app = typer.Typer(help=_HELP, no_args_is_help=True)


@pipeline_app.callback()
def _pipeline(
    context: typer.Context,
    master: str | None = option(
        None,
        "--master URL",
        "Where Spark runs: local[*] (this machine), local-cluster[2,1,1024], spark://host:7077, yarn, k8s://…",
        envvar="SPARK_MASTER",
        show_default="local[*]",
    ),
    settings: list[str] | None = option(
        None, "--spark NAME=VALUE", "A setting of Spark's, like spark.executor.memory=2g."
    ),
    log_level: str = option("OFF", "--spark-log LEVEL", "Spark's own log: OFF, ERROR, WARN, INFO, DEBUG."),
    ship: bool = option(
        False, "--ship", "Send Clarion's code to the executors; its dependencies must be installed there already."
    ),
    install: bool = option(False, "--install-java", "Install Java with the system's package manager if there is none."),
) -> None:
    context.obj = SparkOptions(master, tuple(settings or ()), log_level.upper(), ship, install)


pipeline_app.command("archive")(archive)
pipeline_app.command("compact")(compact)
pipeline_app.command("replay")(replay)
pipeline_app.command("rates")(rates)
pipeline_app.command("latency")(latency)
pipeline_app.command("sweep")(sweep)
