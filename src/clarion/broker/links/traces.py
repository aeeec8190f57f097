"""Where a message went, asked of one broker after the other over links: whoever may have had it, all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from clarion.broker.engine import Now
from clarion.model.ids import MessageId
from clarion.overlay.link_graph import Announcement
from clarion.tracking.paths import Answer, Held, draw, to_ask, to_dict, trace
from clarion.tracking.tracker import Claim, HistoryName
from clarion.wire.link_bodies import AskTrace, Traced, TraceIs

_WAIT_S = 3.0  # for each round of answers
_MOST_AT_ONCE = 100


class Histories(Protocol):
    """What a broker knows itself."""

    @property
    def strategy(self) -> str:
        """How its histories are kept."""
        ...

    @property
    def begins_us(self) -> int:
        """When they begin."""
        ...

    def seen(self, key: tuple[int, int]) -> list[Claim]:
        """Return what its histories claim of a batch."""
        ...

    def held(self, message: MessageId, claims: Sequence[Claim], now: Now) -> tuple[Held, ...]:
        """Return where in its log a message is, and who is still to get it."""
        ...

    def strangers(self, claims: Sequence[Claim]) -> tuple[bytes, ...]:
        """Return subscribers that are claimed to have what they never subscribed to."""
        ...


class _Trace:
    def __init__(self, message: MessageId, done: Callable[[Traced], None]) -> None:
        self.message = message
        self.done = done
        self.answers: dict[int, Answer] = {}
        self.asked: dict[int, float] = {}  # brokers that have not answered, and until when they are waited for


class Traces:
    """Asks for paths, and answers those who ask."""

    def __init__(
        self,
        broker: int,
        name: str,
        announced: Mapping[int, Announcement],
        send: Callable[[int, AskTrace], None],
        histories: Histories | None,
    ) -> None:
        self._broker = broker
        self._name = name
        self._announced = announced
        self._send = send
        self._histories = histories
        self._traces: dict[int, _Trace] = {}
        self._number = 0

    def begin(self, message: MessageId, done: Callable[[Traced], None], reached: frozenset[int], now: Now) -> bool:
        """Begin to look for the path of a message; return whether there is room for it."""
        if len(self._traces) >= _MOST_AT_ONCE:
            return False
        self._number += 1
        found = self._traces[self._number] = _Trace(message, done)
        here = self.answer(AskTrace(self._number, message.to_bytes()), now)
        found.answers[self._broker] = _read(here)
        self._go_on(self._number, reached, now)
        return True

    def _go_on(self, number: int, reached: frozenset[int], now: Now) -> None:
        found = self._traces[number]
        while wanted := to_ask(found.message, found.answers) - found.asked.keys():
            for broker in wanted:
                if broker in reached:
                    found.asked[broker] = now.monotonic_s + _WAIT_S
                    self._send(broker, AskTrace(number, found.message.to_bytes()))
                else:
                    found.answers[broker] = self._silent(broker)
        if not found.asked:
            del self._traces[number]
            path = trace(found.message, found.answers)
            found.done(Traced(to_dict(path), draw(path)))

    def _silent(self, broker: int) -> Answer:
        told = self._announced.get(broker)
        name = told.name if told is not None else f"broker-{broker:08x}"
        return Answer(broker, name, told.linked if told is not None else (), is_reachable=False)

    def take(self, said: TraceIs, source: int, reached: frozenset[int], now: Now) -> None:
        """Take in an answer."""
        found = self._traces.get(said.number)
        if found is not None and found.asked.pop(source, None) is not None and said.broker == source:
            found.answers[source] = _read(said)
            self._go_on(said.number, reached, now)

    def tick(self, reached: frozenset[int], now: Now) -> None:
        """Go on without those who do not answer in time."""
        for number, found in list(self._traces.items()):
            late = [broker for broker, until_s in found.asked.items() if until_s <= now.monotonic_s]
            for broker in late:
                del found.asked[broker]
                found.answers[broker] = self._silent(broker)
            if late:
                self._go_on(number, reached, now)

    def next_deadline_s(self) -> float | None:
        """Return when `tick` has something to do."""
        return min((until_s for found in self._traces.values() for until_s in found.asked.values()), default=None)

    def answer(self, asked: AskTrace, now: Now) -> TraceIs:
        """Return what is known here of a message."""
        message, histories = MessageId.from_bytes(asked.message), self._histories
        own = self._announced.get(self._broker)
        claims: tuple[Any, ...] = ()
        held: tuple[Any, ...] = ()
        strangers: tuple[bytes, ...] = ()
        if histories is not None:
            found = histories.seen((message.broker << 32 | message.publisher, message.stamp))
            claims = tuple((*claim.history, claim.efpp, claim.parts) for claim in found)
            held, strangers = histories.held(message, found, now), histories.strangers(found)
        return TraceIs(
            asked.number, self._broker, self._name, own.linked if own is not None else (), claims,
            histories.strategy if histories is not None else "none",
            histories.begins_us if histories is not None else 0, held, strangers,
        )  # fmt: skip


def _read(said: TraceIs) -> Answer:
    claims = tuple(
        Claim(HistoryName(kind, origin, via, name), efpp, parts)  # type: ignore[arg-type]
        for kind, origin, via, name, efpp, parts in said.claims
    )
    strategy: Any = said.strategy
    held = tuple(Held(*each) for each in said.held)
    return Answer(
        said.broker, said.name, said.linked, claims, strategy, said.begins_us, held=held, strangers=said.strangers
    )
