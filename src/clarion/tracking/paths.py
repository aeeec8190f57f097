"""The path of a message, put together from what brokers claim: which brokers to ask, the tree from the publisher's
broker to the subscribers, what in it may be an error, and what could not be learned.

Histories have no false negatives, so a broker that answers and has no claim never had the batch, unless its histories
begin later: then, and where it could not be asked, it is unknown. A claim that is not exact and that the broker it
came from denies is an error of a filter: unsupported. Brokers' answers are checked before they come here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from clarion.model.ids import MessageId, stamp_to_unix_s
from clarion.model.names import LINK, to_text
from clarion.tracking.tracker import Claim, HistoryName, Ranges, Strategy

_MARGIN_US = 5_000_000  # by which clocks may be apart
NOT_FOUND = -1  # as an offset: the message may be in the topic's log
# Reasons for being unknown that stay: whoever is asked again says the same.
KEEPS_NONE, _BEGINS_LATER, _NOT_THEN = "keeps no histories", "its histories begin later", "did not track then"
LASTING = (KEEPS_NONE, _BEGINS_LATER, _NOT_THEN)


def time_text(unix_s: float) -> str:
    """Return a time as people read it."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Held(NamedTuple):
    """Where in a broker's log a message is, and who has not got it yet; of very many of these, some. Where it was not
    found quickly, the topic may have it, and nothing more is known."""

    topic: bytes
    offset: int  # NOT_FOUND where it was not found quickly
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
    held: tuple[Held, ...] = ()
    strangers: tuple[bytes, ...] = ()  # subscribers of whom it has a claim, and who never subscribed to its topic
    gaps: tuple[tuple[int, int], ...] = ()  # times in which it did not track
    trouble: str = ""  # why nothing follows from what it says: its histories cannot be read, or it says what cannot be

    def unknown_why(self, message: MessageId) -> str:
        """Return why nothing follows from it that there is no claim; empty where something does."""
        if self.trouble:
            return self.trouble
        if not self.is_reachable:
            return "could not be asked"
        if self.strategy == "none":
            return KEEPS_NONE
        if not self.arrivals(message):
            stamped_us = stamp_to_unix_s(message.stamp) * 1e6
            if self.begins_us > stamped_us:
                return _BEGINS_LATER
            if any(stamped_us <= until_us + _MARGIN_US for _, until_us in self.gaps):  # an outbox may have waited since
                return _NOT_THEN
        return ""

    def untracked(self, message: MessageId) -> str:
        """Return when it did not track since the message: who received it then is not known."""
        since = [gap for gap in self.gaps if gap[1] >= stamp_to_unix_s(message.stamp) * 1e6]
        return ", ".join(f"{time_text(begin / 1e6)} to {time_text(end / 1e6)}" for begin, end in since)

    def arrivals(self, message: MessageId) -> dict[int, Claim]:
        """Return its claims that the batch was put here or came here, by the broker that it came from."""
        claims = [claim for claim in self.claims if claim.history.origin == message.broker]
        found = {claim.history.via: claim for claim in claims if claim.history.kind == "routing"}
        put = [claim for claim in claims if claim.history.kind == "publisher"]
        return {self.broker: put[0]} if put and self.broker == message.broker else found

    def receivers(self, message: MessageId) -> list[Receiver]:
        """Return its claims that subscribers got the batch, or some of it, or went past the message. Who went past it
        and came back to read it has received it."""
        by_kind: dict[str, dict[bytes, Claim]] = {"subscriber": {}, "skipped": {}}
        for claim in self.claims:
            if claim.history.origin == message.broker and claim.history.kind in by_kind:
                by_kind[claim.history.kind][claim.history.name] = claim
        got, skipped = by_kind["subscriber"], by_kind["skipped"]
        waiting = {name for held in self.found() for name, _ in held.waiting}
        past = {name for name, claim in skipped.items() if claim.has(message.counter)} - waiting
        found = []
        for name in sorted({*got, *past}):
            claim = got.get(name) or Claim(HistoryName("subscriber", message.broker, 0, name), 0.0, ((0, 0),))
            has = claim.has(message.counter)
            found.append(Receiver(name, claim.efpp, has, claim.parts if name in got else (), name in past and not has))
        known = {each.subscriber for each in found if each.got}
        early = {name for held in self.found() for name in held.received} - known
        early -= {each.subscriber for each in found if each.went_past}
        return [*(each for each in found if each.subscriber not in early), *(Receiver(each) for each in sorted(early))]

    def found(self) -> list[Held]:
        """Return where in its log the message is, as far as it was found."""
        return [held for held in self.held if held.offset != NOT_FOUND]

    def topics(self, message: MessageId) -> dict[bytes, float]:
        """Return the topics that seem to have it, with the chance that each does so wrongly."""
        if found := self.found():
            return {held.topic: 0.0 for held in found}
        claims = [claim for claim in self.claims if claim.history.origin == message.broker]
        return {claim.history.name: claim.efpp for claim in claims if claim.history.kind == "topic"}


