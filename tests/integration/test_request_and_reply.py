"""Requests and their replies, between processes and over restarts."""

from __future__ import annotations

import threading

import pytest
from tests.integration.broker_process import BrokerProcess
from tests.integration.sharing import WAIT_S, share, take_one, worker
from tests.integration.waiting import eventually
from tests.integration.worker_process import WorkerProcess

from clarion import Admin, NoSubscriber, Publisher
from clarion.model.errors import PermanentError, TimedOut
from clarion.model.names import REPLIES


def _replies(admin: Admin) -> list[bytes]:
    return [row.topic for row in admin.topics() if row.topic.startswith(REPLIES)]


def test_a_request_is_answered_by_another_process(url: str) -> None:
    share(url, "shout")
    with WorkerProcess(url, "workers") as server, Publisher(url) as publisher:
        server.tell("serve", "shout", 3)
        for text in (b"one", b"two", b"three"):
            reply = publisher.request("shout", text, wait_s=WAIT_S, headers={"a": b"b"})
            assert reply.payload == text.upper()
        server.answer()


def test_many_threads_get_their_own_replies_from_several_servers(url: str) -> None:
    share(url, "crowd")
    got: dict[int, bytes] = {}
    with WorkerProcess(url, "workers") as one, WorkerProcess(url, "workers") as two, Publisher(url) as publisher:
        one.tell("serve", "crowd", 1000)
        two.tell("serve", "crowd", 1000)

        def ask(number: int) -> None:
            got[number] = publisher.request("crowd", f"from {number}", wait_s=WAIT_S).payload

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert got == {number: b"FROM %d" % number for number in range(20)}


def test_a_reply_can_be_part_of_a_transaction(url: str) -> None:
    share(url, "exact")
    replies: list[bytes] = []
    with worker(url) as server, Publisher(url) as publisher:
        asking = threading.Thread(
            target=lambda: replies.append(publisher.request("exact", b"x", wait_s=WAIT_S).payload)
        )
        asking.start()
        message = take_one(server, "exact")
        with server.transaction() as tx:
            tx.reply(message, b"y")
            tx.ack(message)
        asking.join(WAIT_S)
        assert replies == [b"y"]
        assert server.get("exact", wait_s=0) == []


def test_nobody_there_no_answer_and_what_is_no_request(url: str) -> None:
    share(url, "silence")
    with Publisher(url) as publisher, worker(url) as server:
        with pytest.raises(NoSubscriber):
            publisher.request("nobody", b"x", wait_s=WAIT_S)
        with pytest.raises(TimedOut):
            publisher.request("silence", b"x", wait_s=0.3)
        late = take_one(server, "silence")
        publisher.put("silence", b"no request").result(WAIT_S)
        publisher.reply(late, b"too late").result(WAIT_S)
        eventually(lambda: publisher.stats["late_replies"] == 1, "the reply is counted")
        with pytest.raises(PermanentError):
            publisher.reply(take_one(server, "silence"), b"to whom?")


def test_a_reply_comes_over_a_restart_and_the_topic_of_replies_goes(broker: BrokerProcess) -> None:
    share(broker.url, "slow")
    replies: list[bytes] = []
    with worker(broker.url) as server, Admin(broker.url) as admin:
        with Publisher(broker.url) as publisher:
            asking = threading.Thread(
                target=lambda: replies.append(publisher.request("slow", b"x", wait_s=WAIT_S).payload)
            )
            asking.start()
            message = take_one(server, "slow")
            assert len(_replies(admin)) == 1
            broker.restart()
            with Publisher(broker.url) as other:
                other.reply(message, b"y").result(WAIT_S)
            message.ack()
            server.flush_acks()
            asking.join(WAIT_S)
        assert replies == [b"y"]
        eventually(lambda: not _replies(admin), "the topic of replies is gone")
