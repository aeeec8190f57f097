"""A clock that jumps ends nothing that lives, and holds up nothing that is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.asker import START_US
from tests.unit.broker.lease_askers import JOBS, SharedAsker, lent_by

from clarion.broker.engine import Clock, Now
from clarion.model.options import SubscriptionOptions
from clarion.wire import bodies
from clarion.wire.frames import Kind

DAY_S = 86_400.0
STEADY_S = 600.0


class Moved:
    """A wall clock that is moved about, beside one that only runs."""

    def __init__(self, remembered_us: int = START_US) -> None:
        self.clock = Clock(remembered_us)
        self.running_s = 1000.0
        self.off_s = 0.0

    def look(self, seconds: float = 0.0) -> Now:
        self.running_s += seconds
        wall_us = START_US + int((self.running_s - 1000.0 + self.off_s) * 1e6)
        return self.clock.look(self.running_s, self.running_s, wall_us)

    def age_s(self, now: Now) -> float:
        """Return how much time the broker says has passed."""
        return (now.unix_us - START_US) / 1e6


def test_small_steps_are_followed() -> None:
    moved = Moved()
    for off_s in (0.0, 50.0, -5.0, 30.0, 85.0):
        moved.off_s = off_s
        assert moved.age_s(moved.look(1.0)) == pytest.approx(moved.running_s - 1000.0 + off_s)
    assert (moved.clock.jumps, moved.clock.take_notices()) == (0, [])


@pytest.mark.parametrize("off_s", [-3600.0, 30 * DAY_S])
def test_a_jump_is_told_and_not_followed_until_it_stays(off_s: float) -> None:
    moved = Moved()
    moved.look()
    moved.off_s = off_s
    assert moved.age_s(moved.look(4.0)) == pytest.approx(4.0)
    assert moved.clock.off_s == pytest.approx(off_s)
    (notice,) = moved.clock.take_notices()
    assert ("back by 3600 s" if off_s < 0 else "forward by 2592000 s") in notice
    assert moved.age_s(moved.look(STEADY_S - 1)) == pytest.approx(3.0 + STEADY_S)
    assert moved.age_s(moved.look(2.0)) == pytest.approx(5.0 + STEADY_S + off_s)
    assert moved.clock.off_s == 0.0
    (notice,) = moved.clock.take_notices()
    assert "is the broker's from now on" in notice


def test_a_clock_that_comes_back_was_never_believed() -> None:
    moved = Moved()
    moved.look()
    moved.off_s = 30 * DAY_S
    moved.look(4.0)
    moved.off_s = 0.0
    now = moved.look(1.0)
    assert moved.age_s(now) == pytest.approx(5.0)
    assert (moved.clock.jumps, len(moved.clock.take_notices())) == (1, 2)


def test_a_clock_that_jumps_about_is_never_believed() -> None:
    moved = Moved()
    moved.look()
    for turn in range(100):
        moved.off_s = DAY_S * (1 + turn % 2)
        moved.look(STEADY_S / 3)
    assert moved.age_s(moved.look()) == pytest.approx(100 * STEADY_S / 3)


def test_what_was_noted_while_the_clock_was_not_believed_is_no_older_for_that() -> None:
    """It stayed, and so what is noted in between has times that lie too far back."""
    moved = Moved()
    moved.look()
    moved.off_s = 30 * DAY_S
    noted_us = moved.look(100.0).unix_us
    moved.look(1.0)
    now = moved.look(STEADY_S)
    assert moved.age_s(now) > 30 * DAY_S
    assert START_US < now.old_before_us(7 * DAY_S) <= noted_us, "what is older than the jump is as old as it seems"
    assert now.silent_before_us(7 * DAY_S) < START_US, "nobody was silent for so long"
    assert not now.is_past(noted_us + int(3600e6), noted_us)
    assert now.is_past(START_US + int(3600e6), START_US)
    later = moved.look(8 * DAY_S)
    assert later.old_before_us(7 * DAY_S) > noted_us
    assert later.silent_before_us(7 * DAY_S) > noted_us
    assert later.is_past(noted_us + int(3600e6), noted_us)


@given(st.lists(st.tuples(st.floats(0, 2000), st.sampled_from((0.0, -3600.0, 30 * DAY_S, 60 * DAY_S))), max_size=20))
def test_nothing_goes_before_it_has_lived_as_long_as_it_may(steps: list[tuple[float, float]]) -> None:
    """Of what was noted since the last jump that was believed: whatever the clock does after it."""
    moved = Moved()
    noted = [(moved.look(), moved.running_s)]
    for seconds, off_s in steps:
        for _ in range(4):
            now = moved.look(seconds / 4)
            for then, then_s in noted:
                lived_s = moved.running_s - then_s
                if lived_s < 100 * DAY_S and then.unix_us >= now.jump.until_us:
                    assert then.unix_us >= now.silent_before_us(lived_s + 0.001 + 60)
        before = now.unix_us
        moved.off_s = off_s
        now = moved.look()
        if now.unix_us - before > 61e6 or now.unix_us < before:
            noted.clear()
        noted.append((now, moved.running_s))


@pytest.mark.parametrize("off_s", [30 * DAY_S, 1000.0])
def test_time_while_the_broker_was_away_is_believed_when_it_has_gone_on_for_a_while(off_s: float) -> None:
    moved = Moved()
    moved.off_s = off_s
    now = moved.look()
    assert moved.age_s(now) == off_s, "what is put now has the time of now"
    assert now.old_before_us(1.0) < START_US
    assert moved.look(STEADY_S - 1).silent_before_us(STEADY_S) < START_US
    now = moved.look(2.0)
    assert now.old_before_us(1.0) == now.unix_us - 1_000_000


def test_a_clock_that_is_behind_what_was_noted_before_is_not_believed_at_once() -> None:
    moved = Moved()
    moved.off_s = -3600.0
    assert moved.age_s(moved.look()) == 0.0
    assert "back by 3600 s" in moved.clock.take_notices()[0]
    assert moved.age_s(moved.look(STEADY_S)) == pytest.approx(STEADY_S - 3600.0)


def test_a_new_store_believes_the_clock() -> None:
    moved = Moved(remembered_us=0)
    moved.off_s = 30 * DAY_S
    assert moved.look()[1:3] == (START_US + int(30 * DAY_S * 1e6), 0)


# With the engine.


class MovedAsker(SharedAsker):
    """An asker whose wall clock is moved about."""

    def __init__(self) -> None:
        self.clock, self.off_s = Clock(0), 0.0
        super().__init__({"lease_s": 10.0})

    @property
    def now(self) -> Now:
        return self.clock.look(self.now_s, self.now_s, START_US + int((self.now_s + self.off_s) * 1e6))


@pytest.fixture
def asker() -> MovedAsker:
    return MovedAsker()


@pytest.mark.parametrize("stays", [False, True])
def test_a_message_given_back_comes_again_though_the_clock_was_put_back(asker: MovedAsker, stays: bool) -> None:
    asker.put_jobs(b"0")
    token = asker.join()
    asker.borrow(token)
    delay_s = 2.0 + STEADY_S * stays
    asker.nack(token, (0, 1, 1), delay_ms=int(delay_s * 1000))
    asker.off_s = -3600.0
    asker.tick(1.0)
    while asker.now_s < 100.0 + delay_s:
        assert asker.borrow(token) == []
        asker.tick(1.0)
    asker.tick(1.0)
    assert asker.borrow(token) == [(0, b"0", 2)]


def test_a_message_for_later_comes_though_the_clock_was_put_back(asker: MovedAsker) -> None:
    asker.numbers += 1
    due = (asker.now.unix_us + 5_000_000).to_bytes(8, "little")
    batch = asker.batch(asker.publisher, asker.numbers, b"later")
    asker.ask(Kind.PUT, bodies.Put(JOBS, due=due), batch)
    token = asker.join()
    key = asker.send_take(token, wait_ms=20_000)
    asker.off_s = -3600.0
    for _ in range(6):
        asker.tick(1.0)
        asker.settle()
    assert lent_by(asker.replies[key]) == [(0, b"later", 1)]


def test_nothing_ends_while_the_clock_is_wrong(asker: MovedAsker) -> None:
    asker.ask(Kind.SUBSCRIBE, bodies.Subscribe(JOBS, b"reader", options=SubscriptionOptions(expires_s=7 * DAY_S)))
    asker.ask(Kind.CONFIGURE, bodies.Configure(b"kept", "keep", {"max_age_s": 7 * DAY_S}))
    asker.put(b"kept", asker.batch(asker.publisher, 1, b"a week"))
    asker.ask(Kind.PUT, bodies.Put(b"kept", ttl_ms=int(DAY_S * 1000)), asker.batch(asker.publisher, 2, b"a day"))
    asker.ask(Kind.STAGE, bodies.Stage(b"kept", b"writer", 1, b"part", 0), asker.batch(asker.publisher, 0, b"staged"))
    asker.put_jobs(b"0")
    asker.off_s = 30 * DAY_S
    for _ in range(400):
        asker.tick(1.0)
        asker.settle()
    asker.put_jobs(b"1")
    asker.off_s = 0.0
    asker.tick(1.0)
    asker.settle()
    for name in ("messages_expired", "subscriptions_expired", "publishers_expired", "staged_expired"):
        assert not asker.state.counters[name]
    topic = asker.store.topic(b"kept")
    assert topic is not None
    assert (topic.first_offset, topic.next_offset) == (0, 2)
    jobs = asker.store.topic(JOBS)
    assert jobs is not None
    assert jobs.last_commit_us <= asker.now.unix_us, "what was put meanwhile is not of the future"
    asker.tick(2 * DAY_S)
    assert asker.state.counters["staged_expired"] == 1, "what has lived its time still goes"


def test_nothing_is_past_by_time_that_may_not_have_passed() -> None:
    moment_us, noted_us = START_US + 10, START_US
    assert Now(0.0, START_US + 10).is_past(moment_us, noted_us)
    assert not Now(0.0, START_US + 10, held_back_us=1).is_past(moment_us, noted_us)
