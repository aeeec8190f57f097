"""How the tests are spread over processes: a file stays together, and all that needs Spark shares one JVM."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_PIPELINE = "tests/integration/pipeline/"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process a file of tests at a time, or everything that needs Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return _PIPELINE if nodeid.startswith(_PIPELINE) else nodeid.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Have tests spread so."""
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest alone."""
    items.sort(key=lambda item: not item.nodeid.startswith(_PIPELINE))
