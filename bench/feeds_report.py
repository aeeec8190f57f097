"""The report of `bench.feeds`: tables. `python -m bench.feeds_report FOLDER` writes it again."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.machine import in_a_line
from bench.peers.report import markdown, number

Round = dict[str, Any]
ROWS = {
    "independent": "independent pollers",
    "lite": "**nodes, Lite**",
    "fast": "nodes, Fast",
    "killed": "nodes, Lite, four of them killed at the beginning",
}


def write_report(results: dict[str, Any], out: Path) -> None:
    """Write feeds.md into a folder."""
    parts = ["# Feeds: nodes that share polls, beside independent pollers"]
    if results["quick"]:
        parts.append("**A quick run: short, and not far.**")
    if results["rounds"]:
        parts += _detection(results["rounds"], results["extent"])
    if results["rest"]:
        parts += _rest(results["rest"], results["extent"])
    parts += ["## Machine", f"{in_a_line(results['machine'])}. {_idle(results)}"]
    (out / "feeds.md").write_text("\n\n".join(parts) + "\n")


def _detection(rounds: list[Round], extent: dict[str, Any]) -> list[str]:
    tau_s, (least_s, most_s) = extent["interval_s"], extent["changes_s"]
    often = "one round" if len(rounds) == 1 else f"{len(rounds)} rounds"
    rows = [[title, *_row(name, rounds)] for name, title in ROWS.items()]
    head = ["who polls", "detection, mean, s", "p95, s", "longest, s", "tau / 2n, s", "times faster", "requests/s",
            "load in ratio", "KB/s", "in ratio", "changes", "lost", "twice"]  # fmt: skip
    lite = _ratios(rounds, "lite", _mean_s)
    return [
        f"{extent['channels']} channels (RSS, Atom and HTML in equal parts, twenty items each), each of which "
        f"changes every {least_s:g} to {most_s:g} s at moments of its own; {extent['subscriptions']:,} subscriptions, "
        f"Zipf 0.5; every poller asks each tau = {tau_s:g} s, with ETags. Sixteen nodes in four processes, one broker, "
        f"one web server, all on loopback; {often} of {extent['seconds']:g} s each, one after the other with the same "
        "subscriptions. To do it again: `make bench-feeds`.",
        f"Detection is the time from a change at the server until a durable subscriber has the delta; of independent "
        f"pollers, until the subscriber's own poll is answered. Means are over subscriptions. By Lite it is "
        f"**{lite:.1f} times shorter at {_load(rounds, 'lite'):.2f} of the requests**. Figures are medians over the "
        "rounds; ratios are taken within a round. Load is what the server counts: requests, and bytes of bodies.",
        markdown(head, rows),
        f"Of Lite's time, {1e3 * _median(rounds, 'lite', _told_s):.0f} ms pass from the answer that shows a change "
        "until its delta is there: read, compared, committed with fsync, delivered. "
        f"Pollers of a channel, and of how many channels: Lite {_pollers(rounds, 'lite')}; Fast with a target of "
        f"{rounds[0]['target_s']:g} s {_pollers(rounds, 'fast')}; after the kill {_pollers(rounds, 'killed')}. "
        "Lost and twice: items that no delta told of, and those that came again; versions that were not 1, 2, 3, …: "
        f"{sum(one[name]['gaps'] for one in rounds for name in ('lite', 'killed', 'fast'))}. "
        f"Processor, of one core: {_cpu(rounds)}.",
    ]


def _mean_s(found: Round) -> float:
    return float(found["delivered"]["mean_s"])


def _told_s(found: Round) -> float:
    return float(found["delivered"]["mean_s"] - found["found"]["mean_s"])


def _median(rounds: list[Round], name: str, of: Callable[[Round], float]) -> float:
    return statistics.median(of(one[name]) for one in rounds)


def _ratios(rounds: list[Round], name: str, of: Callable[[Round], float]) -> float:
    """Return how many times less a figure is than that of independent pollers."""
    return statistics.median(of(one["independent"]) / of(one[name]) for one in rounds)


def _load(rounds: list[Round], name: str, figure: str = "requests_per_s") -> float:
    return 1 / _ratios(rounds, name, lambda found: float(found[figure]))


def _row(name: str, rounds: list[Round]) -> list[str]:
    figures = [_median(rounds, name, _mean_s), _median(rounds, name, lambda found: found["delivered"]["p95_s"])]
    figures += [max(one[name]["delivered"]["longest_s"] for one in rounds)]
    figures += [_median(rounds, name, lambda found: found["formula_s"])]
    is_alone = name == "independent"
    return [
        *(number(one) for one in figures),
        "" if is_alone else f"{_ratios(rounds, name, _mean_s):.1f}",
        number(_median(rounds, name, lambda found: found["requests_per_s"])),
        "" if is_alone else f"{_load(rounds, name):.2f}",
        number(_median(rounds, name, lambda found: found["bytes_per_s"] / 1e3)),
        "" if is_alone else f"{_load(rounds, name, 'bytes_per_s'):.2f}",
        f"{sum(one[name]['changes'] for one in rounds):,}",
        str(sum(one[name]["lost"] for one in rounds)),
        "" if is_alone else str(sum(one[name]["doubled"] for one in rounds)),
    ]


def _pollers(rounds: list[Round], name: str) -> str:
    return ", ".join(f"{pollers}: {channels}" for pollers, channels in rounds[0][name]["levels"].items())


def _cpu(rounds: list[Round]) -> str:
    shares = {
        "all nodes": _median(rounds, "lite", lambda found: found["cpu"]["nodes"]),
        "broker": _median(rounds, "lite", lambda found: found["cpu"]["broker"]),
        "independent pollers": _median(rounds, "independent", lambda found: found["cpu"]["pollers"]),
    }
    return ", ".join(f"{name} {share:.0%}" for name, share in shares.items())


def _idle(results: dict[str, Any]) -> str:
    idle = [one[name]["machine_idle"] for one in results["rounds"] for name in ("lite", "fast")]
    told = f"Load of the machine before: {results['load_before']:g}."
    return told + (
        f" It was idle for {min(idle):.0%} to {max(idle):.0%} of the time while nodes polled." if idle else ""
    )


def _rest(rest: dict[str, Any], extent: dict[str, Any]) -> list[str]:
    many, resting = f"{extent['many']:,}", f"{extent['resting']:,}"
    rows = [
        [f"sixteen nodes at rest, {resting} channels, tau 1800 s, a beat every 2 s: broker", _share(rest, "broker_s")],
        ["the same: a process with four of the nodes", _share(rest, "process_s")],
        ["one more subscription: processor time of the broker, of such a process",
         _both(rest["look"])],
        ["memory of such a process, of the broker",
         f"{rest['memory_megabytes']:.0f} MB, {rest['broker_megabytes']:.0f} MB"],
        [f"{many} channels: subscriptions a second, sixteen at a time", number(rest["subscribed_per_s"])],
        [f"{many} channels: a node alone starts, until it has its schedule", f"{rest['first']['scheduled_s']:.1f} s"],
        ["the same, until it has polled each once", f"{rest['first']['polled_s']:.0f} s"],
        ["the same, where all versions are known", f"{rest['again']['scheduled_s']:.1f} s"],
        ["memory of that node, of the broker",
         f"{rest['again']['memory_megabytes']:.0f} MB, {rest['many_broker_megabytes']:.0f} MB"],
        ["one more subscription then: processor time of the broker, of the node",
         _both(rest["many_look"])],
    ]  # fmt: skip
    return ["## At rest, and at a start", markdown(["what", "takes"], rows)]


def _both(look: dict[str, float]) -> str:
    """Tell processor times, which are differences and may be less than what else varies."""
    return ", ".join(f"{max(0.0, 1e3 * look[name]):.0f} ms" for name in ("broker_s", "process_s"))


def _share(rest: dict[str, Any], name: str) -> str:
    return f"{rest['rest'][name]:.1%} of a core"


if __name__ == "__main__":
    write_report(json.loads((Path(sys.argv[1]) / "feeds.json").read_text()), Path(sys.argv[1]))
