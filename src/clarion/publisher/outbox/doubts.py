"""Messages of which nobody can tell any more whether the broker has them."""

from __future__ import annotations

from clarion.model.errors import ClarionError, NoSubscriber, OutboxInDoubt
from clarion.model.names import REPLIES, to_text
from clarion.publisher.failures import Failures
from clarion.publisher.outgoing_batch import OutgoingBatch

_WAY_OUT = (
    "`clarion outbox show {0}` shows them, `clarion outbox resend {0}` has them sent as new ones,"
    " `clarion outbox drop {0}` lets go of them"
)


class KeptFailures(Failures):
    """What failed, and what is in doubt, and nobody was told of yet."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._doubted = 0

    def doubt(self, messages: int) -> None:
        """Note messages as set aside."""
        self._doubted += messages

    def is_unread_reply(self, sheaf: OutgoingBatch, error: ClarionError) -> bool:
        """Whether it is a reply to somebody who is gone: nobody misses it."""
        return sheaf.topic.startswith(REPLIES) and isinstance(error, NoSubscriber)

    def take(self) -> ClarionError | None:
        """Give one error that nobody was told of."""
        if self._doubted:
            count, self._doubted = self._doubted, 0
            return OutboxInDoubt(
                f"{count} message{'s' if count > 1 else ''} that the broker may have, or may not,"
                f" {'are' if count > 1 else 'is'} kept aside in"
                f" {self._name} and not sent; {_WAY_OUT.format(self._name)}"
            )
        return super().take()


def doubtful_error(name: str, topic: bytes, cause: ClarionError) -> OutboxInDoubt:
    """Give what the receipts of such messages say."""
    return OutboxInDoubt(
        f"whether the broker has this message on {to_text(topic)} cannot be told any more ({cause}); it is kept aside"
        f" in {name} and not sent; {_WAY_OUT.format(name)}"
    )
