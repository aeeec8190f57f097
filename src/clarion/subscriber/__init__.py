"""The subscribing side: subscriptions, gets that wait at the broker, leases held, acks, transactions.

`subscriber_core.py` has every verb, without I/O; `subscriber.py` has its clients for threads and for asyncio.
"""

from clarion.subscriber.subscriber import AsyncSubscriber, Subscriber
from clarion.subscriber.subscriber_core import SubscribeOutcome
from clarion.subscriber.subscriber_transactions import AsyncTransaction, State, Transaction
from clarion.wire.messages import Message, MessageBatch

__all__ = [
    "AsyncSubscriber",
    "AsyncTransaction",
    "Message",
    "MessageBatch",
    "State",
    "SubscribeOutcome",
    "Subscriber",
    "Transaction",
]
