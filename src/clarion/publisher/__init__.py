"""The publishing side: messages in, packed batches out, each stored once.

`publisher_core.py` decides what leaves when, from memory (`batch_source.py`) or from the ledger of an outbox, and
`put_requests.py` which of it goes in one request; `publisher.py` has the verbs
for threads and for asyncio, `publisher_works.py` what works behind them, `requests.py` waits for replies, and
`stager.py` stores what is seen when somebody commits it.
"""

from clarion.publisher.publisher import AsyncPublisher, Publisher
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
