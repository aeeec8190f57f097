"""Whatever a tuner is told, in whatever order: what it decides stays within its bounds, and nothing waits for ever."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clarion.publisher.tuner import LAN, PAPER, POLICIES, Publish, Sample, TunerSettings, Wait, make_tuner

many = settings(max_examples=200, deadline=None, derandomize=True, database=None)
policies = st.sampled_from(sorted(POLICIES))
SLACK_S = 1e-6  # that sums of floats may be off, at the times of these tests


@st.composite
def some_settings(draw: st.DrawFn) -> TunerSettings:
    """Any settings that are let pass; often those that people use."""
    if draw(st.booleans()):
        return draw(st.sampled_from([PAPER, LAN]))
    least, begin, most = sorted(draw(st.lists(st.integers(1, 300), min_size=3, max_size=3)))
    poll_min_s, poll_max_s = sorted(draw(st.lists(st.floats(0.005, 2.0), min_size=2, max_size=2)))
    return TunerSettings(
        batch_size=begin,
        batch_size_min=least,
        batch_size_max=most,
        poll_min_s=poll_min_s,
        poll_max_s=poll_max_s,
        wait_s=draw(st.none() | st.floats(0, 1.0)),
        poll_factor=draw(st.floats(0.1, 10.0)),
        load_gain=draw(st.floats(0, 0.99)),
        capacity_gain=draw(st.floats(0, 0.99)),
        publishes_in_transfer=draw(st.integers(1, 100)),
        workers=draw(st.none() | st.integers(1, 100)),
        takes_all=draw(st.booleans()),
        polls_on_arrival=draw(st.booleans()),
    )


class Step(NamedTuple):
    """Something that happens to a publisher, `after_s` the step before."""

    what: str
    after_s: float
    number: int


times_s = st.sampled_from([0.0, 0.0, 1e-6, 0.001, 0.05, 0.2]) | st.floats(1e-6, 3.0) | st.floats(0, 1e5)
steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["arrive", "poll", "poll when due", "published", "transferred", "credit", "idle"]),
        times_s,
        st.integers(0, 60) | st.integers(0, 10**6),
    ),
    max_size=60,
)


class Driver:
    """Tells a tuner what happens, as its publisher would, and holds it to its bounds after each step."""

    def __init__(self, policy: str, told: TunerSettings) -> None:
        self.samples: list[Sample] = []
        self.settings = told
        self.now_s = 1000.0
        self.tuner = make_tuner(policy, told, self.now_s)
        self.decisions: list[Publish | Wait] = []
        self.pending = self.in_transfer = 0
        self.credit: int | None = None
        self.polled_s: float | None = None  # of a publish under way
        self.flying: list[tuple[float, int]] = []  # since when, and how many

    def step(self, step: Step) -> None:
        self.now_s += step.after_s
        if step.what == "arrive":
            self.pending += step.number
        elif step.what == "poll":
            self.poll()
        elif step.what == "poll when due":
            self.poll_when_due()
        elif step.what == "published":
            self.published(step.number)
        elif step.what == "transferred" and self.flying:
            self.transferred(step.number)
        elif step.what == "credit":
            self.credit = None if step.number % 5 == 4 else step.number - 2
        elif step.what == "idle" and not self.pending:
            self.tuner.on_idle(self.now_s)
        self.check()

    def poll_when_due(self) -> None:
        """Go to the time of the next poll, and make it."""
        due_s = self.tuner.poll_due_s(self.in_transfer, self.pending)
        assert math.isfinite(due_s)
        self.now_s = max(self.now_s, due_s)
        self.poll()

    def poll(self) -> None:
        if self.polled_s is not None:
            return
        decision = self.tuner.on_poll(pending=self.pending, now_s=self.now_s, credit=self.credit)
        self.decisions.append(decision)
        published = decision.messages if isinstance(decision, Publish) else 0
        self.samples.append(self.tuner.sample(self.now_s, self.pending, published))
        if isinstance(decision, Wait):
            interval_s = decision.until_s - self.now_s
            assert self.settings.poll_min_s - SLACK_S <= interval_s <= self.settings.poll_max_s + SLACK_S
            return
        assert 1 <= decision.messages <= self.pending
        assert self.credit is None or decision.messages <= self.credit
        self.pending -= decision.messages
        self.credit = None if self.credit is None else self.credit - decision.messages
        self.in_transfer += decision.messages
        self.flying.append((self.now_s, decision.messages))
        self.polled_s = self.now_s

    def published(self, number: int) -> None:
        if self.polled_s is None:
            return
        took_s = self.now_s - self.polled_s
        self.polled_s = None
        self.tuner.on_published(took_s=took_s, now_s=self.now_s, read_s=took_s * (number % 3) / 2)

    def transferred(self, number: int) -> None:
        sent_s, messages = self.flying.pop(number % len(self.flying))
        self.tuner.on_transferred(took_s=self.now_s - sent_s, in_transfer=self.in_transfer)
        self.in_transfer -= messages

    def check(self) -> None:
        tuner, told = self.tuner, self.settings
        assert 1 <= told.batch_size_min <= tuner.batch_size <= told.batch_size_max
        assert told.poll_min_s <= tuner.poll_interval_s <= told.poll_max_s
        for estimate_per_s in (tuner.load_per_s, tuner.capacity_per_s):
            assert math.isfinite(estimate_per_s)
            assert estimate_per_s >= 0
        assert tuner.credit >= -1
        assert tuner.pending >= 0
        assert told.batch_size_min <= tuner.batch_size_max <= told.batch_size_max


@many
@given(policies, some_settings(), steps)
def test_n_t_poll_estimates_and_publishes_stay_within_their_bounds(
    policy: str, told: TunerSettings, happened: list[Step]
) -> None:
    driver = Driver(policy, told)
    for step in happened:
        driver.step(step)
    assert [sample.published for sample in driver.samples] == [
        decision.messages if isinstance(decision, Publish) else 0 for decision in driver.decisions
    ]


@many
@given(st.sampled_from(["literal", "recheck"]), some_settings(), steps)
def test_tuned_n_is_never_above_n_max(policy: str, told: TunerSettings, happened: list[Step]) -> None:
    driver = Driver(policy, told)
    for step in happened:
        driver.step(step)
        assert driver.tuner.batch_size <= driver.tuner.batch_size_max


@many
@given(some_settings(), steps)
def test_fixed_stays_as_it_was_set(told: TunerSettings, happened: list[Step]) -> None:
    driver = Driver("fixed", told)
    for step in happened:
        driver.step(step)
        assert (driver.tuner.batch_size, driver.tuner.poll_interval_s) == (told.batch_size, told.poll_min_s)
    waited_for_n = [sample.published for sample in driver.samples if sample.pending >= told.batch_size]
    assert all(published <= told.batch_size for published in waited_for_n)


@many
@given(policies, some_settings(), steps)
def test_where_each_message_needs_a_worker_a_publish_takes_no_more_than_there_are(
    policy: str, told: TunerSettings, happened: list[Step]
) -> None:
    """But for N, which the paper's algorithm bounds by the time that a publish takes."""
    driver = Driver(policy, replace(told, workers=told.workers or 7))
    for step in happened:
        size = driver.tuner.batch_size
        driver.step(step)
        most = max(told.workers or 7, 0 if policy == "eager" else size)
        assert all(sample.published <= most for sample in driver.samples)
        driver.samples.clear()


