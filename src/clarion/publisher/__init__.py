"""The publishing side: messages in, packed batches out, each stored once.

`sending.py` decides what leaves when; `publisher.py` and `aio.py` are the clients for threads and for asyncio.
"""

from clarion.publisher.aio import AsyncPublisher, AsyncReceipt, AsyncReceipts
from clarion.publisher.publisher import Publisher, Receipt, Receipts

__all__ = ["AsyncPublisher", "AsyncReceipt", "AsyncReceipts", "Publisher", "Receipt", "Receipts"]
