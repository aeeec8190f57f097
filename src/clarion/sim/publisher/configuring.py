"""Parameters put together from plain values by name, as a TOML file or a command line has them."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clarion.model.errors import BadSettings
from clarion.sim.publisher.arrivals import TABLE_II, Arrivals, Poisson, Step, Stepped, Traced, steps_from
from clarion.sim.publisher.parameters import PROFILES, Parameters

PROFILE = "profile"
DEFAULT_LOAD_PER_S = 35.0
# What the arrivals are made of: one of the kinds, and how a trace is scaled.
KINDS = ("load_per_s", "steps", "trace")
ARRIVALS = (*KINDS, "trace_rate_per_s", "trace_speed")
FIELDS = {known.name: known for known in dataclasses.fields(Parameters) if known.name != "arrivals"}
_KINDS = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "a text"),
}


def read_config(file: Path) -> dict[str, Any]:
    """Read a TOML file of parameters by name; what is unknown is refused."""
    try:
        found = tomllib.loads(file.read_text())
    except OSError as error:
        raise BadSettings(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSettings(f"{file} is not valid TOML: {error}") from error
    if unknown := sorted(set(found) - set(FIELDS) - {PROFILE, *ARRIVALS}):
        raise BadSettings(
            f"{file} has parameters that do not exist: {', '.join(unknown)}; there are {PROFILE},"
            f" {', '.join(ARRIVALS)}, {', '.join(FIELDS)}"
        )
    return found


def build_parameters(values: Mapping[str, Any], over: Mapping[str, Any] | None = None) -> Parameters:
    """Make parameters of values by name: a profile's, then `values`, then `over`."""
    merged = _merge(values, over or {})
    profile = merged.pop(PROFILE, None)
    if profile is not None and profile not in list(PROFILES):
        raise BadSettings(f"a profile is one of {', '.join(PROFILES)}; not {profile!r}")
    arrivals = {name: merged.pop(name) for name in ARRIVALS if name in merged}
    fields = {name: _convert(name, value) for name, value in merged.items()}
    try:
        return Parameters(arrivals=_arrivals(arrivals), **{**PROFILES.get(profile, {}), **fields})
    except ValueError as error:
        raise BadSettings(str(error)) from None


def arrivals_used(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Give what the arrivals of `build_parameters` were made of, as a TOML file has it."""
    merged = _merge(values, over)
    found = {name: merged[name] for name in ARRIVALS if name in merged}
    if "trace" in found:
        found["trace"] = str(found["trace"])
    if "steps" in found:
        found["steps"] = [list(step) for step in read_steps(found["steps"])]
    return found or {"load_per_s": DEFAULT_LOAD_PER_S}


def _merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    if any(name in over for name in KINDS):  # other arrivals altogether
        values = {name: value for name, value in values.items() if name not in ARRIVALS}
    return {**values, **over}


def read_steps(given: Any) -> tuple[Step, ...]:
    """Read steps: "table-ii", "0-100:1.75,100-300:55", or rows of start, end and load."""
    if given == "table-ii":
        return TABLE_II
    try:
        if isinstance(given, str):
            given = [[*span.split("-"), load] for span, load in (part.split(":") for part in given.split(","))]
        return steps_from(given)
    except (TypeError, ValueError):
        raise BadSettings(
            f"steps are table-ii, or seconds and loads like 0-100:1.75,100-300:55; not {given!r}"
        ) from None


def _arrivals(values: Mapping[str, Any]) -> Arrivals:
    kinds = [name for name in KINDS if name in values]
    if len(kinds) > 1:
        raise BadSettings(f"messages come by one of load_per_s, steps and trace; both {' and '.join(kinds)} are given")
    if "trace" in values:
        return _traced(values)
    if "trace_rate_per_s" in values or "trace_speed" in values:
        raise BadSettings("trace_rate_per_s and trace_speed scale a trace, and none is given")
    if "steps" in values:
        return Stepped(read_steps(values["steps"]))
    return Poisson(_number("load_per_s", values.get("load_per_s", DEFAULT_LOAD_PER_S)))


def _traced(values: Mapping[str, Any]) -> Traced:
    from clarion.sim.traces import read_trace

    if "trace_rate_per_s" in values and "trace_speed" in values:
        raise BadSettings("a trace is scaled by trace_rate_per_s or by trace_speed, not by both")
    if not isinstance(values["trace"], str | Path):
        raise BadSettings(f"trace is the name of a file, not {values['trace']!r}")
    times_s = read_trace(Path(values["trace"]))
    if "trace_rate_per_s" in values:
        return Traced.at_rate(times_s, _number("trace_rate_per_s", values["trace_rate_per_s"]))
    return Traced(times_s, _number("trace_speed", values.get("trace_speed", 1.0)))


def _convert(name: str, value: Any) -> Any:
    if name not in FIELDS:
        raise BadSettings(f"there is no parameter {name}")
    kind, told = _KINDS[str(FIELDS[name].type).removesuffix(" | None")]
    fits = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise BadSettings(f"{name} is {told}, not {value!r}")
    return kind(value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadSettings(f"{name} is a number, not {value!r}")
    return float(value)
