"""A signal whose handler raises (Ctrl-C does) strikes a client only where that does no harm, at whichever point it
comes: nothing is lost, nothing is repeated, and the client goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.waiting import eventually

import clarion
from clarion import Admin, Message, Publisher, Subscriber
from clarion.model.errors import PermanentError
from clarion.subscriber import Transaction

_HOME = os.path.dirname(clarion.__file__)
_POINTS_AT_MOST = 5000
_WAIT_S = 60.0
both = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM], ids=["SIGINT", "SIGALRM"])


class Struck(BaseException):
    """What the handler raises."""


@contextmanager
def raising(number: int) -> Iterator[None]:
    """Have a signal's handler raise."""

    def strike(_number: int, _frame: FrameType | None) -> None:
        raise Struck

    before = signal.signal(number, strike)
    try:
        yield
        assert signal.getsignal(number) is strike, "the handler is the application's again"
    finally:
        signal.signal(number, before)


@contextmanager
def signal_at(point: int, number: int) -> Iterator[list[str]]:
    """Send a signal at a place where Python looks for one, in the client's code: so many calls of functions, and
    returns of C functions, from now on. Gives where that was, once it was."""
    left = [point]
    sent: list[str] = []

    def look(frame: FrameType, event: str, _argument: Any) -> None:
        if event in ("call", "c_return") and not sent and frame.f_code.co_filename.startswith(_HOME):
            left[0] -= 1
            if left[0] < 0:
                sent.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                signal.raise_signal(number)

    sys.setprofile(look)
    try:
        yield sent
    finally:
        sys.setprofile(None)


def at_every_point(number: int, do: Callable[[], object], after: Callable[[bool], None]) -> int:
    """Do something again and again, with a signal one point later each time, until it ends before the signal comes;
    `after` is told each time whether it was interrupted. Returns how often it was."""
    interrupted = 0
    for point in range(_POINTS_AT_MOST):
        struck = False
        try:
            with signal_at(point, number) as sent:
                do()
        except Struck:
            struck = True
        after(struck)
        interrupted += struck
        if not sent:
            return interrupted
    raise AssertionError("it does not end")


@both
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_a_get_loses_and_repeats_nothing(broker: BrokerProcess, number: int, shared: bool) -> None:
    with Publisher(broker.url) as publisher, Subscriber(broker.url, "reader") as reader, raising(number):
        reader.subscribe("news", shared=shared)
        put, got = list[bytes](), list[bytes]()

        def put_one() -> None:
            put.append(b"%d" % len(put))
            publisher.put("news", put[-1]).result(_WAIT_S)

        def get() -> None:
            got.extend([message.payload for message in reader.get("news", 1, wait_s=_WAIT_S)])

        def after(struck: bool) -> None:
            while len(got) < len(put):
                get()
            assert got == put
            put_one()

        put_one()
        assert at_every_point(number, get, after) > 20
        assert reader.get("news", 9, wait_s=_WAIT_S)[0].payload == put[-1]


@both
def test_a_transaction_is_done_once_or_not_at_all(broker: BrokerProcess, number: int) -> None:
    with Publisher(broker.url) as publisher, Admin(broker.url) as admin, raising(number):
        admin.subscribe("in", "stage", shared=True)
        admin.configure_topic("out", retention="keep")
        with Subscriber(broker.url, "stage", ack="explicit") as stage:
            done = list[bytes]()
            work: list[Message] = []
            begun: list[Transaction] = []

            def take() -> None:
                publisher.put("in", b"%d" % len(done)).result(_WAIT_S)
                (message,) = stage.get("in", 1, wait_s=_WAIT_S)
                assert message.attempt == 1
                work[:] = [message]

            def transact() -> None:
                begun.clear()
                with stage.transaction() as tx:
                    begun.append(tx)
                    tx.ack(work[0])
                    tx.put("out", work[0].payload)

            def after(struck: bool) -> None:
                try:
                    is_done = bool(begun and begun[0].result(_WAIT_S).offsets)
                except PermanentError:
                    is_done = False  # it was not sent
                if not is_done:
                    assert struck
                    for tx in begun:  # where it was struck before the first line of `__exit__`, the block is left now
                        tx.__exit__(Struck, Struck(), None)
                    transact()
                done.append(work[0].payload)
                take()

            take()
            assert at_every_point(number, transact, after) > 20
        assert [message.payload for message in admin.browse("out")] == done