@many
@given(policies, some_settings(), steps)
def test_the_same_facts_give_the_same_decisions(policy: str, told: TunerSettings, happened: list[Step]) -> None:
    one, other = Driver(policy, told), Driver(policy, told)
    for step in happened:
        one.step(step)
    for step in happened:
        other.tuner.sample(other.now_s, 3, 3)
        other.step(step)
    assert (one.decisions, one.samples) == (other.decisions, other.samples)


@many
@given(policies, some_settings(), steps)
def test_who_polls_whenever_a_poll_is_due_does_not_poll_for_ever_in_one_moment(
    policy: str, told: TunerSettings, happened: list[Step]
) -> None:
    """Where nothing is left to publish, or nothing may be, the next poll lies in the future."""
    driver = Driver(policy, told)
    for step in happened:
        driver.step(step)
    driver.published(0)
    for _ in range(3):
        driver.credit = 0
        began_s, driver.pending = driver.now_s, 50
        driver.poll_when_due()
        driver.poll_when_due()
        assert driver.now_s > began_s or driver.tuner.poll_due_s(driver.in_transfer, driver.pending) > driver.now_s


arrivals = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.001, 0.04, 0.3, 60.0]) | st.floats(0, 0.5), st.integers(1, 40)),
    min_size=1, max_size=25,
)  # fmt: skip


