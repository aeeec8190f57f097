"""Shared work is done exactly once, however often broker and consumers are killed, and consumers hang."""

from __future__ import annotations

from pathlib import Path

from tests.integration.torture import CRASH_POINTS
from tests.integration.torture_consumers import is_poison, unworked, worked
from tests.integration.torture_oracle import Life, Verdict, describe
from tests.integration.torture_sharing import STAGES, ManyConsumers, Pipeline, SharedWork, pipeline_plan, sharing_plan
from tests.integration.torture_sharing_oracle import SharingOracle

_S = 1_000_000_000


def _check(campaign: SharedWork, verdict: Verdict) -> None:
    report = describe(verdict, [f"{dict(campaign.kills)}"])
    assert not verdict.violations, report
    assert campaign.kills["random moment"] >= 5, report
    assert all(campaign.kills[place] >= 1 for place in CRASH_POINTS), report
    assert campaign.kills["hung"] >= 2, report
    assert verdict.counts["holds_acked"] > 300, report


def test_ten_consumers_share_a_subscription_under_kills(tmp_path: Path) -> None:
    said: list[str] = []
    campaign = ManyConsumers(
        sharing_plan(kills=16, seed=11, longest_life_s=1.5, hang_share=0.3, client_kill_chance=0.9, least_messages=500),
        tmp_path,
        said.append,
    )
    verdict = campaign.run()
    _check(campaign, verdict)
    assert campaign.kills["client share"] >= 2
    assert verdict.counts["dead_letters"] > 0


def test_three_stages_take_transform_and_put_under_kills(tmp_path: Path) -> None:
    said: list[str] = []
    campaign = Pipeline(
        pipeline_plan(
            kills=16,
            seed=12,
            consumers=2,
            longest_life_s=1.5,
            hang_share=0.3,
            client_kill_chance=0.9,
            least_messages=150,
        ),
        tmp_path,
        said.append,
    )
    verdict = campaign.run()
    _check(campaign, verdict)
    assert campaign.kills["client stage"] >= 2
    assert verdict.counts[f"through_stage{STAGES}"] == verdict.counts["stored"] > 100


# The judge itself.


def _judge(
    tmp_path: Path, logs: dict[str, list[str]], hung: dict[str, tuple[int, int]] | None = None, **more: object
) -> list[str]:
    """Judge logs of the consumers of one message; a log without E is that of a process killed at 50 s."""
    lives = []
    for name, lines in logs.items():
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines))
        killed = "E" not in lines
        life = Life(name, "share", path, killed=killed, killed_at_ns=50 * _S if killed else 0)
        life.hung_ns = [hung[name]] if hung and name in hung else []
        lives.append(life)
    verdict = Verdict()
    options: dict[str, object] = {"restarts_ns": [], "letters": {}, "max_attempts": 3, **more}
    SharingOracle("t", 1, verdict=verdict, **options).judge(lives)  # type: ignore[arg-type]
    return verdict.violations


def _got(attempt: int, second: int, counter: int = 0) -> str:
    return f"R t 0 00 p {counter} {attempt} {second * _S}"


def _did(what: str, second: int, more: str = "") -> str:
    return f"{what} t 0 {more}{second * _S}"


ACKED = [_got(1, 10), _did("B", 11), _did("K", 12), "E"]


def test_the_judge_is_content_with_what_is_right(tmp_path: Path) -> None:
    assert not is_poison("p", "t", 0)
    assert _judge(tmp_path, {"a": ACKED}) == []
    nacked = [_got(1, 1), _did("N", 2, "3000 "), _did("D", 3), "E"]
    assert _judge(tmp_path, {"a": nacked, "b": [_got(2, 10), _did("K", 12), "E"]}) == []
    hung = [_got(1, 1), _did("B", 8), _did("L", 9), "E"]
    again = [_got(2, 5), _did("K", 6), "E"]
    assert _judge(tmp_path, {"a": hung, "b": again}, {"a": (2 * _S, 7 * _S)}) == []
    assert _judge(tmp_path, {"a": [_got(1, 1), _did("B", 2)]}) == []  # it was killed after the broker had the ack


def test_the_judge_sees_two_acks_and_none(tmp_path: Path) -> None:
    twice = _judge(tmp_path, {"a": ACKED, "b": [_got(2, 20), _did("K", 21), "E"]})
    assert any("was acked by a (attempt 1, acked) and by b" in text for text in twice)
    assert any("after it was acked durably by a" in text for text in twice)
    assert any("nobody acked it" in text for text in _judge(tmp_path, {"a": [_got(1, 1)]}))


def test_the_judge_sees_two_that_have_the_same_message(tmp_path: Path) -> None:
    found = _judge(tmp_path, {"a": ACKED, "b": [_got(2, 11), _did("N", 15, "0 "), _did("D", 16), "E"]})
    assert any("came to b (attempt 2, nacked) while a (attempt 1, acked) had it" in text for text in found)


def test_the_judge_sees_a_message_taken_from_one_that_lived(tmp_path: Path) -> None:
    lost = [_got(1, 1), _did("B", 8), _did("L", 9), "E"]
    found = _judge(tmp_path, {"a": lost, "b": [_got(2, 5), _did("K", 6), "E"]})
    assert any("was taken from a (attempt 1, lost), which lived" in text for text in found)


def test_the_judge_sees_wrong_attempts_and_delays(tmp_path: Path) -> None:
    nacked = [_got(1, 1), _did("N", 2, "3000 "), _did("D", 3), "E"]
    same = _judge(tmp_path, {"a": nacked, "b": [_got(1, 10), _did("K", 12), "E"]})
    assert any("came to b (attempt 1, acked) after a (attempt 1, nacked)" in text for text in same)
    early = _judge(tmp_path, {"a": nacked, "b": [_got(2, 4), _did("K", 12), "E"]})
    assert any("before the delay of a (attempt 1, nacked) was over" in text for text in early)
    assert any("only 0 gave it back" in text for text in _judge(tmp_path, {"a": [_got(2, 10), _did("K", 12), "E"]}))
    killed = [_got(1, 1)]
    again = [_got(1, 60), _did("K", 61), "E"]
    assert any("after a (attempt 1, killed)" in text for text in _judge(tmp_path, {"a": killed, "b": again}))
    assert _judge(tmp_path, {"a": killed, "b": again}, restarts_ns=[55 * _S]) == []


def test_the_judge_sees_dead_letters_that_are_not(tmp_path: Path) -> None:
    assert any("and is a dead letter" in text for text in _judge(tmp_path, {"a": ACKED}, letters={0: 3}))
    assert any("dead letter after 2 attempts" in text for text in _judge(tmp_path, {}, letters={0: 2}))


def test_what_stages_make_can_be_told_from_anything_else() -> None:
    made = worked(3, worked(2, worked(1, b"x#1:y")))
    assert unworked(3, made) == b"x#1:y"
    assert unworked(2, made) is None
    assert unworked(3, worked(3, worked(1, b"x"))) is None
    assert unworked(3, worked(3, worked(3, worked(2, worked(1, b"x"))))) is None
