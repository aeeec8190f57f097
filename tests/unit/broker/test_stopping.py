"""What a signal means to a broker, and what does not keep it from stopping."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import NoReturn

import pytest
from tests.integration.waiting import DEADLINE_S, eventually

from clarion.broker import Broker
from clarion.broker.server import _AGAIN_S
from clarion.broker.settings import BrokerSettings
from clarion.model.errors import StoreFull
from clarion.store.port import Changes
from clarion.store.segmented import SegmentedStore


class _Ended(Exception):
    pass


def test_the_echo_of_a_signal_does_not_end_the_drain_and_another_signal_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(code: int) -> NoReturn:
        raise _Ended(code)

    monkeypatch.setattr("clarion.session.service_process._ECHO_S", 1e9)  # however slow this machine is
    monkeypatch.setattr("clarion.broker.server.os._exit", end)
    broker = Broker(BrokerSettings(data=tmp_path, listen="tcp://127.0.0.1:*"))
    broker._on_signal(SIGTERM, None)
    broker._on_signal(SIGTERM, None)
    with pytest.raises(_Ended, match="130"):
        broker._on_signal(SIGINT, None)
    broker.run()


class _NoRoom(SegmentedStore):
    """A store that was opened on a disk that takes nothing more."""

    tried = 0

    def commit(self, changes: Changes, *, index_later: bool = False) -> None:
        self.tried += 1
        raise StoreFull("no room for anything")


def test_a_store_that_takes_nothing_is_not_tried_without_a_pause_and_holds_up_no_stop(tmp_path: Path) -> None:
    store = _NoRoom(tmp_path)
    broker = Broker(BrokerSettings(data=tmp_path, listen="tcp://127.0.0.1:*"), store=store)
    begin_s = time.monotonic()
    running = threading.Thread(target=broker.run, daemon=True)
    running.start()
    eventually(lambda: store.tried > 3, "it is tried again and again")
    assert store.tried <= 2 + (time.monotonic() - begin_s) / _AGAIN_S
    broker.stop()
    running.join(DEADLINE_S)
    assert not running.is_alive()
