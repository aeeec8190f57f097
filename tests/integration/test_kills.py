"""Nothing acked is lost, nothing is repeated and order is kept, however often broker and clients are killed."""

from __future__ import annotations

from pathlib import Path

from tests.integration.torture import CRASH_POINTS, Campaign, Plan
from tests.integration.torture_oracle import Life, Oracle, describe


def test_thirty_two_kills_at_random_moments_and_at_every_crash_point(tmp_path: Path) -> None:
    said: list[str] = []
    plan = Plan(kills=32, seed=20, publishers=2, topics=("north", "south"), client_kill_chance=0.5, least_messages=1200)
    campaign = Campaign(plan, tmp_path, said.append)
    verdict = campaign.run()
    report = describe(verdict, [f"{dict(campaign.kills)}"])
    assert not verdict.violations, report
    assert campaign.kills["random moment"] >= 10, report
    assert all(campaign.kills[place] >= 2 for place in CRASH_POINTS), report
    assert sum(count for name, count in campaign.kills.items() if name.startswith("client")) >= 5, report
    assert verdict.counts["acked"] > 1000, report
    assert verdict.counts["received"] > 8 * 1000, report


def _judge(tmp_path: Path, logs: dict[str, tuple[str, str, list[str]]], end: int) -> list[str]:
    """Judge logs given as file: (name, role, lines); a log without E is that of a killed process."""
    lives = []
    for file, (name, role, lines) in logs.items():
        path = tmp_path / file
        path.write_text("".join(f"{line}\n" for line in lines))
        lives.append(Life(name, role, path, killed="E" not in lines))
    return Oracle({"t": end}).judge(lives).violations


def _received(*offsets: int) -> list[str]:
    return [f"R t {offset} {offset:032x} p {offset}" for offset in offsets]


PUT_THREE = ("p", "publish", ["I t 0 3", "A t 0 3 0", "E"])


def test_the_oracle_is_content_with_what_is_right(tmp_path: Path) -> None:
    logs = {
        "p": PUT_THREE,
        "r.0": ("r", "auto", [*_received(0, 1), "K t 0"]),
        "r.1": ("r", "auto", [*_received(1, 2), "E"]),
    }
    assert _judge(tmp_path, logs, 3) == []


def test_the_oracle_sees_a_loss(tmp_path: Path) -> None:
    found = _judge(tmp_path, {"p": PUT_THREE, "r": ("r", "auto", [*_received(0, 1), "E"])}, 3)
    assert any("never got 1 messages of t" in text for text in found)
    assert any("acked t 2 is not at 2" in text for text in found)


def test_the_oracle_sees_a_gap_that_another_consumer_life_does_not_explain(tmp_path: Path) -> None:
    found = _judge(tmp_path, {"p": PUT_THREE, "r": ("r", "auto", [*_received(0, 2), "E"])}, 3)
    assert any("was never given t 1" in text for text in found)


def test_the_oracle_sees_a_repetition_to_a_living_consumer(tmp_path: Path) -> None:
    found = _judge(tmp_path, {"p": PUT_THREE, "r": ("r", "auto", [*_received(0, 1, 1, 2), "E"])}, 3)
    assert found == ["r got t 1 twice, after 1"]


def test_the_oracle_sees_a_repetition_of_what_was_acked_durably(tmp_path: Path) -> None:
    logs = {
        "p": PUT_THREE,
        "r.0": ("r", "auto", [*_received(0, 1), "K t 0", "K t 1"]),
        "r.1": ("r", "auto", [*_received(1, 2), "K t 1", "E"]),
    }
    assert _judge(tmp_path, logs, 3) == ["r.1 got t [1] again, though acked durably before"]


def test_the_oracle_sees_at_most_once_broken(tmp_path: Path) -> None:
    logs = {
        "p": PUT_THREE,
        "a": ("a", "auto", [*_received(0, 1, 2), "E"]),
        "r.0": ("r", "at-most-once", _received(0, 1)),
        "r.1": ("r", "at-most-once", [*_received(1, 2), "E"]),
    }
    found = _judge(tmp_path, logs, 3)
    assert found == ["r.1 got t [1] again, at most once"]


def test_the_oracle_sees_a_message_stored_twice_and_order_broken(tmp_path: Path) -> None:
    publisher = ("p", "publish", ["I t 0 3"])
    twice = [*_received(0, 1), "R t 2 ff p 1", "E"]
    assert any(
        "p's 1 is there again" in text for text in _judge(tmp_path, {"p": publisher, "r": ("r", "auto", twice)}, 3)
    )
    swapped = ["R t 0 a p 1", "R t 1 b p 0", "E"]
    found = _judge(tmp_path, {"p": publisher, "r": ("r", "auto", swapped)}, 2)
    assert any("p's 1 is there too early" in text for text in found)


def test_the_oracle_sees_an_id_used_twice_and_readers_that_differ(tmp_path: Path) -> None:
    publisher = ("p", "publish", ["I t 0 2"])
    same_id = ["R t 0 a p 0", "R t 1 a p 1", "E"]
    found = _judge(tmp_path, {"p": publisher, "r": ("r", "auto", same_id)}, 2)
    assert any("id a is at" in text for text in found)
    logs = {
        "p": publisher,
        "r": ("r", "auto", [*_received(0, 1), "E"]),
        "q": ("q", "auto", ["R t 0 9 p 0", *_received(1), "E"]),
    }
    assert any("for one reader" in text for text in _judge(tmp_path, logs, 2))


def test_the_oracle_sees_what_nobody_put_and_an_unexplained_end(tmp_path: Path) -> None:
    logs = {"p": ("p", "publish", ["I t 0 1", "E"]), "r": ("r", "auto", [*_received(0, 1), "X Unreachable: gone", "E"])}
    found = _judge(tmp_path, logs, 2)
    assert any("t has p's 1, which was never put" in text for text in found)
    assert any("Unreachable: gone" in text for text in found)