@both
def test_waiting_for_a_receipt_and_asking_leave_the_client_usable(broker: BrokerProcess, number: int) -> None:
    with Publisher(broker.url) as publisher, Admin(broker.url) as admin, raising(number):
        admin.configure_topic("kept", retention="keep")
        receipts = [publisher.put("kept", b"0")]

        def after(struck: bool) -> None:
            receipts[-1].result(_WAIT_S)
            receipts.append(publisher.put("kept", b"%d" % len(receipts)))

        assert at_every_point(number, lambda: receipts[-1].result(_WAIT_S), after) > 5
        receipts[-1].result(_WAIT_S)
        assert [message.payload for message in admin.browse("kept")] == [b"%d" % n for n in range(len(receipts))]
        assert at_every_point(number, admin.stats, lambda _struck: None) > 5
        assert admin.describe_topic("kept").next_offset == len(receipts)


@both
def test_a_put_is_stored_once_or_not_at_all(broker: BrokerProcess, number: int) -> None:
    with Publisher(broker.url) as publisher, Admin(broker.url) as admin, raising(number):
        admin.configure_topic("kept", retention="keep")
        tried, accepted = list[bytes](), list[bytes]()

        def put() -> None:
            tried.append(b"%d" % len(tried))
            publisher.put("kept", tried[-1])
            accepted.append(tried[-1])

        def after(_struck: bool) -> None:
            publisher.flush(_WAIT_S)

        assert at_every_point(number, put, after) > 20
        stored = [message.payload for message in admin.browse("kept")]
        assert [payload for payload in stored if payload in accepted] == accepted, "each once, and in order"
        assert stored == sorted(set(stored), key=int), "one that was struck was stored once, in its place, or not"


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it was struck before its first line
def test_a_close_that_was_struck_is_finished_by_the_next(broker: BrokerProcess) -> None:
    with Admin(broker.url) as admin, raising(signal.SIGINT):
        admin.configure_topic("kept", retention="keep")
        publishers = list[Publisher]()

        def make() -> None:
            publishers.append(Publisher(broker.url))
            publishers[-1].put("kept", b"")

        def after(_struck: bool) -> None:
            publishers[-1].close(_WAIT_S)
            session = publishers[-1]._session
            assert not session.usable
            session._thread.join(_WAIT_S)
            assert not session._thread.is_alive()
            make()

        make()
        assert at_every_point(signal.SIGINT, lambda: publishers[-1].close(_WAIT_S), after) > 20
        publishers[-1].close(_WAIT_S)


@pytest.mark.timeout(20)
def test_a_handler_may_put_and_wait_wherever_a_session_is_woken(broker: BrokerProcess) -> None:
    with Publisher(broker.url) as publisher, Admin(broker.url) as admin:
        admin.configure_topic("kept", retention="keep")
        session, stored = publisher._session, list[int]()

        def rest(_struck: bool = False) -> None:
            eventually(lambda: not session.woken, "the session is at rest, so that waking it takes something")

        def put_one(_number: int, _frame: FrameType | None) -> None:
            offset = publisher.put("kept", b"").result(_WAIT_S).offset
            assert offset is not None
            stored.append(offset)

        rest()
        before = signal.signal(signal.SIGUSR1, put_one)
        try:
            at_every_point(signal.SIGUSR1, session.wake, rest)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(stored) > 1
        assert stored == list(range(len(stored)))
