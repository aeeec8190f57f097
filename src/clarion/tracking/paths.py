"""The path of a message, put together from what brokers claim: which brokers to ask, the tree from the publisher's
broker to the subscribers, what in it may be an error, and what could not be learned.

Histories have no false negatives, so a broker that answers and has no claim never had the batch, unless its histories
begin later: then, and where it could not be asked, it is unknown. A claim that is not exact and that the broker it
came from denies is an error of a filter: unsupported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from clarion.model.ids import MessageId, stamp_to_unix_s
from clarion.model.names import to_text
from clarion.tracking.tracker import Claim, Ranges, Strategy

Asking = Literal["network", "neighbours", "forwarded"]


class Answer(NamedTuple):
    """What a broker says of a batch; or that it could not be asked, and what is known of it anyway."""

    broker: int
    name: str
    linked: tuple[int, ...] = ()
    claims: tuple[Claim, ...] = ()
    strategy: Strategy = "bloom"
    begins_us: int = 0  # its histories
    is_reachable: bool = True
    forwarded: tuple[int, ...] | None = None  # to whom, where it keeps that

    def unknown_why(self, message: MessageId) -> str:
        """Return why nothing follows from it that there is no claim; empty where something does."""
        if not self.is_reachable:
            return "could not be asked"
        if self.strategy == "none":
            return "keeps no histories"
        if not self.claims and self.begins_us > stamp_to_unix_s(message.stamp) * 1e6:
            return "its histories begin later"
        return ""

    def arrivals(self, message: MessageId) -> dict[int, Claim]:
        """Return its claims that the batch was put here or came here, by the broker that it came from."""
        claims = [claim for claim in self.claims if claim.history.origin == message.broker]
        found = {claim.history.via: claim for claim in claims if claim.history.kind == "routing"}
        put = [claim for claim in claims if claim.history.kind == "publisher"]
        return {self.broker: put[0]} if put and self.broker == message.broker else found

    def receivers(self, message: MessageId) -> list[Receiver]:
        """Return its claims that subscribers got the batch, or some of it."""
        return [
            Receiver(claim.history.subscriber, claim.efpp, claim.has(message.counter), claim.parts)
            for claim in self.claims
            if claim.history.kind == "subscriber" and claim.history.origin == message.broker
        ]


def to_ask(message: MessageId, answers: Mapping[int, Answer], asking: Asking = "neighbours") -> set[int]:
    """Return the brokers to ask next, all at once; none when the path is complete.

    `network` asks all that are linked, as the basic algorithm does; `neighbours` goes on from brokers that had the
    batch, or may have; `forwarded` asks of those only the ones it was forwarded to, where a broker keeps that.
    """
    found = {message.broker}
    for answer in answers.values():
        may_have = bool(answer.unknown_why(message))
        if asking == "network" or may_have or answer.arrivals(message):
            tells = asking == "forwarded" and answer.forwarded is not None and not may_have
            found.update(answer.forwarded if tells and answer.forwarded is not None else answer.linked)
    return found - answers.keys()


@dataclass(slots=True)
class Receiver:
    """A subscriber that got the message, or others of its batch."""

    subscriber: bytes
    chance: float  # that this is an error
    got: bool
    parts: Ranges  # of the batch; none given: all


@dataclass(slots=True)
class Stop:
    """A broker on the path."""

    broker: int
    name: str
    state: Literal["published", "routed", "unknown", "unsupported"]
    chance: float = 0.0
    note: str = ""
    receivers: list[Receiver] = field(default_factory=list)
    onward: list[Stop] = field(default_factory=list)

    def walk(self) -> Iterator[Stop]:
        """Return this and all that follow."""
        yield self
        for stop in self.onward:
            yield from stop.walk()


@dataclass(slots=True)
class Path:
    """Where a message went."""

    message: MessageId
    tree: Stop | None  # none: its broker says that it was never put
    unsupported: list[Stop]
    unknown: dict[str, str]  # by name: why

    @property
    def summary(self) -> str:
        """Say it in one sentence."""
        stops = list(self.tree.walk()) if self.tree else []
        got = sum(receiver.got for stop in stops for receiver in stop.receivers)
        partly = sum(not receiver.got for stop in stops for receiver in stop.receivers)
        rest = f"; {partly} received other messages of its batch only" if partly else ""
        rest += f"; {len(self.unknown)} brokers are unknown" if self.unknown else ""
        if self.tree is None:
            return "no such message was published" + rest
        if not got:
            begin = "published, nobody" if self.tree.state == "published" else "nobody that could be asked"
            return f"{begin} received it yet{rest}"
        return f"{got} received it, by {sum(stop.state == 'routed' for stop in stops) + 1} brokers{rest}"


def trace(message: MessageId, answers: Mapping[int, Answer]) -> Path:
    """Return the path of a message from what brokers answered."""
    named = {via for each in answers.values() for via in each.arrivals(message) if via} | {message.broker}
    known = dict(answers) | {
        broker: Answer(broker, f"broker {broker}", is_reachable=False) for broker in named - answers.keys()
    }
    parents = _parents(message, known)
    stops: dict[int, Stop] = {}
    unsupported = []
    for broker, parent in parents.items():  # each behind the one that it follows
        stop = stops[broker] = _stop(message, known[broker], parent)
        if broker != message.broker:
            stops[parent].onward.append(stop)
        if not known[broker].arrivals(message) and (lone := [each for each in stop.receivers if each.chance]):
            stop.receivers = [each for each in stop.receivers if not each.chance]
            unsupported.append(Stop(broker, stop.name, "unsupported", note="only of subscribers", receivers=lone))
    for broker, answer in sorted(known.items()):
        if broker not in parents and (answer.arrivals(message) or answer.receivers(message)):
            unsupported.append(_stop(message, answer, None))
    unknown = {each.name: why for _, each in sorted(known.items()) if (why := each.unknown_why(message))}
    return Path(message, stops.get(message.broker), unsupported, unknown)


def _parents(message: MessageId, answers: Mapping[int, Answer]) -> dict[int, int]:
    """Return from whom each broker on the path has the batch, that one before it; none is there by denied claims."""
    arrivals = {broker: answer.arrivals(message) for broker, answer in answers.items()}
    unknown = {broker for broker, answer in answers.items() if answer.unknown_why(message)}
    sure = {
        broker
        for broker, answer in answers.items()
        if any(not claim.efpp for claim in arrivals[broker].values())
        or any(not receiver.chance for receiver in answer.receivers(message))
    }
    parents: dict[int, int] = {}
    if arrivals[message.broker] or message.broker in unknown or sure:
        parents[message.broker] = message.broker
    while parents:
        left = sorted(answers.keys() - parents.keys())
        ways = [(claim.efpp, broker, via) for broker in left for via, claim in arrivals[broker].items()]
        if direct := [way for way in ways if way[2] in parents]:
            _, broker, parents[broker] = min(direct)
        elif through := [via for _, _, via in ways if via in unknown] or [each for each in left if each in sure]:
            # By a way that nobody tells: behind a neighbour that had it.
            near = [
                other for other in parents if through[0] in answers[other].linked or other in answers[through[0]].linked
            ]
            parents[through[0]] = message.broker if message.broker in near or not near else min(near)
        else:
            break
    return parents


def _stop(message: MessageId, answer: Answer, parent: int | None) -> Stop:
    """Return a broker as it is on the path, or beside it where there is no parent."""
    arrivals, note = answer.arrivals(message), answer.unknown_why(message)
    state: Literal["published", "routed", "unknown", "unsupported"] = "unknown"
    if parent is None:
        state, note = "unsupported", "the broker before it has no claim" if arrivals else "only of subscribers"
    elif arrivals:
        state = "published" if answer.broker == message.broker else "routed"
        note = "" if parent in arrivals else "the broker before it has no claim, but this one is sure"
    elif not note:
        note = "has no claim itself, but others do"
    claim = arrivals.get(answer.broker if parent is None else parent) or next(iter(arrivals.values()), None)
    return Stop(answer.broker, answer.name, state, claim.efpp if claim else 0.0, note, answer.receivers(message))


# As text, and as values for JSON.


def draw(path: Path) -> str:
    """Return the tree as text, what is unsupported and unknown below it."""
    lines = [f"message {path.message}, stamped {_stamped(path.message)}: {path.summary}"]
    if path.tree:
        lines += _lines(path.tree)
    if path.unsupported:
        lines.append("unsupported, so most likely errors of filters:")
        lines += [f"  {line}" for stop in path.unsupported for line in _lines(stop)]
    if path.unknown:
        lines += ["unknown:", *(f"  {name} {why}" for name, why in path.unknown.items())]
    return "\n".join(lines)


def _stamped(message: MessageId) -> str:
    """Return when the publisher's clock had it put."""
    time = datetime.fromtimestamp(stamp_to_unix_s(message.stamp), UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lines(stop: Stop) -> Sequence[str]:
    note = f" ({stop.note})" if stop.note else ""
    lines = [f"{stop.name} {stop.state}{_chance(stop.chance)}{note}"]
    below = [[_receiver(each)] for each in stop.receivers] + [list(_lines(each)) for each in stop.onward]
    for at, some in enumerate(below):
        is_last = at == len(below) - 1
        lines.append(("└── " if is_last else "├── ") + some[0])
        lines += [("    " if is_last else "│   ") + line for line in some[1:]]
    return lines


def _receiver(receiver: Receiver) -> str:
    parts = ", ".join(f"{first}-{stop - 1}" for first, stop in receiver.parts)
    said = "received" if receiver.got else "did not receive"
    of_batch = f" (of its batch: {parts})" if parts else ""
    return f"→ {to_text(receiver.subscriber)} {said}{of_batch}{_chance(receiver.chance)}"


def _chance(chance: float) -> str:
    return f", wrong with {chance:.1g}" if chance else ""


def to_dict(path: Path) -> dict[str, Any]:
    """Return the path as values for JSON."""
    return {
        "message": str(path.message),
        "stamped": _stamped(path.message),
        "summary": path.summary,
        "path": _values(path.tree) if path.tree else None,
        "unsupported": [_values(stop) for stop in path.unsupported],
        "unknown": path.unknown,
    }


def _values(stop: Stop) -> dict[str, Any]:
    receivers = [
        {"subscriber": to_text(each.subscriber), "received": each.got, "chance": each.chance,
         "of_batch": [list(part) for part in each.parts] or "all"}
        for each in stop.receivers
    ]  # fmt: skip
    return {
        "broker": f"{stop.broker:08x}", "name": stop.name, "state": stop.state, "chance": stop.chance,
        "note": stop.note, "receivers": receivers, "onward": [_values(each) for each in stop.onward],
    }  # fmt: skip
