"""The HTTP gateway: messages from sources that cannot link Python.

`gateway.py` speaks HTTP, `intake.py` decides what is accepted and follows it to its end; `reading.py`, `room.py`,
`keys.py` and `refusals.py` are its rules without a socket. Needs the extra `web` (aiohttp).
"""

from clarion.web.gateway import Gateway
from clarion.web.serving import serve
from clarion.web.settings import GatewaySettings, read_listen

__all__ = ["Gateway", "GatewaySettings", "read_listen", "serve"]
