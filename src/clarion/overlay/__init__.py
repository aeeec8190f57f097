"""The ring on which nodes, topics and channels have their place: who owns what, and who is near.

Pure: a ring is a value, made from the names that are on it.
"""

from clarion.overlay.ring import ID_BITS, Ring, ring_id, shared_digits

__all__ = ["ID_BITS", "Ring", "ring_id", "shared_digits"]
