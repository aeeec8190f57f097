"""A client's connection to a broker: ask, reconnect, resend, back off.

`exchange.py` decides, without sockets; `thread.py` and `aio.py` do the talking for plain and asyncio clients.
"""

from clarion.session.aio import AsyncSession
from clarion.session.exchange import Exchange, Reply
from clarion.session.thread import ThreadSession

__all__ = ["AsyncSession", "Exchange", "Reply", "ThreadSession"]
