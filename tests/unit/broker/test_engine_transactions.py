"""What the engine promises about transactions: all or nothing, once, and the same answer when asked again."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.unit.broker.asker import body_of, code_of
from tests.unit.broker.lease_askers import JOBS, NAME, SharedAsker

from clarion.broker.engine import Reply
from clarion.wire import bodies
from clarion.wire.batch import Batch, encode_batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

OUT = b"out"


class Transactor(SharedAsker):
    """An asker with a consumer that holds two messages, and a publisher for its transactions."""

    def __init__(self, **limits: Any) -> None:
        super().__init__({"lease_s": 10.0, "max_attempts": 0}, **limits)
        self.subscribe(OUT, b"after")
        self.put_jobs(b"0", b"1")
        self.token = self.join()
        self.borrow(self.token)
        self.writer = self.register(b"transaction nonce")

    def packed(self, *payloads: bytes, publisher: int | None = None) -> bytes:
        self.last_stamp += 1
        owner = self.writer if publisher is None else publisher
        return bytes(encode_batch(payloads, broker=1, publisher=owner, stamp=self.last_stamp, number=1))

    def request(
        self,
        number: int,
        *,
        acks: tuple[tuple[int, int], ...] = (),
        puts: tuple[bytes, ...] = (),
        sets: tuple[tuple[bytes, bytes | None, int | None], ...] = (),
        due: bytes = b"",
        token: int | None = None,
    ) -> tuple[bodies.Transact, bytes]:
        """Return body and batches of a transaction that acks jobs and puts each batch on `out`."""
        owner = self.token if token is None else token
        taken = ((JOBS, NAME, owner, acks),) if acks else ()
        written = tuple((OUT, len(packed), 0, due) for packed in puts)
        return bodies.Transact(self.writer, number, taken, written, sets), b"".join(puts)

    def transact(self, *args: Any, **more: Any) -> Reply:
        return self.ask(Kind.TRANSACT, *self.request(*args, **more))

    def out(self) -> list[bytes]:
        """Return what is stored on `out`."""
        row = self.store.topic(OUT)
        assert row is not None
        stored = self.store.batches(row.number, 0, 1000, 1 << 20)

        return [payload for batch in stored for payload in Batch.parse(batch.data).payloads()]

    def acked(self) -> int:
        row = self.store.topic(JOBS)
        assert row is not None
        return next(sub.cursor for sub in self.store.subscriptions(row.number) if sub.name == NAME)


@pytest.fixture
def asker() -> Transactor:
    return Transactor()


def test_acks_puts_and_states_are_done_together(asker: Transactor) -> None:
    reply = asker.transact(1, acks=((0, 2),), puts=(asker.packed(b"a", b"b"),), sets=((b"seen", b"2", None),))
    done = body_of(reply, bodies.Transacted)
    assert (done.code, done.offsets) == (0, (0,))
    assert asker.out() == [b"a", b"b"]
    assert asker.acked() == 2
    row = asker.store.state(b"seen")
    assert row is not None
    assert (row.value, row.version) == (b"2", done.versions[0])


def test_nothing_is_done_before_it_is_on_disk(asker: Transactor) -> None:
    key = asker.send(Kind.TRANSACT, *asker.request(1, acks=((0, 2),), puts=(asker.packed(b"a"),)))
    assert key not in asker.replies
    asker.take_group()
    asker.crash()
    assert (asker.out(), asker.acked()) == ([], 0)
    row = asker.store.answers(asker.writer)
    assert row == []


@pytest.mark.parametrize("crashes", [False, True])
def test_asked_again_the_answer_is_the_same(asker: Transactor, crashes: bool) -> None:
    request = asker.request(1, acks=((0, 1),), puts=(asker.packed(b"a"),), sets=((b"seen", b"1", 0),))
    first = asker.ask(Kind.TRANSACT, *request)
    if crashes:
        asker.crash()
    assert asker.ask(Kind.TRANSACT, *request).body == first.body
    assert asker.out() == [b"a"]


def test_two_who_ask_at_once_hear_the_same(asker: Transactor) -> None:
    request = asker.request(1, puts=(asker.packed(b"a"),))
    keys = [asker.send(Kind.TRANSACT, *request) for _ in range(2)]
    asker.settle()
    first, second = (body_of(asker.replies[key], bodies.Transacted) for key in keys)
    assert first == second
    assert asker.out() == [b"a"]


def test_the_same_number_with_other_contents_is_invalid(asker: Transactor) -> None:
    asker.transact(1, puts=(asker.packed(b"a"),))
    assert code_of(asker.transact(1, puts=(asker.packed(b"b"),))) == (Kind.INVALID, Code.CHECKSUM_DIFFERS)
    assert code_of(asker.transact(3)) == (Kind.REFUSED, Code.GAP)


def test_who_lost_its_lease_cannot_commit_neither_now_nor_later(asker: Transactor) -> None:
    request = asker.request(1, acks=((0, 1),), puts=(asker.packed(b"a"),), sets=((b"seen", b"1", None),))
    asker.tick(11)
    asker.settle()
    assert code_of(asker.ask(Kind.TRANSACT, *request)) == (Kind.REFUSED, Code.LEASE_LOST)
    assert (asker.out(), asker.acked(), asker.store.state(b"seen")) == ([], 0, None)
    asker.crash()
    assert code_of(asker.ask(Kind.TRANSACT, *request)) == (Kind.REFUSED, Code.LEASE_LOST), "the answer is durable"


def test_a_state_that_changed_meanwhile_is_a_conflict(asker: Transactor) -> None:
    first = body_of(asker.transact(1, sets=((b"leader", b"me", 0),)), bodies.Transacted)
    taken = asker.transact(2, acks=((0, 1),), puts=(asker.packed(b"a"),), sets=((b"leader", b"you", 0),))
    assert code_of(taken) == (Kind.REFUSED, Code.CONFLICT)
    assert (asker.out(), asker.acked()) == ([], 0)
    second = body_of(asker.transact(3, sets=((b"leader", b"you", first.versions[0]),)), bodies.Transacted)
    assert second.versions > first.versions
    asker.transact(4, sets=((b"leader", None, second.versions[0]),))
    assert asker.store.state(b"leader") is None
    third = body_of(asker.transact(5, sets=((b"leader", b"me", 0),)), bodies.Transacted)
    assert third.versions > second.versions, "a version is never used twice"


def test_two_transactions_in_one_commit_see_each_other(asker: Transactor) -> None:
    keys = [
        asker.send(Kind.TRANSACT, *asker.request(1, acks=((0, 1),), sets=((b"n", b"1", 0),))),
        asker.send(Kind.TRANSACT, *asker.request(2, acks=((1, 2),), sets=((b"n", b"2", 0),))),
    ]
    asker.settle()
    assert asker.replies[keys[0]].kind == Kind.ACK
    assert code_of(asker.replies[keys[1]]) == (Kind.REFUSED, Code.CONFLICT)


def test_one_bad_part_spoils_it_all(asker: Transactor) -> None:
    asker.ask(Kind.CONFIGURE, bodies.Configure(b"lonely", "until-read"))
    good, lonely = asker.packed(b"a"), asker.packed(b"b")
    body = bodies.Transact(
        asker.writer, 1, ((JOBS, NAME, asker.token, ((0, 1),)),),
        ((OUT, len(good), 0, b""), (b"lonely", len(lonely), 0, b"")), ((b"seen", b"1", None),),
    )  # fmt: skip
    assert code_of(asker.ask(Kind.TRANSACT, body, good + lonely)) == (Kind.REFUSED, Code.NO_SUBSCRIBER)
    assert (asker.out(), asker.acked(), asker.store.state(b"seen")) == ([], 0, None)


@pytest.mark.parametrize("what", ["foreign batch", "short frame", "long frame", "no batch", "pattern", "twice"])
def test_what_cannot_be_understood_is_invalid_and_uses_no_number(asker: Transactor, what: str) -> None:
    packed = asker.packed(b"a", publisher=asker.publisher if what == "foreign batch" else None)
    body, blob = asker.request(1, acks=((0, 1),), puts=(packed,))
    if what == "short frame":
        blob = blob[:-1]
    elif what == "long frame":
        blob += b"x"
    elif what == "no batch":
        blob = bytes(len(blob))
    elif what == "pattern":
        body.puts = ((b"out/*", *body.puts[0][1:]),)
    elif what == "twice":
        body.sets = ((b"n", b"1", None), (b"n", b"2", None))
    assert asker.ask(Kind.TRANSACT, body, blob).kind == Kind.INVALID
    assert (asker.out(), asker.acked()) == ([], 0)
    assert asker.transact(1, puts=(asker.packed(b"a"),)).kind == Kind.ACK


def test_after_a_restart_a_consumer_shows_what_it_holds_before_it_commits(asker: Transactor) -> None:
    request = asker.request(1, acks=((0, 1),), puts=(asker.packed(b"a"),))
    asker.crash()
    assert code_of(asker.ask(Kind.TRANSACT, *request)) == (Kind.REFUSED, Code.SHOW_HELD)
    asker.renew(asker.token, (0, 2))
    assert asker.ask(Kind.TRANSACT, *request).kind == Kind.ACK
    assert asker.out() == [b"a"]


def test_no_room_is_not_the_end_of_it(asker: Transactor) -> None:
    request = asker.request(1, acks=((0, 1),), puts=(asker.packed(b"a"),))
    free, asker.state.free_bytes = asker.state.free_bytes, 0
    assert code_of(asker.ask(Kind.TRANSACT, *request)) == (Kind.REFUSED, Code.DISK_FULL)
    assert asker.acked() == 0
    asker.state.free_bytes = free
    assert asker.ask(Kind.TRANSACT, *request).kind == Kind.ACK


def test_a_failed_commit_is_told_and_can_be_asked_again(asker: Transactor) -> None:
    request = asker.request(1, puts=(asker.packed(b"a"),))
    key = asker.send(Kind.TRANSACT, *request)
    asker.fail(asker.take_group())
    assert code_of(asker.replies[key]) == (Kind.REFUSED, Code.DISK_FULL)
    asker.state.free_bytes = 1 << 40
    assert asker.ask(Kind.TRANSACT, *request).kind == Kind.ACK
    assert asker.out() == [b"a"]


def test_delayed_messages_may_be_part_of_it(asker: Transactor) -> None:
    due = struct.pack("<q", asker.now.unix_us + 5_000_000)
    done = body_of(asker.transact(1, acks=((0, 1),), puts=(asker.packed(b"later"),), due=due), bodies.Transacted)
    assert done.offsets == (-1,)
    assert asker.out() == []
    asker.tick(6)
    asker.settle()
    assert asker.out() == [b"later"]


def test_a_consumer_of_its_own_subscription_commits_with_its_token(asker: Transactor) -> None:
    asker.subscribe(JOBS, b"alone", "earliest")
    first = asker.attach(JOBS, b"alone", b"consumer a").token
    second = asker.attach(JOBS, b"alone", b"consumer b").token
    for number, (token, due) in enumerate(((first, Code.TAKEN_OVER), (second, 0)), 1):
        body = bodies.Transact(asker.writer, number, ((JOBS, b"alone", token, ((0, 1),)),), (), ())
        reply = asker.ask(Kind.TRANSACT, body, b"")
        assert (code_of(reply)[1] if due else body_of(reply, bodies.Transacted).code) == due


def test_only_so_many_states_are_kept() -> None:
    asker = Transactor(max_states=1)
    asker.transact(1, sets=((b"one", b"1", None),))
    assert code_of(asker.transact(2, sets=((b"two", b"2", None),))) == (Kind.REFUSED, Code.LIMIT)
    assert asker.transact(3, sets=((b"one", b"3", None),)).kind == Kind.ACK


def test_states_are_counted_as_they_will_be_when_all_that_was_taken_is_on_disk() -> None:
    asker = Transactor(max_states=2)

    def set_states(number: int, **values: bytes | None) -> tuple[bytes, int]:
        sets = tuple((name.encode(), value, None) for name, value in values.items())
        return asker.send(Kind.TRANSACT, *asker.request(number, sets=sets))

    keys = [set_states(1, one=b"1", two=b"2"), set_states(2, three=b"3"), set_states(3, one=None, gone=None)]
    keys += [set_states(4, three=b"3", two=None, four=b"4"), set_states(5, one=b"1")]
    asker.settle()
    kinds = [asker.replies[key].kind for key in keys]
    assert kinds == [Kind.ACK, Kind.REFUSED, Kind.ACK, Kind.ACK, Kind.REFUSED]
    assert [row.name for row in asker.store.states(b"", 9)] == [b"four", b"three"]
    asker.crash()
    assert code_of(asker.transact(6, sets=((b"one", b"1", None),))) == (Kind.REFUSED, Code.LIMIT)
    assert asker.transact(7, sets=((b"four", None, None), (b"one", b"1", None))).kind == Kind.ACK


def test_states_of_a_commit_that_failed_do_not_count() -> None:
    asker = Transactor(max_states=1)
    key = asker.send(Kind.TRANSACT, *asker.request(1, sets=((b"one", b"1", None),)))
    asker.fail(asker.take_group())
    assert code_of(asker.replies.pop(key))[1] == Code.DISK_FULL
    asker.state.free_bytes = 1 << 40
    assert asker.transact(1, sets=((b"two", b"2", None),)).kind == Kind.ACK
    assert asker.store.state_count() == 1


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("more", ["puts", "sets"])
def test_what_is_acked_already_does_nothing_more(asker: Transactor, shared: bool, more: str) -> None:
    name, token = NAME, asker.token
    if not shared:
        name = b"alone"
        asker.subscribe(JOBS, name, "earliest")
        token = asker.attach(JOBS, name, b"consumer a").token

    def transact(number: int, stop: int) -> Reply:
        packed = asker.packed(b"a")
        puts, blob = (((OUT, len(packed), 0, b""),), packed) if more == "puts" else ((), b"")
        sets = ((b"seen", b"%d" % number, None),) if more == "sets" else ()
        return asker.ask(
            Kind.TRANSACT, bodies.Transact(asker.writer, number, ((JOBS, name, token, ((0, stop),)),), puts, sets), blob
        )

    assert transact(1, 1).kind == Kind.ACK
    out, seen = asker.out(), asker.store.state(b"seen")
    for number, stop in ((2, 1), (3, 2)):  # all of it, and some of it
        assert code_of(transact(number, stop)) == (Kind.REFUSED, Code.ALREADY_DONE)
        assert (asker.out(), asker.store.state(b"seen")) == (out, seen)
    body = bodies.Transact(asker.writer, 4, ((JOBS, name, token, ((0, 2),)),), (), ())
    assert asker.ask(Kind.TRANSACT, body, b"").kind == Kind.ACK, "acks alone may be repeated"


def test_versions_rise_though_the_clock_goes_back(asker: Transactor) -> None:
    first = body_of(asker.transact(1, sets=((b"n", b"1", None),)), bodies.Transacted).versions
    asker.transact(2, sets=((b"n", None, None),))
    asker.now_s -= 3600
    asker.crash()
    assert body_of(asker.transact(3, sets=((b"n", b"2", 0),)), bodies.Transacted).versions > first
