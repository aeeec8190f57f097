"""The topics that rows go to: made where they are missing, left as they are where they are not."""

from __future__ import annotations

from clarion.admin import Admin
from clarion.model.errors import NoSubscriber, NoTopic
from clarion.model.names import to_text
from clarion.model.options import KEEP


def make_ready(admin: Admin, topic: bytes) -> int:
    """See to it that a topic takes rows and keeps them; give the bytes of the largest batch it takes, 0 for no bound.

    A new one is made to keep its messages. One that keeps them until they are read, with nobody to read them, would
    lose them as soon as they are shown: NoSubscriber.
    """
    try:
        found = admin.describe_topic(topic)
    except NoTopic:
        admin.configure_topic(topic, retention="keep")
        return 0
    if found.retention != KEEP and not found.subscriptions:
        raise NoSubscriber(
            f"nobody subscribes to {to_text(topic)}, which keeps messages until they are read; nothing was written."
            ' Subscribe first, or have the topic keep them: Admin.configure_topic(topic, retention="keep")'
        )
    return found.settings.max_batch_bytes
