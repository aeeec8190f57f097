"""All claims, in the document's order."""

from __future__ import annotations

from clarion.sim.reproduce.claims.adapting import STEP_RULES
from clarion.sim.reproduce.claims.claim import Claim
from clarion.sim.reproduce.claims.congestion import SEVERAL_RULES, SLOW_RULES
from clarion.sim.reproduce.claims.loads import LOAD_RULES
from clarion.sim.reproduce.claims.traced import DEPLOYED_RULES, trace_rules
from clarion.sim.reproduce.results import Results


def judge_all(results: Results) -> list[Claim]:
    """Judge every claim by what the runs gave."""
    traced = [rule for work in results.workloads.values() for rule in trace_rules(work)]
    rules = [*LOAD_RULES, *STEP_RULES, *SLOW_RULES, *traced, *DEPLOYED_RULES, *SEVERAL_RULES]
    return [rule.judge(results) for rule in rules]
