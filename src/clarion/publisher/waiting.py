"""Waiting that is written once, as coroutines, for threads and for asyncio.

What a coroutine waits for is `given`: by asyncio later, by what serves threads at once, since it has waited where it is
called. So an event loop runs the coroutine as any other, and a thread runs it to its end, without a loop: `run_now`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def given(value: T | Awaitable[T]) -> T:
    """Return a value, as soon as it is there."""
    return await value if isinstance(value, Awaitable) else value


async def each(values: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    """Return values one after the other, as soon as each is there."""
    if isinstance(values, AsyncIterable):
        async for value in values:
            yield value
    else:
        for value in values:
            yield value


def run_now(waiting: Coroutine[Any, Any, T]) -> T:
    """Return what becomes of a coroutine that is given everything by threads, and so never suspends."""
    try:
        waiting.send(None)
    except StopIteration as done:
        outcome: T = done.value
        return outcome
    raise AssertionError("a thread waits where it is")


class Until:
    """A call that is done when something holds, which events bring about."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Callable[[], bool]) -> None:
        self._holds = holds

    @property
    def done(self) -> bool:
        """Whether it holds now."""
        return self._holds()
