"""A client's connection to a broker: it drives a core, reconnects, resends, and backs off.

`exchange.py` and `calls.py` decide, without sockets; `thread_session.py` and `async_session.py` drive a client's core
for threads and for asyncio.
"""

from clarion.session.async_session import AsyncSession
from clarion.session.calls import Call, Request, Requests
from clarion.session.exchange import Exchange, Reply, Send, Wake
from clarion.session.thread_session import ThreadSession

__all__ = ["AsyncSession", "Call", "Exchange", "Reply", "Request", "Requests", "Send", "ThreadSession", "Wake"]
