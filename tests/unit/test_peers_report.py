"""The report of the peers' bench says what the rounds say. All figures here are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench.machine import in_a_line
from bench.peers.figures import GOALS, Figure, Rounds, judge
from bench.peers.plots import draw_panel
from bench.peers.report import SECTIONS, goals_table, number, ratio_text, section_table, single_table, write_report
from bench.peers.systems import SYSTEMS
from matplotlib.figure import Figure as Canvas

PUBLISH = Figure("100 B", "publish_per_s")
CPU = Figure("100 B", "cpu_s_per_million", lower_is_better=True)
PUT = Figure("latency", "put_ms_p50", lower_is_better=True)


def make_results(*runs: dict[str, Any], missing: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "machine": {"processor": "made up", "cores": 2, "fsync_ms_p50": 0.2},
        "rounds": 1 + max((run["round"] for run in runs), default=0),
        "versions": {run["system"]: f"{run['system']} 1.2.3" for run in runs},
        "missing": missing or {},
        "runs": list(runs),
    }


def make_runs(system: str, figure: Figure, *values: float | str) -> list[dict[str, Any]]:
    """Make a run a round: with a figure, or failed for the reason given instead."""
    return [
        {"system": system, "measure": figure.measure, "round": turn, "taken_s": 1.0}
        | ({"failed": value} if isinstance(value, str) else {"figures": {figure.name: value}})
        for turn, value in enumerate(values)
    ]


def goal_of(figure: Figure) -> Any:
    return next(goal for goal in GOALS if goal.figure == figure)


def test_a_ratio_is_taken_within_each_round_and_only_then_its_median() -> None:
    runs = make_runs("clarion", PUBLISH, 100, 30, 80) + make_runs("nats", PUBLISH, 10, 1, 20)
    rounds = Rounds(make_results(*runs))
    ratio = rounds.ratio("clarion", "nats", PUBLISH)
    assert ratio is not None
    assert (ratio.median, ratio.lowest, ratio.highest) == (10, 4, 30)  # the ratio of the medians is 8
    spread = rounds.spread("clarion", PUBLISH)
    assert spread is not None
    assert (spread.median, spread.lowest, spread.highest) == (80, 30, 100)


def test_rounds_that_one_of_both_failed_are_in_no_ratio() -> None:
    runs = make_runs("clarion", PUBLISH, 100, 100) + make_runs("nats", PUBLISH, "it broke", 50)
    ratio = Rounds(make_results(*runs)).ratio("clarion", "nats", PUBLISH)
    assert ratio is not None
    assert (ratio.lowest, ratio.highest) == (2, 2)


def test_the_best_peer_is_never_ours_and_may_have_to_fsync() -> None:
    runs = make_runs("clarion", PUBLISH, 900) + make_runs("clarion-single", PUBLISH, 800)
    runs += make_runs("rabbitmq-stream", PUBLISH, 300) + make_runs("redis-always", PUBLISH, 60)
    rounds = Rounds(make_results(*runs))
    best, durable = rounds.best_peer(PUBLISH), rounds.best_peer(PUBLISH, that_fsyncs=True)
    assert best is not None
    assert durable is not None
    assert (best.name, durable.name) == ("rabbitmq-stream", "redis-always")


def test_where_less_is_better_the_best_peer_is_the_lowest() -> None:
    runs = make_runs("nats", CPU, 9) + make_runs("redis-always", CPU, 7)
    best = Rounds(make_results(*runs)).best_peer(CPU)
    assert best is not None
    assert best.name == "redis-always"


@pytest.mark.parametrize(
    ("figure", "ours", "expected"),
    [
        (PUBLISH, 299, "no"),
        (PUBLISH, 300, "yes"),
        (PUBLISH, 999, "yes"),
        (PUBLISH, 1000, "yes, the aim too"),
        (CPU, 101, "no"),
        (CPU, 100, "yes"),
        (CPU, 50, "yes, the aim too"),
        (PUT, 151, "no"),
        (PUT, 149, "yes"),
        (PUT, 99, "yes, the aim too"),
    ],
)
def test_a_goal_holds_or_not(figure: Figure, ours: float, expected: str) -> None:
    runs = make_runs("clarion", figure, ours) + make_runs("redis-always", figure, 100)
    rounds = Rounds(make_results(*runs))
    assert judge(rounds, goal_of(figure)).holds == expected
    row = next(line for line in goals_table(rounds).splitlines() if goal_of(figure).title in line)
    assert f"| {expected} |" in row


def test_latency_is_not_compared_with_a_peer_that_does_not_fsync() -> None:
    runs = make_runs("clarion", PUT, 1.2) + make_runs("redis-default", PUT, 0.4) + make_runs("redis-always", PUT, 1.0)
    verdict = judge(Rounds(make_results(*runs)), goal_of(PUT))
    assert verdict.peer is not None
    assert verdict.peer.name == "redis-always"
    assert verdict.holds == "yes"


def test_nothing_holds_where_a_run_of_ours_failed_or_no_peer_was_there() -> None:
    runs = make_runs("clarion", PUBLISH, 1000, "a message was lost") + make_runs("nats", PUBLISH, 10, 10)
    assert judge(Rounds(make_results(*runs)), goal_of(PUBLISH)).holds == "no: 1 of our runs failed"
    alone = Rounds(make_results(*make_runs("clarion", PUBLISH, 1000)))
    assert judge(alone, goal_of(PUBLISH)).holds == "not known"
    assert "none measured" in goals_table(alone)


def test_clarion_called_message_by_message_has_rows_of_its_own() -> None:
    runs = make_runs("clarion", PUBLISH, 1000) + make_runs("nats", PUBLISH, 100)
    assert single_table(Rounds(make_results(*runs))) == ""
    runs += make_runs("clarion-single", PUBLISH, 200)
    row = single_table(Rounds(make_results(*runs))).splitlines()[2]
    assert "**2.0x**" in row
    assert "| no |" in row


def test_a_table_shows_every_system_also_those_missing_and_failed() -> None:
    runs = make_runs("clarion", PUBLISH, 4_000_000, 5_000_000) + make_runs("nats", PUBLISH, 30_000, "it broke")
    runs += make_runs("redis-always", PUBLISH, "no space", "no space")
    rounds = Rounds(make_results(*runs, missing={"rabbitmq-stream": "no such package"}))
    lines = section_table(rounds, SECTIONS[0]).splitlines()
    clarion, rabbitmq, nats, redis = lines[2:]
    assert clarion.startswith("| **Clarion** | fsync | 4,500 (4,000 to 5,000) | 133x |")
    assert rabbitmq.startswith("| RabbitMQ stream | no fsync (it has no such setting) | missing |")
    assert nats.startswith("| NATS JetStream | fsync every 2 min | 30.0; failed 1 times | best peer |")
    assert redis.startswith("| Redis Streams, always | fsync | failed |")


def test_the_report_names_who_is_missing_and_what_failed_without_folders_of_the_machine(tmp_path: Path) -> None:
    runs = make_runs("clarion", PUBLISH, 1000) + make_runs("nats", PUBLISH, "died:\n see /some/where/server.log")
    write_report(make_results(*runs, missing={"redis-always": "apt has no redis"}), tmp_path)
    text = (tmp_path / "peers.md").read_text()
    assert "**missing**: Redis Streams, always: apt has no redis" in text
    assert "**failed**: NATS JetStream, 100 B, round 1: died: see …/server.log" in text
    assert "make bench-peers" in text
    assert (tmp_path / "peers.png").stat().st_size > 10_000
    assert not (tmp_path / "latency.png").exists()


def test_a_whole_report_has_all_tables_and_pictures(tmp_path: Path) -> None:
    write_report(make_everything(), tmp_path)
    text = (tmp_path / "peers.md").read_text()
    assert all(f"## {section.title}\n" in text for section in SECTIONS)
    assert all(system.title in text for system in SYSTEMS)
    assert "No run failed." in text
    assert (tmp_path / "latency.png").stat().st_size > 10_000


def test_a_picture_has_each_number_in_the_row_of_its_system() -> None:
    runs = (
        make_runs("clarion", PUBLISH, 5e6) + make_runs("nats", PUBLISH, 33e3) + make_runs("redis-always", PUBLISH, "x")
    )
    rounds = Rounds(make_results(*runs, missing={"rabbitmq-stream": "none"}))
    systems = [system for system in reversed(SYSTEMS) if system in rounds.systems]
    place: Any = Canvas().subplots()
    draw_panel(place, rounds, systems, "publish", PUBLISH)
    titles = [label.get_text() for label in place.get_yticklabels()]
    said = {titles[text.xy[1]]: text.get_text() for text in place.texts}
    bars = {titles[round(bar.get_y() + bar.get_height() / 2)]: bar for bar in place.patches if bar.get_width() > 1}
    ours = "Clarion, put_many and\nget_batches"  # rates are named by the calls that they belong to
    assert said == {
        ours: "5 M", "NATS JetStream": "33 k", "Redis Streams, always": "failed", "RabbitMQ stream": "missing",
    }  # fmt: skip
    assert {title: bar.get_width() for title, bar in bars.items()} == {ours: 5e6, "NATS JetStream": 33e3}
    assert (bars[ours].get_hatch(), bars["NATS JetStream"].get_hatch()) == (None, "////")
    place.figure.draw_without_rendering()
    assert {"0", "2 M", "4 M"} <= {label.get_text() for label in place.get_xticklabels()}


def test_a_picture_names_the_machine() -> None:
    machine = {"processor": "made up", "cores": 2, "memory_gb": 25, "file_system": "ext4", "fsync_ms_p50": 0.393}
    assert in_a_line(machine) == "Measured on made up, 2 cores, 25 GB, ext4, a bare fsync 0.39 ms"


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 0.1234, 1.234, 12.34, 1234.5)] == ["0", "0.123", "1.23", "12.3", "1,234"]
    assert [ratio_text(value) for value in (0.5, 1.499, 3.21, 12.3)] == ["0.50x", "1.50x", "3.2x", "12x"]


def make_everything() -> dict[str, Any]:
    """Make up three rounds of everything."""
    names = {column.figure for section in SECTIONS for column in section.columns}
    rates = {"clarion": 5e6, "clarion-single": 6e5, "rabbitmq-stream": 3.3e5, "rabbitmq-classic": 1.1e4,
             "rabbitmq-quorum": 9e3, "nats": 3.3e4, "redis-default": 9e4, "redis-everysec": 8.4e4,
             "redis-always": 6.6e4, "rabbitmq-stream-beyond": 900e3}  # fmt: skip
    runs: dict[tuple[str, str, int], dict[str, Any]] = {}
    for system in SYSTEMS:
        for figure in names:
            for turn in range(3):
                run = runs.setdefault(
                    (system.name, figure.measure, turn),
                    {"system": system.name, "measure": figure.measure, "round": turn, "taken_s": 3.0, "figures": {}},
                )
                rate = rates[system.name] * (1 + 0.1 * turn)
                less = 3e4 / rate + (1.0 if "p99" in figure.name else 0.3)
                value = rate if figure.name.endswith("_per_s") else less
                run["figures"][figure.name] = value
    return make_results(*runs.values())


def test_a_client_that_goes_beyond_what_a_user_has_is_shown_and_is_not_the_best_peer() -> None:
    runs = make_runs("clarion", PUBLISH, 1000) + make_runs("nats", PUBLISH, 10)
    runs += make_runs("rabbitmq-stream-beyond", PUBLISH, 900)
    rounds = Rounds(make_results(*runs))
    best = rounds.best_peer(PUBLISH)
    assert best is not None
    assert best.name == "nats"
    section = next(section for section in SECTIONS if PUBLISH in {column.figure for column in section.columns})
    assert "codec replaced" in section_table(rounds, section)
