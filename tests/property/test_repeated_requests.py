"""Any request of any kind may be repeated after any other: it is as if the repeat had not come, or it is refused.

Two brokers are asked the same by everybody, and one of them hears earlier requests once more, frame by frame: on the
same connection or another, right away or when the world has changed, after a restart or a commit that failed. From then
on both must have the same on disk, lend the same, and give the same answers to all. Where the first copy was lost, so
that the one that comes late is the first, both hear it, and nothing that was decided later is undone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.checked_engine import REPLAYED
from tests.property.repeating_clients import PATTERN, PLACES, Clients, Sent
from tests.property.twin_brokers import LEASE_S, OneBroker, Told

from clarion.broker.engine import Limits, Now
from clarion.model.names import dead_letters_of
from clarion.store import memory
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import RETRIED, Code
from clarion.wire.frames import REQUEST_KINDS, Kind

# What a repeat may be answered beside a refusal, given what the first copy was.


def _same(first: Told, again: Told) -> bool:
    return first == again


def _whatever_is(first: Told, again: Told) -> bool:
    return True


def _done(first: Told, again: Told) -> bool:
    return again.kind == Kind.ACK


def _same_place(first: Told, again: Told) -> bool:
    one, other = first.read(bodies.PutDone), again.read(bodies.PutDone)
    return (one.number, one.first_offset, one.committed_at_us) == (
        other.number,
        other.first_offset,
        other.committed_at_us,
    )


def _same_places(first: Told, again: Told) -> bool:
    one, other = first.read(bodies.PutsDone), again.read(bodies.PutsDone)
    refused = {place for place, *_ in (*one.refused, *other.refused)}
    return all(
        place in refused or (one.offsets[place], one.times_us[place]) == (other.offsets[place], other.times_us[place])
        for place in range(len(one.offsets))
    )


def _same_session(first: Told, again: Told) -> bool:
    return bool(first.read(bodies.FetchBegun).token == again.read(bodies.FetchBegun).token)


def _same_token(first: Told, again: Told) -> bool:
    return bool(first.read(bodies.Attached).token == again.read(bodies.Attached).token)


def _of_same_loan(first: Told, again: Told) -> bool:
    return again.kind == Kind.NO_MESSAGES or _lent(again) <= _lent(first)


def _lent(told: Told) -> set[tuple[int, int]]:
    return {(offset, attempt) for start, stop, attempt in told.read(bodies.Lent).lent for offset in range(start, stop)}


# Their answers are kept with what they changed.
DECIDED = frozenset({
    Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.REGISTER, Kind.CONFIGURE, Kind.SEEK, Kind.PURGE, Kind.DELETE, Kind.DEAD,
    Kind.COMMIT_STAGED,
})  # fmt: skip
RULES: dict[Kind, Callable[[Told, Told], bool]] = {
    **dict.fromkeys(DECIDED, _same),
    Kind.TRANSACT: _same,
    Kind.PUT: _same_place,
    Kind.PUT_MANY: _same_places,
    Kind.BEGIN_FETCH: _same_session,
    Kind.ACK_MANY: _done,
    Kind.ATTACH: _same_token,
    Kind.TAKE: _of_same_loan,
    Kind.STAGE: _done,
    Kind.ACK: _done,
    Kind.RETURN: _done,
    Kind.RENEW: _done,
    Kind.DETACH: _done,
    Kind.FORGET: _done,
    Kind.OPEN: _done,
    Kind.REPORT: _done,
    Kind.HELLO: _done,
    **dict.fromkeys(
        (
            Kind.GET,
            Kind.READ,
            Kind.TOPICS,
            Kind.STATS,
            Kind.STATE,
            Kind.DESCRIBE,
            Kind.DESCRIBE_MANY,
            Kind.MATCHES,
            Kind.FIND_OFFSET,
            Kind.FETCH,
        ),
        _whatever_is,
    ),
}
# Declared exceptions (docs/protocol.md, "Once"): what these change when they come again is nobody's decision.
MAKES_EMPTY_TOPICS = frozenset({Kind.OPEN})
# A session is in memory, and a fetch asks for more of it each time it comes: both brokers hear these again.
OF_SESSIONS = frozenset({Kind.BEGIN_FETCH, Kind.FETCH})
TELLS_IN_MEMORY = frozenset({Kind.REPORT})  # the older one is shown again, by STATS alone

_KEPT_REFUSALS = frozenset({Kind.PUT, Kind.TRANSACT})  # some of theirs use a number up, and stay
_FOR_NOW = RETRIED | {Code.STALE}
_NOT_FINAL = _FOR_NOW | {Code.SHOW_HELD, Code.PUBLISHER_EXPIRED, Code.NO_TOPIC, Code.MALFORMED}
_OFTEN = (
    *[Kind.PUT] * 3, *[Kind.PUT_MANY] * 3, *[Kind.SUBSCRIBE] * 3, *[Kind.ATTACH] * 2, *[Kind.BEGIN_FETCH] * 2,
    *[Kind.FETCH] * 4, *[Kind.TAKE] * 3, *[Kind.RENEW] * 2, *[Kind.RETURN] * 2, Kind.GET, Kind.ACK, Kind.ACK,
    *[Kind.ACK_MANY] * 2, Kind.TRANSACT, Kind.STAGE, Kind.STAGE, Kind.COMMIT_STAGED, Kind.REGISTER,
)  # fmt: skip
_CONSUMERS = (Kind.ATTACH, Kind.TAKE, Kind.RETURN, Kind.ACK)
# What happens together, often to one topic and name; and what may have been asked for before, and comes then.
_TOGETHER: tuple[tuple[tuple[Kind, ...], tuple[Kind, ...]], ...] = (
    (
        (Kind.DELETE, Kind.SUBSCRIBE, Kind.PUT, Kind.ATTACH),
        (Kind.PURGE, Kind.CONFIGURE, Kind.DELETE, Kind.UNSUBSCRIBE, Kind.SEEK, Kind.STAGE, Kind.PUT, *_CONSUMERS),
    ),
    ((Kind.UNSUBSCRIBE, Kind.SUBSCRIBE, Kind.PUT, Kind.ATTACH), (Kind.UNSUBSCRIBE, Kind.SEEK, *_CONSUMERS)),
    ((Kind.ATTACH, Kind.PUT, Kind.TAKE, Kind.RETURN, Kind.TAKE), (Kind.SEEK, *_CONSUMERS)),
    ((Kind.ATTACH, Kind.PUT, Kind.TAKE, Kind.RETURN, Kind.PUT, Kind.TAKE, Kind.RETURN), (Kind.DEAD,)),
    ((Kind.ATTACH, Kind.PUT, Kind.TAKE, Kind.TAKE), (Kind.TAKE,)),
    ((Kind.DELETE,), (Kind.TRANSACT, Kind.STAGE)),
    (
        (Kind.DELETE, Kind.SUBSCRIBE, Kind.PUT_MANY, Kind.BEGIN_FETCH, Kind.FETCH, Kind.ACK_MANY),
        (Kind.PUT_MANY, Kind.BEGIN_FETCH, Kind.FETCH, Kind.ACK_MANY),
    ),
    ((Kind.BEGIN_FETCH, Kind.PUT_MANY, Kind.FETCH, Kind.ATTACH), (Kind.BEGIN_FETCH, Kind.SEEK, Kind.ACK_MANY)),
    ((Kind.STAGE, Kind.COMMIT_STAGED, Kind.STAGE, Kind.COMMIT_STAGED), (Kind.STAGE, Kind.COMMIT_STAGED)),
    ((Kind.FORGET, Kind.REGISTER, Kind.PUT, Kind.TRANSACT), (Kind.PUT, Kind.TRANSACT, Kind.STAGE, Kind.REGISTER)),
)
_PATTERN_TOGETHER = (
    (Kind.UNSUBSCRIBE, Kind.SUBSCRIBE, Kind.PUT, Kind.BEGIN_FETCH, Kind.FETCH),
    (Kind.UNSUBSCRIBE, Kind.BEGIN_FETCH, Kind.FETCH, Kind.ACK_MANY),
)
_LOST = (
    *sorted(DECIDED),
    Kind.STAGE,
    Kind.PUT,
    Kind.PUT_MANY,
    Kind.ACK_MANY,
    *sorted(OF_SESSIONS),
    Kind.TRANSACT,
    *_CONSUMERS,
)
_EVENTS = (
    *["repeat"] * 6, *["lose"] * 3, *["overtake"] * 3, "late", "late", "hold", "begin", "fail", "crash", "crash stored",
    "lapse", "tick", *["remake"] * 4,
)  # fmt: skip
_ACTIONS = (*sorted(REQUEST_KINDS), *_OFTEN, *_EVENTS)


class Twins:
    """Two brokers in step, and everybody who asks them."""

    def __init__(self, retention: str) -> None:
        self.now_s = 1000.0
        limits = Limits(default_retention=retention, stale_msg_interval_s=0.1, least_hold_s=0.1, staged_expiry_s=4.0)
        self.plain, self.other = OneBroker(limits), OneBroker(limits)
        for each in (self.plain, self.other):
            each.start(self.now)
        self.clients = Clients(self.plain)
        self.sent: list[Sent] = []
        self.by_key: dict[tuple[bytes, int], Sent] = {}
        self.held = 0  # steps for which nothing is committed
        self.connections = self.steps = 0
        self.repeated: Counter[int] = Counter()

    @property
    def now(self) -> Now:
        return Now(self.now_s, 1_700_000_000_000_000 + int(self.now_s * 1e6))

    @property
    def both(self) -> tuple[OneBroker, OneBroker]:
        return self.plain, self.other

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for each in self.both:
            each.tick(self.now)
        self.hear()

    def set_up(self) -> None:
        """Have somebody who puts, and subscriptions with consumers."""
        for kind in (Kind.REGISTER, *[Kind.SUBSCRIBE] * 4, *[Kind.ATTACH] * 4, *[Kind.PUT] * 3):
            self.take(kind, len(self.sent))

    # Steps.

    def take(self, action: int | str, seed: int) -> None:
        self.steps += 1
        dice = Random(f"{seed} {self.steps}")  # Hypothesis likes small numbers, and many alike
        self.now_s += 0.001
        if isinstance(action, int):
            self.request(Kind(action), dice)
        else:
            getattr(self, action.replace(" ", "_"))(dice)
        self.held = max(0, self.held - 1)
        if not self.held:
            self.settle()

    def request(self, kind: Kind, dice: Random, *, losing: bool = False) -> None:
        sent = self.clients.ask(kind, dice)
        if sent is None:
            return
        if self.by_key.get((sent.peer, sent.request_id)) is sent:  # numbered, and made before: it comes first
            self.again(sent, dice)
            return
        self.sent.append(sent)
        self.by_key[sent.peer, sent.request_id] = sent
        if not losing:
            self.deliver(sent)

    def deliver(self, sent: Sent) -> None:
        """Have both take it."""
        sent.state, sent.in_flight = "open", False
        for each in self.both:
            each.take(sent.peer, sent.frames, self.now)
        self.hear()

    def hear(self) -> None:
        """Take in the first answers."""
        for sent in [sent for sent in self.sent if sent.state == "open"]:
            told = self.plain.answers.get((sent.peer, sent.request_id))
            if told:
                sent.answer = told[-1]
                sent.state = "done" if _is_final(sent.kind, told[-1]) else "refused"
                self.clients.hear(sent, told[-1])

    def lose(self, dice: Random) -> None:
        """Something is asked for, and does not come until later."""
        self.request(dice.choice(_LOST), dice, losing=True)

    def late(self, dice: Random) -> None:
        """What was lost comes after all."""
        lost = [sent for sent in self.sent if sent.state == "lost"]
        if lost:
            self.again(dice.choice(lost), dice)

    def overtake(self, dice: Random) -> None:
        """Much is asked for, and comes when what it is for was made anew."""
        before = len(self.sent)
        self._together(dice, losing=True)
        for sent in self.sent[before:]:
            self.again(sent, dice)

    def _together(self, dice: Random, *, losing: bool) -> None:
        self.settle()
        self.clients.aim = dice.choice(PLACES)
        what, overtaken = _PATTERN_TOGETHER if self.clients.aim[0] == PATTERN else dice.choice(_TOGETHER)
        for kind in overtaken if losing else ():
            self.request(kind, dice, losing=True)
        for kind in what:
            self.request(kind, dice)
            self.settle()
        self.clients.aim = None

    def repeat(self, dice: Random) -> None:
        if self.sent:
            places = (self.sent, self.sent[-6:])
            self.again(dice.choice(dice.choice(places)), dice)

    def remake(self, dice: Random) -> None:
        """A topic, or a subscription, goes and comes again, with messages; or what else goes together."""
        before = len(self.sent)
        self._together(dice, losing=False)
        for sent in self.sent[before:]:
            self.again(sent, dice)

    def hold(self, dice: Random) -> None:
        self.held = 4

    def begin(self, dice: Random) -> None:
        """A commit is under way, and stays so for some steps."""
        self.settle()
        for kind in dice.choices(_OFTEN, k=2):
            self.request(kind, dice)
        self._begin()
        self.held = 3

    def _begin(self) -> None:
        if self.plain.group is None and self.other.group is None:
            for each in self.both:
                each.begin_commit()
            for sent in self.sent:
                sent.in_flight = sent.state == "open"

    def fail(self, dice: Random) -> None:
        """A commit fails, and with it all that was taken since."""
        self.settle()
        for kind in dice.choices(_OFTEN, k=3):
            self.request(kind, dice)
        self._begin()
        if self.plain.group is not None and self.other.group is not None:
            for each in self.both:
                each.fail_commit(self.now)
            self.hear()
        self.settle()

    def crash(self, dice: Random) -> None:
        self._crash()

    def crash_stored(self, dice: Random) -> None:
        """What was just asked is on disk, and nobody hears of it any more."""
        self.settle()
        for kind in dice.choices((*_OFTEN, *sorted(DECIDED)), k=3):
            self.request(kind, dice)
        self._begin()
        for each in self.both:
            each.reach_disk()
        self._crash()

    def _crash(self) -> None:
        stored = self.plain.stored and self.plain.group is not None
        self.check_answers()
        for sent in self.sent:
            if sent.state == "open":
                sent.state = "stored" if stored and sent.in_flight and self._is_decided(sent) else "lost"
        for each in self.both:
            each.answers.clear()
            each.start(self.now)
        self.check_same()

    def _is_decided(self, sent: Sent) -> bool:
        """Tell whether more than a "not now" was on its way to who asked; a TAKE may just have waited."""
        if sent.kind in DECIDED:
            return self.plain.store.decision(getattr(sent.body, "nonce", b"")) is not None
        return sent.kind not in (Kind.TAKE, Kind.PUT_MANY, Kind.ACK_MANY)  # some of their parts may be refused for now

    def lapse(self, dice: Random) -> None:
        self.pass_time(1.5 * LEASE_S)

    def tick(self, dice: Random) -> None:
        self.pass_time(0.2)

    # Repeats.

    def again(self, sent: Sent, dice: Random) -> None:
        """Send the same frames once more."""
        unused = sent.kind == Kind.TAKE and (
            sent.state == "open" or (sent.answer is not None and sent.answer.kind == Kind.NO_MESSAGES)
        )  # its number is used until it brings messages: it is the next one, too
        if sent.state in ("lost", "refused") or unused or sent.kind in MAKES_EMPTY_TOPICS | OF_SESSIONS:
            self.come_late(sent)
            return
        peer = sent.peer
        if dice.random() < 0.5:
            self.connections += 1
            peer = b"connection %d" % self.connections
            self.by_key[peer, sent.request_id] = sent
        self.other.take(peer, sent.frames, self.now)
        self.repeated[sent.kind] += 1
        if not self.held:
            self.settle()

    def come_late(self, sent: Sent) -> None:
        """It was not done before: both take it, and what was decided since stays."""
        self.settle()
        before, was_done = _snapshot(self.plain), sent.state in ("done", "stored")
        self.deliver(sent)
        self.settle()
        if was_done and sent.kind in OF_SESSIONS:
            self.repeated[sent.kind] += 1
        if was_done and sent.kind == Kind.BEGIN_FETCH:
            assert before == _snapshot(self.plain), f"{sent} came again, and changed something"
        _check_newer(sent, before, _snapshot(self.plain))

    # Checks.

    def settle(self) -> None:
        news = [each.settle(self.now) for each in self.both]
        states = [each.engine._state for each in self.both]
        if any(state.notes_by_s is not None or state.open.patient for state in states):
            # What was lent is written with whichever commit comes first, and so are acks that nobody waits for: have it
            # be the same one for both.
            self.now_s += 0.02
            for each in self.both:
                each.tick(self.now)
                news.append(each.settle(self.now))
        if any(news):
            self.hear()
            self.check_answers()
            self.check_same()

    def check_answers(self) -> None:
        """Everybody was given the same answers; who asked again, the first one's meaning, or a refusal."""
        for key in self.plain.answers.keys() | self.other.answers.keys():
            sent = self.by_key[key]
            extra = self.other.answers.get(key, [])
            if sent.kind != Kind.STATS:
                for told in self.plain.answers.get(key, ()):
                    assert told in extra, f"{sent} was answered {told} by one broker, and by the other {extra}"
                    extra.remove(told)
            for told in extra:
                if told.refusal is None and sent.answer is not None:
                    assert sent.answer.refusal is None, f"{sent} was refused, and asked again {told}"
                    assert RULES[sent.kind](sent.answer, told), f"{sent} asked again was answered {told}"
                elif told.refusal is not None and sent.answer is not None and sent.kind in DECIDED:
                    assert told == sent.answer or told.refusal.code in _FOR_NOW, f"{sent} asked again: {told}"
        for each in self.both:
            each.answers.clear()

    def check_same(self) -> None:
        """Both have the same, as if nothing had been repeated."""
        one, other = self.plain.durable(), self.other.durable()
        for name, value in one.items():
            assert value == other[name], f"{name} differs after a repeat"
        assert self.plain.lent() == self.other.lent(), "what is lent differs after a repeat"
        assert self.plain.engine._state.count == self.other.engine._state.count, "something was decided by a repeat"

    def check_once(self) -> None:
        """No message is stored twice, whatever was sent how often."""
        for log in self.plain.store._logs.values():
            parsed = [Batch(batch.data) for batch in log.batches]
            payloads = Counter(payload for batch in parsed if batch.publisher for payload in batch.payloads())
            assert not payloads or max(payloads.values()) == 1, f"stored twice: {payloads}"

    def finish(self) -> None:
        """Repeat everything there was, before and after a restart."""
        dice = Random(0)
        for _ in range(2):
            self.held = 0
            self.settle()
            for sent in [sent for sent in self.sent if sent.state == "lost"]:
                self.again(sent, dice)
            for sent in [sent for sent in self.sent if sent.state in ("done", "stored")]:
                self.again(sent, dice)
            self.check_once()
            self._crash()


