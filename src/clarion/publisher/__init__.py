"""The publishing side: messages in, packed batches out, each stored once.

`sending.py` decides what leaves when; `publisher.py` and `aio.py` are the clients for threads and for asyncio,
`requests.py` waits for replies, and `staging.py` stores what is seen when somebody commits it.
"""

from clarion.publisher.async_publisher import AsyncPublisher
from clarion.publisher.publisher import Publisher
from clarion.publisher.receipts import AsyncReceipt, AsyncReceipts, Receipt, Receipts
from clarion.publisher.staging import StagedOutcome, Stager, commit_staged, drop_staged

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
