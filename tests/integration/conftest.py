"""Real brokers for the integration tests: none outlives its test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.shell import Shell, read_line, running
from tests.integration.waiting import DEADLINE_S

from clarion import Admin, AsyncSubscriber, Subscriber

StartBroker = Callable[..., BrokerProcess]

for client in (Admin, AsyncSubscriber, Subscriber):  # where a test says nothing else, a slow machine is waited for
    defaults = client.__init__.__kwdefaults__
    assert defaults is not None
    defaults["timeout_s"] = DEADLINE_S


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers with settings; `data` names the folder below the test's own."""
    started: list[BrokerProcess] = []

    def start(data: str = "data", **settings: Any) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / data, **settings)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        broker.close()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A broker of the test's own."""
    return start_broker()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that the tests of a file share; each uses topics of its own."""
    folder = tmp_path_factory.mktemp("shared")
    shared = BrokerProcess(folder / "data").start()
    yield shared.url
    shared.close()
    shutil.rmtree(folder)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Client commands against a broker of the test's own."""
    data = tmp_path / "data"
    with running("up", "--data", str(data), "--listen", free_url(), "--json") as broker:
        ready = json.loads(read_line(broker))
        yield Shell(broker, ready["urls"][0], data)
