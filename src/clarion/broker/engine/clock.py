"""Which time it is: the wall clock's, as long as that is believable, and what has become old by it.

Wall clocks jump: they are set wrong and right again, and machines stand still. Time is measured against a clock that
only runs. A wall clock that moved by more than a minute against it is not believed for ten; until then the broker's
time just goes on. What jumped is believed when it has stayed for so long.
"""

from __future__ import annotations

from typing import NamedTuple

_BELIEVED_US = 60 * 1_000_000  # by which the wall clock may be off the time kept here, and is followed
_STEADY_S = 600.0  # for which a wall clock that jumped must have gone on evenly to be believed
_LONG_S = 86_400.0  # for which a broker may have been away, too, before it says so
_UNNOTICED_US = 120 * 1_000_000  # for which a broker may have been away without anybody asking where the time went


class Jump(NamedTuple):
    """The last time that time was put forward: what was noted from `since_us` until `until_us` is `by_us` younger than
    its times say."""

    since_us: int
    until_us: int
    by_us: int


_NO_JUMP = Jump(0, 0, 0)


class Now(NamedTuple):
    """The time of a decision: monotonic seconds for timers, unix microseconds for what is stored.

    By unix time alone nothing is let go: `old_before_us`, `silent_before_us` and `is_past` know what the clock did.
    """

    monotonic_s: float
    unix_us: int
    held_back_us: int = 0  # of unix time that may not have passed
    jump: Jump = _NO_JUMP

    def old_before_us(self, age_s: float) -> int:
        """Return the time before which all that was noted is older than this."""
        cut_us = self.unix_us - self.held_back_us - int(age_s * 1e6)
        since_us, until_us, by_us = self.jump
        if since_us < cut_us < until_us + by_us:
            cut_us = max(since_us, cut_us - by_us)
        return max(0, cut_us)

    def silent_before_us(self, silence_s: float) -> int:
        """Return the time before which must have been seen last who was silent for so long, and not only by a clock
        that was put forward."""
        cut_us = self.unix_us - self.held_back_us - int(silence_s * 1e6)
        _, until_us, by_us = self.jump
        return max(0, cut_us - by_us if cut_us < until_us + by_us else cut_us)

    def is_past(self, moment_us: int, noted_us: int) -> bool:
        """Return whether a moment that was reckoned from a time has come."""
        since_us, until_us, by_us = self.jump
        late_us = by_us if since_us <= noted_us < until_us else 0
        return moment_us + late_us <= self.unix_us - self.held_back_us


class Clock:
    """Keeps the time. `remembered_us` is what it was when the broker last noted it, before it was stopped; 0: never."""

    def __init__(self, remembered_us: int) -> None:
        self._remembered_us = remembered_us
        self._offset_us: int | None = None  # of the time kept here from the clock that only runs
        self._held_offset_us: int | None = None  # likewise, as if no time had passed while the broker was away
        self._held_until_us = 0
        self._jumped_us: int | None = None  # where the wall clock is instead
        self._jumped_at_us = 0
        self._jump = _NO_JUMP
        self._notices: list[str] = []
        self.jumps = 0

    @property
    def off_s(self) -> float:
        """By how much the wall clock is ahead of the time kept here, when it is not believed."""
        return 0.0 if self._jumped_us is None or self._offset_us is None else (self._jumped_us - self._offset_us) / 1e6

    def take_notices(self) -> list[str]:
        """Return what has to be told, once."""
        notices, self._notices = self._notices, []
        return notices

    def look(self, monotonic_s: float, running_s: float, wall_us: int) -> Now:
        """Return the time. `running_s` is of a clock that only runs, and does so while the machine sleeps."""
        running_us = int(running_s * 1e6)
        offset_us = wall_us - running_us
        if self._offset_us is None:
            self._begin(offset_us, running_us)
        assert self._offset_us is not None
        if abs(offset_us - self._offset_us) <= _BELIEVED_US:
            if self._jumped_us is not None:
                self._notices.append("the clock is back at the time that it left; what waited for that goes on")
            self._jumped_us, self._offset_us = None, offset_us
        elif self._jumped_us is None or abs(offset_us - self._jumped_us) > _BELIEVED_US:
            self._note_jump(offset_us, running_us)
        elif running_us - self._jumped_at_us >= _STEADY_S * 1e6:
            self._take_over(offset_us, running_us)
        unix_us = running_us + self._offset_us
        return Now(monotonic_s, unix_us, self._held_back_us(unix_us, running_us), self._jump)

    def _begin(self, offset_us: int, running_us: int) -> None:
        self._offset_us = offset_us
        if not self._remembered_us:
            return
        held_us = self._remembered_us - running_us
        if offset_us < held_us - _BELIEVED_US:
            self._offset_us = held_us
        elif offset_us > held_us + _UNNOTICED_US:
            self._held_offset_us = held_us
            self._held_until_us = running_us + int(_STEADY_S * 1e6)
            away_s = (offset_us - held_us) / 1e6
            if away_s > _LONG_S:
                self._notices.append(
                    f"the time was last noted {away_s / 86_400:.1f} days ago: either nothing was stored since, or the"
                    f" clock is wrong. Nothing expires by those days for the next {_STEADY_S:.0f} s"
                )

    def _held_back_us(self, unix_us: int, running_us: int) -> int:
        if self._held_offset_us is None:
            return 0
        if running_us >= self._held_until_us:
            self._held_offset_us = None
            return 0
        return max(0, unix_us - running_us - self._held_offset_us)

    def _note_jump(self, offset_us: int, running_us: int) -> None:
        assert self._offset_us is not None
        self.jumps += 1
        self._jumped_us, self._jumped_at_us = offset_us, running_us
        by_s = (offset_us - self._offset_us) / 1e6
        self._notices.append(
            f"the clock was put {'forward' if by_s > 0 else 'back'} by {abs(by_s):.0f} s. Until it has gone on evenly"
            f" for {_STEADY_S:.0f} s the broker keeps its own time: nothing expires by the jump, and what is due comes"
        )

    def _take_over(self, offset_us: int, running_us: int) -> None:
        assert self._offset_us is not None
        by_us = offset_us - self._offset_us
        if by_us > 0:
            self._jump = Jump(self._jumped_at_us + self._offset_us, running_us + self._offset_us, by_us)
        self._notices.append(
            f"the clock has gone on evenly for {_STEADY_S:.0f} s: its time, {abs(by_us) / 1e6:.0f} s"
            f" {'ahead' if by_us > 0 else 'behind'}, is the broker's from now on"
        )
        self._jumped_us, self._offset_us = None, offset_us
