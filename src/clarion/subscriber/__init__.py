"""The subscribing side: subscriptions, gets that wait at the broker, leases held, acks, transactions.

`reader.py` has every verb in steps, without I/O; `subscriber.py` and `aio.py` run them for threads and for asyncio.
"""

from clarion.subscriber.aio import AsyncSubscriber
from clarion.subscriber.drafts import State
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.subscriber import Subscriber
from clarion.subscriber.transaction import AsyncTransaction, Transaction

__all__ = ["AsyncSubscriber", "AsyncTransaction", "Message", "MessageBatch", "State", "Subscriber", "Transaction"]
