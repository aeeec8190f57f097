"""One attached consumer's way to the broker: what is refused for now is asked again, and nothing is heard any more
once the consumer is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from clarion.session.exchange import OnReply, Reply
from clarion.wire import bodies
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import Buffer, Kind

_LOST = frozenset({Code.LEASE_LOST, Code.MOVED})


class Ask(Protocol):
    """Sends a request; the reply comes when it comes."""

    def __call__(
        self, kind: Kind, body: bodies.Body, on_reply: OnReply, blobs: Sequence[Buffer] = (), wait_s: float = 0.0
    ) -> None: ...


class _Later(NamedTuple):
    """A request that is to be sent later."""

    kind: Kind
    send: Callable[[], None]


class Line:
    """Asks on behalf of one token.

    `on_lost` is told when the broker says that the token is good for nothing any more; `show` must send what is held,
    with `ask_at_once`, and say when it is `shown`. Until then nothing else is asked, so that nothing is lent that was
    not shown.
    """

    def __init__(
        self,
        ask: Ask,
        clock_s: Callable[[], float],
        on_lost: Callable[[bodies.Refused], None],
        show: Callable[[int], None],
    ) -> None:
        self._ask = ask
        self._clock_s = clock_s
        self._on_lost = on_lost
        self._show = show
        self._open = True
        self._showing = False
        self._until_shown: list[_Later] = []
        self._later: list[tuple[float, _Later]] = []

    def ask(
        self,
        kind: Kind,
        body: bodies.Body,
        on_reply: OnReply,
        wait_s: float = 0.0,
        *,
        again: bool = True,
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        """Ask, and ask again while it is `still` wanted; without `again` refusals that are worth that are handed over
        as well."""

        def answered(reply: Reply) -> None:
            if not self._open:
                return
            refusal = reply.refusal()
            if refusal is None:
                on_reply(reply)
            elif refusal.code in _LOST:
                self._on_lost(refusal)
            elif refusal.code == Code.SHOW_HELD:
                self._until_shown.append(later)
                self.show(refusal.expected)
            elif again and refusal.code in RETRIED:
                self._put_off(later, reply)
            else:
                on_reply(reply)

        def send() -> None:
            if self._showing:
                self._until_shown.append(later)
            elif still():
                self._ask(kind, body, answered, (), wait_s)

        later = _Later(kind, send)
        send()

    def show(self, start: int) -> None:
        """Have it shown what is held, to this start of the broker, unless that is under way."""
        if not self._showing:
            self._showing = True
            self._show(start)

    def ask_at_once(self, kind: Kind, body: bodies.Body, on_reply: OnReply) -> None:
        """Ask before everything else; every refusal is handed over, but that the token is lost, or "not now"."""

        def answered(reply: Reply) -> None:
            refusal = reply.refusal()
            if not self._open:
                return
            if refusal is not None and refusal.code in _LOST:
                self._on_lost(refusal)
            elif refusal is not None and refusal.code in RETRIED:
                self._put_off(later, reply)
            else:
                on_reply(reply)

        later = _Later(kind, lambda: self._ask(kind, body, answered))
        later.send()

    def _put_off(self, later: _Later, reply: Reply) -> None:
        self._later.append((self._clock_s() + (reply.again_after_s() or 0.0), later))

    def puts_off(self, kind: Kind) -> bool:
        """Whether a request of a kind was refused for now, and is to be asked again."""
        return any(later.kind == kind for later in (*self._until_shown, *(later for _, later in self._later)))

    def shown(self) -> None:
        """The broker knows what is held: ask again what waited for that."""
        self._showing = False
        waiting, self._until_shown = self._until_shown, []
        for later in waiting:
            later.send()

    def pump(self, now_s: float) -> float | None:
        """Ask again what was refused for a time that is over; give when to come back."""
        if not self._later:
            return None
        due = [later for when_s, later in self._later if when_s <= now_s]
        self._later = [(when_s, later) for when_s, later in self._later if when_s > now_s]
        for later in due:
            later.send()
        return min((when_s for when_s, _ in self._later), default=None)

    def close(self) -> None:
        """Hear nothing any more."""
        self._open = False
        self._until_shown.clear()
        self._later.clear()
