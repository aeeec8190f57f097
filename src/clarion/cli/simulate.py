"""`clarion simulate publisher`: one run of the model of a tuned publisher."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clarion.cli.command_errors import tells_errors
from clarion.cli.command_options import AsJson
from clarion.cli.output import add_row, console, plain_table, print_json
from clarion.cli.simulate_options import with_parameters
from clarion.cli.traces import plot_trace
from clarion.cli.traces import trace as write_trace
from clarion.model.errors import PermanentError

if TYPE_CHECKING:
    from clarion.sim.publisher import Outcome

_NEEDS = 'simulating needs SimPy and numpy: pip install "clarion[sim]"'

simulate_app = typer.Typer(
    help="""Run models of the system in simulated time.

    They run the very code of the real system, against costs that you choose.

    \b
    Example:
      clarion simulate publisher --profile store-light --load 35
    """,
    no_args_is_help=True,
)


@tells_errors
def publisher(
    profile: Annotated[
        str | None, typer.Option("--profile", help="Costs of the store: store-heavy (the default) or store-light.")
    ] = None,
    load_per_s: Annotated[
        float | None, typer.Option("--load", help="Messages a second, at random.", show_default="35")
    ] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", help="Loads over time instead: table-ii, or 0-100:1.75,100-300:55")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="File of arrivals instead: CSV or Parquet, with time stamps.")
    ] = None,
    trace_rate_per_s: Annotated[
        float | None, typer.Option("--trace-rate", help="Scale the trace's gaps to this mean rate.")
    ] = None,
    trace_speed: Annotated[
        float | None, typer.Option("--trace-speed", help="Play the trace so many times as fast.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="TOML file of parameters by name; options win.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same run.")] = 1,
    trace_out: Annotated[
        Path | None, typer.Option("--trace-out", metavar="FILE", help="Write what the tuner did at each poll, as CSV.")
    ] = None,
    as_json: AsJson = False,
    **parameters: Any,
) -> None:
    """Run the model of a publisher, a broker and a subscriber once.

    Messages come to the publisher, are received by a worker, written to its store,
    read from there in batches as the real tuner decides, and sent to the broker,
    where a subscriber reads them. The response time is from arrival to that read.
    Times are written like 130ms or 2s. In a --config file a parameter has the name
    that --json prints under "parameters", and times are in seconds.

    \b
    Examples:
      clarion simulate publisher --profile store-light --load 35
      clarion simulate publisher --tuning fixed --batch-size 10 --json
      clarion simulate publisher --steps table-ii --tuning literal --trace-out n.csv
      clarion simulate publisher --tuning fixed --poll-min 1s --poll-max 1s
      clarion simulate publisher --load 17.5 --subscriber-rate 25 --vacation 4s --room 50
      clarion simulate publisher --trace requests.csv --trace-rate 29 --read-fixed 5ms
    """
    asked = {
        **parameters, "profile": profile, "load_per_s": load_per_s, "steps": steps, "trace": trace,
        "trace_rate_per_s": trace_rate_per_s, "trace_speed": trace_speed,
    }  # fmt: skip
    outcome, used = _run({name: value for name, value in asked.items() if value is not None}, config, seed, trace_out)
    if as_json:
        print_json({**outcome.to_dict(), "parameters": used})
    else:
        _print(outcome)


def _run(
    asked: dict[str, Any], config: Path | None, seed: int, trace_out: Path | None
) -> tuple[Outcome, dict[str, Any]]:
    try:
        from clarion.sim.publisher import simulate
        from clarion.sim.publisher.configuring import FIELDS, arrivals_used, build_parameters, read_config
    except ImportError as error:
        raise PermanentError(_NEEDS) from error
    values = {} if config is None else read_config(config)
    made = build_parameters(values, {**asked, "keep_trace": True} if trace_out is not None else asked)
    outcome = simulate(made, seed=seed)
    if trace_out is not None:
        _write_trace(trace_out, outcome)
    used = {name: getattr(made, name) for name in FIELDS if not name.startswith("keep_")}
    return outcome, {**arrivals_used(values, asked), **used}


def _write_trace(file: Path, outcome: Outcome) -> None:
    """Write the tuner's trace; with several publishers, the number of each in the first column."""
    from clarion.publisher.tuner import trace_to_csv

    traces = {str(number): one.trace or [] for number, one in enumerate(outcome.publishers)}
    try:
        file.write_text(trace_to_csv(traces), encoding="utf-8")
    except OSError as error:
        raise PermanentError(f"{file} cannot be written: {error.strerror}; choose another for --trace-out") from error


def _print(outcome: Outcome) -> None:
    screen = console()
    response = outcome.response_ms
    lines = [
        ("response, mean", _shown_ms(response["mean"])),
        ("median", _shown_ms(response["median"])),
        ("99 %", _shown_ms(response["p99"])),
        ("batch size N, mean", f"{outcome.batch_size_mean:.1f}"),
        ("poll interval, mean", f"{1000 * outcome.poll_interval_mean_s:,.0f} ms"),
        ("messages a batch", f"{outcome.messages_per_batch:.1f} in {outcome.batches:,} batches"),
        ("offered", f"{outcome.offered:,} in {outcome.seconds:,.0f} s"),
        ("delivered", f"{outcome.delivered:,}"),
        ("dropped", f"{outcome.dropped:,}"),
        ("waiting to be received", f"{outcome.buffer_peak:,} at most"),
        ("unfinished", f"{outcome.unfinished:,}"),
        ("store in use", f"{outcome.store_utilisation:.0%}"),
        ("workers in use", f"{outcome.worker_utilisation:.0%}"),
    ]
    table = plain_table([f"tuning {outcome.tuning}, seed {outcome.seed}", ""], [""])
    for line in lines:
        add_row(table, *line)
    screen.print(table)
    if len(outcome.publishers) > 1:
        screen.print()
        _print_publishers(outcome)


def _shown_ms(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:,.0f} ms"


def _print_publishers(outcome: Outcome) -> None:
    columns = ["publisher", "delivered", "dropped", "response, mean", "N, mean"]
    table = plain_table(columns, columns[1:])
    for number, one in enumerate(outcome.publishers):
        mean_ms = _shown_ms(one.response_ms["mean"])
        add_row(table, str(number), f"{one.delivered:,}", f"{one.dropped:,}", mean_ms, f"{one.batch_size_mean:.1f}")
    screen = console()
    screen.print(table)
    screen.print(
        f"\nJain's index: {outcome.jain_throughput:.3f} of throughput, {outcome.jain_response:.3f} of mean response;"
        f" the least has {outcome.least_share:.0%} of an even share"
    )


simulate_app.command("publisher")(with_parameters(publisher))
simulate_app.command("trace")(write_trace)
simulate_app.command("plot-trace")(plot_trace)
