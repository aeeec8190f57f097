"""How the tests are spread over processes, that they see the same examples in each, and what these inherit."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_PIPELINE = "tests/integration/pipeline/"
_JVMS_OF_THEIR_OWN = tuple(f"{_PIPELINE}test_{name}.py" for name in ("clusters", "demo_pipeline", "discovery"))

# A shell has what it starts in the background ignore SIGINT, and so would every process that a test interrupts. One
# that is handled here is as ever there.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The hundreds of processes that tests start need not each compile the project.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "clarion", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("clarion")

# Hypothesis takes numbers and texts from whatever modules of the project are loaded, so the examples of one test would
# hang on which others ran before it. Nothing public turns that off; where it is called otherwise, examples vary again.
if hasattr(providers, "_get_local_constants") and hasattr(providers, "GLOBAL_CONSTANTS"):
    providers._get_local_constants = type(providers.GLOBAL_CONSTANTS)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a process a file of tests at a time, or everything that can share one JVM of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return _PIPELINE if _shares_spark(nodeid) else nodeid.split("::", 1)[0]


def _shares_spark(nodeid: str) -> bool:
    return nodeid.startswith(_PIPELINE) and not nodeid.startswith(_JVMS_OF_THEIR_OWN)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Have tests spread so."""
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest alone."""
    items.sort(key=lambda item: (not _shares_spark(item.nodeid), not item.nodeid.startswith(_PIPELINE)))
