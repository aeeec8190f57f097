"""`clarion simulate` and `reproduce`: models of the system in simulated time, and the papers' experiments run again."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clarion.cli.command_errors import naming_option, needing, note, tells_errors
from clarion.cli.command_options import AsJson, option, read_duration_s, with_options
from clarion.cli.output import console, counted, print_json, table_of
from clarion.model.errors import PermanentError
from clarion.sim.parameters import Parameters

if TYPE_CHECKING:
    from clarion.publisher.tuner import Sample
    from clarion.reproduce.publisher_report import Report
    from clarion.sim import Outcome

_KEPT = ("keep_responses", "keep_trace")  # what they keep is for programs that import the simulator
_NAMES = {
    "subscriber_per_s": "--subscriber-rate",
    "gated": "--gate/--no-gate",
    "receiving_first": "--receiving-first/--first-come",
    "takes_all": "--take-all/--take-n",
    "polls_on_arrival": "--poll-on-arrival/--poll-by-time",
    "poll_factor": "--beta",
    "load_gain": "--alpha",
    "capacity_gain": "--gamma",
    "wait_s": "--wait",
}
_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def option_name(name: str) -> str:
    """Return the option that sets a parameter."""
    return _NAMES.get(name, "--" + name.removesuffix("_per_s").removesuffix("_s").replace("_", "-"))


def _option(known: dataclasses.Field[Any]) -> tuple[str, Any, Any]:
    kind = _TYPES[str(known.type).removesuffix(" | None")]
    meaning = known.metadata["meaning"]
    told: dict[str, Any] = {"rich_help_panel": known.metadata["group"]}
    if _is_duration(known.name):
        told.update(parser=read_duration_s, metavar="TIME")
    if known.default is not None:
        told["show_default"] = _shown(known.name, known.default)
    help = meaning[:1].upper() + meaning[1:] + "."
    return known.name, kind | None, option(None, option_name(known.name), help, **told)


def _is_duration(name: str) -> bool:
    return name == "seconds" or (name.endswith("_s") and not name.endswith("_per_s"))


def _shown(name: str, default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float) and _is_duration(name):
        return f"{default:g}s" if default >= 1 else f"{1000 * default:g}ms"
    return f"{default:,g}" if isinstance(default, int | float) else str(default)


_PARAMETERS = [_option(known) for known in dataclasses.fields(Parameters) if known.name not in ("arrivals", *_KEPT)]
_PICTURES = (".png", ".svg", ".pdf")
_LEAST_HOURS, _MOST_HOURS = 0.01, 10_000
Shape = StrEnum("Shape", {"LOOKUP_SERVICE": "lookup-service", "ZTF": "ztf"})  # whose arrivals a trace is like


def read_hours(text: str) -> float:
    """Read hours, or a duration with its unit."""
    hours = read_duration_s(text + "h" if text.strip()[-1:].isdigit() else text) / 3600
    if not _LEAST_HOURS <= hours <= _MOST_HOURS:
        raise typer.BadParameter(f"a time from 36s to {_MOST_HOURS:,} hours is wanted here, not {text!r}")
    return hours


@tells_errors
def trace(
    shape: Shape = typer.Argument(..., metavar="lookup-service|ztf", help="Which system's arrivals it is like."),
    out: Path = option(..., "--out FILE", "Where to write it: Parquet if it ends in .parquet, else CSV."),
    hours: float = option("2", "--hours HOURS|TIME", "Time it covers (2, 90m, 7d).", parser=read_hours),
    seed: int = option(1, "--seed", "The same seed gives the same trace.", min=0),
    as_json: AsJson = False,
) -> None:
    """Write a trace of arrivals with the shape of a real system.

    lookup-service is perfSONAR's: hosts register records, renew them before
    their two-hour leases end, and delete them; low mean rate, bursts. Columns
    time_s, kind and record. ztf is a telescope's night: about 1000 alerts of
    20 to 70 KB within seconds, every 45 seconds. Columns time_s and bytes.

    \b
    Examples:
      clarion simulate trace lookup-service --hours 6 --out lookups.csv
      clarion simulate publisher --trace lookups.csv --trace-speed 50
      clarion simulate trace ztf --hours 1 --seed 7 --out night.parquet
    """
    with needing("generating traces needs numpy", "sim"):
        import numpy as np

        from clarion.sim.generated_traces import lookup_service_trace, ztf_trace
        from clarion.sim.traces import dispersion, mean_rate_per_s, write_trace
    generate = lookup_service_trace if shape is Shape.LOOKUP_SERVICE else ztf_trace
    columns = generate(np.random.default_rng(seed), hours)
    times_s = columns["time_s"]
    if not times_s.size:
        raise PermanentError("nothing arrives in so short a time; give more --hours")
    rows = write_trace(out, columns)
    told: dict[str, Any] = {
        "file": str(out),
        "arrivals": rows,
        "mean_rate_per_s": round(mean_rate_per_s(times_s), 4),
        "dispersion_10_s": round(dispersion(times_s, 10.0), 2) if times_s[-1] - times_s[0] >= 20 else None,
    }
    if as_json:
        print_json(told)
        return
    bursts = told["dispersion_10_s"]
    burstiness = "" if bursts is None else f"; index of dispersion over 10 s {bursts:g}"
    console().print(
        f"{out}: {counted(rows, 'arrival')}, {told['mean_rate_per_s']:g}/s on average{burstiness}", markup=False
    )


@tells_errors
def plot_trace(
    file: Path = typer.Argument(..., metavar="FILE", help="CSV of what a tuner did at each poll."),
    out: Path = option(..., "--out FILE", "Picture to write: .png, .svg or .pdf."),
    as_json: AsJson = False,
) -> None:
    """Draw what a tuner did: N, T_poll, load, capacity, pending and credit.

    The trace is a simulated publisher's (simulate publisher --trace-out) or a
    real one's: with Publisher(trace_samples=1000),
    trace_to_csv({"alerts": publisher.trace("alerts")}) gives its text;
    trace_to_csv is in clarion.publisher.tuner.

    \b
    Examples:
      clarion simulate publisher --steps table-ii --trace-out n.csv
      clarion simulate plot-trace n.csv --out n.png
    """
    with needing("drawing needs SimPy, numpy and matplotlib", "sim,plots"):
        from clarion.reproduce.publisher_figures import draw_trace
    if out.suffix.lower() not in _PICTURES:
        raise PermanentError(f"{out} is no picture: its name ends in {', '.join(_PICTURES)}")
    traces = _read_samples(file)
    with naming_option(out, "--out"):
        draw_trace(traces, out)
    polls = sum(len(trace) for trace in traces.values())
    if as_json:
        print_json({"file": str(out), "polls": polls, "publishers": list(traces)})
    else:
        console().print(f"{out}: {counted(polls, 'poll')} of {counted(len(traces), 'publisher')}", markup=False)


def _read_samples(file: Path) -> dict[str, list[Sample]]:
    from clarion.publisher.tuner import trace_from_csv

    try:
        traces = trace_from_csv(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PermanentError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PermanentError(f"{file} is not a tuner's trace: {error}") from error
    if not traces:
        raise PermanentError(f"{file} has no samples")
    return traces


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
    profile: str | None = option(None, "--profile", "Costs of the store: store-heavy (the default) or store-light."),
    load_per_s: float | None = option(None, "--load", "Messages a second, at random.", show_default="35"),
    steps: str | None = option(None, "--steps", "Loads over time instead: table-ii, or 0-100:1.75,100-300:55"),
    trace: Path | None = option(None, "--trace", "File of arrivals instead: CSV or Parquet, with time stamps."),
    trace_rate_per_s: float | None = option(None, "--trace-rate", "Scale the trace's gaps to this mean rate."),
    trace_speed: float | None = option(None, "--trace-speed", "Play the trace so many times as fast."),
    config: Path | None = option(None, "--config FILE", "TOML file of parameters by name; options win."),
    seed: int = option(1, "--seed", "The same seed gives the same run.", min=0),
    trace_out: Path | None = option(None, "--trace-out FILE", "Write what the tuner did at each poll, as CSV."),
    topics: str | None = option(None, "--topics", "Topics of the real client, before a broker: 2000, or 1,100,2000."),
    slow: str | None = option(None, "--slow", "With --topics: seconds in which a commit takes 2 s, like 5-8."),
    as_json: AsJson = False,
    **parameters: Any,
) -> None:
    """Run the model of a publisher, a broker and a subscriber once.

    Messages come to the publisher, are received by a worker, written to its store,
    read from there in batches as the real tuner decides, and sent to the broker,
    where a subscriber reads them. The response time is from arrival to that read.
    Times are written like 130ms or 2s. In a --config file a parameter has the name
    that --json prints under "parameters", and times are in seconds.

    With --topics it is another model, of the client as it is: what is put on so
    many topics, --load messages a second on all of them together, leaves in
    requests of many batches as the one tuner decides; the broker works so long
    for each request and each batch, and commits. Other options than --seconds,
    --tuning and --seed are refused. A row for each number of topics: messages put,
    requests, batches in each, messages in a batch, time from put to ack (median
    and 99 %, both without the time of --slow), T_poll at the end, the broker's
    time for a message, and how long after --slow half are as quick as before.

    \b
    Examples:
      clarion simulate publisher --profile store-light --load 35
      clarion simulate publisher --topics 1,100,2000 --load 5000
      clarion simulate publisher --topics 2000 --load 5000 --seconds 15s --slow 5-8
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
    asked = {name: value for name, value in asked.items() if value is not None}
    if topics is not None:
        if config is not None or trace_out is not None:
            raise PermanentError("with --topics there is no --config and no --trace-out")
        _run_topics(topics, slow, asked, seed, as_json=as_json)
        return
    if slow is not None:
        raise PermanentError("--slow is of the model with --topics")
    outcome, used = _run(asked, config, seed, trace_out)
    if as_json:
        print_json({**outcome.to_dict(), "parameters": used})
    else:
        _print(outcome)


