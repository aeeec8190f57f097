"""What publishers tell of themselves is told to who asks, for a while, and never gets in the way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.broker.asker import Asker, body_of, code_of

from clarion.broker.engine.administration import REPORT_EXPIRY_S, REPORTS_KEPT
from clarion.wire import bodies
from clarion.wire.codes import Code
from clarion.wire.frames import Kind

ME, OTHER = b"m" * 16, b"o" * 16


@pytest.fixture
def asker() -> Asker:
    return Asker()


def a_report(topic: bytes = b"orders", instance: bytes = ME, **changes: Any) -> bodies.Report:
    report = bodies.Report(topic, instance, "recheck", 7, 0.06, 35.0, 140.0, 2000, 3, 14, 2, 900)
    return msgspec.structs.replace(report, **changes)


def told(asker: Asker) -> list[dict[str, Any]]:
    publishers = body_of(asker.ask(Kind.STATS, bodies.AskStats()), bodies.Stats).values["publishers"]
    assert isinstance(publishers, list)
    return publishers


def test_a_report_is_told_with_its_age(asker: Asker) -> None:
    assert told(asker) == []
    assert asker.ask(Kind.REPORT, a_report()).kind == Kind.ACK
    asker.now_s += 2
    (one,) = told(asker)
    assert one.pop("age_s") == pytest.approx(2, abs=0.1)
    assert one == msgspec.structs.asdict(a_report())


def test_a_report_is_answered_without_a_commit_or_a_topic(asker: Asker) -> None:
    key = asker.send(Kind.REPORT, a_report())
    assert asker.replies[key].body == bodies.Done()
    assert asker.engine.take_group() is None
    assert asker.engine.stats()["topics"] == 0


def test_the_latest_of_each_publisher_and_topic_counts(asker: Asker) -> None:
    for report in (
        a_report(batch_size=1),
        a_report(b"audit", batch_size=2),
        a_report(instance=OTHER, batch_size=3),
        a_report(batch_size=4),
    ):
        asker.ask(Kind.REPORT, report)
    assert [(one["topic"], one["instance"], one["batch_size"]) for one in told(asker)] == [
        (b"audit", ME, 2),
        (b"orders", ME, 4),
        (b"orders", OTHER, 3),
    ]


def test_who_falls_silent_is_forgotten_and_others_are_not(asker: Asker) -> None:
    asker.ask(Kind.REPORT, a_report())
    asker.ask(Kind.REPORT, a_report(instance=OTHER))
    asker.now_s += REPORT_EXPIRY_S - 1
    asker.ask(Kind.REPORT, a_report())
    asker.now_s += 2
    assert [one["instance"] for one in told(asker)] == [ME]
    asker.now_s += REPORT_EXPIRY_S
    assert told(asker) == []


def test_there_is_room_for_so_many_and_the_oldest_go(asker: Asker) -> None:
    asker.ask(Kind.REPORT, a_report(b"first"))
    asker.ask(Kind.REPORT, a_report(b"second"))
    asker.ask(Kind.REPORT, a_report(b"first"))  # is younger than the second now
    for number in range(REPORTS_KEPT - 1):
        asker.ask(Kind.REPORT, a_report(b"%d" % number))
    topics = {one["topic"] for one in told(asker)}
    assert len(topics) == REPORTS_KEPT
    assert b"first" in topics
    assert b"second" not in topics


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": b""},
        {"topic": b"t" * 1025},
        {"instance": b""},
        {"instance": b"m" * 17},
        {"policy": ""},
        {"policy": "p" * 65},
    ],
)
def test_a_report_that_cannot_be_is_refused_and_not_kept(asker: Asker, wrong: dict[str, Any]) -> None:
    assert code_of(asker.ask(Kind.REPORT, a_report(**wrong))) == (Kind.INVALID, Code.MALFORMED)
    assert told(asker) == []


def test_reports_live_through_a_failed_commit_but_not_a_restart(asker: Asker) -> None:
    asker.ask(Kind.REPORT, a_report())
    asker.send(Kind.CONFIGURE, bodies.Configure(b"orders", "keep"))
    asker.fail(asker.take_group())
    assert len(told(asker)) == 1
    asker.crash()
    assert told(asker) == []
