"""What can go wrong with an outbox. Each error says what happened, what was kept and what to do."""

from __future__ import annotations

from clarion.model.errors import PermanentError, RetryableError


class OutboxInUse(RetryableError):
    """Another publisher has this outbox open."""


class OutboxFull(RetryableError):
    """The disk has no room for the change; nothing of it was kept, and everything that was saved before is."""


class OutboxUnusable(PermanentError):
    """The outbox cannot be opened or used: another format, damage, a folder that cannot be written, a failing disk."""


class OutboxInDoubt(PermanentError):
    """Messages that the broker may have, or may not: nobody can tell any more, so they are kept aside.

    `clarion outbox show` names them, `clarion outbox resend` sends them as new ones, `clarion outbox drop` lets go.
    """


class NoOutbox(PermanentError):
    """The publisher keeps messages in memory only: it was made without `outbox=PATH`."""