class Served(NamedTuple):
    """A driver that follows the rules, and how long it lets anything wait."""

    driver: Driver
    polls_for_nothing: bool
    publish_s: float
    transfer_s: float

    def serve(self, wanted: list[tuple[float, int]]) -> None:
        """Bring messages, poll when polls are due, and see that each wait for a publish is short enough."""
        driver, tuner = self.driver, self.driver.tuner
        longest_s = driver.settings.longest_wait_s + driver.settings.poll_max_s + SLACK_S
        coming = list(wanted)
        next_s = driver.now_s + self.gap_s(coming)
        waits_since_s = math.inf  # something is pending, and the publishing side free, since then
        for _ in range(20_000):
            if not coming and not driver.pending:
                return
            due_s = math.inf
            if driver.pending or (self.polls_for_nothing and tuner.polls_when_idle):
                due_s = max(driver.now_s, tuner.poll_due_s(driver.in_transfer, driver.pending))
            else:
                tuner.on_idle(driver.now_s)
            if coming and next_s <= due_s:
                driver.now_s = max(driver.now_s, next_s)
                driver.pending += coming.pop(0)[1]
                waits_since_s = min(waits_since_s, driver.now_s)
                next_s += self.gap_s(coming)
                continue
            driver.now_s = due_s
            self.land()
            driver.poll()
            if driver.polled_s is not None:
                assert driver.now_s - waits_since_s <= longest_s
                driver.now_s += self.publish_s
                driver.published(2)
                waits_since_s = driver.now_s if driver.pending else math.inf
            driver.check()
        pytest.fail("messages wait for ever")

    def gap_s(self, coming: list[tuple[float, int]]) -> float:
        """Return the time to the next arrival; where nothing but polls would happen, of a hundred of them at most."""
        gap_s = coming[0][0] if coming else 0.0
        return min(gap_s, 100 * self.driver.settings.poll_min_s) if self.polls_for_nothing else gap_s

    def land(self) -> None:
        while self.driver.flying and self.driver.flying[0][0] + self.transfer_s <= self.driver.now_s:
            self.driver.transferred(0)


@many
@given(
    policies, some_settings(), arrivals, st.booleans(),
    st.sampled_from([0.0, 0.0, 0.01, 0.1, 1.0]), st.sampled_from([1e-4, 0.14, 3.0]), st.none() | st.just(10**9),
)  # fmt: skip
def test_with_credit_something_pending_is_published_within_t_and_the_longest_poll_interval(
    policy: str,
    told: TunerSettings,
    wanted: list[tuple[float, int]],
    polls_for_nothing: bool,
    publish_s: float,
    transfer_s: float,
    credit: int | None,
) -> None:
    """Counted from when the publishing side is free, until nothing is pending any more."""
    driver = Driver(policy, told)
    driver.credit = credit
    Served(driver, polls_for_nothing, publish_s, transfer_s).serve(wanted)
    assert driver.pending == 0
    assert sum(sample.published for sample in driver.samples) == sum(messages for _, messages in wanted)
