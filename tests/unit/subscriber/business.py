"""Transactions beside a reading, whose requests are answered by the test."""

from __future__ import annotations

from tests.unit.subscriber.talking import COUNT, Asked, Talk, Walk

from clarion.subscriber.subscriber_core import Flush
from clarion.subscriber.subscriber_transactions import Transaction
from clarion.wire import bodies
from clarion.wire.batch import Batch
from clarion.wire.frames import Kind
from clarion.wire.messages import Message

BROKER, PUBLISHER = 11, 22


class Business(Talk):
    """A reading with messages 0 to 4 handed out, and transactions beside it."""

    def __init__(self, *, shared: bool = True) -> None:
        super().__init__(shared=shared)
        if shared:
            self.messages = self.lent(0, 1, 2, 3, 4)
        else:
            self.one(Kind.GET).deliver(0, *(b"%d" % place for place in range(5)))
            self.messages = self.hand_out()

    def begin(self) -> Transaction:
        return Transaction(self)

    def commit(self, transaction: Transaction) -> Walk[None]:
        return self.run(transaction._commit() or Flush(None))

    def register(self, publisher: int = PUBLISHER, max_batch_bytes: int = 10_000) -> None:
        """Answer what is asked before the first transaction."""
        for kind, body in (
            (Kind.HELLO, bodies.Welcome(1, BROKER, b"", 0, max_batch_bytes, 1, 1, count=COUNT)),
            (Kind.REGISTER, bodies.Registered(BROKER, publisher)),
        ):
            for asked in [asked for asked in self.asked if asked.kind == kind]:
                self.asked.remove(asked)
                asked.answer(Kind.ACK, body)

    def send(self, transaction: Transaction) -> tuple[Walk[None], Asked]:
        """Commit it; give the request that is under way."""
        walk = self.commit(transaction)
        if not self.asked or self.asked[0].kind != Kind.TRANSACT:
            self.register()
            walk.go_on()
        return walk, self.one(Kind.TRANSACT)


def batches_of(asked: Asked) -> list[Batch]:
    found, at = [], 0
    for _, size, _, _ in asked.body.puts:
        found.append(Batch.parse(bytes(asked.blobs[0])[at : at + size]))
        at += size
    assert at == len(asked.blobs[0])
    return found


def answer(asked: Asked, *offsets: int, versions: tuple[int, ...] = ()) -> None:
    asked.answer(Kind.ACK, bodies.Transacted(0, "", offsets, versions, 5))


def fail_in(transaction: Transaction, message: Message) -> None:
    with transaction as tx:
        tx.put("a", b"x")
        tx.ack(message)
        raise ZeroDivisionError
