"""The HTTP gateway: messages and jobs from sources that cannot link Python.

`gateway.py` speaks HTTP, `post_queue.py` follows what was accepted to its end, `job_requests.py` answers for jobs;
`post_requests.py` and `gateway_buffer.py` are its rules without a socket. Needs the extra `web` (aiohttp).
"""

from clarion.web.gateway import Gateway, serve
from clarion.web.gateway_settings import GatewaySettings, read_listen

__all__ = ["Gateway", "GatewaySettings", "read_listen", "serve"]
