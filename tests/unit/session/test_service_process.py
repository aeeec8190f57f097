"""A signal that comes twice within a moment is one."""

from __future__ import annotations

from signal import SIGINT, SIGTERM

from clarion.session.service_process import StopSignals


def test_the_same_signal_within_a_moment_is_an_echo_and_any_other_is_not() -> None:
    signals = StopSignals()
    assert [signals.is_echo(SIGTERM, now_s) for now_s in (5.0, 5.0, 5.09)] == [False, True, True]
    assert not signals.is_echo(SIGINT, 5.09), "another one was sent on purpose"
    assert not signals.is_echo(SIGINT, 5.2), "and so was one after a while"