def _run_topics(topics: str, slow: str | None, asked: dict[str, Any], seed: int, *, as_json: bool) -> None:
    with needing("simulating needs SimPy and numpy", "sim"):
        from clarion.sim.topics_simulation import TopicsModel, TopicsOutcome, simulate_topics
    if unused := sorted(set(asked) - {"load_per_s", "seconds", "tuning"}):
        raise PermanentError(f"with --topics there is no {', '.join(map(option_name, unused))}")
    if slow is not None:
        told = re.fullmatch(r"([0-9.]+)-([0-9.]+)", slow)
        try:
            from_s, until_s = map(float, told.groups() if told else ())
        except ValueError:
            raise PermanentError(f"--slow is from and to in seconds, like 5-8, not {slow!r}") from None
        asked = {**asked, "slow_from_s": from_s, "slow_until_s": until_s}
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", topics):
        raise PermanentError(f"--topics is whole numbers like 2000 or 1,100,2000, not {topics!r}")
    outcomes: list[TopicsOutcome] = []
    for count in topics.split(","):
        try:
            outcomes.append(simulate_topics(TopicsModel(topics=int(count), **asked), seed=seed))
        except ValueError as error:
            raise PermanentError(str(error)) from error
    if as_json:
        print_json({"runs": [outcome.to_dict() for outcome in outcomes]})
        return
    columns = ["topics", "put", "requests", "batches\neach", "in a\nbatch", "put to\nack", "99 %", "T_poll",
               "broker\neach", "back\nafter"]  # fmt: skip
    rows = [
        (
            f"{one.topics:,}", f"{one.messages:,}", f"{one.requests:,}", f"{one.batches_per_request:.1f}",
            f"{one.messages_per_batch:.2f}", f"{one.p50_ms:.1f} ms", f"{one.p99_ms:.1f} ms",
            f"{one.poll_interval_ms:.1f} ms", f"{one.broker_us:.0f} us",
            "" if one.recovered_s is None else f"{one.recovered_s:.1f} s",
        )
        for one in outcomes
    ]  # fmt: skip
    console().print(table_of(columns, rows, columns))