def _is_final(kind: Kind, told: Told) -> bool:
    """Tell whether an answer stays what it is."""
    refusal = told.refusal
    if refusal is None and kind == Kind.PUT_MANY:
        return not any(code in _NOT_FINAL for _, code, *_ in told.read(bodies.PutsDone).refused)
    if refusal is None and kind == Kind.ACK_MANY:
        return not told.read(bodies.AcksDone).refused
    if refusal is None:
        return True
    if kind in DECIDED:
        return refusal.code not in _FOR_NOW
    return kind in _KEPT_REFUSALS and refusal.code not in _NOT_FINAL


def _snapshot(broker: OneBroker) -> dict[str, Any]:
    store = broker.store
    return {
        "topics": {number: (log.row, tuple(log.batches)) for number, log in store._logs.items()},
        "subscriptions": dict(store._subscriptions),
        "publishers": dict(store._publishers),
        "staged": dict(store._staged),
        "states": dict(store._states),
        "returned": dict(store._returned),
        "patterns": dict(store._patterns),
        "writers": dict(store._writers),
    }


def _of_topics(numbers: set[int], rows: dict[Any, Any]) -> dict[Any, Any]:
    return {key: row for key, row in rows.items() if (key if isinstance(key, int) else key[0]) in numbers}


def _check_newer(sent: Sent, before: dict[str, Any], after: dict[str, Any]) -> None:
    """What is refused has changed nothing; what is done has not touched what was made after it was asked for."""
    told, kind, body = sent.answer, sent.kind, sent.body
    assert told is not None or kind in (Kind.TAKE, Kind.FETCH), f"{sent} was not answered"
    if told is not None and told.refusal is not None:
        assert before == after, f"{sent} was refused, and changed something"
    as_of = getattr(body, "as_of", 0)
    if kind in MAKES_EMPTY_TOPICS:
        for number, topic in after["topics"].items():
            assert before["topics"].get(number, (topic[0], ())) == topic, "an OPEN changed a topic"
    for name, row in before["writers"].items():
        assert after["writers"][name].epoch >= row.epoch, f"{sent} took back what a writer committed"
    if kind in (Kind.PURGE, Kind.DELETE, Kind.CONFIGURE, Kind.DEAD) and not getattr(body, "number", 0):
        meant = dead_letters_of(body.topic) if isinstance(body, bodies.Dead) else getattr(body, "topic", b"")
        newer = {number for number, (row, _) in before["topics"].items() if number > as_of and row.name == meant}
        for what in ("topics", "subscriptions"):
            kept = _of_topics(newer, before[what])
            assert kept == _of_topics(newer, after[what]), (
                f"{sent} was for a topic that is gone, and changed a newer one"
            )
    if kind == Kind.UNSUBSCRIBE:
        for key, row in before["patterns"].items():
            assert row.number <= as_of or after["patterns"].get(key) == row, f"{sent} ended a newer pattern"
    if isinstance(body, bodies.BeginFetch):
        wanted = {number for number, (row, _) in before["topics"].items() if row.name in body.topics}
        for what in ("patterns", "subscriptions"):
            for key, row in before[what].items():
                is_meant = key[1] == body.name and (key[0] in body.topics or key[0] in wanted)
                if is_meant and max(row.token, getattr(row, "number", 0)) > as_of:
                    assert after[what].get(key) == row, f"{sent} took what was decided later"
    if kind in (Kind.UNSUBSCRIBE, Kind.SEEK, Kind.ATTACH) and getattr(body, "topic", b"") != PATTERN:
        name = getattr(body, "name", b"")
        later = {
            key: row for key, row in before["subscriptions"].items()
            if row.token > as_of and row.name == name and not (kind == Kind.ATTACH and row.consumers)
        }  # fmt: skip
        kept = {key: row for key, row in after["subscriptions"].items() if key in later}
        assert kept == later, f"{sent} undid what was decided later"


_repeated: Counter[int] = Counter()


@given(
    steps=st.lists(st.tuples(st.sampled_from(_ACTIONS), st.integers(0, 1 << 16)), min_size=30, max_size=60),
    retention=st.sampled_from(("keep", "until-read")),
    kept=st.sampled_from((4, 16_384)),
)
@settings(REPLAYED, max_examples=300)
def _play(steps: list[tuple[int | str, int]], retention: str, kept: int) -> None:
    with mock.patch.object(memory, "DECISIONS_KEPT", kept):
        twins = Twins(retention)
        twins.set_up()
        for action, seed in steps:
            twins.take(action, seed)
        twins.finish()
        _repeated.update(twins.repeated)


def test_any_request_may_be_repeated_after_any_other() -> None:
    assert RULES.keys() == REQUEST_KINDS, "each kind of request needs a rule for its repeats"
    _repeated.clear()
    _play()
    assert _repeated.keys() >= REQUEST_KINDS - MAKES_EMPTY_TOPICS, "not every kind was done, and repeated"


def test_clients_ask_for_everything_there_is() -> None:
    assert Twins("keep").clients.makers.keys() == REQUEST_KINDS
