"""The publisher's control algorithm, as pure code: facts and time in, decisions out.

The real publisher and the simulator run these very lines. Each policy has a file of its own.
"""

from clarion.publisher.tuner.choosing import POLICIES, make_tuner
from clarion.publisher.tuner.settings import LAN, PAPER, TunerSettings
from clarion.publisher.tuner.tracing import Sample, trace_from_csv, trace_to_csv
from clarion.publisher.tuner.tuner import Publish, Tuner, Wait

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
