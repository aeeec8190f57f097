"""The publishing side: messages in, packed batches out, each stored once.

`publisher_core.py` decides what leaves when, from memory or from the ledger of an outbox; `publisher.py` and
`async_publisher.py` are the clients for threads and for asyncio, `requests.py` waits for replies, and `stager.py`
stores what is seen when somebody commits it.
"""

from clarion.publisher.async_publisher import AsyncPublisher
from clarion.publisher.publisher import Publisher
from clarion.publisher.receipts import AsyncReceipt, AsyncReceipts, Receipt, Receipts
from clarion.publisher.stager import StagedOutcome, Stager, commit_staged, drop_staged

__all__ = [
    "AsyncPublisher",
    "AsyncReceipt",
    "AsyncReceipts",
    "Publisher",
    "Receipt",
    "Receipts",
    "StagedOutcome",
    "Stager",
    "commit_staged",
    "drop_staged",
]
