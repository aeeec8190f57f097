"""How the tests are spread over processes: a file stays together, and all that needs Spark shares one JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

_PIPELINE = Path(__file__).parent / "integration" / "pipeline"


@pytest.hookimpl(tryfirst=True)  # before groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name each test's group; what takes longest alone, the group of Spark, comes first."""
    for item in items:
        group = "spark" if _PIPELINE in item.path.parents else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _PIPELINE not in item.path.parents)
