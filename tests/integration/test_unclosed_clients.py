"""Clients that nobody closes: at the end of the program, forgotten, closed too late, and in a forked child."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.integration.broker_process import BrokerProcess, free_url
from tests.integration.waiting import DEADLINE_S, eventually

from clarion import (
    Admin,
    AsyncPublisher,
    AsyncSubscriber,
    AsyncTransaction,
    Message,
    MessageBatch,
    Publisher,
    Stager,
    Subscriber,
    Transaction,
    commit_staged,
)
from clarion.model.errors import Closed, TimedOut
from clarion.session import endings
from clarion.wire.batch import PackedColumn


def program(url: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that knows `url`, and no better than to leave its clients open."""
    beginning = "import asyncio, os, sys, threading\nfrom clarion import *\nfrom clarion.session import endings\n"
    text = f"{beginning}url = sys.argv[1]\n{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, "-c", text, url, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


@pytest.fixture
def kept(url: str, request: pytest.FixtureRequest) -> Iterator[Callable[[], list[bytes]]]:
    """The payloads that topic "kept" has by now, without those of other tests."""
    with Admin(url) as admin:
        admin.configure_topic("kept", retention="keep")
        before = admin.describe_topic("kept").next_offset
        yield lambda: [message.payload for message in admin.read("kept", before, 10_000)]


# The end of the program.


def test_a_program_that_ends_with_much_to_send_sends_it(url: str, kept: Callable[[], list[bytes]]) -> None:
    """Large frames leave without a copy, which ZeroMQ's binding has an exit of its own for."""
    count, size = 200, 100_000
    done = program(url, f"Publisher(url).put_many('kept', [bytes({size})] * {count})")
    assert (done.returncode, done.stderr) == (0, "")
    assert kept() == [bytes(size)] * count


def test_a_client_without_a_broker_does_not_keep_the_others_from_finishing(
    url: str, kept: Callable[[], list[bytes]]
) -> None:
    done = program(
        url,
        f"""
        endings.EXIT_S = 1.0
        lost, found = Publisher({free_url()!r}), Publisher(url)
        found.put("kept", "first").result()
        lost.put("kept", "never")
        found.put_many("kept", ["accepted"] * 1000)
        """,
    )
    assert len(kept()) == 1001
    assert done.stderr.count("not confirmed") == 1
    assert "1 message not confirmed" in done.stderr


