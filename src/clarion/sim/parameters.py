"""What a run is made of: when messages come, the parameters of the model, and how both are made of plain values."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from clarion.model.errors import BadSettings
from clarion.model.ids import MAX_BATCH_MESSAGES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from clarion.publisher.tuner import TunerSettings

    Times: TypeAlias = npt.NDArray[np.float64]


class Step(NamedTuple):
    """A time of constant load."""

    start_s: float
    end_s: float
    load_per_s: float


# The tuned-publisher paper's Table II, in seconds.
TABLE_II = (Step(0, 100, 1.75), Step(100, 300, 55.0), Step(300, 500, 17.5), Step(500, 750, 35.0), Step(750, 1000, 17.5))


@dataclass(frozen=True, slots=True)
class Poisson:
    """Messages come independently of each other, at a mean rate, for as long as the run is."""

    load_per_s: float
    duration_s: float | None = None

    def __post_init__(self) -> None:
        _check_load(self.load_per_s)

    def times_s(self, dice: np.random.Generator, until_s: float) -> Times:
        """Draw the times of arrival before `until_s`."""
        return _poisson(dice, Step(0.0, until_s, self.load_per_s))

    def expected(self, until_s: float) -> float:
        """Return how many messages are to be expected before `until_s`."""
        return self.load_per_s * until_s

    def share(self, publisher: int, publishers: int) -> Arrivals:
        """Return what comes to one of several publishers: the same load to each."""
        return self


@dataclass(frozen=True, slots=True)
class Stepped:
    """As `Poisson`, with a load that changes; before, between and after the steps nothing comes."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        end_s = 0.0
        if not self.steps:
            raise ValueError("there is at least one step")
        for step in self.steps:
            _check_load(step.load_per_s)
            if not end_s <= step.start_s < step.end_s < math.inf:
                raise ValueError("steps begin at 0 or later, end after they began, and follow one another")
            end_s = step.end_s

    @property
    def duration_s(self) -> float:
        """When the last step ends."""
        return self.steps[-1].end_s

    def times_s(self, dice: np.random.Generator, until_s: float) -> Times:
        """Draw the times of arrival before `until_s`."""
        import numpy as np

        times_s = np.concatenate([_poisson(dice, step) for step in self.steps])
        return times_s[times_s < until_s]

    def expected(self, until_s: float) -> float:
        """Return how many messages are to be expected; those after `until_s` are drawn, too."""
        return sum(step.load_per_s * (step.end_s - step.start_s) for step in self.steps)

    def share(self, publisher: int, publishers: int) -> Arrivals:
        """Return what comes to one of several publishers: the same load to each."""
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """Messages come when a trace says, `speed` times as fast."""

    trace_s: Times
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < math.inf:
            raise ValueError(f"the speed of a trace is above 0, not {self.speed:g}")
        if not len(self.trace_s):
            raise ValueError("the trace is empty")
        if self.trace_s[0] < 0 or not (self.trace_s[1:] >= self.trace_s[:-1]).all():
            raise ValueError("the times of a trace are seconds from 0, in order")

    @classmethod
    def at_rate(cls, trace_s: Times, load_per_s: float) -> Traced:
        """Scale the gaps of a trace to a mean rate."""
        _check_load(load_per_s)
        if len(trace_s) < 2 or trace_s[-1] <= trace_s[0]:
            raise ValueError("a trace of one moment has no rate")
        return cls(trace_s, load_per_s * float(trace_s[-1] - trace_s[0]) / (len(trace_s) - 1))

    @property
    def duration_s(self) -> float:
        """When the last message comes, and as long again as the mean gap."""
        last_s = float(self.trace_s[-1]) / self.speed
        return last_s + last_s / len(self.trace_s) if last_s else 1.0

    def times_s(self, dice: np.random.Generator, until_s: float) -> Times:
        """Return the times of arrival before `until_s`; nothing is drawn."""
        times_s = self.trace_s / self.speed
        return times_s[times_s < until_s]

    def expected(self, until_s: float) -> float:
        """Return how many messages the trace has; those after `until_s` do not come."""
        return len(self.trace_s)

    def share(self, publisher: int, publishers: int) -> Arrivals:
        """Return what comes to one of several publishers: they are dealt the trace's messages in turn."""
        return self if publishers == 1 else Traced(self.trace_s[publisher::publishers], self.speed)


