"""Workload files: how fast tasks are served and how often jobs arrive, as YAML that people read and planners take.

    time_unit: s
    tasks:
      align: {rate: 4.0, scv: 0.5}
    jobs:
      nightly: {arrival_rate: 0.25, scv: 1.0}

Rates are in the time unit; scv is the squared coefficient of variation of service times, or of gaps between arrivals.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from clarion.model.errors import BadSettings, PermanentError

Read = TypeVar("Read")
SECONDS_IN = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_RATES = {"tasks": "rate", "jobs": "arrival_rate"}  # what the rate is called, by part of the file


class Rate(NamedTuple):
    """How often something happens in a time unit, and how much the time it takes, or from one to the next, varies."""

    rate: float
    scv: float


class Workload(NamedTuple):
    """What a workload file says."""

    tasks: dict[str, Rate]  # how fast one consumer serves each
    jobs: dict[str, Rate]  # how often each type arrives
    time_unit: str = "s"

    def in_unit(self, time_unit: str) -> Workload:
        """Return the same with its rates in another time unit."""
        factor = seconds_in(time_unit) / seconds_in(self.time_unit)
        return Workload(_scaled(self.tasks, factor), _scaled(self.jobs, factor), time_unit)


class Estimates(NamedTuple):
    """Rates a second by name, and why others could not be told."""

    found: dict[str, Rate]
    left_out: dict[str, str]


def task_rates(rows: Iterable[Mapping[str, Any]]) -> Estimates:
    """Return the rates of tasks from the overall rows of `service_rates`, as dictionaries."""
    return _estimates((str(row["task"]), row) for row in rows)


def job_rates(rows: Iterable[Mapping[str, Any]]) -> Estimates:
    """Return the rates of jobs from the overall rows of `arrival_rates` or `job_arrival_rates`, as dictionaries.

    Messages without a job type count under the name of their topic. A name that several rows have is refused:
    rates of the whole cannot be told from rates of the parts.
    """
    return _estimates((_job_name(row), row) for row in rows)


def write_workload(path: Path | str, tasks: Mapping[str, Rate], jobs: Mapping[str, Rate], time_unit: str = "s") -> None:
    """Write a workload file whole or not at all; rates are given in the time unit, and written as they are."""
    text = to_yaml(Workload(dict(tasks), dict(jobs), time_unit))
    with written_whole(Path(path)) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` at the end; what was there stays where that fails."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield draft
        draft.replace(path)
    except OSError as error:
        raise PermanentError(f"{path} cannot be written: {error.strerror or error}; what was there stays") from error
    finally:
        draft.unlink(missing_ok=True)


def read_workload(path: Path | str) -> Workload:
    """Return what a workload file says; BadSettings with the file and the place where it is none."""
    return read_file(path, from_yaml)


def read_file(path: Path | str, read: Callable[[str], Read]) -> Read:
    """Return what a file's text means; BadSettings names the file."""
    try:
        return read(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadSettings(f"{path} is not text in UTF-8: {error}") from error
    except BadSettings as error:
        raise BadSettings(f"{path}: {error}") from None


def to_yaml(workload: Workload) -> str:
    """Return the text of a workload file."""
    content: dict[str, Any] = {"time_unit": workload.time_unit}
    for part, named in (("tasks", workload.tasks), ("jobs", workload.jobs)):
        content[part] = {name: {_RATES[part]: float(rate), "scv": float(scv)} for name, (rate, scv) in named.items()}
    _checked(content)
    return str(yaml_library().safe_dump(content, sort_keys=False, allow_unicode=True))


def from_yaml(text: str) -> Workload:
    """Read the text of a workload file; BadSettings where it is none."""
    yaml = yaml_library()
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadSettings(f"this is not YAML: {error}") from error
    return _checked(content)


def yaml_library() -> ModuleType:
    """Return PyYAML. Only files need it: who asks for jobs, or works on tasks of a workflow in Python, does without."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise PermanentError('files in YAML need PyYAML: pip install "clarion[workflow]"') from None
    return yaml


def _checked(content: Any) -> Workload:
    if not isinstance(content, dict) or set(content) != {"time_unit", "tasks", "jobs"}:
        has = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise BadSettings(f"a workload has time_unit, tasks and jobs, and nothing else; this has {has or 'nothing'}")
    seconds_in(content["time_unit"])
    tasks, jobs = (_read_part(part, content[part]) for part in _RATES)
    return Workload(tasks, jobs, content["time_unit"])


def _read_part(part: str, named: Any) -> dict[str, Rate]:
    named = {} if named is None else named
    if not isinstance(named, dict):
        raise BadSettings(f"{part} has names with rates, not {named!r}")
    return {_read_name(part, name): _read_rate(f"{part}.{name}", one, _RATES[part]) for name, one in named.items()}


def _read_name(part: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise BadSettings(f"{part}: a name is a text, not {name!r}; write it in quotes")
    return name


def _read_rate(where: str, given: Any, rate: str) -> Rate:
    if not isinstance(given, dict) or set(given) != {rate, "scv"}:
        has = ", ".join(map(str, given)) if isinstance(given, dict) else repr(given)
        raise BadSettings(f"{where} has {rate} and scv, and nothing else; this has {has or 'nothing'}")
    return Rate(read_number(f"{where}.{rate}", given[rate], above=0), read_number(f"{where}.scv", given["scv"]))


def read_number(where: str, value: Any, above: float | None = None) -> float:
    """Return a number from 0 on, or above a bound; BadSettings says where in the file it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise BadSettings(f"{where} is a number from 0 on, not {value!r}")
    if above is not None and value <= above:
        raise BadSettings(f"{where} is above {above:g}, not {value:g}")
    return float(value)


def seconds_in(time_unit: Any) -> float:
    """Return how long a time unit is; BadSettings where there is none of this name."""
    if not isinstance(time_unit, str) or time_unit not in SECONDS_IN:
        raise BadSettings(f"time_unit is one of {', '.join(SECONDS_IN)}; not {time_unit!r}")
    return SECONDS_IN[time_unit]


def _scaled(named: Mapping[str, Rate], factor: float) -> dict[str, Rate]:
    return {name: Rate(one.rate * factor, one.scv) for name, one in named.items()}


def _job_name(row: Mapping[str, Any]) -> str:
    return str(row["job"] if row.get("job") is not None else row.get("topic", "(no job type)"))


def _estimates(named: Iterable[tuple[str, Mapping[str, Any]]]) -> Estimates:
    found: dict[str, Rate] = {}
    left_out: dict[str, str] = {}
    for name, row in named:
        if name in found or name in left_out:
            raise PermanentError(
                f"{name} has several rows: it came on several topics, or rows are of windows;"
                ' give the overall rates of arrival_rates(..., by=["job"])'
            )
        rate, scv = row["rate_per_s"], row["scv"]
        if rate is None or scv is None:
            left_out[name] = f"seen {row['count']} times, too few (or all at one moment) to tell"
        else:
            found[name] = Rate(float(rate), float(scv))
    return Estimates(found, left_out)
