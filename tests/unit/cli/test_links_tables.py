"""The tables of `clarion links`."""

from __future__ import annotations

from typing import Any

import msgspec

from clarion.admin import LinkedBroker
from clarion.cli.link_commands import _broker_cells


def test_a_broker_that_has_confirmed_everything_has_a_lag_of_0() -> None:
    values: dict[str, Any] = dict.fromkeys(LinkedBroker.__struct_fields__, 0)
    broker = LinkedBroker(**{**values, "name": "a", "broker": "0a1b2c3d", "via": "a", "refused": {}})
    assert _broker_cells(broker)[8] == "0"
    assert _broker_cells(msgspec.structs.replace(broker, lag_messages=2, lag_topics=1))[8] == "2 messages of 1 topic"