Arrivals: TypeAlias = Poisson | Stepped | Traced


def _poisson(dice: np.random.Generator, step: Step) -> Times:
    duration_s = step.end_s - step.start_s
    count = dice.poisson(step.load_per_s * duration_s)
    times_s = step.start_s + dice.random(count) * duration_s
    times_s.sort()
    return times_s


def _check_load(load_per_s: float) -> None:
    if not 0 < load_per_s < math.inf:
        raise ValueError(f"a load is above 0, not {load_per_s:g}")


DEFAULT_SECONDS = 300.0
MOST_MESSAGES = 10_000_000  # of a run: more take hours and all the memory there is
MOST_PUBLISHERS = 10_000
_MOST = 1e15


def _parameter(group: str, default: Any, meaning: str, least: float = 0) -> Any:
    return field(default=default, metadata={"meaning": meaning, "least": least, "group": group})


_run, _tuning, _publisher, _broker = (
    partial(_parameter, group) for group in ("Run", "Tuning", "Publisher", "Broker and subscriber")
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a run is made of. The defaults are the reference model's store-heavy profile."""

    arrivals: Arrivals = field(default=Poisson(35.0))
    seconds: float | None = _run(None, "simulated seconds; none: 300, or as long as the arrivals last")
    warm_up_s: float = _run(20.0, "messages that come this early, and N until then, count in no mean")
    publishers: int = _run(1, "publishers on the one broker, each with its own arrivals", 1)
    keep_responses: bool = _run(False, "keep every response time in the outcome")
    keep_trace: bool = _run(False, "keep what the tuner did at each poll in the outcome")

    tuning: str = _tuning("auto", "fixed, literal, recheck, eager, or auto for the best")
    batch_size: int = _tuning(1, "N to begin with; for ever with fixed", 1)
    batch_size_min: int = _tuning(1, "N_min", 1)
    batch_size_max: int = _tuning(MAX_BATCH_MESSAGES, "what N_max never exceeds", 1)
    poll_min_s: float = _tuning(0.050, "T_poll_min; T_poll itself with fixed")
    poll_max_s: float = _tuning(0.200, "T_poll_max")
    wait_s: float | None = _tuning(None, "T, the longest wait for N messages; none: T_poll_max")
    poll_factor: float = _tuning(1.2, "beta")
    load_gain: float = _tuning(0.5, "alpha")
    capacity_gain: float = _tuning(0.75, "gamma")
    publishes_in_transfer: int = _tuning(20, "publishes that eager spreads over a transfer", 1)
    takes_all: bool = _tuning(False, "a full poll of literal and recheck takes all that is pending")
    polls_on_arrival: bool = _tuning(False, "a poll is due as soon as N are pending, not only when T_poll is over")
    gated: bool | None = _tuning(
        None, "take a worker for publishing only against the broker's credit; none: all but fixed do"
    )
    receiving_first: bool | None = _tuning(
        None, "a free worker goes to receiving first, else first come, first served; none: all but fixed"
    )

    workers: int = _publisher(20, "workers in a publisher's pool; eager reads no more messages at once", 1)
    buffer: int = _publisher(100, "messages that wait for a worker to receive them, at most")
    receive_s: float = _publisher(0.002, "mean processing of a received message (exponential)")
    publish_s: float = _publisher(0.002, "mean processing of a message to publish (exponential)")
    write_s: float = _publisher(0.001, "mean time of a store write (exponential)")
    read_fixed_s: float = _publisher(0.130, "fixed part of a store read")
    read_each_s: float = _publisher(0.002, "part of a store read for each message")
    rtt_s: float = _publisher(0.140, "mean round trip to the broker (gamma)")
    rtt_cv: float = _publisher(0.1, "its coefficient of variation; 0: always the same")

    room: int = _broker(2000, "messages the broker holds before it says stop", 1)
    subscriber_per_s: float = _broker(1000.0, "messages the subscriber reads a second (exponential)")
    vacation_s: float = _broker(0.010, "mean time between two of its visits (exponential)")

    def __post_init__(self) -> None:
        for known in fields(self):
            value, least = getattr(self, known.name), known.metadata.get("least")
            if isinstance(value, int | float) and least is not None and not least <= value <= _MOST:
                raise ValueError(f"{known.name} is a number from {least:g} to {_MOST:g}, not {str(value)[:40]}")
        if self.publishers > MOST_PUBLISHERS:
            raise ValueError(f"publishers are at most {MOST_PUBLISHERS:,}, not {self.publishers:,}")
        expected = self.publishers * self.arrivals.share(0, self.publishers).expected(self.duration_s)
        if not expected <= MOST_MESSAGES:
            raise ValueError(
                f"a run has at most {MOST_MESSAGES:,} messages, not {expected:.3g}: lower the load, or make it shorter"
            )
        if self.rtt_cv and not 0.001 <= self.rtt_cv <= 1000:
            raise ValueError(f"rtt_cv is 0, or from 0.001 to 1000, not {self.rtt_cv:g}")
        if self.subscriber_per_s <= 0:
            raise ValueError("subscriber_per_s is above 0, not 0")
        if not self.warm_up_s < self.duration_s:
            raise ValueError(
                f"warm_up_s is less than the run's {self.duration_s:g} s, not {self.warm_up_s:g}: nothing would count"
            )
        if self.heeds_credit and self.room < self.publishers:
            raise ValueError(f"a room of {self.room} does not give each of {self.publishers} publishers credit")
        self._check_tuning()

    def _check_tuning(self) -> None:
        from clarion.publisher.tuner import POLICIES

        if self.tuning != "auto" and self.tuning not in POLICIES:
            raise ValueError(f"tuning is auto or one of {', '.join(POLICIES)}; not {self.tuning!r}")
        _ = self.tuner_settings  # which checks itself

    @property
    def duration_s(self) -> float:
        """How long the run is."""
        if self.seconds is not None:
            return self.seconds
        return self.arrivals.duration_s or DEFAULT_SECONDS

    @property
    def tuned(self) -> bool:
        """Whether anything is tuned."""
        return self.tuning != "fixed"

    @property
    def heeds_credit(self) -> bool:
        """Whether a worker is taken for publishing only against the broker's credit."""
        return self.tuned if self.gated is None else self.gated

    @property
    def tuner_settings(self) -> TunerSettings:
        """What the tuner is told."""
        from clarion.publisher.tuner import TunerSettings

        return TunerSettings(**{known.name: getattr(self, known.name) for known in fields(TunerSettings)})


# Reference profiles: what they set, on top of the defaults.
PROFILES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"store-heavy": MappingProxyType({"read_fixed_s": 0.130}), "store-light": MappingProxyType({"read_fixed_s": 0.040})}
)

# The slow-subscriber scenario, to be put on top of a profile.
SLOW_SUBSCRIBER: Mapping[str, Any] = MappingProxyType(
    {"arrivals": Poisson(17.5), "subscriber_per_s": 25.0, "vacation_s": 4.0, "room": 50, "seconds": 400.0}
)


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
    """Return what the arrivals of `build_parameters` were made of, as a TOML file has it."""
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
        return tuple(Step(float(start_s), float(end_s), float(load_per_s)) for start_s, end_s, load_per_s in given)
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
