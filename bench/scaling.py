"""`make scaling`: the two experiments of *Reliable Publisher/Subscriber Service* and its memory figure, with plots.

Subscriber scaling: 5000 messages to 1 … 200 subscribers. Message scaling: 100 subscribers, 1000 … 20,000 messages.
Every subscriber checks that it got every message once and in order. Memory: a broker under load on more topics than it
keeps. What was measured goes to scaling.json, and `--redraw` draws the plots of it again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from matplotlib.ticker import FuncFormatter
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.machine import describe, in_a_line
from bench.processes import Client, running_broker
from clarion.reproduce.figure_style import COLOURS, saved

SUBSCRIBERS = (1, 2, 5, 10, 20, 50, 100, 150, 200)
MESSAGES = (1000, 2000, 5000, 10_000, 15_000, 20_000)
READER_PROCESSES = 2
TOPICS, TOPICS_IN_MEMORY = 2000, 500  # of the memory's run
AFTERWARDS = 0.25  # of the load's time, for which the broker is watched when it is left alone


def deliver(subscribers: int, messages: int) -> float:
    """Put messages while subscribers get them; return the seconds from the first put to the last get."""
    with running_broker() as broker:
        names = [f"reader-{number}" for number in range(subscribers)]
        shares = [share for start in range(READER_PROCESSES) if (share := names[start::READER_PROCESSES])]
        readers = [Client("fan_in", broker.url, topic="t", names=share, count=messages).ready() for share in shares]
        writer = Client("put", broker.url, topic="t", count=messages, size=100).ready()
        for reader in readers:
            reader.go()
        writer.go()
        begin = writer.result()["begin"]
        return float(max(reader.result()["end"] for reader in readers) - begin)


def memory_over_time(seconds: float) -> list[tuple[float, float]]:
    """Load a broker with more topics than it keeps in memory, then leave it alone; return (s, MB) over time."""
    samples: list[tuple[float, float]] = []
    with running_broker(max_topics_in_memory=TOPICS_IN_MEMORY, topic_unload_interval_s=2) as broker:
        reader = Client("read_all", broker.url, topics=TOPICS, seconds=seconds).ready()
        writer = Client("load", broker.url, topics=TOPICS, seconds=seconds, size=200).ready()
        begin = time.perf_counter()
        reader.go()
        writer.go()
        while (passed_s := time.perf_counter() - begin) < (1 + AFTERWARDS) * seconds:
            samples.append((round(passed_s, 2), round(broker.memory_bytes() / 1e6, 1)))
            time.sleep(seconds / 150)
        reader.result()
        writer.result()
    return samples


def line_through(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Fit seconds = a + b * deliveries by least squares; return a, b and the share of variance it explains."""
    fit = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    explained = statistics.correlation([x for x, _ in points], [y for _, y in points]) ** 2
    return fit.intercept, fit.slope, explained


