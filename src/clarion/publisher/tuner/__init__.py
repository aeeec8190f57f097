"""The publisher's control algorithm, as pure code: facts and time in, decisions out.

The real publisher and the simulator run these very lines.
"""

from clarion.publisher.tuner.tuner import LAN, PAPER, Publish, Tuner, TunerSettings, Wait
from clarion.publisher.tuner.tuner_policies import POLICIES, make_tuner
from clarion.publisher.tuner.tuner_trace import Sample, trace_from_csv, trace_to_csv

__all__ = [
    "LAN",
    "PAPER",
    "POLICIES",
    "Publish",
    "Sample",
    "Tuner",
    "TunerSettings",
    "Wait",
    "make_tuner",
    "trace_from_csv",
    "trace_to_csv",
]
