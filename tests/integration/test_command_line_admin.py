"""`clarion topics`, `subscriptions`, `dead`, `state`, `browse`, `request`: looking after a broker from the shell."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest
from tests.integration.shell import DEADLINE_S, Shell, environment, one_line, read_line, running
from tests.integration.waiting import eventually

from clarion import Admin, Publisher, Subscriber

WAIT_S = DEADLINE_S


def _objects(out: bytes) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def _give_up_on(shell: Shell, topic: str, *payloads: bytes) -> None:
    shell.ok("subscribe", topic, "--as", "workers", "--shared", "--max-attempts", "1")
    with Publisher(shell.url) as publisher, Subscriber(shell.url, "workers", ack="explicit") as worker:
        publisher.put_many(topic, payloads).result(WAIT_S)
        left = len(payloads)
        while left:
            for message in worker.get(topic, wait_s=WAIT_S):
                message.nack(reason="it is\nbroken")
                left -= 1


# Topics.


def test_a_topic_is_created_configured_and_described(shell: Shell) -> None:
    said = shell.ok("topics", "create", "audit", "--retention", "keep", "--max-age", "7d", "--max-size", "10GB")
    assert said.decode() == (
        "audit keeps messages, read or not, for 7d, up to 10.0 GB;"
        " puts are refused where a bound would overtake a subscriber\n"
    )
    changes = (
        "--max-age",
        "none",
        "--at-bound",
        "trim",
        "--ttl",
        "1h",
        "--max-batch",
        "1MB",
        "--max-subscriptions",
        "5",
    )
    told = shell.json("topics", "configure", "audit", *changes)
    assert told["retention"] == "keep"
    assert told["settings"] == {
        "max_age_s": 0,
        "max_bytes": 10**10,
        "at_bound": "trim",
        "ttl_s": 3600,
        "max_batch_bytes": 10**6,
        "max_subscriptions": 5,
        "temporary": False,
    }
    shell.ok("subscribe", "audit", "--as", "reader")
    shell.ok("put", "audit", "hello")
    described = shell.json("topics", "describe", "audit")
    assert (described["messages"], described["subscriptions"][0]["lag"]) == (1, 1)
    words = shell.ok("topics", "describe", "audit").decode()
    assert "messages     1 (" in words
    assert "reader" in words


def test_configuring_what_is_not_there_says_how_to_make_it(shell: Shell) -> None:
    done = shell.run("topics", "configure", "my audit", "--ttl", "1h")
    assert done.returncode == 9
    assert "clarion topics create 'my audit'" in one_line(done)


def test_topics_are_listed_by_name_or_by_size(shell: Shell) -> None:
    for name, size in (("a", 10), ("b", 100_000), ("c", 1000)):
        shell.ok("topics", "create", name, "--retention", "keep")
        shell.ok("put", name, stdin=b"x" * size)
    assert [row["topic"] for row in _objects(shell.ok("topics", "--json"))] == ["a", "b", "c"]
    assert [row["topic"] for row in _objects(shell.ok("topics", "--sort", "size", "--json"))] == ["b", "c", "a"]
    table = shell.ok("topics", "list", "--sort", "size").decode().splitlines()
    assert table[1].startswith("b ")
    assert "KB" in table[1]
    assert table[-1].startswith("3 topics, ")


def test_purging_and_deleting_need_a_yes(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    for payload in ("1", "2", "3"):
        shell.ok("put", "alerts", payload)
    for command in (("topics", "purge", "alerts"), ("topics", "delete", "alerts")):
        done = shell.run(*command)
        assert done.returncode == 2
        assert "--yes" in one_line(done)
        assert "3 messages" in one_line(done)
        assert json.loads(one_line(shell.run(*command, "--json")))["error"]["code"] == "NeedsYes"
    assert shell.json("topics", "purge", "alerts", "--below", "1", "--yes") == {"topic": "alerts", "purged": 1}
    assert shell.ok("topics", "purge", "alerts", "-y") == b"2 messages of alerts forgotten\n"
    assert shell.run("get", "alerts", "--as", "reader").returncode == 3
    assert shell.ok("topics", "delete", "alerts", "--yes") == b"alerts is gone\n"
    assert shell.run("topics", "delete", "alerts", "--yes").returncode == 9
    assert shell.run("get", "alerts", "--as", "reader").returncode == 6


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)])
def test_a_person_at_a_terminal_is_asked(shell: Shell, answer: bytes, code: int) -> None:
    shell.ok("topics", "create", "alerts")
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "clarion", "topics", "delete", "alerts"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(CLARION_URL=shell.url),
        ) as asking:
            os.write(ours, answer)
            out, err = asking.communicate(timeout=DEADLINE_S)
    finally:
        os.close(ours)
        os.close(theirs)
    assert asking.returncode == code
    assert b"alerts has 0 messages (0 B) and 0 subscriptions. Delete it" in err
    assert b"[y/N]" in err
    assert (out == b"alerts is gone\n") is (code == 0)
    assert (b"nothing was changed" in err) is (code == 1)
    assert (b"alerts" in shell.ok("topics", "--json")) is (code == 1)


# Subscriptions.


def test_subscriptions_are_tables_and_json(shell: Shell) -> None:
    assert shell.ok("subscriptions") == b"nobody subscribes\n"
    shell.ok("subscribe", "orders", "--as", "billing", "--shared", "--order", "key", "--lease", "1m", "--expires", "7d")
    shell.ok("subscribe", "orders", "--as", "audit")
    shell.ok("subscribe", "alerts", "--as", "audit")
    shell.ok("put", "orders", "--lines", stdin=b"1\n2\n")
    found = _objects(shell.ok("subscriptions", "orders", "--json"))
    assert {(one["subscriber"], one["lag"], one["options"]["shared"]) for one in found} == {
        ("audit", 2, False),
        ("billing", 2, True),
    }
    (billing,) = [one for one in found if one["subscriber"] == "billing"]
    assert (billing["options"]["lease_s"], billing["options"]["expires_s"]) == (60, 604_800)
    assert len(_objects(shell.ok("subscriptions", "--json"))) == 3
    table = shell.ok("subscriptions", "orders").decode()
    assert "shared by key" in table
    assert "unused for 7d" in table
    assert shell.run("subscriptions", "nowhere").returncode == 9
    shell.ok("topics", "create", "empty")
    assert shell.ok("subscriptions", "empty") == b"nobody subscribes to empty\n"


def test_a_subscription_is_sought_elsewhere(shell: Shell) -> None:
    shell.ok("topics", "create", "audit", "--retention", "keep")
    shell.ok("subscribe", "audit", "--as", "reader")
    shell.ok("put", "audit", "--lines", stdin=b"0\n1\n2\n")
    done = shell.run("subscriptions", "seek", "audit", "reader", "--to", "new")
    assert done.returncode == 2
    assert "reader has not read 3 messages on audit" in one_line(done)
    for to, rest in (("new", b""), ("earliest", b"0\n1\n2\n"), ("2", b"2\n"), ("2020-01-01T00:00:00Z", b"0\n1\n2\n")):
        told = shell.json("subscriptions", "seek", "audit", "reader", "--to", to, "--yes")
        assert told["lag"] == rest.count(b"\n")
        assert shell.run("get", "audit", "--as", "reader").stdout == rest
    assert shell.run("subscriptions", "seek", "audit", "nobody", "--to", "new", "--yes").returncode == 6


def test_a_subscription_is_deleted(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    shell.ok("put", "alerts", "hello")
    assert shell.run("subscriptions", "delete", "alerts", "reader").returncode == 2
    assert shell.ok("subscriptions", "delete", "alerts", "reader", "-y") == b"reader no longer subscribes to alerts\n"
    assert shell.run("subscriptions", "delete", "alerts", "reader", "-y").returncode == 6


def test_a_shared_subscription_is_read_by_many(shell: Shell) -> None:
    said = shell.ok("subscribe", "jobs", "--as", "workers", "--shared", "--lease", "2m", "--max-attempts", "3")
    assert said.decode() == (
        "workers subscribes to jobs, start new; shared: each message goes to one consumer,"
        " taken back after 2m without a sign of life, given up after 3 attempts\n"
    )
    shell.ok("put", "jobs", "--lines", stdin=b"1\n2\n3\n")
    with running("get", "jobs", "--as", "workers", "--max", "1", CLARION_URL=shell.url) as getting:
        first = read_line(getting)
        assert getting.wait(DEADLINE_S) == 0
    told = shell.json("get", "jobs", "--as", "workers", "--max", "1")
    assert told["attempt"] == 1
    rest = shell.ok("get", "jobs", "--as", "workers")
    assert sorted([first, told["payload"].encode() + b"\n", *rest.splitlines(keepends=True)]) == [
        b"1\n",
        b"2\n",
        b"3\n",
    ]
    assert shell.run("get", "jobs", "--as", "workers").returncode == 3


def test_a_pattern_reads_topics_of_now_and_later(shell: Shell) -> None:
    shell.ok("topics", "create", "alerts/door")
    assert (
        shell.ok("subscribe", "alerts/*", "--as", "watch")
        == b"watch subscribes to every topic like alerts/*, start new\n"
    )
    shell.ok("put", "alerts/door", "open")
    shell.ok("put", "alerts/fire", "smoke")
    lines = shell.ok("get", "alerts/*", "--as", "watch", "--max", "2", "--wait", "120s")
    assert sorted(lines.splitlines()) == [b"alerts/door\topen", b"alerts/fire\tsmoke"]
    shell.ok("put", "alerts/fire", "out")
    told = shell.json("get", "alerts/*", "--as", "watch", "--wait", "120s", "--max", "1")
    assert (told["topic"], told["payload"]) == ("alerts/fire", "out")
    shell.ok("unsubscribe", "alerts/*", "--as", "watch")
    assert shell.run("get", "alerts/*", "--as", "watch").returncode == 6
    assert shell.run("put", "alerts/*", "x").returncode == 1


# Dead letters.


def test_dead_letters_are_listed_replayed_and_dropped(shell: Shell) -> None:
    shell.ok("topics", "create", "jobs")
    assert shell.ok("dead", "list", "jobs") == b"no dead letters of jobs\n"
    assert shell.run("dead", "list", "nowhere").returncode == 9
    _give_up_on(shell, "jobs", b"one", b"two", b"three")
    letters = _objects(shell.ok("dead", "list", "jobs", "--json"))
    assert {letter["payload"] for letter in letters} == {"one", "two", "three"}
    assert letters[0]["reason"] == "it is\nbroken"
    table = shell.ok("dead", "list", "jobs", "--max", "2").decode()
    assert "it is broken" in table
    assert "there are more" in table
    again = shell.json("dead", "replay", "jobs", "--offset", str(letters[1]["offset"]))
    assert again == {"topic": "jobs", "replayed": 1, "skipped": 0}
    assert shell.ok("get", "jobs", "--as", "workers") == letters[1]["payload"].encode() + b"\n"
    assert shell.run("dead", "drop", "jobs").returncode == 2
    assert shell.ok("dead", "drop", "jobs", "--offset", str(letters[0]["offset"]), "--yes") == (
        b"1 dead letter of jobs forgotten\n"
    )
    assert shell.ok("dead", "replay", "jobs") == b"1 dead letter of jobs put back\n"
    assert shell.json("dead", "drop", "jobs", "--yes") == {"topic": "jobs", "dropped": 0}


def test_dead_letters_without_a_home_are_told(shell: Shell) -> None:
    _give_up_on(shell, "jobs", b"one")
    shell.ok("unsubscribe", "jobs", "--as", "workers")
    said = shell.ok("dead", "replay", "jobs").decode()
    assert "1 dead letter left: the subscription each came from is no more" in said


# Looking, waiting, asking.


def test_browsing_changes_nothing(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    for payload in ("0", "1", "2", "3"):
        shell.ok("put", "alerts", payload, "--key", "k")
    assert [one["payload"] for one in _objects(shell.ok("browse", "alerts", "--json"))] == ["0", "1", "2", "3"]
    assert [one["offset"] for one in _objects(shell.ok("browse", "alerts", "--last", "2", "--json"))] == [2, 3]
    assert [one["offset"] for one in _objects(shell.ok("browse", "alerts", "--from", "1", "--max", "2", "--json"))] == [
        1,
        2,
    ]
    head, first, *_ = shell.ok("browse", "alerts").decode().splitlines()
    assert head.split() == ["offset", "committed", "key", "message"]
    assert (first.split()[0], first.split()[-1]) == ("0", "0")
    assert shell.run("browse", "alerts", "--from", "4").returncode == 3
    assert shell.run("browse", "nowhere").returncode == 9
    shell.ok("topics", "purge", "alerts", "--below", "2", "--yes")
    done = shell.run("browse", "alerts", "--from", "0", "--json")
    assert done.returncode == 1
    assert json.loads(one_line(done))["error"]["code"] == "MessagesGone"


def test_a_reader_that_was_overtaken_is_told_the_gap_and_goes_on(shell: Shell) -> None:
    shell.ok("topics", "create", "readings", "--retention", "keep")
    shell.ok("subscribe", "readings", "--as", "slow")
    payloads = [letter * 1000 for letter in (b"a", b"b", b"c")]
    for payload in payloads:
        shell.ok("put", "readings", stdin=payload)
    shell.ok("topics", "configure", "readings", "--max-size", "1500", "--at-bound", "trim")
    first = eventually(lambda: int(shell.json("topics", "describe", "readings")["first_offset"]), "the oldest go")
    done = shell.run("get", "readings", "--as", "slow")
    assert (done.returncode, done.stdout.splitlines()) == (0, payloads[first:])
    told = f"clarion: offsets 0 to {first - 1} of readings are no longer kept; going on after them\n"
    assert done.stderr.decode() == told


def test_messages_given_back_come_again_until_they_are_dead_letters(shell: Shell) -> None:
    shell.ok("subscribe", "jobs", "--as", "workers", "--shared", "--max-attempts", "2")
    shell.ok("put", "jobs", "one")
    for attempt in (1, 2):
        told = shell.json("get", "jobs", "--as", "workers", "--max", "1", "--nack", "broken", "--wait", "120s")
        assert (told["payload"], told["attempt"]) == ("one", attempt)
    (letter,) = _objects(shell.ok("dead", "list", "jobs", "--json"))
    assert (letter["reason"], letter["attempts"]) == ("broken", 2)


def test_messages_appear_when_they_are_due_and_expire(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    told = shell.json("put", "alerts", "later", "--deliver-at", "+1h")
    assert told["first_offset"] is None
    assert told["deliver_at"]
    assert shell.run("get", "alerts", "--as", "reader").returncode == 3
    assert shell.json("topics", "describe", "alerts")["staged_messages"] == 1
    assert b"to appear at" in shell.ok("put", "alerts", "--lines", "--deliver-at", "+100ms", stdin=b"a\nb\n")
    assert shell.ok("get", "alerts", "--as", "reader", "--max", "2", "--wait", "120s") == b"a\nb\n"
    shell.ok("put", "alerts", "short", "--ttl", "1ms")
    shell.ok("put", "alerts", "long", "--ttl", "1h")
    assert shell.ok("get", "alerts", "--as", "reader") == b"long\n"


def test_compressed_messages_come_out_as_they_went_in(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    shell.ok("put", "alerts", "--compress", stdin=b"x" * 100_000)
    assert shell.json("topics", "describe", "alerts")["stored_bytes"] < 10_000
    assert shell.ok("get", "alerts", "--as", "reader", "--no-newline") == b"x" * 100_000


def test_a_request_gets_its_answer(shell: Shell) -> None:
    done = shell.run("request", "prices", "AAPL")
    assert done.returncode == 5
    shell.ok("subscribe", "prices", "--as", "server")
    done = shell.run("request", "prices", "nobody is there", "--wait", "100ms")
    assert done.returncode == 4
    assert "nobody answered on prices within 100ms" in one_line(done)
    with (
        running("request", "prices", "AAPL", "--wait", "1m", CLARION_URL=shell.url) as asking,
        Subscriber(shell.url, "server") as server,
        Publisher(shell.url) as publisher,
    ):
        for message in server.stream("prices", wait_s=WAIT_S):
            if message.payload == b"AAPL":
                publisher.reply(message, b"17.20").result(WAIT_S)
                break
        assert asking.communicate(timeout=DEADLINE_S) == (b"17.20\n", b"")
    assert asking.returncode == 0


def test_state_is_printed(shell: Shell) -> None:
    done = shell.run("state", "get", "leader")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    with Subscriber(shell.url, "setter") as setter, setter.transaction() as tx:
        tx.set("leader", b"me")
    assert shell.ok("state", "get", "leader") == b"me\n"
    told = shell.json("state", "get", "leader")
    assert (told["name"], told["value"]) == ("leader", "me")
    with Admin(shell.url) as admin:
        assert told["version"] == admin.state("leader").version
