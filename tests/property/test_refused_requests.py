"""A refused request, of whatever kind, has changed nothing: neither what will be on disk, nor what is in memory. So
what applies a request never refuses it: that was for its check to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from random import Random
from typing import Any

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.property.checked_engine import REPLAYED
from tests.property.repeating_clients import PEERS, TOPICS, Clients, Draft, Sent
from tests.property.twin_brokers import LEASE_S, OneBroker, Told

from clarion.broker.engine import Limits, Now
from clarion.broker.engine.answers import Refused, Reply, ReplyTo
from clarion.broker.engine.state import PutTaken, TransactionTaken
from clarion.model.names import is_pattern
from clarion.store.port import Changes
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import DECIDED_KINDS, REQUEST_KINDS, Kind, pack_frames

REFUSED = frozenset({Kind.INVALID, Kind.REFUSED, Kind.NO_SUBSCRIBER, Kind.NOT_SUBSCRIBED})
NEW = (b"new", b"newer", b"newest")
QUIET = bodies.Matches(b"quiet/#", b"watcher", 1, 60_000)  # of which there is never news: it waits
LIMITS = {
    "max_batch_bytes": 900,
    "topic_max_bytes": 1200,
    "max_topics": 5,
    "max_subscriptions": 5,
    "max_subscriptions_per_topic": 3,
    "max_publishers": 4,
    "max_patterns": 2,
    "max_waiting_gets": 1,
    "max_consumers_per_subscription": 2,
    "max_writers": 1,
    "max_states": 1,
    "max_acked_ranges": 2,
    "publisher_expiry_s": 40.0,
}

# What refused requests leave behind, all of it: fields of Changes.
ALWAYS_KEPT = {
    Kind.PUT: {"receipts"},
    Kind.PUT_MANY: {"receipts"},
    Kind.TRANSACT: {"answers"},
}  # a number that is used up, of those refused for good
BY_KIND = {
    **{kind: {"decisions", "count"} for kind in DECIDED_KINDS},  # an answer that is kept
    **{kind: {"publishers"} for kind in (Kind.PUT, Kind.PUT_MANY, Kind.STAGE, Kind.TRANSACT)},  # that a publisher lives
}
BY_CODE = {Code.SHOW_HELD: {"count"}}  # the number of this start of the broker, which is told
OF_PATTERNS = {"gone_subscriptions", "count", "trims"}  # a pattern is given up where not all its topics have room


class WatchedBroker(OneBroker):
    """A broker that refuses no request while it applies it, but for a pattern that is given up."""

    def start(self, now: Now) -> None:
        super().start(now)
        engine, state = self.engine, self.engine._state
        refuse = state.refuse
        applied: list[Any] = []

        def watched_refuse(reply_to: ReplyTo, refused: Refused) -> None:
            given_up = applied and applied[0] == Kind.SUBSCRIBE and refused.code in GIVEN_UP
            assert given_up or not applied or reply_to != applied[1], f"{applied} was refused when it was applied"
            refuse(reply_to, refused)

        def watched(kind: int, apply: Callable[[ReplyTo, Any, Now], None]) -> Callable[[ReplyTo, Any, Now], None]:
            def watched_apply(reply_to: ReplyTo, plan: Any, now: Now) -> None:
                applied[:] = [Kind(kind), reply_to]
                try:
                    apply(reply_to, plan, now)
                except Refused as refused:
                    raise AssertionError(f"{Kind(kind).name} was refused when it was applied") from refused
                finally:
                    applied.clear()

            return watched_apply

        state.refuse = watched_refuse  # type: ignore[method-assign]
        engine._handlers = {
            kind: handler._replace(apply=watched(kind, handler.apply)) for kind, handler in engine._handlers.items()
        }


class Asked:
    """A broker that looks, around each request, at what it changed."""

    def __init__(self, retention: str) -> None:
        self.now_s = 100.0
        self.broker = WatchedBroker(Limits(default_retention=retention, **LIMITS))  # type: ignore[arg-type]
        self.broker.start(self.now)
        self.clients = Clients(self.broker)
        self.requests = 0
        self.refused: Counter[tuple[int, int]] = Counter()

    @property
    def now(self) -> Now:
        return Now(self.now_s, 1_700_000_000_000_000 + int(self.now_s * 1e6))

    def set_up(self) -> None:
        dice = Random(0)
        for kind in (Kind.REGISTER, *[Kind.SUBSCRIBE] * 4, *[Kind.ATTACH] * 4, *[Kind.PUT] * 3, Kind.TAKE):
            self.ask(kind, dice, spoiled=False)
            self.broker.settle(self.now)
            self.hear()
        subscribe = bodies.Subscribe(QUIET.pattern, QUIET.name)
        self.broker.take(b"boss", pack_frames(Kind.SUBSCRIBE, 0, subscribe), self.now)
        for topic, at_bound in zip(TOPICS, ("trim", "refuse"), strict=True):  # transactions often are for both
            body = bodies.Configure(topic, "keep", {"max_bytes": 700, "at_bound": at_bound})
            self.broker.take(b"boss", pack_frames(Kind.CONFIGURE, 0, body), self.now)

    def take(self, action: int | str, seed: int) -> None:
        dice = Random(f"{seed} {self.requests}")
        self.now_s += 0.001
        if isinstance(action, int):
            self.ask(Kind(action), dice, spoiled=dice.random() < (0.2 if action in (Kind.PUT, Kind.TRANSACT) else 0.6))
        elif action == "settle":
            self.broker.settle(self.now)
        elif action == "begin":
            self.broker.settle(self.now)
            self.ask(Kind.PUT, dice, spoiled=False)
            self.broker.begin_commit()
        elif action == "crash":
            self.broker.settle(self.now)
            self.broker.start(self.now)
        elif action in _OFTEN_TOGETHER:
            for kind in _OFTEN_TOGETHER[action]:
                self.ask(kind, dice, spoiled=False)
                self.broker.settle(self.now)
                self.hear()
        elif action == "fill":
            self.broker.store.capacity_bytes = dice.choice((1 << 24, 1 << 40))  # the one is less than the reserve
            self.broker.engine._state.free_bytes = self.broker.store.free_bytes()
        else:
            self.now_s += dice.choice((0.2, 1.5 * LEASE_S, 25.0))
            self.broker.tick(self.now)
        self.hear()

    # Requests, good and bad.

    def ask(self, kind: Kind, dice: Random, *, spoiled: bool) -> None:
        draft = self.several(dice) if kind == Kind.TRANSACT and dice.random() < 0.6 else self.clients.makers[kind](dice)
        if draft is None:
            return
        if kind == Kind.CONFIGURE and dice.random() < 0.7:
            assert isinstance(draft.body, bodies.Configure)
            draft.body.changes = {"max_bytes": 700, "at_bound": dice.choice(("trim", "refuse"))}
            draft.body.retention = "keep"
        body = spoil(draft.body, dice) if spoiled else draft.body
        if isinstance(body, bodies.Get | bodies.Take | bodies.Matches | bodies.Fetch) and dice.random() < 0.6:
            body = QUIET if kind == Kind.MATCHES else msgspec.structs.replace(body, wait_ms=60_000)
        blob = draft.blob
        if isinstance(body, bodies.Put | bodies.Stage) and blob is not None:
            batch = Batch.parse(blob)
            publisher, number, count = batch.publisher, batch.number, dice.choice((10, 20, 20, 70))
            if dice.random() < 0.2:
                publisher, number = dice.choice([*self.clients.publishers, 99]), dice.choice((1, 2, 9))
            if dice.random() < 0.25:
                number = 1
                known = {"as_of": 0} if isinstance(body, bodies.Stage) else {"topic_number": 0, "due": b""}
                body = msgspec.structs.replace(body, topic=dice.choice(NEW), **known)
            if not getattr(body, "due", b""):
                blob = self.clients._batch(publisher, number, count)
        self.requests += 1
        peer = dice.choice(PEERS)
        frames = pack_frames(kind, self.requests, body, () if blob is None else (blob,))
        self.sent = Sent(peer, kind, body, frames, self.requests)
        before, memory = changes_of(self.broker), memory_of(self.broker)
        durable = {id(effect) for effect in effects_of(self.broker)}
        self.broker.take(peer, frames, self.now)
        new = [effect for effect in effects_of(self.broker) if id(effect) not in durable]
        self.look(kind, body, self.refusal(peer, new), before, memory)

    def several(self, dice: Random) -> Draft | None:
        """A transaction that puts to several topics, some of which are full, trim, or are not there."""
        if not self.clients.publishers:
            return None
        publisher = dice.choice(self.clients.publishers)
        last = self.broker.engine._transactions._numbers(publisher).last_number
        topics = TOPICS if dice.random() < 0.5 else dice.sample((*TOPICS, *NEW[:1]), k=dice.choice((1, 2, 3)))
        batches = [self.clients._batch(publisher, 0, dice.choice((1, 20, 30))) for _ in topics]
        puts = tuple((topic, len(batch), 0, b"") for topic, batch in zip(topics, batches, strict=True))
        sets = ((dice.choice((b"one", b"two")), b"x", dice.choice((None, 7))),) if dice.random() < 0.3 else ()
        return Draft(Kind.TRANSACT, bodies.Transact(publisher, last + 1, (), puts, sets), b"".join(batches))

    def hear(self) -> None:
        sent = getattr(self, "sent", None)
        if sent is not None:
            for told in self.broker.answers.get((sent.peer, sent.request_id), ()):
                self.clients.hear(sent, told)
        self.broker.answers.clear()

    # What became of it.

    def refusal(self, peer: bytes, effects: list[Any]) -> tuple[int, bool] | None:
        """Return the code of a refusal, and whether its number is used up; None where the request is done."""
        key = (peer, self.requests)
        told = list(self.broker.answers.get(key, ()))
        for effect in effects:
            if isinstance(effect, Reply) and (effect.peer, effect.request_id) == key:
                told.append(Told(effect.kind, msgspec.msgpack.encode(effect.body)))
            if isinstance(effect, PutTaken) and effect.receipt.code:
                return effect.receipt.code, True
            if isinstance(effect, TransactionTaken) and effect.transacted.code:
                return effect.transacted.code, True
        if self.sent.kind in PART_BY_PART and told and told[0].kind == Kind.ACK:
            return self.refusal_of_all(told[0])
        return next(((each.refusal.code, False) for each in told if each.kind in REFUSED and each.refusal), None)

    def refusal_of_all(self, told: Told) -> tuple[int, bool] | None:
        """Return the code of the first part where each is refused, and none for good."""
        body = self.sent.body
        if isinstance(body, bodies.PutMany):
            puts = told.read(bodies.PutsDone).refused
            return (puts[0][1], False) if len(puts) == len(body.puts) else None
        assert isinstance(body, bodies.AckMany)
        acks = told.read(bodies.AcksDone).refused
        return (acks[0][1], False) if {ack[0] for ack in body.acks} == {ack[0] for ack in acks} and acks else None

    def look(
        self,
        kind: Kind,
        body: bodies.Body,
        refusal: tuple[int, bool] | None,
        before: dict[str, Any],
        memory: dict[Any, Any],
    ) -> None:
        if refusal is None:
            return
        code, used_up = refusal
        self.refused[kind, code] += 1
        left = BY_KIND.get(kind, set()) | BY_CODE.get(Code(code), set())
        left |= ALWAYS_KEPT[kind] if used_up else set()
        gives_up = kind == Kind.SUBSCRIBE and is_pattern(getattr(body, "topic", b"")) and code in GIVEN_UP
        left |= OF_PATTERNS if gives_up else set()
        after = changes_of(self.broker)
        changed = {name for name, value in after.items() if value != before[name]}
        assert changed <= left, f"{kind.name} {body} was refused with {Code(code).name}, and changed {changed - left}"
        if not gives_up:
            self.compare_memory(kind, memory, used_up)

    def compare_memory(self, kind: Kind, before: dict[Any, Any], used_up: bool) -> None:
        """What was in memory is as it was; what is there now besides was read from the store."""
        after = memory_of(self.broker)
        for name, value in before.items():
            found = after.get(name)
            if used_up and name[0] in ("numbers", "writers"):
                continue
            assert found == value, f"{kind.name} was refused, and {name} is {found}, not {value}"
        loaded = {name[1] for name in after.keys() - before.keys() if name[0] == "topic"}
        assert all(self.broker.store.topic(name) for name in loaded), f"{kind.name} was refused, and made {loaded}"


PART_BY_PART = frozenset({Kind.PUT_MANY, Kind.ACK_MANY})
GIVEN_UP = frozenset({Code.LIMIT, Code.DISK_FULL})


def spoil(body: bodies.Body, dice: Random) -> bodies.Body:
    """Return a request with something else in one place."""
    name = dice.choice([name for name in body.__struct_fields__ if name != "nonce"] or ["nonce"])
    value = getattr(body, name, None)
    other: Any = value
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int):
        other = dice.choice((0, 1, value + 1, value + 1000, -1))
    elif isinstance(value, bytes):
        other = dice.choice((b"", b"x" * 2000, b"a/*", b"#/a", *NEW, *TOPICS))
    elif isinstance(value, str):
        other = dice.choice(("", "offset", "nonsense"))
    elif isinstance(value, tuple) and value and isinstance(value[0], tuple):
        other = (*value, *value[:1]) if dice.random() < 0.5 else tuple((0, 1 << 40, *each[2:]) for each in value)
        other = (
            other if name in ("acked", "returned", "untouched", "held") or isinstance(body, bodies.PutMany) else value
        )
        if isinstance(body, bodies.AckMany):
            other = tuple((number, token, 0, 1 << 40) for number, token, _, _ in value)
    return msgspec.structs.replace(body, **{name: other}) if name in body.__struct_fields__ else body


def effects_of(broker: OneBroker) -> list[Any]:
    return [effect for group in broker.engine._state.groups() for effect in group.on_durable]


def changes_of(broker: OneBroker) -> dict[str, Any]:
    """Return what the open group would change."""
    opened = broker.engine._state.open
    changes = {name: copy(getattr(opened.changes, name)) for name in Changes.__slots__}
    changes["dirty"] = {key: subscription.to_row() for key, subscription in opened.dirty.items()}
    return changes | {"shown": len(opened.shown), "bytes": opened.bytes}


def memory_of(broker: OneBroker) -> dict[Any, Any]:
    """Return what the engine knows, as far as it can be compared."""
    state = broker.engine._state
    memory: dict[Any, Any] = {
        ("counts",): (state.topic_count, state.subscription_count, state.publisher_count, state.next_publisher,
                      state.next_staged, state.waiting_gets, sorted(state.registered)),
        ("patterns",): (sorted(state.patterns.options), sorted(state.patterns.coming), sorted(state.patterns.going)),
    }  # fmt: skip
    for name, sessions in state.sessions.items():
        memory["sessions", name] = [
            (each.token, each.number, each.serial, sorted(each.places), sorted(each.ready), each.waiting is None)
            for each in sessions
        ]
    for key, rows in broker.engine._staged_puts._epochs.items():
        memory["staged", key] = sorted(rows)
    for topic in state.topics.values():
        memory["topic", topic.name] = (
            topic.number, topic.first_offset, topic.next_offset, topic.visible_end, topic.stored_bytes,
            topic.bytes_total, topic.settings, topic.retention, topic.deleted, len(topic.recent), len(topic.waiting),
            sorted(topic.takers),
            {name: subscription.to_row() for name, subscription in topic.subscriptions.items()},
        )  # fmt: skip
        for publisher, writer in topic.writers.items():
            memory["writers", topic.name, publisher] = (writer.last_number, writer.messages_total, len(writer.kept))
        for name, subscription in topic.subscriptions.items():
            if subscription.leases is not None and subscription.leases._begun:
                memory["leases", topic.name, name] = {
                    each.token: (list(each.held), each.last_take, each.last_release, each.deadline_s)
                    for each in subscription.leases.consumers.values()
                }
    for publisher, transactor in state.transactors.items():
        memory["numbers", publisher] = (transactor.last_number, len(transactor.kept))
    return memory


_refused: Counter[tuple[int, int]] = Counter()
_ACTIONS = (
    [*sorted(REQUEST_KINDS)] + [*sorted(REQUEST_KINDS - {Kind.FORGET, Kind.DELETE})] * 2 + [Kind.PUT, Kind.TRANSACT] * 8
)
_OFTEN_TOGETHER = {
    "lend": (Kind.ATTACH, Kind.ATTACH, Kind.PUT, Kind.TAKE, Kind.TAKE, Kind.TAKE),
    "read": (Kind.BEGIN_FETCH, Kind.PUT_MANY, Kind.FETCH, Kind.MATCHES, Kind.FETCH, Kind.ACK_MANY),
}
_OTHERS = ["settle"] * 20 + ["tick"] * 3 + ["crash", "fill", "begin"] * 2 + ["lend", "read"] * 4


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([*_ACTIONS, *_OTHERS]), st.integers(0, 1 << 16)), min_size=40, max_size=80
    ),
    retention=st.sampled_from(("keep", "until-read")),
)
@settings(
    REPLAYED,
    max_examples=400,
    phases=[Phase.generate],  # a step leads to the next: what is left out changes all that follows
)
def _play(steps: list[tuple[int | str, int]], retention: str) -> None:
    asked = Asked(retention)
    asked.set_up()
    for action, seed in steps:
        asked.take(action, seed)
    _refused.update(asked.refused)


def test_a_refused_request_leaves_the_stores_changes_empty() -> None:
    _refused.clear()
    _play()
    never = {Kind.STATS, Kind.STATE, Kind.TOPICS, Kind.FORGET, Kind.DESCRIBE_MANY}
    never |= {Kind.OPEN}  # it is refused part by part
    kinds = {kind for kind, _ in _refused}
    assert kinds >= REQUEST_KINDS - never, (
        f"never refused: {[Kind(kind).name for kind in REQUEST_KINDS - never - kinds]}"
    )
    common = {Code.TOPIC_FULL, Code.DISK_FULL, Code.LIMIT, Code.NO_SUBSCRIBER, Code.STALE, Code.GAP, Code.SHOW_HELD}
    assert {code for _, code in _refused} >= common
    waits = {
        (Kind.GET, Code.LIMIT),
        (Kind.FETCH, Code.LIMIT),
        (Kind.FETCH, Code.NO_SESSION),
        (Kind.TAKE, Code.LIMIT),
        (Kind.TAKE, Code.GONE),
        (Kind.MATCHES, Code.LIMIT),
    }
    assert _refused.keys() >= waits, "what depends on what there is to read is known before it is done"
