"""Where a message went, asked of one broker after the other over links: whoever may have had it, all at once.

Others may answer whatever they like: what cannot be is taken for no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from clarion.broker.engine import Now
from clarion.broker.links.policy import why_no_name
from clarion.model.errors import ClarionError
from clarion.model.ids import MAX_BATCH_MESSAGES, STAMP_LIMIT, MessageId, stamp_to_unix_s
from clarion.model.names import LINK
from clarion.overlay.link_graph import Announcement
from clarion.tracking.path_text import draw, to_dict
from clarion.tracking.paths import NOT_FOUND, Answer, Held, to_ask, trace
from clarion.tracking.tracker import Claim, HistoryName
from clarion.wire.link_bodies import AskTrace, Traced, TraceIs

_WAIT_S = 2.5  # for all answers to one question: a client waits 5 s for the path
_PATIENCE_S = 1.0  # with a broker, before those behind it are asked as if it did not answer
_MOST_AT_ONCE = 100
_MOST_NEIGHBOURS = 10_000
_MOST_WAYS = 100  # by which a broker can have had a batch
_TROUBLE_CHARACTERS = 300
_LAST_US = int(stamp_to_unix_s(STAMP_LIMIT - 1) * 1e6)
_LINK_NAME = re.compile(re.escape(LINK) + rb"[0-9a-f]{8}")


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

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Return the times in which nothing was tracked."""
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


class Asked(NamedTuple):
    """A broker that is to be asked, and what."""

    broker: int
    body: AskTrace


class Found(NamedTuple):
    """Who asked for a path, as it was given, and the path."""

    asker: Any
    traced: Traced


class _Trace:
    def __init__(self, message: MessageId, asker: Any, until_s: float) -> None:
        self.message = message
        self.asker = asker
        self.until_s = until_s
        self.answers: dict[int, Answer] = {}  # of brokers that others need not wait for
        self.asked: dict[int, float] = {}  # brokers that have not answered, and until when others wait for them


