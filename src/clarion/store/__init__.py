"""Where everything durable lives: the port that the broker sees, and the stores behind it.

`segmented.py` is the default, a log of segments with an index in SQLite (docs/store.md); the store in memory is for
tests and simulations.
"""

from clarion.store.memory import MemoryStore
from clarion.store.port import Changes, Identity, Receipt, Store, StoredBatch, SubscriptionRow, TopicSummary

__all__ = [
    "Changes",
    "Identity",
    "MemoryStore",
    "Receipt",
    "Store",
    "StoredBatch",
    "SubscriptionRow",
    "TopicSummary",
]
