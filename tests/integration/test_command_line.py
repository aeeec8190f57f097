"""`clarion put`, `get`, `subscribe`, `unsubscribe`: messages from the shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.integration.shell import (
    ANYWHERE,
    DEADLINE_S,
    Done,
    Shell,
    environment,
    one_line,
    read_line,
    run,
    running,
    stop,
    without_waits,
)
from tests.integration.waiting import paced


def test_what_was_put_comes_out_once(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    assert b"1 message stored on alerts at offset 0" in shell.ok("put", "alerts", "hello")
    assert shell.ok("get", "alerts", "--as", "reader") == b"hello\n"
    done = shell.run("get", "alerts", "--as", "reader")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")


def test_any_bytes_go_in_by_standard_input_and_out_again(shell: Shell) -> None:
    payload = bytes(range(256)) * 10
    shell.ok("subscribe", "b64:_wA=", "--as", "b64:_g==")
    told = shell.json("put", "b64:_wA=", "--key", "b64:_Q==", "--header", "type=x", stdin=payload)
    assert told.keys() == {"topic", "messages", "first_offset", "last_offset", "first_id", "deliver_at"}
    assert told["topic"] == "b64:_wA="
    assert shell.ok("get", "b64:_wA=", "--as", "b64:_g==", "--no-newline") == payload
    shell.ok("put", "b64:_wA=", "--key", "b64:_Q==", "--header", "type=x", stdin=b"\xff")
    message = shell.json("get", "b64:_wA=", "--as", "b64:_g==")
    assert (message["key"], message["headers"], message["payload_b64"]) == ("b64:_Q==", {"type": "x"}, "/w==")
    assert message["offset"] == 1


def test_lines_become_messages_in_order(shell: Shell) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(50_000))
    shell.ok("subscribe", "alerts", "--as", "reader")
    told = shell.json("put", "alerts", "--lines", stdin=lines + b"last")
    assert (told["messages"], told["first_offset"], told["last_offset"]) == (50_001, 0, 50_000)
    assert shell.ok("get", "alerts", "--as", "reader", "--max", "2") == b"line 0\nline 1\n"
    assert shell.ok("get", "alerts", "--as", "reader") == lines[len(b"line 0\nline 1\n") :] + b"last\n"


def test_lines_keep_key_and_headers(shell: Shell) -> None:
    shell.ok("topics", "create", "alerts", "--retention", "keep")
    shell.ok("put", "alerts", "--lines", "--key", "k", "--header", "a=b", stdin=b"1\n2\n")
    out = shell.ok("get", "alerts", "--as", "reader", "--subscribe", "--start", "earliest", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(one["payload"], one["key"], one["headers"]) for one in found] == [
        ("1", "k", {"a": "b"}),
        ("2", "k", {"a": "b"}),
    ]


def test_lines_are_sent_as_they_come(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    with running("put", "alerts", "--lines", CLARION_URL=shell.url) as putting:
        assert putting.stdin is not None
        putting.stdin.write(b"early\n")
        putting.stdin.flush()
        assert shell.ok("get", "alerts", "--as", "reader", "--max", "1", "--wait", "120") == b"early\n"
        out, _ = putting.communicate(timeout=DEADLINE_S)
    assert putting.returncode == 0
    assert b"1 message stored" in out


def test_no_lines_are_no_messages(shell: Shell) -> None:
    assert shell.json("put", "alerts", "--lines")["messages"] == 0


def test_a_put_that_nobody_would_read_says_so(shell: Shell) -> None:
    done = shell.run("put", "alerts", "hello")
    assert done.returncode == 5
    assert "clarion subscribe alerts --as NAME" in one_line(done)
    endless = shell.run("put", "alerts", "--lines", "--json", stdin=b"x\n" * 100_000)
    assert endless.returncode == 5
    assert json.loads(one_line(endless))["error"]["code"] == "NoSubscriber"


@paced
def test_a_put_that_must_wait_for_room_says_so(tmp_path: Path, pace_s: float) -> None:
    data = tmp_path / f"{pace_s}"
    with running("up", "--data", str(data), "--listen", ANYWHERE, "--set", "topic_max_bytes=2000", "--json") as broker:
        client = Shell(broker, json.loads(read_line(broker))["urls"][0], data)
        client.ok("subscribe", "alerts", "--as", "reader")
        client.ok("put", "alerts", stdin=b"x" * 1500)
        done = client.run("put", "alerts", "--timeout", f"{pace_s}", "--json", stdin=b"y" * 1500)
        assert done.returncode == 7
        assert json.loads(one_line(done))["error"]["code"] == "TopicFull"
        assert client.ok("get", "alerts", "--as", "reader") == b"x" * 1500 + b"\n"


def test_a_get_without_subscription_says_how_to_subscribe(shell: Shell) -> None:
    done = shell.run("get", "alerts", "--as", "my reader")
    assert done.returncode == 6
    assert "clarion subscribe alerts --as 'my reader'" in one_line(done)
    assert shell.run("get", "alerts", "--as", "my reader", "--subscribe").returncode == 3
    shell.ok("put", "alerts", "hello")
    assert shell.ok("get", "alerts", "--as", "my reader") == b"hello\n"


def test_subscribing_twice_is_fine_and_unsubscribing_twice_is_told(shell: Shell) -> None:
    assert shell.json("subscribe", "alerts", "--as", "reader") == {
        "topic": "alerts",
        "subscriber": "reader",
        "new": True,
        "origins": [],
        "unconfirmed": [],
        "reasons": {},
    }
    assert shell.json("subscribe", "alerts", "--as", "reader")["new"] is False
    assert shell.json("unsubscribe", "alerts", "--as", "reader")["subscriber"] == "reader"
    assert shell.run("unsubscribe", "alerts", "--as", "reader").returncode == 6


def test_a_subscription_starts_where_it_was_told(shell: Shell) -> None:
    shell.ok("topics", "create", "audit", "--retention", "keep")
    shell.ok("put", "audit", "--lines", stdin=b"0\n1\n2\n")
    for start, expected in (("earliest", b"0\n1\n2\n"), ("2", b"2\n"), ("2020-01-01T00:00:00Z", b"0\n1\n2\n")):
        shell.ok("subscribe", "audit", "--as", f"from {start}", "--start", start)
        assert shell.ok("get", "audit", "--as", f"from {start}") == expected


def test_follow_prints_what_comes_and_ends_cleanly(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with running("get", "alerts", "--as", "reader", "--follow", CLARION_URL=shell.url) as following:
            for text in ("one", "two"):
                shell.ok("put", "alerts", text)
                assert read_line(following) == f"{text}\n".encode()
            assert stop(following, number) == (code, b"", b"")
    assert shell.run("get", "alerts", "--as", "reader").returncode == 3  # all were acked


def test_follow_lives_through_a_killed_broker(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    with running("get", "alerts", "--as", "reader", "--follow", CLARION_URL=shell.url) as following:
        shell.ok("put", "alerts", "before")
        assert read_line(following) == b"before\n"
        shell.broker.kill()
        shell.broker.wait(DEADLINE_S)
        with running("up", "--data", str(shell.data), "--listen", shell.url) as again:
            assert b"ready" in read_line(again)
            shell.ok("put", "alerts", "after", "--timeout", "120")
            assert read_line(following) == b"after\n"
            assert stop(following, signal.SIGINT)[0] == 130


def _pipe(shell: Shell, line: str) -> Done:
    """Run a line of the shell in which $CLARION is the command, with the exit code of the pipe's first part."""
    done = subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        env=environment(CLARION_URL=shell.url, CLARION=f"{sys.executable} -m clarion"),
        timeout=DEADLINE_S,
        check=False,
    )
    return Done(line, done.returncode, done.stdout, without_waits(done.stderr))


