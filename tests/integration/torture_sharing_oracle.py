"""Judges those who share subscriptions, by what their logs say they had in their hands, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.integration.torture_consumers import is_poison
from tests.integration.torture_oracle import Life, Verdict

_AFTERMATH_NS = 5_000_000_000  # of a hang: what was in the buffers is handed out, and found to be lost
_CLOCKS_DIFFER_NS = 5_000_000  # the broker counts delays by the clock on the wall, which is set right now and then
_IN_FLIGHT_NS = 1_000_000_000  # what the broker sent before it was killed comes within this time


@dataclass(slots=True)
class Hold:
    """A message in a consumer's hands."""

    life: Life
    offset: int
    attempt: int
    whose: tuple[str, int]
    since_ns: int
    until_ns: int = 0
    end: str = ""  # acked, nacked, lost, killed, left
    ack_began: bool = False
    nack_began_ns: int = 0
    delay_ms: int = 0  # that it was given back for
    disturbed_ns: list[tuple[int, int]] = field(default_factory=list)  # when its consumer could not run

    def __str__(self) -> str:
        return f"{self.life.log.name} (attempt {self.attempt}, {self.end or 'open'})"

    def was_disturbed(self) -> bool:
        """Tell whether its consumer hung, or got no time to run, shortly before or while it had it."""
        return any(start < self.until_ns and stop > self.since_ns - _AFTERMATH_NS for start, stop in self.disturbed_ns)

    def is_stale(self) -> bool:
        """Tell whether it came out of the buffer of a consumer that had hung, and could not be used any more."""
        return self.end in ("lost", "killed") and any(
            start < self.since_ns < stop + _AFTERMATH_NS for start, stop in self.disturbed_ns
        )

    def next_ns(self) -> int:
        """Return before when nobody may get it again, by the delay asked for; 0 where that is not known."""
        return self.until_ns + self.delay_ms * 1_000_000 - _CLOCKS_DIFFER_NS if self.end == "nacked" else 0

    def sure_until_ns(self) -> int:
        """Return until when nobody else may have had it."""
        if self.end in ("acked", "nacked"):
            return self.until_ns
        ends = [start for start, stop in self.disturbed_ns if stop > self.since_ns]
        ends += [self.nack_began_ns] if self.nack_began_ns else []
        return min([self.until_ns, *ends])


def read_holds(life: Life, topic: str, verdict: Verdict) -> list[Hold]:
    """Return what one consumer had in its hands, in order."""
    holds: list[Hold] = []
    opened: dict[int, Hold] = {}
    disturbed = list(life.hung_ns)
    for words in life.lines():
        if words[0] == "G":
            disturbed.append((int(words[1]), int(words[2])))
        if words[0] not in "RBKNDCL" or len(words) < 4 or words[1] != topic:
            continue
        offset, now_ns = int(words[2]), int(words[-1])
        if words[0] == "R":
            hold = Hold(life, offset, int(words[6]), (words[4], int(words[5])), now_ns, disturbed_ns=disturbed)
            if offset in opened:
                verdict.accuse(f"{life.log.name} got {topic} {offset} again while it had it")
            opened[offset] = hold
            holds.append(hold)
        else:
            _note_end(words, opened, offset, now_ns)
    for hold in opened.values():
        hold.end = "killed" if life.killed else "left"
        hold.until_ns = hold.nack_began_ns or life.killed_at_ns or hold.since_ns
    return holds


def _note_end(words: list[str], opened: dict[int, Hold], offset: int, now_ns: int) -> None:
    hold = opened.get(offset)
    if hold is None:
        return
    if words[0] == "B":
        hold.ack_began = True
    elif words[0] == "N":
        hold.nack_began_ns, hold.delay_ms = now_ns, int(words[3])
    else:
        hold.end = {"K": "acked", "C": "acked", "D": "nacked", "L": "lost"}[words[0]]
        hold.until_ns = hold.nack_began_ns if hold.end == "nacked" else now_ns
        del opened[offset]


