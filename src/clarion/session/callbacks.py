"""A core around functions: for a client that is not one itself yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from clarion.model.errors import ClarionError
from clarion.session.calls import Call, Request, Requests
from clarion.session.exchange import GiveUp, Instruction, OnReply, Reply, Send
from clarion.wire import bodies
from clarion.wire.frames import Buffer, Kind


class _Asked:
    def __init__(self, body: bodies.Body, on_reply: OnReply) -> None:
        self.body = body
        self.on_reply = on_reply


class Callbacks:
    """Tags are the functions that get the reply; `on_turn(now_s)` returns when it is to be called again."""

    def __init__(
        self,
        url: str,
        seed: bytes,
        on_turn: Callable[[float], float | None] | None,
        on_lost: Callable[[ClarionError], None] | None,
        on_failure: Callable[[ClarionError], None] | None,
    ) -> None:
        self.url = url
        self._requests = Requests(url, seed)
        self.count = self._requests.count
        self._on_turn = on_turn
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._asked: deque[Send | GiveUp] = deque()

    def ask(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None:
        """Have a request sent; from any thread."""
        self._asked.append(Send(kind, body, _Asked(body, on_reply), blobs, wait_s))

    def give_up(self, body: bodies.Body) -> None:
        """Have a request not sent any more that nobody waits for."""
        self._asked.append(GiveUp(body))

    def begin(self, call: Call, now_s: float, unix_s: float) -> None:
        """Take up a request."""
        self._requests.begin(call, now_s, unix_s)

    def cancel(self, call: Call, now_s: float) -> None:
        """Give a request up."""
        self._requests.cancel(call, now_s)

    def on_reply(self, tag: Any, reply: Reply, now_s: float) -> None:
        """Tell who asked."""
        if isinstance(tag, Request):
            self._requests.on_reply(tag, reply, now_s)
        else:
            tag.on_reply(reply)

    def on_lost(self, error: ClarionError, now_s: float) -> None:
        """Tell that the store went back."""
        if self._on_lost is not None:
            self._on_lost(error)

    def on_failed(self, error: ClarionError) -> None:
        """Tell that the session broke."""
        if self._on_failure is not None:
            self._on_failure(error)

    def on_time(self, now_s: float, unix_s: float) -> float | None:
        """Take a turn."""
        wanted_s = self._requests.on_time(now_s, unix_s)
        other_s = None if self._on_turn is None else self._on_turn(now_s)
        return other_s if wanted_s is None else wanted_s if other_s is None else min(wanted_s, other_s)

    def take_instructions(self) -> list[Instruction]:
        """Return what is to be done, once."""
        taken = self._requests.take_instructions()
        while self._asked:
            taken.append(self._asked.popleft())
        return taken

    def wants_turn(self) -> bool:
        """Whether there is something to be sent."""
        return bool(self._asked) or self._requests.wants_turn()
