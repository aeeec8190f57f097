"""`clarion simulate workflow` and `reproduce workflow`: workflows in simulated time, and the paper's experiments."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clarion.cli.command_errors import naming_option, needing, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.model_commands import print_claims, progress_of_runs
from clarion.cli.output import console, print_json, table_of
from clarion.cli.workflow_options import Arrivals, File, WorkloadFile, read_consumers, read_workflow

if TYPE_CHECKING:
    from clarion.sim.workflow_simulation import WorkflowOutcome

_JOBS = 20_000


@tells_errors
def simulate_workflow(
    file: File,
    consumers: str = option("", "--consumers LIST", "Consumers by task, as A=2,B=1; a task not named has 1."),
    jobs: int | None = option(None, "--jobs N", "Run for the time in which so many jobs come.", show_default="20,000"),
    seconds: float | None = option(None, "--seconds TIME", "Simulated time to run for instead (3600, 2h)."),
    warm_up_s: float | None = option(
        None, "--warm-up TIME|none", "How much of it is not counted.", show_default="a tenth"
    ),
    replications: int = option("1", "--replications N", "Run it so many times, with other dice each time."),
    arrivals: Arrivals = 1.0,
    workload: WorkloadFile = None,
    seed: int = option(1, "--seed", "The same seed gives the same run.", min=0),
    as_json: AsJson = False,
) -> None:
    """Run a workflow in simulated time: the response by job type, and how busy its consumers are.

    Jobs come, wait at tasks, are served first come, first served, fork and join.
    Gaps between arrivals and service times are gamma distributed with the rates
    and scvs of the file. With too few consumers the queue grows for as long as
    the run: then jobs that are unfinished count with their age, and it says so.

    \b
    Examples:
      clarion simulate workflow flow.yaml --consumers A=2,B=2,C=2,D=3
      clarion simulate workflow flow.yaml --consumers A=2 --arrivals x1.5 --json
      clarion simulate workflow flow.yaml --workload w.yaml --seconds 8h
    """
    with needing("simulating needs SimPy, numpy and PyYAML", "sim"):
        from clarion.sim import workflow_simulation as simulation
    if jobs is not None and seconds is not None:
        raise typer.BadParameter("--jobs and --seconds are two ways to say how long: give one of them")
    workflow = read_workflow(file, workload, arrivals)
    given = read_consumers(consumers)
    seconds = seconds or (jobs or _JOBS) / simulation.arrivals_per_s(workflow)
    if warm_up_s is not None and warm_up_s >= seconds:
        raise typer.BadParameter(f"the run of {seconds:,.0f} s is over before --warm-up is")
    outcome = simulation.simulate_workflow(
        workflow, given, seed=seed, seconds=seconds, warm_up_s=warm_up_s, replications=replications
    )
    if as_json:
        print_json(outcome.to_dict())
    else:
        _print(outcome)


def _print(outcome: WorkflowOutcome) -> None:
    screen = console()
    columns = ["job type", "response, mean", "95 % confidence", "median", "95 %", "jobs"]
    rows = [
        (
            name, _shown_s(one.mean), "" if one.half_width is None else f"± {one.half_width:.3g} s",
            _shown_s(one.p50), _shown_s(one.p95), f"{one.count:,}",
        )
        for name, one in outcome.response_s_by_job.items()
    ]  # fmt: skip
    screen.print(table_of(columns, rows, columns[1:]))
    screen.print()
    columns = ["task", "consumers", "busy", "waiting, mean"]
    tasks = [
        (task, f"{count}", f"{outcome.utilisation[task]:.0%}", f"{outcome.queue[task]:,.2f}")
        for task, count in outcome.consumers.items()
    ]
    screen.print(table_of(columns, tasks, columns[1:]))
    screen.print(
        f"\nresponse of all jobs {_shown_s(outcome.response_s)}, work in progress {outcome.wip:,.2f},"
        f" seed {outcome.seed}, {outcome.seconds:,.0f} s of which {outcome.warm_up_s:,.0f} s to warm up"
    )
    if not outcome.stable:
        screen.print(
            f"unstable: more arrives than its consumers can do. {outcome.unfinished:,} jobs are unfinished, on average"
            f" {_shown_s(outcome.unfinished_age_s)} old; they count with their age, and it grows with the run."
        )


def _shown_s(value: float) -> str:
    return "none" if math.isnan(value) else f"{value:,.3g} s" if value < 100 else f"{value:,.0f} s"


@tells_errors
def reproduce_workflow(
    out: Path = option(..., "--out DIR", "Folder for report.md, report.json and figures."),
    quick: bool = option(False, "--quick", "Short runs, for a first look."),
    processes: int | None = option(
        None, "--processes", "Processes to run in.", min=1, max=1000, show_default="one a core"
    ),
    really: bool | None = option(
        None, "--real/--no-real", "Run it with real processes, too.", show_default="unless --quick"
    ),
    seconds_per_minute: float = option(
        1.0, "--seconds-per-minute", "How long a minute takes in what is really run.", min=0.1, max=60
    ),
    as_json: AsJson = False,
) -> None:
    """Run the elastic-workflows paper's experiments; draw its figures; judge its claims.

    Work in progress and response as consumers are added by MinTime, MinCost
    and at random; response by arrival rate; a burst that the real monitor,
    planner and scheduler answer: by the model, in simulated time, and by really
    running it, with a broker and worker processes whose handlers sleep. Beyond
    the paper: how far approximations of a queue are off, and KEDA's rule of
    queue length.

    All of it takes about a quarter of an hour on two cores, of which ten
    minutes are real runs; leave the machine to them. --quick takes less than a
    minute, or two with --real: then one burst is really run.

    \b
    Examples:
      clarion reproduce workflow --out out/workflow --quick
      clarion reproduce workflow --out out/workflow --no-real
      clarion reproduce workflow --out out/workflow --json | jq .holds
    """
    with needing("reproducing needs SimPy, numpy, PyYAML and matplotlib", "sim,plots"):
        from clarion.reproduce.figure_style import draw_all
        from clarion.reproduce.workflow_experiments import FULL, QUICK, add_real_runs, run_experiments
        from clarion.reproduce.workflow_figures import FIGURES
        from clarion.reproduce.workflow_report import REPORT, make_report, summary_rows, write_report
    with naming_option(out, "--out", done="used", other="another folder"):
        out.mkdir(parents=True, exist_ok=True)
    with progress_of_runs(quiet=as_json) as on_done:
        results = run_experiments(QUICK if quick else FULL, on_done=on_done, processes=processes)
    if really or (really is None and not quick):
        from clarion.reproduce.workflow_real_runs import run_really

        with progress_of_runs("real runs", quiet=as_json) as on_done:
            results = add_real_runs(results, run_really, seconds_per_minute, on_done)
    report = make_report(results)
    write_report(report, results, out)
    draw_all(FIGURES, results, out)
    if as_json:
        print_json({**report.to_dict(), "folder": str(out)})
    else:
        print_claims(["", "claim", "holds by"], summary_rows(report.claims), out / REPORT)
