"""Staging and committing as a client sees it, with a broker whose answers are made by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Literal

import msgspec
import pytest
from tests.unit.session.answering import WELCOME, Answer, Answering, answering, refused

from clarion.model.errors import Closed, LimitReached, TimedOut, TooLarge
from clarion.publisher import Stager, commit_staged, drop_staged
from clarion.session import ThreadSession
from clarion.wire import bodies
from clarion.wire.batch import Batch, PackedColumn, encode_headers
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, Request

USUAL: dict[int, Answer] = {
    Kind.HELLO: (Kind.ACK, WELCOME),
    Kind.REGISTER: (Kind.ACK, bodies.Registered(1, 9)),
    Kind.FORGET: (Kind.ACK, bodies.Done()),
    Kind.STAGE: (Kind.ACK, bodies.Staged(False)),
}


class Script:
    """What the broker answers: the next of what is given for a kind, the last of it for ever."""

    def __init__(self, **answers: list[Answer]) -> None:
        self.answers = {Kind[kind]: given for kind, given in answers.items()}

    def __call__(self, request: Request) -> Answer:
        given = self.answers.get(Kind(request.kind), [USUAL.get(request.kind)])
        return given.pop(0) if len(given) > 1 else given[0]


@pytest.fixture
def broker() -> Iterator[Answering]:
    with answering(Script()) as found:
        yield found


def staged(broker: Answering) -> list[tuple[bytes, int, list[bytes]]]:
    """Return topic, place and payloads of what was staged, in the order of places."""
    found = list[tuple[bytes, int, list[bytes]]]()
    for request in broker.asked:
        if isinstance(request.body, bodies.Stage):
            assert request.blob is not None
            found.append((request.body.topic, request.body.place, Batch.parse(request.blob).payloads()))
    return sorted(found, key=lambda batch: batch[1])


def test_messages_are_staged_in_order_and_the_publisher_is_forgotten_in_the_end(broker: Answering) -> None:
    with Stager(broker.url, "writer", 5, part="attempt") as stager:
        stager.put("one", "a", key="k", headers={"h": "v"})
        stager.put_many("one", [b"b", "c"], keys=[None, b"k"], headers=[None, {"g": "w"}])
        stager.put_many("two", [b"d"])
        stager.flush()
        assert stager.stats["messages_staged"] == 4
    assert staged(broker) == [(b"one", 0, [b"a", b"b", b"c"]), (b"two", 1, [b"d"])]
    (first, *_) = broker.bodies(Kind.STAGE)
    assert first == bodies.Stage(b"one", b"writer", 5, b"attempt", 0)
    assert broker.kinds()[-1] == Kind.FORGET
    assert broker.bodies(Kind.FORGET) == [bodies.Forget(9)]


def test_much_is_staged_while_more_is_put_and_every_message_once(broker: Answering) -> None:
    messages = [b"%05d" % number * 20 for number in range(5000)]
    with Stager(broker.url, "writer", 0, batch_bytes=5000, in_flight=3) as stager:
        stager.put_many("topic", messages[:2500])
        for message in messages[2500:]:
            stager.put("topic", message)
    found = staged(broker)
    assert [place for _, place, _ in found] == list(range(len(found)))
    assert [message for _, _, some in found for message in some] == messages


def test_many_topics_do_not_gather_without_bound(broker: Answering) -> None:
    with Stager(broker.url, "writer", 0, batch_bytes=1000) as stager:
        for number in range(200):
            stager.put(f"topic {number}", bytes(100))
        assert stager.stats["buffered_bytes"] < 10_000
        stager.flush()
    assert len(staged(broker)) == 200


def test_a_committed_epoch_is_staged_again_in_silence_and_counted() -> None:
    with (
        answering(Script(STAGE=[(Kind.ACK, bodies.Staged(True))])) as broker,
        Stager(broker.url, "writer", 0) as stager,
    ):
        stager.put("topic", b"x")
        stager.flush()
        assert stager.already == 1


def test_a_full_disk_is_waited_for() -> None:
    script = Script(STAGE=[refused(Code.DISK_FULL), refused(Code.BUSY), USUAL[Kind.STAGE]])
    with answering(script) as broker:
        with Stager(broker.url, "writer", 0) as stager:
            stager.put("topic", b"x")
        assert staged(broker) == [(b"topic", 0, [b"x"])] * 3


def test_what_the_broker_refuses_is_raised_by_the_flush_and_by_every_put_after_it() -> None:
    with answering(Script(STAGE=[refused(Code.LIMIT)])) as broker:
        stager = Stager(broker.url, "writer", 0)
        stager.put("topic", b"x")
        with pytest.raises(LimitReached):
            stager.flush()
        with pytest.raises(LimitReached):
            stager.put("topic", b"y")
        with pytest.raises(LimitReached):
            stager.close()
        with pytest.raises(Closed):
            stager.put("topic", b"z")
        assert broker.kinds()[-1] == Kind.FORGET


def test_a_flush_that_gets_no_answer_says_what_is_not_staged() -> None:
    with answering(Script(STAGE=[None])) as broker:
        stager = Stager(broker.url, "writer", 0)
        stager.put("topic", b"x")
        with pytest.raises(TimedOut, match="bytes were not staged"):
            stager.flush(timeout_s=0.05)
        stager.__exit__(ValueError, ValueError(), None)
        assert broker.kinds()[-1] == Kind.FORGET


def test_a_part_that_failed_is_left_without_staging_the_rest(broker: Answering) -> None:
    def fail() -> None:
        with Stager(broker.url, "writer", 0) as stager:
            stager.put("topic", b"x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert staged(broker) == []
    assert broker.kinds()[-1] == Kind.FORGET


@pytest.mark.parametrize("settings", [{"writer": ""}, {"epoch": -1}, {"in_flight": 0}, {"compression": "gzip"}])
def test_settings_a_stager_cannot_work_with_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"name|epoch|in_flight|compression"):
        Stager("tcp://127.0.0.1:1", **({"writer": "writer"} | settings))


def test_a_broker_that_registers_nobody_leaves_no_stager_behind() -> None:
    with answering(Script(REGISTER=[refused(Code.LIMIT)])) as broker, pytest.raises(LimitReached):
        Stager(broker.url, "writer", 0)


def test_a_commit_names_the_parts_that_count_and_may_be_repeated() -> None:
    done = [
        refused(Code.BUSY),
        (Kind.ACK, bodies.StagedCommitted(4, 10, False)),
        (Kind.ACK, bodies.StagedCommitted(4, 10, True)),
    ]
    with answering(Script(COMMIT_STAGED=done)) as broker:
        assert commit_staged(broker.url, "writer", 4, parts=["a", b"b"]) == (10, False)
        session = ThreadSession(broker.url)
        try:
            assert commit_staged(session, b"writer", 4).already
            assert drop_staged(session, "writer", 4).already
        finally:
            session.close()
        asked = broker.bodies(Kind.COMMIT_STAGED)
    assert [msgspec.structs.astuple(body)[:4] for body in asked] == [
        (b"writer", 4, (b"a", b"b"), False),
        (b"writer", 4, (b"a", b"b"), False),
        (b"writer", 4, None, False),
        (b"writer", 4, None, True),
    ]


# Columns that are packed already: staged as batches of their own, in the order of the calls.


def column(values: list[bytes], bitmap: bytes | None = None) -> PackedColumn:
    offsets = struct.pack(f"<{len(values) + 1}i", *accumulate(map(len, values), initial=0))
    return PackedColumn(offsets, b"".join(values), bitmap)


def test_columns_leave_after_what_was_put_before_them_and_before_what_comes_after() -> None:
    with answering(Script()) as broker:
        with Stager(broker.url, "writer", 0) as stager:
            stager.put("topic", b"a")
            stager.put("other", b"x")
            stager.put_columns("topic", 2, column([b"b", b"c"]))
            stager.put("topic", b"d")
            stager.put_columns("topic", 1, column([b"e"]))
            stager.flush()
            assert stager.stats["messages_staged"] == 6
            assert stager.stats["buffered_bytes"] == 0
        found = staged(broker)
        assert [payloads for topic, _, payloads in found if topic == b"topic"] == [[b"a"], [b"b", b"c"], [b"d"], [b"e"]]
        assert [place for _, place, _ in found] == list(range(5))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_keys_and_headers_of_columns_come_through(compression: Literal["zstd"] | None) -> None:
    headers = column([b"", encode_headers({"h": b"v"}), b""], b"\x02")
    with answering(Script()) as broker:
        with Stager(broker.url, "writer", 0, compression=compression) as stager:
            stager.put_columns("topic", 3, column([bytes(200)] * 3), column([b"k", b"", b""], b"\x03"), headers)
        (request,) = [request for request in broker.asked if request.kind == Kind.STAGE]
        assert request.blob is not None
        batch = Batch.parse(request.blob)
        assert batch.is_compressed == (compression is not None)
        assert [batch.key(place) for place in range(3)] == [b"k", b"", None]
        assert [batch.headers(place) for place in range(3)] == [None, {"h": b"v"}, None]


@pytest.mark.parametrize(
    ("count", "columns", "error"),
    [
        (2, ([b"a", b"b"],), TypeError),
        (1, (None,), TypeError),
        (0, (column([]),), ValueError),
        (3, (column([b"a", b"b"]),), ValueError),
        (1, (column([b"a"], b"\x01"),), ValueError),
        (1, (column([b"a"]), column([b"k"])), ValueError),
        (1, (column([b"a"]), None, column([b"", b""], b"\x00")), ValueError),
    ],
)
def test_what_are_no_columns_of_so_many_is_refused_and_the_stager_goes_on(
    count: int, columns: Any, error: type[Exception]
) -> None:
    with answering(Script()) as broker, Stager(broker.url, "writer", 0) as stager:
        with pytest.raises(error, match=r"payloads|keys|headers|count"):
            stager.put_columns("topic", count, *columns)
        stager.put_columns("topic", 1, column([b"fits"]))
        stager.flush()
        assert [payloads for _, _, payloads in staged(broker)] == [[b"fits"]]


def test_columns_that_no_batch_can_hold_are_too_large_and_leave_nothing_behind() -> None:
    with answering(Script()) as broker, Stager(broker.url, "writer", 0) as stager:
        with pytest.raises(TooLarge, match="nothing was queued"):
            stager.put_columns("topic", 1, column([bytes(2**20)]))
        stager.put_columns("topic", 1, column([b"fits"]))
        stager.flush()
        assert (stager.stats["messages_staged"], stager.stats["buffered_bytes"]) == (1, 0)
        assert stager.batch_bytes <= 2**20
