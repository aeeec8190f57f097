"""`clarion reproduce tracking`: the experiment of the message-tracking document, by a model and really."""

from __future__ import annotations

from pathlib import Path

from clarion.cli.command_errors import end_cleanly_on_sigterm, naming_option, needing, tells_errors
from clarion.cli.command_options import AsJson, option
from clarion.cli.model_commands import print_claims, progress_of_runs
from clarion.cli.output import print_json


@tells_errors
def reproduce_tracking(
    out: Path = option(..., "--out DIR", "Folder for report.md, report.json and figures."),
    seconds: float = option("10s", "--seconds TIME", "How long each real run puts messages."),
    rounds: int = option("1", "--rounds N", "Real runs with each way of tracking, in turns."),
    rate: int = option("5000", "--rate N", "Messages a second, of all publishers."),
    publishers: int = option("200", "--publishers N", "Publishers, on ten topics each."),
    subscribers: int = option("500", "--subscribers N", "Subscribers, of one topic each."),
    topics: int = option("500", "--topics N", "Topics."),
    persist_s: float = option("2s", "--persist TIME", "How often the broker saves what it notes: T_p."),
    really: bool = option(True, "--real/--no-real", "Run a broker and clients, too."),
    seed: int = option(1, "--seed", "The same seed gives the same topics.", min=0),
    as_json: AsJson = False,
) -> None:
    """Run the message-tracking document's experiment; draw its figures; judge its claims.

    One broker, 200 publishers, 500 subscribers, 500 topics, 5000 messages a
    second. The 21 configurations of its Table 2 by a model of the scheme as it
    is written: bytes a message, plain and compressed, forces a second, memory.
    Ours really: a broker without tracking, with log and with bloom, and the
    round trips of latency messages beside the load.

    It takes about a minute; where the machine does not keep up with the load,
    the report says so: give a lower --rate then.

    \b
    Examples:
      clarion reproduce tracking --out out/tracking
      clarion reproduce tracking --out out/tracking --seconds 5m --rounds 3
      clarion reproduce tracking --out out/tracking --rate 1000 --json
    """
    with needing("reproducing needs numpy and matplotlib", "tracking,plots"):
        from clarion.reproduce.figure_style import draw_all
        from clarion.reproduce.judged_claims import REPORT, summary_rows
        from clarion.reproduce.tracking_experiments import run_experiments
        from clarion.reproduce.tracking_figures import FIGURES
        from clarion.reproduce.tracking_model import Load
        from clarion.reproduce.tracking_report import make_report, write_report
    with naming_option(out, "--out", done="used", other="another folder"):
        out.mkdir(parents=True, exist_ok=True)
    end_cleanly_on_sigterm()
    load = Load(publishers, subscribers, topics, min(10, topics), float(rate), seed)
    with progress_of_runs("configurations and runs", quiet=as_json) as on_done:
        results = run_experiments(
            load, seconds=seconds, rounds=rounds, persist_s=persist_s, really=really, on_done=on_done
        )
    report = make_report(results)
    write_report(report, results, out)
    draw_all(FIGURES, results, out)
    if as_json:
        print_json({**report.to_dict(), "folder": str(out)})
    else:
        print_claims(["", "claim", "verdict"], summary_rows(report.claims), out / REPORT)
