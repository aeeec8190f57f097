"""The ring on which nodes, topics and channels have their place: who owns what, who is near, and the ways between them.

Pure: a ring is a value, made from the names that are on it.
"""

from clarion.overlay.ring import BASES, ID_BITS, Ring, ring_id, shared_digits
from clarion.overlay.routing import RoutingTable, WedgeTree, route, wedge_tree

__all__ = ["BASES", "ID_BITS", "Ring", "RoutingTable", "WedgeTree", "ring_id", "route", "shared_digits", "wedge_tree"]
