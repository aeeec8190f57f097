"""Settings of nodes that no node can work with."""

from __future__ import annotations

from typing import Any

import pytest

from clarion.feeds.honeycomb import Scheme
from clarion.feeds.node_settings import NodeSettings
from clarion.model.errors import BadSettings


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"base": 3}, "base of a ring"),
        ({"base": 1}, "base of a ring"),
        ({"polls_at_once": 0}, "polls_at_once"),
        ({"websub_listen": ("127.0.0.1", 65_536)}, "port"),
        ({"host_limit_per_s": float("nan")}, "host_limit_per_s"),
        ({"beat_s": 0.0}, "beat_s"),
        ({"scheme": Scheme.FAST}, "target"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(BadSettings, match=told):
        NodeSettings(**changes)
