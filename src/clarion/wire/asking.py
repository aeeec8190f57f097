"""The headers that make a message a request, and those of the reply to it."""

from __future__ import annotations

from collections.abc import Mapping

from clarion.model.errors import PermanentError

REPLY_TO = "clarion-reply-to"  # the topic that the reply goes to
REQUEST = "clarion-request"  # random; the reply carries the same


def reply_address(headers: Mapping[str, bytes]) -> tuple[bytes, dict[str, bytes]]:
    """Give the topic that the reply to a message with these headers goes to, and the headers it must have."""
    topic, request = headers.get(REPLY_TO), headers.get(REQUEST)
    if not topic or request is None:
        raise PermanentError("this message is no request: it does not say where a reply would go")
    return topic, {REQUEST: request}
