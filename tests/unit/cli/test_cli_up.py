"""A broker that fails while it runs says so loudly in its log, and ends with the code of its kind."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec
import pytest
import typer

import clarion.broker
from clarion.broker.settings import BrokerSettings
from clarion.cli.broker_commands import serve
from clarion.model.errors import StoreFailed


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, sys.getswitchinterval()
    root.handlers.clear()
    handlers = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, _end),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),  # it may be ignored here
    }
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    root.handlers[:], root.level = before[:2]
    logging.captureWarnings(False)
    sys.setswitchinterval(before[2])


def _end(number: int, _frame: object) -> NoReturn:
    raise AssertionError(f"signal {number} would have ended the process, or not have been heard at all")


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_store_is_opened_is_heard(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def opening(_: BrokerSettings) -> NoReturn:
        signal.raise_signal(number)
        raise AssertionError("it was not")

    monkeypatch.setattr(clarion.broker, "Broker", opening)
    serve(BrokerSettings(), as_json=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "stopped before it was ready" in msgspec.json.decode(err)["message"]
