"""The broker's decisions as pure code: requests and commits in, replies and changes out.

No socket, thread, file or clock: time comes in as an argument, and durable data through the store port.
"""

from clarion.broker.engine.answers import Reply
from clarion.broker.engine.clock import Clock, Now
from clarion.broker.engine.engine import Engine
from clarion.broker.engine.limits import Limits
from clarion.broker.engine.state import Group

__all__ = ["Clock", "Engine", "Group", "Limits", "Now", "Reply"]