class Traces:
    """Asks for paths, and answers those who ask. What follows is gathered until it is taken."""

    def __init__(
        self, broker: int, name: str, announced: Mapping[int, Announcement], histories: Histories | None
    ) -> None:
        self._broker = broker
        self._name = name
        self._announced = announced
        self._histories = histories
        self._traces: dict[int, _Trace] = {}
        self._number = 0
        self.asks: list[Asked] = []
        self.found: list[Found] = []
        self.trouble = ""  # why histories could not be read

    @property
    def is_full(self) -> bool:
        """Whether no more paths can be looked for now."""
        return len(self._traces) >= _MOST_AT_ONCE

    def begin(self, message: MessageId, asker: Any, reached: frozenset[int], away: Iterable[int], now: Now) -> None:
        """Begin to look for the path of a message. `away` are brokers that are known and cannot be reached now: they
        may have had it."""
        self._number += 1
        found = self._traces[self._number] = _Trace(message, asker, now.monotonic_s + _WAIT_S)
        here = self.answer(AskTrace(self._number, message.to_bytes()), away, now)
        found.answers[self._broker] = self._read(here)
        self._go_on(self._number, reached, now)

    def _go_on(self, number: int, reached: frozenset[int], now: Now) -> None:
        found = self._traces[number]
        is_late = now.monotonic_s >= found.until_s
        while wanted := to_ask(found.message, found.answers) - found.asked.keys():
            for broker in wanted:
                if broker in reached and not is_late:
                    found.asked[broker] = now.monotonic_s + _PATIENCE_S
                    self.asks.append(Asked(broker, AskTrace(number, found.message.to_bytes())))
                else:
                    found.answers[broker] = self._silent(broker)
        if not found.asked:
            del self._traces[number]
            path = trace(found.message, found.answers)
            self.found.append(Found(found.asker, Traced(to_dict(path), draw(path))))

    def _silent(self, broker: int, trouble: str = "") -> Answer:
        told = self._announced.get(broker)
        linked = told.linked if told is not None else ()
        return Answer(broker, self._name_of(broker), linked, is_reachable=False, trouble=trouble)

    def _name_of(self, broker: int) -> str:
        """Return a name that may be printed."""
        told = self._announced.get(broker)
        name = self._name if broker == self._broker else told.name if told is not None else ""
        return f"broker-{broker:08x}" if why_no_name(name) else name

    def take(self, said: TraceIs, source: int, reached: frozenset[int], now: Now) -> None:
        """Take in an answer."""
        found = self._traces.get(said.number)
        if found is not None and said.broker == source and found.asked.pop(source, None) is not None:
            found.answers[source] = self._read(said)
            self._go_on(said.number, reached, now)

    def tick(self, reached: frozenset[int], now: Now) -> None:
        """Go on without those who do not answer in time."""
        for number, found in list(self._traces.items()):
            is_late = now.monotonic_s >= found.until_s
            silent = [broker for broker, until_s in found.asked.items() if is_late or until_s <= now.monotonic_s]
            for broker in silent:
                found.asked[broker] = found.until_s
                found.answers[broker] = self._silent(broker, "did not answer in time")
            if is_late:
                found.asked.clear()
            if silent:
                self._go_on(number, reached, now)

    def next_deadline_s(self) -> float | None:
        """Return when `tick` has something to do."""
        times = (min(until_s, each.until_s) for each in self._traces.values() for until_s in each.asked.values())
        return min(times, default=None)

    def answer(self, asked: AskTrace, away: Iterable[int], now: Now) -> TraceIs:
        """Return what is known here of a message."""
        message, histories = MessageId.from_bytes(asked.message), self._histories
        own = self._announced.get(self._broker)
        claims: tuple[Any, ...] = ()
        held: tuple[Any, ...] = ()
        strangers: tuple[bytes, ...] = ()
        gaps: tuple[tuple[int, int], ...] = ()
        begins_us, trouble = 0, ""
        if histories is not None:
            try:
                found = histories.seen(message.batch_key)
                held, strangers = histories.held(message, found, now), histories.strangers(found)
                begins_us, gaps = histories.begins_us, histories.gaps()
                claims = tuple((*claim.history, claim.efpp, claim.parts) for claim in found)
            except ClarionError as error:  # messages are not concerned
                self.trouble = trouble = str(error)
        linked = {*(own.linked if own is not None else ()), *away}
        return TraceIs(
            asked.number, self._broker, self._name, tuple(sorted(linked)), claims,
            histories.strategy if histories is not None else "none", begins_us, held, strangers, gaps, trouble,
        )  # fmt: skip

    def _read(self, said: TraceIs) -> Answer:
        """Return what is answered, or that nothing follows from it."""
        if why := why_unsound(said):
            return self._silent(said.broker, f"answered what cannot be ({why})")
        claims = tuple(
            Claim(HistoryName(kind, origin, via, name), efpp, parts)  # type: ignore[arg-type]
            for kind, origin, via, name, efpp, parts in said.claims
        )
        strategy: Any = said.strategy
        trouble = "".join(each if each.isprintable() else "?" for each in said.trouble[:_TROUBLE_CHARACTERS])
        return Answer(
            said.broker, said.name if said.broker not in self._announced else self._name_of(said.broker), said.linked,
            claims, strategy, said.begins_us, held=tuple(Held(*each) for each in said.held), strangers=said.strangers,
            gaps=said.gaps, trouble=f"cannot read its histories: {trouble}" if trouble else "",
        )  # fmt: skip


def why_unsound(said: TraceIs) -> str:
    """Return what of an answer cannot be; "" where all of it can. What is only unknown here, such as another kind of
    histories, can be."""
    routing = [claim for claim in said.claims if claim[0] == "routing"]
    brokers = [*said.linked, *(broker for claim in said.claims for broker in claim[1:3])]
    times_us = [said.begins_us, *(at_us for gap in said.gaps for at_us in gap), *(held[2] for held in said.held)]
    parts = [part for claim in said.claims for part in claim[5]]
    waiting = [each for held in said.held for each in held[3]]
    sound = {
        "its name": not why_no_name(said.name),
        "its neighbours": len(said.linked) <= _MOST_NEIGHBOURS and len(routing) <= _MOST_WAYS,
        "ids of brokers": all(0 <= broker < 1 << 32 for broker in brokers),
        "times": all(0 <= at_us <= _LAST_US for at_us in times_us),
        "chances": all(0 <= claim[4] <= 1 for claim in said.claims),  # which no NaN is
        "parts of a batch": all(0 <= first <= stop <= MAX_BATCH_MESSAGES for first, stop in parts),
        "its log": all(held[1] >= NOT_FOUND and held[4] >= len(held[3]) for held in said.held),
        "who waits": all(
            before >= 0 and (not name.startswith(LINK) or _LINK_NAME.fullmatch(name)) for name, before in waiting
        ),
    }
    return next((what for what, can_be in sound.items() if not can_be), "")
