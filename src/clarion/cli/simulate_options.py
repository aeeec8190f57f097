"""The options of `clarion simulate publisher`: one for each parameter of the model, made from its definition."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from clarion.cli.command_options import read_duration_s
from clarion.sim.publisher.parameters import Parameters

_KEPT = ("keep_responses", "keep_trace")  # what they keep is for programs that import the simulator
_NAMES = {
    "subscriber_per_s": "--subscriber-rate",
    "gated": "--gate/--no-gate",
    "receiving_first": "--receiving-first/--first-come",
    "takes_all": "--take-all/--take-n",
    "polls_on_arrival": "--poll-on-arrival/--poll-by-time",
    "poll_factor": "--beta",
    "load_gain": "--alpha",
    "capacity_gain": "--gamma",
    "wait_s": "--wait",
}
_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


def with_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each parameter; those that were used reach it as keyword arguments."""
    own = inspect.signature(command, eval_str=True)
    kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    made = [_option(known) for known in dataclasses.fields(Parameters) if known.name not in ("arrivals", *_KEPT)]
    signature = own.replace(parameters=[*kept, *made])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    return command


def option_name(name: str) -> str:
    """Give the option that sets a parameter."""
    return _NAMES.get(name, "--" + name.removesuffix("_per_s").removesuffix("_s").replace("_", "-"))


def _option(known: dataclasses.Field[Any]) -> inspect.Parameter:
    kind = _TYPES[str(known.type).removesuffix(" | None")]
    told: dict[str, Any] = {
        "help": known.metadata["meaning"][:1].upper() + known.metadata["meaning"][1:] + ".",
        "rich_help_panel": known.metadata["group"],
    }
    if _is_duration(known.name):
        told.update(parser=read_duration_s, metavar="TIME")
    if known.default is not None:
        told["show_default"] = _shown(known.name, known.default)
    annotation = Annotated[kind | None, typer.Option(option_name(known.name), **told)]  # type: ignore[valid-type]
    return inspect.Parameter(known.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _is_duration(name: str) -> bool:
    return name == "seconds" or (name.endswith("_s") and not name.endswith("_per_s"))


def _shown(name: str, default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float) and _is_duration(name):
        return f"{default:g}s" if default >= 1 else f"{1000 * default:g}ms"
    return f"{default:,g}" if isinstance(default, int | float) else str(default)
