"""The command line as scripts use it: real processes, exit codes, and output that can be relied on."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

_DEADLINE_S = 60.0
_ANYWHERE = "tcp://127.0.0.1:*"
Done = subprocess.CompletedProcess[bytes]


def _environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CLARION_")}
    return {**clean, "COLUMNS": "200", **more}


def _start(*arguments: str, **more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "clarion", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(**more),
    )


@contextmanager
def _running(*arguments: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    process = _start(*arguments, **more)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=_DEADLINE_S)


def _read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Give the next line of output; fail where none comes in time."""
    assert process.stdout is not None
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    return lines.get(timeout=_DEADLINE_S)


def _stop(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> tuple[int, bytes, bytes]:
    """Send a signal; give the exit code and the rest of the output."""
    process.send_signal(number)
    out, err = process.communicate(timeout=_DEADLINE_S)
    return process.returncode, out, err


class Shell:
    """Runs client commands against one broker."""

    def __init__(self, broker: subprocess.Popen[bytes], url: str, data: Path) -> None:
        self.broker = broker
        self.url = url
        self.data = data

    def run(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "clarion", *arguments],
            input=stdin,
            capture_output=True,
            env=_environment(CLARION_URL=self.url),
            timeout=_DEADLINE_S,
            check=False,
        )

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a command that must end well; give what it printed."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        """Run a command with --json; give what it said."""
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    data = tmp_path / "data"
    with _running("up", "--data", str(data), "--listen", _ANYWHERE, "--json") as broker:
        ready = json.loads(_read_line(broker))
        yield Shell(broker, ready["urls"][0], data)


def _run(*arguments: str, **more: str) -> Done:
    return subprocess.run(
        [sys.executable, "-m", "clarion", *arguments],
        capture_output=True,
        env=_environment(**more),
        timeout=_DEADLINE_S,
        check=False,
    )


def _one_line(done: Done) -> str:
    """Give the only line on standard error; nothing may be on standard output."""
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    return line


# Starting and stopping a broker.


def test_up_says_in_one_line_that_it_is_ready_and_sigterm_drains_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with _running("up", "--data", str(data), "--listen", _ANYWHERE) as broker:
        line = _read_line(broker).decode()
        assert line.startswith("clarion: ready on tcp://127.0.0.1:")
        assert line.endswith(f" (data in {data}, pid {broker.pid})\n")
        code, out, err = _stop(broker)
    assert (code, out) == (0, b"")
    logs = [json.loads(line) for line in err.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(logs[0])
    assert logs[0]["message"] == "ready"
    assert "stopped" in logs[-1]["message"]


def test_up_tells_programs_where_it_listens(tmp_path: Path) -> None:
    listen = ("--listen-publishers", _ANYWHERE, "--listen-subscribers", _ANYWHERE)
    with _running("up", "--data", str(tmp_path), *listen, "--json") as broker:
        ready = json.loads(_read_line(broker))
        assert ready.keys() == {"event", "urls", "data", "pid"}
        assert (ready["event"], ready["data"], ready["pid"]) == ("ready", str(tmp_path), broker.pid)
        assert len(ready["urls"]) == 2
        assert _stop(broker, signal.SIGINT)[0] == 0


def test_settings_come_from_file_environment_and_flags_in_that_order(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text("max_topics = 1\nmax_get_msgs = 1\nmax_batch_bytes = 2000\n")
    flags = ("--config", str(file), "--set", "max_topics=3")
    done = _run("config", "--config", str(file), "--json", CLARION_MAX_GET_MSGS="2")
    told = {row["name"]: (row["value"], row["source"]) for row in json.loads(done.stdout)}
    assert told["max_topics"] == (1, "file")
    assert told["max_get_msgs"] == (2, "environment")
    where = ("--data", str(tmp_path / "data"), "--listen", _ANYWHERE)
    with _running("up", *flags, *where, "--json") as broker:
        url = json.loads(_read_line(broker))["urls"][0]
        client = Shell(broker, url, tmp_path)
        for topic in ("a", "b", "c"):
            client.ok("topics", "create", topic, "--retention", "keep")
        refused = client.run("topics", "create", "d", "--retention", "keep")
        assert refused.returncode == 1
        assert "max_topics" in _one_line(refused)
        large = client.run("put", "a", stdin=b"x" * 3000)
        assert large.returncode == 1
        assert "2000 bytes" in _one_line(large)


def test_a_data_folder_in_use_is_refused(shell: Shell) -> None:
    done = _run("up", "--data", str(shell.data), "--listen", _ANYWHERE)
    assert done.returncode == 8
    assert f"process {shell.broker.pid}" in _one_line(done)


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clarion.db").write_bytes(b"garbage" * 100)
    done = _run("up", "--data", str(tmp_path), "--listen", _ANYWHERE)
    assert done.returncode == 8
    assert "not a Clarion store" in _one_line(done)


def test_an_address_in_use_is_refused(shell: Shell, tmp_path: Path) -> None:
    done = _run("up", "--data", str(tmp_path / "other"), "--listen", shell.url, "--json")
    assert done.returncode == 1
    told = json.loads(_one_line(done))
    assert told["error"] == "BadSettings"
    assert shell.url in told["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "max_topics=many"), "max_topics is a whole number, not 'many'"),
        (("--set", "max_topics=0"), "max_topics is at least 1, not 0"),
        (("--set", "max_topic=5"), "there is no setting 'max_topic'; did you mean max_topics?"),
        (("--log-level", "loud"), "log_level is debug, info, warning or error, not 'loud'"),
        (("--listen", "nowhere"), "cannot listen on nowhere"),
        (("--config", "missing.toml"), "cannot read missing.toml: No such file or directory"),
    ],
)
def test_a_bad_setting_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = _run("up", "--data", str(tmp_path / "data"), "--listen", _ANYWHERE, *arguments)
    assert done.returncode == 1
    line = _one_line(done)
    assert line.startswith("clarion: ")
    assert words in line


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_text("max_topics = 5\nmax_tropics = 5\n")
    done = _run("up", "--data", str(tmp_path), "--config", str(file))
    assert done.returncode == 1
    assert "max_tropics" in _one_line(done)


def test_a_usage_error_has_its_own_code() -> None:
    assert _run("put").returncode == 2
    assert _run("get", "alerts", "--as", "").returncode == 2
    assert _run("up", "--set", "max_topics").returncode == 2
    assert _run("nonsense").returncode == 2


# Messages.


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
    assert told.keys() == {"topic", "messages", "first_offset", "last_offset", "id"}
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
    with _running("put", "alerts", "--lines", CLARION_URL=shell.url) as putting:
        assert putting.stdin is not None
        putting.stdin.write(b"early\n")
        putting.stdin.flush()
        assert shell.ok("get", "alerts", "--as", "reader", "--max", "1", "--wait", "30") == b"early\n"
        out, _ = putting.communicate(timeout=_DEADLINE_S)
    assert putting.returncode == 0
    assert b"1 message stored" in out


def test_no_lines_are_no_messages(shell: Shell) -> None:
    assert shell.json("put", "alerts", "--lines")["messages"] == 0


def test_a_put_that_nobody_would_read_says_so(shell: Shell) -> None:
    done = shell.run("put", "alerts", "hello")
    assert done.returncode == 5
    assert "clarion subscribe alerts --as NAME" in _one_line(done)
    endless = shell.run("put", "alerts", "--lines", "--json", stdin=b"x\n" * 100_000)
    assert endless.returncode == 5
    assert json.loads(_one_line(endless))["error"] == "NoSubscriber"


def test_a_put_that_must_wait_for_room_says_so(tmp_path: Path) -> None:
    where = ("--data", str(tmp_path), "--listen", _ANYWHERE, "--set", "topic_max_bytes=2000")
    with _running("up", *where, "--json") as broker:
        client = Shell(broker, json.loads(_read_line(broker))["urls"][0], tmp_path)
        client.ok("subscribe", "alerts", "--as", "reader")
        client.ok("put", "alerts", stdin=b"x" * 1500)
        done = client.run("put", "alerts", "--timeout", "1", "--json", stdin=b"y" * 1500)
        assert done.returncode == 7
        assert json.loads(_one_line(done))["error"] == "TopicFull"
        assert client.ok("get", "alerts", "--as", "reader") == b"x" * 1500 + b"\n"


def test_a_get_without_subscription_says_how_to_subscribe(shell: Shell) -> None:
    done = shell.run("get", "alerts", "--as", "my reader")
    assert done.returncode == 6
    assert "clarion subscribe alerts --as 'my reader'" in _one_line(done)
    assert shell.run("get", "alerts", "--as", "my reader", "--subscribe").returncode == 3
    shell.ok("put", "alerts", "hello")
    assert shell.ok("get", "alerts", "--as", "my reader") == b"hello\n"


def test_subscribing_twice_is_fine_and_unsubscribing_twice_is_told(shell: Shell) -> None:
    assert shell.json("subscribe", "alerts", "--as", "reader") == {
        "topic": "alerts",
        "subscriber": "reader",
        "new": True,
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
        with _running("get", "alerts", "--as", "reader", "--follow", CLARION_URL=shell.url) as following:
            for text in ("one", "two"):
                shell.ok("put", "alerts", text)
                assert _read_line(following) == f"{text}\n".encode()
            assert _stop(following, number) == (code, b"", b"")
    assert shell.run("get", "alerts", "--as", "reader").returncode == 3  # all were acked


def test_follow_lives_through_a_killed_broker(shell: Shell) -> None:
    shell.ok("subscribe", "alerts", "--as", "reader")
    with _running("get", "alerts", "--as", "reader", "--follow", CLARION_URL=shell.url) as following:
        shell.ok("put", "alerts", "before")
        assert _read_line(following) == b"before\n"
        shell.broker.kill()
        shell.broker.wait(_DEADLINE_S)
        with _running("up", "--data", str(shell.data), "--listen", shell.url) as again:
            assert b"ready" in _read_line(again)
            shell.ok("put", "alerts", "after", "--timeout", "30")
            assert _read_line(following) == b"after\n"
            assert _stop(following, signal.SIGINT)[0] == 130


def test_what_a_gone_reader_did_not_take_comes_again(shell: Shell) -> None:
    lines = b"".join(b"%08d\n" % number for number in range(100_000))
    shell.ok("subscribe", "alerts", "--as", "reader")
    shell.ok("put", "alerts", "--lines", stdin=lines)
    with _running("get", "alerts", "--as", "reader", CLARION_URL=shell.url) as getting:
        assert getting.stdout is not None
        assert getting.stdout.read(9) == b"00000000\n"
        getting.stdout.close()
        assert getting.wait(_DEADLINE_S) == 141
        assert getting.stderr is not None
        assert getting.stderr.read() == b""
    rest = shell.ok("get", "alerts", "--as", "reader")
    assert 0 < len(rest) < len(lines)
    assert lines.endswith(rest)


def test_where_no_broker_is_that_is_said(tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/nobody"
    for command in (
        ("put", "alerts", "x"),
        ("get", "alerts", "--as", "reader"),
        ("subscribe", "alerts", "--as", "reader"),
        ("topics",),
        ("stats",),
    ):
        done = _run(*command, "--timeout", "0.2", CLARION_URL=url)
        assert done.returncode == 4
        assert f"no broker answers at {url}" in _one_line(done)


def test_an_address_that_is_none_is_said(tmp_path: Path) -> None:
    done = _run("put", "alerts", "x", "--url", "nowhere")
    assert done.returncode == 1
    assert "'nowhere'" in _one_line(done)


# Looking around.


def test_topics_and_stats_are_tables_and_json(shell: Shell) -> None:
    assert shell.json("topics") == []
    shell.ok("subscribe", "[red]alerts[/red]", "--as", "reader")
    shell.ok("put", "[red]alerts[/red]", "--lines", stdin=b"1\n2\n")
    (topic,) = shell.json("topics")
    assert (topic["topic"], topic["retention"], topic["messages"]) == ("[red]alerts[/red]", "until-read", 2)
    assert topic["subscriptions"][0]["unread"] == 2
    table = shell.ok("topics").decode()
    assert "[red]alerts[/red]" in table
    assert "reader (2)" in table
    assert shell.json("stats")["messages_stored"] == 2
    assert b"messages stored" in shell.ok("stats")


def test_stats_can_be_watched(shell: Shell) -> None:
    with _running("stats", "--watch", "0.1", "--json", CLARION_URL=shell.url) as watching:
        assert all("commits" in json.loads(_read_line(watching)) for _ in range(2))
        assert _stop(watching, signal.SIGINT)[0] == 130


def test_the_toml_of_config_starts_a_broker(tmp_path: Path) -> None:
    file = tmp_path / "clarion.toml"
    file.write_bytes(_run("config", "--toml", CLARION_DATA=str(tmp_path / "data")).stdout)
    with _running("up", "--config", str(file), "--listen", _ANYWHERE, "--json") as broker:
        assert json.loads(_read_line(broker))["data"] == str(tmp_path / "data")


# The demo.


def test_the_demo_survives_its_kill_and_says_so() -> None:
    done = _run("demo", "--messages", "2000", "--subscribers", "2", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, b"")
    assert told["ok"] is True
    assert told["kills"] == 1
    assert (told["sent"], told["acked"]) == (2000, 2000)
    assert told["received"] == {"subscriber-1": 2000, "subscriber-2": 2000}
    assert (told["lost"], told["repeated"], told["out_of_order"]) == (0, 0, 0)


def test_the_demo_keeps_its_data_where_asked(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    done = _run(
        "demo", "--messages", "100", "--publishers", "1", "--subscribers", "1", "--no-kill", "--keep", str(kept)
    )
    assert done.returncode == 0
    assert b"Nothing lost, nothing repeated" in done.stdout
    assert (kept / "data" / "clarion.db").exists()
    again = _run("demo", "--keep", str(kept))
    assert again.returncode == 1
    assert "not empty" in _one_line(again)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_interrupted_leaves_nothing_running(tmp_path: Path, number: int, code: int) -> None:
    with _running("demo", "--messages", "50000000", "--no-kill", TMPDIR=str(tmp_path)) as demo:
        assert demo.stderr is not None
        while b"go." not in (line := demo.stderr.readline()):
            assert line
        started = psutil.Process(demo.pid).children(recursive=True)
        assert len(started) == 6
        assert _stop(demo, number)[0] == code
    assert not any(process.is_running() for process in started)
    assert list(tmp_path.iterdir()) == []
