"""The functions that do the work: found by name, and called with a payload and, if they take one, a context."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from clarion.model.errors import BadSettings
from clarion.workflow.definition import Handler, Task, Workflow


def workflow_of(path: Path) -> Workflow:
    """Return the one Workflow of a Python file; BadSettings where there is none, or several, or the file fails."""
    module = _load(path)
    found = {id(value): value for value in vars(module).values() if isinstance(value, Workflow)}
    if len(found) != 1:
        raise BadSettings(f"{path} has {len(found) or 'no'} Workflow{'s' * (len(found) > 1)}; it is to have one")
    return next(iter(found.values()))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise BadSettings(f"{path} cannot be read: there is no such Python file")
    look_beside(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == spec.origin]
        where = f" at line {lines[-1]}" if lines else ""
        raise BadSettings(f"{path} fails{where} when it is loaded: {type(error).__name__}: {error}") from error
    return module


def look_beside(path: Path) -> None:
    """Have modules beside a workflow's file found, as Python does for a script."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def find_handler(task: Task) -> Handler:
    """Return the function that handles a task; BadSettings where it cannot be imported."""
    if callable(task.handler):
        return task.handler
    if task.handler is None:
        raise BadSettings(f"task {task.name} has no handler: write handler: package.module:function")
    module_name, _, name = task.handler.partition(":")
    where = f"task {task.name}: handler {task.handler}"
    if not module_name or not name:
        raise BadSettings(f"{where} is not written as package.module:function")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise BadSettings(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadSettings(f"{where}: {module_name} has no {name}")
        found = getattr(found, part)
    if not callable(found):
        raise BadSettings(f"{where} is no function, but {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def handler_problems(workflow: Workflow) -> list[str]:
    """Return which handlers cannot be imported, and why."""
    found = []
    for task in workflow.tasks.values():
        try:
            find_handler(task)
        except BadSettings as error:
            found.append(str(error))
    return found


class TaskTimedOut(Exception):
    """A handler took longer than its task's time limit."""


def as_call(handler: Handler, time_limit_s: float | None = None) -> Callable[[Any, Any], Any]:
    """Return a plain function of payload and context that runs a handler, which may be async, to its end; it raises
    TaskTimedOut where that takes too long, if the handler lets itself be interrupted."""
    takes_context = _takes_two(handler)
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)

    def call(payload: Any, context: Any) -> Any:
        return handler(payload, context) if takes_context else handler(payload)

    if is_async:
        return _as_plain_call(call, time_limit_s)
    if time_limit_s is None or threading.current_thread() is not threading.main_thread():
        return call

    def call_within(payload: Any, context: Any) -> Any:
        def strike(_number: int, _frame: Any) -> None:
            raise TaskTimedOut(f"the time limit of {time_limit_s:g} s is over")

        before = signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, time_limit_s)
        try:
            return call(payload, context)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return call_within


def _as_plain_call(call: Callable[[Any, Any], Any], time_limit_s: float | None) -> Callable[[Any, Any], Any]:
    runner = asyncio.Runner()  # one loop for all: what a handler keeps open between tasks stays usable

    async def awaited(payload: Any, context: Any) -> Any:
        limit = asyncio.timeout(time_limit_s)
        try:
            async with limit:
                return await call(payload, context)
        except TimeoutError as error:
            if not limit.expired():
                raise  # it is the handler's own
            raise TaskTimedOut(f"the time limit of {time_limit_s:g} s is over") from error

    return lambda payload, context: runner.run(awaited(payload, context))


def _takes_two(handler: Handler) -> bool:
    """Tell whether a handler takes a context: a second argument, unless that has a default and another name."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return True
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    placed = [one for one in parameters if one.kind in kinds]
    return len(placed) > 1 and (placed[1].default is inspect.Parameter.empty or placed[1].name == "context")
