"""What those who put, and those who share the work, do in any order: the rules of the state machine."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.property.broker_model import runs
from tests.property.checked_engine import code_of, done, subscribed
from tests.property.checked_group import CheckedGroup
from tests.property.group_disk import GROUP, WATCHER, WORK, dead_letters
from tests.property.group_model import GroupModel, Message
from tests.property.group_workers import Worker, lose

from clarion.broker.engine import Reply
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

KEYS = (None, b"red", b"red", b"blue", b"green")
PUTTER = 1  # the publisher of the work
WORKERS = 3
places, small = st.integers(0, WORKERS - 1), st.integers(1, 6)
rarely = st.sampled_from((False, False, False, True))
mask = st.integers(0, 255)  # which of the messages at hand; 0: all
delays = st.sampled_from((0, 0, 500, 20_000))


class Work(RuleBasedStateMachine):
    """Work is put, watched by somebody else, and dead letters are dealt with."""

    both: CheckedGroup
    sent: dict[int, tuple[int, list[Message], bytes]]  # by number: time to live, messages, bytes
    watcher: int  # its token
    counter: int
    trims: bool  # the topic lets go of what is beyond its bound, whoever needs it

    def make_messages(self, keys: list[bytes | None]) -> list[Message]:
        self.counter += len(keys)
        first = self.counter - len(keys)
        return [Message(b"message %d" % (first + place), key) for place, key in enumerate(keys)]

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5), ttl=st.sampled_from((0, 0, 0, 3000)))
    def put(self, keys: list[bytes | None], ttl: int) -> None:
        """The next batch; where that was sent before and lost, what was sent then."""
        both = self.both
        number = both.current.batches + 1
        if number not in self.sent:
            messages = self.make_messages(keys)
            packed = both.pack(PUTTER, number, [each.payload for each in messages], [each.key for each in messages])
            self.sent[number] = (ttl, messages, packed)
        ttl, messages, packed = self.sent[number]
        key = both.ask(b"putter", Kind.PUT, bodies.Put(WORK, ttl), packed)
        reply = both.answers.get(key)
        if reply is not None and code_of(reply) == Code.DISK_FULL:
            assert both.disk_is_full()
            both.heard(key)
            return
        expires_at_us = both.now_us + 1000 * ttl if ttl else 0
        both.current.log += [each._replace(expires_at_us=expires_at_us) for each in messages]
        both.current.batches = number

        def check(reply: Reply) -> None:
            assert isinstance(reply.body, bodies.PutDone), f"not put: {reply}"

        both.expect(key, check, lambda durable: durable.batches >= number)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=3, max_size=6))
    def put_and_settle(self, keys: list[bytes | None]) -> None:
        self.put(keys, 0)
        self.both.settle()

    @rule(count=small)
    def watch(self, count: int) -> None:
        """Somebody else has seen all up to a place: what the group has done, too, may go."""
        both = self.both
        stop = min(both.current.watched + 2 * count, both.end)
        if stop > both.current.watched:
            acked = ((both.current.watched, stop),)
            key = both.ask(WATCHER, Kind.ACK, bodies.Ack(WORK, WATCHER, self.watcher, acked))
            both.current.watched = stop
            plain, now_us = both.current, both.now_us
            news = [o for o in range(*acked[0]) if o not in plain.hidden and not plain.is_expired(o, now_us)]
            both.expect(key, done, lambda durable: all(offset < durable.watched for offset in news))

    @precondition(lambda self: self.both.durable.still_dead())
    @rule(action=st.sampled_from(("replay", "replay", "drop")), which=mask)
    def deal_with_the_dead(self, action: str, which: int) -> None:
        """Dead letters go back to the group, and to nobody else, or away."""
        both, plain = self.both, self.both.current
        # Those that are on disk, known as that, and not dealt with already.
        durable, left = both.durable.still_dead(), plain.still_dead()
        waiting = {at: each for at, each in sorted(dead_letters(both.store).items()) if durable[each] and left[each]}
        chosen = {at: waiting[at] for at in choose(list(waiting), which)}
        if not chosen or both.disk_is_full() or len(set(waiting.values())) < len(waiting):
            return
        key = both.ask(b"undertaker", Kind.DEAD, bodies.Dead(WORK, action, runs(chosen)))
        plain.undead.update(chosen.values())
        back = action == "replay" and plain.subscribed
        if back:
            start = len(plain.log)
            plain.log += [Message(each.payload, each.key) for each in chosen.values()]
            plain.hidden |= set(range(start, len(plain.log)))
        elif action == "replay":
            plain.undead.subtract(chosen.values())
        moved = action == "drop" or back
        wanted = bodies.DeadDone(len(chosen) if moved else 0, 0 if moved else len(chosen))
        goal = plain.undead.copy()

        def check(reply: Reply) -> None:
            assert reply.body == wanted, f"{wanted} was due, not {reply}"

        both.expect(key, check, lambda durable: goal <= durable.undead)

    # The group itself comes and goes.

    @precondition(lambda self: not self.both.current.subscribed)
    @rule(start=st.sampled_from(("new", "earliest")))
    def subscribe(self, start: str) -> None:
        both, plain = self.both, self.both.current
        key = both.ask(b"boss", Kind.SUBSCRIBE, bodies.Subscribe(WORK, GROUP, start, 0, both.options))
        cursor = len(plain.log) if start == "new" else both.first_offset
        for passed in range(plain.watched, cursor) if start == "earliest" and not self.trims else ():
            assert passed in plain.hidden or plain.is_expired(passed, both.now_us), "began after what is still needed"
        plain.begin_at(cursor, both.count)
        both.loans.forget(())

        def check(reply: Reply) -> None:
            assert subscribed(reply) == (Kind.ACK, bodies.Subscribed(cursor, both.options))

        both.expect(key, check, _is_of_era(plain.era))

    @precondition(lambda self: self.both.current.subscribed)
    @rule(really=rarely, settle=st.booleans(), again=st.sampled_from(("", "new", "earliest")))
    def unsubscribe(self, really: bool, settle: bool, again: str) -> None:
        """The subscription ends; perhaps another with its name begins, with the same commit or a later one."""
        both, plain = self.both, self.both.current
        if not really:
            return
        key = both.ask(b"boss", Kind.UNSUBSCRIBE, bodies.Unsubscribe(WORK, GROUP))
        plain.end()
        self.turn_away(Kind.NOT_SUBSCRIBED, Code.NOT_SUBSCRIBED)
        both.loans.forget(())
        both.expect(key, done, _is_of_era(plain.era))
        if settle:
            both.settle()
        if again:
            self.subscribe(again)

    @precondition(lambda self: self.both.current.subscribed)
    @rule(really=rarely, start=st.sampled_from(("new", "earliest", "offset")), at=st.integers(0, 100))
    def seek(self, really: bool, start: str, at: int) -> None:
        both, plain = self.both, self.both.current
        if not really:
            return
        at %= len(plain.log) + 1
        key = both.ask(b"boss", Kind.SEEK, bodies.Seek(WORK, GROUP, start, at))
        first = both.first_offset
        if start == "offset" and at < first:
            both.expect_at_once(key, Kind.REFUSED, Code.GONE)
            return
        both.moved_token = plain.token
        plain.begin_at({"new": len(plain.log), "earliest": first, "offset": at}[start], both.count)
        self.turn_away(Kind.REFUSED, Code.MOVED)
        both.loans.forget(())
        both.expect(key, done, _is_of_era(plain.era))

    def turn_away(self, kind: int, code: int) -> None:
        for key in list(self.both.parked):
            del self.both.parked[key]
            self.both.expect_at_once(key, kind, code)


class GroupRules(RuleBasedStateMachine):
    """Workers come, borrow, do, give back, die, and show what they hold after a crash."""

    both: CheckedGroup
    workers: list[Worker]
    lost: list[tuple[int, dict[int, int]]]  # tokens that are good for nothing, and what was held with them

    def worker(self, place: int) -> Worker | None:
        """Return a worker that has a token."""
        return self.workers[place] if self.workers[place].token else None

    @rule(place=places)
    def attach(self, place: int) -> None:
        self.both.attach(self.workers[place])

    @rule(place=places, most=small, wait=st.sampled_from((0, 0, 50, 5000)))
    def take(self, place: int, most: int, wait: int) -> None:
        worker = self.worker(place)
        if worker is not None:
            worker.number += 1
            self.both.take(worker, worker.token, worker.number, most, wait)

    @rule(place=places, before=st.integers(0, 1))
    def take_again(self, place: int, before: int) -> None:
        """The answer got lost, or came late: the same number."""
        worker = self.worker(place)
        if worker is not None and worker.number > before:
            self.both.take(worker, worker.token, worker.number - before, 3, 0)

    @rule(place=places, which=mask)
    def ack(self, place: int, which: int) -> None:
        worker = self.worker(place)
        chosen = choose(list(worker.view), which) if worker is not None else []
        if worker is not None and chosen:
            self.both.ack(worker, worker.token, runs(chosen))

    @rule(place=places)
    def ack_the_gap(self, place: int) -> None:
        worker = self.worker(place)
        if worker is not None and worker.gap is not None:
            gap, worker.gap = worker.gap, None
            self.both.ack(worker, worker.token, (gap,))

    @rule(place=places, start=st.integers(0, 60), count=small)
    def ack_anything(self, place: int, start: int, count: int) -> None:
        """What it holds, held, or never held, and what is done."""
        worker = self.worker(place)
        if worker is not None:
            start %= self.both.end + 1
            self.both.ack(worker, worker.token, ((start, start + count),))

    @precondition(lambda self: self.lost)
    @rule(place=places, which=st.integers(0, 100), way=st.sampled_from(("ack", "take", "nack")))
    def come_too_late(self, place: int, which: int, way: str) -> None:
        """With a token that lapsed, was given up, or is from before a seek."""
        both, worker = self.both, self.workers[place]
        token, held = self.lost[which % len(self.lost)]
        offsets = [offset for offset in held if offset < both.end]
        if way == "take":
            both.take(worker, token, 50, 3, 0)
        elif way == "ack" and offsets:
            both.ack(worker, token, runs(offsets))
        elif offsets:
            both.give_back(worker, token, {offset: held[offset] for offset in offsets}, 0)

    @rule(place=places, which=mask, delay=delays)
    def nack(self, place: int, which: int, delay: int) -> None:
        worker = self.worker(place)
        chosen = choose(list(worker.view), which) if worker is not None else []
        if worker is not None and chosen:
            self.both.give_back(worker, worker.token, {offset: worker.view[offset] for offset in chosen}, delay)

    @rule(place=places, which=mask)
    def release(self, place: int, which: int) -> None:
        worker = self.worker(place)
        chosen = choose(list(worker.view), which) if worker is not None else []
        if worker is not None and chosen:
            self.both.give_back(worker, worker.token, {offset: worker.view[offset] for offset in chosen}, None)

    @rule(place=places)
    def renew(self, place: int) -> None:
        """Say what is held; after a crash that is how to keep it."""
        worker = self.worker(place)
        if worker is not None:
            self.both.renew(worker)

    @rule(place=places, start=st.integers(0, 60), count=small, attempt=st.integers(0, 2))
    def renew_with_a_lie(self, place: int, start: int, count: int, attempt: int) -> None:
        worker = self.worker(place)
        if worker is not None:
            start %= self.both.end + 2
            self.both.renew(worker, [(start, start + count, attempt)])

    @rule(place=places, which=mask)
    def detach(self, place: int, which: int) -> None:
        worker = self.worker(place)
        if worker is not None:
            self.note_lost(worker)
            self.both.detach(worker, set(choose(list(worker.view), which)) if which > 100 else set())

    def die(self, worker: Worker) -> None:
        """A worker is killed, and its successor knows nothing."""
        self.note_lost(worker)
        lose(worker)

    def note_lost(self, worker: Worker) -> None:
        self.lost.append((worker.token, dict(worker.view)))


def choose(offsets: list[int], which: int) -> list[int]:
    """Return some of the offsets: by the bits of `which`; none set, all."""
    chosen = [offset for place, offset in enumerate(sorted(offsets)) if which >> place % 8 & 1]
    return chosen or sorted(offsets)


def _is_of_era(era: int):  # type: ignore[no-untyped-def]
    def check(durable: GroupModel) -> bool:
        return durable.era >= era

    return check
