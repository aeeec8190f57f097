"""Traces of arrivals: reading and writing files of time stamps, scaling them, and generators of traces with the shape
of the systems that motivated the tuned publisher."""

from clarion.sim.traces.lookup_service import DELETE, REGISTER, RENEW, LookupService, lookup_service_trace
from clarion.sim.traces.reading import read_trace
from clarion.sim.traces.scaling import at_rate, dispersion, mean_rate_per_s, rate_over_time, sped_up
from clarion.sim.traces.writing import write_trace
from clarion.sim.traces.ztf import ZtfNights, ztf_trace

__all__ = [
    "DELETE",
    "REGISTER",
    "RENEW",
    "LookupService",
    "ZtfNights",
    "at_rate",
    "dispersion",
    "lookup_service_trace",
    "mean_rate_per_s",
    "rate_over_time",
    "read_trace",
    "sped_up",
    "write_trace",
    "ztf_trace",
]
