"""A broker that packs what it noted of messages soon, into small filters: `python -m tests.integration.packing_broker
JSON`. So a short test has filters, which may be wrong, where others would have exact notes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from tests.integration import broker_process

from clarion.tracking import history_file
from clarion.tracking.accuracy import Accuracy
from clarion.tracking.tracker import Strategy

PACK_AFTER_S, FEWEST_KEYS = 2.0, 8


def main() -> int:
    """Run a broker until it is told to stop."""
    made = history_file.HistorySettings

    def soon(strategy: Strategy, accuracy: Accuracy, **others: Any) -> history_file.HistorySettings:
        return made(strategy, replace(accuracy, persist_s=PACK_AFTER_S), fewest_keys=FEWEST_KEYS, **others)

    setattr(history_file, "HistorySettings", soon)  # noqa: B010 which is looked up when histories are opened
    return broker_process.main()


if __name__ == "__main__":
    sys.exit(main())
