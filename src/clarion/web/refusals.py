"""Why a request was not done: HTTP status, the error's name, and a sentence that says what was kept and what to do."""

from __future__ import annotations

import shlex
from typing import Any

from clarion.model.errors import (
    BufferFull,
    ClarionError,
    LimitReached,
    NoSubscriber,
    TimedOut,
    TooLarge,
)
from clarion.model.names import to_text

# The first kind that fits decides. What is left is the broker's trouble, seen from here: what a client can do wrong
# was found before anything was queued.
_STATUSES: tuple[tuple[type[ClarionError], int], ...] = (
    (NoSubscriber, 404),
    (TooLarge, 413),
    (BufferFull, 429),
    (TimedOut, 503),
    (LimitReached, 507),
)
# After these it is certain that nothing was stored, so the same request may be tried afresh.
_CERTAIN = (NoSubscriber, TooLarge, LimitReached)


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, error: str, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.message = message
        self.retry_after_s = retry_after_s

    def told(self) -> dict[str, Any]:
        """Give what the answer's body says."""
        return {"error": self.error, "message": self.message}

    def headers(self) -> dict[str, str]:
        """Give what the answer's headers say beside."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


def bad(message: str) -> Refusal:
    """Give the refusal of a request that cannot be understood; nothing of it was queued."""
    return Refusal(400, "BadRequest", f"{message}; nothing was queued")


def refusal_of(error: ClarionError, topic: bytes, *, stored: int = 0, count: int = 1) -> Refusal:
    """Give the answer to a request whose messages, or some of them, were not stored."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
    name = to_text(topic)
    if stored:
        kept = f"; of {count} messages {stored} were stored, the others were not"
    else:
        kept = ", so nothing was stored" if is_certain(error) else ""
    if isinstance(error, NoSubscriber):
        quoted = shlex.quote(name)
        message = (
            f"nobody subscribes to {name}{kept}. Let somebody subscribe: clarion subscribe {quoted} --as NAME;"
            f" or keep messages anyway: clarion topics create {quoted} --retention keep"
        )
    else:
        message = f"{error}{kept}"
    return Refusal(status, type(error).__name__, message)


def is_certain(error: ClarionError) -> bool:
    """Tell whether after this error it is certain that the message was not stored."""
    return isinstance(error, _CERTAIN)
