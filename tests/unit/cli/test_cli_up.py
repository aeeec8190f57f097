"""A broker that fails while it runs says so loudly in its log, and ends with the code of its kind."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator

import msgspec
import pytest
import typer

import clarion.broker
from clarion.broker.settings import BrokerSettings
from clarion.cli.up import serve
from clarion.model.errors import StoreFailed


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.getswitchinterval()
    root.handlers.clear()
    yield
    root.handlers[:], root.level = before[:2]
    logging.captureWarnings(False)
    sys.setswitchinterval(before[2])


class _FailingBroker:
    error: Exception

    def __init__(self, settings: BrokerSettings) -> None:
        pass

    def handle_signals(self) -> None:
        pass

    def run(self, on_ready: Callable[[list[str]], None]) -> None:
        on_ready(["tcp://127.0.0.1:1"])
        raise self.error


@pytest.mark.parametrize(("error", "code"), [(StoreFailed("the disk failed"), 8), (KeyError("a mistake"), 1)])
def test_a_failure_while_running_is_logged_and_ends_the_process(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_FailingBroker, "error", error, raising=False)
    monkeypatch.setattr(clarion.broker, "Broker", _FailingBroker)
    with pytest.raises(typer.Exit) as ended:
        serve(BrokerSettings(), as_json=True)
    assert ended.value.exit_code == code
    out, err = capsys.readouterr()
    assert msgspec.json.decode(out)["event"] == "ready"
    last = msgspec.json.decode(err.splitlines()[-1])
    assert last["level"] == "critical"
    assert str(error).strip("'") in last["message"] + last.get("exception", "")
