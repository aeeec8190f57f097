"""The subscribing side: subscriptions, gets that wait at the broker, acks.

`reading.py` decides what is asked when; `subscriber.py` and `aio.py` are the clients for threads and for asyncio.
"""

from clarion.subscriber.aio import AsyncSubscriber
from clarion.subscriber.messages import Message, MessageBatch
from clarion.subscriber.subscriber import Subscriber

__all__ = ["AsyncSubscriber", "Message", "MessageBatch", "Subscriber"]