def to_ask(message: MessageId, answers: Mapping[int, Answer]) -> set[int]:
    """Return the brokers to ask next, all at once: those linked with brokers that had the batch, or may have; none when
    the path is complete."""
    found = {message.broker}
    for answer in answers.values():
        if answer.unknown_why(message) or answer.arrivals(message):
            found.update(answer.linked)
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
    may_wait: bool = False  # in its log, where it was not found quickly
    given_up: list[str] = field(default_factory=list)  # brokers that it was kept for, and is not any more
    untracked: str = ""  # when it did not track since
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
    said_of_unknown: dict[str, str]  # by name: what others say of it

    @property
    def state(self) -> str:
        """Say it in a word or two, for programs."""
        if self.tree is None:
            return "never seen"
        stops = list(self.tree.walk())
        if any(stop.waiting_count for stop in stops):
            return "on its way"
        if any(receiver.got for stop in stops for receiver in stop.receivers):
            return "delivered"
        is_known = not self.unknown and not any(stop.may_wait or stop.untracked for stop in stops)
        return "not delivered" if is_known else "unknown"

    @property
    def summary(self) -> str:
        """Say it in one sentence."""
        if self.tree is None:
            return "no such message was published"
        stops = list(self.tree.walk())
        receivers = [receiver for stop in stops for receiver in stop.receivers]
        got = sum(receiver.got for receiver in receivers)
        past = sum(receiver.went_past for receiver in receivers)
        partly = len(receivers) - got - past
        waiting = sum(stop.waiting_count for stop in stops)
        rest = f"; {waiting} {'is' if waiting == 1 else 'are'} still to get it" if waiting else ""
        rest += "; it may still wait in the topic" if any(stop.may_wait for stop in stops) else ""
        rest += f"; {past} went past it" if past else ""
        given_up = sum(len(stop.given_up) for stop in stops)
        rest += f"; it was given up for {given_up} {'broker' if given_up == 1 else 'brokers'}" if given_up else ""
        rest += f"; {partly} received other messages of its batch only" if partly else ""
        if unknown := len(self.unknown):
            rest += f"; {unknown} {'broker is' if unknown == 1 else 'brokers are'} unknown"
            rest += ", so others may have received it" if got else ""
        if got:
            brokers = len(stops)
            return f"{got} received it, by {brokers} {'broker' if brokers == 1 else 'brokers'}{rest}"
        begin = "published, nobody received it"
        if self.unknown:
            begin = "nobody that could be asked received it"
        elif self.state == "unknown":
            begin = "published, nobody is known to have received it"
        return f"{begin}{' yet' if waiting else ''}{rest}"


