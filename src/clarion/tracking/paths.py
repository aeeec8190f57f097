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
from clarion.model.names import DEAD_READER, LINK, to_text
from clarion.tracking.tracker import Claim, HistoryName, Ranges, Strategy

Asking = Literal["network", "neighbours", "forwarded"]


class Held(NamedTuple):
    """Where in a broker's log a message is, and who has not got it yet; of very many of these, some."""

    topic: bytes
    offset: int
    committed_us: int
    waiting: tuple[tuple[bytes, int], ...] = ()  # who, and how many messages it has before this one
    waiting_count: int = 0
    received: tuple[bytes, ...] = ()  # out of order, so that no history has it yet


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
    held: tuple[Held, ...] = ()
    strangers: tuple[bytes, ...] = ()  # subscribers of whom it has a claim, and who never subscribed to its topic

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
        """Return its claims that subscribers got the batch, or some of it, or went past the message."""
        by_kind: dict[str, dict[bytes, Claim]] = {"subscriber": {}, "skipped": {}}
        for claim in self.claims:
            if claim.history.origin == message.broker and claim.history.kind in by_kind:
                by_kind[claim.history.kind][claim.history.name] = claim
        got, skipped = by_kind["subscriber"], by_kind["skipped"]
        found = []
        for name in sorted({*got, *(name for name, claim in skipped.items() if claim.has(message.counter))}):
            claim = got.get(name) or Claim(HistoryName("subscriber", message.broker, 0, name), 0.0, ((0, 0),))
            went_past = name in skipped and skipped[name].has(message.counter)
            if claim.parts and claim.has(message.counter):  # it is known of this very message
                went_past = False
            has = claim.has(message.counter) and not went_past
            found.append(Receiver(name, claim.efpp, has, claim.parts if name in got else (), went_past))
        known = {each.subscriber for each in found if each.got}
        early = {name for held in self.held for name in held.received} - known
        return [*(each for each in found if each.subscriber not in early), *(Receiver(each) for each in sorted(early))]

    def topics(self, message: MessageId) -> dict[bytes, float]:
        """Return the topics that seem to have it, with the chance that each does so wrongly."""
        if self.held:
            return {held.topic: 0.0 for held in self.held}
        claims = [claim for claim in self.claims if claim.history.origin == message.broker]
        return {claim.history.name: claim.efpp for claim in claims if claim.history.kind == "topic"}


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
    chance: float = 0.0  # that this is an error
    got: bool = True
    parts: Ranges = ()  # of the batch; none given: all
    went_past: bool = False  # it expired, is a dead letter, or was before the subscription's beginning


@dataclass(slots=True)
class Waiting:
    """A subscriber, or another broker, that is still to get the message."""

    name: str
    before: int  # messages that it has to read before
    is_broker: bool = False


@dataclass(slots=True)
class Stop:
    """A broker on the path."""

    broker: int
    name: str
    state: Literal["published", "routed", "unknown", "unsupported"]
    chance: float = 0.0
    note: str = ""
    receivers: list[Receiver] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    waiting_count: int = 0
    held: Held | None = None  # where it is in this broker's log, while it is
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
    topics: dict[bytes, float]  # with the chance of an error; more than one only by errors
    tree: Stop | None  # none: its broker says that it was never put
    unsupported: list[Stop]
    unknown: dict[str, str]  # by name: why

    @property
    def summary(self) -> str:
        """Say it in one sentence."""
        stops = list(self.tree.walk()) if self.tree else []
        receivers = [receiver for stop in stops for receiver in stop.receivers]
        got = sum(receiver.got for receiver in receivers)
        past = sum(receiver.went_past for receiver in receivers)
        partly = len(receivers) - got - past
        waiting = sum(stop.waiting_count for stop in stops)
        rest = f"; {waiting} {'is' if waiting == 1 else 'are'} still to get it" if waiting else ""
        rest += f"; {past} went past it" if past else ""
        rest += f"; {partly} received other messages of its batch only" if partly else ""
        unknown = len(self.unknown)
        rest += f"; {unknown} {'broker is' if unknown == 1 else 'brokers are'} unknown" if unknown else ""
        if self.tree is None:
            return "no such message was published" + rest
        if not got:
            begin = "published, nobody" if self.tree.state == "published" else "nobody that could be asked"
            return f"{begin} received it{' yet' if waiting else ''}{rest}"
        brokers = sum(stop.state == "routed" for stop in stops) + 1
        return f"{got} received it, by {brokers} {'broker' if brokers == 1 else 'brokers'}{rest}"


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
        _add_waiting(stop, known, parents)
        for why, lone in _doubtful(known[broker], message, stop.receivers):
            stop.receivers = [each for each in stop.receivers if each not in lone]
            unsupported.append(Stop(broker, stop.name, "unsupported", note=why, receivers=lone))
    for broker, answer in sorted(known.items()):
        if broker not in parents and (answer.arrivals(message) or answer.receivers(message)):
            unsupported.append(_stop(message, answer, None))
    unknown = {each.name: why for _, each in sorted(known.items()) if (why := each.unknown_why(message))}
    on_path = [known[broker].topics(message) for broker in parents]
    topics: dict[bytes, float] = {}
    for told in on_path:
        topics |= {name: min(chance, topics.get(name, 1.0)) for name, chance in told.items()}
    sure = {name: 0.0 for name, chance in topics.items() if not chance}
    return Path(message, sure or topics, stops.get(message.broker), unsupported, unknown)


