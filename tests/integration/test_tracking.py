"""Real brokers that track: paths over links, through kills, from any broker, and what an audit makes of exports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import WAIT_S, ack_all, take
from tests.integration.waiting import eventually

from clarion import Admin, Publisher, Subscriber
from clarion.broker.history_writer import FILE
from clarion.model.ids import MessageId
from clarion.tracking.exported import read_exports
from clarion.tracking.history_file import export_file
from clarion.tracking.verdicts import STATES, HistoryIndex, read_ids


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """Three brokers, one linked with the next, all of which track."""
    brokers: list[BrokerProcess] = []
    for name in ("rome", "oslo", "kiel"):
        links = [brokers[-1].url] if brokers else []
        made = BrokerProcess(tmp_path / name, name=name, links=links, tracking="bloom", tracking_persist_s=0.5)
        brokers.append(made.start())
    yield brokers
    for broker in brokers:
        broker.close()


def _wait_for_interest(broker: BrokerProcess, topic: str) -> None:
    with Admin(broker.url) as admin:
        eventually(
            lambda: any(row.topic == topic.encode() and row.subscriptions for row in admin.topics()),
            "it is known who subscribes elsewhere",
        )


def _put(broker: BrokerProcess, topic: str, count: int) -> list[MessageId]:
    with Publisher(broker.url) as publisher:
        return [publisher.put(topic, b"message %d" % number).result(WAIT_S).id for number in range(count)]


def _path(broker: BrokerProcess, message: MessageId) -> list[str]:
    """Return the names on the way of a message, and who received it at its end."""
    with Admin(broker.url) as admin:
        told = admin.trace(message).values
    way: list[str] = []
    stop: Any = told["path"]
    while stop:
        way += [stop["name"], *(each["subscriber"] for each in stop["receivers"] if each["received"])]
        stop = stop["onward"][0] if stop["onward"] else None
    return [*way, *(f"unknown {name}" for name in sorted(told["unknown"]))]


def _is_path(broker: BrokerProcess, message: MessageId, way: list[str]) -> bool:
    return _path(broker, message) == way


def _read(reader: Subscriber, ids: list[MessageId]) -> None:
    found = take(reader, "news", len(ids))
    assert [message.id for message in found] == ids
    ack_all(reader, found)


def test_a_path_is_traced_from_any_broker_and_through_kills(chain: list[BrokerProcess]) -> None:
    rome, oslo, kiel = chain
    whole = ["rome", "oslo", "kiel", "reader"]
    with Subscriber(kiel.url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe("news")
        _wait_for_interest(rome, "news")
        before = _put(rome, "news", 20)
        _read(reader, before)
        for broker in chain:
            assert _path(broker, before[7]) == whole
        with Admin(rome.url) as admin:  # what is confirmed can be traced: the broker between has it on disk
            eventually(
                lambda: all(sub[1] == 20 for row in admin.topics() for sub in row.subscriptions), "all is confirmed"
            )
        oslo.kill()
        eventually(lambda: "unknown oslo" in _path(kiel, before[3]), "a broker that does not run is unknown")
        oslo.start()
        for broker in chain:
            eventually(partial(_is_path, broker, before[3], whole), "it answers again, as before")
        for broker in chain:
            broker.restart()
        after = _put(rome, "news", 20)
        _read(reader, after)
        for message in (before[0], after[0]):
            eventually(partial(_is_path, rome, message, whole), "all is known after kills")
    never = before[0]._replace(stamp=before[0].stamp - 5)
    with Admin(oslo.url) as admin:
        assert admin.trace(never).values["summary"] == "no such message was published"


def test_exports_of_all_brokers_tell_what_became_of_messages(chain: list[BrokerProcess], tmp_path: Path) -> None:
    rome, _, kiel = chain
    with Subscriber(kiel.url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe("news")
        _wait_for_interest(rome, "news")
        ids = _put(rome, "news", 30)
        with Subscriber(rome.url, "late", timeout_s=WAIT_S) as late:
            late.subscribe("other")
        unread = _put(rome, "other", 1)
        _read(reader, ids)
    for broker in chain:
        assert broker.stop() == 0  # which saves the rest
        export_file(broker.data / FILE, tmp_path / "exports", broker.data.name)
    index = HistoryIndex(read_exports([tmp_path / "exports"]))
    verdicts = index.judge(read_ids(b"".join(message.to_bytes() for message in (*ids, *unread))))
    states = [STATES[state] for state in verdicts.states[verdicts.rows]]
    assert states == ["delivered"] * 30 + ["stopped"]
    offsets, carried = verdicts.carried
    row = verdicts.rows[0]
    assert {index.brokers[place] for place in carried[offsets[row] : offsets[row + 1]]} == {"rome", "oslo", "kiel"}
    assert index.receivers == ["kiel/reader"]


def test_it_is_told_who_is_still_to_get_a_message_here_and_over_a_link(chain: list[BrokerProcess]) -> None:
    rome, oslo, kiel = chain
    with Subscriber(kiel.url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe("news")
        _wait_for_interest(rome, "news")
        with Subscriber(rome.url, "late", timeout_s=WAIT_S) as late:
            late.subscribe("news")
        first = _put(rome, "news", 1)
        _read(reader, first)
        kiel.kill()
        (second,) = _put(rome, "news", 1)
        with Admin(rome.url) as admin:
            told = admin.trace(second).values
            assert told["topics"] == [{"topic": "news", "chance": 0.0}]
            path: Any = told["path"]
            assert (path["offset"], path["receivers"]) == (1, [])
            assert {next(iter(each.items())) for each in path["waiting"]} == {
                ("subscriber", "late"),
                ("broker", "kiel"),
            }
        kiel.start()
        assert [message.id for message in take(reader, "news", 1)] == [second]
        eventually(partial(_is_path, oslo, second, ["rome", "oslo", "kiel"]), "it is there, and not acked yet")
        with Admin(rome.url) as admin:
            end: Any = admin.trace(second).values["path"]
        while end["onward"]:
            (end,) = end["onward"]
        assert [each["subscriber"] for each in end["waiting"]] == ["reader"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that tracks."""
    broker = BrokerProcess(tmp_path / "alone", name="alone", tracking="bloom", tracking_persist_s=3600.0)
    yield broker.start()
    broker.close()


