"""The source's readers at a real broker, called as Spark calls them, without a JVM."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.conftest import StartBroker
from tests.integration.waiting import eventually

from clarion import Admin, Publisher
from clarion.model.errors import InvalidRequest, MessagesGone, NoTopic, Unreachable
from clarion.model.names import to_text
from clarion.pipeline.format_options import SourceOptions
from clarion.pipeline.spark_source import BatchReader, StreamReader

ALL = ReadAllAvailable()


def batch_reader(url: str, **options: Any) -> BatchReader:
    read = SourceOptions.read({"url": url, **{name: str(value) for name, value in options.items()}})
    return BatchReader(read, read.schema())


@pytest.fixture
def streams() -> Iterator[Any]:
    made: list[StreamReader] = []

    def make(url: str, **options: Any) -> StreamReader:
        read = SourceOptions.read({"url": url, **{name: str(value) for name, value in options.items()}})
        made.append(StreamReader(read, read.schema()))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def rows(reader: BatchReader) -> list[dict[str, Any]]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def offsets(reader: BatchReader) -> list[int]:
    return [row["offset"] for row in rows(reader)]


def read_between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    parts = reader.partitions(start, end)
    return [(row["topic"], row["offset"]) for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def put(url: str, topic: bytes | str, count: int, size: int = 10) -> None:
    with Publisher(url) as publisher:
        publisher.put_many(topic, [b"%d" % place + b"." * size for place in range(count)])


def keep(url: str, *topics: bytes | str) -> None:
    with Admin(url) as admin:
        for topic in topics:
            admin.configure_topic(topic, retention="keep")


def test_everything_that_was_put_is_read_as_it_was(url: str) -> None:
    topic = b"\xff\x00 odd"
    keep(url, topic)
    with Publisher(url, compression="zstd") as packed, Publisher(url) as plain:
        for place in range(500):
            publisher = packed if place % 3 else plain
            key = None if place % 5 else b"\x00k%d" % place
            headers = {"n": b"%d" % (place % 7), "ä": b"\xff"} if place % 4 == 0 else None
            publisher.put(topic, b"\x00\xff" * place, key=key, headers=headers)
            if place % 50 == 0:
                publisher.flush()
    with Admin(url) as admin:
        wanted = [
            {
                "topic": to_text(topic),
                "offset": one.offset,
                "time": one.committed_at,
                "publisher": one.id.publisher,
                "id": one.id.to_bytes(),
                "key": one.key,
                "headers": list(one.headers.items()) or None,
                "payload": one.payload,
            }
            for one in admin.browse(topic)
        ]
    assert len(wanted) == 500
    assert rows(batch_reader(url, topic=to_text(topic))) == wanted
    some = batch_reader(url, topic=to_text(topic), columns="payload,offset", partitions=7, start=3, end=490)
    assert len(some.partitions()) == 7
    assert rows(some) == [{"payload": row["payload"], "offset": row["offset"]} for row in wanted[3:490]]


def test_several_topics_and_patterns_and_ranges_by_topic(url: str) -> None:
    keep(url, "many/a", "many/b", "many/c/d", "other")
    for name, count in (("many/a", 5), ("many/b", 7), ("many/c/d", 2), ("other", 3)):
        put(url, name, count)

    def counts(**options: Any) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for row in rows(batch_reader(url, **options)):
            found.setdefault(row["topic"], []).append(row["offset"])
        return found

    assert counts(topic="many/*") == {"many/a": [*range(5)], "many/b": [*range(7)]}
    assert counts(topics="other,many/#", start='{"other": 2, "many/b": "latest"}', end='{"many/a": 1}') == {
        "many/a": [0], "many/c/d": [0, 1], "other": [2],
    }  # fmt: skip
    assert rows(batch_reader(url, topic="none/#")) == []
    with pytest.raises(NoTopic, match="there is no topic none at this broker"):
        rows(batch_reader(url, topics="other,none"))
    with pytest.raises(InvalidRequest, match="offset 9 is beyond the end of other, which is 3"):
        rows(batch_reader(url, topic="other", start=9))
    with pytest.raises(InvalidRequest, match="names many/a, which is not among"):
        rows(batch_reader(url, topic="other", start='{"many/a": 1}'))


def test_a_time_is_the_first_offset_committed_then_or_later(url: str) -> None:
    keep(url, "timed")
    for _ in range(4):
        put(url, "timed", 3)
    with Admin(url) as admin:
        times = [one.committed_at for one in admin.browse("timed")]
        for at in sorted(set(times)):
            assert admin.offset_at("timed", at) == times.index(at)
            assert admin.offset_at("timed", at - timedelta(microseconds=1)) == times.index(at)
        assert admin.offset_at("timed", times[-1] + timedelta(microseconds=1)) == 12
        assert admin.offset_at("timed", datetime(1970, 1, 1, tzinfo=UTC)) == 0
        with pytest.raises(NoTopic):
            admin.offset_at("no such", times[0])
        admin.purge("timed", 3)
        assert admin.offset_at("timed", datetime(1970, 1, 1, tzinfo=UTC)) == 3
    start, end = times[3].isoformat(), times[9].isoformat()
    assert offsets(batch_reader(url, topic="timed", start=start, end=end)) == [*range(3, 9)]
    assert offsets(batch_reader(url, topic="timed", start="2100-01-01")) == []


def test_what_retention_took_is_an_error_that_names_it_or_passed_over(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    keep(url, "trimmed")
    put(url, "trimmed", 10)
    put(url, "trimmed", 10)
    planned = batch_reader(url, topic="trimmed", partitions=1).partitions()
    with Admin(url) as admin:
        admin.purge("trimmed", 10)
    strict = batch_reader(url, topic="trimmed", start=4)
    with pytest.raises(MessagesGone, match="offsets 4 to 9 of trimmed are no longer kept"):
        strict.partitions()
    with pytest.raises(MessagesGone, match="offsets 0 to 9 of trimmed"):  # gone after it was planned
        list(strict.read(planned[0]))
    lax = batch_reader(url, topic="trimmed", start=4, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "clarion.pipeline"):
        assert offsets(lax) == [*range(10, 20)]
        assert sum(batch.num_rows for batch in lax.read(planned[0])) == 10
    assert "offsets 4 to 9 of trimmed" in caplog.text
    assert "offsets 0 to 9 of trimmed" in caplog.text


def test_a_topic_made_anew_is_not_taken_for_the_old_one(url: str) -> None:
    keep(url, "anew")
    put(url, "anew", 5)
    reader = batch_reader(url, topic="anew")
    planned = reader.partitions()
    with Admin(url) as admin:
        admin.delete_topic("anew")
        with pytest.raises(MessagesGone, match="anew was deleted: offsets 0 to 4"):
            list(reader.read(planned[0]))
        keep(url, "anew")
        put(url, "anew", 5)
    with pytest.raises(MessagesGone, match="was deleted and made anew"):
        list(reader.read(planned[0]))
    lax = batch_reader(url, topic="anew", failOnDataLoss="false")
    assert list(lax.read(planned[0])) == []


@pytest.mark.parametrize("anew", [0, 3, 100_000])
def test_a_topic_deleted_while_it_is_read_is_passed_over_and_what_came_instead_is_not_mixed_in(
    url: str, anew: int
) -> None:
    topic = f"midway/{anew}"
    keep(url, topic)
    for _ in range(5):
        put(url, topic, 20_000, size=90)
    lax = batch_reader(url, topic=topic, failOnDataLoss="false", partitions=1)
    planned = lax.partitions()
    reading = iter(lax.read(planned[0]))
    first = next(reading)
    with Admin(url) as admin:
        admin.delete_topic(topic)
    if anew:
        keep(url, topic)
        put(url, topic, anew)
        with pytest.raises(MessagesGone, match="made anew: offsets 0 to 99999 of it are gone, while they were read"):
            list(reading)
        assert list(lax.read(planned[0])) == []
    else:
        assert first.num_rows + sum(batch.num_rows for batch in reading) < 100_000


def test_a_broker_killed_or_stopped_while_it_is_read_is_waited_for(start_broker: StartBroker) -> None:
    broker = start_broker(max_get_bytes=2**16)
    keep(broker.url, "t")
    put(broker.url, "t", 20_000, size=100)
    reader = batch_reader(broker.url, topic="t", partitions=1)
    batches = reader.read(reader.partitions()[0])
    found: list[pa.RecordBatch] = [next(batches)]
    broker.restart()
    found.append(next(batches))
    broker.send(signal.SIGSTOP)
    going_on = threading.Timer(0.5, broker.send, (signal.SIGCONT,))
    going_on.start()
    found.extend(batches)
    going_on.join()
    assert pa.Table.from_batches(found).column("offset").to_pylist() == [*range(20_000)]


def test_a_broker_that_stays_away_is_told_after_the_time_given() -> None:
    url = free_url()
    with pytest.raises(Unreachable, match=rf"no broker answers at {url} within 0.2 s \(option timeoutS\)"):
        batch_reader(url, topic="t", timeoutS=0.2).partitions()


def test_another_store_at_the_same_address_is_noticed(start_broker: StartBroker, streams: Any) -> None:
    broker = start_broker()
    keep(broker.url, "t")
    put(broker.url, "t", 5)
    reader = batch_reader(broker.url, topic="t")
    planned = reader.partitions()
    stream = streams(broker.url, topic="t", start="earliest")
    mark = stream.latestOffset(stream.initialOffset(), ALL)
    broker.stop()
    other: BrokerProcess = start_broker("other", listen=broker.url)
    keep(other.url, "t")
    put(other.url, "t", 5)
    with pytest.raises(InvalidRequest, match=r"these offsets are of store .* Connect to the right broker"):
        list(reader.read(planned[0]))
    with pytest.raises(InvalidRequest, match="these offsets are of store"):
        stream.latestOffset(mark, ALL)
    restored = {**mark, "timeline": mark["timeline"] + 1}
    other.stop()
    broker.start()
    with pytest.raises(InvalidRequest, match=r"timeline 2 of the store, and .* has timeline 1"):
        stream.latestOffset(restored, ALL)


def test_a_store_that_went_back_is_noticed_by_a_checkpoint_alone(broker: BrokerProcess, streams: Any) -> None:
    """Nobody who lives has seen what is gone, and the store has more by now than the checkpoint has read."""
    keep(broker.url, "t")
    put(broker.url, "t", 5)
    broker.stop()
    copy = broker.data.with_name("copy")
    shutil.copytree(broker.data, copy)
    broker.start()
    put(broker.url, "t", 5)
    before = streams(broker.url, topic="t", start="earliest")
    begun = before.initialOffset()
    mark = json.loads(json.dumps(before.latestOffset(begun, ALL)))
    planned = before.partitions(begun, mark)
    before.stop()
    broker.stop()
    shutil.rmtree(broker.data)
    copy.rename(broker.data)
    broker.start()
    put(broker.url, "t", 50)
    after = streams(broker.url, topic="t", start="earliest")
    with pytest.raises(InvalidRequest, match="it was restored from a copy"):  # a micro-batch that is to be repeated
        list(after.read(planned[0]))
    with pytest.raises(InvalidRequest, match="it was restored from a copy"):
        after.latestOffset(mark, ALL)
    assert broker.said().count("the store went back") == 1
    again = after.latestOffset(after.initialOffset(), ALL)
    assert again["topics"]["t"]["offset"] == 55


def test_a_checkpoint_from_before_commits_were_noted_is_read_on(url: str, streams: Any) -> None:
    keep(url, "older")
    put(url, "older", 2)
    stream = streams(url, topic="older", start="earliest")
    mark = stream.initialOffset()
    del mark["start"], mark["sequence"]
    assert stream.latestOffset(mark, ALL)["topics"]["older"]["offset"] == 2


def test_a_stream_reads_every_message_once_and_its_cursor_follows(url: str, streams: Any) -> None:
    with Admin(url) as admin:
        admin.subscribe("followed", "holder")  # until-read: somebody has to want them
        put(url, "followed", 3)
        stream = streams(url, topic="followed", cursor="pipe", maxRows=4)
        assert stream.getDefaultReadLimit() == ReadMaxRows(4)
        mark = stream.initialOffset()
        assert admin.describe_subscription("followed", "pipe").cursor == 3
        assert stream.latestOffset(mark, ReadMaxRows(4)) == mark
        put(url, "followed", 10)
        admin.unsubscribe("followed", "holder")
        seen = []
        for done in (3, 7, 11):
            end = stream.latestOffset(mark, ReadMaxRows(4))
            assert admin.describe_subscription("followed", "pipe").cursor == done
            seen += read_between(stream, mark, end)
            mark = end
        assert seen == [("followed", offset) for offset in range(3, 13)]
        assert stream.latestOffset(mark, ALL) == mark
        assert admin.describe_subscription("followed", "pipe").cursor == 13
        eventually(lambda: admin.describe_topic("followed").first_offset == 13, "what was read is let go")
        admin.unsubscribe("followed", "pipe")
        streams(url, topic="followed", cursor="pipe").latestOffset(mark, ALL)
        assert admin.describe_subscription("followed", "pipe").cursor == 13  # made again
        admin.subscribe("followed", "group", shared=True)
        with pytest.raises(InvalidRequest, match="group is a shared subscription"):
            streams(url, topic="followed", cursor="group").initialOffset()


def test_a_cursor_waits_for_a_first_batch_that_is_repeated_and_for_a_stream_that_begins_anew(
    url: str, streams: Any
) -> None:
    """Spark asks for a beginning again when the query died in its first batch: by now the end lies elsewhere."""
    with Admin(url) as admin:
        admin.subscribe("waits", "holder")
        put(url, "waits", 3)
        stream = streams(url, topic="waits", cursor="pipe")
        began = stream.initialOffset()
        put(url, "waits", 4)
        end = stream.latestOffset(began, ALL)
        put(url, "waits", 5)
        admin.unsubscribe("waits", "holder")
        again = streams(url, topic="waits", cursor="pipe")
        repeated = again.initialOffset()
        assert admin.describe_subscription("waits", "pipe").cursor == 3
        assert read_between(again, repeated, end) == [("waits", offset) for offset in range(3, 7)]
        again.latestOffset(end, ALL)
        assert admin.describe_subscription("waits", "pipe").cursor == 7
        admin.configure_topic("waits", retention="keep")
        admin.seek("waits", "pipe", "end")
        streams(url, topic="waits", cursor="pipe", start=8).initialOffset()
        assert admin.describe_subscription("waits", "pipe").cursor == 8


def test_new_topics_join_a_stream_and_deleted_ones_are_told(url: str, streams: Any) -> None:
    keep(url, "join/a")
    put(url, "join/a", 2)
    stream = streams(url, topic="join/*", start="earliest", cursor="pipe")
    mark = stream.initialOffset()
    keep(url, "join/b")
    put(url, "join/b", 3)
    end = stream.latestOffset(mark, ALL)
    wanted = [("join/a", 0), ("join/a", 1), ("join/b", 0), ("join/b", 1), ("join/b", 2)]
    assert read_between(stream, mark, end) == wanted
    assert stream.reportLatestOffset()["topics"]["join/b"]["offset"] == 3
    with Admin(url) as admin:
        assert admin.describe_subscription("join/b", "pipe").cursor == 0
        stream.latestOffset(end, ALL)
        assert admin.describe_subscription("join/b", "pipe").cursor == 3
        admin.delete_topic("join/b")
    with pytest.raises(MessagesGone, match="topic join/b was deleted"):
        stream.latestOffset(end, ALL)
    lax = streams(url, topic="join/*", failOnDataLoss="false")
    left = lax.latestOffset(end, ALL)
    assert list(left["topics"]) == ["join/a"]
    assert read_between(lax, end, left) == []


def test_available_now_ends_where_the_topic_ended_then(url: str, streams: Any) -> None:
    keep(url, "until")
    put(url, "until", 5)
    stream = streams(url, topic="until", start="earliest")
    stream.prepareForTriggerAvailableNow()
    put(url, "until", 5)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert end["topics"]["until"]["offset"] == 5
    assert stream.latestOffset(end, ALL) == end


def test_an_idle_stream_hears_of_news_while_it_waits(url: str, streams: Any) -> None:
    keep(url, "idle")
    stream = streams(url, topic="idle")
    mark = stream.initialOffset()
    putting = threading.Thread(target=put, args=(url, "idle", 1))
    putting.start()
    end = eventually(lambda: (new := stream.latestOffset(mark, ALL)) != mark and new, "the stream advances")
    putting.join()
    assert read_between(stream, mark, end) == [("idle", 0)]
    with pytest.raises(InvalidRequest, match="a stream has no end"):
        streams(url, topic="idle", end="latest")