ENDS = {
    "it is over": "",
    "sys.exit": "sys.exit(3)",
    "an error": "raise ValueError",
    "held by a cycle": "publisher.me = publisher",
    "from a thread": "threading.Thread(target=lambda: [publisher.put('kept', 'more') for _ in range(100)]).start()",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_was_put_is_stored_when_the_program_just_ends(url: str, kept: Callable[[], list[bytes]], end: str) -> None:
    code = f"publisher = Publisher(url)\nfor number in range(500): publisher.put('kept', str(number))\n{end}"
    ended = program(url, code)
    assert ended.returncode == {"sys.exit(3)": 3, "raise ValueError": 1}.get(end, 0), ended.stderr
    assert "clarion" not in ended.stderr.replace("Traceback", "")
    found = kept()
    assert [payload for payload in found if payload != b"more"] == [b"%d" % number for number in range(500)]
    assert found.count(b"more") == (100 if "thread" in end else 0)


def test_what_asyncio_clients_stagers_and_outboxes_accepted_is_stored_too(
    url: str, kept: Callable[[], list[bytes]], tmp_path: Path
) -> None:
    ended = program(
        url,
        """
        async def main():
            global held
            held = AsyncPublisher(url)
            await held.put_many("kept", ["held"] * 100)
            forgotten = AsyncPublisher(url, outbox=sys.argv[2] + "/async")
            await forgotten.put_many("kept", ["forgotten"] * 100)

        asyncio.run(main())
        stager = Stager(url, "unclosed", 1)
        stager.put_many("kept", ["staged"] * 100)
        careful = Publisher(url, outbox=sys.argv[2] + "/plain")
        careful.put_many("kept", ["careful"] * 100)
        """,
        str(tmp_path),
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(kept()) == sorted([b"held", b"forgotten", b"careful"] * 100)
    assert commit_staged(url, "unclosed", 1).messages == 100


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_a_process_of_multiprocessing_put_is_stored(
    url: str, kept: Callable[[], list[bytes]], method: str, tmp_path: Path
) -> None:
    file = tmp_path / "main.py"
    file.write_text(
        textwrap.dedent("""
        import multiprocessing, sys, threading
        from clarion import Publisher

        def work(url):
            publisher = Publisher(url)
            publisher.put_many("kept", ["child"] * 100)
            threading.Thread(target=lambda: publisher.put_many("kept", ["thread"] * 100)).start()

        if __name__ == "__main__":
            parent = Publisher(sys.argv[1])
            parent.put("kept", "parent").result()
            child = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=[sys.argv[1]])
            child.start()
            child.join()
            parent.put("kept", "parent")
            sys.exit(child.exitcode)
        """)
    )
    ended = subprocess.run(
        [sys.executable, str(file), url, method], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(kept()) == sorted([b"parent"] * 2 + [b"child"] * 100 + [b"thread"] * 100)


def test_what_could_not_be_finished_at_the_end_is_told(url: str, tmp_path: Path) -> None:
    nowhere = free_url()
    ended = program(
        url,
        """
        import logging
        logging.disable()
        endings.EXIT_S = 0.5
        nowhere, folder = sys.argv[2:]
        lost = Publisher(nowhere)
        lost.put_many("topic", ["x"] * 500)
        kept = Publisher(nowhere, outbox=folder + "/outbox")
        kept.put_many("topic", ["x"] * 7)
        kept.save(60)
        refused = Publisher(url)
        receipts = refused.put_many("nobody reads it", ["x"] * 3)
        while not receipts.done():
            os.sched_yield()

        async def main():
            global lost_too
            lost_too = AsyncPublisher(nowhere)
            await lost_too.put_many("topic", ["x"] * 400)

        asyncio.run(main())
        """,
        nowhere,
        str(tmp_path),
    )
    assert ended.returncode == 0
    said = sorted(
        line.removeprefix("clarion: the program ended without closing its ") for line in ended.stderr.splitlines()
    )
    expected = (
        rf"AsyncPublisher at {nowhere}: 400 messages not confirmed .* given up: never sent, and lost.*",
        rf"Publisher at {nowhere}: 500 messages not confirmed .* given up: never sent, and lost.*",
        rf"Publisher at {nowhere}: 7 messages not confirmed .* kept in the outbox .*",
        rf"Publisher at {url}: nobody subscribes .* \(3 messages not stored\)",
    )
    assert len(said) == 4, ended.stderr
    assert all(any(re.fullmatch(one, line) for line in said) for one in expected), ended.stderr


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_at_the_end_nothing_is_acked_that_was_not_and_leases_are_given_back(url: str, kind: str) -> None:
    topic = f"jobs of {kind}"
    with Subscriber(url, "workers", ack="explicit") as other, Publisher(url) as publisher:
        other.subscribe(topic, shared=True, lease_s=3600)
        publisher.put_many(topic, [b"%d" % number for number in range(10)]).result(60)
        code = f"""
        worker = Subscriber(url, "workers", ack="explicit")
        held = worker.get("{topic}", 5, wait_s=60)
        held[0].ack()

        def go_on():
            worker.get("nothing", wait_s=60)

        worker.subscribe("nothing")
        threading.Thread(target=go_on, daemon=True).start()
        """
        if kind == "async":
            code = f"""
            async def main():
                global held
                held = await AsyncSubscriber(url, "workers", ack="explicit").get("{topic}", 5, wait_s=60)
                held[0].ack()

            asyncio.run(main())
            """
        ended = program(url, code)
        assert (ended.returncode, ended.stderr) == (0, "")
        attempts: dict[bytes, int] = {}
        while len(attempts) < 9:
            for message in other.get(topic, wait_s=DEADLINE_S):
                attempts[message.payload] = message.attempt
                message.ack()
        assert attempts.keys() == {b"%d" % number for number in range(1, 10)}
        assert [attempts[b"%d" % number] for number in range(1, 5)] == [2] * 4, "they were worked on once"
        assert attempts[b"9"] == 1


# Forgotten.


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_forgotten_clients_give_back_their_threads_and_descriptors(url: str, kept: Callable[[], list[bytes]]) -> None:
    def notebook(number: int) -> None:
        publisher = Publisher(url)
        publisher.put("kept", str(number))
        reader = Subscriber(url, f"notebook {number}")
        reader.subscribe("kept", start="earliest", expires_s=60)
        assert reader.get("kept", 1, wait_s=60)
        next(reader.stream("kept", wait_s=1), None)
        Admin(url).hello()
        Stager(url, f"notebook {number}").put("kept", b"never committed")

    eventually(lambda: not endings._finishing, "others' clients are finished")
    threads, descriptors = threading.active_count(), _descriptors()
    for number in range(10):
        notebook(number)
    eventually(lambda: threading.active_count() <= threads, "threads are given back")
    eventually(lambda: _descriptors() <= descriptors, "descriptors are given back")
    assert sorted(kept()) == sorted(b"%d" % number for number in range(10))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_forgotten_asyncio_clients_give_back_their_descriptors(url: str, kept: Callable[[], list[bytes]]) -> None:
    async def notebook(number: int) -> None:
        publisher = AsyncPublisher(url)
        await publisher.put("kept", str(number))
        reader = AsyncSubscriber(url, f"async notebook {number}")
        await reader.subscribe("kept", start="earliest", expires_s=60)
        assert await reader.get("kept", 1, wait_s=60)

    async def several() -> None:
        for number in range(5, 10):
            await notebook(number)

    asyncio.run(notebook(0))  # what asyncio itself opens once
    gc.collect()
    eventually(lambda: len(endings._open) == 1, "all are finished but the one that reads")
    descriptors = _descriptors()
    for number in range(1, 5):
        asyncio.run(notebook(number))
    asyncio.run(several())
    gc.collect()
    eventually(lambda: _descriptors() <= descriptors, "descriptors are given back")
    assert sorted(kept()) == sorted(b"%d" % number for number in range(10))


def test_a_forgotten_client_warns_and_gives_its_leases_back(url: str) -> None:
    with Subscriber(url, "left", ack="explicit") as other, Publisher(url) as publisher:
        other.subscribe("left", shared=True, lease_s=3600)
        publisher.put("left", b"job").result(60)
        forgotten = Subscriber(url, "left", ack="explicit")
        assert forgotten.get("left", wait_s=60)
        with pytest.warns(ResourceWarning, match=f"unclosed Subscriber at {url}"):
            del forgotten
        (job,) = other.get("left", wait_s=DEADLINE_S)
        assert job.attempt == 2
        job.ack()


def test_a_closed_client_that_is_forgotten_says_nothing(url: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for client in (Publisher(url), Subscriber(url, "name"), Admin(url), Stager(url, "writer")):
            client.close()
        del client
        gc.collect()
    assert not [told for told in (str(each.message) for each in seen) if url in told]


def test_messages_streams_receipts_and_transactions_keep_their_client(url: str) -> None:
    def get() -> list[Message]:
        return Subscriber(url, "keeper", ack="explicit").get("keeper", 2, wait_s=60)

    with Admin(url) as admin, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        admin.subscribe("keeper", "keeper", shared=True)
        Publisher(url).put_many("keeper", [b"%d" % number for number in range(4)]).result(60)
        messages = get()
        stream = Subscriber(url, "keeper", ack="explicit").stream("keeper", wait_s=60)
        next(stream).ack()
        last = next(stream)
        with Subscriber(url, "keeper").transaction() as tx:
            tx.set("keeper", b"state")
        assert admin.state("keeper").value == b"state"
        assert not [each for each in seen if "unclosed Subscriber" in str(each.message)]
        for message in (*messages, last):
            message.ack()
        eventually(lambda: admin.describe_subscription("keeper", "keeper").lag == 0, "all are acked")


# Closed too late.


def test_a_close_that_is_broken_off_tells_of_no_time_that_it_did_not_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_off(_timeout_s: float | None) -> None:
        raise KeyboardInterrupt

    async def close_async() -> None:
        publisher = AsyncPublisher(nowhere)
        await publisher.put("topic", b"x")
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    nowhere = free_url()
    publisher = Publisher(nowhere)
    publisher.put("topic", b"x")
    monkeypatch.setattr(publisher._works, "flush", broken_off)
    with pytest.raises(KeyboardInterrupt):
        publisher.close()
    asyncio.run(close_async())
    told = [record.getMessage() for record in caplog.records if "closing a publisher" in record.getMessage()]
    assert len(told) == 2
    assert all(text.startswith(f"closing a publisher: 1 message not confirmed by {nowhere}, and") for text in told)


def test_a_close_that_times_out_says_how_much_was_given_up() -> None:
    async def close_async() -> None:
        publisher = AsyncPublisher(nowhere)
        await publisher.put_many("topic", ["x"] * 30_000)
        with pytest.raises(TimedOut, match=r"^30000 messages not confirmed .* given up: never sent, and lost"):
            await publisher.close(0.05)

    nowhere = free_url()
    asyncio.run(close_async())
    publisher = Publisher(nowhere)
    receipt = publisher.put("topic", b"x")
    receipts = publisher.put_many("topic", ["x"] * 40_000)
    for number in range(1_000):
        publisher.put(f"topic {number}", b"x" * number)
    with pytest.raises(
        TimedOut, match=r"^1 message not confirmed .* still queued, and sent while the publisher is open"
    ):
        receipt.result(0.01)
    with pytest.raises(TimedOut, match=r"^40000 messages not confirmed .* still queued"):
        receipts.result(0.01)
    with pytest.raises(TimedOut, match=r"^41001 messages not confirmed .* still queued"):
        publisher.flush(0.01)
    with pytest.raises(TimedOut, match=r"^41001 messages not confirmed .* within 0.05 s, and given up: never sent"):
        publisher.close(0.05)
    with pytest.raises(Closed):
        receipts.result(1)


def test_what_was_sent_and_not_answered_is_told_apart(broker: BrokerProcess, tmp_path: Path) -> None:
    with Admin(broker.url) as admin:
        admin.configure_topic("topic", retention="keep")
    publisher = Publisher(broker.url, in_flight=1)
    publisher.put("topic", b"x").result(60)
    careful = Publisher(broker.url, outbox=tmp_path / "outbox")
    careful.put("topic", b"x").result(60)
    broker.kill()
    publisher.put("topic", b"sent")
    eventually(lambda: publisher.stats["in_flight"] == 1, "it is under way")
    publisher.put_many("topic", ["x"] * 500)
    careful.put_many("topic", ["x"] * 600)
    with pytest.raises(TimedOut, match=r"^501 messages .* 500 of them never sent, and lost, 1 sent, and may be"):
        publisher.close(0.05)
    with pytest.raises(TimedOut, match=r"^600 messages .* kept in the outbox"):
        careful.close(0.05)
    broker.start()
    with Publisher(broker.url, outbox=tmp_path / "outbox") as again:
        assert again.stats["pending"] >= 0
    with Admin(broker.url) as admin:
        assert admin.describe_topic("topic").next_offset in (602, 603)


def test_whoever_puts_while_it_is_being_closed_is_told(url: str) -> None:
    accepted = 0

    def put() -> None:
        nonlocal accepted
        try:
            while True:
                publisher.put("closing", b"x")
                accepted += 1
        except Closed:
            pass

    with Admin(url) as admin:
        admin.configure_topic("closing", retention="keep")
        publisher = Publisher(url)
        putting = threading.Thread(target=put)
        putting.start()
        eventually(lambda: accepted > 1000, "some are put")
        publisher.close()
        putting.join()
        assert admin.describe_topic("closing").next_offset == accepted, "what is accepted is stored"


# In a forked child.


def in_child(work: Callable[[], object]) -> str:
    """Run it in a forked child; return the name of what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        name = "nothing"
        try:
            work()
        except BaseException as error:  # noqa: BLE001 the child must end here, whatever it was
            name = type(error).__name__
        os.write(writing, name.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as said:
        name = said.read().decode()
    os.waitpid(child, 0)
    return name


def _uses_of(client: object) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every public method and property of a client, with arguments that would do."""
    arguments: dict[str, tuple[Any, ...]] = {
        "__exit__": (None, None, None),
        "__aexit__": (None, None, None),
        "put": ("fork", b"x"),
        "put_many": ("fork", [b"x"]),
        "put_columns": ("fork", 1, PackedColumn(bytes(8), b"")),
        "ack": (),
        "request": ("fork", b"x"),
        "set": ("state", b"x"),
        "subscribe": ("fork", "other") if isinstance(client, Admin) else ("fork",),
        "unsubscribe": ("fork", "other") if isinstance(client, Admin) else ("fork",),
        "describe_subscription": ("fork", "reader"),
        "seek": ("fork", "reader", "new"),
        "offset_at": ("fork", datetime.now(UTC)),
        "is_dead": ("fork", 0),
        "describe_topics": (["fork"],),
        "trace": ("00" * 16,),
        "commit_staged": ("writer", 1),
        "drop_staged": ("writer", 1),
    }
    no_arguments = {
        "flush", "flush_acks", "save", "close", "transaction", "hello", "stats", "topics", "subscriptions", "usage",
        "result", "done", "saved", "ack", "nack", "extend", "links",
    }  # fmt: skip
    told_apart = (
        {"ack", "reply", "sent", "offsets", "versions"}
        if isinstance(client, (Transaction, AsyncTransaction))
        else set()
    )
    data = {"name", "writer", "epoch", "part", "after_fork", "batch_bytes", "already", "reply", *told_apart}
    if isinstance(client, (Message, MessageBatch)):
        names = ["ack", "nack", "extend"]
    elif not hasattr(client, "_works") and not isinstance(client, (Admin, Transaction, AsyncTransaction)):
        names = ["result", "done", "saved"]
    else:
        public = [name for name in dir(client) if not name.startswith("_") and name not in data]
        names = [*public, *(name for name in ("__exit__", "__aexit__") if hasattr(client, name))]
    for name in names:

        def use(name: str = name) -> Any:
            found = getattr(client, name)
            if callable(found):
                found = found(
                    *(() if name in no_arguments and name not in arguments else arguments.get(name, ("fork",)))
                )
            if hasattr(found, "__next__"):
                return next(found)
            if hasattr(found, "__anext__"):
                return asyncio.run(_next(found))
            return asyncio.run(found) if asyncio.iscoroutine(found) else found

        yield name, use


async def _next(found: Any) -> Any:
    return await anext(found)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_use_of_every_client_in_a_forked_child_says_so_at_once(url: str, tmp_path: Path) -> None:
    away = Publisher(free_url())
    with (
        Admin(url) as admin,
        Subscriber(url, "reader", ack="explicit") as reader,
        Subscriber(url, "worker", ack="explicit") as worker,
        Publisher(url) as publisher,
        Publisher(url, outbox=tmp_path / "outbox") as careful,
        Stager(url, "writer", 1) as stager,
    ):
        reader.subscribe("fork")
        worker.subscribe("fork", shared=True)
        publisher.put_many("fork", [b"0", b"1", b"2"]).result(60)
        (message, *_), (lent, *_) = reader.get("fork", wait_s=60), worker.get("fork", wait_s=60)
        away_receipts = [away.put("fork", b"x"), away.put_many("fork", [b"x"])]
        with reader.transaction() as tx:
            tx.put("fork", b"3")
            messages = [message, message.alone(), lent, lent.alone()]
            things = [admin, reader, publisher, careful, stager, *messages, tx, *away_receipts]
            said = [(thing, name, in_child(use)) for thing in things for name, use in _uses_of(thing)]
        assert len(said) > 70
        assert [use for use in said if use[-1] != "UsedAfterFork"] == []
        with pytest.raises(TimedOut):
            away.close(0.01)
        publisher.put("fork", b"4").result(60)
        lent.ack()
        message.ack()
        stager.put("fork", b"staged")
        assert [each.payload for each in admin.read("fork")] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_use_of_every_asyncio_client_in_a_forked_child_says_so_at_once(url: str) -> None:
    clients: list[Any] = []

    async def uses() -> list[tuple[str, Callable[[], Any]]]:
        publisher, reader = AsyncPublisher(url), AsyncSubscriber(url, "async reader", ack="explicit")
        away = AsyncPublisher(free_url())
        await reader.subscribe("async fork")
        await (await publisher.put("async fork", b"x")).result(60)
        (message,) = await reader.get("async fork", wait_s=60)
        tx = reader.transaction()
        clients[:] = [publisher, reader, message, tx, await away.put("fork", b"x"), await away.put_many("fork", [b"x"])]
        return [(f"{type(client).__name__}.{name}", use) for client in clients for name, use in _uses_of(client)]

    loop = asyncio.new_event_loop()
    said = {name: in_child(use) for name, use in loop.run_until_complete(asyncio.wait_for(uses(), 60))}
    assert len(said) > 25
    assert {use: name for use, name in said.items() if name != "UsedAfterFork"} == {}
    publisher, reader, message = clients[:3]
    message.ack()

    async def go_on() -> None:
        await (await publisher.put("async fork", b"y")).result(60)
        assert [each.payload for each in await reader.get("async fork", wait_s=60)] == [b"y"]
        await publisher.close()
        await reader.close()
        with pytest.raises(TimedOut):
            await clients[4]._publisher.close(0.01)

    loop.run_until_complete(asyncio.wait_for(go_on(), 60))
    loop.close()


def test_a_child_that_ends_like_any_program_takes_nothing_of_its_parents_with_it(
    url: str, kept: Callable[[], list[bytes]]
) -> None:
    ended = program(
        url,
        """
        publisher, reader = Publisher(url), Subscriber(url, "parent")
        reader.subscribe("kept")
        publisher.put("kept", "before")

        async def main():
            global on_loop
            on_loop = AsyncPublisher(url)
            await on_loop.put("kept", "before")

        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        child = os.fork()
        if child == 0:
            own = Publisher(url)
            own.put("kept", "child")
            del publisher, reader, on_loop
            sys.exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        publisher.put("kept", "after").result(60)
        loop.run_until_complete(on_loop.put("kept", "after"))
        assert reader.get("kept", wait_s=60)
        """,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(kept()) == sorted([b"before", b"after"] * 2 + [b"child"])
