"""The report of a paced run says what its rounds say, and judges it. All figures here are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.peers.figures import Rounds
from bench.peers.paced.loads import CURVES, ENTRANTS, FAST, HUGE, ROWS, TABLE, TRACKING, Load, sessions_of, takes_part
from bench.peers.paced.pacing import HEAD, Pace, Share, topic_of
from bench.peers.paced.pages import READERS_ACK, load_table, write_report
from bench.peers.paced.seen import look
from bench.peers.paced.soak import growths
from bench.peers.paced.verdicts import ASKED, Asked, curve, judge, keeps_up, saturation_per_s, those_who_keep_up

ROW = next(load for load in TABLE if load.row == "500x5000")


def make_run(system: str, load: Load, turn: int = 0, /, **figures: float) -> dict[str, Any]:
    usual = {
        "delivered": 1.0, "pace": 1.0, "lag": 0.0, "p50_ms": 2.0, "p99_ms": 9.0, "per_s": 5000.0, "server_cpu": 0.3,
        "publisher_cpu": 0.1, "readers_cpu": 0.2, "server_us": 60.0, "server_memory_bytes": 2e7,
        "publisher_memory_bytes": 5e7, "readers_memory_bytes": 1e8,
    }  # fmt: skip
    return {"system": system, "measure": load.name, "round": turn, "taken_s": 1.0, "figures": usual | figures}


def make_results(*runs: dict[str, Any]) -> dict[str, Any]:
    return {
        "machine": {"processor": "made up", "cores": 2}, "rounds": 1 + max(run["round"] for run in runs),
        "seconds": 4.0, "taken_s": 60.0, "versions": {run["system"]: "1.2.3" for run in runs}, "missing": {},
        "runs": list(runs),
    }  # fmt: skip


def rounds_of(*runs: dict[str, Any]) -> Rounds:
    return Rounds(make_results(*runs), ENTRANTS)


def asked_of(load: Load, figure: str) -> Asked:
    return next(asked for asked in ASKED if (asked.load, asked.figure) == (load, figure))


@pytest.mark.parametrize(
    ("figure", "ours", "expected"),
    [
        ("p50_ms", 1.9, "yes, the aim too"),
        ("p50_ms", 3.0, "yes"),
        ("p50_ms", 3.1, "no"),
        ("p99_ms", 18.0, "yes"),
        ("p99_ms", 18.1, "no"),
        ("server_cpu", 0.15, "yes, the aim too"),
        ("server_cpu", 0.3, "yes"),
        ("server_cpu", 0.31, "no"),
    ],
)
def test_a_row_holds_in_ratio_to_the_best_peer(figure: str, ours: float, expected: str) -> None:
    rounds = rounds_of(make_run("clarion", ROW, **{figure: ours}), make_run("nats", ROW))
    assert judge(rounds, asked_of(ROW, figure)).holds == expected


@pytest.mark.parametrize(
    ("load", "figure", "ours", "expected"),
    [
        (FAST, "per_s", 59_999, "no"),
        (FAST, "per_s", 60_000, "yes"),
        (FAST, "per_s", 150_000, "yes, the aim too"),
        (HUGE, "p50_ms", 51, "no"),
        (HUGE, "p50_ms", 50, "yes"),
        (HUGE, "p50_ms", 10, "yes, the aim too"),
    ],
)
def test_what_is_asked_of_us_alone_needs_no_peer(load: Load, figure: str, ours: float, expected: str) -> None:
    assert judge(rounds_of(make_run("clarion", load, **{figure: ours})), asked_of(load, figure)).holds == expected


def test_a_peer_that_does_not_keep_up_is_not_the_best_one() -> None:
    rounds = rounds_of(
        make_run("clarion", ROW, p50_ms=4.0),
        make_run("rabbitmq", ROW, p50_ms=1.0, delivered=0.9),
        make_run("redis-streams", ROW, p50_ms=1.0, pace=0.5),
        make_run("nats", ROW, p50_ms=5.0),
    )
    verdict = judge(rounds, asked_of(ROW, "p50_ms"))
    assert verdict.peer is not None
    assert verdict.peer.name == "nats"
    assert verdict.holds == "yes, the aim too"
    assert those_who_keep_up(rounds, ROW) == ["clarion", "nats"]


def test_who_alone_keeps_up_has_what_is_asked_and_who_was_alone_from_the_start_is_not_judged() -> None:
    ours, behind = make_run("clarion", TRACKING, p50_ms=90.0), make_run("rabbitmq", TRACKING, pace=0.5)
    assert judge(rounds_of(ours, behind), asked_of(TRACKING, "p50_ms")).holds == "yes: no peer keeps up"
    assert judge(rounds_of(ours), asked_of(TRACKING, "p50_ms")).holds == "not known"


def test_server_cpu_is_compared_with_nats_whoever_else_is_better() -> None:
    runs = [make_run("clarion", ROW, server_cpu=0.2), make_run("redis-field", ROW, server_cpu=0.1)]
    verdict = judge(rounds_of(*runs, make_run("nats", ROW, server_cpu=0.4)), asked_of(ROW, "server_cpu"))
    assert verdict.ratio is not None
    assert (verdict.ratio.median, verdict.holds) == (0.5, "yes, the aim too")


def test_nothing_holds_where_we_fell_behind_or_failed() -> None:
    peers = [make_run("nats", ROW, turn, p50_ms=100.0) for turn in range(2)]
    behind = [make_run("clarion", ROW, 0), make_run("clarion", ROW, 1, delivered=0.7)]
    said = judge(rounds_of(*behind, *peers), asked_of(ROW, "p50_ms")).holds
    assert said == "no: fell behind in 1 of 2 rounds, 70 % delivered"
    failed = {"system": "clarion", "measure": ROW.name, "round": 1, "taken_s": 1.0, "failed": "lost one"}
    assert judge(rounds_of(behind[0], failed, *peers), asked_of(ROW, "p50_ms")).holds == "no: 1 of our runs failed"


def test_a_ratio_is_taken_within_each_round() -> None:
    runs = [make_run("clarion", ROW, turn, p50_ms=ms) for turn, ms in enumerate((10, 3, 8))]
    runs += [make_run("nats", ROW, turn, p50_ms=ms) for turn, ms in enumerate((1, 0.1, 2))]
    ratio = judge(rounds_of(*runs), asked_of(ROW, "p50_ms")).ratio
    assert ratio is not None
    assert (round(ratio.median), round(ratio.lowest), round(ratio.highest)) == (10, 4, 30)


def test_a_growing_queue_is_not_keeping_up() -> None:
    usual = {"delivered": 1.0, "pace": 1.0, "lag": 0.01}
    assert keeps_up(usual)
    assert not any(keeps_up(usual | worse) for worse in ({"delivered": 0.99}, {"pace": 0.9}, {"lag": 0.4}))


def test_a_curve_ends_with_the_first_load_that_is_not_kept_up_with() -> None:
    loads = {load.per_s: load for load in CURVES if load.topics == 100}
    runs = [make_run("nats", loads[per_s]) for per_s in (100, 1000, 40_000)]
    points = curve(rounds_of(*runs, make_run("nats", loads[20_000], delivered=0.5)), "nats", 100)
    assert [(point.per_s, point.kept_up) for point in points] == [(100, True), (1000, True), (20_000, False)]
    assert saturation_per_s(points) == 1000


def test_a_table_says_who_falls_behind_and_rounds_nothing_up_to_all() -> None:
    rounds = rounds_of(
        make_run("clarion", ROW, delivered=0.99999),
        make_run("nats", ROW),
        make_run("rabbitmq", ROW, delivered=0.7),
    )
    ours, nats, rabbitmq = load_table(rounds, ROW).splitlines()[2:]
    assert ours.startswith("| **Clarion** | 99.9 | 2.00 | 9.00 | 0.3 |")
    assert nats.startswith("| NATS JetStream, pull | 100 | 2.00 |")
    assert rabbitmq.startswith("| RabbitMQ, topic exchange | 70.0, falls behind | 2.00, falls behind |")


def test_a_whole_report_has_every_row_the_picture_and_what_acks_mean(tmp_path: Path) -> None:
    loads = [*TABLE, FAST, HUGE, TRACKING, *CURVES]
    write_report(
        make_results(
            *(make_run(system.name, load, turn) for system in ENTRANTS for load in loads for turn in range(2))
        ),
        tmp_path,
    )
    text = (tmp_path / "paced.md").read_text()
    assert all(f"| {asked.title} |" in text for asked in ASKED)
    assert all(system.title in text and READERS_ACK[system.name] in text for system in ENTRANTS)
    assert (tmp_path / "paced.png").stat().st_size > 10_000


def test_every_row_that_is_asked_for_is_done_once_and_servers_are_shared_by_loads_alike() -> None:
    sessions = sessions_of(ROWS)
    done = [(load.topics, load.per_s, load.subscribers) for loads in sessions for load in loads]
    assert len(done) == len(set(done))
    assert all(len({(load.topics, load.publishers) for load in loads}) == 1 for loads in sessions)
    assert {load.row for loads in sessions for load in loads} == set(ROWS)
    assert all(takes_part(ENTRANTS[0], load) for loads in sessions for load in loads)


def test_a_pace_puts_what_is_due_and_each_message_once() -> None:
    shares = [Share(place, 2, topics=10) for place in range(2)]
    numbers = []
    for share in shares:
        pace = Pace(share, per_s=1000, seconds=1.0, most=10**9, now_s=50.0)
        now_s = 50.0
        while batch := pace.due(now_s):
            assert len(batch) == 5  # 200 portions a second
            now_s += pace.wait_s(now_s)
            numbers += [number for number, _, _ in batch]
            assert all(topic == topic_of(number, 10) for number, topic, _ in batch)
            assert all(HEAD.unpack_from(payload)[1] == number and len(payload) == 200 for number, _, payload in batch)
        assert now_s == pytest.approx(51.0)
    assert sorted(numbers) == list(range(2000))


def test_each_of_many_publishers_comes_to_each_topic() -> None:
    assert {topic_of(number, 500) for number in range(7, 300_000, 100)} == set(range(500))


def test_a_publisher_that_is_held_back_gives_up_in_the_end() -> None:
    pace = Pace(Share(0, 1, 1), per_s=1000, seconds=1.0, most=10**9, now_s=0.0)
    assert pace.due(1.9)
    assert pace.wait_s(1.9) == 0
    assert not pace.due(2.0)


def test_what_came_is_counted_in_time_once_and_in_order() -> None:
    numbers = np.array([0, 1, 2, 2, 5, 4, 3], np.uint64)  # of one topic: 2 twice, 4 and 3 after later ones
    sent = np.zeros(7)
    came = np.array([9.0, 9.0, 0.001, 0.002, 0.003, 0.004, 99.0])
    found = look(sent, numbers, came, by_s=10.0, topics=1)
    assert (found["got"], found["repeated"], found["disordered"]) == (5, 1, 1)
    assert found["p50_ms"] == pytest.approx(2.5)  # without the first third, and what came too late
    assert look(sent[:0], numbers[:0], came[:0], by_s=1.0, topics=3)["got"] == 0


def test_growth_is_what_the_last_third_has_beyond_the_middle_one() -> None:
    found = growths(
        {
            "server, MB": [50, 100, 100, 100, 104, 101],
            "files, MB": [50, 100, 100, 100, 150, 101],
            "reader 1: p50, ms": [1, 1, 1, 1, 90, 1, 1, 1, 900],
            "reader 2: p50, ms": [1, 1, 1, 1, 1, 1, 9, 10, 11],
            "too short": [1, 2],
        }
    )
    assert [(each.name, each.grows) for each in found] == [
        ("server, MB", False), ("files, MB", True), ("reader 1: p50, ms", False), ("reader 2: p50, ms", True),
    ]  # fmt: skip