def main() -> None:
    """Run the experiments, draw the plots, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/scaling"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-seconds", type=float, default=240)
    parser.add_argument("--only", choices=["deliveries", "memory"], help="measure only these, and keep the others")
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "scaling.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() and (options.only or options.redraw) else {}
    if not options.redraw:
        machine = describe()
        if options.only != "memory":
            found["deliveries"] = {"machine": machine, **measure_deliveries(options.rounds)}
        if options.only != "deliveries":
            samples = memory_over_time(options.memory_seconds)
            found["memory"] = {"machine": machine, "load_s": options.memory_seconds, "samples": samples}
        file.write_text(json.dumps(found) + "\n")
    report(options.out, found)


def measure_deliveries(rounds: int) -> dict[str, Any]:
    """Run both experiments; return the seconds of each round by subscribers, and by messages."""
    by_subscribers: dict[int, list[float]] = {}
    by_messages: dict[int, list[float]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("scaling", total=rounds * (len(SUBSCRIBERS) + len(MESSAGES)))
        for _ in range(rounds):
            for subscribers in SUBSCRIBERS:
                by_subscribers.setdefault(subscribers, []).append(round(deliver(subscribers, 5000), 4))
                progress.advance(task)
            for messages in MESSAGES:
                by_messages.setdefault(messages, []).append(round(deliver(100, messages), 4))
                progress.advance(task)
    return {"subscribers": list(by_subscribers.items()), "messages": list(by_messages.items())}


def report(out: Path, found: dict[str, Any]) -> None:
    """Draw the plots, and print what was seen."""
    console = Console()
    if "deliveries" in found:
        first = [(n * 5000.0, statistics.median(taken)) for n, taken in found["deliveries"]["subscribers"]]
        second = [(100.0 * n, statistics.median(taken)) for n, taken in found["deliveries"]["messages"]]
        table = Table("experiment", "deliveries", "seconds", "µs a delivery", title="Scaling (median of rounds)")
        for what, points in (("messages to n subscribers", first), ("n messages to 100 subscribers", second)):
            for deliveries, seconds in points:
                each_us = 1e6 * seconds / deliveries
                table.add_row(what, f"{deliveries:,.0f}", f"{seconds:.3f}", f"{each_us:.2f}")
        console.print(table)
        for name, points in (("subscribers", first), ("messages", second)):
            fixed_s, slope_s, explained = line_through(points)
            console.print(
                f"{name}: {fixed_s:.3f} s and {1e6 * slope_s:.2f} µs a delivery explain {explained:.1%} of the variance"
            )
        console.print("validity: every subscriber got every message once, in order")
        draw_deliveries(out, found["deliveries"])
    if "memory" in found:
        highest = max(megabytes for _, megabytes in found["memory"]["samples"])
        console.print(f"memory under load: at most {highest:.0f} MB")
        draw_memory(out, found["memory"])
    console.print(f"plots are in {out}")


def draw_deliveries(out: Path, found: dict[str, Any]) -> None:
    """Draw figures 5 and 6 of the reliable service: how long deliveries take as they grow, beside growth in a line."""
    for file, title, label in (
        ("subscribers.png", "5,000 messages of 100 B, each to n subscribers", "subscribers"),
        ("messages.png", "n messages of 100 B, each to 100 subscribers", "messages"),
    ):
        points = dict(found[label])
        places = sorted(points)
        middle = [statistics.median(points[place]) for place in places]
        lowest, highest = ([pick(points[place]) for place in places] for pick in (min, max))
        fixed_s, slope_s, _ = line_through(list(zip(map(float, places), middle, strict=True)))
        with saved(out / file, size=(7.6, 4.4), footer=in_a_line(found["machine"])) as (_, ((axes,),)):
            axes.fill_between(places, lowest, highest, color=COLOURS["recheck"], alpha=0.2)
            rounds = len(points[places[0]])
            seen = f"put to the last get, every get acked (median of {rounds} rounds, lowest to highest)"
            axes.plot(places, middle, marker="o", color=COLOURS["recheck"], label=seen)
            line = [fixed_s + slope_s * place for place in places]
            axes.plot(
                places, line, "--", color="black", linewidth=1, label="in proportion: the straight line through it"
            )
            axes.set(title=title, xlabel=label, ylabel="seconds from first put to last get", xlim=(0, None))
            axes.set_ylim(0, 1.25 * max(highest))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.0f}"))
            axes.legend(frameon=False, loc="upper left")


def draw_memory(out: Path, found: dict[str, Any]) -> None:
    """Draw figure 2 of the reliable service: the broker's memory under load, and after."""
    seconds, megabytes = zip(*found["samples"], strict=True)
    with saved(out / "memory.png", size=(7.6, 4.4), footer=in_a_line(found["machine"])) as (_, ((axes,),)):
        axes.plot(seconds, megabytes, color=COLOURS["recheck"])
        axes.axvline(found["load_s"], color="grey", linestyle="--", linewidth=1)
        axes.annotate("load ends", (found["load_s"], 0), (-4, 6), textcoords="offset points", ha="right", color="grey")
        axes.set(
            title=f"Memory of a broker: messages of 200 B to {TOPICS:,} topics as fast as they go,\n"
            f"{TOPICS_IN_MEMORY} topics kept in memory (max_topics_in_memory)",
            xlabel="seconds", ylabel="resident MB", xlim=(0, None), ylim=(0, 1.15 * max(megabytes)),
        )  # fmt: skip


if __name__ == "__main__":
    main()