def trace(message: MessageId, answers: Mapping[int, Answer]) -> Path:
    """Return the path of a message from what brokers answered."""
    named = {via for each in answers.values() for via in each.arrivals(message) if via} | {message.broker}
    known = dict(answers) | {
        broker: Answer(broker, f"broker-{broker:08x}", is_reachable=False) for broker in named - answers.keys()
    }
    parents = _parents(message, known)
    alike = Counter(answer.name for answer in known.values())
    known = {
        broker: answer._replace(name=f"{answer.name} ({broker:08x})") if alike[answer.name] > 1 else answer
        for broker, answer in known.items()
    }
    stops: dict[int, Stop] = {}
    unsupported = []
    for broker, parent in parents.items():  # each behind the one that it follows
        stop = stops[broker] = _stop(message, known[broker], parent)
        if broker != message.broker:
            stops[parent].onward.append(stop)
        _add_waiting(stop, message, known, parents)
        _tell_given_up(stop, known, parents)
        for why, lone in _doubtful(known[broker], message, stop.receivers):
            stop.receivers = [each for each in stop.receivers if each not in lone]
            unsupported.append(Stop(broker, stop.name, "unsupported", note=why, receivers=lone))
    for broker, answer in sorted(known.items()):
        if broker not in parents and (answer.arrivals(message) or answer.receivers(message)):
            unsupported.append(_stop(message, answer, None))
    why_unknown = {broker: why for broker, each in sorted(known.items()) if (why := each.unknown_why(message))}
    said = {broker: _said(broker, message, known, parents, stops) for broker in why_unknown}
    on_path = [known[broker].topics(message) for broker in parents]
    topics: dict[bytes, float] = {}
    for told in on_path:
        topics |= {name: min(chance, topics.get(name, 1.0)) for name, chance in told.items()}
    sure = {name: 0.0 for name, chance in topics.items() if not chance}
    unknown = {known[broker].name: why for broker, why in why_unknown.items()}
    said_of_unknown = {known[broker].name: text for broker, text in said.items() if text}
    return Path(message, sure or topics, stops.get(message.broker), unsupported, unknown, said_of_unknown)


def _said(
    broker: int, message: MessageId, known: Mapping[int, Answer], parents: Mapping[int, int], stops: Mapping[int, Stop]
) -> str:
    """Return what is known of a broker that is unknown, by the id and the others; empty where that is nothing."""
    name, origin = known[broker].name, stops.get(message.broker)
    told = ["by the id, it was put there"] if broker == message.broker else []
    after = [known[other] for other, parent in parents.items() if parent == broker != other]
    if names := [each.name for each in after if broker in each.arrivals(message)]:
        told.append(f"{' and '.join(names)} had it from there")
    if origin is not None and any(each.is_broker and each.name == name for each in origin.waiting):
        told.append(f"it is still to get it from {origin.name}")
    return ", ".join(told)


def _doubtful(answer: Answer, message: MessageId, receivers: list[Receiver]) -> Iterator[tuple[str, list[Receiver]]]:
    """Return claims of filters about subscribers that nothing else supports, with the reason."""
    claimed = [each for each in receivers if each.chance]
    if claimed and not answer.arrivals(message):
        yield "only of subscribers", claimed
    elif strangers := [each for each in claimed if each.subscriber in answer.strangers]:
        yield "of subscribers that never subscribed to its topic", strangers


def _add_waiting(stop: Stop, message: MessageId, known: Mapping[int, Answer], parents: Mapping[int, int]) -> None:
    """Add who is still to get the message there: subscribers, and then other brokers that are not on its path. Those
    get it from its origin's log, whoever carries it."""
    found = known[stop.broker].found()
    stop.may_wait = bool(known[stop.broker].held) and not found
    for held in found:
        stop.held = held
        stop.waiting_count += held.waiting_count
        for name, before in held.waiting:
            if not name.startswith(LINK):
                stop.waiting.append(Waiting(to_text(name), before))
                continue
            other = int(name.removeprefix(LINK), 16)
            if other in parents or stop.broker != message.broker:
                stop.waiting_count -= 1
            else:
                answer = known.get(other)
                stop.waiting.append(Waiting(answer.name if answer else f"broker-{other:08x}", before, is_broker=True))
    stop.waiting.sort(key=lambda each: each.is_broker)


def _tell_given_up(stop: Stop, known: Mapping[int, Answer], parents: Mapping[int, int]) -> None:
    """Set apart the brokers that a message was given up for, of those that it did not come to in another way."""
    links = [each for each in stop.receivers if each.subscriber.startswith(LINK)]
    stop.receivers = [each for each in stop.receivers if each not in links]
    for other in (int(each.subscriber.removeprefix(LINK), 16) for each in links if each.went_past):
        if other not in parents:
            stop.given_up.append(known[other].name if other in known else f"broker-{other:08x}")


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
    untracked = answer.untracked(message) if arrivals else ""
    if untracked:
        note = f"{note}{'; ' if note else ''}did not track {untracked}, so who received it then is not known"
    claim = arrivals.get(answer.broker if parent is None else parent) or next(iter(arrivals.values()), None)
    chance, receivers = claim.efpp if claim else 0.0, answer.receivers(message)
    return Stop(answer.broker, answer.name, state, chance, note, receivers, untracked=untracked)