def _run(
    asked: dict[str, Any], config: Path | None, seed: int, trace_out: Path | None
) -> tuple[Outcome, dict[str, Any]]:
    with needing("simulating needs SimPy and numpy", "sim"):
        from clarion.sim import simulate
        from clarion.sim.parameters import FIELDS, arrivals_used, build_parameters, read_config
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
    with naming_option(file, "--trace-out"):
        file.write_text(trace_to_csv(traces), encoding="utf-8")


def _print(outcome: Outcome) -> None:
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
    screen = console()
    screen.print(table_of([f"tuning {outcome.tuning}, seed {outcome.seed}", ""], lines, [""]))
    if len(outcome.publishers) > 1:
        screen.print()
        _print_publishers(outcome)


def _shown_ms(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:,.0f} ms"


def _print_publishers(outcome: Outcome) -> None:
    columns = ["publisher", "delivered", "dropped", "response, mean", "N, mean"]
    means = [(_shown_ms(one.response_ms["mean"]), f"{one.batch_size_mean:.1f}") for one in outcome.publishers]
    rows = [
        (str(number), f"{one.delivered:,}", f"{one.dropped:,}", *means[number])
        for number, one in enumerate(outcome.publishers)
    ]
    screen = console()
    screen.print(table_of(columns, rows, columns[1:]))
    screen.print(
        f"\nJain's index: {outcome.jain_throughput:.3f} of throughput, {outcome.jain_response:.3f} of mean response;"
        f" the least has {outcome.least_share:.0%} of an even share"
    )


