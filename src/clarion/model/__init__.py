"""The values that flow through Clarion, and its typed errors.

Nothing here knows of sockets, disks or clocks; every other room may import it.
"""

from clarion.model.errors import ClarionError
from clarion.model.ids import MAX_BATCH_MESSAGES, MessageId, stamp_from_unix_s, stamp_to_unix_s
from clarion.model.names import from_text, to_bytes, to_text
from clarion.model.ranges import AckedRanges

__all__ = [
    "MAX_BATCH_MESSAGES",
    "AckedRanges",
    "ClarionError",
    "MessageId",
    "from_text",
    "stamp_from_unix_s",
    "stamp_to_unix_s",
    "to_bytes",
    "to_text",
]
