"""`make scaling`: the reliable-service document's two experiments and its memory figure, with plots.

Subscriber scaling: 5000 messages to 1 … 200 subscribers. Message scaling: 100 subscribers, 1000 … 20,000 messages.
Every subscriber checks that it got every message once and in order. Memory: a broker under load on more topics than it
keeps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.processes import Role, running_broker

SUBSCRIBERS = (1, 2, 5, 10, 20, 50, 100, 150, 200)
MESSAGES = (1000, 2000, 5000, 10_000, 15_000, 20_000)
READER_PROCESSES = 2


def deliver(subscribers: int, messages: int) -> float:
    """Put messages while subscribers get them; give the seconds from the first put to the last get."""
    with running_broker() as broker:
        names = [f"reader-{number}" for number in range(subscribers)]
        shares = [share for start in range(READER_PROCESSES) if (share := names[start::READER_PROCESSES])]
        readers = [Role("fan_in", broker.url, topic="t", names=share, count=messages).ready() for share in shares]
        writer = Role("put", broker.url, topic="t", count=messages, size=100).ready()
        for reader in readers:
            reader.go()
        writer.go()
        begin = writer.result()["begin"]
        return float(max(reader.result()["end"] for reader in readers) - begin)


def memory_over_time(seconds: float, topics: int, topics_in_memory: int) -> list[tuple[float, float]]:
    """Load a broker with more topics than it keeps in memory, then leave it alone; give (s, MB) over time."""
    samples: list[tuple[float, float]] = []
    with running_broker(max_topics_in_memory=topics_in_memory, topic_unload_interval_s=2) as broker:
        reader = Role("read_all", broker.url, topics=topics, seconds=seconds).ready()
        writer = Role("load", broker.url, topics=topics, seconds=seconds, size=200).ready()
        begin = time.perf_counter()
        reader.go()
        writer.go()
        while time.perf_counter() - begin < 1.5 * seconds:
            samples.append((time.perf_counter() - begin, broker.memory_bytes() / 1e6))
            time.sleep(0.2)
        reader.result()
        writer.result()
    return samples


def line_through(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Fit seconds = a + b * deliveries by least squares; give a, b and the share of variance it explains."""
    fit = statistics.linear_regression([x for x, _ in points], [y for _, y in points])
    explained = statistics.correlation([x for x, _ in points], [y for _, y in points]) ** 2
    return fit.intercept, fit.slope, explained


def main() -> None:
    """Run the experiments, draw the plots, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/scaling"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-seconds", type=float, default=20)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    by_subscribers: dict[int, list[float]] = {}
    by_messages: dict[int, list[float]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("scaling", total=options.rounds * (len(SUBSCRIBERS) + len(MESSAGES)))
        for _ in range(options.rounds):
            for subscribers in SUBSCRIBERS:
                by_subscribers.setdefault(subscribers, []).append(deliver(subscribers, 5000))
                progress.advance(task)
            for messages in MESSAGES:
                by_messages.setdefault(messages, []).append(deliver(100, messages))
                progress.advance(task)
    memory = memory_over_time(options.memory_seconds, topics=2000, topics_in_memory=500)
    report(options.out, by_subscribers, by_messages, memory)


def report(
    out: Path,
    by_subscribers: dict[int, list[float]],
    by_messages: dict[int, list[float]],
    memory: list[tuple[float, float]],
) -> None:
    """Write plots and figures, and print what was seen."""
    first = [(n * 5000.0, statistics.median(taken)) for n, taken in by_subscribers.items()]
    second = [(100.0 * n, statistics.median(taken)) for n, taken in by_messages.items()]
    table = Table("experiment", "deliveries", "seconds", "µs a delivery", title="Scaling (median of rounds)")
    for n, (deliveries, seconds) in zip(by_subscribers, first, strict=True):
        table.add_row(f"{n} subscribers", f"{deliveries:,.0f}", f"{seconds:.3f}", f"{1e6 * seconds / deliveries:.2f}")
    for n, (deliveries, seconds) in zip(by_messages, second, strict=True):
        table.add_row(f"{n:,} messages", f"{deliveries:,.0f}", f"{seconds:.3f}", f"{1e6 * seconds / deliveries:.2f}")
    console = Console()
    console.print(table)
    found: dict[str, Any] = {"memory_megabytes_highest": max(megabytes for _, megabytes in memory)}
    for name, points in (("subscribers", first), ("messages", second)):
        fixed_s, slope_s, explained = line_through(points)
        found[name] = {"fixed_s": fixed_s, "us_a_delivery": 1e6 * slope_s, "explained": explained, "points": points}
        console.print(
            f"{name}: {fixed_s:.3f} s and {1e6 * slope_s:.2f} µs a delivery explain {explained:.1%} of the variance"
        )
    console.print(f"memory under load: at most {found['memory_megabytes_highest']:.0f} MB")
    console.print("validity: every subscriber got every message once, in order")
    (out / "scaling.json").write_text(json.dumps(found, indent=1))
    draw(out, by_subscribers, by_messages, memory)
    console.print(f"plots are in {out}")


def draw(
    out: Path,
    by_subscribers: dict[int, list[float]],
    by_messages: dict[int, list[float]],
    memory: list[tuple[float, float]],
) -> None:
    """Draw the document's figures 5, 6 and 2."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    for file, title, label, points in (
        ("subscribers.png", "5000 messages to n subscribers", "subscribers", by_subscribers),
        ("messages.png", "n messages to 100 subscribers", "messages", by_messages),
    ):
        figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
        places = sorted(points)
        middle = [statistics.median(points[place]) for place in places]
        axes.fill_between(places, [min(points[p]) for p in places], [max(points[p]) for p in places], alpha=0.2)
        axes.plot(places, middle, marker="o", label="first put to last get (median, lowest to highest)")
        axes.set(title=title, xlabel=label, ylabel="seconds", xlim=(0, None), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(out / file, dpi=120)
        pyplot.close(figure)
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot([second for second, _ in memory], [megabytes for _, megabytes in memory])
    axes.axvline(memory[-1][0] / 1.5, color="grey", linestyle="--", label="load ends")
    axes.set(title="Memory of the broker over time", xlabel="seconds", ylabel="resident MB", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out / "memory.png", dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
