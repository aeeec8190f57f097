"""Claims on a slow subscriber, and on several publishers at one broker."""

from __future__ import annotations

from functools import partial
from typing import Any

from clarion.sim.reproduce.cells import CONGESTED, FIXED, SEVERAL, SLOW, SLOW_SIZES, TUNED, Cell
from clarion.sim.reproduce.claims.claim import UNTUNED, Rule, Seen
from clarion.sim.reproduce.results import Results

_MANY_DROPS = 0.05
_FAIR = 0.95
_LEAST_SHARE = 0.8


def _drops_untuned(results: Results, profile: str, _policy: str) -> Seen:
    shares = {size: results.dropped_share(Cell(SLOW, profile, "", FIXED, size, False)) for size in SLOW_SIZES}
    text = "dropped at N = " + ", ".join(f"{size}: {100 * share:.1f} %" for size, share in shares.items())
    least = min(share for size, share in shares.items() if size >= 5)
    return Seen(text, least > _MANY_DROPS, {"dropped_share": {str(size): share for size, share in shares.items()}})


def _loses_nothing(gated: bool, results: Results, profile: str, policy: str) -> Seen:
    cell = Cell(SLOW, profile, "", policy, gated=gated)
    dropped, share = results.dropped(cell), results.dropped_share(cell)
    offered = sum(outcome.offered for outcome in results.of(cell))
    text = f"{dropped:,} of {offered:,} dropped ({100 * share:.1f} %)"
    return Seen(text, dropped == 0, {"dropped": dropped, "offered": offered, "share": share})


def _fair(experiment: str, results: Results, profile: str, policy: str) -> Seen:
    values: dict[str, Any] = {}
    for publishers in results.extent.publishers:
        outcomes = results.of(Cell(experiment, profile, str(publishers), policy))
        values[str(publishers)] = {
            "jain_throughput": min(one.jain_throughput for one in outcomes),
            "jain_response": min(one.jain_response for one in outcomes),
            "least_share": min(one.least_share for one in outcomes),
        }
    throughput, response, share = (
        min(value[name] for value in values.values()) for name in ("jain_throughput", "jain_response", "least_share")
    )
    text = f"Jain's index {throughput:.3f} of throughput, {response:.3f} of response; least share {share:.2f}"
    return Seen(text, min(throughput, response) >= _FAIR and share >= _LEAST_SHARE, values)


SLOW_RULES = (
    Rule(
        name="untuned-drops",
        figure="V.B.3",
        claim="Without tuning a slow subscriber ties up the workers, and requests are dropped.",
        judged_by="fixed N of 5 and more, without the credit gate, drops more than 5 %",
        policies=UNTUNED,
        look=_drops_untuned,
    ),
    Rule(
        name="no-loss-as-written",
        figure="V.B.3",
        claim="With tuning (as the document has it) a slow subscriber causes no losses.",
        judged_by="0 dropped, without our credit gate",
        policies=TUNED,
        look=partial(_loses_nothing, False),
    ),
    Rule(
        name="no-loss-gated",
        figure="ours",
        claim="With tuning and our credit gate a slow subscriber causes no losses.",
        judged_by="0 dropped, with the credit gate",
        policies=TUNED,
        look=partial(_loses_nothing, True),
    ),
)
SEVERAL_RULES = tuple(
    Rule(
        name=name,
        figure="VIII",
        claim=claim,
        judged_by=f"with any number of publishers and any seed, Jain's index is at least {_FAIR} and nobody has less"
        f" than {_LEAST_SHARE} of an even share",
        policies=TUNED,
        look=partial(_fair, experiment),
    )
    for name, experiment, claim in (
        ("fair", SEVERAL, "Several publishers on one broker are treated fairly."),
        ("fair-congested", CONGESTED, "Several publishers are treated fairly by a broker that cannot take it all."),
    )
)
