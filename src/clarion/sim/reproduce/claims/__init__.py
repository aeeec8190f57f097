"""The document's claims, each judged by what the runs gave; one file for each part of the document."""

from clarion.sim.reproduce.claims.claim import OFF, Claim, Verdict
from clarion.sim.reproduce.claims.judging import judge_all

__all__ = ["OFF", "Claim", "Verdict", "judge_all"]
