"""Links between brokers as pure code: what neighbours and brokers further away say in, what is sent to them out."""

from clarion.broker.links.links import LinkPeer, Links, Send
from clarion.broker.links.policy import LinkSettings

__all__ = ["LinkPeer", "LinkSettings", "Links", "Send"]
