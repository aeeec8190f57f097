"""What tasks and the driver ask of the broker when they write, with a broker whose answers are made by hand."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.unit.session.answering import WELCOME, Answer, Answering, answering, refused

from clarion.model.errors import MessagesGone, NoSubscriber, TimedOut, TooLarge
from clarion.model.options import TopicSettings
from clarion.pipeline import spark_sink
from clarion.pipeline.format_options import SinkOptions
from clarion.pipeline.spark_sink import RowStager, TaskStaged, close, commit, drop, prepare, quiet_after, read_query_id
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.codes import Code
from clarion.wire.frames import Kind, Request


def described(**told: Any) -> Answer:
    """Return a topic's description as a broker does."""
    values = {
        "topic": b"t", "retention": "keep", "settings": TopicSettings(), "first_offset": 0, "next_offset": 0,
        "stored_bytes": 0, "staged_messages": 0, "staged_bytes": 0, "oldest_at_us": 0, "subscriptions": (),
    }  # fmt: skip
    return Kind.ACK, bodies.Description(msgspec.to_builtins(values | told, builtin_types=(bytes,)))


class Script:
    """What the broker answers: to each kind always the same."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[Kind, Answer] = {
            Kind.HELLO: (Kind.ACK, WELCOME),
            Kind.REGISTER: (Kind.ACK, bodies.Registered(1, 9)),
            Kind.FORGET: (Kind.ACK, bodies.Done()),
            Kind.STAGE: (Kind.ACK, bodies.Staged(False)),
            Kind.CONFIGURE: (Kind.ACK, bodies.Done()),
            Kind.DESCRIBE: refused(Code.NO_TOPIC),
        } | {Kind[kind]: answer for kind, answer in answers.items()}

    def __call__(self, request: Request) -> Answer:
        return self.answers[Kind(request.kind)]


@pytest.fixture
def broker() -> Iterator[Answering]:
    with answering(Script()) as found:
        yield found


def options(broker: Answering, **chosen: Any) -> SinkOptions:
    return SinkOptions(broker.url, **({"timeout_s": 30.0} | chosen))


def rows(*payloads: bytes, topics: list[str | None] | None = None) -> pa.RecordBatch:
    columns = {"payload": pa.array(payloads, pa.binary())}
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.record_batch(list(columns.values()), names=list(columns))


def stage(chosen: SinkOptions, *batches: pa.RecordBatch, known: dict[bytes, int] | None = None) -> TaskStaged:
    return RowStager(chosen, b"writer", 5, 7, {} if known is None else known).stage(iter(batches))


def staged(broker: Answering) -> list[tuple[bytes, list[bytes]]]:
    """Return topic and payloads of what was staged, by place."""
    found = {}
    for request in broker.asked:
        if isinstance(request.body, bodies.Stage):
            assert request.blob is not None
            found[request.body.place] = (request.body.topic, Batch.parse(request.blob).payloads())
    return [found[place] for place in sorted(found)]


def test_a_task_stages_all_its_rows_under_the_number_of_its_partition(broker: Answering) -> None:
    done = stage(options(broker, topic="t"), rows(b"a", b"b"), rows(), rows(b"c"), known={b"t": 0})
    assert staged(broker) == [(b"t", [b"a", b"b", b"c"])]
    assert (done.writer, done.epoch, done.messages) == (b"writer", 5, 3)
    assert done.part.startswith(b"00000007-")
    assert Kind.DESCRIBE not in broker.kinds()
    assert stage(options(broker, topic="t"), rows(b"d"), known={b"t": 0}).part != done.part


def test_a_task_without_rows_asks_for_nothing(broker: Answering) -> None:
    assert stage(options(broker, topic="t"), rows()).messages == 0
    assert broker.asked == []


def test_topics_of_a_column_are_made_to_keep_their_rows_when_first_seen(broker: Answering) -> None:
    batch = rows(b"1", b"2", b"3", topics=["new", "t", "b64:AP8="])
    stage(options(broker), batch, batch, known={b"t": 0})
    assert sorted(staged(broker)) == [(b"\x00\xff", [b"3", b"3"]), (b"new", [b"1", b"1"]), (b"t", [b"2", b"2"])]
    made = {
        (body.topic, body.retention) for body in broker.bodies(Kind.CONFIGURE) if isinstance(body, bodies.Configure)
    }
    assert made == {(b"new", "keep"), (b"\x00\xff", "keep")}
    assert len(broker.bodies(Kind.DESCRIBE)) == 2


def test_batches_are_as_large_as_was_asked_for_or_as_the_topic_takes(broker: Answering) -> None:
    payloads = [bytes(100)] * 100
    stage(options(broker, topic="t", batch_bytes=2000), rows(*payloads), known={b"t": 0})
    assert {len(some) for _, some in staged(broker)} <= {16, 17, 18, 19}
    broker.asked.clear()
    stage(options(broker, topic="t", batch_bytes=2000), rows(*payloads), known={b"t": 1000})
    assert {len(some) for _, some in staged(broker)} <= {6, 7, 8}
    assert sum(len(some) for _, some in staged(broker)) == 100


def test_batches_that_just_fill_what_the_broker_takes_still_fit(broker: Answering) -> None:
    payloads = [bytes(12)] * 65_528  # with its offset, each is a 65,528th of the most that a batch may have
    stage(options(broker, topic="t", batch_bytes=2**30), rows(*payloads), known={b"t": 0})
    assert sum(len(some) for _, some in staged(broker)) == len(payloads)


def test_a_row_that_no_batch_can_hold_is_too_large_and_its_size_is_said(broker: Answering) -> None:
    with pytest.raises(TooLarge, match=r"^2000\d\d\d bytes .*do not fit into a batch of 1048576 bytes"):
        stage(options(broker, topic="t"), rows(b"small", bytes(2_000_000)), known={b"t": 0})


def test_rows_of_an_epoch_that_was_committed_before_count_for_nothing() -> None:
    with answering(Script(STAGE=(Kind.ACK, bodies.Staged(True)))) as broker:
        assert stage(options(broker, topic="t"), rows(b"a"), known={b"t": 0}).messages == 0


def test_a_topic_is_made_or_left_as_it_is_before_the_work_begins(broker: Answering) -> None:
    assert prepare(options(broker, topic="t")) == {b"t": 0}
    assert broker.bodies(Kind.CONFIGURE) == [bodies.Configure(b"t", "keep", {})]
    bounded = described(retention="keep", settings=TopicSettings(max_batch_bytes=5000))
    with answering(Script(DESCRIBE=bounded)) as other:
        assert prepare(options(other, topic="t")) == {b"t": 5000}
        assert Kind.CONFIGURE not in other.kinds()


def test_a_topic_that_would_lose_the_rows_at_once_is_refused() -> None:
    with (
        answering(Script(DESCRIBE=described(retention="until-read"))) as broker,
        pytest.raises(NoSubscriber, match=r"nobody subscribes to t, .*Subscribe first"),
    ):
        prepare(options(broker, topic="t"))


def test_a_broker_that_is_away_is_told_before_the_work_begins() -> None:
    with answering(lambda _request: None) as broker:
        for topic in (None, "t"):
            with pytest.raises(TimedOut, match=broker.url):
                prepare(options(broker, topic=topic, timeout_s=0.05))


PARTS = [TaskStaged(b"w", 4, b"00-a", 2), TaskStaged(b"w", 4, b"01-b", 0), TaskStaged(b"w", 4, b"02-c", 3)]
EMPTY = [TaskStaged(b"w", 4, b"00-a", 0)]


def answered(messages: int, *, already: bool = False) -> Answer:
    return Kind.ACK, bodies.StagedCommitted(4, messages, already)


def test_a_commit_names_the_parts_that_hold_rows_and_how_many() -> None:
    with answering(Script(COMMIT_STAGED=answered(5))) as broker:
        commit(options(broker), PARTS, even_if_empty=False)
        assert broker.bodies(Kind.COMMIT_STAGED) == [bodies.CommitStaged(b"w", 4, (b"00-a", b"02-c"), False, 5)]


def test_a_commit_of_no_rows_drops_what_failed_attempts_left_and_closes_the_epoch_only_where_asked() -> None:
    with answering(Script(COMMIT_STAGED=answered(0))) as broker:
        commit(options(broker), [], even_if_empty=True)
        assert broker.asked == []
        commit(options(broker), EMPTY, even_if_empty=False)
        commit(options(broker), EMPTY, even_if_empty=True)
        assert broker.bodies(Kind.COMMIT_STAGED) == [
            bodies.CommitStaged(b"w", 4, drop=True),
            bodies.CommitStaged(b"w", 4, (), False, 0),
        ]


def test_a_commit_that_fails_says_what_is_seen_and_what_to_do() -> None:
    with (
        answering(Script(COMMIT_STAGED=refused(Code.GONE, "2 messages are staged of the 5"))) as broker,
        pytest.raises(MessagesGone, match=r"epoch 4 of w .*nothing of it is seen: 2 messages .*Write it again"),
    ):
        commit(options(broker), PARTS, even_if_empty=False)
    with (
        answering(Script(COMMIT_STAGED=None)) as broker,
        pytest.raises(TimedOut, match="not known, but it is all or nothing"),
    ):
        commit(options(broker, timeout_s=0.05), PARTS, even_if_empty=False)


def test_an_abort_drops_or_closes_the_epoch_and_never_fails(caplog: pytest.LogCaptureFixture) -> None:
    with answering(Script(COMMIT_STAGED=answered(3))) as broker:
        drop(options(broker), b"w", 4)
        close(options(broker), b"w", 4)
        assert broker.bodies(Kind.COMMIT_STAGED) == [
            bodies.CommitStaged(b"w", 4, drop=True),
            bodies.CommitStaged(b"w", 4, (), False, -1),
        ]
    assert caplog.records == []
    with answering(Script(COMMIT_STAGED=answered(3, already=True))) as broker:
        drop(options(broker), b"w", 4)
    assert "failed after it was committed: its rows are seen" in caplog.text
    with answering(Script(COMMIT_STAGED=None)) as broker:
        drop(options(broker, timeout_s=0.05), b"w", 4)
    assert "was not dropped" in caplog.text


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s


def test_an_abort_goes_on_dropping_while_tasks_that_were_not_stopped_yet_still_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spark_sink, "time", Clock())
    dropped, otherwise = iter([5, 0, 7, 0, 2]), Script()

    def answer(request: Request) -> Answer:
        return answered(next(dropped, 0)) if request.kind == Kind.COMMIT_STAGED else otherwise(request)

    with answering(answer) as broker:
        drop(options(broker), b"w", 4, quiet_s=0.5)
        assert next(dropped, None) is None
        assert all(body == bodies.CommitStaged(b"w", 4, drop=True) for body in broker.bodies(Kind.COMMIT_STAGED))


def test_a_failed_write_is_waited_for_only_where_tasks_may_still_run() -> None:
    done = TaskStaged(b"w", 4, b"00-a", 2)
    assert quiet_after([done, done]) == quiet_after([]) == 0
    assert 0 < quiet_after([done, None]) < quiet_after([None, None]) == quiet_after([None, done, None, None])


def test_the_id_of_a_query_is_found_in_its_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "the-id"}))
    for checkpoint in (str(tmp_path), f"file:{tmp_path}/", f"file://{tmp_path}"):
        assert read_query_id(checkpoint) == "the-id"
    with caplog.at_level(logging.WARNING):
        assert read_query_id(str(tmp_path / "nowhere")) is None
        (tmp_path / "metadata").write_text("[]")
        assert read_query_id(str(tmp_path)) is None
    assert len(caplog.records) == 2
