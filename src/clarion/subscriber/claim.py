"""A consumer's hold on the messages it was handed, from its attach until it ends or is taken away."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from clarion.model.errors import ClarionError

if TYPE_CHECKING:
    from clarion.subscriber.reading import Reading

T = TypeVar("T")
Steps = Generator[float, None, T]  # gives the moment until which to wait for something to change


class Owner(Protocol):
    """The client around the readings: it knows about threads or event loops."""

    def do(self, change: Callable[[], None]) -> None:
        """Change something, unless the client is not usable any more."""
        ...

    def run(self, steps: Steps[Any]) -> Any:
        """Go through the steps, waiting in between; an asyncio client gives what is to be awaited."""
        ...


class Claim:
    """One attach of one consumer. Once it has an `error`, nothing can be done with its messages any more."""

    __slots__ = ("_owner", "error", "reading", "token")

    def __init__(self, owner: Owner, reading: Reading, token: int) -> None:
        self._owner = owner
        self.reading = reading
        self.token = token
        self.error: ClarionError | None = None

    def check(self) -> None:
        """Raise where the messages were taken away."""
        if self.error is not None:
            raise type(self.error)(str(self.error))

    def ack(self, start: int, stop: int) -> None:
        """Say that these offsets are done."""
        self._owner.do(lambda: self.reading.ack(self, start, stop))

    def nack(self, start: int, stop: int, delay_s: float, reason: str) -> None:
        """Give these offsets back."""
        self._owner.do(lambda: self.reading.nack(self, start, stop, delay_s, reason))

    def extend(self, start: int, stop: int) -> Any:
        """Renew the lease on these offsets, and wait for the answer."""
        return self._owner.run(self.reading.extending(self, start, stop))
