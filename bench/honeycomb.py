"""How long polling levels take to choose for 100,000 and 1,000,000 channels: `python -m bench.honeycomb`."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from clarion.feeds.honeycomb import (
    Channels,
    Clusters,
    Scheme,
    choose_levels,
    clusters_of,
    decide_alone,
    describe,
    wedge_sizes,
)
from clarion.sim.feeds_simulation import FeedsModel, make_workload

_NODES, _BASE, _INTERVAL_S, _TARGET_S = 1024, 16, 1800.0, 30.0
_WANTED_S = {100_000: 0.2, 1_000_000: 2.0}
_WANTED = {
    Scheme.LITE: {"by_subscription": "40.4 +- 1", "by_channel": "63.3 +- 1", "load": "50.0"},
    Scheme.FAST: {"by_subscription": "30.0 +- 0.1", "load": "55.3 +- 0.3"},
}


def median_s(rounds: int, work: Callable[[], object]) -> float:
    """Return how long some work takes: the median of several times, after one that does not count."""
    work()
    took = []
    for _ in range(rounds):
        begin_s = time.perf_counter()
        work()
        took.append(time.perf_counter() - begin_s)
    return statistics.median(took)


def main() -> None:
    """Plan several times, and print medians with what is wanted beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, nargs="+", default=list(_WANTED_S))
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    found: dict[str, object] = {"nodes": _NODES, "base": _BASE, "poll_interval_s": _INTERVAL_S}
    for count in asked.channels:
        channels = make_workload(FeedsModel(channels=count, subscriptions=50 * count)).channels
        for scheme in Scheme:
            found[f"{count} {scheme}"] = measured(channels, scheme, asked.rounds)
    print(json.dumps(found, indent=2))


def measured(channels: Channels, scheme: Scheme, rounds: int) -> dict[str, object]:
    """Return the time and the figures of one scheme, decided in one place and by nodes alone."""
    target_s = _TARGET_S if scheme is Scheme.FAST else None
    ring = (_NODES, _BASE, _INTERVAL_S, scheme, target_s)
    plan = choose_levels(channels, *ring)
    clusters = clusters_of(channels, scheme)
    levels = decide_alone(channels, clusters, *ring, Clusters(scheme))
    alone = describe(channels, levels, wedge_sizes(_NODES, _BASE), _INTERVAL_S, scheme, plan.bound)
    return {
        "took_s": round(median_s(rounds, lambda: choose_levels(channels, *ring)), 4),
        "took_s_wanted": _WANTED_S.get(len(channels.subscribers)),
        "by_subscription": round(plan.detection_s_by_subscription, 3),
        "by_channel": round(plan.detection_s_by_channel, 3),
        "load": round(plan.bandwidth, 4),
        "budget": round(plan.budget, 4),
        "gap": float(f"{plan.gap_to_bound:.2g}"),
        "wanted": {"gap": "< 1e-4", **_WANTED.get(scheme, {})},
        "alone": {
            "clusters": len(clusters.clusters),
            "clusters_bytes": len(clusters.encode()),
            "by_subscription": round(alone.detection_s_by_subscription, 3),
            "load": round(alone.bandwidth, 4),
            "gap": float(f"{alone.gap_to_bound:.2g}"),
        },
    }


if __name__ == "__main__":
    main()