def test_following_ends_when_nobody_reads_it_any_more(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    shell.ok("put", "alerts", "first")
    gone = _pipe(shell, "$CLARION get alerts --as reader --follow | head -1")
    assert (gone.returncode, gone.stdout, gone.stderr) == (141, b"first\n", b"")


def test_what_is_acked_is_what_the_reader_took(shell: Shell) -> None:
    lines = [b"%08d" % number for number in range(100_000)]
    shell.ok("subscribe", "alerts", "--as", "reader")
    shell.ok("put", "alerts", "--lines", stdin=b"\n".join(lines))
    first = _pipe(shell, "$CLARION get alerts --as reader | head -1")
    assert (first.returncode, first.stdout.split(), first.stderr) == (141, lines[:1], b"")
    second = _pipe(shell, "$CLARION get alerts --as reader --json | head -2")
    assert (second.returncode, second.stderr) == (141, b"")
    assert [json.loads(line)["payload"].encode() for line in second.stdout.splitlines()] == lines[1:3]
    third = _pipe(shell, "$CLARION get alerts --as reader | { read a; read b; echo $a $b; }")
    assert (third.returncode, third.stdout.split(), third.stderr) == (141, lines[3:5], b"")
    many = _pipe(shell, "$CLARION get alerts --as reader | head -1000")
    assert (many.returncode, many.stdout.split()) == (141, lines[5:1005])
    left = lines[100_000 - shell.json("subscriptions")["lag"]]
    assert lines[500] < left <= lines[1005]  # it took more than it wanted, and is not credited with all of it
    assert b" taken last may not have been used, and will come again" in many.stderr
    rest = _pipe(shell, "$CLARION get alerts --as reader | cat")
    assert (rest.returncode, rest.stdout.split()[0], rest.stdout.split()[-1]) == (0, left, lines[-1])
    assert shell.run("get", "alerts", "--as", "reader").returncode == 3


def test_what_cannot_be_written_is_told_and_not_acked(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    shell.ok("put", "alerts", "hello")
    for command in ("get alerts --as reader", "browse alerts", "browse alerts --json", "topics", "topics --json"):
        full = _pipe(shell, f"$CLARION {command} > /dev/full")
        assert (full.returncode, b"No space left on device" in full.stderr) == (1, True)
        assert full.stderr.count(b"\n") == 1
    closed = _pipe(shell, "$CLARION get alerts --as reader >&-")
    assert (closed.returncode, b"standard output is closed" in closed.stderr) == (1, True)
    assert shell.ok("get", "alerts", "--as", "reader") == b"hello\n"


def test_a_reader_that_went_away_ends_every_command_quietly(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    watched = ("stats --watch 10ms", "stats --json --watch 10ms")
    for command in ("topics", "topics --json", "stats", *watched, "config", "config --json"):
        gone = _pipe(shell, f"$CLARION {command} | true")
        assert (gone.returncode in (0, 141), gone.stderr) == (True, b"")


def test_unread_messages_are_not_let_go_without_asking(shell: Shell) -> None:
    shell.ok("subscribe", "alerts/#", "--as", "reader")
    for topic in ("alerts/a", "alerts/b"):
        shell.ok("put", topic, "--lines", stdin=b"1\n2\n")
    shell.ok("subscribe", "alerts/a", "--as", "other", "--start", "earliest")
    for words, told in (
        (("unsubscribe", "alerts/a", "--as", "other"), "other has not read 2 messages on alerts/a"),
        (("subscriptions", "delete", "alerts/a", "other"), "other has not read 2 messages on alerts/a"),
        (("unsubscribe", "alerts/#", "--as", "reader"), "reader has not read 4 messages on 2 topics like alerts/#"),
    ):
        refused = shell.run(*words)
        assert refused.returncode == 2
        assert told in one_line(refused)
        assert "--yes" in one_line(refused)
    shell.ok("get", "alerts/a", "--as", "other")
    shell.ok("unsubscribe", "alerts/a", "--as", "other")  # nothing to ask
    assert shell.ok("get", "alerts/#", "--as", "reader", "--max", "4").count(b"\n") == 4
    shell.ok("put", "alerts/a", "3")
    shell.ok("unsubscribe", "alerts/#", "--as", "reader", "--yes")
    assert shell.run("unsubscribe", "alerts/#", "--as", "reader").returncode == 6


def test_where_no_broker_is_that_is_said(tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/nobody"
    for command in (
        ("put", "alerts", "x"),
        ("get", "alerts", "--as", "reader"),
        ("subscribe", "alerts", "--as", "reader"),
        ("topics",),
        ("stats",),
    ):
        done = run(*command, "--timeout", "0.2", CLARION_URL=url)
        assert done.returncode == 4
        assert f"no broker answers at {url}" in one_line(done)


def test_an_address_that_is_none_is_said(tmp_path: Path) -> None:
    done = run("put", "alerts", "x", "--url", "nowhere")
    assert done.returncode == 1
    assert "'nowhere'" in one_line(done)
