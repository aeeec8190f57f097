"""What is on disk of a shared subscription and all around it is what the plain model has."""

from __future__ import annotations

from collections import Counter

import msgspec
from tests.property.group_model import DeadLetter, GroupModel, Message, Returned

from clarion.model import AckedRanges
from clarion.model.names import DEAD_READER, dead_letters_of
from clarion.store.memory import MemoryStore
from clarion.store.port import Changes
from clarion.wire import bodies
from clarion.wire.batch import Batch

WORK, OUT, GROUP, WATCHER = b"work", b"out", b"group", b"watcher"
ALL = 1 << 40

_decode_consumers = msgspec.msgpack.Decoder(list[tuple[int, bytes, int]]).decode
_decode_lent = msgspec.msgpack.Decoder(list[tuple[int, list[int]]]).decode
_decode_answer = msgspec.msgpack.Decoder(bodies.Transacted).decode


def check_group_store(store: MemoryStore, plain: GroupModel, now_us: int) -> None:
    """Everything the model has is there, and nothing else; what expired the watcher may be past already."""
    expired = {offset for offset in range(len(plain.log)) if plain.is_expired(offset, now_us)}
    assert stored_log(store, WORK, len(plain.log)) == plain.log[len(plain.log) - len(stored_log(store, WORK)) :]
    assert stored_log(store, OUT) == plain.out
    work = store.topic(WORK)
    assert work is not None
    rows = {row.name: row for row in store.subscriptions(work.number)}
    acked = {name: set(range(row.cursor)) | _offsets(row.cursor, row.acked) for name, row in rows.items()}
    assert (GROUP in rows) == plain.subscribed
    returned = {row.offset: Returned(*row[3:]) for row in store.returned(work.number)}
    if plain.subscribed:
        row = rows[GROUP]
        assert row.token == plain.token
        assert acked[GROUP] == plain.acked, f"{acked[GROUP] ^ plain.acked} is acked here and not there"
        attached = _decode_consumers(row.consumers) if row.consumers else []
        assert {token: tuple(rest) for token, *rest in attached if rest[0]} == plain.attached
        lent = {token: _lent(steps) for token, steps in _decode_lent(row.lent)} if row.lent else {}
        assert lent == plain.lent, "what is lent is not what the store knows"
    assert returned == plain.returned
    assert acked[WATCHER] ^ (set(range(plain.watched)) | plain.hidden) <= expired
    check_dead_letters(store, plain)
    assert {row.name: row[1:] for row in store.states(b"", ALL)} == plain.states
    for publisher, transactions in plain.transactions.items():
        answers = [_decode_answer(answer.body) for answer in store.answers(publisher)]
        assert [(a.code, a.offsets, a.versions) for a in answers] == transactions


def stored_log(store: MemoryStore, topic: bytes, end: int | None = None) -> list[Message]:
    """Return the messages of a topic that are still there."""
    row = store.topic(topic)
    if row is None:
        return []
    assert end is None or row.next_offset == end
    found = []
    for stored in store.batches(row.number, 0, ALL, ALL):
        batch = Batch.parse(bytes(stored.data))
        for place, payload in enumerate(batch.payloads()):
            found.append(Message(payload, batch.key(place), stored.expires_at_us))
    return found


def check_dead_letters(store: MemoryStore, plain: GroupModel) -> None:
    """Those who had their last attempt are among the dead, once, and wait there until they are replayed or dropped."""
    letters = dead_letters(store)
    assert Counter(letters.values()) == plain.still_dead()


def dead_letters(store: MemoryStore) -> dict[int, DeadLetter]:
    """Return the dead letters that wait, by offset."""
    row = store.topic(dead_letters_of(WORK))
    if row is None:
        return {}
    (reader,) = store.subscriptions(row.number)
    assert reader.name == DEAD_READER
    acked = AckedRanges.unpack(reader.cursor, reader.acked)
    found = {}
    for stored in store.batches(row.number, 0, ALL, ALL):
        batch = Batch.parse(bytes(stored.data))
        for place, payload in enumerate(batch.payloads()):
            headers = batch.headers(place) or {}
            assert (headers["clarion-dead-topic"], headers["clarion-dead-subscription"]) == (WORK, GROUP)
            if stored.first_offset + place not in acked:
                found[stored.first_offset + place] = DeadLetter(
                    payload,
                    batch.key(place),
                    int(headers["clarion-dead-offset"]),
                    int(headers["clarion-dead-attempts"]),
                    headers["clarion-dead-reason"].decode(),
                )
    return found


def buried_with(changes: Changes) -> set[int]:
    """Return the offsets of messages that become dead letters with a group."""
    parsed = [Batch.parse(bytes(each.data)) for each in changes.batches]
    headers = [batch.headers(place) or {} for batch in parsed for place in range(batch.count)]
    return {int(each["clarion-dead-offset"]) for each in headers if "clarion-dead-offset" in each}


def _lent(steps: list[int]) -> frozenset[int]:
    found: set[int] = set()
    end = 0
    for gap, length in zip(steps[::2], steps[1::2], strict=True):
        found |= set(range(end + gap, end + gap + length))
        end += gap + length
    return frozenset(found)


def _offsets(cursor: int, packed: bytes) -> set[int]:
    return {offset for start, stop in AckedRanges.unpack(cursor, packed) for offset in range(start, stop)}
