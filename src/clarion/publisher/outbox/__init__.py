"""The durable outbox: what is put waits on disk until the broker has it, and survives the application's crash.

`keeping.py` decides what is saved, numbered, sent and removed, without disk or threads; `file.py` is the disk and
`workers.py` the thread that works on it. `aside.py` is for people: what was set aside, and the ways out.
"""

from clarion.publisher.outbox.errors import NoOutbox, OutboxFull, OutboxInDoubt, OutboxInUse, OutboxUnusable

__all__ = ["NoOutbox", "OutboxFull", "OutboxInDoubt", "OutboxInUse", "OutboxUnusable"]