simulate_app.command("publisher")(with_options(_PARAMETERS)(publisher))
simulate_app.command("trace")(trace)
simulate_app.command("plot-trace")(plot_trace)


_REPRODUCE_HELP = """Run the experiments of the papers that Clarion follows.

\b
Example:
  clarion reproduce publisher --out out/publisher --quick
"""
reproduce_app = typer.Typer(help=_REPRODUCE_HELP, no_args_is_help=True)


@reproduce_app.callback()
def _reproduce() -> None:
    pass


@reproduce_app.command("publisher")
@tells_errors
def reproduce_publisher(
    out: Path = option(..., "--out DIR", "Folder for report.md, claims.json and figures."),
    trace: Path | None = option(None, "--trace FILE", "A trace of real arrivals to run too: CSV or Parquet."),
    quick: bool = option(False, "--quick", "Short runs, for a first look."),
    processes: int | None = option(
        None, "--processes", "Processes to run in.", min=1, max=1000, show_default="one a core"
    ),
    as_json: AsJson = False,
) -> None:
    """Run the tuned-publisher paper's experiments; draw its figures; judge its claims.

    Fixed and tuned N under four loads in two cost profiles, the steps of Table
    II, a slow subscriber, traces as they are and faster, the deployed T_poll of
    1000 ms, and several publishers on one broker. The report puts each claim
    of the paper beside what we see, for the algorithm as it is written and
    for ours. Without --trace, only the generated lookup-service trace is run.

    \b
    Examples:
      clarion reproduce publisher --out out/publisher --quick
      clarion reproduce publisher --out out/publisher --trace requests.csv
      clarion reproduce publisher --out out/publisher --json | jq .holds
    """
    with needing("reproducing needs SimPy, numpy and matplotlib", "sim,plots"):
        from clarion.reproduce.figure_style import draw_all
        from clarion.reproduce.publisher_experiments import FULL, QUICK, run_experiments
        from clarion.reproduce.publisher_figures import FIGURES
        from clarion.reproduce.publisher_report import make_report, write_report
    with naming_option(out, "--out", done="used", other="another folder"):
        out.mkdir(parents=True, exist_ok=True)
    if trace is None and not as_json:
        note("no --trace was given: the generated lookup-service trace stands in for a real one")
    with progress_of_runs(quiet=as_json) as on_done:
        results = run_experiments(QUICK if quick else FULL, trace=trace, on_done=on_done, processes=processes)
    report = make_report(results)
    write_report(report, results, out)
    draw_all(FIGURES, results, out)
    if as_json:
        print_json({**report.to_dict(), "folder": str(out)})
    else:
        _print_report(report, out)


@contextmanager
def progress_of_runs(what: str = "runs", *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Return who hears how many of how many runs are done, and shows it on a terminal."""
    from rich import progress

    screen = console(stderr=True)
    counts, times = progress.MofNCompleteColumn(), (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), counts, *times)
    with progress.Progress(*columns, console=screen, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def print_claims(columns: Sequence[str], rows: Iterable[Sequence[str]], report: Path) -> None:
    """Print what became of claims, and where the report is that says more."""
    screen = console()
    screen.print(table_of(columns, rows))
    screen.print(f"\nThe report, with what we see for each claim, is {report}; figures are beside it.", markup=False)


def _print_report(report: Report, out: Path) -> None:
    from clarion.reproduce.publisher_report import REPORT, summary_rows

    screen = console()
    columns = ["", "the paper's claim", "holds for", "store-heavy", "store-light"]
    screen.print(table_of(columns, summary_rows(report.claims)))
    held = sum(one.holds for one in report.reference)
    screen.print(f"\nWithin the reference model's range: {held} of {len(report.reference)} figures.")
    screen.print(
        f"The report, with what we see for each claim, is {out / REPORT}; figures are beside it.", markup=False
    )