def _doubtful(answer: Answer, message: MessageId, receivers: list[Receiver]) -> Iterator[tuple[str, list[Receiver]]]:
    """Return claims of filters about subscribers that nothing else supports, with the reason."""
    claimed = [each for each in receivers if each.chance]
    if claimed and not answer.arrivals(message):
        yield "only of subscribers", claimed
    elif strangers := [each for each in claimed if each.subscriber in answer.strangers]:
        yield "of subscribers that never subscribed to its topic", strangers


def _add_waiting(stop: Stop, known: Mapping[int, Answer], parents: Mapping[int, int]) -> None:
    """Add who is still to get the message there; other brokers, as long as they are not on its path."""
    for held in known[stop.broker].held:
        stop.held, stop.waiting_count = held, held.waiting_count
        for name, before in held.waiting:
            other = int(name.removeprefix(LINK), 16) if name.startswith(LINK) else 0
            if other in parents:
                stop.waiting_count -= 1
            elif other:
                answer = known.get(other)
                stop.waiting.append(Waiting(answer.name if answer else f"broker-{other:08x}", before, is_broker=True))
            else:
                stop.waiting.append(Waiting(to_text(name), before))


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
    on = " or ".join(to_text(topic) + _chance(chance) for topic, chance in path.topics.items())
    lines = [f"message {path.message}{f' on {on}' if on else ''}, stamped {_stamped(path.message)}: {path.summary}"]
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
    return _time(stamp_to_unix_s(message.stamp))


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lines(stop: Stop) -> Sequence[str]:
    note = f" ({stop.note})" if stop.note else ""
    at = f", on disk {_time(stop.held.committed_us / 1e6)} at offset {stop.held.offset}" if stop.held else ""
    lines = [f"{stop.name} {stop.state}{_chance(stop.chance)}{note}{at}"]
    below = [[_receiver(each)] for each in stop.receivers] + [[_waiting(each)] for each in stop.waiting]
    if (more := stop.waiting_count - len(stop.waiting)) > 0:
        below.append([f"… and {more} more are still to get it"])
    below += [list(_lines(each)) for each in stop.onward]
    for place, some in enumerate(below):
        is_last = place == len(below) - 1
        lines.append(("└── " if is_last else "├── ") + some[0])
        lines += [("    " if is_last else "│   ") + line for line in some[1:]]
    return lines


def _receiver(receiver: Receiver) -> str:
    parts = ", ".join(f"{first}-{stop - 1}" for first, stop in receiver.parts)
    said = "received" if receiver.got else "went past it" if receiver.went_past else "did not receive"
    of_batch = f" (of its batch: {parts})" if parts else ""
    return f"→ {to_text(receiver.subscriber)} {said}{of_batch}{_chance(receiver.chance)}"


def _waiting(waiting: Waiting) -> str:
    if waiting.name == to_text(DEAD_READER):
        return "⋯ kept as a dead letter"
    before = f", {waiting.before} before it" if waiting.before else ""
    return f"⋯ {waiting.name} is still to get it{' over links' if waiting.is_broker else ''}{before}"


def _chance(chance: float) -> str:
    return f", wrong with {chance:.1g}" if chance else ""


def to_dict(path: Path) -> dict[str, Any]:
    """Return the path as values for JSON."""
    return {
        "message": str(path.message),
        "topics": [{"topic": to_text(topic), "chance": chance} for topic, chance in path.topics.items()],
        "stamped": _stamped(path.message),
        "summary": path.summary,
        "path": _values(path.tree) if path.tree else None,
        "unsupported": [_values(stop) for stop in path.unsupported],
        "unknown": path.unknown,
    }


def _values(stop: Stop) -> dict[str, Any]:
    receivers = [
        {"subscriber": to_text(each.subscriber), "received": each.got, "went_past": each.went_past,
         "chance": each.chance, "of_batch": [list(part) for part in each.parts] or "all"}
        for each in stop.receivers
    ]  # fmt: skip
    waiting = [
        {"broker" if each.is_broker else "subscriber": each.name, "messages_before": each.before}
        for each in stop.waiting
    ]
    return {
        "broker": f"{stop.broker:08x}", "name": stop.name, "state": stop.state, "chance": stop.chance,
        "note": stop.note, "offset": stop.held.offset if stop.held else None,
        "committed": _time(stop.held.committed_us / 1e6) if stop.held else None, "receivers": receivers,
        "waiting": waiting, "waiting_count": stop.waiting_count, "onward": [_values(each) for each in stop.onward],
    }  # fmt: skip
