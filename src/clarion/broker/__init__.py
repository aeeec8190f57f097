"""The broker: the pure engine, and the thin serving loop around it.

`server.py` is the loop, `transport.py` its sockets, `committer.py` the thread that writes to disk.
"""

from clarion.broker.server import Broker
from clarion.broker.settings import BrokerSettings

__all__ = ["Broker", "BrokerSettings"]
