"""Where versions of channels are kept: at the broker, by one transaction that makes the next one, or by nobody."""

from __future__ import annotations

import asyncio

import msgspec

from clarion.feeds.channels import channel_topic
from clarion.feeds.content import Version, pack_version, unpack_version
from clarion.feeds.deltas import encode_delta
from clarion.feeds.versions import Found, Head, Outcome, Step, content_name, head_name, is_old, next_step, read_head
from clarion.model.errors import Busy, PermanentError, VersionConflict
from clarion.subscriber import AsyncSubscriber, State

_PART_BYTES = 60_000  # of a content in one state
_TRIES = 20


class VersionStore:
    """Makes versions of channels known. One client may be used for many channels at a time."""

    def __init__(self, client: AsyncSubscriber, node: str) -> None:
        self._client = client
        self._node = node

    async def head(self, topic: str) -> Head | None:
        """Return the newest version of a channel; None where there is none yet."""
        return read_head((await self._client.state(head_name(topic))).value)

    async def heads(self, topics: list[str]) -> dict[str, Head | None]:
        """Return the newest versions of channels, by topic."""
        states = await self._client.states([head_name(topic) for topic in topics])
        return {topic: read_head(state.value) for topic, state in zip(topics, states, strict=True)}

    async def commit(self, url: str, found: Found, *, settled: bool) -> Outcome:
        """Make what was found the newest version, unless it is that already, or is an old one and nobody `settled` that
        it counts. Raises where the broker does not answer: done again, it is found to be known, or is made."""
        topic = channel_topic(url)
        for _ in range(_TRIES):
            state = await self._client.state(head_name(topic))
            head = read_head(state.value)
            if head is not None and head.hash == found.content.hash:
                return Outcome("known", head)
            if head is not None and not settled and is_old(head, found):
                return Outcome("old", head)
            before = None if head is None else await self._content(topic, head)
            step = await asyncio.to_thread(next_step, head, before, found, url, self._node, settled=settled)
            if head is not None and step.late and not step.told:
                return Outcome("late", head)
            try:
                return await self._make(topic, state, head, step)
            except VersionConflict:  # another node was first; perhaps with the same
                continue
        raise Busy(f"{url}: others make versions known all the time; what was found is tried again")

    async def _content(self, topic: str, head: Head) -> Version | None:
        """Return the content that belongs to a head; None where it is gone, or not of one piece."""
        states = await self._client.states([content_name(topic, part) for part in range(head.parts)])
        try:
            return unpack_version(b"".join(state.value or b"" for state in states))
        except PermanentError:
            return None

    async def _make(self, topic: str, state: State, head: Head | None, step: Step) -> Outcome:
        packed = pack_version(step.content)
        parts = [packed[at : at + _PART_BYTES] for at in range(0, len(packed), _PART_BYTES)] or [b""]
        following = msgspec.structs.replace(step.head, parts=len(parts))
        async with self._client.transaction() as tx:
            tx.set(head_name(topic), msgspec.json.encode(following), expect=state.version)
            for number, part in enumerate(parts):
                tx.set(content_name(topic, number), part)
            for number in range(len(parts), 1 if head is None else head.parts):
                tx.set(content_name(topic, number), None)
            if step.told:
                tx.put(topic, encode_delta(step.delta))
        return Outcome("late" if step.late else "made", following, step.delta if step.told else None)
