"""A command whose messages were not stored says why, and what to do."""

from __future__ import annotations

from clarion.cli.broker_clients import explain_failure
from clarion.model import errors


def _explain(error: errors.ClarionError, **stats: object) -> errors.ClarionError:
    found: dict[str, object] = {"messages_stored": 0, "connected": True, "refusal": None, **stats}
    return explain_failure(error, found, "tcp://here", b"my topic")


def test_nobody_subscribing_says_what_to_run() -> None:
    told = _explain(errors.NoSubscriber("x"))
    assert isinstance(told, errors.NoSubscriber)
    assert "clarion subscribe 'my topic' --as NAME" in str(told)


def test_no_broker_and_a_slow_one_and_a_full_one_are_told_apart() -> None:
    assert isinstance(_explain(errors.TimedOut("x"), connected=False), errors.Unreachable)
    assert isinstance(_explain(errors.BufferFull("x"), connected=False), errors.Unreachable)
    assert type(_explain(errors.TimedOut("x"))) is errors.TimedOut
    full = _explain(errors.TimedOut("x"), refusal=errors.TopicFull("the topic is full"), messages_stored=3)
    assert type(full) is errors.TopicFull
    assert "the topic is full" in str(full)
    assert "3 messages confirmed" in str(full)
