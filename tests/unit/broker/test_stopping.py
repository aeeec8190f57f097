"""What a signal means to a broker."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import NoReturn

import pytest

from clarion.broker import Broker
from clarion.broker.settings import BrokerSettings


class _Ended(Exception):
    pass


def test_the_echo_of_a_signal_does_not_end_the_drain_and_another_signal_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(code: int) -> NoReturn:
        raise _Ended(code)

    monkeypatch.setattr("clarion.session.signals._ECHO_S", 1e9)  # however slow this machine is
    monkeypatch.setattr("clarion.broker.server.os._exit", end)
    broker = Broker(BrokerSettings(data=tmp_path, listen="tcp://127.0.0.1:*"))
    broker._on_signal(SIGTERM, None)
    broker._on_signal(SIGTERM, None)
    with pytest.raises(_Ended, match="130"):
        broker._on_signal(SIGINT, None)
    broker.run()