class SharingOracle:
    """Judges one shared subscription. `restarts_ns` says when the broker was started again, `letters` has the attempts
    of each dead letter by its offset."""

    def __init__(
        self,
        topic: str,
        end: int,
        restarts_ns: Sequence[int],
        letters: Mapping[int, int],
        max_attempts: int,
        verdict: Verdict,
    ) -> None:
        self._topic = topic
        self._end = end
        self._restarts_ns = restarts_ns
        self._letters = letters
        self._max_attempts = max_attempts
        self.verdict = verdict
        self._mishaps_ns: list[int] = []  # when consumers were killed, or could not run

    def judge(self, lives: Sequence[Life]) -> None:
        """Read every log and check every promise."""
        by_offset: dict[int, list[Hold]] = defaultdict(list)
        for life in lives:
            self._check_end(life)
            for hold in read_holds(life, self._topic, self.verdict):
                by_offset[hold.offset].append(hold)
                self.verdict.counts[f"holds_{hold.end}"] += 1
            self._mishaps_ns += [life.killed_at_ns] if life.killed else []
            self._mishaps_ns += [start for start, _ in life.hung_ns]
            self._mishaps_ns += [int(words[1]) for words in life.lines() if words[0] == "G"]
        for offset in range(self._end):
            holds = sorted(by_offset.pop(offset, []), key=lambda hold: hold.since_ns)
            self._check_done_once(offset, holds)
            self._check_hands(holds)
            self._check_attempts(holds)
        for offset in by_offset:
            self.verdict.accuse(f"{self._topic} {offset} was handed out, beyond the end {self._end}")

    def _check_end(self, life: Life) -> None:
        lines = life.lines()
        for words in lines:
            if words[0] == "X":
                self.verdict.accuse(f"{life.log.name}: {' '.join(words[1:])}")
        if not life.killed and lines[-1:] != [["E"]]:
            self.verdict.accuse(f"{life.log.name} did not end cleanly, and nobody killed it")

    def _check_done_once(self, offset: int, holds: list[Hold]) -> None:
        """Check that a message is acked by one consumer, or dead, and not handed out after that."""
        verdict, name = self.verdict, f"{self._topic} {offset}"
        acked = [hold for hold in holds if hold.end == "acked"]
        is_dead = offset in self._letters
        verdict.counts["messages"] += 1
        if len(acked) > 1:
            verdict.accuse(f"{name} was acked by {' and by '.join(map(str, acked))}")
        if acked and is_dead:
            verdict.accuse(f"{name} was acked by {acked[0]}, and is a dead letter")
        if not acked and not is_dead:
            verdict.counts["acked_when_killed"] += 1
            if not any(hold.ack_began and hold.end in ("killed", "lost") for hold in holds):
                verdict.accuse(f"{name} is done, and nobody acked it: {', '.join(map(str, holds))}")
        if is_dead and self._letters[offset] != self._max_attempts:
            verdict.accuse(f"{name} is a dead letter after {self._letters[offset]} attempts")
        if holds and is_poison(holds[0].whose[0], self._topic, holds[0].whose[1]) and self._max_attempts:
            verdict.counts["poison"] += 1
            if not is_dead:
                verdict.accuse(f"{name} was always given back, and is no dead letter")
        for hold in acked:
            for other in holds:
                if other.since_ns > hold.until_ns and not other.is_stale():
                    verdict.accuse(f"{name} came to {other} after it was acked durably by {hold}")

    def _check_hands(self, holds: list[Hold]) -> None:
        """Check that no message was in the hands of two that lived, and none was taken from one that did."""
        for hold in holds:
            if hold.end == "lost" and not hold.was_disturbed():
                self.verdict.accuse(f"{self._topic} {hold.offset} was taken from {hold}, which lived")
            if hold.is_stale():
                self.verdict.counts["handed_out_after_hanging"] += 1
                continue
            for other in holds:
                if other is hold or other.is_stale():
                    continue
                if hold.since_ns < other.since_ns < hold.sure_until_ns():
                    self.verdict.accuse(f"{self._topic} {hold.offset} came to {other} while {hold} had it")

    def _check_attempts(self, holds: list[Hold]) -> None:
        """Check that attempts rise, no faster than things went wrong, and delays are kept."""
        before: Hold | None = None
        given_back = 0
        for hold in holds:
            if hold.is_stale():
                continue
            name = f"{self._topic} {hold.offset}"
            if before is not None and hold.attempt < before.attempt + (not self._may_be_forgotten(before, hold)):
                self.verdict.accuse(f"{name} came to {hold} after {before}")
            if self._max_attempts and hold.attempt > self._max_attempts:
                self.verdict.accuse(f"{name} came to {hold}, beyond {self._max_attempts} attempts")
            mishaps = sum(moment_ns < hold.since_ns for moment_ns in self._mishaps_ns)
            if hold.attempt > 1 + given_back + mishaps:
                self.verdict.accuse(f"{name} came to {hold}, though only {given_back} gave it back, {mishaps} mishaps")
            if before is not None and hold.since_ns < before.next_ns():
                self.verdict.accuse(f"{name} came to {hold} before the delay of {before} was over")
            before = hold
            given_back += hold.nack_began_ns > 0

    def _may_be_forgotten(self, before: Hold, after: Hold) -> bool:
        """Tell whether the broker died after it lent a message to one that never told the next broker."""
        return before.end in ("killed", "lost") and any(
            before.since_ns - _IN_FLIGHT_NS < moment_ns < after.since_ns for moment_ns in self._restarts_ns
        )