def test_a_time_in_which_a_broker_did_not_track_is_told(alone: BrokerProcess) -> None:
    with Subscriber(alone.url, "reader", timeout_s=WAIT_S) as reader:
        reader.subscribe("news")
        before = _put(alone, "news", 1)
        _read(reader, before)
        assert alone.stop() == 0
        alone.settings["tracking"] = "none"
        alone.start()
        between = _put(alone, "news", 1)
        _read(reader, between)
        with Admin(alone.url) as admin:
            admin.purge("news")  # else it is noted later, from the log
        alone.kill()
        alone.settings["tracking"] = "bloom"
        alone.start()
        after = _put(alone, "news", 1)
        _read(reader, after)
    assert _path(alone, after[0]) == _path(alone, before[0]) == ["alone", "reader"]
    with Admin(alone.url) as admin:
        told = admin.trace(between[0]).values
        assert (told["state"], told["unknown"]) == ("unknown", {"alone": "did not track then"})
        assert "did not track" in admin.trace(before[0]).text
        assert "did not track" not in admin.trace(after[0]).text


def test_what_ended_and_deleted_subscribers_had_is_known_after_a_kill(alone: BrokerProcess) -> None:
    with Subscriber(alone.url, "reader", timeout_s=WAIT_S) as reader:
        for topic in ("news", "sport"):
            reader.subscribe(topic)
        news, sport = _put(alone, "news", 3), _put(alone, "sport", 3)
        for topic, ids in (("news", news), ("sport", sport)):
            found = take(reader, topic, 3)
            assert [message.id for message in found] == ids
            ack_all(reader, found)
        reader.unsubscribe("news")
    with Admin(alone.url) as admin:
        admin.delete_topic("sport")
    alone.restart()  # by a kill; else nothing was to be saved for an hour
    for message in (*news, *sport):
        assert _path(alone, message) == ["alone", "reader"]
