"""Handlers: functions of one or two arguments, sync or async, found by name, and stopped when their time is over."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from clarion.model.errors import BadSettings
from clarion.workflow import Task, Workflow
from clarion.workflow.handlers import TaskTimedOut, as_call, find_handler, handler_problems, look_beside

_never = threading.Event()


def both(payload: Any, context: Any) -> Any:
    return payload, context


def alone(payload: Any) -> Any:
    return payload, "no context"


def with_options(payload: Any, *, loud: bool = False) -> Any:
    return payload, loud


def whatever(*given: Any) -> Any:
    return given


async def later(payload: Any, context: Any) -> Any:
    await asyncio.sleep(0)
    return payload, context


async def later_alone(payload: Any) -> Any:
    await asyncio.sleep(0)
    return payload, "no context"


class Callable2:
    def __call__(self, payload: Any, context: Any) -> Any:
        return payload, context

    def method(self, payload: Any) -> Any:
        return payload, "method"


class AsyncCallable:
    async def __call__(self, payload: Any) -> Any:
        await asyncio.sleep(0)
        return payload, "async object"


@pytest.mark.parametrize(
    ("handler", "returned"),
    [
        (both, ("p", "c")),
        (alone, ("p", "no context")),
        (with_options, ("p", False)),
        (whatever, ("p", "c")),
        (lambda payload: payload, "p"),
        (later, ("p", "c")),
        (later_alone, ("p", "no context")),
        (Callable2(), ("p", "c")),
        (Callable2().method, ("p", "method")),
        (AsyncCallable(), ("p", "async object")),
        (functools.partial(both, context="bound"), ("p", "bound")),
        (functools.partial(with_options, loud=True), ("p", True)),
    ],
)
@pytest.mark.parametrize("time_limit_s", [None, 60.0])
def test_a_handler_takes_a_payload_and_a_context_if_it_wants_one(
    handler: Any, returned: Any, time_limit_s: float | None
) -> None:
    call = as_call(handler, time_limit_s)
    assert call("p", "c") == returned
    assert call("p", "c") == returned, "and again"


def test_what_a_handler_raises_comes_out_as_it_is() -> None:
    def fails(payload: Any) -> None:
        raise KeyError(payload)

    async def fails_later(payload: Any) -> None:
        await asyncio.sleep(0)
        raise KeyError(payload)

    for handler in (fails, fails_later):
        with pytest.raises(KeyError, match="p"):
            as_call(handler)("p", None)


def test_async_handlers_share_a_loop_so_that_what_they_keep_open_stays_usable() -> None:
    loops = []

    async def handler(payload: Any) -> None:
        loops.append(asyncio.get_running_loop())

    call = as_call(handler)
    call(1, None)
    call(2, None)
    assert loops[0] is loops[1]


# Time limits.


def test_a_handler_that_takes_too_long_is_interrupted_and_the_next_is_not() -> None:
    def hangs(payload: Any) -> str:
        if payload:
            while True:
                _never.wait(60)
        return "done"

    call, before = as_call(hangs, 0.05), signal.getsignal(signal.SIGALRM)
    with pytest.raises(TaskTimedOut, match=r"the time limit of 0\.05 s is over"):
        call(True, None)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
    assert as_call(hangs, 60.0)(False, None) == "done"


def test_an_async_handler_that_takes_too_long_is_interrupted() -> None:
    async def hangs(payload: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TaskTimedOut, match=r"the time limit of 0\.05 s is over"):
        as_call(hangs, 0.05)(None, None)


@pytest.mark.parametrize("time_limit_s", [None, 60.0])
def test_a_timeout_of_the_handlers_own_is_not_taken_for_its_time_limit(time_limit_s: float | None) -> None:
    async def asks(payload: Any) -> None:
        raise TimeoutError("the database did not answer")

    with pytest.raises(TimeoutError, match="the database did not answer"):
        as_call(asks, time_limit_s)(None, None)


def test_beside_the_main_thread_no_signal_is_used() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(as_call(both, 0.01)("p", "c"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [("p", "c")]


# Where handlers are.


def _task(handler: Any) -> Task:
    return Task("A", handler=handler)


def test_a_handler_is_found_by_name_or_is_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "handlers_for_test_handlers.py").write_text(
        "class Steps:\n    @staticmethod\n    def align(payload): return payload\n\ndef count(payload): return 1\n"
    )
    look_beside(tmp_path / "flow.yaml")
    assert find_handler(_task("handlers_for_test_handlers:count"))("x") == 1
    assert find_handler(_task("handlers_for_test_handlers:Steps.align"))("x") == "x"
    assert find_handler(_task(both)) is both


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (None, "task A has no handler: write handler: package.module:function"),
        ("json", "handler json is not written as package.module:function"),
        (":dumps", "handler :dumps is not written as"),
        ("no_such_module_anywhere:f", "cannot be imported: ModuleNotFoundError: No module named"),
        ("json:no_such", "json has no no_such"),
        ("json:dumps.deeper", "json has no dumps.deeper"),
        ("sys:path", "handler sys:path is no function, but list"),
    ],
)
def test_a_handler_that_is_not_there_is_told_with_its_task(handler: Any, words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        find_handler(_task(handler))


def test_a_module_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fails_for_test_handlers.py").write_text("1 / 0\n")
    with pytest.raises(BadSettings, match="cannot be imported: ZeroDivisionError: division by zero"):
        find_handler(_task("fails_for_test_handlers:f"))


def test_all_handlers_that_are_missing_are_told_at_once() -> None:
    flow = Workflow()
    flow.task("good")(both)
    flow.tasks["bad"] = Task("bad", handler="json:no_such")
    flow.tasks["none"] = Task("none")
    assert handler_problems(flow) == [
        "task bad: handler json:no_such: json has no no_such",
        "task none has no handler: write handler: package.module:function",
    ]
